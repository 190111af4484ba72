"""Chains: the same bytes as the integer reference and as instruction by instruction, on programs of every kind."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from tests.engine.arithmetic_cases import STYLES, Maker, bits_f32, check, elements_of, tensor_of
from tests.engine.models.harness import randomised, tokens
from tests.engine.tiny import make_tiny_task
from tests.parts import slow_except
from tests.protocol.whole_steps import execute, new_state
from tiebreak.engine.arithmetic import Arithmetic, elementwise
from tiebreak.engine.arithmetic.chains import Member
from tiebreak.engine.arithmetic.elementwise import TILES_PER_TURN
from tiebreak.engine.arithmetic.threads import available, spread
from tiebreak.engine.capture.compile import compile_task
from tiebreak.engine.capture.task import AdamW, Batch, Rows, Task
from tiebreak.engine.data.tensors import identities, tensor_bytes
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run import schedule
from tiebreak.engine.run.interpreter import Interpreter, NotFiniteError
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.commitments.records import state_tree
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import (
    MAP_SIGNATURES,
    Access,
    DType,
    Instruction,
    IotaParams,
    MapFunction,
    Opcode,
    RandomParams,
    ReduceFunction,
    Slot,
    SourceKind,
    row_major,
)
from tiebreak.protocol.program.program import Program

SIGNATURES = [(f, types, result) for f, found in MAP_SIGNATURES.items() for types, result in found]
NATIVE = elementwise.kernel() is not None
TILE = 1024
needs_kernel = pytest.mark.skipif(not NATIVE, reason="needs a C compiler")


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
                params = Slot(slot=slot, name=name)
                self.body.append(
                    Instruction(opcode=Opcode.SOURCE, function=kind, dtype=dtype, shape=shape, params=params)
                )

    def access(self, value: int, shape: tuple[int, ...]) -> Access | None:
        """In place where it fits; else scalar, broadcast, or whatever strides stay inside."""
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
        self.body.append(
            Instruction(opcode=Opcode.MAP, function=function, dtype=result, shape=shape, operands=operands)
        )

    def reduction(self) -> None:
        function, dtype = self.random.choice(
            [(ReduceFunction.SUM, DType.F32), (ReduceFunction.MAX, DType.F32), (ReduceFunction.SUM, DType.I64)]
        )
        value = self.random.choice(self.of(dtype))
        size = self.body[value].numel
        self.body.append(
            Instruction(
                opcode=Opcode.REDUCE,
                function=function,
                dtype=dtype,
                shape=(3,),
                reduction=(2,),
                operands=(Access(value, 0, (min(2, (size - 1) // 2), min(1, size - 1) if size > 5 else 0)),),
            )
        )

    def made(self) -> None:
        shape = self.random.choice(self.shapes)
        if self.random.random() < 0.5:
            strides = tuple(self.random.choice([0, 1, -3, 1 << 62]) for _ in shape)
            params = IotaParams(offset=self.random.choice([0, -5, (1 << 63) - 1]), strides=strides)
            self.body.append(Instruction(opcode=Opcode.IOTA, dtype=DType.I64, shape=shape, params=params))
            return
        seeds = [self.random.choice(self.of(DType.I64)) for _ in range(2)]
        operands = tuple(Access(v, self.random.randrange(self.body[v].numel), (0,) * len(shape)) for v in seeds)
        self.streams += 1
        self.body.append(
            Instruction(
                opcode=Opcode.RANDOM,
                dtype=DType.F32,
                shape=shape,
                operands=operands,
                params=RandomParams(stream=self.streams),
            )
        )

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
        self.body.append(
            Instruction(opcode=Opcode.REDUCE, dtype=DType.F32, reduction=(1,), operands=(Access(last, 0, (0,)),))
        )
        commits = tuple(
            Instruction(
                opcode=Opcode.COMMIT,
                dtype=self.body[n].dtype,
                shape=self.body[n].shape,
                operands=(Access(n, 0, row_major(self.body[n].shape)),),
                params=Slot(slot=slot, name=f"s{slot}"),
            )
            for slot, n in enumerate(kept)
        )
        program = Program(tuple(self.body), commits)
        program.validate()
        return program


def check_program(seed: int, length: int) -> tuple[int, int]:
    """Runs a random program in every way; its numbers of longer chains and of results in an old value's memory."""
    writer = Writer(seed)
    program = writer.program(length)
    raw_state, raw_data = ({k: bytes(tensor_bytes(t)) for k, t in x.items()} for x in (writer.state, writer.data))
    values = execute(program, raw_state, raw_data, 3)
    right = new_state(program, values)
    machine = Interpreter(program, Arithmetic())
    seen: dict[int, bytes] = {}

    def observe(leaf: int, tensor: torch.Tensor) -> torch.Tensor:
        seen[leaf] = bytes(tensor_bytes(tensor))
        return tensor

    for observer, donate in ((None, False), (observe, True), (None, False), (None, True)):
        state = {name: tensor.clone() for name, tensor in writer.state.items()}
        result = machine.step(3, state, writer.data, observer, check_finite=False, donate=donate)
        found = {name: tensor.numpy().tobytes() for name, tensor in result.state.items()}
        assert found == right, next(name for name in right if found[name] != right[name])
        assert result.loss_bits == int.from_bytes(values[-1], "little")
        if not donate:
            assert {k: bytes(tensor_bytes(t)) for k, t in state.items()} == raw_state
    assert {k: bytes(tensor_bytes(t)) for k, t in writer.data.items()} == raw_data
    assert [seen[n] for n in range(len(program.body))] == values
    units = schedule.plan(program)
    return sum(len(unit.members) > 1 for unit in units), len(schedule.replacements(program, units))


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_random_programs(seed: int) -> None:
    check_program(seed, 40)


