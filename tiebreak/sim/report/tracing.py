"""Numbers that know where they come from: a place in a results file, or an operation on such places.

A place is written `simulate.json#/adversaries/poisoned%20label/gas/median`: the file's name, then a JSON pointer
(RFC 6901) in its form for URLs. An operation is written `ratio(place, place)`. So who reads a number in a report can
find it in the file, or do the sum again.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

Value = int | float


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a results file, or one computed from such."""

    value: Value
    source: str
    """Where it stands, or how it was computed from what stands somewhere."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A number as a reader sees it: rounded, with its unit."""

    text: str
    number: Number


def pointer(path: Iterable[str | int]) -> str:
    """A place inside a file. Everything that an operation is written with is escaped in names."""
    return "".join("/" + quote(str(part).replace("~", "~0").replace("/", "~1"), safe="~-._") for part in path)


def ratio(part: Number, whole: Number) -> Number | None:
    """One as a multiple of the other; None where there is nothing to divide by."""
    if whole.value == 0:
        return None
    return _made("ratio", (part, whole), part.value / whole.value)


def difference(minuend: Number, subtrahend: Number) -> Number:
    """The first less the second."""
    return _made("difference", (minuend, subtrahend), minuend.value - subtrahend.value)


def product(factor: Number, other: Number) -> Number:
    """One times the other."""
    return _made("product", (factor, other), factor.value * other.value)


def total(numbers: Sequence[Number]) -> Number:
    """All of them added."""
    return _made("total", numbers, _sum(numbers))


def least(numbers: Sequence[Number]) -> Number:
    """The smallest: that one itself, with its place."""
    return min(numbers, key=lambda number: number.value)


def greatest(numbers: Sequence[Number]) -> Number:
    """The largest: that one itself, with its place."""
    return max(numbers, key=lambda number: number.value)


def _sum(numbers: Sequence[Number]) -> Value:
    values = [number.value for number in numbers]
    return sum(values) if all(isinstance(value, int) for value in values) else math.fsum(values)


def _made(operation: str, operands: Sequence[Number], value: Value) -> Number:
    return Number(value, f"{operation}({', '.join(operand.source for operand in operands)})")
