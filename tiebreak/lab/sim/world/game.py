"""One simulated game over the real contract: its cast, and what happens until everyone has withdrawn its money.

Its result holds numbers, names and endings for JSON, none of which depends on the machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from math import inf
from random import Random
from typing import Any, Final, TypeVar

from tiebreak.lab.sim.world import checks
from tiebreak.lab.sim.world.agents import Agent, AuditorAgent, BlockBuilder, ClientAgent, TrainerAgent
from tiebreak.lab.sim.world.checks import Finished, ending
from tiebreak.lab.sim.world.mail import Account
from tiebreak.lab.sim.world.simulated import SimulatedChain
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.world import GENESIS, GameSetting, World
from tiebreak.protocol.commitments.keys import ORDER, PrivateKey
from tiebreak.protocol.commitments.seats import POOL_SECONDS
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.sides import describe
from tiebreak.protocol.parties.board import JobStatus, PublicGame
from tiebreak.protocol.parties.terms import objections_to_auditing
from tiebreak.protocol.tags import Digest

A = TypeVar("A", bound=Agent)
Factory = Callable[[World, str, PrivateKey], A]
"""Makes an agent of a world, with its name and key."""

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
    """A party besides client, trainer and builder: an auditor, or an adversary that acts as one."""

    name: str
    make: Factory[Agent] = AuditorAgent
    adversary: str | None = None
    """The name of the deviation; None for an honest party."""
    funds: int = FUNDS


@dataclass(kw_only=True)
class Cast(GameSetting):
    """The setting and the parties of a game. By default all are honest; adversaries replace parties or settings."""

    terms: Terms = TERMS
    trainer: Factory[TrainerAgent] = TrainerAgent
    client: Factory[ClientAgent] = ClientAgent
    auditors: list[CastMember] = field(default_factory=lambda: [CastMember(name="auditor")])
    builder: Factory[BlockBuilder] = BlockBuilder
    dishonest: dict[str, str] = field(default_factory=dict)
    """Maps each dishonest party to its adversary. No other party may lose anything."""
    expected: dict[str, frozenset[str]] = field(default_factory=dict)
    """Maps each adversary to the endings that it may have. Adversaries that are missing here may end in any way."""

    def deviations(self) -> dict[str, str]:
        """Maps each dishonest party to its adversary, including those in `auditors`."""
        return self.dishonest | {seat.name: seat.adversary for seat in self.auditors if seat.adversary is not None}


# ---------------------------------------------------------------- results


@dataclass(slots=True, kw_only=True)
class PartyResult(Account):
    name: str
    role: str
    adversary: str | None
    """The deviation's name; None for an honest party."""
    wei: int
    """Gain (positive) or loss (negative), gas apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DuelResult:
    challenger: str
    verdict: str
    """The winner, `trainer` or `challenger`; `void` if the job ended otherwise; `open` if nobody ended the game."""
    reason: str
    level: str
    step: int | None
    leaf: int | None
    instruction: str | None
    rounds: int
    """Number of moves by the challenger."""
    moves: int
    gas: int
    """Gas of both sides, including the challenge and the claim of a timeout."""
    bytes: int
    """Bytes of the signed messages."""
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GameResult:
    """The result of one game: a job from its offer to its end, with all disputes about it."""

    line: str
    """The line that replays the game."""
    adversaries: tuple[str, ...]
    catches: dict[str, str]
    """Maps each adversary to the ending that it had."""
    job_status: str
    """Status of the last job; `none` if no job was created."""
    false_head: bool
    """Whether the trainer signed and showed a head that is not the true run's."""
    watched: bool
    """Whether an honest auditor that can pay its stake was watching."""
    seconds: int
    """Simulated seconds until the last block."""
    parties: tuple[PartyResult, ...]
    duels: tuple[DuelResult, ...]
    blocks: int
    violations: tuple[str, ...]
    """The promises that were broken. Each is a counter-example."""
    faults: dict[str, int]
    """The number of injected faults of each kind."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


_DEPLOYER: Final = 0x7EB7EA
"""The deployer's private key, which no party uses. It fixes the contract addresses."""
_LONGEST: Final = 60
"""A game is stopped after this multiple of its longest term, because nobody will end it any more."""


@cache
def simulated_chain() -> SimulatedChain:
    """The chain from which all games of a process start, with the contracts deployed."""
    return SimulatedChain(PrivateKey.from_int(_DEPLOYER))


def play(cast: Cast, line: str, secrets: Random) -> GameResult:
    """Play a game to its end and check the promises. `line` goes into the result; `secrets` draws keys and choices.

    The same cast and the same `secrets` give the same result in any process.
    """
    return watch(cast, line, secrets)[1]


def watch(cast: Cast, line: str, secrets: Random) -> tuple[World, GameResult]:
    """Plays a game as `play` does, and also returns the world in which it happened."""
    world, agents = seat(cast, secrets)
    for agent in agents.values():
        agent.start()
    terms = cast.terms
    limit = _LONGEST * max(terms.challenge_window, terms.clock, terms.replay_time)
    while world.env.peek() <= limit + 2 * POOL_SECONDS * bool(world.board.pools):  # until auditors may leave them
        world.env.step()
    return world, conclude(cast, line, world, agents, cut_short=world.env.peek() < inf)