def test_random_programs_have_chains(cases: Callable[[int], None]) -> None:
    """Else the property above says nothing."""
    made = [check_program(seed, 60) for seed in range(20)]
    cases(sum(chains for chains, _ in made))
    assert sum(replaced for _, replaced in made) > 0


@pytest.mark.usefixtures("pure")
def test_random_programs_without_the_kernel(cases: Callable[[], None]) -> None:
    assert Arithmetic().chains is None
    for seed in range(12):
        check_program(seed, 40)
        cases()


def long_program() -> Program:
    """Chains over several turns, the last tile not full, with every way of reading an operand."""
    rows, columns = 5, (TILES_PER_TURN * TILE) // 2 + 5
    b = Builder()
    x, turned = b.state("x", DType.F32, (rows, columns)), b.state("turned", DType.F32, (columns, rows))
    row, column = b.state("row", DType.F32, (columns,)), b.state("column", DType.F32, (rows, 1))
    y = b.add(b.mul(x, row), column)
    y = b.sub(y, turned.permute((1, 0)))
    y = b.div(y, x.flip(1).flip(0))
    kept = b.compare(MapFunction.LT, b.random((rows, columns)), b.const(0.7))
    y = b.mul(y, b.cast(kept, DType.F32))
    place = b.cast(b.iota((rows, columns), (1, -3)), DType.F32)
    y = b.where(b.compare(MapFunction.LE, place, column), y, b.map(MapFunction.TANH, y))
    z = b.map(MapFunction.EXP, b.map(MapFunction.SQRT, b.map(MapFunction.ABS, y)))
    state = {"x": b.map(MapFunction.MAX, y, b.const(-2.0)), "z": z, "turned": turned, "row": row, "column": column}
    return b.finish(state, b.max(b.reshape(y, (rows * columns,))))


