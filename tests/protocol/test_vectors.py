"""The checked-in vectors are what the generator makes, are adversarial, and are programs that validate."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.run import ReferenceRun, lines
from conformance.whole_steps import execute
from tests.protocol import programs
from tests.protocol.instructions import committed, const, source
from tests.vectors import generate as vectors
from tests.vectors import late
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.numbers.float32 import INF, NAN_BITS
from tiebreak.protocol.program.accumulator import Kind, decode
from tiebreak.protocol.program.isa import MAP_SIGNATURES, DType, Opcode, ReduceFunction, ScatterFunction, SourceKind
from tiebreak.protocol.program.program import Program, decode_instruction
from tiebreak.protocol.program.rounding import StepLog

DIRECTORY = Path(__file__).resolve().parent.parent / "vectors"
SEARCHED = "hardest.json"
"""Made by tests.hardest.search, which takes minutes; tests/contracts/test_hardest.py verifies it."""


def load(name: str) -> dict[str, Any]:
    found = json.loads((DIRECTORY / name).read_text())
    assert isinstance(found, dict)
    return found


def blob(text: str) -> bytes:
    assert text.startswith("0x")
    return bytes.fromhex(text[2:])


def test_checked_in_files_are_generated() -> None:
    assert vectors.main([str(DIRECTORY), "--check"]) == 0
    files = [path for path in DIRECTORY.iterdir() if path.is_file() and path.suffix != ".py"]
    assert {path.name for path in files} == {*vectors.FILES, SEARCHED, "README.md"}
    assert sum(path.stat().st_size for path in files) < 2_260_000


def records(group: dict[str, Any]) -> list[tuple[int, ...]]:
    width = len(blob(group["operandTypes"])) + 1
    data = blob(group["cases"])
    words = [int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 8)]
    assert len(words) == width * group["count"]
    return [tuple(words[at : at + width]) for at in range(0, len(words), width)]


def test_scalars_cover_every_signature(cases: Callable[[], None]) -> None:
    found = load("scalars.json")
    groups = [found[name] for name in found["names"]]
    signatures = {
        (g["function"], tuple(blob(g["operandTypes"])), g["resultType"]) for g in groups if g["precision"] == 32
    }
    expected = {(int(f), tuple(map(int, types)), int(out)) for f, sigs in MAP_SIGNATURES.items() for types, out in sigs}
    assert signatures == expected
    for name, group in zip(found["names"], groups, strict=True):
        takes_bools, gives_bools = DType.BOOL in blob(group["operandTypes"]), group["resultType"] == DType.BOOL
        assert group["count"] >= (2 if takes_bools else 50), name
        distinct = {row[-1] for row in records(group)}
        assert len(distinct) > (1 if gives_bools or takes_bools else 20), name
        cases()


@pytest.mark.parametrize("name", ["add_f32_f32", "sub_f32_f32", "mul_f32_f32", "div_f32_f32"])
def test_scalar_vectors_include_zeros_subnormals_overflow_and_nan(name: str) -> None:
    """Among the results are zeros of both signs, subnormals, overflow and NaN, and plain numbers are the most."""
    results = [row[-1] for row in records(load("scalars.json")[name])]
    assert {0, 0x80000000, INF, INF | 0x80000000, NAN_BITS} <= set(results)
    assert sum(1 for r in results if 0 < r & 0x7FFFFFFF < 0x00800000) >= 3
    assert sum(1 for r in results if 0x00800000 <= r & 0x7FFFFFFF < INF) > len(results) // 3


def test_instruction_vectors_form_valid_programs(cases: Callable[[], None]) -> None:
    """Each stands in a program behind data sources that hold its operands, and that program validates."""
    found = load("instructions.json")
    assert found["count"] == len(found["cases"]) > 60
    seen = set()
    for case in found["cases"]:
        instruction = decode_instruction(blob(case["instruction"]))
        types = [DType(code) for code in blob(case["operandTypes"])]
        sources = [
            source(SourceKind.DATA, f"operand{k}", dtype, len(blob(text)) // dtype.size, slot=k)
            for k, (dtype, text) in enumerate(zip(types, case["operands"], strict=True))
        ]
        body = (*sources, instruction, const(0))
        Program(body, (committed("w", DType.F32, (), len(body) - 1),)).validate()
        assert len(case["accumulators"]) == (-(-instruction.terms // 4) if instruction.is_reduction else 0)
        seen.add((instruction.opcode, instruction.function))
        cases()
    assert {opcode for opcode, _ in seen} == set(Opcode) - {Opcode.COMMIT}
    assert {f for opcode, f in seen if opcode == Opcode.REDUCE} == set(ReduceFunction)
    assert {f for opcode, f in seen if opcode == Opcode.SCATTER_SUM} == set(ScatterFunction)


def test_late_data_vectors_give_every_answer(cases: Callable[[int], None]) -> None:
    """Programs are taken and refused, proofs win for each side and are illegal, and the codes of the run count."""
    found = load("late.json")
    taken = [case["name"] for case in found["programs"] if case["root"]]
    assert (len(taken), taken[-1]) == (4, "a name of the state")
    assert len(found["programs"]) > 3 * len(taken)
    winners = {(proof["name"], proof["winner"]) for proof in found["game"]["proofs"]}
    won = {("right", "challenger"), ("right", "defender"), ("the defender's own", "defender")}
    assert {(name, winner) for name, winner in winners if winner} == won
    assert {name for name, winner in winners if winner is None} == {name for name, _ in winners} - {"right"}
    start, data = late.setting().start, late.setting().data
    nearest = ReferenceRun(program=late.program(), state=start, data=data, precision=late.PRECISION, logs=late.logs())
    assert found["lines"][4] != list(lines(nearest, late.STEPS, late.INTERVAL))[4]
    for kind in ("programs", "openings", "refused"):
        cases(len(found[kind]))


def test_late_data_of_the_same_tensors_compute_what_data_do() -> None:
    program, late_too = programs.every_kind(), programs.reads_late(programs.every_kind(), {"ids"})
    state, data = programs.initial_state(), programs.job_data()
    log = StepLog(late={"ids": data["ids"]})
    log.check(late_too, 1)
    assert execute(late_too, state, {"seed": data["seed"]}, 1, log=log) == execute(program, state, data, 1)
    for absent in (None, StepLog()):
        with pytest.raises(EncodingError, match="expected an entry named ids"):
            execute(late_too, state, data, 1, log=absent)


def test_vectors_of_invalid_accumulators_are_refused(cases: Callable[[], None]) -> None:
    found = load("accumulators.json")
    for kind, text in zip(found["refusedKinds"], found["refused"], strict=True):
        with pytest.raises(EncodingError):
            decode(Kind[kind], blob(text))
        cases()
