"""The cases that the contract is asked by the thousand: encoded as the ABI says, of every kind, the same every time."""

import random
import re
from collections.abc import Callable
from pathlib import Path

from eth_abi.abi import encode as abi_encode
from eth_utils.abi import collapse_if_tuple

from tests.contracts import abi, differential
from tests.contracts.disputes import KINDS, random_dispute
from tests.contracts.slotted import SOURCES, slotted
from tiebreak.protocol.chain.artifacts import REFEREE, load_artifact
from tiebreak.protocol.chain.calls import proof_argument
from tiebreak.protocol.program.isa import MAP_SIGNATURES, MapFunction

SOLIDITY = Path(__file__).resolve().parents[2] / "contracts" / "test" / "Differential.t.sol"


def types(name: str) -> list[str]:
    (entry,) = [e for e in load_artifact(REFEREE).abi if e["type"] == "function" and e["name"] == name]
    return [collapse_if_tuple(dict(argument)) for argument in entry["inputs"]]


def test_calls_are_encoded_as_the_abi_says(cases: Callable[[], None]) -> None:
    rng = random.Random("abi")
    made = [random_dispute(rng, kind) for kind in KINDS] + [slotted(rng, kind) for kind in (*SOURCES, "commit")]
    for dispute in made:
        expected = abi_encode(types("judge"), [dispute.context.values, proof_argument(dispute.move)])
        assert abi.judge(dispute.context, dispute.move) == abi.SELECTOR + expected
        cases()
    encoded, root = made[0].move.instruction, rng.randbytes(32)
    assert abi.describe(encoded, root)[4:] == abi_encode(types("describe"), [encoded, root])
    assert abi.finish(3, 27, b"abc")[4:] == abi_encode(types("finish"), [3, 27, b"abc"])


def test_every_kind_is_asked() -> None:
    asked = re.findall(r'_(?:calls|scalars)\("(\w+)"\)', SOLIDITY.read_text("utf-8"))
    assert sorted(asked) == sorted([*differential.CALLS, *(f"map_{f.name.lower()}" for f in MapFunction)])


def test_files(tmp_path: Path, cases: Callable[[], None]) -> None:
    """The counts, the widths, answers and refusals; and the same bytes again."""
    for name in differential.CALLS:
        count = differential.write_calls(tmp_path, name, 40)
        data = (tmp_path / f"{name}.bin").read_bytes()
        assert int.from_bytes(data[:4], "big") == count >= 40
        at, refused = 4, 0
        for _ in range(count):
            refused += data[at]
            length = int.from_bytes(data[at + 2 : at + 6], "big")
            assert (data[at + 6 + length : at + 38 + length] == bytes(32)) == (data[at] == 1)
            at += 38 + length
        assert at == len(data)
        assert refused < count
        differential.write_calls(tmp_path, name, 40)
        assert (tmp_path / f"{name}.bin").read_bytes() == data
        cases()
    for function in MapFunction:
        assert differential.write_scalars(tmp_path, function, 12) == 12
        data = (tmp_path / f"map_{function.name.lower()}.bin").read_bytes()
        assert len(data) == 4 + 12 * 40
        rows = {tuple(data[at + 1 : at + 6]) for at in range(4, len(data), 40)}
        assert len(rows) == len(MAP_SIGNATURES[function])
        cases()
