"""Reads a report as a doubter would: looks up each place in the files, and reads shown text back to a number.

Written apart from what wrote them: only the grammar is common.
"""

import json
import math
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

UNITS = {
    "": 1, "%": 0.01, "×": 1,
    "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86400, "years": 365.25 * 86400,
    "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15,
    "wei": 1, "gwei": 1e9, "ETH": 1e18,
}  # fmt: skip
SHOWN = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})*|\d+)(\.\d+)?(?:e([+-]\d+))?\s?(\D*)")


class Files:
    """Results files by name."""

    def __init__(self, files: dict[str, str]) -> None:
        self.found = {name: json.loads(text) for name, text in files.items()}

    @classmethod
    def of(cls, *paths: Path) -> "Files":
        return cls({path.name: path.read_text() for path in paths})

    def at(self, place: str) -> Any:
        """What stands at `file#/a/b`."""
        name, _, path = place.partition("#")
        found = self.found[unquote(name)]
        for part in path.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            found = found[int(key) if isinstance(found, list) else key]
        return found

    def value(self, source: str) -> float:
        """Of a place or an operation."""
        source = source.strip()
        if "(" not in source:
            found = self.at(source)
            assert isinstance(found, int | float), (source, found)
            return found
        operation, _, rest = source.partition("(")
        assert rest.endswith(")")
        inner = rest[:-1]
        if operation == "count":
            return len(self.at(inner))
        if operation == "total" and "/*/" in inner:
            before, _, after = inner.partition("/*/")
            return math.fsum(self.value(f"{before}/{i}/{after}") for i in range(len(self.at(before))))
        operands = [self.value(part) for part in arguments(inner)]
        if operation == "ratio":
            numerator, denominator = operands
            return numerator / denominator
        if operation == "product":
            return math.prod(operands)
        if operation == "difference":
            minuend, subtrahend = operands
            return minuend - subtrahend
        assert operation == "total", source
        return math.fsum(operands)


def arguments(inner: str) -> list[str]:
    """Parts between commas that are in no brackets."""
    parts, depth = [""], 0
    for sign in inner:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    assert depth == 0
    return parts


def reads(text: str) -> tuple[float, float]:
    """The number that a text shows, and half of its last digit."""
    match = SHOWN.fullmatch(text)
    assert match, text
    sign, whole, fraction, power, unit = match.groups()
    scale = UNITS[unit.strip()] * 10.0 ** int(power or 0)
    value = float(whole.replace(",", "") + (fraction or "")) * scale
    digits = len(fraction) - 1 if fraction else 0
    exact = not fraction and not power and scale == 1
    half = 0.5 * 10.0**-digits * scale
    return (-value if sign == "-" else value), (0.5 if exact else half)


def agrees(text: str, value: float) -> bool:
    """Whether a text shows a number: to half its last digit, and to three digits that count or all of them."""
    shown, half = reads(text)
    return math.isclose(shown, value, rel_tol=0.0051, abs_tol=0.0 if value else 1e-12) and (
        abs(shown - value) <= half * 1.000001
    )
