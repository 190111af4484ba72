"""All faults of a training file at once, line by line, whatever its bytes are."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tiebreak.api.training import rows
from tiebreak.engine.data.text import MAX_TEXT_BYTES
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.strict_json import is_deeper, parse_json

GOOD = '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}'


def faults(tmp_path: Path, *lines: str | bytes) -> list[str]:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines))
    return rows.faults(path)


def test_each_faulty_line_is_named_and_good_ones_are_not(tmp_path: Path) -> None:
    assert faults(tmp_path, GOOD, "", '{"text": "t"}', GOOD + "\r") == []
    found = faults(
        tmp_path, GOOD, "{", "[1]", b"\xff", GOOD, '{"text": 1}', "x" * (MAX_TEXT_BYTES + 1), '{"a": NaN}',
        "[" * 70 + "]" * 70, r'{"text": "\ud800"}', r'{"messages": [], "tools": "\ud800"}', GOOD,
    )  # fmt: skip
    starts = [
        "line 2: expected JSON", "line 3: expected an object, got list", "line 4: expected JSON",
        "line 6, text: expected text, got 1", f"line 7: expected a row of at most {MAX_TEXT_BYTES:,} bytes",
        "line 8: expected JSON", "line 9: expected JSON", "line 10: expected JSON", "line 11",
    ]  # fmt: skip
    assert len(found) == len(starts)
    for text, start in zip(found, starts, strict=True):
        assert text.startswith(start), text
    assert faults(tmp_path) == faults(tmp_path, "", " ") == ["line 1: expected at least one row, got none"]


def test_reading_ends_after_many_faults(tmp_path: Path) -> None:
    found = faults(tmp_path, *["{"] * 5000)
    assert len(found) == rows.MAX_FAULTS + 1 == 101
    assert found[-1].startswith("after line 100: expected at most 100 faults")


def test_preferences_stand_in_all_rows_or_in_none(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "a"}], [{"role": "assistant", "content": "b"}]
    row = {"input": {"messages": said[0]}, "preferred_output": said[1], "non_preferred_output": said[1]}
    assert faults(tmp_path, json.dumps(row)) == []
    (found,) = faults(tmp_path, json.dumps(row), GOOD)
    assert found == "line 2: expected preferences in all rows or in none, got messages"


def test_faults_and_read_agree_on_random_rows(tmp_path: Path, cases: Callable[[], None]) -> None:
    drawn = random.Random(3)
    parts = [*'"\\{}[]:,1 ', "messages", "role", "user", "content", "null", "\\ud800"]
    for _ in range(300):
        cut = drawn.randrange(len(GOOD))
        line = GOOD[:cut] + "".join(drawn.choices(parts, k=drawn.randint(0, 3))) + GOOD[cut + drawn.randint(0, 3) :]
        found = faults(tmp_path, line)
        if found:
            with pytest.raises(ConfigurationError):
                rows.read(tmp_path / "x.jsonl")
        else:
            rows.read(tmp_path / "x.jsonl")
        cases()


@pytest.mark.parametrize("text", [b'"' + b'\\"' * 500_000, b'\\"' * 500_000, b'"\\' * 500_000, b'"' * 999_999])
def test_json_with_endless_quotes_takes_linear_time(text: bytes) -> None:
    """A quadratic reader takes hours for this: the test would not end."""
    assert not is_deeper(text, 64)
    with pytest.raises(ValueError, match=r"delimiter|Extra data|Expecting value|Unterminated"):
        parse_json(text, 64)
    assert is_deeper(b'{"a": "[[", "b": [[[', 3)
    assert not is_deeper(b'{"a": "[[\\"[[[", "b": [[]]}', 3)
    assert not is_deeper(b'["\\', 1)
