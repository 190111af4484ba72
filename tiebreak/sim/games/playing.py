"""From a line to its game: who takes part, on what terms, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from types import MappingProxyType
from typing import Any, Final

import torch

from tiebreak.engine.run.agreement import Terms
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.catalogue import CATALOGUE, WEAKNESSES
from tiebreak.sim.games.line import WORKSHOPS, GameLine, slug
from tiebreak.sim.games.mixes import Repertoire
from tiebreak.sim.games.records import Json
from tiebreak.sim.world.cast import Cast, Seat
from tiebreak.sim.world.game import watch
from tiebreak.sim.world.result import GameResult
from tiebreak.sim.world.workshop import Workshop
from tiebreak.sim.world.world import World

ADVERSARIES: Final[Mapping[str, type[Adversary]]] = MappingProxyType(
    {slug(name): kind for name, kind in sorted({**CATALOGUE, **WEAKNESSES}.items())}
)
"""Everyone who can stand in a line, by slug."""
CAUGHT: Final = tuple(name for name, kind in ADVERSARIES.items() if not kind.open)
"""Those that the rules stop: the singles of a mix."""
TRAINER: Final = "trainer"
"""The party's name in a cast."""
_PLACES: Final = {"workshop": "computation", "deviation": "computation"} | {
    name: name for name in ("trainer", "client", "builder")
}
"""What of a cast one adversary alone can set, and what it then is."""


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
    names: list[str] = field(default_factory=list)
    """Of the line's adversaries."""
    behind: dict[str, list[str]] = field(default_factory=dict)
    """Party -> names of adversaries, in the order in which they joined; not all of them stand in the line."""
    places: dict[str, str] = field(default_factory=dict)
    """What of the cast is whose."""
    has_own_computation: bool = False
    """Whether an adversary put another computation in the place of the workshop's."""

    def join(self, adversary: Adversary, line: GameLine) -> None:
        """Lets one adversary take its place. Raises `ConfigurationError` if that is another's."""
        cast, before, deviations = self.cast, _places(self.cast), self.cast.deviations()
        adversary.join(cast, line.random(slug(adversary.name)))
        for place, value in _places(cast).items():
            if value is before[place]:
                continue
            taken, by = _PLACES[place], adversary.name
            if self.places.setdefault(taken, by) != by:
                raise ConfigurationError(f"expected one adversary for the {taken}, got {self.places[taken]} and {by}")
            self.has_own_computation |= place == "workshop"
        if (needed := cast.workshop.name) != line.workshop:
            raise ConfigurationError(f"{adversary.name}: expected workshop={needed}, its only one, got {line.workshop}")
        self.names.append(adversary.name)
        for party, name in cast.deviations().items():
            if deviations.get(party) != name:
                self.behind.setdefault(party, []).append(name)
        seats = [seat.name for seat in cast.auditors]
        if len(set(seats)) < len(seats):
            raise ConfigurationError(f"expected auditors of different names, got {', '.join(seats)}")

    def close(self) -> None:
        """Everyone is there: parties behind which several stand get one name, and where each may end is said.

        Alone, an adversary ends where it must. Of several the first to be caught ends the job, and the others with it:
        a trainer where one of them must end, or without pay, if it comes to no job; another anywhere, for what it was
        to be caught by may not come, or may strike a trainer that deserves it. That nobody honest loses, and that no
        false head is paid, holds for all alike. Of open weaknesses nothing is expected.
        """
        kinds = {kind.name: kind for kind in ADVERSARIES.values()}
        ends = {end for name in self.names for end in kinds[name].caught}
        for party, names in self.behind.items():
            if len(names) > 1:
                self._rename(party, joint(names))
            if set(names) & set(self.names) and not any(kinds[name].open for name in self.names):
                allowed = ends if len(self.names) == 1 else ends | {Catch.UNPAID} if party == TRAINER else set(Catch)
                self.cast.expected[joint(names)] = frozenset(end.value for end in allowed)

    def _rename(self, party: str, name: str) -> None:
        if party in self.cast.dishonest:
            self.cast.dishonest[party] = name
        for seat in self.cast.auditors:
            if seat.name == party and seat.adversary is not None:
                seat.adversary = name

    def told(self, result: GameResult) -> GameResult:
        """A result in which the line's adversaries go by their own names, also where several stood behind one party.

        One that stood behind several parties, a trainer with a puppet, ends where the trainer does.
        """
        parties = sorted(self.behind, key=lambda party: party == TRAINER)
        ends = {name: result.catches[joint(self.behind[party])] for party in parties for name in self.behind[party]}
        catches = {name: ends[name] for name in self.names if name in ends}
        return replace(result, adversaries=tuple(self.names), catches=catches)


def joint(names: Sequence[str]) -> str:
    """What a party is called behind which these adversaries stand."""
    return " and ".join(names)


def _places(cast: Cast) -> dict[str, Any]:
    return {name: getattr(cast, name) for name in _PLACES}


def gather(line: GameLine) -> Gathering:
    """The cast of a game: trainers join first, so that others see whether there is something to watch.

    Raises `ConfigurationError` for adversaries who cannot play together, or not in this workshop.
    """
    auditors = [Seat(name=f"auditor-{i}" if i > 1 else "auditor") for i in range(1, line.auditors + 1)]
    cast = Cast(workshop=Workshop.open(line.workshop), terms=terms_of(line), auditors=auditors)
    gathering = Gathering(cast=cast)
    for name in sorted(line.adversaries, key=lambda name: ADVERSARIES[name].role is not Role.TRAINER):
        gathering.join(ADVERSARIES[name](), line)
    gathering.close()
    return gathering


def play_line(text: str) -> GameResult:
    """The game of a line, played to its end. The same line gives the same result in any process.

    Raises `ConfigurationError` for a text that is no line.
    """
    return watch_line(text)[1]


def watch_line(text: str) -> tuple[World, GameResult]:
    """As `play_line`, with the world in which it happened."""
    line = GameLine.parse(text, ADVERSARIES)
    gathering = gather(line)
    world, result = watch(gathering.cast, text, line.random("secrets"))
    return world, gathering.told(result)


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
    """Who can play where, and with whom: found by letting them join, so that nobody has to say it.

    Who brings a computation of its own plays alone: others know only those of the workshops.
    """
    workshops = {name: tuple(w for w in WORKSHOPS if _gathered((name,), w)) for name in ADVERSARIES}
    sociable = [name for name in CAUGHT if not _brings_its_own(name, workshops[name])]
    pairs = [
        pair
        for pair in combinations(sociable, 2)
        if any(_gathered(pair, w) for w in WORKSHOPS if all(w in workshops[name] for name in pair))
    ]
    weaknesses = tuple(name for name in ADVERSARIES if name not in CAUGHT)
    return Repertoire(workshops=workshops, singles=CAUGHT, pairs=pairs, weaknesses=weaknesses)


def _gathered(adversaries: tuple[str, ...], workshop: str) -> Gathering | None:
    """The cast of these, or None if they cannot play there together."""
    try:
        return gather(GameLine(seed=0, game=0, adversaries=adversaries, workshop=workshop))
    except ConfigurationError:
        return None


def _brings_its_own(name: str, workshops: Sequence[str]) -> bool:
    found = [_gathered((name,), workshop) for workshop in workshops]
    return any(one is not None and one.has_own_computation for one in found)
