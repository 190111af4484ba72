"""A job's state by entry, and the way of a weight: out of the model, through the program, and back into a model.

1. `Task.initial_state` has the model's parameters and buffers, by name; narrow dtypes become wider ones.
2. `StateEntries.before` has what each of them is before the step in the program: the state entry `model.NAME`.
3. A phase of the step is traced on what `now` holds, and its update replaces that; where PyTorch holds bfloat16, new
   values are rounded to it (`rounded`).
4. `finished` names what the entries are after the step, and what they begin with.
5. `load_state` puts the entries of a state back into a model.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from typing import Final

import torch
from torch import Tensor, nn

from tiebreak.engine.capture.task import Task
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.optimizers.rules import AVERAGE, Update, moving_averages, total_norm
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType, MapFunction

MODEL: Final = "model."
"""Prefix of parameters and buffers in the state."""
OPTIMIZER: Final = "optimizer."
"""Prefix of the optimizer's entries in the state."""
TELEMETRY: Final = "telemetry.loss"
"""The state entry that holds the losses since the last checkpoint, which makes every one of them binding."""
NORM: Final = "telemetry.norm"
"""The state entry with the last step's norm of all gradients, f32 of rank 0, for tasks that ask for it."""


def first_state(task: Task, frozen: Collection[str], *, copy: bool = True) -> dict[str, Tensor]:
    """The entries of the initial state that are the model's tensors.

    frozen: those that no step changes; they share the model's memory, in its dtype if that is bfloat16. copy: whether
    the others have memory of their own in any case.
    """
    shared = {entry.removeprefix(MODEL) for entry in frozen}
    state = {MODEL + name: tensor for name, tensor in task.initial_state(copy=copy, shared=shared).items()}
    trained = [name for name, p in task.model.named_parameters() if p.requires_grad and task.average is not None]
    return state | {AVERAGE + name: state[MODEL + name].clone() for name in trained}


class StateEntries:
    """The entries of a state while a step is emitted; those of the model have no numbers (`first_state`)."""

    def __init__(self, b: Builder, task: Task) -> None:
        self._b, self._task, self._model, self._bf16 = b, task, task.initial_state("meta"), task.bf16()
        self.before = {
            name: b.state(MODEL + name, PROTOCOL_DTYPES[t.dtype], tuple(t.shape), bf16=name in self._bf16)
            for name, t in self._model.items()
        }
        self.now = self.before.copy()
        """The parameters and buffers after the phases so far."""
        self._optimizers: dict[str, Ref] = {}
        self._begun: dict[str, Tensor] = {}

    def rounded(self, refs: Mapping[str, Ref], of: Callable[[str], str] = str) -> dict[str, Ref]:
        """The refs, rounded where PyTorch holds bfloat16. of: the name of the parameter that an entry belongs to."""
        return {name: self._b.bf16(ref) if of(name) in self._bf16 else ref for name, ref in refs.items()}

    def update(self, updated: Update) -> None:
        """Replaces what an optimizer changes."""
        self.now |= updated.parameters
        self._optimizers |= updated.state
        self._begun |= updated.initial

    def finished(
        self, losses: Sequence[Ref], gradients: dict[str, Ref]
    ) -> tuple[dict[str, Ref], dict[str, Tensor], Ref]:
        """The new state and the initial one by entry, and the step's loss, of whose phases these are the losses."""
        b, task, interval = self._b, self._task, self._task.checkpoint_interval
        new = {MODEL + name: ref for name, ref in self.now.items()}
        new |= {OPTIMIZER + name: ref for name, ref in self._optimizers.items()}
        initial = {MODEL + name: t for name, t in self._model.items()}
        initial |= {OPTIMIZER + name: t for name, t in self._begun.items()}
        if task.average is not None:
            moving = {name: self.before[name] for name, p in task.model.named_parameters() if p.requires_grad}
            averages = moving_averages(b, task.average, moving, self.now)
            new |= self.rounded(averages, lambda entry: entry.removeprefix(AVERAGE))
            initial |= {entry: self._model[entry.removeprefix(AVERAGE)].clone() for entry in averages}
        # The ring of the last losses, with this step's at position step mod interval. A head commits to the states of
        # checkpoints only; with this entry in the state, it also commits to the losses between them.
        loss, held = reduce(b.add, losses), b.state(TELEMETRY, DType.F32, (interval,))
        b.origin = "telemetry"
        place = b.map(MapFunction.MOD, b.step(), b.i64(interval))
        new[TELEMETRY] = b.where(b.eq(b.iota((interval,), (1,)), place), loss, held)
        initial[TELEMETRY] = torch.zeros(interval)
        if task.norm:
            new[NORM], initial[NORM] = total_norm(b, gradients), torch.zeros(())
        return new, initial, loss


def load_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Overwrites all parameters and buffers of a model in place, by their names there.

    Raises `ConfigurationError` if the state lacks a name, has one too many, or has a tensor of another shape.
    """
    own = dict([*model.named_parameters(), *model.named_buffers()])
    if own.keys() != state.keys():
        raise ConfigurationError(f"expected a state of {sorted(own)}, got {sorted(state)}")
    for name, tensor in own.items():
        if tensor.shape != state[name].shape:
            raise ConfigurationError(f"expected {name} of shape {tuple(tensor.shape)}, got {tuple(state[name].shape)}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])
