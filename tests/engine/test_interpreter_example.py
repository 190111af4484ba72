"""The example at the top of the interpreter's module runs as it is written."""

import doctest

from tiebreak.engine.run import interpreter


def test_the_interpreter_docstring_example_runs_as_written() -> None:
    found = doctest.testmod(interpreter)
    assert (found.failed, found.attempted > 5) == (0, True)
