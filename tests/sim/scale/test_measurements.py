"""Result files are read strictly: what is missing, malformed or hostile is refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.sim.scale.measurements import MAX_BYTES, RESULTS, Measurements, Table
from tiebreak.sim.scale.model import CostModel

Document = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in RESULTS.glob("*.json"):
        shutil.copy(path, tmp_path)
    return tmp_path


def rewrite(folder: Path, change: Callable[[Document], object], name: str = "scale") -> None:
    path = folder / f"{name}.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def drop_rows(start: str) -> Callable[[Document], object]:
    def change(d: Document) -> None:
        d["rows"] = [row for row in d["rows"] if not row["metric"].startswith(start)]

    return change


def test_what_was_measured_is_read() -> None:
    m = Measurements.read()
    assert {s.name for s in m.held_out} == {"gpt2", "resnet50-32", "resnet50-224"}
    assert len(m.fitted) >= 15
    assert min(s.parameters for s in m.fitted) < 2 * 10**4
    assert max(s.parameters for s in m.fitted) > 2 * 10**7
    assert len(m.games) >= 30
    assert {game.levels for game in m.games} == {1, 2, 3, 4, 5}
    assert all(game.gas > 500_000 for game in m.games)


def test_no_more_than_what_may_be_committed() -> None:
    assert (RESULTS / "scale.json").stat().st_size < 300_000


BROKEN: list[tuple[str, Callable[[Document], object], str]] = [
    ("no rows", lambda d: d.pop("rows"), "list of rows"),
    ("empty rows", lambda d: d["rows"].clear(), "list of rows"),
    ("no environment", lambda d: d.pop("environment"), "environment"),
    ("environment of numbers", lambda d: d["environment"].update(cpu=1), "environment"),
    ("a row of another form", lambda d: d["rows"][3].pop("target"), "row 3"),
    ("a row with more in it", lambda d: d["rows"][3].update(why="x"), "row 3"),
    ("a row that is none", lambda d: d["rows"].insert(0, 7), "row 0"),
    ("a text for a number", lambda d: d["rows"][2].update(value="7"), "row 2"),
    ("true for a number", lambda d: d["rows"][2].update(value=True), "row 2"),
    ("a negative number", lambda d: d["rows"][2].update(value=-1), "row 2"),
    ("infinity", lambda d: d["rows"][2].update(value=1e999), "JSON"),
    ("a number for a case", lambda d: d["rows"][2].update(case=1), "row 2"),
    ("one row twice", lambda d: d["rows"].append(d["rows"][0]), "expected one"),
    ("steps without counts", drop_rows("steps: products"), "steps: products"),
    ("another unit", lambda d: d["rows"].append(next_unit(d)), "in 's'"),
    ("no board", drop_rows("board: settle"), "board: settle"),
    ("no games", lambda d: d.pop("games"), "list of games"),
    ("a game of another form", lambda d: d["games"][1].pop("leaf"), "game 1"),
    ("a negative depth", lambda d: d["games"][1].update(steps=-1), "game 1"),
    ("a game that is none", lambda d: d["games"].insert(0, "x"), "game 0"),
    ("a short move", lambda d: d["games"][0]["moves"][2].pop(), "game 0, move 2"),
    ("a move without a kind", lambda d: d["games"][0]["moves"][2].__setitem__(0, 1), "game 0, move 2"),
    ("negative gas", lambda d: d["games"][0]["moves"][2].__setitem__(6, -5), "game 0, move 2"),
    ("a game without a proof", lambda d: d["games"][2]["moves"].pop(), "game 2: expected a proof"),
    ("a game without moves", lambda d: d["games"][2]["moves"].clear(), "game 2: expected a proof"),
    ("no places", lambda d: d.pop("places"), "list of places"),
    ("a place of another form", lambda d: d["places"][0].pop("leaf"), "place 0"),
    ("a negative place", lambda d: d["places"][0].update(leaf=-1), "place 0"),
    ("no hex", lambda d: d["places"][0].update(instruction="zz"), "place 0"),
    ("a number for hex", lambda d: d["places"][0].update(instruction=5), "place 0"),
    ("no instruction", lambda d: d["places"][0].update(instruction="ff" * 9), "expected"),
    ("no operand", lambda d: d["places"][0].update(reads=[[1]]), "place 0"),
    ("another dtype", lambda d: d["places"][0].update(reads=[[1, 9, 4]]), "place 0"),
]


def next_unit(d: Document) -> Document:
    """A trainer's step of an unknown workload, in another unit, with all that is asked before."""
    steps = [row for row in d["rows"] if row["metric"].startswith("steps: ") and row["case"] == "gpt 1x32"]
    d["rows"] += [{**row, "case": "x"} for row in steps if row["metric"] not in ("steps: trainer", "steps: eager")]
    d["rows"].append({**steps[0], "metric": "steps: eager", "case": "x", "unit": "ms"})
    return {**steps[0], "metric": "steps: trainer", "case": "x", "unit": "s"}


@pytest.mark.parametrize(("change", "words"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_another_file_is_refused(folder: Path, change: Callable[[Document], object], words: str) -> None:
    rewrite(folder, change)
    with pytest.raises(EncodingError, match=words):
        CostModel.of(Measurements.read(folder))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "{",
        '{"rows": NaN}',
        "[" * 100_000,
        "[]," * 9 + "[" * 99_999,
        '{"a[": ' + "[" * 17 + "]" * 17 + "}",
        '{"rows": [], "x": "\ud800"}',
    ],
)
def test_what_is_no_document_is_refused(folder: Path, text: str) -> None:
    (folder / "commit.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(EncodingError, match="commit"):
        Measurements.read(folder)


def test_a_file_that_is_too_large_is_refused(folder: Path) -> None:
    with (folder / "engine.json").open("ab") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(EncodingError, match="engine: expected at most"):
        Measurements.read(folder)


@pytest.mark.parametrize("name", ["scale", "engine", "million_steps"])
def test_a_missing_file_is_named_with_what_makes_it(folder: Path, name: str) -> None:
    (folder / f"{name}.json").unlink()
    with pytest.raises(ConfigurationError, match=f"make bench-{name}"):
        Measurements.read(folder)


def test_a_table_says_what_it_has_not() -> None:
    row = {"metric": "a", "case": "b", "value": 1, "unit": "s", "target": ""}
    table = Table.of("t", {"environment": {}, "rows": [row]})
    assert table.get("a", "b", "s") == 1
    with pytest.raises(EncodingError, match="got none"):
        table.get("a", "c", "s")
    with pytest.raises(EncodingError, match="in 'ms', got 's'"):
        table.get("a", "b", "ms")
