"""Chains: the same bytes as the integer reference and as instruction by instruction, on programs of every kind."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.arithmetic_cases import bits_f32, check, elements_of, map_of, tensor_of
from tests.engine.random_programs import check_program
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c import chains
from tiebreak.engine.arithmetic.c.chains import TILES_PER_TURN
from tiebreak.engine.arithmetic.c.threads import available, limited, spread
from tiebreak.engine.arithmetic.plan.chains import Member
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.interpreter import Interpreter, NotFiniteError
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Access, DType, MapFunction, Opcode
from tiebreak.protocol.program.program import Program

NATIVE = chains.kernel() is not None
TILE = 1024
needs_kernel = pytest.mark.skipif(not NATIVE, reason="needs a C compiler")


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_random_programs_with_chains_match_the_integer_reference(seed: int) -> None:
    check_program(seed, 40)


@pytest.mark.slow
def test_random_programs_have_chains(cases: Callable[[int], None]) -> None:
    """Else the property above says nothing."""
    made = [check_program(seed, 60) for seed in range(20)]
    cases(sum(chains for chains, *_ in made))
    assert sum(replaced for _, replaced, _, _ in made) > 0
    assert sum(reused for _, _, reused, _ in made) > 0 or not NATIVE
    assert sum(again for *_, again in made) > 0


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


def test_long_chains_give_the_same_bits_on_any_thread_count(cases: Callable[[int], None]) -> None:
    program = long_program()
    state, data = long_inputs(program, 3)
    twin, machine = Interpreter(program, Arithmetic()), Interpreter(program, Arithmetic())
    right = twin.step(2, state, data, lambda _, tensor: tensor, check_finite=False)
    for number in (1, 2, 5):
        with limited(number):
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
def test_torch_leaves_its_threads_to_the_kernels_during_a_step() -> None:
    """Its own would spin on their cores. Long instructions get them all the same, and a failure gives them back."""
    state, data = long_inputs(long_program(), 3)
    machine = Interpreter(long_program(), Arithmetic())
    seen = list[tuple[int, int, int]]()

    def observe(leaf: int, tensor: torch.Tensor) -> torch.Tensor:
        seen.append((torch.get_num_threads(), available(), spread(torch.get_num_threads)()))
        if leaf:
            raise KeyError("any")
        return tensor

    with limited(3):
        with pytest.raises(KeyError):
            machine.step(2, state, data, observe)
        assert seen == [(1, 3, 3)] * 2
        assert (torch.get_num_threads(), available()) == (3, 3)


@needs_kernel
def test_chains_request_exact_values_that_fp64_cannot_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """exp(2^-24) lies next to a tie. The rest of the tile keeps its results, and a repeated argument is asked once."""
    near = [bits_f32(2.0**-24), bits_f32(-(2.0**-25))]
    values = [*near, bits_f32(0.5), 0, 0x80000000, 0x7FC00000] * 300
    i = map_of(MapFunction.EXP, DType.F32, (len(values),), Access(0, 0, (1,)))
    arithmetic = Arithmetic()
    check(arithmetic, i, [tensor_of(DType.F32, values)])
    found = elements_of(arithmetic.backend.run_once([i], [tensor_of(DType.F32, values)])[0])
    assert arithmetic.stats.of("map.exp").undecided == 2 * 600  # by each path
    asked: list[int] = []

    def guess(function: MapFunction, bits: int) -> int:
        asked.append(bits)
        return bits

    monkeypatch.setattr(arithmetic.backend.transcendentals, "exact_bits", guess)
    guessed = elements_of(arithmetic.backend.run_once([i], [tensor_of(DType.F32, values)])[0])
    assert guessed[:2] == near
    assert guessed[2:6] == found[2:6]
    assert sorted(set(asked)) == sorted(near)
    assert len(asked) <= 2 * -(-len(values) // TILE)


@needs_kernel
@pytest.mark.parametrize(
    ("name", "taken"), [("ADD_F32", "SUB_F32"), ("MAX_I64", "MIN_I64"), ("LE_F32", "LT_F32"), ("CAST_I64_F32", "COPY4")]
)
def test_qualification_refuses_a_wrong_chain_kernel(monkeypatch: pytest.MonkeyPatch, name: str, taken: str) -> None:
    arithmetic = Arithmetic()
    codes = dict(arithmetic.chains.kernel.codes)
    codes[name] = codes[taken]
    arithmetic.chains.kernel = replace(arithmetic.chains.kernel, codes=codes)
    with pytest.raises(ConfigurationError, match=r"does not compute map \w+.* \(compiled\) exactly"):
        qualify(arithmetic)


@needs_kernel
def test_chains_refuse_operands_of_wrong_size_dtype_or_device() -> None:
    arithmetic = Arithmetic()
    kinds = {"operand_dtypes": (DType.F32,), "exported": True, "committed": False}
    i = map_of(MapFunction.NEG, DType.F32, (4,), Access(0, 0, (1,)))
    chain = arithmetic.chains.make((Member(index=1, instruction=i, operand_numels=(4,), **kinds),))
    assert chain.run({0: torch.ones(4)})[1].tolist() == [-1.0] * 4
    for wrong in (torch.ones(3), torch.ones(4, dtype=torch.int64), torch.ones(8)[::2], torch.ones(4, device="meta")):
        with pytest.raises(ValueError, match="value 0: expected 4 contiguous elements"):
            chain.run({0: wrong})
    pair = tuple(
        Member(index=n, instruction=each, operand_numels=(5,), **kinds)
        for n, each in ((1, i), (2, replace(i, shape=(5,))))
    )
    with pytest.raises(ValueError, match=r"expected members of 4 elements, got \[4, 5\]"):
        arithmetic.chains.make(pair)


@needs_kernel
def test_chains_name_non_finite_results_and_canonicalize_nan() -> None:
    b = Builder()
    x, y = b.state("x", DType.F32, (3000,)), b.state("y", DType.F32, (3000,))
    program = b.finish({"x": b.add(x, y), "y": b.mul(y, y), "z": b.sub(x, y)}, b.max(x))
    machine = Interpreter(program, Arithmetic())
    assert set(machine.chains) == {n for n, u in enumerate(machine.planned) if len(u.outputs) and u.members[0] > 1} - {
        n for n, u in enumerate(machine.planned) if program.body[u.members[0]].opcode == Opcode.REDUCE
    }
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
def test_a_donated_state_is_overwritten_in_place() -> None:
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


@pytest.mark.parametrize("observe", [None, lambda _, tensor: tensor])
def test_execution_tracing_prints_each_unit_without_changing_results(
    observe: Callable[[int, torch.Tensor], torch.Tensor] | None, tiny: Captured, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    right = Interpreter(tiny.program, Arithmetic()).step(1, dict(tiny.state), tiny.data, observe)
    monkeypatch.setenv("TIEBREAK_TRACE", "1")
    machine = Interpreter(tiny.program, Arithmetic())
    assert machine.step(1, dict(tiny.state), tiny.data, observe).loss_bits == right.loss_bits
    shown = capsys.readouterr().err.splitlines()
    units = [unit for units, _ in machine.work for unit in units] if observe is None else machine.in_order
    assert len(shown) == len(units)
    product = next(line for line in shown if "reduce.sum" in line)
    assert re.fullmatch(r"step 1, \d+: reduce\.sum, F32 [\dx ]+, (C|torch), .*, \d+\.\d{3} ms", product)
