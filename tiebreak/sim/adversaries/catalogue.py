"""All adversaries by name. A new module of adversaries is added to the list here."""

from collections.abc import Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final

from tiebreak.protocol.errors import ConfigurationError
from tiebreak.sim.adversaries import (
    auditors,
    builders,
    challengers,
    clients,
    collusion,
    copying,
    heads,
    inputs,
    logs,
    numbers,
    openings,
    places,
    work,
)
from tiebreak.sim.adversaries.base import Adversary, Role

_MODULES: Final = (
    inputs, work, numbers, logs, places, heads, openings, challengers, copying, auditors, builders, collusion, clients,
)  # fmt: skip


def by_name(adversaries: Iterable[Adversary]) -> dict[str, Adversary]:
    """Adversaries by name. Raises `ConfigurationError` if two have the same name."""
    found: dict[str, Adversary] = {}
    for one in adversaries:
        if one.name in found:
            raise ConfigurationError(f"expected adversaries of different names, got two named {one.name!r}")
        found[one.name] = one
    return found


_EVERYONE: Final = by_name(chain.from_iterable(module.ADVERSARIES for module in _MODULES))
CATALOGUE: Final[Mapping[str, Adversary]] = MappingProxyType({n: one for n, one in _EVERYONE.items() if not one.open})
"""All adversaries that end where they declare; open weaknesses are not among them."""
WEAKNESSES: Final[Mapping[str, Adversary]] = MappingProxyType({n: one for n, one in _EVERYONE.items() if one.open})
"""All adversaries that the present rules do not stop. What each does says what comes of it."""


def adversary(name: str) -> Adversary:
    """The adversary or weakness of this name. Raises `ConfigurationError` if there is none."""
    if name not in _EVERYONE:
        raise ConfigurationError(f"expected an adversary, one of {', '.join(sorted(_EVERYONE))}; got {name!r}")
    return _EVERYONE[name]


def of_role(role: Role) -> tuple[str, ...]:
    """The names of all adversaries of a role, without the weaknesses."""
    return tuple(name for name, one in CATALOGUE.items() if one.role is role)
