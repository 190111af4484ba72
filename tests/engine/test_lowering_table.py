"""docs/OPERATORS.md is what the registry says."""

from scripts.operators import families, table
from tests.source_tree import ROOT
from tiebreak.engine.lowering import RULES, WHOLE

PAGE = ROOT / "docs" / "OPERATORS.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == table(), "run python -m scripts.operators docs/OPERATORS.md"


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
