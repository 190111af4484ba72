"""The line: a text that fixes a game completely. Each game has exactly one line.

    v1 seed=7 game=123 with=censoring-builder,poisoned-label levels=2 trainer-stake=15e18 clock=90m

A line is `v1` and then fields `key=value`, separated by single spaces, in the order of `FIELDS`. Fields with the
default value are left out to keep lines short; the version fixes the defaults. Adversaries are named by their slugs
(the name in lower case, with dashes between its words) in alphabetical order. Wei are digits, where three or more
trailing zeros are written as `e` and their number. Durations use the largest unit of d, h, m, s that divides them.

Everything else about a game (keys, nonces, secrets, the adversaries' choices) is derived by `GameLine.random`. It
depends only on seed and game, so that one field of a game can be changed while all random choices stay the same.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from difflib import get_close_matches
from hashlib import sha256
from random import Random
from typing import Any, Final, Self

from tiebreak.protocol.commitments.terms import MAX_SECONDS
from tiebreak.protocol.errors import ConfigurationError

VERSION: Final = "v1"
MAX_SEED: Final = (1 << 63) - 1
MAX_GAME: Final = (1 << 32) - 1
MAX_WEI: Final = 5 * 10**20
"""The largest reward or stake: half of what each party has."""
MAX_LEVELS: Final = 5
MAX_AUDITORS: Final = 4
WORKSHOPS: Final = ("exact", "logged")
_UNITS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,30}")
_WEI: Final = re.compile(r"([0-9]{1,31})(?:e([0-9]{1,2}))?")
_DURATION: Final = re.compile(r"([0-9]{1,13})([dhms])")
_SLUG: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


def slug(name: str) -> str:
    """An adversary's name as it is written in a line."""
    return "-".join(re.findall(r"[a-z0-9]+", name.lower()))


@dataclass(frozen=True, slots=True, kw_only=True)
class GameLine:
    """One game. Amounts in wei, times in seconds.

    adversaries: slugs of the dishonest participants, in alphabetical order. auditors: number of diligent auditors.
    """

    seed: int
    game: int
    adversaries: tuple[str, ...] = ()
    workshop: str = "exact"
    auditors: int = 1
    levels: int = 4
    reward: int = 10**19
    trainer_stake: int = 4 * 10**19 + 1
    challenger_stake: int = 4 * 10**18
    window: int = 3600
    clock: int = 1800
    replay: int = 600

    def __post_init__(self) -> None:
        for field in FIELDS:
            field.check(getattr(self, field.attribute))

    def random(self, purpose: str) -> Random:
        """A random stream for one purpose, for instance an adversary's slug. It does not depend on the other fields."""
        preimage = f"game {self.seed} {self.game} {purpose}".encode()
        return Random(int.from_bytes(sha256(preimage).digest(), "big"))  # noqa: S311 - a game is to be repeatable

    def __str__(self) -> str:
        parts = [VERSION]
        for field in FIELDS:
            value = getattr(self, field.attribute)
            if value != USUAL.get(field.attribute):
                parts.append(f"{field.key}={field.write(value)}")
        return " ".join(parts)

    @classmethod
    def parse(cls, text: str, known: Collection[str]) -> Self:
        """The game of a line. known: the slugs of all adversaries.

        Raises `ConfigurationError` for every text that is not exactly what `str` gives for some game.
        """
        version, *parts = text.split(" ")
        if version != VERSION:
            raise ConfigurationError(f"expected a line that starts with {VERSION}, got {text[:80]!r}")
        values: dict[str, Any] = {}
        for part in parts:
            field, value = _read(part)
            if field.attribute in values:
                raise ConfigurationError(f"expected {field.key} once, got it twice")
            values[field.attribute] = value
        for required in ("seed", "game"):
            if required not in values:
                raise ConfigurationError(f"expected {required}=NUMBER in the line, got none in {text[:80]!r}")
        for name in values.get("adversaries", ()):
            require_known(name, known)
        line = cls(**values)
        if str(line) != text:
            raise ConfigurationError(f"expected the one way to write this game, {str(line)!r}, got {text!r}")
        return line


