"""Captures tasks, and maps the names of a model's tensors to those of a job's state."""

import sys
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

import torch
from torch import Tensor, nn

from tiebreak.api.machine import DEVICE
from tiebreak.api.machine.interpreters import usable_device
from tiebreak.api.training.reading import CHECKS
from tiebreak.engine.capture import four_bit
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.capture.check import checked, free_leftovers, rounds_to_bf16
from tiebreak.engine.capture.held import is_held
from tiebreak.engine.capture.slices import NoSlice, Slice
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.capture.task import Task
from tiebreak.engine.data.tensors import widened
from tiebreak.engine.run.cost import cost_of
from tiebreak.engine.run.loop import exact_step
from tiebreak.engine.system import memory_bytes
from tiebreak.protocol.arguments import Expectation, instance, taking
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.program import Program

PROCESS: Final = 1 << 29
"""Bytes that a process takes before it holds a model: torch, its tracer and the engine."""
PEFT: Final = "base_model.model."
"""The prefix of a base model's names in a PEFT model."""


TASK: Final = instance("a tiebreak.Task", Task)
CHECK: Final = Expectation(f"one of {', '.join(CHECKS)}", lambda x: isinstance(x, str) and x in CHECKS)


@taking(task=TASK, check=CHECK, device=DEVICE)
def capture(task: Task, *, check: str = "full", device: str = "cpu") -> Captured:
    """Captures the task as a program, its initial state and its data, and checks the program against eager PyTorch.

    The check takes about as long as capture itself and a few steps.

    task: the job whose step becomes the program; its model stays as it is.
    check: "full"; "slice" for a model of which this is too much: three of each list of equal layers are checked, and
    all others do the same (docs/decisions/capture.md says what this cannot see); if they do not, all of the model is
    checked, with a warning; or "none".
    device: a torch device, which computes the check and the rehearsal.

    Raises `ConfigurationError` if the program is not the model, if there is none (it then lists every operator that has
    no exact form), or, before anything is computed, if this machine has too little memory for the check.
    """
    with four_bit.as_state(task.model), ExitStack() as after:
        after.callback(free_leftovers, task)
        if check == "none":
            return capture_task(task)
        try:
            return _checked(task, usable_device(device), Slice.of(task) if check == "slice" else None)
        except NoSlice as error:
            warnings.warn(f"the whole model is checked, since a slice does not tell: {error}", stacklevel=2)
        return _checked(task, usable_device(device), None)


def _checked(task: Task, chosen: torch.device, part: Slice | None) -> Captured:
    steps = task if part is None else part.task
    if chosen.type == "cpu":
        _require_memory(task, steps)

    def run_step(program: Program, *given: Any) -> Any:
        if given[-1].type == "cpu":
            _require_memory(task, steps, program)
        return exact_step(program, *given)

    return checked(task, run_step, chosen, part, lambda: _require_memory(task, task))


def _require_memory(task: Task, part: Task, program: Program | None = None) -> None:
    """Raises `ConfigurationError` if capture and its check take more memory than this machine has."""
    if (needed := memory_of_capture(task, part, program)) > (available := memory_bytes()):
        raise ConfigurationError(
            f"expected a model whose capture and check fit into the {available / 2**30:.3g} GiB of memory here, got "
            f"one for which they take about {needed / 2**30:.3g} GiB; take smaller batches (`accumulation` adds up "
            'their gradients) or a machine with more memory, or check less (check="slice" or "none")'
        )


def memory_of_capture(task: Task, part: Task, program: Program | None = None) -> int:
    """About the most bytes that this process takes for capture and its check, with the model.

    First the step of `part`, the task itself or a slice of it, is rehearsed: copies of its tensors and two sets of
    gradients. Then the engine takes two steps of it, and keeps their gradients, the new state of the first and the new
    weights of the second. Of these, weights and gradients are still there when eager PyTorch has what it does not read
    from the model itself, gradients and values in FP64 (of a slice in bfloat16, FP32), with the parts of its largest
    gradient. Last, what steps change is copied. Without `program`, that of `part`, values and moments are not counted.
    """
    tensors = [*part.model.parameters(), *part.model.buffers()]
    trained = [4 * tensor.numel() for tensor in tensors if tensor.requires_grad]
    gradients, copied = sum(trained), sum(4 * t.numel() for t in tensors if not is_held(t))
    new = live = gradients
    values, wide = 0, 2
    if program is not None:
        step, entries = cost_of(program), part.initial_state("meta")
        new += max(0, step.state_bytes - sum(tensor.nbytes for tensor in entries.values()))
        live, values = max(new, step.live_bytes), max(0, step.passing_bytes - gradients)
        wide -= part is not task and rounds_to_bf16(program)
    eager = wide * (copied + gradients + values + 3 * max(trained, default=0))
    state = sum(4 * t.numel() for t in tensors if t.requires_grad and t.dtype != torch.float32)
    check = state + max(gradients + live, new + 3 * gradients + values, 3 * gradients + eager)
    rehearsal = sum(t.nbytes for t in tensors) + 2 * sum(t.nbytes for t in tensors if t.requires_grad)
    copies = sum(4 * p.numel() for p in task.model.parameters() if p.requires_grad)
    own = sum(tensor.nbytes for tensor in (*task.model.parameters(), *task.model.buffers()))
    return PROCESS + own + max(rehearsal, check, copies)


def state_names(model: nn.Module) -> dict[str, str]:
    """Maps each key of the module's `state_dict` to its state entry; the keys of tied tensors share one entry."""
    with four_bit.as_state(model):
        own = {id(t): name for name, t in reversed([*model.named_parameters(), *model.named_buffers()])}
        return {key: MODEL + own[id(t)] for key, t in model.state_dict(keep_vars=True).items() if id(t) in own}


def adapter_names(model: nn.Module) -> dict[str, str]:
    """Maps keys of the module's `state_dict` to the names that PEFT gives them in the file of the active adapter.

    A model without an adapter has none. PEFT itself maps them: it is given numbers in place of the tensors.
    """
    peft, keys = sys.modules.get("peft"), list(model.state_dict())
    marks = {key: torch.tensor(number) for number, key in enumerate(keys)}
    if peft is not None and isinstance(model, peft.PeftModel):
        found = peft.get_peft_model_state_dict(model, state_dict=marks, adapter_name=model.active_adapter)
    elif getattr(model, "_hf_peft_config_loaded", False):  # by `add_adapter` of transformers
        held: Any = model
        found = {f"{PEFT}{name}": mark for name, mark in held.get_adapter_state_dict(state_dict=marks).items()}
    else:
        return {}
    numbers = {name: mark for name, mark in found.items() if mark.ndim == 0}
    virtual = {  # tokens of a prompt, which PEFT computes: they are weights unless a network of their own gives them
        key: name for name, values in found.items() for key, tensor in model.state_dict().items()
        if name not in numbers and tensor.shape == values.shape and tensor.cpu().equal(values.to(tensor.dtype))
    }  # fmt: skip
    return {keys[int(mark)]: name for name, mark in numbers.items()} | virtual


def as_state_dict(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Copies of tensors under other names, on the CPU."""
    return {key: widened(state[entry].detach()).to("cpu", copy=True) for key, entry in names.items()}
