"""Plays the game of a line: who takes part, on what terms, and how it ends."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from random import Random
from typing import Any, Final

import torch

from tiebreak.api.machine.environment import describe
from tiebreak.lab.sim.adversaries import (
    auditors,
    base,
    blocks,
    challengers,
    clients,
    collusion,
    heads,
    logs,
    mempool,
    numbers,
    openings,
    rollouts,
    seats,
    talking,
    training,
)
from tiebreak.lab.sim.adversaries.base import BUILDER, TRAINER, Adversary, Catch, Role
from tiebreak.lab.sim.adversaries.blocks import deep
from tiebreak.lab.sim.adversaries.mempool import bearable, job_of
from tiebreak.lab.sim.games.line import GameLine, slug
from tiebreak.lab.sim.games.mixes import Mix, Repertoire
from tiebreak.lab.sim.games.runner import Json
from tiebreak.lab.sim.games.series import Series
from tiebreak.lab.sim.games.story import tell
from tiebreak.lab.sim.games.summary import GamesHeader
from tiebreak.lab.sim.world.game import TERMS, Cast, CastMember, GameResult, watch
from tiebreak.lab.sim.world.weather import LATEST, READ_AGAIN, Weather
from tiebreak.lab.sim.world.workshop import CLASSIFIER, Workshop
from tiebreak.lab.sim.world.world import World
from tiebreak.protocol.commitments.terms import Terms, pool_bond
from tiebreak.protocol.errors import ConfigurationError

MODULES: Final = (
    training,
    numbers,
    logs,
    rollouts,
    base,
    heads,
    openings,
    challengers,
    mempool,
    auditors,
    collusion,
    clients,
    blocks,
    talking,
    seats,
)
"""The modules with a table of adversaries each. A new one is added here."""
CATALOGUE: Final = {one.name: one for module in MODULES for one in module.ADVERSARIES}
"""All adversaries by name."""
ADVERSARIES: Final = {slug(name): kind for name, kind in sorted(CATALOGUE.items())}
"""The adversaries that a line can name, by slug."""
PRELOAD: Final = ("torch", "torch._functorch.aot_autograd", "web3")
"""Modules that take long to import and are the same for all processes."""
BY_CHALLENGE: Final = {Catch.ABANDONED: Catch.HARMLESS, Catch.PARTED: Catch.RECOMPUTED}
"""The ending that a trainer may have instead where somebody challenges without ground.

