"""Simulated games with adversaries of every kind, for `tiebreak simulate`."""

from typing import Final

from tiebreak.api.machine.environment import describe
from tiebreak.lab.sim.adversaries.base import Adversary, Role
from tiebreak.lab.sim.games.mixes import Mix
from tiebreak.lab.sim.games.playing import ADVERSARIES, facts, play_json, repertoire, watch_line
from tiebreak.lab.sim.games.records import GamesHeader
from tiebreak.lab.sim.games.series import Series
from tiebreak.lab.sim.games.story import tell

PRELOAD: Final = ("torch", "torch._functorch.aot_autograd", "web3")
"""Modules that take long to import and are the same for all processes."""


def adversaries() -> dict[str, dict[str, Adversary]]:
    """All adversaries by role and by the name that a mix or a line gives them."""
    found = {role.value: {name: kind for name, kind in ADVERSARIES.items() if kind.role is role} for role in Role}
    return {role: kinds for role, kinds in found.items() if kinds}


def deal(seed: int, mix: str, games: int, *, rough: bool = False) -> Series:
    """The games that follow from a seed. Raises `ConfigurationError` if the mix is invalid."""
    players = repertoire()
    dealt = Mix.parse(mix, players, rough=rough)
    head = GamesHeader(seed=seed, mix=str(dealt), environment=dict(describe()), adversaries=facts())
    return Series(head=head, mix=dealt, repertoire=players, games=games, play=play_json, preload=PRELOAD)


def retell(line: str) -> tuple[list[str], tuple[str, ...]]:
    """Plays the game of a line. Returns its events, line by line, and the promises that it broke.

    Raises `ConfigurationError` for an invalid line.
    """
    world, result = watch_line(line)
    return list(tell(world, result)), result.violations
