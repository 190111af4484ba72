"""From a line to its game: who takes part, on what terms, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from types import MappingProxyType
from typing import Any, Final

import torch

from engine.agreement import Terms
from protocol.errors import ConfigurationError
from sim.adversaries.base import Adversary
from sim.adversaries.catalogue import CATALOGUE, WEAKNESSES
from sim.computing.workshop import Workshop
from sim.games.line import WORKSHOPS, GameLine, slug
from sim.games.mixes import Repertoire
from sim.games.records import Json
from sim.world.cast import Cast, Seat
from sim.world.game import play
from sim.world.result import GameResult

ADVERSARIES: Final[Mapping[str, type[Adversary]]] = MappingProxyType(
    {slug(name): kind for name, kind in sorted({**CATALOGUE, **WEAKNESSES}.items())}
)
"""Everyone who can stand in a line, by slug."""
CAUGHT: Final = tuple(name for name, kind in ADVERSARIES.items() if not kind.open)
"""Those that the rules stop: the singles of a mix."""
_PLACES: Final = ("deviation", "trainer", "client", "builder")
"""What of a cast one adversary alone can be."""


def terms_of(line: GameLine) -> Terms:
    """What client and trainer agree on."""
    return Terms(
        reward=line.reward, trainer_stake=line.trainer_stake, challenger_stake=line.challenger_stake,
        challenge_window=line.window, clock=line.clock, replay_time=line.replay, descent_levels=line.levels,
        nonce=line.random("job").getrandbits(128),
    )  # fmt: skip


@dataclass(kw_only=True)
class Gathering:
    """The cast of a line, and which adversaries stand behind which party."""

    cast: Cast
    behind: dict[str, list[str]] = field(default_factory=dict)
    """Party -> names of adversaries, in the order in which they joined."""
    places: dict[str, str] = field(default_factory=dict)
    """What of the cast is whose."""

    def join(self, adversary: Adversary, line: GameLine) -> None:
        """Lets one adversary take its place. Raises `ConfigurationError` if that is another's."""
        cast, before = self.cast, _places(self.cast)
        adversary.join(cast, line.random(slug(adversary.name)))
        for place, value in _places(cast).items():
            if value is before[place]:
                continue
            if place in self.places:
                raise ConfigurationError(
                    f"expected one adversary as {place}, got {self.places[place]} and {adversary.name}"
                )
            self.places[place] = adversary.name
        if cast.workshop.name != line.workshop:
            raise ConfigurationError(
                f"{adversary.name}: expected workshop={cast.workshop.name}, where alone it deviates, got {line.workshop}"
            )
        for party, name in cast.deviations().items():
            if name == adversary.name:
                self.behind.setdefault(party, []).append(name)
        names = [seat.name for seat in cast.auditors]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"expected auditors of different names, got {', '.join(names)}")

    def close(self) -> None:
        """Everyone is there: parties behind which several stand get one name, and may end where any of them may."""
        cast = self.cast
        kinds = {kind.name: kind for kind in ADVERSARIES.values()}
        for party, names in self.behind.items():
            joint = " and ".join(names)
            cast.dishonest[party] = joint
            ends = {end.value for name in names for end in kinds[name].caught}
            cast.expected.setdefault(joint, frozenset(ends))
            for seat in cast.auditors:
                if seat.name == party:
                    seat.adversary = joint


def _places(cast: Cast) -> dict[str, Any]:
    return {name: getattr(cast, name) for name in _PLACES}


def gather(line: GameLine) -> Gathering:
    """The cast of a game. Raises `ConfigurationError` for adversaries who cannot play together, or not there."""
    auditors = [Seat(name=f"auditor-{i}" if i > 1 else "auditor") for i in range(1, line.auditors + 1)]
    cast = Cast(workshop=Workshop.open(line.workshop), terms=terms_of(line), auditors=auditors)
    gathering = Gathering(cast=cast)
    for name in line.adversaries:
        gathering.join(ADVERSARIES[name](), line)
    gathering.close()
    return gathering


def told(gathering: Gathering, result: GameResult) -> GameResult:
    """A result in which every adversary goes by its own name, also where several stood behind one party."""
    catches = {
        name: result.catches[" and ".join(names)]
        for names in gathering.behind.values()
        for name in names
        if " and ".join(names) in result.catches
    }
    names = sorted({name for names in gathering.behind.values() for name in names})
    return replace(result, adversaries=tuple(names), catches=catches)


def play_line(text: str) -> GameResult:
    """The game of a line, played to its end. The same line gives the same result in any process.

    Raises `ConfigurationError` for a text that is no line.
    """
    line = GameLine.parse(text, ADVERSARIES)
    gathering = gather(line)
    return told(gathering, play(gathering.cast, text, line.random("secrets")))


def play_json(text: str) -> Json:
    """As `play_line`, for a process that plays many games beside others."""
    torch.set_num_threads(1)
    return play_line(text).to_json()


def facts() -> dict[str, dict[str, Any]]:
    """What is worth knowing of each adversary, by slug, as it stands in the head of a file of results."""
    return {
        name: {
            "name": kind.name,
            "role": kind.role.value,
            "gain": kind.gain,
            "caught": sorted(end.value for end in kind.caught),
            "open": kind.open,
        }
        for name, kind in ADVERSARIES.items()
    }


@cache
def repertoire() -> Repertoire:
    """Who can play where, and with whom: found by letting them join, so that nobody has to say it."""
    singles = {name: tuple(w for w in WORKSHOPS if _can_play((name,), w)) for name in ADVERSARIES}
    pairs = [
        pair
        for pair in combinations(CAUGHT, 2)
        if any(_can_play(pair, w) for w in WORKSHOPS if all(w in singles[name] for name in pair))
    ]
    return Repertoire(singles=singles, pairs=pairs)


def _can_play(adversaries: tuple[str, ...], workshop: str) -> bool:
    try:
        gather(GameLine(seed=0, game=0, adversaries=adversaries, workshop=workshop))
    except ConfigurationError:
        return False
    return True
