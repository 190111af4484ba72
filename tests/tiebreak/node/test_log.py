"""The log: one line an event, whatever a stranger puts into it."""

import io
import json

import pytest

from tiebreak.node.log import Log


@pytest.mark.parametrize("as_json", [False, True])
def test_an_event_is_one_line(as_json: bool) -> None:
    stream = io.StringIO()
    notes = Log("trainer", as_json=as_json, stream=stream)
    notes.warn("hub", "two\nlines \x1b[31m and a bell \x07", job="ab")
    notes.debug("steps", "is not asked for")
    (line,) = stream.getvalue().splitlines()
    assert "\x1b" not in line
    assert "\x07" not in line
    if as_json:
        found = json.loads(line)
        assert (found["level"], found["who"], found["event"], found["job"]) == ("WARNING", "trainer", "hub", "ab")
    assert notes.counts == {("WARNING", "hub"): 1}
