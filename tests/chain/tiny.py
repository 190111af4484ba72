"""Tiny training runs computed by the integer reference, honest or with one lie, as an oracle of a game.

Two programs: `EVERY` has every kind of instruction (tests/protocol/programs.py), `FUNCTIONS` each of the functions
10 to 15 and a long sum, for jobs of any precision.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from tests.protocol.programs import every_kind, initial_state, job_data
from tests.protocol.runs import bend
from tiebreak.protocol.commitments.accumulator_tree import AccumulatorTree
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.records import StepRecord, data_tree, identify, state_leaf, state_tree, tensor_tree
from tiebreak.protocol.commitments.records import run_tree as make_run_tree
from tiebreak.protocol.program.accumulator import encode
from tiebreak.protocol.program.isa import (
    Access,
    DType,
    Instruction,
    MapFunction,
    Opcode,
    ReduceFunction,
    Slot,
    SourceConst,
    SourceKind,
    row_major,
)
from tiebreak.protocol.program.program import Program, half_and_half
from tiebreak.protocol.program.reference import accumulators, element, pack, unpack
from tiebreak.protocol.program.rounding import Rounding
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree

F32, I64 = DType.F32, DType.I64
WEIGHTS: Final = 300
STEPS: Final = 5
INTERVAL: Final = 2

Tamper = Callable[[int, int, bytes], bytes]
"""(step, leaf of the value tree, honest data) -> data."""


@dataclass(frozen=True)
class Setting:
    """What a run is computed from."""

    name: str
    program: Program
    state: dict[str, bytes]
    data: dict[str, bytes]

    def state_ids(self, state: dict[str, bytes]) -> dict[str, Digest]:
        return {name: identify(dtype, shape, state[name]) for name, (dtype, shape) in self.program.state_spec().items()}

    def data_ids(self) -> dict[str, Digest]:
        spec = self.program.data_spec()
        return {name: identify(dtype, shape, self.data[name]) for name, (dtype, shape) in spec.items()}

    def job(
        self,
        client: Address,
        trainer: Address,
        *,
        nonce: int,
        levels: int,
        precision: int = 32,
        clock: int = 5000,
        replay_time: int = 0,
    ) -> Job:
        """5 steps with checkpoints at 2, 4 and 5."""
        return Job(
            client=client,
            trainer=trainer,
            program_root=self.program.root,
            body_count=len(self.program.body),
            state_count=len(self.program.commits),
            data_count=len(self.data),
            initial_state_root=state_tree(self.state_ids(self.state)).root,
            data_root=data_tree(self.data_ids()).root,
            steps=STEPS,
            checkpoint_interval=INTERVAL,
            precision=precision,
            reward=10**18,
            trainer_stake=10**18,
            challenger_stake=10**17,
            challenge_window=10_000,
            clock=clock,
            replay_time=replay_time,
            descent_levels=levels,
            nonce=nonce,
        )


def _source(kind: SourceKind, name: str, slot: int, dtype: DType, *shape: int) -> Instruction:
    return Instruction(opcode=Opcode.SOURCE, function=kind, dtype=dtype, shape=shape, params=Slot(slot=slot, name=name))


def _functions() -> Program:
    """w -= 2^-7 * (exp + log + tanh + erf + sin + cos)(w * x), and the sum of all of w as the loss."""
    shape = (WEIGHTS,)
    body = [
        _source(SourceKind.STATE, "w", 0, F32, WEIGHTS),
        _source(SourceKind.DATA, "x", 0, F32, WEIGHTS),
        Instruction(opcode=Opcode.SOURCE, function=SourceKind.CONST, dtype=F32, params=SourceConst(bits=0x3C000000)),
    ]

    def add(function: MapFunction, *values: int) -> int:
        operands = tuple(Access(v, 0, row_major(shape) if body[v].shape else (0,)) for v in values)
        body.append(Instruction(opcode=Opcode.MAP, function=function, dtype=F32, shape=shape, operands=operands))
        return len(body) - 1

    product = add(MapFunction.MUL, 0, 1)
    total = add(MapFunction.EXP, product)
    for function in (MapFunction.LOG, MapFunction.TANH, MapFunction.ERF, MapFunction.SIN, MapFunction.COS):
        total = add(MapFunction.ADD, total, add(function, add(MapFunction.ABS, product)))
    updated = add(MapFunction.SUB, 0, add(MapFunction.MUL, total, 2))
    read = (Access(updated, 0, row_major(shape)), Access(1, 0, row_major(shape)))
    body.append(
        Instruction(opcode=Opcode.REDUCE, function=ReduceFunction.SUM, dtype=F32, reduction=shape, operands=read)
    )
    commit = Instruction(
        opcode=Opcode.COMMIT,
        dtype=F32,
        shape=shape,
        operands=(Access(updated, 0, row_major(shape)),),
        params=Slot(slot=0, name="w"),
    )
    program = Program(tuple(body), (commit,))
    program.validate()
    return program


EVERY: Final = Setting("every", every_kind(), initial_state(), job_data())
FUNCTIONS: Final = Setting(
    "functions",
    _functions(),
    {"w": struct.pack(f"<{WEIGHTS}f", *((7 * i % 31 - 15.5) / 16 for i in range(WEIGHTS)))},
    {"x": struct.pack(f"<{WEIGHTS}f", *((5 * i % 23 - 11.25) / 8 for i in range(WEIGHTS)))},
)


@dataclass(frozen=True)
class Computed:
    """One step of a run: data of all body values, and the state after it."""

    values: tuple[bytes, ...]
    state: dict[str, bytes]


def honest(step: int, leaf: int, data: bytes) -> bytes:
    """No lie."""
    return data


_HONEST: dict[tuple[str, int, int], Computed] = {}
"""By setting, precision and step: the same for every job."""


class Run:
    """One party's run. `tamper` changes values as they are made; the rest follows from them."""

    def __init__(self, setting: Setting, job: Job, tamper: Tamper = honest, first: int = STEPS + 1) -> None:
        """`first` is the first tampered step."""
        self.setting, self.job, self.program = setting, job, setting.program
        self._tamper, self._first = tamper, first
        self._own: dict[tuple[str, int, int], Computed] = {}

    def computed(self, step: int) -> Computed:
        """The values of a step."""
        known = _HONEST if step < self._first else self._own
        key = (self.setting.name, self.job.precision, step)
        if key not in known:
            known[key] = self._compute(step)
        return known[key]

    def state(self, step: int) -> dict[str, bytes]:
        """The state after a step."""
        return self.setting.state if step == 0 else self.computed(step).state

    def _compute(self, step: int) -> Computed:
        tamper = honest if step < self._first else self._tamper
        before, elements, values = self.state(step - 1), [], []
        for leaf, i in enumerate(self.program.body):
            data = tamper(step, leaf, self._execute(i, before, elements, step))
            values.append(data)
            elements.append(unpack(i.dtype, data))
        state = {}
        for slot, commit in enumerate(self.program.commits):
            assert isinstance(commit.params, Slot)
            leaf = self.program.leaf_of_commit(slot)
            state[commit.params.name] = tamper(step, leaf, values[commit.operands[0].value])
        return Computed(tuple(values), state)

    def _execute(self, i: Instruction, state: dict[str, bytes], elements: list[list[int]], step: int) -> bytes:
        if i.opcode == Opcode.SOURCE and isinstance(i.params, Slot):
            return (state if i.function == SourceKind.STATE else self.setting.data)[i.params.name]
        operands = [elements[access.value] for access in i.operands]
        types, rounding = self.program.operand_dtypes(i), Rounding(precision=self.job.precision)

        def read(operand: int, where: int) -> int:
            return operands[operand][where]

        return pack(i.dtype, [element(i, k, read, types, step=step, rounding=rounding) for k in range(i.numel)])

    # -- the oracle

    @cache  # noqa: B019  # a run lives as long as its test
    def record(self, step: int) -> StepRecord:
        if step == 0:
            return self.job.initial_record
        loss = int.from_bytes(self.computed(step).values[-1], "little")
        return StepRecord(step=step, state_root=self.state_leaves(step).root, loss_bits=loss)

    @cache  # noqa: B019
    def run_tree(self, count: int) -> Tree:
        ends = [self.record(self.job.last_step(checkpoint)).digest for checkpoint in range(count)]
        return make_run_tree(ends, self.job.steps, self.job.checkpoint_interval)

    @cache  # noqa: B019
    def steps_tree(self, checkpoint: int) -> Tree:
        steps = range(self.job.first_step(checkpoint), self.job.last_step(checkpoint) + 1)
        return Tree([self.record(step).digest for step in steps])

    @cache  # noqa: B019
    def value_tree(self, step: int) -> Tree:
        values = self.computed(step).values
        body = [identify(i.dtype, i.shape, data) for i, data in zip(self.program.body, values, strict=True)]
        return half_and_half(body, self._state_leaves(step), self.program.half_depth)

    def _state_leaves(self, step: int) -> list[Digest]:
        ids = self.setting.state_ids(self.state(step))
        return [state_leaf(name, ids[name]) for name in self.program.state_spec()]

    def state_leaves(self, step: int) -> Tree:
        return Tree(self._state_leaves(step))

    def state_id(self, step: int, name: str) -> Digest:
        return self.setting.state_ids(self.state(step))[name]

    def data_id(self, name: str) -> Digest:
        return self.setting.data_ids()[name]

    def tensor(self, step: int, value: int) -> bytes:
        return self.computed(step).values[value]

    def tensor_tree(self, step: int, value: int) -> Tree:
        return tensor_tree(self.tensor(step, value))

    def accumulators(self, step: int, value: int, index: int) -> AccumulatorTree:
        return AccumulatorTree.over(self.encoded(step, value, index))

    def encoded(self, step: int, value: int, index: int) -> list[bytes]:
        """The encoded accumulators of an element, by the integer reference."""
        i = self.program.body[value]
        operands = [unpack(self.program.body[a.value].dtype, self.tensor(step, a.value)) for a in i.operands]
        types = self.program.operand_dtypes(i)
        return [encode(a) for a in accumulators(i, index, lambda operand, where: operands[operand][where], types)]


