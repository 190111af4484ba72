"""Where adversaries sit among the parties: the rows of the tables, one kind for each place in a cast.

An agent class says what is done. What an agent has to choose is declared as a field of its class and drawn when the
game's cast is gathered: a row gives a function for each field.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import chunk_count
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.game.rules import walk_moves
from tiebreak.protocol.program.isa import TERMS_PER_LEAF
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.trees import depth_of
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.cheats import Cheat, long_sums
from tiebreak.sim.adversaries.deviations import RECOMPUTED, TRAINER, TRIES
from tiebreak.sim.adversaries.forgery import tampered
from tiebreak.sim.world.agents import Agent, GameView, Trainer
from tiebreak.sim.world.cast import AgentFactory, BuilderFactory, Cast, ClientFactory, Seat, TrainerFactory
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Deviation, Workshop
from tiebreak.sim.world.world import World

CLIENT: Final = "client"
BUILDER: Final = "builder"
"""The names of these parties in a cast."""
EARLY: Final = 6
"""A deviation in a game may begin at one of the first `EARLY` moves. Every walk to a partial sum is longer."""

Join = Callable[[Cast, Random], None]
"""Changes a cast that a game is about to be played with."""
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


def given(make: Callable[[World, str, PrivateKey], A], **fields: object) -> Callable[[World, str, PrivateKey], A]:
    """Makes the same agents with these values of their fields."""

    def factory(world: World, name: str, key: PrivateKey) -> A:
        agent = make(world, name, key)
        for field, value in fields.items():
            setattr(agent, field, value)
        return agent

    return factory if fields else make


# ---------------------------------------------------------------- a false run, if the run is not what it is about


def _twice(value: Tensor) -> Tensor:
    """Twice the number, which has the same precision. Zero and non-finite numbers, which doubling keeps, become 1."""
    return torch.where((value == 0) | ~torch.isfinite(value), 1.0, value * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseSum:
    """Doubles one element of a sum of products. The walk to it passes every kind of tree, down to partial sums."""

    in_last_segment: bool = False
    """Whether all heads but the last are true."""
    stepwise: bool = False
    """Whether the step is in a segment of several steps, so that the walk passes all phases."""

    def work(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """The false run. A change that reaches no commitment is drawn again."""
        program = workshop.program
        first = job.first_step(job.checkpoints - 1) if self.in_last_segment else 1
        long = [job.last_step(k) for k in range(job.checkpoints) if job.segment_steps(k) > 1]
        for _ in range(TRIES):
            leaf = rng.choice(long_sums(program, TERMS_PER_LEAF + 1))
            step = rng.randint(first, max(long) if self.stepwise else job.steps)
            element = rng.randrange(program.body[leaf].numel)
            work = tampered(workshop, job, Cheat(step=step, leaf=leaf, element=element, change=_twice))
            if work.lie is not None:
                return work
        raise ConfigurationError(f"expected a false sum to reach a record in {TRIES} tries, got none")


# ---------------------------------------------------------------- places

Seating = Callable[[Cast, Random, str, Any], None]
"""Gives a party of this name, which a factory makes, its place in a cast."""


def nothing(_cast: Cast, _rng: Random) -> None:
    """Leaves the cast as it is; the default of `row`."""


@dataclass(frozen=True, kw_only=True)
class Placed(Adversary):
    """A row: an agent class in a place, with the choices that its agents have."""

    make: type[Agent]
    seat: Seating
    before: Join
    """Changes the cast before the adversary takes its place."""
    run: Deviation | None
    """What the trainer computes instead of the job; None to leave that as it is."""
    choices: Mapping[str, Choice]
    """Draws the agents' fields, in this order."""

    def join(self, cast: Cast, rng: Random) -> None:
        """Changes the cast and draws the fields, in an order that decides which game a seed gives."""
        self.before(cast, rng)
        if self.run is not None:
            cast.deviation = self.run
        fields = {field: draw(cast, rng) for field, draw in self.choices.items()}
        self.seat(cast, rng, self.name, given(self.make, **fields))


