"""Adversaries: their names, their places among the parties, what they hope to gain, and how they may end.

Every module of this folder ends with a table of its adversaries, whose rows are made here: `computes` makes a trainer
that computes a false run, and there is one kind of row for each place in a cast (`row`). Above a table stands what its
adversaries do: a function that computes a false run, or an agent class that decides otherwise than an honest one. What
an agent has to choose is declared as a field of its class and drawn when the game's cast is gathered: a row gives a
function for each field.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

import torch

from tiebreak.lab.sim.adversaries.tampering import Cheat, long_sums, tampered
from tiebreak.lab.sim.world.agents import Agent, TrainerAgent
from tiebreak.lab.sim.world.game import Cast, CastMember, Factory
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.workshop import Deviation, Workshop
from tiebreak.lab.sim.world.world import World
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.parties.player import GameView
from tiebreak.protocol.parties.terms import turns
from tiebreak.protocol.program.isa import TERMS_PER_LEAF


class Role(StrEnum):
    """The kinds of parties that may be dishonest."""

    CLIENT = "client"
    TRAINER = "trainer"
    CHALLENGER = "challenger"
    AUDITOR = "auditor"
    BUILDER = "builder"
    """The party that orders transactions into blocks."""


class Catch(StrEnum):
    """The ending of a deviation. `tiebreak.lab.sim.games.summary` says what each ending means."""

    RECOMPUTED = "recomputed"
    PADDING = "padding"
    TIMEOUT = "timeout"
    CONCEDED = "conceded"
    EQUIVOCATION = "equivocation"
    INCONSISTENCY = "inconsistency"
    NONFINITE = "nonfinite"
    ABANDONED = "abandoned"
    PARTED = "parted"
    REFUSED = "refused"
    FORFEITED = "forfeited"
    HARMLESS = "harmless"
    UNPAID = "unpaid"
    FORKED = "forked"


Join = Callable[[Cast, Random], None]
"""Changes a cast that a game is about to be played with. All choices come from the `Random`."""


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """One way to deviate from the protocol. It holds no state of a game."""

    name: str
    """Unique in the catalogue, in words: "poisoned label"."""
    role: Role
    gain: str
    """The gain that the adversary hopes for."""
    caught: frozenset[Catch]
    """The endings that the adversary may have; any other is a counter-example."""
    join: Join
    """Replaces or adds its party in a cast."""
    work: Deviation | None = None
    """The wrong numbers that it computes, if it does all else as well as an honest trainer."""
    needs: tuple[str, ...] = ()
    """The only workshops in which `work` is a deviation; none of them stands for all."""
    seated: bool = False
    """Whether it can act as named in a job with seats, where no head is posted."""
    rough: frozenset[Catch] = frozenset()
    """Endings that only injected faults (`--rough`) allow this adversary, besides those that they allow any trainer."""


# ---------------------------------------------------------------- trainers that compute something else

TRAINER: Final = "trainer"
"""The trainer's name in a cast."""
TRIES: Final = 64
RECOMPUTED: Final = frozenset({Catch.RECOMPUTED})


def has_lie(_workshop: Workshop, work: Work) -> bool:
    """Whether something false was committed."""
    return work.lie is not None


def tried(attempt: Deviation, deviates: Callable[[Workshop, Work], bool] = has_lie) -> Deviation:
    """The deviation of one random choice, drawn again as long as nothing committed changes by it."""

    def work(workshop: Workshop, job: Job, rng: Random) -> Work:
        for _ in range(TRIES):
            found = attempt(workshop, job, rng)
            if deviates(workshop, found):
                return found
        raise ConfigurationError(f"expected something committed to change in {TRIES} tries, got nothing")

    return work


