"""Runs a program, step by step, on one device. A value is freed after its last use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.arithmetic import Arithmetic
from engine.tensors import canonical, check_spec
from protocol.errors import StateError
from protocol.isa import Instruction, Opcode, Slot, SourceKind
from protocol.program import Program

State = dict[str, Tensor]
"""Name -> tensor on the interpreter's device, contiguous."""

Observer = Callable[[int, Tensor], Tensor]
"""Called with each leaf of the value tree (a body value or a commit) and its tensor; what it returns is used."""


class NotFiniteError(StateError):
    """A step left infinities or NaN in the state. Training stops; nothing of that step is committed."""

    def __init__(self, step: int, name: str) -> None:
        self.step = step
        self.name = name
        super().__init__(
            f"step {step}: {name} is no longer finite; look at the learning rate and at the data of that step"
        )


@dataclass(frozen=True)
class StepResult:
    """The state after a step, and the bits of its loss."""

    state: State
    loss_bits: int

    @property
    def loss(self) -> float:
        """The loss as a number."""
        return torch.tensor(self.loss_bits, dtype=torch.int64).to(torch.int32).view(torch.float32).item()


def loss_bits(loss: Tensor) -> int:
    """The bits of an f32 of rank 0, with the one NaN."""
    return int(canonical(loss).reshape(1).view(torch.int32).item()) & 0xFFFFFFFF


class Interpreter:
    """Executes the steps of one program."""

    def __init__(self, program: Program, arithmetic: Arithmetic) -> None:
        self.program = program
        self.arithmetic = arithmetic
        self._dying = _last_uses(program)

    def to_device(self, tensors: Mapping[str, Tensor]) -> State:
        """Tensors on this interpreter's device, contiguous."""
        return {name: tensor.to(self.arithmetic.device).contiguous() for name, tensor in tensors.items()}

    def step(
        self,
        number: int,
        state: State,
        data: State,
        observe: Observer | None = None,
        *,
        check_finite: bool = True,
    ) -> StepResult:
        """Runs step `number` (from 1) on the state before it.

        `state` and `data` are on the device and fit the program. With `check_finite`, a state that is no longer finite
        raises `NotFiniteError`; replays of a disputed step switch that off.
        """
        values: dict[int, Tensor] = {}
        for index, instruction in enumerate(self.program.body):
            value = self._value(instruction, values, state, data, number)
            values[index] = value if observe is None else observe(index, value)
            for dead in self._dying[index]:
                del values[dead]
        new: State = {}
        for slot, commit in enumerate(self.program.commits):
            value = canonical(values[commit.operands[0].value])
            new[_slot(commit).name] = value if observe is None else observe(self.program.leaf_of_commit(slot), value)
        if check_finite:
            self._check_finite(number, new)
        return StepResult(new, loss_bits(values[len(self.program.body) - 1]))

    def check_inputs(self, state: Mapping[str, Tensor], data: Mapping[str, Tensor]) -> None:
        """Raise `EncodingError` unless state and data have the program's names, dtypes and shapes."""
        check_spec("state", state, self.program.state_spec())
        check_spec("data", data, self.program.data_spec())

    def _value(
        self, instruction: Instruction, values: dict[int, Tensor], state: State, data: State, number: int
    ) -> Tensor:
        if instruction.opcode == Opcode.SOURCE:
            if instruction.function == SourceKind.STATE:
                return state[_slot(instruction).name]
            if instruction.function == SourceKind.DATA:
                return data[_slot(instruction).name]
        operands = [values[operand.value] for operand in instruction.operands]
        return self.arithmetic.execute(instruction, operands, number - 1)

    @staticmethod
    def _check_finite(number: int, state: State) -> None:
        for name, tensor in state.items():
            if tensor.dtype == torch.float32 and not bool(torch.isfinite(tensor).all()):
                raise NotFiniteError(number, name)


def _slot(instruction: Instruction) -> Slot:
    assert isinstance(instruction.params, Slot)  # the program was validated
    return instruction.params


def _last_uses(program: Program) -> list[list[int]]:
    """For each body instruction the values that nothing after it reads. Committed values and the loss live on."""
    last: dict[int, int] = {}
    for index, instruction in enumerate(program.body):
        last[index] = index
        for operand in instruction.operands:
            last[operand.value] = index
    kept = {commit.operands[0].value for commit in program.commits} | {len(program.body) - 1}
    dying: list[list[int]] = [[] for _ in program.body]
    for value, index in last.items():
        if value not in kept:
            dying[index].append(value)
    return dying