def flip(data: bytes, at: int, bit: int = 0) -> bytes:
    """The data with one bit of one byte flipped."""
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def lying_index(run: Run, step: int, leaf: int) -> int | None:
    """The last element of a leaf whose lie an accumulator can hold: no NaN or infinity; None if there is none."""
    if leaf >= len(run.program.body) or run.program.body[leaf].dtype is not F32:
        return 0
    data = run.tensor(step, leaf)
    words = struct.unpack(f"<{len(data) // 4}I", data)
    return max((k for k, bits in enumerate(words) if bits & 0x7F800000 != 0x7F800000), default=None)


class Liar(Run):
    """A run that is wrong in one element of one leaf of one step, and in all that follows.

    The lie is the last bit of the precision. The accumulators of that element are bent from leaf `bend_from` on to
    end in what is claimed. Later losses are changed too: else it may be that nothing committed differs.
    """

    def __init__(self, setting: Setting, job: Job, step: int, leaf: int, *, bend_from: int = 0) -> None:
        program, honest_run = setting.program, Run(setting, job)
        last, made = len(program.body) - 1, program.instruction_at(leaf)
        shift = 32 - job.precision if made.dtype is F32 else 0
        index = lying_index(honest_run, step, leaf)
        assert index is not None, "every element is a NaN or infinite"
        place = index * made.dtype.size + shift // 8

        def tamper(s: int, at: int, data: bytes) -> bytes:
            if (s, at) == (step, leaf):
                return flip(data, place, shift % 8)
            # Another bit than a lie's own, which may carry through to the loss.
            return flip(data, 1, 5) if at == last and s >= step and leaf <= last else data

        super().__init__(setting, job, tamper, step)
        self._at, self._bend_from = (step, leaf), bend_from

    def encoded(self, step: int, value: int, index: int) -> list[bytes]:
        true = super().encoded(step, value, index)
        if (step, value) != self._at:
            return true
        return bend(self, step, value, index, true, self._bend_from)  # type: ignore[arg-type]  # all it reads is here
