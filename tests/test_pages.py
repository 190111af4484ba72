"""Tables in docs/ are what was measured and what the model says."""

import json

import pytest

from benchmarks.pages import BLOCK, DOCS, PAGES, filled, number, of_results
from tests.parts import slow_except


@pytest.mark.parametrize("name", slow_except(PAGES, *(name for name in PAGES if name != "economics.md")))
def test_the_tables_of_a_page_are_up_to_date(name: str) -> None:
    text = (DOCS / name).read_text("utf-8")
    assert BLOCK.search(text)
    assert filled(text) == text, "run python -m benchmarks.pages"


def test_another_table_is_seen_and_other_text_is_kept() -> None:
    spec = json.dumps({"results": "board", "cases": "*", "metrics": ["gas: settle"]})
    text = f"before\n<!-- table {spec} -->\nold\n<!-- end -->\nafter\n"
    made = filled(text)
    assert "old" not in made
    assert made.startswith("before\n<!-- table")
    assert made.endswith("<!-- end -->\nafter\n")
    assert "| board | 62,875 |" in made
    assert filled(made) == made


def test_rows_are_cases_and_gaps_are_dashes() -> None:
    text = of_results("million_steps", "*, r = 5", ["transactions", "gas: open_terms"])
    assert "| weight, r = 5 | 16 | – |" in text
    assert "r = 1" not in text


def test_numbers_have_four_digits_or_all_of_their_own() -> None:
    assert [number(value) for value in (0, 5783280, 12345.6, 1.61034, 0.00049451)] == [
        "0", "5,783,280", "12,346", "1.61", "0.0004945",
    ]  # fmt: skip
