"""The file of results: it survives a kill at any byte, and belongs to one run at a time."""

import json
from pathlib import Path
from typing import Any

import pytest

from tiebreak.lab.sim.games.series import RECORDS, open_ledger, read
from tiebreak.lab.sim.games.summary import GamesHeader
from tiebreak.protocol.errors import ConfigurationError, EncodingError

HEAD = GamesHeader(seed=7, mix="singles:1", environment={"cpu": "any"}, adversaries={"poison": {"name": "poison"}})


def record(game: int) -> dict[str, Any]:
    return {"game": game, "line": f"v1 seed=7 game={game}", "wall": 0.5, "result": {"seconds": game}}


def write(folder: Path, games: list[int], *, resume: bool = False) -> dict[int, str]:
    with open_ledger(folder, HEAD, resume=resume) as ledger:
        before = dict(ledger.done)
        for game in games:
            ledger.add(record(game))
    return before


def test_a_file_cut_anywhere_loses_one_record_at_most(tmp_path: Path) -> None:
    write(tmp_path, [0, 1, 2])
    path = tmp_path / RECORDS
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = max(0, sum(end <= cut for end in ends) - 1)
        assert sorted(write(tmp_path, [7], resume=True)) == list(range(kept)), cut
        assert [found["game"] for found in read(path)[1]] == [*range(kept), 7], cut


def test_results_are_not_written_over(tmp_path: Path) -> None:
    write(tmp_path, [0])
    with pytest.raises(ConfigurationError, match=r"got games.jsonl; go on with it \(--resume\)\?"):
        write(tmp_path, [1])


@pytest.mark.parametrize("other", [{"seed": 8}, {"mix": "pairs:1"}])
def test_resume_refuses_records_of_another_seed_or_mix(tmp_path: Path, other: dict[str, Any]) -> None:
    write(tmp_path, [0])
    head = GamesHeader(**({"seed": 7, "mix": "singles:1", "environment": {}, "adversaries": {}} | other))
    with (
        pytest.raises(ConfigurationError, match=r"expected results of seed . and mix"),
        open_ledger(tmp_path, head, resume=True),
    ):
        pass


def test_two_runs_cannot_write_one_file(tmp_path: Path) -> None:
    with (
        open_ledger(tmp_path, HEAD, resume=False),
        pytest.raises(ConfigurationError, match="for this run alone, got another"),
    ):
        write(tmp_path, [1], resume=True)
    write(tmp_path, [1], resume=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a line of JSON"),
        ("{", "expected a line of JSON"),
        ("{\n", "expected the head in line 1"),
        ("[1]\n", "expected the head in line 1"),
        ('{"format":"other","version":1}\n', "version 1, got 'other', version 1"),
        ('{"format":"tiebreak games","version":2}\n', "got 'tiebreak games', version 2"),
        (json.dumps(HEAD.to_json()) + "\nnone\n", "expected a game in line 2"),
        (json.dumps(HEAD.to_json()) + '\n{"x":1}\n', "expected a game in line 2"),
        (json.dumps(HEAD.to_json()) + '\n{"game":1}\n{"game":1}\n', "each game once"),
    ],
)
def test_a_malformed_file_of_records_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / RECORDS
    path.write_text(text)
    with pytest.raises(EncodingError, match=message):
        read(path)


def test_a_missing_file_of_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="got no such file"):
        read(tmp_path / RECORDS)
