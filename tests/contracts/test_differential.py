"""The cases that the contract is asked by the thousand: of every kind, the same every time."""

import re
from collections.abc import Callable
from pathlib import Path

from tests.contracts import differential
from tiebreak.protocol.program.isa import MAP_SIGNATURES, MapFunction

SOLIDITY = Path(__file__).resolve().parents[2] / "contracts" / "test" / "Differential.t.sol"


def test_solidity_test_asks_every_kind_of_case() -> None:
    asked = re.findall(r'_(?:calls|scalars)\("(\w+)"\)', SOLIDITY.read_text("utf-8"))
    assert sorted(asked) == sorted([*differential.CALLS, *(f"map_{f.name.lower()}" for f in MapFunction)])


def test_differential_case_files_are_well_formed_and_deterministic(tmp_path: Path, cases: Callable[[], None]) -> None:
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
