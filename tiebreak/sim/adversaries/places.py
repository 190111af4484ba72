"""Where adversaries sit among the parties: the rows of the tables, one kind for each place in a cast.

An agent class says what is done. What an agent has to choose is declared as a field of its class and drawn when the
game's cast is gathered: a row gives a function for each field.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import TERMS_PER_LEAF
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.cheats import Cheat, long_sums
from tiebreak.sim.adversaries.deviations import RECOMPUTED, TRAINER, TRIES
from tiebreak.sim.adversaries.forgery import tampered
from tiebreak.sim.world.agents import Agent, Builder, Client, Trainer
from tiebreak.sim.world.cast import AgentFactory, Cast, Seat, TrainerFactory
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


@dataclass(frozen=True, kw_only=True)
class Placed(Adversary):
    """An adversary that joins a cast by a function."""

    takes_place: Join

    def join(self, cast: Cast, rng: Random) -> None:
        """Take the place."""
        self.takes_place(cast, rng)


# ---------------------------------------------------------------- what agents choose


def between(least: int, most: int) -> Choice:
    """A random number from `least` to `most`."""
    return lambda _, rng: rng.randint(least, most)


def one_of(*values: object) -> Choice:
    """A random one of these values."""
    return lambda _, rng: rng.choice(values)


def given(make: type[A], **fields: object) -> Callable[[World, str, PrivateKey], A]:
    """Makes agents of a class whose fields have these values."""

    def factory(world: World, name: str, key: PrivateKey) -> A:
        agent = make(world, name, key)
        for field, value in fields.items():
            setattr(agent, field, value)
        return agent

    return factory if fields else make


def drawn(make: type[A], cast: Cast, rng: Random, choices: dict[str, Choice]) -> Callable[[World, str, PrivateKey], A]:
    """Makes agents of a class whose fields were drawn in this order."""
    return given(make, **{field: draw(cast, rng) for field, draw in choices.items()})


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


def nothing(_cast: Cast, _rng: Random) -> None:
    """Changes nothing."""


def seat_trainer(cast: Cast, name: str, make: TrainerFactory, run: Deviation | None = None) -> None:
    """Seat a dishonest trainer, last of the dishonest, so that its ending counts for friends of the same name.

    `run` is what it computes instead of the job.
    """
    cast.trainer = make
    if run is not None:
        cast.deviation = run
    cast.dishonest.pop(TRAINER, None)
    cast.dishonest[TRAINER] = name


def trainer(
    name: str,
    make: type[Trainer],
    gain: str,
    caught: Set[Catch] = RECOMPUTED,
    *,
    run: Deviation | None = None,
    before: Join = nothing,
    **choices: Choice,
) -> Adversary:
    """A row: a trainer. `before` changes the cast first."""

    def join(cast: Cast, rng: Random) -> None:
        before(cast, rng)
        seat_trainer(cast, name, drawn(make, cast, rng, choices), run)

    return Placed(name=name, role=Role.TRAINER, gain=gain, caught=frozenset(caught), takes_place=join)


ONE_FALSE_SUM: Final = trainer("one false sum", Trainer, "a number of its own choice in the run", run=FalseSum())
"""One false number, and everything else as agreed. Other adversaries use it as a cheat to be found."""


def is_trainer_honest(cast: Cast) -> bool:
    """Whether no adversary has taken the trainer's place."""
    return cast.deviation is None and TRAINER not in cast.dishonest


def with_a_cheat(cast: Cast, rng: Random) -> None:
    """Add a cheating trainer, unless the trainer is dishonest already."""
    if is_trainer_honest(cast):
        ONE_FALSE_SUM.join(cast, rng)


def client(
    name: str, make: type[Client], gain: str, caught: Set[Catch], *, before: Join = nothing, **choices: Choice
) -> Adversary:
    """A row: a client. `before` changes the cast first."""

    def join(cast: Cast, rng: Random) -> None:
        before(cast, rng)
        cast.client = drawn(make, cast, rng, choices)
        cast.dishonest[CLIENT] = name

    return Placed(name=name, role=Role.CLIENT, gain=gain, caught=frozenset(caught), takes_place=join)


def builder(
    name: str, make: type[Builder], gain: str, caught: Set[Catch], *, before: Join = with_a_cheat, **choices: Choice
) -> Adversary:
    """A row: a block builder. `before` adds something to dispute about."""

    def join(cast: Cast, rng: Random) -> None:
        before(cast, rng)
        cast.builder = drawn(make, cast, rng, choices)
        cast.dishonest[BUILDER] = name

    return Placed(name=name, role=Role.BUILDER, gain=gain, caught=frozenset(caught), takes_place=join)


def challenger(
    name: str, make: type[Agent], gain: str, caught: Set[Catch], *, before: Join = nothing, **choices: Choice
) -> Adversary:
    """A row: a challenger beside the honest auditor. The run is true unless another adversary is the trainer."""

    def join(cast: Cast, rng: Random) -> None:
        before(cast, rng)
        seat_challenger(cast, name, drawn(make, cast, rng, choices))

    return Placed(name=name, role=Role.CHALLENGER, gain=gain, caught=frozenset(caught), takes_place=join)


def seat_challenger(cast: Cast, name: str, make: AgentFactory) -> None:
    """Seat a challenger after the auditors that there are."""
    cast.auditors.append(Seat(name=f"challenger {len(cast.auditors)}", make=make, adversary=name))


def seat_friend(cast: Cast, name: str, friend: str, make: AgentFactory, place: int = 0) -> str:
    """Seat an accomplice of another dishonest party, under its name, among the auditors. Returns the party's name."""
    party = f"{friend} {len(cast.auditors)}"
    cast.auditors.insert(place, Seat(name=party, make=make))
    cast.dishonest[party] = name
    return party


ADVERSARIES: Final = (ONE_FALSE_SUM,)
