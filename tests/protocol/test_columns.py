"""Programs are checked in vectors: the same verdicts as instruction by instruction, and hardly any object is made."""

import lzma
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.instructions import committed, const, drawn, mapped, reduced, source
from tests.protocol.programs import every_kind
from tests.protocol.test_program import BROKEN, PROGRAM
from tiebreak.api.corpus.programs import CORPUS
from tiebreak.protocol.errors import EncodingError, ProgramError, VerificationError
from tiebreak.protocol.program import columns
from tiebreak.protocol.program.columns import first_over
from tiebreak.protocol.program.isa import Access, DType, Instruction, MapFunction, Opcode, RandomParams, SourceKind
from tiebreak.protocol.program.program import MAGIC, Program, ProgramLimits, decode_instruction, encode_instruction

BLOCK = 256


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small files have several."""
    monkeypatch.setattr(columns, "BLOCK", BLOCK)


def file_of(body: list[bytes], commits: list[bytes]) -> bytes:
    """A program file of encoded instructions, whatever they are."""
    parts = [MAGIC, len(body).to_bytes(4, "big"), len(commits).to_bytes(4, "big")]
    for encoded in (*body, *commits):
        parts += [len(encoded).to_bytes(4, "big"), encoded]
    return b"".join(parts)


def one_by_one(body: list[bytes], commits: list[bytes], limits: ProgramLimits | None = None) -> None:
    """The plain way: every instruction becomes an object, and every rule looks at each."""
    program = Program(tuple(map(decode_instruction, body)), tuple(map(decode_instruction, commits)))
    program.validate(limits)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    found: list[bytes] = []
    plain = decode_instruction
    monkeypatch.setattr(
        "tiebreak.protocol.program.program.decode_instruction", lambda data: found.append(data) or plain(data)
    )
    return found


def decoded(program: Program) -> int:
    return program.body.decoded + program.commits.decoded


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rules_are_found_in_files_too(name: str) -> None:
    make, instruction, rule = BROKEN[name]
    if name in ("no body", "no commit"):
        return  # no file says that
    with pytest.raises(VerificationError) as caught:
        Program.decode(make().encode())
    if isinstance(caught.value, ProgramError):
        assert caught.value.instruction == instruction
        assert re.search(rule, str(caught.value))
    else:
        assert str(caught.value).startswith(f"instruction {instruction}: "), "its bytes are no instruction's"


def test_valid_instructions_are_not_in_doubt(cases: Callable[[], None]) -> None:
    files = [lzma.decompress(path.read_bytes()) for path in CORPUS.glob("*/program.xz")]
    assert len(files) >= 4
    for data in (*files, every_kind().encode(), PROGRAM.encode()):
        program = Program.decode(data)
        fresh = Program.decode(data)
        assert decoded(fresh) == 1, "the loss"
        assert fresh == program == Program(tuple(program.body), tuple(program.commits))
        assert hash(fresh) == hash(program)
        assert fresh.encode() == data
        cases()


# ---------------------------------------------------------------- as one by one, whatever is changed


def change(thing: Any, random: Random) -> Any:
    """A copy of an instruction, or of a part, with one thing changed."""
    if isinstance(thing, Instruction | Access) or (is_dataclass(thing) and fields(thing)):
        name = random.choice([f.name for f in fields(thing) if f.name != "origin"])
        return replace(thing, **{name: change(getattr(thing, name), random)})
    if isinstance(thing, Opcode | DType):
        return random.choice(list(type(thing)))
    if isinstance(thing, tuple):
        at = random.randrange(len(thing) + 1)
        if at < len(thing) and random.random() < 0.8:
            return (*thing[:at], change(thing[at], random), *thing[at + 1 :])
        return (*thing, random.choice([0, 1, 2])) if random.random() < 0.5 else thing[:-1]
    if isinstance(thing, int):
        far = (1 << 31, 1 << 40, (1 << 40) + 1, 1 << 62, (1 << 63) - 1, -1, -(1 << 63), 0, 1)
        return random.choice([thing + 1, thing - 1, -thing, random.choice(far)])
    return thing


def try_both(body: list[bytes], commits: list[bytes]) -> bool:
    """Whether the program is valid, on which both ways must agree."""
    verdicts = []
    for check in (one_by_one, lambda b, c: Program.decode(file_of(b, c))):
        try:
            check(body, commits)
            verdicts.append(True)
        except VerificationError:
            verdicts.append(False)
    assert verdicts[0] == verdicts[1], f"one by one {verdicts[0]}, in vectors {verdicts[1]}"
    return verdicts[0]


@cache
def samples() -> list[tuple[list[bytes], list[bytes]]]:
    found = []
    for program in (every_kind(), PROGRAM):
        encoded = list(program.encoded)
        found.append((encoded[: len(program.body)], encoded[len(program.body) :]))
    return found


def change_a_field(encoded: bytes, random: Random) -> bytes | None:
    """None: no bytes say that."""
    try:
        return encode_instruction(change(decode_instruction(encoded), random))
    except (EncodingError, ValueError, TypeError, AttributeError):
        return None


def change_bytes(encoded: bytes, random: Random) -> bytes:
    changed = bytearray(encoded)
    for _ in range(random.choice((1, 1, 2, 8))):
        place = random.randrange(len(changed)) if random.random() < 0.7 else random.randrange(6)
        changed[place] = random.choice((0, 1, 2, 0x7F, 0x80, 0xFF, random.randrange(256)))
    if random.random() < 0.2:
        changed = changed[: random.randrange(len(changed))] if random.random() < 0.5 else changed + random.randbytes(8)
    return bytes(changed)


@pytest.mark.parametrize("spoil", [change_a_field, change_bytes])
def test_any_change_has_the_same_verdict(spoil: Callable[[bytes, Random], bytes | None]) -> None:
    verdicts = set()

    @settings(max_examples=150)
    @given(st.integers(0, 1 << 40))
    def check(seed: int) -> None:
        random = Random(seed)
        body, commits = (list(part) for part in random.choice(samples()))
        part = body if random.random() < 0.9 else commits
        at = random.randrange(len(part))
        changed = spoil(part[at], random)
        if changed is not None:
            part[at] = changed
            verdicts.add(try_both(body, commits))

    check()
    assert verdicts == {True, False}


# ---------------------------------------------------------------- large files

ADD = mapped(MapFunction.ADD, DType.F32, (4, 4), Access(1, 0, (4, 1)), Access(1, 0, (1, 4)))


@cache
def large(count: int) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """`count` valid body instructions, of which all but four add two earlier values; one commit."""
    one = const(0)
    copy = replace(ADD, function=MapFunction.COPY, operands=(Access(0, 0, (0, 0)),))
    add, second = bytearray(encode_instruction(ADD)), 6 + 16 + 12 + 16
    body = [encode_instruction(one), encode_instruction(copy)]
    for number in range(2, count - 1):
        add[22:26], add[second : second + 4] = (number - 1).to_bytes(4, "big"), (1 + number // 2).to_bytes(4, "big")
        body.append(bytes(add))
    body[2] = encode_instruction(ADD)
    loss = reduced(DType.F32, (), (16,), Access(count - 2, 0, (1,)))
    return (*body, encode_instruction(loss)), (encode_instruction(committed("w", DType.F32, (4, 4), 1)),)


@pytest.mark.parametrize("block", [BLOCK, columns.BLOCK])
def test_a_large_program_is_read_without_making_its_instructions(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK", block)
    body, commits = large(block + 5)
    program = Program.decode(file_of(list(body), list(commits)))
    assert decoded(program) == 1, "the loss"
    assert program.encoded_at(block) == body[block]
    assert program.body[block].operands[0].value == block - 1
    assert decoded(program) == 2
    assert program.encode() == file_of(list(body), list(commits))


@cache
def slotted(count: int) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """`count` entries of the state, each committed as it was, two of the data, and a loss."""
    state = [source(SourceKind.STATE, f"w{k:07}", DType.F32, 2, 3, slot=k) for k in range(count)]
    data = [source(SourceKind.DATA, f"x{k}", DType.F32, 4, slot=k) for k in range(2)]
    commits = [committed(f"w{k:07}", DType.F32, (2, 3), k, slot=k) for k in range(count)]
    return tuple(map(encode_instruction, (*state, *data, const(0)))), tuple(map(encode_instruction, commits))


def changed_slot(part: list[bytes], at: int, **changes: Any) -> None:
    one = decode_instruction(part[at])
    params = replace(one.params, **{key: changes.pop(key) for key in ("slot", "name") if key in changes})
    part[at] = encode_instruction(replace(one, params=params, **changes))


def last_read(commits: list[bytes], offset: int, strides: tuple[int, ...]) -> tuple[Access]:
    return (Access(len(commits) - 1, offset, strides),)


WRONG_SLOTS: dict[str, tuple[str, Callable[[list[bytes], list[bytes]], None]]] = {
    "the last commit's slot": ("commit {last} has slot {last}", lambda _, c: changed_slot(c, -1, slot=7)),
    "a commit of a part": ("takes a value whole", lambda _, c: changed_slot(c, -1, shape=(2, 2))),
    "a commit transposed": ("takes a value whole", lambda _, c: changed_slot(c, -1, operands=last_read(c, 0, (1, 2)))),
    "a commit from another place": (
        "takes a value whole", lambda _, c: changed_slot(c, -1, operands=last_read(c, 1, (1, 1)))),
    "commits out of order": ("commits are in name order", lambda _, c: changed_slot(c, -1, name="a")),
    "two commits of a name": ("commits are in name order", lambda _, c: changed_slot(c, -1, name=f"w{len(c) - 2:07}")),
    "a source twice": ("slot 5 is sourced once", lambda b, c: changed_slot(b, len(c) - 1, slot=5, name="w0000005")),
    "a source of nothing": ("is committed", lambda b, c: changed_slot(b, len(c) - 1, slot=len(c))),
    "a source of another name": ("sourced as it is committed", lambda b, c: changed_slot(b, len(c) - 1, name="v")),
    "a source of another slot": ("sourced once", lambda b, c: changed_slot(b, len(c) - 1, slot=len(c) - 2)),
    "data of a slot too far": ("data slots are 0, 1", lambda b, c: changed_slot(b, -2, slot=2)),
    "data twice": ("slot 0 is sourced once", lambda b, c: changed_slot(b, -2, slot=0)),
    "data out of order": ("data is in name order", lambda b, c: changed_slot(b, -2, name="a")),
    "data of one name": ("data is in name order", lambda b, c: changed_slot(b, -2, name="x0")),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_SLOTS)
def test_one_wrong_slot_is_found_alone(wrong: str, made: list[bytes]) -> None:
    rule, spoil = WRONG_SLOTS[wrong]
    for count in (10, BLOCK + 3):
        body, commits = (list(part) for part in slotted(count))
        spoil(body, commits)
        if count == 10:
            with pytest.raises(ProgramError, match=rule.format(last=9)):
                one_by_one(body, commits)
        made.clear()
        with pytest.raises(ProgramError, match=rule.format(last=count - 1)):
            Program.decode(file_of(body, commits))
        assert len(made) <= 3, "the loss, a commit or a source, and what it names"


def test_a_state_of_many_entries_is_read_without_making_its_instructions() -> None:
    body, commits = slotted(BLOCK + 3)
    program = Program.decode(file_of(list(body), list(commits)))
    assert decoded(program) == 1, "the loss"
    assert list(program.data_spec()) == ["x0", "x1"]


WRONG: dict[str, Callable[[int], Instruction]] = {
    "earlier": lambda at: replace(ADD, operands=(Access(at, 0, (4, 1)), Access(1, 0, (4, 1)))),
    "reads elements 0 to 18": lambda _: replace(ADD, operands=(Access(1, 0, (5, 1)), Access(1, 0, (4, 1)))),
    "does not take": lambda _: replace(ADD, dtype=DType.BOOL),
    "dims are at least 1": lambda _: replace(ADD, shape=(4, 0)),
    "expected the end": lambda _: replace(ADD, params=RandomParams(stream=0)),
}


@pytest.mark.parametrize("rule", WRONG)
@pytest.mark.parametrize("at", [BLOCK - 1, BLOCK, 2 * BLOCK + 3])
def test_one_that_is_wrong_is_found_alone(rule: str, at: int, made: list[bytes]) -> None:
    body, commits = large(2 * BLOCK + 5)
    changed = list(body)
    changed[at] = encode_instruction(WRONG[rule](at))
    with pytest.raises(VerificationError, match=f"instruction {at}: .*{rule}"):
        Program.decode(file_of(changed, list(commits)))
    assert len(made) <= 4, "the loss, it, and what it reads"


def test_if_all_are_wrong_one_is_looked_at(made: list[bytes]) -> None:
    body, commits = large(2 * BLOCK + 5)
    wrong = encode_instruction(replace(ADD, dtype=DType.I64))
    with pytest.raises(ProgramError, match="instruction 2: "):
        Program.decode(file_of([*body[:2], *[wrong] * (len(body) - 3), body[-1]], list(commits)))
    assert len(made) == 3, "the loss, the first, and what it reads"


def test_lengths_are_checked_before_anything_is_read(cases: Callable[[], None]) -> None:
    body, commits = large(100)
    for length in (0, 7, 4097, 1 << 31):
        data = bytearray(file_of(list(body), list(commits)))
        at = len(data) - len(commits[0]) - 4
        data[at : at + 4] = length.to_bytes(4, "big")
        with pytest.raises(EncodingError, match=f"instruction 100: expected 8 to 4096 bytes, got {length}"):
            Program.decode(bytes(data))
        cases()


def test_a_stream_that_is_used_again_far_away_is_found() -> None:
    body, commits = large(2 * BLOCK + 5)
    seed = encode_instruction(const(1, DType.I64))
    none = (Access(2, 0, (0, 0)), Access(2, 0, (0, 0)))
    draw = [encode_instruction(drawn((4, 4), *none, stream=s)) for s in (7, 8)]
    changed = [*body[:2], seed, *[body[1]] * 3, *body[6:]]
    changed[4], changed[BLOCK + 9] = draw[0], draw[1]
    Program.decode(file_of(changed, list(commits)))
    changed[BLOCK + 9] = draw[0]
    with pytest.raises(ProgramError, match=f"instruction {BLOCK + 9}: .*used once"):
        Program.decode(file_of(changed, list(commits)))


@pytest.mark.parametrize(
    ("limits", "rule"),
    [
        (ProgramLimits(value_elements=15), "instruction 1: limit of 15 elements a value"),
        (ProgramLimits(total_elements=16 * BLOCK), f"instruction {BLOCK}: limit of {16 * BLOCK} elements"),
        (ProgramLimits(total_terms=16 * BLOCK), f"instruction {BLOCK}: limit of {16 * BLOCK} terms in all"),
    ],
)
def test_limits_are_exact(limits: ProgramLimits, rule: str) -> None:
    body, commits = (list(part) for part in large(BLOCK + 50))
    with pytest.raises(ProgramError, match=rule):
        Program.decode(file_of(body, commits), limits)
    with pytest.raises(ProgramError, match=rule):
        one_by_one(body, commits, limits)
    body, commits = (list(part) for part in large(100))
    total = 1 + 98 * 16 + 1 + 16  # the constant, 98 copies and sums, the loss, the commit
    elements, terms = total, total - 1 + 16
    for bounds in (ProgramLimits(total_elements=elements), ProgramLimits(total_terms=terms)):
        Program.decode(file_of(body, commits), bounds)
        one_by_one(body, commits, bounds)
    for bounds in (ProgramLimits(total_elements=elements - 1), ProgramLimits(total_terms=terms - 1)):
        with pytest.raises(ProgramError, match="instruction 100: limit"):
            Program.decode(file_of(body, commits), bounds)
        with pytest.raises(ProgramError, match="instruction 100: limit"):
            one_by_one(body, commits, bounds)


def test_a_sum_crosses_a_limit_where_integers_say() -> None:
    each = np.array([float(1 << 52), 0.0, 1.0, 1.0, 1e30])
    assert first_over(each, (1 << 52) - 1) == 0
    assert first_over(each, 1 << 52) == 2
    assert first_over(each, (1 << 52) + 1) == 3
    assert first_over(each, (1 << 52) + 2) == 4
    assert first_over(each[:1], 1 << 53) is None
    assert first_over(each[:0], 0) is None
