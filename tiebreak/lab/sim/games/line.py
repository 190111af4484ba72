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
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from hashlib import sha256
from random import Random
from typing import Annotated, Any, Final, Self, get_type_hints

from tiebreak.protocol.commitments.job import MAX_SEATS
from tiebreak.protocol.commitments.terms import MAX_GAME_SECONDS, MAX_SECONDS
from tiebreak.protocol.errors import ConfigurationError

VERSION: Final = "v1"
MAX_SEED: Final = (1 << 63) - 1
MAX_GAME: Final = (1 << 32) - 1
MAX_WEI: Final = 5 * 10**20
"""The largest reward or stake: half of what each party has."""
MAX_LEVELS: Final = 5
MAX_AUDITORS: Final = 4
WORKSHOPS: Final = ("exact", "logged", "rollouts")
_UNITS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,30}")
_WEI: Final = re.compile(r"([0-9]{1,31})(?:e([0-9]{1,2}))?")
_DURATION: Final = re.compile(r"([0-9]{1,13})([dhms])")
_SLUG: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


def slug(name: str) -> str:
    """An adversary's name as it is written in a line."""
    return "-".join(re.findall(r"[a-z0-9]+", name.lower()))


# ---------------------------------------------------------------- how values are written


@dataclass(frozen=True, slots=True)
class Format:
    """The rules by which values of a field are written, read and checked. `read` gives None for invalid text."""

    expected: str
    write: Callable[[Any], str]
    read: Callable[[str], Any]
    allows: Callable[[Any], bool]


def _number(least: int, most: int) -> Format:
    read = lambda text: int(text) if _NUMBER.fullmatch(text) else None  # noqa: E731
    return Format(f"{least}...{most}", str, read, lambda value: least <= value <= most)


def write_wei(wei: int) -> str:
    digits = str(wei)
    zeros = len(digits) - len(digits.rstrip("0"))
    return f"{digits[:-zeros]}e{zeros}" if wei and zeros >= 3 else digits


def _read_wei(text: str) -> int | None:
    found = _WEI.fullmatch(text)
    return None if found is None else int(found[1]) * 10 ** int(found[2] or 0)


def _write_seconds(seconds: int) -> str:
    unit = next((unit for unit, size in _UNITS.items() if seconds and seconds % size == 0), "s")
    return f"{seconds // _UNITS[unit]}{unit}"


def _read_seconds(text: str) -> int | None:
    found = _DURATION.fullmatch(text)
    return None if found is None else int(found[1]) * _UNITS[found[2]]


def _seconds(least: int, most: int) -> Format:
    expected = f"{least}s...{most}s (in d, h, m or s, for instance 90m)"
    return Format(expected, _write_seconds, _read_seconds, lambda seconds: least <= seconds <= most)


def _are_slugs(names: tuple[str, ...]) -> bool:
    return all(_SLUG.fullmatch(name) for name in names) and list(names) == sorted(set(names))


_SLUGS: Final = Format(
    "ADVERSARY,... (slugs, each once, in alphabetical order)", ",".join, lambda text: tuple(text.split(",")), _are_slugs
)
_WORKSHOP: Final = Format(" or ".join(WORKSHOPS), str, str, WORKSHOPS.__contains__)
_AMOUNT: Final = Format(
    f"0...{write_wei(MAX_WEI)} (wei, for instance 15e17)", write_wei, _read_wei, lambda wei: 0 <= wei <= MAX_WEI
)


# ---------------------------------------------------------------- the line


