"""The catalogue of adversaries, by name. A new module of adversaries is added to the list here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tiebreak.lab.sim.adversaries import (
    auditors,
    base,
    blocks,
    challengers,
    clients,
    collusion,
    heads,
    hub,
    logs,
    mempool,
    numbers,
    openings,
    receipts,
    seats,
    talking,
    training,
)
from tiebreak.lab.sim.adversaries.base import Adversary
from tiebreak.protocol.errors import ConfigurationError

MODULES: Final = (
    training, numbers, logs, base, heads, openings, challengers, mempool, auditors, collusion, clients, blocks,
    talking, seats, receipts, hub,
)  # fmt: skip
_EVERYONE: Final[Mapping[str, Adversary]] = {one.name: one for module in MODULES for one in module.ADVERSARIES}
CATALOGUE: Final[Mapping[str, Adversary]] = MappingProxyType({n: one for n, one in _EVERYONE.items() if not one.open})
"""The adversaries that end where they declare; open weaknesses are not among them."""
WEAKNESSES: Final[Mapping[str, Adversary]] = MappingProxyType({n: one for n, one in _EVERYONE.items() if one.open})
"""The adversaries that the present rules do not stop. The docstring of each says what comes of it."""


def adversary(name: str) -> Adversary:
    """The adversary or weakness of this name. Raises `ConfigurationError` if there is none."""
    if name not in _EVERYONE:
        raise ConfigurationError(f"expected an adversary, one of {', '.join(sorted(_EVERYONE))}; got {name!r}")
    return _EVERYONE[name]