def long_inputs(program: Program, seed: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    spec = {name: shape for name, (_, shape) in program.state_spec().items() if name != "z"}
    return {name: torch.randn(shape, generator=generator) for name, shape in spec.items()}, {"seed": torch.tensor(5)}


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_long_chains_on_any_number_of_threads(threads: Callable[[int], None], cases: Callable[[int], None]) -> None:
    program = long_program()
    state, data = long_inputs(program, 3)
    twin, machine = Interpreter(program, Arithmetic()), Interpreter(program, Arithmetic())
    right = twin.step(2, state, data, lambda _, tensor: tensor, check_finite=False)
    for number in (1, 2, 5):
        threads(number)
        found = machine.step(2, state, data, check_finite=False)
        assert found.loss_bits == right.loss_bits
        for name, tensor in right.state.items():
            assert torch.equal(found.state[name].view(torch.int32), tensor.view(torch.int32)), name
            cases(tensor.numel())
    if NATIVE:
        kinds = ("map.exp", "map.tanh")
        ours, theirs = ([a.stats.of(kind) for kind in kinds] for a in (machine.arithmetic, twin.arithmetic))
        assert [c.elements for c in ours] == [3 * c.elements for c in theirs]


@needs_kernel
def test_torch_leaves_its_threads_to_the_kernels_during_a_step(threads: Callable[[int], None]) -> None:
    """Its own would spin on their cores. Long instructions get them all the same, and a failure gives them back."""
    state, data = long_inputs(long_program(), 3)
    machine = Interpreter(long_program(), Arithmetic())
    seen = list[tuple[int, int, int]]()

    def observe(leaf: int, tensor: torch.Tensor) -> torch.Tensor:
        seen.append((torch.get_num_threads(), available(), spread(torch.get_num_threads)()))
        if leaf:
            raise KeyError("any")
        return tensor

    threads(3)
    with pytest.raises(KeyError):
        machine.step(2, state, data, observe)
    assert seen == [(1, 3, 3)] * 2
    assert (torch.get_num_threads(), available()) == (3, 3)


@needs_kernel
def test_what_fp64_cannot_decide_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """exp(2^-24) lies next to a tie. The rest of the tile keeps its results, and a repeated argument is asked once."""
    near = [bits_f32(2.0**-24), bits_f32(-(2.0**-25))]
    values = [*near, bits_f32(0.5), 0, 0x80000000, 0x7FC00000] * 300
    i = Instruction(
        opcode=Opcode.MAP,
        function=MapFunction.EXP,
        dtype=DType.F32,
        shape=(len(values),),
        operands=(Access(0, 0, (1,)),),
    )
    arithmetic = Arithmetic()
    assert arithmetic.chains is not None
    check(arithmetic, i, [tensor_of(DType.F32, values)])
    found = elements_of(arithmetic.chains.alone(i, [tensor_of(DType.F32, values)]))
    assert arithmetic.stats.of("map.exp").undecided == 2 * 600  # by each path
    asked: list[int] = []

    def guess(function: MapFunction, bits: int) -> int:
        asked.append(bits)
        return bits

    monkeypatch.setattr(arithmetic._transcendentals, "exact_bits", guess)
    guessed = elements_of(arithmetic.chains.alone(i, [tensor_of(DType.F32, values)]))
    assert guessed[:2] == near
    assert guessed[2:6] == found[2:6]
    assert sorted(set(asked)) == sorted(near)
    assert len(asked) <= 2 * -(-len(values) // TILE)


@needs_kernel
@pytest.mark.parametrize(
    ("name", "taken"),
    [("ADD_F32", "SUB_F32"), ("MAX_I64", "MIN_I64"), ("LE_F32", "LT_F32"), ("CAST_I64_F32", "COPY4")],
)
def test_a_wrong_kernel_does_not_qualify(monkeypatch: pytest.MonkeyPatch, name: str, taken: str) -> None:
    arithmetic = Arithmetic()
    assert arithmetic.chains is not None
    codes = dict(arithmetic.chains.kernel.codes)
    codes[name] = codes[taken]
    arithmetic.chains.kernel = replace(arithmetic.chains.kernel, codes=codes)
    with pytest.raises(ConfigurationError, match=r"does not compute map \w+.* \(compiled\) exactly"):
        qualify(arithmetic)


@needs_kernel
def test_operands_that_do_not_fit_are_refused() -> None:
    arithmetic = Arithmetic()
    assert arithmetic.chains is not None
    i = Instruction(
        opcode=Opcode.MAP, function=MapFunction.NEG, dtype=DType.F32, shape=(4,), operands=(Access(0, 0, (1,)),)
    )
    chain = arithmetic.chains.make(
        (
            Member(
                number=1, instruction=i, operand_dtypes=(DType.F32,), operand_numels=(4,), exported=True, sealed=False
            ),
        )
    )
    assert chain.run({0: torch.ones(4)}).tensors[1].tolist() == [-1.0] * 4
    for wrong in (torch.ones(3), torch.ones(4, dtype=torch.int64), torch.ones(8)[::2], torch.ones(4, device="meta")):
        with pytest.raises(ValueError, match="value 0: expected 4 contiguous elements"):
            chain.run({0: wrong})
    other = replace(i, shape=(5,))
    kinds = {"operand_dtypes": (DType.F32,), "operand_numels": (5,), "exported": True, "sealed": False}
    pair = tuple(Member(number=n, instruction=each, **kinds) for n, each in ((1, i), (2, other)))
    with pytest.raises(ValueError, match=r"expected members of 4 elements, got \[4, 5\]"):
        arithmetic.chains.make(pair)


@needs_kernel
def test_committed_results_are_finite_or_named_and_have_the_one_nan() -> None:
    b = Builder()
    x, y = b.state("x", DType.F32, (3000,)), b.state("y", DType.F32, (3000,))
    program = b.finish({"x": b.add(x, y), "y": b.mul(y, y), "z": b.sub(x, y)}, b.max(x))
    machine = Interpreter(program, Arithmetic())
    assert set(machine._chains) == {
        n for n, u in enumerate(machine._planned) if len(u.outputs) and u.members[0] > 1
    } - {n for n, u in enumerate(machine._planned) if program.body[u.members[0]].opcode == Opcode.REDUCE}
    state = {"x": torch.zeros(3000), "y": torch.ones(3000)}
    machine.step(1, state, {})
    state["y"][2999] = 3e38
    with pytest.raises(NotFiniteError, match="step 4: y is no longer finite"):
        machine.step(4, state, {})
    state["y"][2999] = torch.tensor(-0x1234, dtype=torch.int32).view(torch.float32)  # a NaN with a payload
    with pytest.raises(NotFiniteError, match="step 4: x is no longer finite"):
        machine.step(4, state, {})
    found = machine.step(4, state, {}, check_finite=False).state
    assert [hex(int(found[name].view(torch.int32)[2999])) for name in "xyz"] == ["0x7fc00000"] * 3


@needs_kernel
def test_a_state_that_is_given_away_is_overwritten_in_place() -> None:
    b = Builder()
    names = ["early", "late", "turned", "whole"]
    entries = {name: b.state(name, DType.F32, (300, 300)) for name in names}
    new = {
        name: b.add(entries[name], entries[name].permute((1, 0)) if name == "turned" else b.const(1.0))
        for name in names
    }
    new["whole"] = entries["whole"]
    program = b.finish(new, b.sum(b.mul(new["early"], entries["late"])))
    machine = Interpreter(program, Arithmetic())

    def run(state: dict[str, torch.Tensor], donate: bool) -> tuple[dict[str, torch.Tensor], set[str]]:
        before = {name: tensor.data_ptr() for name, tensor in state.items()}
        found = machine.step(1, state, {}, donate=donate).state
        return found, {name for name in names if found[name].data_ptr() == before[name]}

    generator = torch.Generator().manual_seed(1)
    state = {name: torch.randn((300, 300), generator=generator) for name in names}
    right, same = run(state, False)
    assert same == {"whole"}
    shared = torch.cat([state["early"], state["late"]])
    views = {name: tensor.clone() for name, tensor in state.items()} | {"early": shared[:300], "late": shared[300:]}
    found, same = run(views, True)
    assert same == {"whole"}
    assert torch.equal(shared, torch.cat([state["early"], state["late"]]))
    assert all(torch.equal(found[name], right[name]) for name in names)
    found, same = run({name: tensor.clone() for name, tensor in state.items()}, True)
    assert same == {"early", "late", "whole"}
    assert all(torch.equal(found[name], right[name]) for name in names)


def small_gpt2(steps: int) -> Task:
    """GPT-2 with its dropout, and AdamW: every chain of the large one."""
    torch.manual_seed(2)
    config = GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=13, n_positions=8)

    def next_token(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=ids[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return Task(
        name="gpt2",
        model=randomised(GPT2LMHeadModel(config), seed=1),
        loss=next_token,
        optimizer=AdamW(lr=1e-3),
        data={"ids": tokens(3, 6, 8, vocabulary=13)},
        batch=Batch(size=2, examples=Rows(names=("ids",))),
        steps=steps,
        checkpoint_interval=5,
        seed=4,
    )


@pytest.mark.parametrize("make_task", slow_except([make_tiny_task, small_gpt2], make_tiny_task))
def test_a_whole_run_is_the_same_in_every_way(
    monkeypatch: pytest.MonkeyPatch,
    threads: Callable[[int], None],
    cases: Callable[[], None],
    make_task: Callable[[int], Task],
) -> None:
    compiled = compile_task(make_task(20))

    def run(donate: bool = False, observed: bool = False) -> bytes:
        machine = Interpreter(compiled.program, Arithmetic())
        state, data = machine.to_device(compiled.state), machine.to_device(compiled.data)
        losses = b""
        for step in range(1, 21):
            observer = (lambda _, tensor: tensor) if observed else None
            result = machine.step(step, state, data, observer, donate=donate and step > 1)
            state, losses = result.state, losses + result.loss_bits.to_bytes(4, "little")
            cases()
        return state_tree(identities(state)).root + losses

    right = run(observed=True)
    threads(1)
    assert run() == right
    threads(2)
    assert run(donate=True) == right
    monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    assert run() == right
