"""Who will play a game. By default all do as agreed; adversaries take places in it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tiebreak.engine.run.agreement import Terms
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.sim.world.agents import Agent, Auditor, Builder, Client, Trainer
from tiebreak.sim.world.workshop import Deviation, Workshop
from tiebreak.sim.world.world import BLOCK_SECONDS, STEP_SECONDS, World

TrainerFactory = Callable[[World, str, PrivateKey], Trainer]
ClientFactory = Callable[[World, str, PrivateKey], Client]
BuilderFactory = Callable[[World, str, PrivateKey], Builder]
AgentFactory = Callable[[World, str, PrivateKey], Agent]

ETHER = 10**18
FUNDS = 1000 * ETHER
"""Wei that each party starts with."""
TERMS = Terms(
    reward=10 * ETHER,
    trainer_stake=40 * ETHER + 1,
    challenger_stake=4 * ETHER,
    challenge_window=3600,
    clock=1800,
    replay_time=600,
    descent_levels=4,
)
"""Short times, stakes far above what a lie is worth; half of an odd stake is not half of it."""


@dataclass(kw_only=True)
class Seat:
    """A place beside client, trainer and builder: an auditor, or someone who pretends to be one."""

    name: str
    """Unique in a game."""
    make: AgentFactory = Auditor
    adversary: str | None = None
    """Its deviation's name; None for one that does as agreed."""
    funds: int = FUNDS


@dataclass(kw_only=True)
class Cast:
    """Who will play a game, and on what terms."""

    workshop: Workshop
    terms: Terms = TERMS
    deviation: Deviation | None = None
    """What the trainer computes instead of the job."""
    trainer: TrainerFactory = Trainer
    client: ClientFactory = Client
    auditors: list[Seat] = field(default_factory=lambda: [Seat(name="auditor")])
    builder: BuilderFactory = Builder
    dishonest: dict[str, str] = field(default_factory=dict)
    """Party -> adversary: who does not do as agreed. All others must not lose anything."""
    expected: dict[str, frozenset[str]] = field(default_factory=dict)
    """Adversary -> where it has to end; of one that is not named here nothing is expected."""
    block_seconds: int = BLOCK_SECONDS
    step_seconds: int = STEP_SECONDS

    def deviations(self) -> dict[str, str]:
        """Party -> adversary, the seats' own included."""
        return self.dishonest | {seat.name: seat.adversary for seat in self.auditors if seat.adversary is not None}