def computes(
    name: str,
    attempt: Deviation,
    gain: str,
    caught: Set[Catch] = RECOMPUTED,
    *,
    needs: tuple[str, ...] = (),
    has_deviated: Callable[[Workshop, Work], bool] = has_lie,
) -> Adversary:
    """A row of a table: a trainer that computes this. `has_deviated`: whether a run differs from the honest one."""
    work = tried(attempt, has_deviated)

    def join(cast: Cast, _rng: Random) -> None:  # its choices are made when it computes
        if needs and cast.workshop.name not in needs:
            cast.workshop = Workshop.open(needs[0])
        cast.deviation = work
        cast.dishonest[TRAINER] = name

    return Adversary(
        name=name,
        role=Role.TRAINER,
        gain=gain,
        caught=frozenset(caught),
        join=join,
        work=work,
        needs=needs,
        seated=True,
    )


def step_of(job: Job, rng: Random, first: int = 1) -> int:
    """A random step of the job, from `first` on."""
    return rng.randint(first, job.steps)


def onward(job: Job, first: int) -> range:
    """The steps of the job from `first` on."""
    return range(first, job.steps + 1)


def once_or_onward(job: Job, first: int, rng: Random) -> range:
    """Step `first` alone, or all from it on."""
    return rng.choice((range(first, first + 1), onward(job, first)))


CLIENT: Final = "client"
BUILDER: Final = "builder"
"""The names of these parties in a cast."""
EARLY: Final = 6
"""A deviation in a game may begin at one of the first `EARLY` moves. Every walk to a partial sum is longer."""

Choice = Callable[[Cast, Random], Any]
"""Draws the value of an agent's field."""
A = TypeVar("A", bound=Agent)


# ---------------------------------------------------------------- what agents choose


def between(least: int, most: int) -> Choice:
    """A random number from `least` to `most`."""
    return lambda _, rng: rng.randint(least, most)


def one_of(*values: object) -> Choice:
    """A random one of these values."""
    return lambda _, rng: rng.choice(values)


def given(make: Factory[A], **fields: object) -> Factory[A]:
    """Makes the same agents with these values of their fields."""

    def factory(world: World, name: str, key: PrivateKey) -> A:
        agent = make(world, name, key)
        for field, value in fields.items():
            setattr(agent, field, value)
        return agent

    return factory if fields else make


# ---------------------------------------------------------------- a false run, if the run is not what it is about


def false_sum(*, in_last_segment: bool = False, stepwise: bool = False) -> Deviation:
    """Doubles one element of a sum of products. The walk to it passes every kind of tree, down to partial sums.

    in_last_segment: all heads but the last are true. stepwise: the step is in a segment of several steps, so that the
    walk passes all phases.
    """

    def attempt(workshop: Workshop, job: Job, rng: Random) -> Work:
        program = workshop.program
        first = job.first_step(job.checkpoints - 1) if in_last_segment else 1
        long = [job.last_step(k) for k in range(job.checkpoints) if job.segment_steps(k) > 1]
        index = rng.choice(long_sums(program, TERMS_PER_LEAF + 1))
        step = rng.randint(first, max(long) if stepwise else job.steps)
        element = rng.randrange(program.body[index].numel)
        # Twice the number has the same precision. Zero and non-finite numbers, which doubling keeps, become 1.
        change = lambda x: torch.where((x == 0) | ~torch.isfinite(x), 1.0, x * 2)  # noqa: E731
        return tampered(workshop, job, Cheat(step=step, leaf=index, element=element, change=change))

    return tried(attempt)


# ---------------------------------------------------------------- places

Seating = Callable[[Cast, Random, str, Any], None]
"""Gives a party of this name, which a factory makes, its place in a cast."""


