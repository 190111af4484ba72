"""Programs: one encoding, every rule of SPEC section 4 by name, hostile files refused."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol import instructions
from tiebreak.protocol.errors import EncodingError, ProgramError, VerificationError
from tiebreak.protocol.program.isa import (
    Access,
    DType,
    GatherParams,
    Instruction,
    IotaParams,
    MapFunction,
    RandomParams,
    ReduceFunction,
    ScatterParams,
    ShuffleParams,
    Slot,
    SourceKind,
    WindowParams,
)
from tiebreak.protocol.program.program import (
    MAGIC,
    Program,
    ProgramLimits,
    decode_instruction,
    encode_instruction,
    instruction_digest,
)
from tiebreak.protocol.trees import parent, verify

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL


BODY = (
    instructions.source(SourceKind.STATE, "w", F32, 3, 4),  # 0
    instructions.source(SourceKind.DATA, "ids", I64, 5, slot=0),  # 1
    instructions.source(SourceKind.DATA, "seed", I64, slot=1),  # 2
    instructions.STEP_NUMBER,  # 3
    instructions.gathered(F32, (5, 4), Access(0, 0, (0, 1)), Access(1, 0, (1, 0)), stride=4, bound=3),
    instructions.scattered((3, 4), (5,), Access(4, 0, (0, 1, 4)), Access(1, 0, (0, 0, 1)), match=(1, 0)),
    instructions.drawn((3, 4), Access(2, 0, (0, 0)), Access(3, 0, (0, 0)), stream=0),
    instructions.mapped(MapFunction.SUB, F32, (3, 4), Access(0, 0, (4, 1)), Access(5, 0, (4, 1))),
    instructions.windowed(F32, (3, 4), Access(6, 0, (4, 1)), Access(7, 0, (4, 1)), lo=(1, 0), hi=(3, 4), step=(1, 2)),
    instructions.counted((5,), offset=-2, strides=(3,)),  # 9
    instructions.shuffled((5,), Access(9, 0, (1,)), Access(2, 0, (0,)), Access(3, 0, (0,)), n=9, stream=1),
    instructions.reduced(F32, (), (3, 4), Access(8, 0, (4, 1)), Access(0, 11, (-4, -1))),
)
COMMITS = (instructions.committed("order", I64, (5,), 10), instructions.committed("w", F32, (3, 4), 8, slot=1))
PROGRAM = Program((replace(BODY[0], params=Slot(slot=1, name="w")), *BODY[1:]), COMMITS)


def with_body(number: int, **changes: object) -> Program:
    body = list(PROGRAM.body)
    body[number] = replace(body[number], **changes)  # type: ignore[arg-type]
    return Program(tuple(body), PROGRAM.commits)


def with_first(instruction: Instruction) -> Program:
    return Program((instruction, *PROGRAM.body[1:]), COMMITS)


def test_a_good_program_round_trips_and_validates() -> None:
    PROGRAM.validate()
    assert Program.decode(PROGRAM.encode()) == PROGRAM
    assert Program.decode(PROGRAM.encode()).root == PROGRAM.root


def test_program_tree_has_body_left_and_commits_right() -> None:
    tree, half = PROGRAM.tree, PROGRAM.half_depth
    assert (half, tree.depth) == (4, 5)
    assert tree.root == parent(tree.node(half, 0), tree.node(half, 1))
    for leaf in [*range(len(PROGRAM.body)), PROGRAM.leaf_of_commit(0), PROGRAM.leaf_of_commit(1)]:
        digest = instruction_digest(PROGRAM.encoded_at(leaf))
        verify(PROGRAM.root, tree.depth, leaf, digest, tree.proof(leaf))
        assert decode_instruction(PROGRAM.encoded_at(leaf)) == PROGRAM.instruction_at(leaf)


CHANGED: dict[str, tuple[int, dict[str, Any], str]] = {
    "dim of zero": (9, {"shape": (0,)}, "at least 1"),
    "rank of nine": (9, {"shape": (1,) * 9, "params": IotaParams(offset=0, strides=(0,) * 9)}, "ranks"),
    "too many elements": (9, {"shape": (1 << 41,)}, "2\\^40"),
    "too many terms": (
        11, {"reduction": (1 << 33,), "operands": (Access(8, 0, (0,)), Access(0, 0, (0,)))}, "2\\^32"),
    "reduction dims on a map": (
        7, {"reduction": (2,), "operands": (Access(0, 0, (4, 1, 0)), Access(5, 0, (4, 1, 0)))}, "reduction dims"),
    "function where there is none": (9, {"function": 1}, "no function"),
    "operand count": (4, {"operands": (Access(0, 0, (0, 1)),)}, "operands do not fit"),
    "parameters of another opcode": (9, {"params": RandomParams(stream=3)}, "parameters"),
    "parameters on a map": (7, {"params": RandomParams(stream=3)}, "parameters"),
    "step of f32": (3, {"dtype": F32}, "step number"),
    "window outside": (8, {"params": WindowParams(lo=(1, 0), hi=(4, 4), step=(1, 2))}, "box lies inside"),
    "window of step 0": (8, {"params": WindowParams(lo=(1, 0), hi=(3, 4), step=(1, 0))}, "box lies inside"),
    "empty window": (8, {"params": WindowParams(lo=(1, 0), hi=(1, 4), step=(1, 1))}, "box lies"),
    "gather bound 0": (4, {"params": GatherParams(index_stride=4, bound=0)}, "bound"),
    "gather beyond the table": (4, {"params": GatherParams(index_stride=4, bound=4)}, "reads"),
    "gather before the table": (4, {"params": GatherParams(index_stride=-4, bound=2)}, "reads"),
    "shuffle of 0": (10, {"params": ShuffleParams(n=0, stream=1)}, "n is 1"),
    "scatter without a match": (5, {"params": ScatterParams(match=(0, 0))}, "at least one"),
    "scatter match not row-major": (5, {"params": ScatterParams(match=(2, 0))}, "row-major"),
    "scatter operand along a matched dim": (
        5, {"operands": (Access(4, 0, (4, 1, 0)), Access(1, 0, (0, 0, 1)))}, "ignore matched"),
    "operand not yet computed": (7, {"operands": (Access(7, 0, (4, 1)), Access(5, 0, (4, 1)))}, "earlier"),
    "stride missing": (7, {"operands": (Access(0, 0, (4,)), Access(5, 0, (4, 1)))}, "one stride"),
    "dtype mix": (7, {"operands": (Access(0, 0, (4, 1)), Access(1, 0, (0, 0)))}, "does not take"),
    "argmax to f32": (11, {"function": ReduceFunction.ARGMAX}, "does not take"),
    "read past the end": (7, {"operands": (Access(0, 1, (4, 1)), Access(5, 0, (4, 1)))}, "elements 1 to 12"),
    "read before the start": (
        11, {"operands": (Access(8, 0, (4, 1)), Access(0, 10, (-4, -1)))}, "elements -1 to 10"),
    "seed with a stride": (6, {"operands": (Access(1, 0, (1, 0)), Access(3, 0, (0, 0)))}, "strides 0"),
    "stream used twice": (10, {"params": ShuffleParams(n=9, stream=0)}, "used once"),
    "state sourced with another shape": (0, {"shape": (4, 3)}, "as it is committed"),
}  # fmt: skip
"""The instruction that breaks a rule, the fields that do it, and the rule."""
BROKEN: dict[str, tuple[Program, int | None, str]] = {
    **{name: (with_body(number, **fields), number, rule) for name, (number, fields, rule) in CHANGED.items()},
    "no body": (Program((), COMMITS), None, "body instructions"),
    "no commit": (Program(BODY, ()), None, "commit instructions"),
    "loss of rank 1": (
        with_body(11, shape=(1,), operands=(Access(8, 0, (0, 4, 1)), Access(0, 0, (0, 4, 1)))), None, "rank 0"),
    "sum of bools": (with_body(11, dtype=BOOL), None, "rank 0"),
    "commit in the body": (Program((*PROGRAM.body[:7], COMMITS[1], *PROGRAM.body[8:]), COMMITS), 7, "commits"),
    "constant with a shape": (with_first(replace(instructions.const(0), shape=(2,))), 0, "rank 0"),
    "bool constant of 2": (with_first(instructions.const(2, BOOL)), 0, "exceed BOOL"),
    "NaN constant with a payload": (with_first(instructions.const(0x7FC00001)), 0, "NaN"),
    "commit of a value that is not there": (
        Program(PROGRAM.body, (replace(COMMITS[0], operands=(Access(12, 0, (1,)),)), COMMITS[1])), 12, "earlier"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_validation_and_decoding_name_the_broken_rule_and_instruction(name: str) -> None:
    program, instruction, rule = BROKEN[name]
    with pytest.raises(ProgramError, match=rule) as caught:
        program.validate()
    assert caught.value.instruction == instruction
    assert (f"instruction {instruction}" if instruction is not None else "program") in str(caught.value)
    with pytest.raises(VerificationError) as refused:
        Program.decode(program.encode())
    if isinstance(refused.value, ProgramError):
        assert str(refused.value) == str(caught.value)
    else:
        no_counts = name in ("no body", "no commit")
        assert str(refused.value).startswith("expected 1 to" if no_counts else f"instruction {instruction}: ")


def test_a_wrong_length_is_refused_before_the_instruction_is_read() -> None:
    last = encode_instruction(COMMITS[-1])
    for length in (0, 7, 4097, 1 << 31):
        data = PROGRAM.encode()[: -len(last) - 4] + length.to_bytes(4, "big") + last
        with pytest.raises(EncodingError, match=f"instruction 13: expected 8 to 4096 bytes, got {length}"):
            Program.decode(data)


ELEMENTS, TERMS = 115, 174
"""The elements of all values of `PROGRAM`, commits included, and the terms."""


@pytest.mark.parametrize(
    ("limit", "enough", "instruction", "rule"),
    [
        ("value_elements", 20, 4, "limit of 19 elements a value"),
        ("total_elements", ELEMENTS, 13, f"limit of {ELEMENTS - 1} elements"),
        ("total_terms", TERMS, 13, f"limit of {TERMS - 1} terms in all"),
    ],
)
def test_program_size_limits_are_exact(limit: str, enough: int, instruction: int, rule: str) -> None:
    data = PROGRAM.encode()
    assert Program.decode(data, ProgramLimits(**{limit: enough})) == PROGRAM
    with pytest.raises(ProgramError, match=f"instruction {instruction}: {rule}"):
        Program.decode(data, ProgramLimits(**{limit: enough - 1}))


def test_damaged_program_files_are_refused() -> None:
    raw, start = PROGRAM.encode(), len(MAGIC)
    counts = raw[:start] + bytes(8) + raw[start + 8 :]
    for damaged in (raw[: start + 20], raw[:-1], raw + b"\0", counts, raw.replace(b"order", b"or er")):
        with pytest.raises(EncodingError):
            Program.decode(damaged)


MALFORMED: dict[str, Callable[[bytes], bytes]] = {
    "opcode": lambda e: b"\0" + e[1:],
    "function": lambda e: e[:1] + b"\x63" + e[2:],
    "dtype": lambda e: e[:2] + b"\3" + e[3:],
    "rank": lambda e: e[:3] + b"\x09" + e[4:],
    "operands": lambda e: e[:5] + b"\x04" + e[6:],
    "oversized": lambda e: e + b"\0" * 4096,
    "truncated": lambda e: e[:-1],
    "a window without its fill": lambda _: (w := encode_instruction(PROGRAM.body[8]))[:1] + b"\0" + w[2:],
}


@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_instructions_are_refused(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(EncodingError):
        decode_instruction(change(encode_instruction(PROGRAM.body[7])))


def test_a_name_is_printable_ascii() -> None:
    for name in ("", "a b", "é", "x" * 256, "tab\t"):
        with pytest.raises(EncodingError):
            encode_instruction(instructions.source(SourceKind.STATE, name, F32, 1))


@given(
    st.lists(st.integers(1, 5), max_size=4), st.lists(st.integers(-9, 9), min_size=4, max_size=4), st.integers(0, 50)
)
@settings(max_examples=100, deadline=None)
def test_extent_is_the_range_of_elements_read(dims: list[int], strides: list[int], offset: int) -> None:
    access = Access(0, offset, tuple(strides[: len(dims)]))
    read = [
        offset + sum(c * s for c, s in zip(place, access.strides, strict=True)) for place in product(*map(range, dims))
    ]
    assert access.extent(tuple(dims)) == (min(read), max(read))
