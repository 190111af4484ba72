"""Counter-examples are kept with their cause."""

from pathlib import Path

import pytest

from tests.parts import slow_except
from tests.sim.counterexamples.keep import KEPT, CounterExample, keep, load, load_all, main
from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.sim.games.playing import play_line

LINE, OTHER = "v1 seed=7 game=1 with=poison", "v1 seed=7 game=2"


def test_one_is_kept_with_its_cause(tmp_path: Path) -> None:
    path = tmp_path / "new" / "some.txt"
    keep(path, LINE, "The auditor  slept.\n", ["poison"])
    keep(path, OTHER, "Nobody came.", ["poison"])
    assert path.read_text() == f"# The auditor slept.\n{LINE}\n# Nobody came.\n{OTHER}\n"
    assert load(path) == [CounterExample(LINE, "The auditor slept."), CounterExample(OTHER, "Nobody came.")]
    assert load_all(path.parent) == load(path)


def test_a_cause_may_have_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text(f"# The auditor\n# slept.\n\n{LINE}\n")
    assert load(path) == [CounterExample(LINE, "The auditor slept.")]


def test_what_cannot_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    with pytest.raises(ConfigurationError, match="expected an adversary of the catalogue"):
        keep(path, LINE, "x", ["lazy"])
    with pytest.raises(ConfigurationError, match="expected the cause in words, got none"):
        keep(path, LINE, "  ", ["poison"])
    keep(path, LINE, "x", ["poison"])
    with pytest.raises(ConfigurationError, match=r"expected a line that .*some.txt does not have"):
        keep(path, LINE, "y", ["poison"])
    assert load(path) == [CounterExample(LINE, "x")]


def test_a_line_without_its_cause_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text(f"# x\n{LINE}\n{OTHER}\n")
    with pytest.raises(EncodingError, match="with the cause above line 3"):
        load(path)


EXAMPLES = load_all(KEPT)


@pytest.mark.parametrize("example", slow_except(EXAMPLES, *EXAMPLES[:2]), ids=lambda example: example.line)
def test_what_broke_a_promise_once_does_so_no_more(example: CounterExample) -> None:
    assert play_line(example.line).violations == (), example.cause


def test_the_command_keeps_one(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    main([str(path), "v1 seed=7 game=1 with=poisoned-label", "The auditor slept."])
    assert load(path) == [CounterExample("v1 seed=7 game=1 with=poisoned-label", "The auditor slept.")]
    with pytest.raises(SystemExit, match="expected FILE LINE CAUSE"):
        main([str(path)])
    with pytest.raises(SystemExit, match="expected a line that starts with v1"):
        main([str(path), "v2", "x"])
