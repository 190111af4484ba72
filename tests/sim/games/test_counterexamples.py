"""Games that once broke a promise."""

import pytest

from tests.parts import slow_except
from tests.sim.counterexamples.keep import KEPT, CounterExample, load_all
from tiebreak.sim.games.playing import play_line

EXAMPLES = load_all(KEPT)


@pytest.mark.parametrize("example", slow_except(EXAMPLES, *EXAMPLES[:2]), ids=lambda example: example.line)
def test_what_broke_a_promise_once_does_so_no_more(example: CounterExample) -> None:
    assert play_line(example.line).violations == (), example.cause