Nobody can abandon a job with an open game, so one that is late may be paid in the end; and a challenge of what nobody
can check may be right by chance.
"""
FOILED: Final = {Catch.HARMLESS, Catch.UNPAID, Catch.REFUSED}
"""The endings of a trainer whose plan comes to nothing, which rough weather may do to any."""
_EXCLUSIVE: Final = {"workshop": "computation", "deviation": "computation"} | {
    name: name for name in ("trainer", "client", "builder")
}
"""The fields of a cast that only one adversary may set, with what each of them decides."""


def terms_of(line: GameLine) -> Terms:
    return Terms(
        reward=line.reward, trainer_stake=line.trainer_stake, challenger_stake=line.challenger_stake,
        challenge_window=line.window, clock=line.clock, replay_time=line.replay, talk_time=line.talk,
        audit_time=TERMS.audit_time, deadline=TERMS.deadline, descent_levels=line.levels,
        nonce=line.random("job").getrandbits(128), seats=line.seats,
        seat_fee=line.reward // 10 if line.seats else 0,
        seat_bond=pool_bond(line.reward // 10 + 1) if line.seats else 0,
    )  # fmt: skip


@dataclass(kw_only=True)
class Gathering:
    """The cast of a line, and which adversaries stand behind which party."""

    cast: Cast
    names: list[str] = field(default_factory=list)
    """The names of the line's adversaries."""
    behind: dict[str, list[str]] = field(default_factory=dict)
    """Maps each party to the names of its adversaries, in the order in which they joined.

    Not all of them are in the line.
    """
    taken: dict[str, str] = field(default_factory=dict)
    """Maps what only one adversary may decide to the one that decides it."""
    has_own_computation: bool = False
    """Whether an adversary replaced the workshop's computation."""

    def join(self, adversary: Adversary, line: GameLine) -> None:
        """Adds one adversary to the cast. Raises `ConfigurationError` if another one has its role already."""
        cast, before, deviations = self.cast, _exclusive(self.cast), self.cast.deviations()
        adversary.join(cast, line.random(slug(adversary.name)))
        for name, value in _exclusive(cast).items():
            if value is before[name]:
                continue
            what, by = _EXCLUSIVE[name], adversary.name
            if self.taken.setdefault(what, by) != by:
                raise ConfigurationError(f"expected one adversary for the {what}, got {self.taken[what]} and {by}")
            self.has_own_computation |= name == "workshop"
        if (needed := cast.workshop.name) != line.workshop:
            places = " or ".join(adversary.needs or (needed,))
            raise ConfigurationError(f"{adversary.name}: expected workshop={places}, got {line.workshop}")
        self.names.append(adversary.name)
        for party, name in cast.deviations().items():
            if deviations.get(party) != name:
                self.behind.setdefault(party, []).append(name)
        seats = [seat.name for seat in cast.auditors]
        if len(set(seats)) < len(seats):
            raise ConfigurationError(f"expected auditors of different names, got {', '.join(seats)}")

    def close(self) -> None:
        """Completes the cast: names parties that stand for several adversaries, with the endings of each.

        A single adversary must end where it declares. Of several, the first that is caught ends the job for the others
        too. A trainer then ends where one of them must, or unpaid if there is no job. Any other party may end anywhere:
        its own catch may never come, or it may have hit a trainer that deserves it. A job of policy `logged` may part,
        whatever its trainer did, and challenges without ground lead to other endings (`BY_CHALLENGE`). Rough weather
        does to one alone what others would: what it does may come too late, or not at all. In all cases no honest party
        loses and no false head is paid.
        """
        posting = [name for name in self.names if not CATALOGUE[name].seated]
        if self.cast.terms.seats and posting:
            raise ConfigurationError(f"{posting[0]}: expected a job without seats, got {self.cast.terms.seats}")
        ends = {end for name in self.names for end in CATALOGUE[name].caught}
        groundless = [CATALOGUE[seat.adversary] for seat in self.cast.auditors if seat.adversary is not None]
        challenged = any(kind.role is Role.CHALLENGER for kind in groundless)
        for party, names in self.behind.items():
            if len(names) > 1:
                self._rename(party, joint(names))
            if set(names) & set(self.names):
                beside = {Catch.UNPAID, Catch.PARTED} if self.cast.workshop.is_logged else {Catch.UNPAID}
                beside |= {BY_CHALLENGE[end] for end in ends & set(BY_CHALLENGE) if challenged}
                if self.cast.workshop.samples and ends & {Catch.RECOMPUTED, Catch.CONCEDED}:
                    ends |= {Catch.NONFINITE}  # a false number may lead to a loss that is none
                if self.cast.weather is not None:
                    beside |= FOILED.union(*(CATALOGUE[name].rough for name in self.names))
                undisturbed = len(self.names) == 1 and self.cast.weather is None
                allowed = ends if undisturbed else ends | beside if party == TRAINER else set(Catch)
                self.cast.expected[joint(names)] = frozenset(end.value for end in allowed)

    def _rename(self, party: str, name: str) -> None:
        if party in self.cast.dishonest:
            self.cast.dishonest[party] = name
        for seat in self.cast.auditors:
            if seat.name == party and seat.adversary is not None:
                seat.adversary = name

    def told(self, result: GameResult) -> GameResult:
        """The result with the line's adversaries under their own names, even if several stood behind one party.

        An adversary that stood behind several parties, such as a trainer with a puppet, ends where the trainer does.
        """
        parties = sorted(self.behind, key=lambda party: party == TRAINER)
        ends = {name: result.catches[joint(self.behind[party])] for party in parties for name in self.behind[party]}
        catches = {name: ends[name] for name in self.names if name in ends}
        return replace(result, adversaries=tuple(self.names), catches=catches)


def joint(names: Sequence[str]) -> str:
    """The name of a party behind which these adversaries stand."""
    return " and ".join(names)


def _exclusive(cast: Cast) -> dict[str, Any]:
    return {name: getattr(cast, name) for name in _EXCLUSIVE}


def gather(line: GameLine) -> Gathering:
    """The cast of a game. Trainers join first, so that the others can see whether there is a cheat to watch.

    Raises `ConfigurationError` for adversaries that cannot play together, or not in this workshop.
    """
    auditors = [CastMember(name=f"auditor-{i}" if i > 1 else "auditor") for i in range(1, line.auditors + 1)]
    cast = Cast(workshop=Workshop.open(line.workshop), terms=terms_of(line), auditors=auditors)
    gathering = Gathering(cast=cast)
    for name in sorted(line.adversaries, key=lambda name: ADVERSARIES[name].role is not Role.TRAINER):
        gathering.join(ADVERSARIES[name], line)
    if line.rough:
        cast.weather = _rough(cast, line.random("weather"))
    gathering.close()
    return gathering