def require_known(name: str, known: Collection[str]) -> None:
    """Raises `ConfigurationError`, with a list of the known adversaries, for an unknown one."""
    if name not in known:
        near = get_close_matches(name, sorted(known), n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        listed = ", ".join(sorted(known))
        raise ConfigurationError(f"expected an adversary of the catalogue, got {name!r}{hint}; there are: {listed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One `key=value` of a line: how to write, read and check its value. `read` gives None for invalid text."""

    key: str
    expected: str
    write: Callable[[Any], str]
    read: Callable[[str], Any]
    allows: Callable[[Any], bool]

    @property
    def attribute(self) -> str:
        """The name of the attribute in `GameLine`."""
        return _ATTRIBUTES.get(self.key, self.key.replace("-", "_"))

    def check(self, value: Any) -> None:
        """Raises `ConfigurationError` for a value out of range."""
        if not self.allows(value):
            raise ConfigurationError(f"expected {self.key}={self.expected}, got {self.write(value)!r}")


_ATTRIBUTES: Final = {"with": "adversaries"}


def _read(part: str) -> tuple[Field, Any]:
    key, equals, text = part.partition("=")
    field = next((field for field in FIELDS if field.key == key), None)
    if field is None or not equals:
        keys = ", ".join(field.key for field in FIELDS)
        raise ConfigurationError(f"expected KEY=VALUE with a key of {keys}, got {part[:80]!r}")
    value = field.read(text)
    if value is None:
        raise ConfigurationError(f"expected {key}={field.expected}, got {text[:80]!r}")
    field.check(value)
    return field, value


def _number(key: str, least: int, most: int) -> Field:
    return Field(
        key=key,
        expected=f"{least}...{most}",
        write=str,
        read=lambda text: int(text) if _NUMBER.fullmatch(text) else None,
        allows=lambda value: least <= value <= most,
    )


def write_wei(wei: int) -> str:
    """An amount as it is written in a line."""
    digits = str(wei)
    zeros = len(digits) - len(digits.rstrip("0"))
    return f"{digits[:-zeros]}e{zeros}" if wei and zeros >= 3 else digits


def _read_wei(text: str) -> int | None:
    found = _WEI.fullmatch(text)
    return None if found is None else int(found[1]) * 10 ** int(found[2] or 0)


def _wei(key: str) -> Field:
    return Field(
        key=key,
        expected=f"0...{write_wei(MAX_WEI)} (wei, for instance 15e17)",
        write=write_wei,
        read=_read_wei,
        allows=lambda wei: 0 <= wei <= MAX_WEI,
    )


def _write_seconds(seconds: int) -> str:
    unit = next((unit for unit, size in _UNITS.items() if seconds and seconds % size == 0), "s")
    return f"{seconds // _UNITS[unit]}{unit}"


def _read_seconds(text: str) -> int | None:
    found = _DURATION.fullmatch(text)
    return None if found is None else int(found[1]) * _UNITS[found[2]]


def _seconds(key: str, least: int) -> Field:
    return Field(
        key=key,
        expected=f"{least}s...{MAX_SECONDS}s (in d, h, m or s, for instance 90m)",
        write=_write_seconds,
        read=_read_seconds,
        allows=lambda seconds: least <= seconds <= MAX_SECONDS,
    )


def _are_slugs(names: tuple[str, ...]) -> bool:
    return all(_SLUG.fullmatch(name) for name in names) and list(names) == sorted(set(names))


FIELDS: Final = (
    _number("seed", 0, MAX_SEED),
    _number("game", 0, MAX_GAME),
    Field(
        key="with",
        expected="ADVERSARY,... (slugs, each once, in alphabetical order)",
        write=",".join,
        read=lambda text: tuple(text.split(",")),
        allows=_are_slugs,
    ),
    Field(
        key="workshop",
        expected=" or ".join(WORKSHOPS),
        write=str,
        read=str,
        allows=lambda name: name in WORKSHOPS,
    ),
    _number("auditors", 0, MAX_AUDITORS),
    _number("levels", 1, MAX_LEVELS),
    _wei("reward"),
    _wei("trainer-stake"),
    _wei("challenger-stake"),
    _seconds("window", 1),
    _seconds("clock", 1),
    _seconds("replay", 0),
)
"""All fields, in the order in which they are written."""

USUAL: Final = {f.name: f.default for f in fields(GameLine) if f.name not in ("seed", "game")}
"""The default values, which a line leaves out."""
