"""A moving average of the parameters: 3 elementwise instructions per parameter. Training does not read it."""

from collections.abc import Mapping

from tiebreak.engine.lowering.builder import Builder, Ref

AVERAGE = "average."
"""Prefix of the averages in the state."""


def averaged(b: Builder, decay: float, before: Mapping[str, Ref], after: Mapping[str, Ref]) -> dict[str, Ref]:
    """average + (1 - decay) * (parameter after the step - average), by state entry.

    before: the parameters in the state before the step, for their shapes. The average starts from the initial
    parameters, like `torch.optim.swa_utils.AveragedModel` with `get_ema_avg_fn(decay)` if it is updated once before
    training.
    """
    found = {}
    for name, p in before.items():
        held = b.state(AVERAGE + name, p.dtype, p.shape)
        b.origin = f"average:{name}"
        found[AVERAGE + name] = b.add(held, b.scale(b.sub(after[name], held), 1 - decay))
    return found
