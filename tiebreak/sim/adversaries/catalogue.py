"""All adversaries by name.

To add an adversary, add its module's `ADVERSARIES` to the list here.
"""

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
    data,
    false_runs,
    logs,
    numbers,
    openings,
    overload,
    settings,
    signing,
    stalling,
    work,
)
from tiebreak.sim.adversaries.base import Adversary, Role

_MODULES: Final = (
    data.ADVERSARIES,
    work.ADVERSARIES,
    settings.ADVERSARIES,
    numbers.ADVERSARIES,
    logs.ADVERSARIES,
    false_runs.ADVERSARIES,
    signing.ADVERSARIES,
    openings.ADVERSARIES,
    stalling.ADVERSARIES,
    challengers.ADVERSARIES,
    overload.ADVERSARIES,
    auditors.ADVERSARIES,
    builders.ADVERSARIES,
    collusion.ADVERSARIES,
    clients.ADVERSARIES,
)


def by_name(kinds: Iterable[type[Adversary]]) -> dict[str, type[Adversary]]:
    """Adversaries by name. Raises `ConfigurationError` if two have the same name."""
    found: dict[str, type[Adversary]] = {}
    for kind in kinds:
        if kind.name in found:
            raise ConfigurationError(f"expected adversaries of different names, got two named {kind.name!r}")
        found[kind.name] = kind
    return found


_EVERYONE: Final = by_name(chain.from_iterable(_MODULES))
CATALOGUE: Final[Mapping[str, type[Adversary]]] = MappingProxyType({n: k for n, k in _EVERYONE.items() if not k.open})
"""All adversaries that end where they declare; open weaknesses are not among them."""
WEAKNESSES: Final[Mapping[str, type[Adversary]]] = MappingProxyType({n: k for n, k in _EVERYONE.items() if k.open})
"""All adversaries that the present rules do not stop. The docstring of each says what comes of it."""


def adversary(name: str) -> Adversary:
    """The adversary or weakness of this name. Raises `ConfigurationError` if there is none."""
    if name not in _EVERYONE:
        raise ConfigurationError(f"expected an adversary, one of {', '.join(sorted(_EVERYONE))}; got {name!r}")
    return _EVERYONE[name]()


def of_role(role: Role) -> tuple[str, ...]:
    """The names of all adversaries of a role, without the weaknesses."""
    return tuple(name for name, kind in CATALOGUE.items() if kind.role is role)