def seat(cast: Cast, secrets: Random) -> tuple[World, dict[str, Agent]]:
    """The world of a game and its parties, at the start."""
    funds = {"client": FUNDS, "trainer": FUNDS, "builder": FUNDS} | {seat.name: seat.funds for seat in cast.auditors}
    keys = {name: PrivateKey.from_int(secrets.randrange(1, ORDER)) for name in funds}
    chain = simulated_chain().begin({keys[name].address: wei for name, wei in funds.items()}, GENESIS)
    world = World(chain, cast, secrets)
    makes: dict[str, Factory[Any]] = {"builder": cast.builder, "trainer": cast.trainer, "client": cast.client}
    makes |= {place.name: place.make for place in cast.auditors}
    agents: dict[str, Agent] = {name: make(world, name, keys[name]) for name, make in makes.items()}
    world.builder = agents["builder"]
    world.parties.update(agents)
    return world, agents


# ---------------------------------------------------------------- the end


def conclude(cast: Cast, line: str, world: World, agents: dict[str, Agent], *, cut_short: bool = False) -> GameResult:
    """The result of a game, with the promises checked."""
    funds = {place.name: place.funds for place in cast.auditors}
    wei = {name: gained(world, agent, funds.get(name, FUNDS)) for name, agent in agents.items()}
    deviations, untrue = cast.deviations(), false_jobs(world, agents)
    catches = {adversary: ending(world, agents[name], wei, untrue) for name, adversary in deviations.items()}
    finished = Finished(
        world=world,
        agents=agents,
        wei=wei,
        deviations=deviations,
        expected=cast.expected,
        catches=catches,
        false_jobs=untrue,
        watched=is_watched(cast, agents),
        cut_short=cut_short,
    )
    jobs = list(world.board.jobs.values())
    return GameResult(
        line=line,
        adversaries=tuple(sorted(set(deviations.values()))),
        catches=catches,
        job_status=jobs[-1].status.name.lower() if jobs else JobStatus.NONE.name.lower(),
        false_head=bool(untrue),
        watched=finished.watched,
        seconds=world.blocks[-1].timestamp - GENESIS if world.blocks else 0,
        parties=tuple(
            PartyResult(name=name, role=a.ROLE, adversary=deviations.get(name), wei=wei[name], **asdict(a.account))
            for name, a in agents.items()
        ),
        duels=tuple(_duel(world, finished.name_of(game.challenger), game) for game in finished.games),
        blocks=len(world.blocks),
        violations=checks.violations(finished),
        faults={} if world.weather is None else dict(world.weather.faults),
    )


def gained(world: World, agent: Agent, funds: int) -> int:
    """The party's gain in wei, gas apart. Money that it could withdraw counts."""
    chain = world.chain
    return chain.balance(agent.address) + chain.credit(agent.address) + agent.account.fees_wei - funds


def false_jobs(world: World, agents: Mapping[str, Agent]) -> frozenset[Digest]:
    """The jobs in which the trainer signed a false head that became public while it could be disputed."""
    trainers, found = [agent for agent in agents.values() if isinstance(agent, TrainerAgent)], set()
    for job in world.board.jobs.values():
        end = job.window_end if job.ended is None else min(job.window_end, job.ended)
        shown = [known.head for known in world.mail.heads_of(job.id) if known.at <= end]
        valid = [head for head in shown if world.mail.is_valid(head, job.job)]
        if not valid:
            continue
        # The true run, which under policy `logged` follows the trainer's logs. None if no run can follow them.
        work = next((trainer.work for trainer in trainers if trainer.address == job.job.trainer), None)
        try:
            truth: Work | None = world.workshop.honest(job.job)
            if work is not None and job.job.is_logged:
                truth = world.workshop.audited(job.job, work)
        except CannotCheck:
            truth = None if work is None or work.lie is not None else work
        first = job.job.checkpoint_of(work.lie.step) if work is not None and work.lie is not None else None
        forbidden = job.job.demands_finite_losses and any(first is not None and h.head.count > first for h in valid)
        if truth is None or forbidden or any(h.head.run_root != truth.run_root(h.head.count) for h in valid):
            found.add(job.id)
    return frozenset(found)


def is_watched(cast: Cast, agents: Mapping[str, Agent]) -> bool:
    """Whether an honest auditor watched: it can pay its stake, can check everything, and has no reason to stay out."""
    parties = {name: agents[name].address for name in ("client", "trainer")}
    job = cast.workshop.job(**parties, nonce=0, terms=cast.terms)
    if objections_to_auditing(job, cast.workshop.program, cast.pace):
        return False
    seats = [seat for seat in cast.auditors if seat.name not in cast.deviations()]
    watching = [agents[seat.name] for seat in seats if seat.funds > cast.terms.challenger_stake]
    return any(isinstance(auditor, AuditorAgent) and not auditor.uncheckable for auditor in watching)


def _duel(world: World, challenger: str, game: PublicGame) -> DuelResult:
    state, verdict = game.state, game.state.verdict
    reason, winner, summary = "none", "open", None
    if game.void:
        winner, reason = "void", "job slashed"
    elif verdict is not None:
        winner = "trainer" if verdict.winner is Side.DEFENDER else "challenger"
        reason = verdict.reason.name.lower().replace("_", " ")
        summary = describe(state, world.workshop.program)
    return DuelResult(
        challenger=challenger,
        verdict=winner,
        reason=reason,
        level=state.level.name.lower(),
        step=summary.step if summary else None,
        leaf=summary.leaf if summary else None,
        instruction=summary.instruction if summary else None,
        rounds=sum(move.KIND.name in ("SELECT", "SELECT_ELEMENT", "PROVE") for move in game.moves),
        moves=len(game.moves),
        gas=game.gas,
        bytes=world.mail.game_bytes.get(game.id, 0),
        seconds=(game.ended or world.now) - game.started,
    )
