"""Optimizers as instructions. They never call `pow`: powers of the betas are state, multiplied once per step."""

from torch import Tensor

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.optimizers.adafactor import TABLE, adafactor, second_moment_weights
from tiebreak.engine.optimizers.adam import adam
from tiebreak.engine.optimizers.settings import SGD, Adafactor, Adam, Optimizer, settings_of
from tiebreak.engine.optimizers.sgd import sgd
from tiebreak.engine.optimizers.update import Trained, Update

__all__ = ["Update", "tables", "update"]


def tables(optimizer: Optimizer, steps: int) -> dict[str, Tensor]:
    """The data entries that the optimizer reads in addition to the learning rates."""
    return {TABLE: second_moment_weights(steps, optimizer.beta2_decay)} if isinstance(optimizer, Adafactor) else {}


def update(
    builder: Builder, optimizer: Optimizer, rate: Ref, steps: int, parameters: dict[str, Ref],
    gradients: dict[str, Ref],
) -> Update:  # fmt: skip
    """Emits the optimizer's step for every parameter that has a gradient; the others stay as they are.

    rate: this step's learning rate without the groups' factors. steps: the number of steps of the job, which is the
    length of tables.
    """
    result = Update(parameters=dict(parameters))
    trained = [_trained(builder, optimizer, rate, n, p, gradients[n]) for n, p in parameters.items() if n in gradients]
    match optimizer:
        case SGD():
            sgd(builder, optimizer, trained, result)
        case Adam():
            adam(builder, optimizer, trained, result)
        case Adafactor():
            adafactor(builder, optimizer, steps, trained, result)
    return result


def _trained(b: Builder, optimizer: Optimizer, rate: Ref, name: str, value: Ref, gradient: Ref) -> Trained:
    factor, weight_decay = settings_of(optimizer, name)
    b.origin = "schedule"
    own = rate if factor == 1 else b.scale(rate, factor)
    return Trained(name=name, value=value, gradient=gradient, rate=own, weight_decay=weight_decay)
