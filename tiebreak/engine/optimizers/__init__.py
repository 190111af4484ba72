"""Optimizers as instructions. They never call `pow`: powers are state, multiplied once per step, or exact tables."""

from torch import Tensor

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.optimizers.adafactor import TABLE, adafactor, second_moment_weights
from tiebreak.engine.optimizers.adam import adam
from tiebreak.engine.optimizers.adaptive import adagrad, lion, nadam, radam, rmsprop
from tiebreak.engine.optimizers.exact import adagrad_table, nadam_tables, radam_table
from tiebreak.engine.optimizers.settings import (
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    Lion,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    settings_of,
)
from tiebreak.engine.optimizers.sgd import sgd
from tiebreak.engine.optimizers.update import TrainedParameter, Update

__all__ = ["Update", "tables", "update"]


def tables(optimizer: Optimizer, steps: int) -> dict[str, Tensor]:
    """The data entries that the optimizer reads in addition to the learning rates."""
    match optimizer:
        case Adafactor():
            return {TABLE: second_moment_weights(steps, optimizer.beta2_decay)}
        case Adagrad():
            return adagrad_table(optimizer, steps)
        case NAdam():
            return nadam_tables(optimizer, steps)
        case RAdam():
            return radam_table(optimizer, steps)
    return {}


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
        case RMSprop():
            rmsprop(builder, optimizer, trained, result)
        case Adagrad():
            adagrad(builder, optimizer, steps, trained, result)
        case NAdam():
            nadam(builder, optimizer, steps, trained, result)
        case RAdam():
            radam(builder, optimizer, steps, trained, result)
        case Lion():
            lion(builder, optimizer, trained, result)
    return result


def _trained(b: Builder, optimizer: Optimizer, rate: Ref, name: str, value: Ref, gradient: Ref) -> TrainedParameter:
    factor, weight_decay = settings_of(optimizer, name)
    b.origin = "schedule"
    own = rate if factor == 1 else b.scale(rate, factor)
    return TrainedParameter(name=name, value=value, gradient=gradient, rate=own, weight_decay=weight_decay)
