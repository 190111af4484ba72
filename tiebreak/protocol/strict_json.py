"""A strict JSON reader for untrusted input."""

import json
import re
from collections.abc import Callable
from typing import Any, Final

from tiebreak.protocol.errors import EncodingError, check_version

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or one that does not end: else each quote in that would be looked at as the beginning of another."""
_NO_BRACKET: Final = re.compile(rb"[^\[\]{}]+")
MAX_NESTING: Final = 200
"""The most brackets inside each other in a file of another program, such as a model's configuration."""
_MAX_SHOWN: Final = 200


class JsonObject:
    """The fields of an object, each of which is taken once. Every error is an `EncodingError` that names the field."""

    def __init__(self, name: str, data: Any) -> None:
        if not isinstance(data, dict):
            raise EncodingError(f"{name}: expected an object, got {type(data).__name__}")
        self._name = name
        self._left = dict(data)

    @classmethod
    def parse(cls, name: str, text: bytes, depth: int) -> "JsonObject":
        """The object in a file. name: the file's, for messages. depth: see `parse_json`."""
        try:
            data = parse_json(text, depth)
        except ValueError as error:
            raise EncodingError(f"{name}: expected JSON, got something else: {error}") from error
        return cls(name, data)

    def __contains__(self, key: str) -> bool:
        return key in self._left

    def take(self, key: str, expected: str, allows: Callable[[Any], bool]) -> Any:
        """The value of a field. expected: describes the values that it allows."""
        if key not in self._left:
            raise EncodingError(f"{self._name}: expected a field {key!r}, got none")
        value = self._left.pop(key)
        if not allows(value):
            raise EncodingError(f"{self._name}, {key}: expected {expected}, got {str(value)[:_MAX_SHOWN]!r}")
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        """The value of a key, an integer from low to high, both included; a bool is none."""
        return int(self.take(key, f"an integer from {low} to {high}", lambda x: type(x) is int and low <= x <= high))

    def version(self, key: str, expected: int) -> None:
        """Takes the version of the format. Call it first: another one may have other fields."""
        check_version(self._name, self.integer(key, 0, 1 << 16), expected)

    def text(self, key: str, pattern: str = "(?s:.*)", expected: str = "text") -> str:
        """The value of a key, a string that matches a regular expression wholly. expected: describes that in words."""
        return str(self.take(key, expected, lambda x: isinstance(x, str) and re.fullmatch(pattern, x) is not None))

    def data(self, key: str, length: int, prefix: str = "0x") -> bytes:
        """The bytes of a field, in lower-case hex after a prefix."""
        words = f"{prefix and prefix + ' and '}{2 * length} hex digits"
        return bytes.fromhex(self.text(key, f"{prefix}[0-9a-f]{{{2 * length}}}", words).removeprefix(prefix))

    def same(self, key: str, value: Any, source: str = "") -> None:
        """Takes a field that must have this value. source: appended to the error message; where the value is from."""
        self.take(key, f"{value}{source}", lambda found: found == value)

    def is_null(self, key: str) -> bool:
        """Takes the field if it is null."""
        return key in self._left and self._left[key] is None and self._left.pop(key) is None

    def inner(self, key: str) -> "JsonObject":
        """The object in a field. Messages about it name this object and the field."""
        return JsonObject(
            f"{self._name}, {key[:_MAX_SHOWN]}", self.take(key, "an object", lambda x: isinstance(x, dict))
        )

    def names(self) -> list[str]:
        """The names of the fields that are left."""
        return list(self._left)

    def objects(self) -> dict[str, "JsonObject"]:
        """All fields that are left, each of which must be an object, by name."""
        return {key: self.inner(key) for key in self.names()}

    def finish(self) -> None:
        """Raises an error if a field was not taken."""
        if self._left:
            raise EncodingError(f"{self._name}: expected no other fields, got {min(self._left)[:_MAX_SHOWN]!r}")


def parse_json(text: bytes, depth: int) -> Any:
    """Parse UTF-8 JSON. Raises `ValueError` for repeated names, non-finite numbers and nesting beyond `depth` brackets.

    Deeper nesting could exhaust the C stack of Python's parser.
    """
    if is_deeper(text, depth):
        raise ValueError(f"expected at most {depth} brackets inside each other, got more")
    return json.loads(text.decode("utf-8"), object_pairs_hook=_without_repeats, parse_constant=_no_constant)


def is_deeper(text: bytes, depth: int) -> bool:
    """Whether more than `depth` brackets of a JSON text are inside each other."""
    deep = 0
    for bracket in _NO_BRACKET.sub(b"", _STRING.sub(b"", text)):  # brackets inside strings do not nest
        deep += 1 if bracket in b"[{" else -1
        if deep > depth:
            return True
    return False


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"expected finite numbers, got {name}")
