"""docs/gas.md is what was measured."""

from benchmarks.gas_page import ROOT, leaves, moves, page


def test_the_page_is_made_from_what_was_measured() -> None:
    assert (ROOT / "docs" / "gas.md").read_text("utf-8") == page(), "run python -m benchmarks.gas_page docs/gas.md"


def test_other_lines_of_the_snapshot_are_no_leaves() -> None:
    snapshot = "RefereeGasTest:test_bars() (gas: 9)\nRefereeGasTest:test_gas_describe() (gas: 8)\n"
    text = "\n".join(leaves(snapshot + "RefereeGasTest:test_gas_map_add_f32() (gas: 7)\n"))
    assert "| map add f32 | 7 |" in text
    assert "Median 7, least 7." in text
    assert "bars" not in text


def test_a_logged_move_stands_beside_the_exact_one() -> None:
    text = moves({"openChunk": "5", "logged openChunk": "1700", "select": "3"})
    assert text[-3:-1] == ["| openChunk | 5 | 1,700 |", "| select | 3 | – |"]
