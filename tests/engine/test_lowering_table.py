"""docs/OPERATORS.md is what the registry says."""

from pathlib import Path

import pytest

from tests.source_tree import ROOT
from tiebreak.engine.lowering import RULES, WHOLE
from tiebreak.engine.lowering.table import families, main, table

PAGE = ROOT / "docs" / "OPERATORS.md"


def test_the_page_is_up_to_date() -> None:
    assert main([str(PAGE), "--check"]) == 0


def test_every_operator_is_on_the_page_with_a_meaning() -> None:
    page = table()
    assert all(f"`{operator}`" in page for operator in RULES)
    assert RULES.keys() >= WHOLE
    bare = [operator for operator, rule in RULES.items() if not rule.__doc__]
    assert not bare, f"rules without a docstring: {bare}"


def test_families_are_found_through_helpers_and_factories() -> None:
    assert families(RULES["convolution.default"]) == ["map", "reduce", "window"]
    assert families(RULES["upsample_nearest2d_backward.default"]) == ["map", "reduce", "scatter_sum", "iota"]
    assert families(RULES["exp.default"]) == ["map"]
    assert families(RULES["permute.default"]) == []


def test_another_page_is_told_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    assert main([str(page), "--check"]) == 1
    page.write_text(table() + "more\n")
    assert main([str(page), "--check"]) == 1
    assert "is not what the registry says" in capsys.readouterr().err
    assert main([str(page)]) == 0
    assert main([str(page), "--check"]) == 0
    assert main(["--check"]) == 2
    assert main([str(page), "--chek"]) == 2
