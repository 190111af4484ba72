"""The example at the top of the interpreter's module runs as it is written."""

import doctest

from tiebreak.engine.run import interpreter


def test_the_example_gives_what_it_says() -> None:
    found = doctest.testmod(interpreter)
    assert (found.failed, found.attempted > 5) == (0, True)
