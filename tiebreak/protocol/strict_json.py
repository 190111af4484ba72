"""A strict JSON parser for untrusted input."""

import json
import re
from typing import Any, Final

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKET: Final = re.compile(rb"[^\[\]{}]+")


def parse_json(text: bytes, depth: int) -> Any:
    """Parse UTF-8 JSON. Raises `ValueError` for repeated names, non-finite numbers and nesting beyond `depth` brackets.

    Deeper nesting could exhaust the C stack of Python's parser.
    """
    # Strings are removed first, since brackets inside them do not nest.
    deep = 0
    for bracket in _NO_BRACKET.sub(b"", _STRING.sub(b"", text)):
        deep += 1 if bracket in b"[{" else -1
        if deep > depth:
            raise ValueError(f"expected at most {depth} brackets inside each other, got more")
    return json.loads(text.decode("utf-8"), object_pairs_hook=_without_repeats, parse_constant=_no_constant)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"expected finite numbers, got {name}")
