"""The numbers and tags that Solidity repeats are those of the registries."""

import re
from pathlib import Path

from tiebreak.protocol.chain.artifacts import CONTRACTS as DEPLOYED
from tiebreak.protocol.chain.artifacts import load_artifact
from tiebreak.protocol.codec import MAX_NAME_BYTES
from tiebreak.protocol.commitments.job import MAX_DESCENT_LEVELS, MAX_ENTRIES
from tiebreak.protocol.game.rules import walk_moves
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.parties.ledger import MAX_SEQUENCE
from tiebreak.protocol.program import isa
from tiebreak.protocol.tags import EMPTY, Tag
from tiebreak.protocol.trees import depth_of, empty_root

CONTRACTS = Path(__file__).resolve().parents[2] / "contracts"
LIBRARIES = CONTRACTS / "src" / "libraries"


def constants(name: str) -> dict[str, str]:
    """Name -> text of every internal constant of a library."""
    text = (LIBRARIES / f"{name}.sol").read_text("utf-8")
    found = re.findall(r"^ +\w+ internal constant (\w+) = ([^;]+);$", text, re.MULTILINE)
    assert len(found) == text.count(" internal constant "), "each constant's value ends its line"
    return dict(found)


def number(text: str) -> int:
    """The integer that a Solidity literal, or a shift of two, is."""
    base, _, shift = text.partition(" << ")
    return int(base, 0) << int(shift or "0", 0)


def registry() -> dict[str, int]:
    """Every number of the instruction set that Solidity repeats, by its name there."""
    limits = ("TERMS_PER_LEAF", "MAX_RANK", "MAX_NUMEL", "MAX_TERMS", "MAX_OPERANDS")
    found = {name: int(getattr(isa, name)) for name in (*limits, "MAX_INSTRUCTION_BYTES")}
    found |= {"MAX_NAME_BYTES": MAX_NAME_BYTES, "CHUNK_BYTES": CHUNK_BYTES, "NAN_BITS": NAN_BITS}
    for plain in (isa.DType, isa.Opcode, isa.MapFunction):
        found |= {member.name: int(member) for member in plain}
    found |= {f"SOURCE_{member.name}": int(member) for member in isa.SourceKind}
    found |= {f"REDUCE_{member.name}": int(member) for member in isa.ReduceFunction}
    found |= {"SCATTER_SUM_BF16": int(isa.ScatterFunction.SUM_BF16)}
    return found | {f"WINDOW_{member.name}": int(member) for member in isa.WindowFunction}


def test_solidity_instruction_set_matches_python() -> None:
    assert {name: number(text) for name, text in constants("Isa").items()} == registry()


def test_solidity_hash_tags_match_python() -> None:
    assert constants("Tags") == {tag.name: f'"{tag.value.decode()}"' for tag in Tag}
    trees = constants("Trees")
    assert set(trees) == {"EMPTY", "EMPTY_ROOTS"}
    assert trees["EMPTY"] == "0x" + EMPTY.hex()
    roots = b"".join(empty_root(depth) for depth in range(20))
    assert "".join(re.findall(r'hex"([0-9a-f]+)"', trees["EMPTY_ROOTS"])) == roots.hex()


def test_sequence_limit_exceeds_the_longest_lawful_game() -> None:
    """In the tallest trees that programs and jobs may have, a level at a time; 16 bits hold it and a game after it."""
    source = (CONTRACTS / "src" / "game" / "Games.sol").read_text("utf-8")
    (text,) = re.findall(r"^ +uint256 private constant MAX_SEQUENCE = ([^;]+);$", source, re.MULTILINE)
    assert number(text) == MAX_SEQUENCE == 1 << 15
    longest = max(
        walk_moves(
            levels, run=64, steps=64, values=depth_of(MAX_ENTRIES) + 1,
            chunks=depth_of(8 * isa.MAX_NUMEL // CHUNK_BYTES), terms=depth_of(isa.MAX_TERMS // isa.TERMS_PER_LEAF),
        )
        for levels in range(1, MAX_DESCENT_LEVELS + 1)
    )  # fmt: skip
    assert longest < MAX_SEQUENCE
    assert MAX_SEQUENCE + longest < 1 << 16, "the contract stores two bytes"
    spec = " ".join((CONTRACTS.parent / "docs" / "SPEC.md").read_text("utf-8").split())
    claim = f"at most 2^15 (else `IndexOutOfRange`). No lawful game has more than {longest} moves"
    assert f"its number of moves is higher than the game's and {claim}" in spec


def test_every_contract_has_margin_below_the_eip170_size_limit() -> None:
    """EIP-170 allows 24,576 bytes. The games check what enters them, and that takes 3,076; the board opens records."""
    assert len(DEPLOYED) == 4
    for name in DEPLOYED:
        assert 0 < load_artifact(name).code_bytes <= 24_576 - {"Games": 2_000, "Board": 2_800}.get(name, 3_072), name