def _rough(cast: Cast, rng: Random) -> Weather:
    """The most faults that an honest party's clocks allow; none if a dishonest builder uses up that time."""
    if BUILDER in cast.dishonest:
        return Weather(rng, seconds=0, depth=0)
    depth = deep(cast, rng)
    seconds = bearable(cast) - LATEST - READ_AGAIN
    job = job_of(cast)
    if job.seats:  # the draw and the audit share the time of the seats
        audit = max(job.challenge_window, job.checkpoints * job.audit_time)
        seconds = min(seconds, (audit - job.steps * cast.step_seconds - 2 * cast.pace.sending(2)) // 2)
    # A trainer's segment waits for the client's receipt, and both may be held up.
    return Weather(rng, seconds=max(0, seconds // 2 if job.is_logged else seconds), depth=depth)


def play_line(text: str) -> GameResult:
    """Play the game of a line to its end. The same line gives the same result in any process.

    Raises `ConfigurationError` for an invalid line.
    """
    return watch_line(text)[1]


def watch_line(text: str) -> tuple[World, GameResult]:
    """Plays a game as `play_line` does, and also returns the world in which it happened."""
    line = GameLine.parse(text, ADVERSARIES)
    gathering = gather(line)
    world, result = watch(gathering.cast, text, line.random("secrets"))
    return world, gathering.told(result)


def play_json(text: str) -> Json:
    """Plays a game as `play_line` does, in a worker process: with one torch thread, since there are other workers."""
    torch.set_num_threads(1)
    return play_line(text).to_json()


def facts(names: Iterable[str] = ADVERSARIES) -> dict[str, dict[str, Any]]:
    """The facts about each of these adversaries, by slug, for the head of a file of results."""
    return {
        name: {
            "name": kind.name,
            "role": kind.role.value,
            "gain": kind.gain,
            "caught": sorted(end.value for end in kind.caught),
        }
        for name, kind in ((name, ADVERSARIES[name]) for name in names)
    }


@cache
def repertoire(places: tuple[str, ...] = CLASSIFIER) -> Repertoire:
    """The adversaries of these workshops, found by letting each one join a cast.

    An adversary that brings its own computation plays alone, because the others know only the workshops' computations.
    """
    found = {name: tuple(w for w in places if _gathered((name,), w)) for name in ADVERSARIES}
    workshops = {name: where for name, where in found.items() if where}
    sociable = [name for name in workshops if not _brings_its_own(name, workshops[name])]
    pairs = [
        pair
        for pair in combinations(sociable, 2)
        if any(_agree(pair, w) for w in places if all(w in workshops[name] for name in pair))
    ]
    seated = frozenset(name for name in workshops if ADVERSARIES[name].seated)
    return Repertoire(workshops=workshops, singles=tuple(workshops), pairs=pairs, seated=seated)


def _gathered(adversaries: tuple[str, ...], workshop: str, game: int = 0) -> Gathering | None:
    """The gathered cast of these adversaries; None if they cannot play together in this workshop."""
    try:
        return gather(GameLine(seed=0, game=game, adversaries=adversaries, workshop=workshop))
    except ConfigurationError:
        return None


def _agree(pair: tuple[str, ...], workshop: str) -> bool:
    """Whether they can play together whatever they draw: some add a cheat or not, which others cannot have."""
    draws = 8 if any(ADVERSARIES[name].role is Role.BUILDER for name in pair) else 1
    return all(_gathered(pair, workshop, game) for game in range(draws))


def _brings_its_own(name: str, workshops: Sequence[str]) -> bool:
    found = [_gathered((name,), workshop) for workshop in workshops]
    return any(one is not None and one.has_own_computation for one in found)


# ---------------------------------------------------------------- for the command line


def deal(seed: int, mix: str, games: int, *, rough: bool = False, workshops: Sequence[str] = CLASSIFIER) -> Series:
    """The games that follow from a seed. Raises `ConfigurationError` if the mix is invalid."""
    places = tuple(workshops)
    players = repertoire(places)
    dealt = Mix.parse(mix, players, rough=rough, workshops=() if places == CLASSIFIER else places)
    head = GamesHeader(seed=seed, mix=str(dealt), environment=dict(describe()), adversaries=facts(players.workshops))
    return Series(head=head, mix=dealt, repertoire=players, games=games, play=play_json, preload=PRELOAD)


def retell(line: str) -> tuple[list[str], tuple[str, ...]]:
    """Plays the game of a line. Returns its events, line by line, and the promises that it broke.

    Raises `ConfigurationError` for an invalid line.
    """
    world, result = watch_line(line)
    return list(tell(world, result)), result.violations
