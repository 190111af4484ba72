"""Random programs of chains with sums and maxima in between, run in every way against the integer reference."""

import random
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from conformance.whole_steps import execute, new_state
from tests.engine.arithmetic_cases import STYLES, Maker, map_of, sum_over
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.data.tensors import tensor_bytes
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.engine.run import interpreter, rematerialization, schedule
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.program.isa import (
    MAP_SIGNATURES,
    Access,
    DType,
    Instruction,
    IotaParams,
    Opcode,
    RandomParams,
    ReduceFunction,
    Slot,
    SourceKind,
    row_major,
)
from tiebreak.protocol.program.program import Program

SIGNATURES = [(f, types, result) for f, found in MAP_SIGNATURES.items() for types, result in found]


class Writer:
    """Random valid programs: maps on views of whatever there is, with sums and maxima in between."""

    def __init__(self, seed: int) -> None:
        self.make = Maker(random.Random(seed))
        self.random = self.make.random
        self.shapes: tuple[tuple[int, ...], ...] = ((), (6,), (2, 3), (3, 2), (1, 6, 1), (5, 3), (15,))
        self.body: list[Instruction] = []
        self.data: dict[str, torch.Tensor] = {}
        self.state: dict[str, torch.Tensor] = {}
        self.streams = 0

    def emit(self, opcode: Opcode, dtype: DType, shape: tuple[int, ...], **settings: Any) -> None:
        self.body.append(Instruction(opcode=opcode, dtype=dtype, shape=shape, **settings))

    def of(self, dtype: DType) -> list[int]:
        return [n for n, i in enumerate(self.body) if i.dtype == dtype]

    def sources(self) -> None:
        shapes = [(DType.F32, (6,)), (DType.F32, (40,)), (DType.I64, (15,)), (DType.I64, (40,)), (DType.BOOL, (40,))]
        entries = [(DType.F32, (15,)), (DType.F32, (2, 3)), (DType.F32, (2, 3)), (DType.I64, (6,))]
        for kind, into, made in ((SourceKind.DATA, self.data, shapes), (SourceKind.STATE, self.state, entries)):
            for slot, (dtype, shape) in enumerate(made):
                name = f"{'d' if kind == SourceKind.DATA else 's'}{slot}"
                flat = self.make.tensor(dtype, 40, self.random.choice(STYLES))[: torch.Size(shape).numel()]
                into[name] = flat.reshape(shape).clone()
                self.emit(Opcode.SOURCE, dtype, shape, function=kind, params=Slot(slot=slot, name=name))

    def access(self, value: int, shape: tuple[int, ...]) -> Access | None:
        """Reads in place where it fits; else scalar, broadcast, or with any strides that stay inside."""
        size = self.body[value].numel
        if torch.Size(shape).numel() == size and self.random.random() < 0.8:
            return Access(value, 0, row_major(shape))
        for _ in range(4):
            access, needed = self.make.access(value, shape)
            if needed <= size:
                return replace(access, offset=access.offset + self.random.randint(0, size - needed))
        return Access(value, self.random.randrange(size), (0,) * len(shape))

    def operand(self, dtype: DType, shape: tuple[int, ...]) -> Access:
        choices = self.of(dtype)
        near = choices[-4:] if self.random.random() < 0.7 else choices
        return self.access(self.random.choice(near), shape)

    def map(self) -> None:
        function, types, result = self.random.choice(SIGNATURES)
        if self.random.random() < 0.5:  # mostly plain f32 arithmetic
            function, types, result = self.random.choice([s for s in SIGNATURES if s[1] == (DType.F32, DType.F32)][:5])
        shape = self.random.choice(self.shapes)
        operands = tuple(self.operand(t, shape) for t in types)
        self.body.append(map_of(function, result, shape, *operands))

    def reduction(self) -> None:
        function, dtype = self.random.choice(
            [(ReduceFunction.SUM, DType.F32), (ReduceFunction.MAX, DType.F32), (ReduceFunction.SUM, DType.I64)]
        )
        value = self.random.choice(self.of(dtype))
        size = self.body[value].numel
        read = Access(value, 0, (min(2, (size - 1) // 2), min(1, size - 1) if size > 5 else 0))
        self.body.append(replace(sum_over((3,), (2,), read), function=function, dtype=dtype))

    def made(self) -> None:
        shape = self.random.choice(self.shapes)
        if self.random.random() < 0.5:
            strides = tuple(self.random.choice([0, 1, -3, 1 << 62]) for _ in shape)
            params = IotaParams(offset=self.random.choice([0, -5, (1 << 63) - 1]), strides=strides)
            self.emit(Opcode.IOTA, DType.I64, shape, params=params)
            return
        seeds = [self.random.choice(self.of(DType.I64)) for _ in range(2)]
        operands = tuple(Access(v, self.random.randrange(self.body[v].numel), (0,) * len(shape)) for v in seeds)
        self.streams += 1
        self.emit(Opcode.RANDOM, DType.F32, shape, operands=operands, params=RandomParams(stream=self.streams))

    def renewed(self, name: str) -> int:
        """Some value of an entry's dtype and shape, rather a late one."""
        entry = self.state[name]
        like = [n for n, i in enumerate(self.body) if i.shape == entry.shape and TORCH_DTYPES[i.dtype] == entry.dtype]
        return self.random.choice(like[-3:])

    def program(self, length: int) -> Program:
        self.sources()
        for _ in range(length):
            self.random.choices([self.map, self.reduction, self.made], [12, 2, 1])[0]()
        kept = [self.renewed(name) for name in self.state] + self.random.sample(range(len(self.body)), 4)
        last = self.of(DType.F32)[-1]
        self.body.append(sum_over((), (1,), Access(last, 0, (0,))))
        commits = []
        for slot, i in enumerate(self.body[n] for n in kept):
            read, params = (Access(kept[slot], 0, row_major(i.shape)),), Slot(slot=slot, name=f"s{slot}")
            commits.append(
                Instruction(opcode=Opcode.COMMIT, dtype=i.dtype, shape=i.shape, operands=read, params=params)
            )
        program = Program(tuple(self.body), tuple(commits))
        program.validate()
        return program


def check_program(seed: int, length: int) -> tuple[int, int, int, int]:
    """Runs a random program in every way.

    Returns its numbers of longer chains, of results in an old value's memory and in that of other results, and of those
    that are not stored, because they are computed again.
    """
    writer = Writer(seed)
    program = writer.program(length)
    raw_state, raw_data = ({k: bytes(tensor_bytes(t)) for k, t in x.items()} for x in (writer.state, writer.data))
    values = execute(program, raw_state, raw_data, 3)
    right = new_state(program, values)
    units = schedule.plan(program)
    machine, arithmetic = Interpreter(program, Arithmetic(), units), Arithmetic()
    if arithmetic.chains is None:
        other = Interpreter(program, arithmetic, schedule.plan(program, again=True))
    else:
        with mock.patch.object(type(arithmetic.chains), "repeats", new=True):  # as on GPUs
            other = Interpreter(program, arithmetic)
    seen: dict[int, bytes] = {}

    def observe(leaf: int, tensor: torch.Tensor) -> torch.Tensor:
        seen[leaf] = bytes(tensor_bytes(tensor))
        return tensor

    everything = mock.patch.multiple(rematerialization, LEAST=0, BUDGET=1)
    with everything, mock.patch.object(interpreter, "REUSED", 0):
        small = Interpreter(program, Arithmetic())
    ways = (machine, None, False), (machine, observe, True), (machine, None, False), (machine, None, True)
    for runner, observer, donate in (
        *ways,
        *((each, None, gives) for each in (other, small) for gives in (False, True)),
    ):
        state = {name: tensor.clone() for name, tensor in writer.state.items()}
        result = runner.step(3, state, writer.data, observer, check_finite=False, donate=donate)
        found = {name: tensor.numpy().tobytes() for name, tensor in result.state.items()}
        assert found == right, next(name for name in right if found[name] != right[name])
        assert result.loss_bits == int.from_bytes(values[-1], "little")
        if not donate:
            assert {k: bytes(tensor_bytes(t)) for k, t in state.items()} == raw_state
    assert {k: bytes(tensor_bytes(t)) for k, t in writer.data.items()} == raw_data
    assert [seen[n] for n in range(len(program.body))] == values
    stored, fewer = (sum(len(unit.outputs) for unit in planned) for planned in (units, other.planned))
    chains = sum(len(unit.members) > 1 for unit in units)
    return chains, len(schedule.replacements(program, units)), len(other._reused), stored - fewer
