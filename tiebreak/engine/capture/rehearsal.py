"""Is the program the model? This page has the plan; its checks are tagged with their numbers wherever they are made.

A program is captured once and then computed without the user's Python code. The step is run as it is, in plain PyTorch
on copies (`step_run`), twice before it is traced, and is then compared with the program.

The first run fills whatever the model caches, and is watched operator by operator (`side_effects.EffectWatch`):

 1. it succeeds on a batch of the examples with the greatest and the least numbers;
 2. it leaves the settings of torch as they were;
 3. it writes to buffers and parameters only, and in forward;
 4. it leaves each of them in memory of its own;
 5. it leaves no hooks and attributes on them.

The second run is one as all later ones, and its calls of functions in C are noted:

 6. it reads no clocks, files and random numbers but torch's (`outside`);
 7. it changes no Python state that the next step reads (`reach`);
 8. the model's tensors are read from the model;
 9. gradients go to the model's parameters only;
10. it has the results and draws of the first run;
11. it trains what requires a gradient at capture.

A third run, if a schedule changes optimizers that the step can reach:

12. it has the same results with other rates.

The trace (`tracing`) refuses what is no graph of operators, and

13. numbers that the step reads out of tensors reach nothing but reports (`reports`);
14. draws that begin in one state of the random numbers are one draw (`draws`).

Of the finished program, `check` asks whether

15. two captures with other seeds, clocks and random numbers give the same program;
16. steps 1 and 2 of the engine are those of eager PyTorch;
17. the update is that of torch's own optimizer.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

import torch
from torch import Tensor, nn

from tiebreak.engine.capture.draws import random_state
from tiebreak.engine.capture.outside import outside_reads, refuse_python_state
from tiebreak.engine.capture.reach import Reach, settings
from tiebreak.engine.capture.side_effects import (
    EffectWatch,
    refuse_marks,
    refuse_other_memory,
    refuse_settings,
    refuse_shared_memory,
    refuse_strangers,
)  # fmt: skip
from tiebreak.engine.capture.step_run import CPU, SEED, Losses, StepRun
from tiebreak.protocol.errors import ConfigurationError

_FIRST_RUN: Final = (
    "the step cannot be captured: in plain PyTorch its first run has other results or draws than its second one, on "
    "the same tensors. A program does the same in every step; call the model once on a batch before (and load its "
    "initial weights again), or make what is done once a part of __init__"
)
_OTHER_RATES: Final = (
    "expected a loss that reads nothing that a schedule changes, got one with other results if the optimizer's "
    "settings (`param_groups`, `get_last_lr()`) are others: they would stay as they were at capture; count steps in a "
    "buffer (`self.t += 1`), and compute the factor from it"
)


def rehearse(
    model: nn.Module, losses: Losses, batch: Sequence[Tensor], device: torch.device | None = CPU, *,
    scheduled: bool = False,
) -> frozenset[str]:  # fmt: skip
    """Makes checks 1 to 12, and returns the names of the buffers that a step assigns, and of a weight that it writes.

    losses, device: as in `StepRun`. scheduled: whether the settings of optimizers change from step to step. Raises
    `ConfigurationError`, with the place, if the step fails or does what a program cannot.
    """
    run = StepRun(model, losses, batch, device)

    # The first run, watched.
    run.watch = watch = EffectWatch(run)
    torch.manual_seed(SEED)
    process = settings()
    run()  # (1)
    refuse_settings(run, process)  # (2)
    run.watch, first = nullcontext(), (random_state(), run.results())
    watch.refuse_writes()  # (3)
    refuse_other_memory(run)  # (4)
    refuse_marks(run)  # (5)
    refuse_shared_memory(run)  # (4)

    # The second run, whose calls are noted.
    reach = Reach(model, losses)
    torch.manual_seed(SEED)
    with outside_reads(model) as refuse_reads:
        run()
    second = random_state(), run.results()
    refuse_reads()  # (6)
    refuse_python_state(run, reach.changed())  # (7)
    watch.refuse_reads()  # (8)
    refuse_strangers(run, reach)  # (9)
    is_alike = first[0] == second[0] and _alike(first[1], second[1])
    _refuse_flags(run, is_alike=is_alike)  # (11)
    if not is_alike:  # (10)
        raise ConfigurationError(_FIRST_RUN)
    assigned = {*run.step.assigned, *watch.weight}

    if scheduled and reach.schedules:
        torch.manual_seed(SEED)
        with reach.other_rates():
            run()
        if not _alike(second[1], run.results()):  # (12)
            raise ConfigurationError(_OTHER_RATES)
    return frozenset(assigned)


def _alike(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape
        and (torch.equal(a, b) or torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-6, equal_nan=True))
        for a, b in zip(first, second, strict=True)
    )


def _refuse_flags(run: StepRun, *, is_alike: bool) -> None:
    """Refuses a step whose gradients depend on `requires_grad` as it sets it. is_alike: whether both runs have them."""
    for name, now in (run.flags or {}).items():
        before = run.given[name].requires_grad
        if (now != before and not is_alike) or (run.copies[name].grad is not None and not before):
            advice = "set it back at the end of the loss" if before else "set it before capture"
            raise ConfigurationError(
                "expected a step that trains what requires a gradient at capture, got one that sets `requires_grad` of "
                f"{name} to {not before}; {advice}"
            )