def row(
    role: Role,
    seat: Seating,
    name: str,
    make: type[Agent],
    gain: str,
    caught: Set[Catch] = RECOMPUTED,
    *,
    before: Join = nothing,
    run: Deviation | None = None,
    **choices: Choice,
) -> Placed:
    """A row of a table; the constructors of each place are below."""
    ends = frozenset(caught)
    return Placed(
        name=name, role=role, gain=gain, caught=ends, make=make, seat=seat, before=before, run=run, choices=choices
    )


def seat_trainer(cast: Cast, _rng: Random, name: str, make: TrainerFactory) -> None:
    """Seat a dishonest trainer, last of the dishonest, so that its ending counts for friends of the same name."""
    cast.trainer = make
    cast.dishonest.pop(TRAINER, None)
    cast.dishonest[TRAINER] = name


def seat_client(cast: Cast, _rng: Random, name: str, make: ClientFactory) -> None:
    cast.client = make
    cast.dishonest[CLIENT] = name


def seat_builder(cast: Cast, _rng: Random, name: str, make: BuilderFactory) -> None:
    cast.builder = make
    cast.dishonest[BUILDER] = name


def seat_challenger(cast: Cast, _rng: Random, name: str, make: AgentFactory) -> None:
    """Seat a challenger after the auditors that there are."""
    cast.auditors.append(Seat(name=f"challenger {len(cast.auditors)}", make=make, adversary=name))


def seat_friend(cast: Cast, name: str, friend: str, make: AgentFactory, place: int = 0) -> None:
    """Seat an accomplice of another dishonest party, under its name, among the auditors."""
    party = f"{friend} {len(cast.auditors)}"
    cast.auditors.insert(place, Seat(name=party, make=make))
    cast.dishonest[party] = name


trainer: Final = partial(row, Role.TRAINER, seat_trainer)
client: Final = partial(row, Role.CLIENT, seat_client)
challenger: Final = partial(row, Role.CHALLENGER, seat_challenger)
"""A challenger beside the honest auditor. The run is true unless another adversary is the trainer."""

ONE_FALSE_SUM: Final = trainer("one false sum", Trainer, "a number of its own choice in the run", run=FalseSum())
"""One false number, and everything else as agreed. Other adversaries use it as a cheat to be found."""


def is_trainer_honest(cast: Cast) -> bool:
    """Whether no adversary has taken the trainer's place."""
    return cast.deviation is None and TRAINER not in cast.dishonest


def with_a_cheat(cast: Cast, rng: Random) -> None:
    """Add a cheating trainer, unless the trainer is dishonest already."""
    if is_trainer_honest(cast):
        ONE_FALSE_SUM.join(cast, rng)


builder: Final = partial(row, Role.BUILDER, seat_builder, before=with_a_cheat)
"""A builder of blocks, with something to dispute about."""

# ---------------------------------------------------------------- the last block in time, and the first that is late


def last_call(world: World, deadline: int) -> int:
    """Seconds until the second before the last block that is not after `deadline`; 0 if that is past."""
    since_a_block = (deadline - world.next_block) % world.block_seconds
    return max(0, deadline - since_a_block - 1 - world.now)


def first_late(world: World, deadline: int) -> int:
    """Seconds until the second before the first block that is after `deadline`."""
    since_a_block = (deadline - world.next_block) % world.block_seconds
    return max(0, deadline - since_a_block + world.block_seconds - 1 - world.now)


def stalled(world: World, game: GameView) -> int:
    """The longest delay of a move, in seconds, that leaves a block of the clock for each of its later moves."""
    rest = longest_walk(game.state.job, world.workshop.program) - game.state.moves
    return last_call(world, game.state.deadline - max(0, (rest + 1) // 2) * world.block_seconds)


def longest_walk(job: Job, program: Program) -> int:
    """The largest number of moves of a game about a run of this program."""
    return walk_moves(
        job.descent_levels,
        run=job.run_depth,
        steps=depth_of(job.checkpoint_interval),
        values=job.half_depth + 1,
        chunks=depth_of(max(chunk_count(i.dtype, i.shape) for i in program.body)),
        terms=depth_of(max(-(-i.terms // TERMS_PER_LEAF) for i in program.body if i.is_reduction)),
    )


ADVERSARIES: Final = (ONE_FALSE_SUM,)
