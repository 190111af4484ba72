"""Everyone who does not do as agreed, by name.

Whoever writes an adversary adds its module's `ADVERSARIES` to the list here, and nothing else.
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
    """Adversaries by name. Raises `ConfigurationError` for two of one name."""
    found: dict[str, type[Adversary]] = {}
    for kind in kinds:
        if kind.name in found:
            raise ConfigurationError(f"expected adversaries of different names, got two named {kind.name!r}")
        found[kind.name] = kind
    return found


_EVERYONE: Final = by_name(chain.from_iterable(_MODULES))
CATALOGUE: Final[Mapping[str, type[Adversary]]] = MappingProxyType({n: k for n, k in _EVERYONE.items() if not k.open})
"""All that are caught where they say; open weaknesses are not among them."""
WEAKNESSES: Final[Mapping[str, type[Adversary]]] = MappingProxyType({n: k for n, k in _EVERYONE.items() if k.open})
"""All that the present rules do not stop: each says in its docstring what comes of it."""


def adversary(name: str) -> Adversary:
    """The adversary of this name, a weakness too. Raises `ConfigurationError` if there is none."""
    if name not in _EVERYONE:
        raise ConfigurationError(f"expected an adversary, one of {', '.join(sorted(_EVERYONE))}; got {name!r}")
    return _EVERYONE[name]()


def of_role(role: Role) -> tuple[str, ...]:
    """The names of all in a role that are caught."""
    return tuple(name for name, kind in CATALOGUE.items() if kind.role is role)
