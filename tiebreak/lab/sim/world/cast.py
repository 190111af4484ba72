"""The cast of a game. By default every party is honest; adversaries replace parties or settings."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tiebreak.lab.sim.world.agents import Agent, AuditorAgent, BlockBuilder, ClientAgent, TrainerAgent
from tiebreak.lab.sim.world.weather import Weather
from tiebreak.lab.sim.world.workshop import Deviation, Workshop
from tiebreak.lab.sim.world.world import BLOCK_SECONDS, STEP_SECONDS, World
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.parties.terms import CONFIRMATIONS, Pace

TrainerFactory = Callable[[World, str, PrivateKey], TrainerAgent]
ClientFactory = Callable[[World, str, PrivateKey], ClientAgent]
BuilderFactory = Callable[[World, str, PrivateKey], BlockBuilder]
AgentFactory = Callable[[World, str, PrivateKey], Agent]

ETHER = 10**18
FUNDS = 1000 * ETHER
"""The wei that each party starts with."""
TERMS = Terms(
    reward=10 * ETHER,
    trainer_stake=40 * ETHER + 1,
    challenger_stake=4 * ETHER,
    challenge_window=3600,
    clock=1800,
    replay_time=600,
    audit_time=150,
    deadline=1_000_000,
    descent_levels=4,
)
"""Short times, and stakes far above what a lie is worth.

The trainer's stake is odd, so that half of it is not a whole number of wei.
"""


@dataclass(kw_only=True)
class CastMember:
    """A place in addition to client, trainer and builder, for an auditor or someone who pretends to be one."""

    name: str
    """Unique within a game."""
    make: AgentFactory = AuditorAgent
    adversary: str | None = None
    """The name of the deviation; None for an honest party."""
    funds: int = FUNDS


@dataclass(kw_only=True)
class Cast:
    workshop: Workshop
    terms: Terms = TERMS
    deviation: Deviation | None = None
    """The deviation that the trainer computes instead of the job; None for honest training."""
    trainer: TrainerFactory = TrainerAgent
    client: ClientFactory = ClientAgent
    auditors: list[CastMember] = field(default_factory=lambda: [CastMember(name="auditor")])
    builder: BuilderFactory = BlockBuilder
    dishonest: dict[str, str] = field(default_factory=dict)
    """Maps each dishonest party to its adversary. No other party may lose anything."""
    expected: dict[str, frozenset[str]] = field(default_factory=dict)
    """Maps each adversary to the endings that it may have. Adversaries that are missing here may end in any way."""
    block_seconds: int = BLOCK_SECONDS
    step_seconds: int = STEP_SECONDS
    confirmations: int = CONFIRMATIONS
    """Blocks on top of a transaction's before its sender counts it as sent for good."""
    weather: Weather | None = None

    @property
    def pace(self) -> Pace:
        return Pace(block_seconds=self.block_seconds, step_seconds=self.step_seconds)

    def deviations(self) -> dict[str, str]:
        """Maps each dishonest party to its adversary, including those in `auditors`."""
        return self.dishonest | {seat.name: seat.adversary for seat in self.auditors if seat.adversary is not None}
