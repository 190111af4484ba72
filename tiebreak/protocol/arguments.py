"""The arguments of public functions and settings: what each may be, checked in one place and refused in one form.

    @taking(steps=whole(1), seed=whole(0, MAX_SEED), directory=PATH, progress=FLAG)
    def train(*, steps, seed, directory, progress): ...

Only kinds and ranges are checked here. What depends on other arguments is checked where they meet.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from math import inf, isfinite
from typing import Any, Final, ParamSpec, TypeVar

from tiebreak.protocol.errors import ConfigurationError

_P = ParamSpec("_P")
_R = TypeVar("_R")
MAX_WORD: Final = (1 << 256) - 1
_SHORT: Final = 60
"""The most characters of a wrong value that are shown."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """The values that an argument may have, in words and as a predicate. A secret value is never shown."""

    words: str
    holds: Callable[[Any], bool]
    secret: bool = False

    def __or__(self, other: "Expectation") -> "Expectation":
        """The expectation of a value that one or the other allows."""
        either = lambda value: self.holds(value) or other.holds(value)  # noqa: E731 (short)
        return Expectation(f"{self.words}, or {other.words}", either, self.secret or other.secret)

    def require(self, name: str, value: object) -> None:
        """Raises `ConfigurationError` for a value that is not allowed."""
        if not self.holds(value):
            got = type(value).__name__ if self.secret else shown(value)
            raise ConfigurationError(f"expected {name} as {self.words}, got {got}")


def shown(value: object) -> str:
    """A wrong value in a few characters: numbers, texts and lists of them as they are, of other things the type."""
    parts = value if isinstance(value, list | tuple) else [value]
    if not all(part is None or isinstance(part, bool | int | float | str | bytes) for part in parts):
        return f"{'an' if type(value).__name__[0].lower() in 'aeiou' else 'a'} {type(value).__name__}"
    # Python refuses to print integers of more than 4,300 digits.
    large = any(isinstance(part, int) and part.bit_length() > 1 << 13 for part in parts)
    text = "a very large integer" if large else repr(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


def _power(bound: int) -> str:
    exponent = bound.bit_length()
    return f"2^{exponent} - 1" if exponent > 20 and bound == (1 << exponent) - 1 else str(bound)


def whole(low: int, high: int | None = None) -> Expectation:
    """An integer (no bool) from `low` to `high`; None: to 2^256 - 1, the greatest that anything here can hold."""
    words = f"an integer of at least {low}" if high is None else f"an integer from {low} to {_power(high)}"
    return Expectation(
        words,
        lambda x: isinstance(x, int) and not isinstance(x, bool) and low <= x <= (MAX_WORD if high is None else high),
    )


def number(words: str, holds: Callable[[float], bool] = lambda _: True) -> Expectation:
    """A finite int or float (no bool) for which the condition holds."""

    def is_number(x: Any) -> bool:
        if not isinstance(x, int | float) or isinstance(x, bool):
            return False
        return -(2.0**1023) < x < 2.0**1023 and isfinite(x) and holds(x)

    return Expectation(words, is_number)


def share(low: float = 0, high: float = inf) -> Expectation:
    """A number within these bounds, which are allowed."""
    words = f"a number of at least {low:g}" if high == inf else f"a number from {low:g} to {high:g}"
    return number(words, lambda x: low <= x <= high)


def instance(words: str, *kinds: type) -> Expectation:
    """An object of one of these classes."""
    return Expectation(words, lambda x: isinstance(x, kinds))


def tuple_of(words: str, each: Callable[[Any], bool], length: int | None = None) -> Expectation:
    """A tuple whose elements all fulfil a condition, of the given length (None: of any)."""
    return Expectation(
        words, lambda x: isinstance(x, tuple) and len(x) == (len(x) if length is None else length) and all(map(each, x))
    )


def is_text(value: object) -> bool:
    """Whether the value is a text that is not empty."""
    return isinstance(value, str) and value != ""


NONE: Final = Expectation("None", lambda x: x is None)
FLAG: Final = instance("True or False", bool)
TEXT: Final = Expectation("a text", is_text)
PATH: Final = Expectation(
    "a path (a text or a pathlib.Path)", lambda x: is_text(x) or (not isinstance(x, type) and hasattr(x, "__fspath__"))
)
PASSPHRASE: Final = Expectation("a text", lambda x: isinstance(x, str), secret=True)
FUNCTION: Final = Expectation("a function", callable)
CALLBACKS: Final = Expectation(
    "a function, or a list of functions, that take a tiebreak.Step",
    lambda x: callable(x) or (isinstance(x, list | tuple) and all(map(callable, x))),
)


def taking(**expected: Expectation) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorates a function whose arguments of these names are checked before it is called.

    A function that takes `**options` checks the named among them as well. What it is not given is not checked.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        form = signature(function)

        @wraps(function)
        def checked(*given: _P.args, **named: _P.kwargs) -> _R:
            arguments = form.bind_partial(*given, **named).arguments
            for name, value in (arguments | arguments.get("options", {})).items():
                if name in expected:
                    expected[name].require(name, value)
            return function(*given, **named)

        checked.__dict__["expected"] = expected
        return checked

    return decorate


def require_fields(settings: object, **expected: Expectation) -> None:
    """Checks the fields of a dataclass as it is made."""
    for name, expectation in expected.items():
        expectation.require(name, getattr(settings, name))