def row(
    role: Role,
    seat: Seating,
    name: str,
    make: type[Agent],
    gain: str,
    caught: Set[Catch] = RECOMPUTED,
    *,
    before: Join | None = None,
    run: Deviation | None = None,
    seated: bool = False,
    rough: Set[Catch] = frozenset(),
    **choices: Choice,
) -> Adversary:
    """A row of a table; the constructors of each place are below.

    before: changes the cast before the adversary takes its place. run: what the trainer computes instead of the job,
    if not what the cast says already. choices: draws the agents' fields, in this order, which decides which game a seed
    gives.
    """

    def join(cast: Cast, rng: Random) -> None:
        if before is not None:
            before(cast, rng)
        if run is not None:
            cast.deviation = run
        fields = {field: draw(cast, rng) for field, draw in choices.items()}
        seat(cast, rng, name, given(make, **fields))

    ends, unlucky = frozenset(caught), frozenset(rough)
    return Adversary(name=name, role=role, gain=gain, caught=ends, join=join, seated=seated, rough=unlucky)


def _seat_as(party: str) -> Seating:
    """Replaces a party, last of the dishonest, so that a trainer's ending counts for friends of the same name."""

    def seat(cast: Cast, _rng: Random, name: str, make: Factory[Agent]) -> None:
        setattr(cast, party, make)
        cast.dishonest.pop(party, None)
        cast.dishonest[party] = name

    return seat


seat_trainer, seat_client, seat_builder = _seat_as(TRAINER), _seat_as(CLIENT), _seat_as(BUILDER)


def seat_challenger(cast: Cast, _rng: Random, name: str, make: Factory[Agent]) -> None:
    """Seat a challenger after the auditors that there are."""
    cast.auditors.append(CastMember(name=f"challenger {len(cast.auditors)}", make=make, adversary=name))


def seat_friend(cast: Cast, name: str, friend: str, make: Factory[Agent], place: int = 0) -> None:
    """Seat an accomplice of another dishonest party, under its name, among the auditors."""
    party = f"{friend} {len(cast.auditors)}"
    cast.auditors.insert(place, CastMember(name=party, make=make))
    cast.dishonest[party] = name


trainer: Final = partial(row, Role.TRAINER, seat_trainer)
client: Final = partial(row, Role.CLIENT, seat_client)
challenger: Final = partial(row, Role.CHALLENGER, seat_challenger)
"""A challenger in addition to the honest auditor. The run is true unless another adversary is the trainer."""

ONE_FALSE_SUM: Final = trainer("one false sum", TrainerAgent, "a number of its own choice in the run", run=false_sum())
"""One false number, and everything else as agreed. Other adversaries use it as a cheat to be found."""


def is_trainer_honest(cast: Cast) -> bool:
    """Whether the trainer is honest."""
    return cast.deviation is None and TRAINER not in cast.dishonest


def with_a_cheat(cast: Cast, rng: Random) -> None:
    """Add a cheating trainer, unless the trainer is dishonest already."""
    if is_trainer_honest(cast):
        ONE_FALSE_SUM.join(cast, rng)


def trainer_of(world: World) -> TrainerAgent:
    """The agent that trains in this world; every cast has exactly one."""
    trainer = world.parties[TRAINER]
    assert isinstance(trainer, TrainerAgent), "the cast has one"
    return trainer


builder: Final = partial(row, Role.BUILDER, seat_builder, before=with_a_cheat)
"""A builder of blocks, with something to dispute about."""

# ---------------------------------------------------------------- the last block in time, and the first that is late


def last_call(world: World, deadline: int) -> int:
    """Seconds until the second before the last block that is not after `deadline`; 0 if that is past."""
    since_a_block = (deadline - world.next_block) % world.block_seconds
    return max(0, deadline - since_a_block - 1 - world.now)


def first_late(world: World, deadline: int) -> int:
    """Seconds until the second before the first block that is after `deadline`."""
    return last_call(world, deadline + world.block_seconds)


def stalled(world: World, game: GameView) -> int:
    """The longest delay of a move, in seconds, that leaves a block of the clock for each of its later moves."""
    rest = 2 * turns(game.state.job, world.workshop.program) - game.state.moves
    return last_call(world, game.state.deadline - max(0, rest // 2) * world.block_seconds)


ADVERSARIES: Final = (ONE_FALSE_SUM,)