@dataclass(frozen=True, slots=True, kw_only=True)
class GameLine:
    """One game. Amounts in wei, times in seconds.

    adversaries: slugs of the dishonest participants, in alphabetical order. auditors: number of diligent auditors.
    rough: 1 in rough weather (`tiebreak.lab.sim.world.weather`).
    """

    seed: Annotated[int, _number(0, MAX_SEED)]
    game: Annotated[int, _number(0, MAX_GAME)]
    adversaries: Annotated[tuple[str, ...], _SLUGS] = ()
    workshop: Annotated[str, _WORKSHOP] = "exact"
    auditors: Annotated[int, _number(0, MAX_AUDITORS)] = 1
    levels: Annotated[int, _number(1, MAX_LEVELS)] = 4
    reward: Annotated[int, _AMOUNT] = 10**19
    trainer_stake: Annotated[int, _AMOUNT] = 4 * 10**19 + 1
    challenger_stake: Annotated[int, _AMOUNT] = 4 * 10**18
    window: Annotated[int, _seconds(1, MAX_SECONDS)] = 3600
    clock: Annotated[int, _seconds(1, MAX_GAME_SECONDS // 4)] = 1800
    replay: Annotated[int, _seconds(0, MAX_GAME_SECONDS // 12)] = 600
    talk: Annotated[int, _seconds(0, MAX_GAME_SECONDS // 4)] = 0
    seats: Annotated[int, _number(0, MAX_SEATS)] = 0
    rough: Annotated[int, _number(0, 1)] = 0

    def __post_init__(self) -> None:
        for key, (name, form) in FIELDS.items():
            _check(key, form, getattr(self, name))
        if self.seats and self.workshop != "exact":
            raise ConfigurationError(f"expected seats=0 under policy logged, got {self.seats}")

    def random(self, purpose: str) -> Random:
        """A random stream for one purpose, for instance an adversary's slug. It does not depend on the other fields."""
        preimage = f"game {self.seed} {self.game} {purpose}".encode()
        return Random(int.from_bytes(sha256(preimage).digest(), "big"))  # noqa: S311 - a game is to be repeatable

    def __str__(self) -> str:
        values = [(key, form, getattr(self, name)) for key, (name, form) in FIELDS.items()]
        written = [f"{key}={form.write(value)}" for key, form, value in values if value != USUAL.get(FIELDS[key][0])]
        return " ".join([VERSION, *written])

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
            key, value = _read(part)
            if FIELDS[key][0] in values:
                raise ConfigurationError(f"expected {key} once, got it twice")
            values[FIELDS[key][0]] = value
        for required in ("seed", "game"):
            if required not in values:
                raise ConfigurationError(f"expected {required}=NUMBER in the line, got none in {text[:80]!r}")
        for name in values.get("adversaries", ()):
            require_known(name, known)
        line = cls(**values)
        if str(line) != text:
            raise ConfigurationError(f"expected the one way to write this game, {str(line)!r}, got {text!r}")
        return line


FIELDS: Final[dict[str, tuple[str, Format]]] = {
    {"adversaries": "with"}.get(name, name.replace("_", "-")): (name, hint.__metadata__[0])
    for name, hint in get_type_hints(GameLine, include_extras=True).items()
}
"""Maps the key of each field to its attribute and format, in the order in which they are written."""
USUAL: Final = {f.name: f.default for f in fields(GameLine) if f.default is not MISSING}
"""The default values, which a line leaves out."""


def require_known(name: str, known: Collection[str]) -> None:
    """Raises `ConfigurationError`, with a list of the known adversaries, for an unknown one."""
    if name not in known:
        near = get_close_matches(name, sorted(known), n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        listed = ", ".join(sorted(known))
        raise ConfigurationError(f"expected an adversary of the catalogue, got {name!r}{hint}; there are: {listed}")


def _read(part: str) -> tuple[str, Any]:
    key, equals, text = part.partition("=")
    if key not in FIELDS or not equals:
        raise ConfigurationError(f"expected KEY=VALUE with a key of {', '.join(FIELDS)}, got {part[:80]!r}")
    form = FIELDS[key][1]
    value = form.read(text)
    if value is None:
        raise ConfigurationError(f"expected {key}={form.expected}, got {text[:80]!r}")
    _check(key, form, value)
    return key, value


def _check(key: str, form: Format, value: Any) -> None:
    if not form.allows(value):
        raise ConfigurationError(f"expected {key}={form.expected}, got {form.write(value)!r}")
