"""One simulated game over the real contract: from a job's offer until everyone has withdrawn its money.

Its result holds numbers, names and endings for JSON, none of which depends on the machine.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import inf
from random import Random
from typing import Any, Final

from tiebreak.lab.sim.world import checks
from tiebreak.lab.sim.world.agents import Agent, AuditorAgent, TrainerAgent
from tiebreak.lab.sim.world.cast import FUNDS, Cast
from tiebreak.lab.sim.world.checks import Finished, ending
from tiebreak.lab.sim.world.simulated import SimulatedChain
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.world import GENESIS, World
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import ORDER, PrivateKey
from tiebreak.protocol.commitments.seats import POOL_SECONDS
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.sides import describe
from tiebreak.protocol.parties.board import JobStatus, PublicGame, PublicJob
from tiebreak.protocol.parties.terms import objections_to_auditing
from tiebreak.protocol.tags import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyResult:
    name: str
    role: str
    adversary: str | None
    """The deviation's name; None for an honest party."""
    gas: int
    fees_wei: int
    wei: int
    """Gain (positive) or loss (negative), gas apart."""
    steps: int
    """Steps that the party would have had to execute without the simulator's caches: training, replays and disputes."""
    messages: int
    """Messages sent outside the chain: heads, and moves as signed messages."""
    bytes: int
    refused: int
    """Transactions that reverted in a block, plus messages that the recipient refused."""


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
    """The number of faults of each kind in rough weather."""

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
    """The world of a game with its parties in place, before anything has happened."""
    funds = {"client": FUNDS, "trainer": FUNDS, "builder": FUNDS} | {seat.name: seat.funds for seat in cast.auditors}
    keys = {name: PrivateKey.from_int(secrets.randrange(1, ORDER)) for name in funds}
    chain = simulated_chain().begin({keys[name].address: wei for name, wei in funds.items()}, GENESIS)
    world = World(
        chain=chain,
        workshop=cast.workshop,
        terms=cast.terms,
        rng=secrets,
        deviation=cast.deviation,
        block_seconds=cast.block_seconds,
        step_seconds=cast.step_seconds,
        confirmations=cast.confirmations,
        weather=cast.weather,
    )
    builder = cast.builder(world, "builder", keys["builder"])
    agents: dict[str, Agent] = {"builder": builder}
    agents["trainer"] = cast.trainer(world, "trainer", keys["trainer"])
    agents["client"] = cast.client(world, "client", keys["client"])
    for place in cast.auditors:
        agents[place.name] = place.make(world, place.name, keys[place.name])
    world.builder = builder
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
        parties=tuple(_party(agent, wei[name], deviations.get(name)) for name, agent in agents.items()),
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
    return frozenset(job.job.id for job in world.board.jobs.values() if _has_false_head(world, job, agents))


def _has_false_head(world: World, job: PublicJob, agents: Mapping[str, Agent]) -> bool:
    end = job.window_end if job.ended is None else min(job.window_end, job.ended)
    shown = [known.head for known in world.mail.heads_of(job.job.id) if known.at <= end]
    valid = [head for head in shown if world.mail.is_valid(head, job.job)]
    if valid and (truth := _truth(world, job.job, agents)) is None:
        return True
    return any(truth is not None and head.head.run_root != truth.run_root(head.head.count) for head in valid)


def _truth(world: World, job: Job, agents: Mapping[str, Agent]) -> Work | None:
    """The true run, which under policy `logged` follows the trainer's logs. None if no run can follow them."""
    trainers = [agent for agent in agents.values() if isinstance(agent, TrainerAgent) and agent.address == job.trainer]
    work = trainers[0].work if trainers else None
    if work is None or not job.is_logged:
        return world.workshop.honest(job)
    try:
        return world.workshop.audited(job, work)
    except CannotCheck:
        return None if work.lie is not None else work


def is_watched(cast: Cast, agents: Mapping[str, Agent]) -> bool:
    """Whether an honest auditor watched: it can pay its stake, can check everything, and has no reason to stay out."""
    parties = {name: agents[name].address for name in ("client", "trainer")}
    job = cast.workshop.job(**parties, nonce=0, terms=cast.terms)
    if objections_to_auditing(job, cast.workshop.program, cast.pace):
        return False
    seats = [seat for seat in cast.auditors if seat.name not in cast.deviations()]
    watching = [agents[seat.name] for seat in seats if seat.funds > cast.terms.challenger_stake]
    return any(isinstance(auditor, AuditorAgent) and not auditor.uncheckable for auditor in watching)


def _party(agent: Agent, wei: int, adversary: str | None) -> PartyResult:
    account = agent.account
    works = agent.works if isinstance(agent, AuditorAgent) else []
    works = [agent.work] if isinstance(agent, TrainerAgent) and agent.work is not None else works
    disputes = sum(getattr(work.oracle, "replayed_steps", 0) for work in works)
    return PartyResult(
        name=agent.name,
        role=agent.ROLE,
        adversary=adversary,
        gas=account.gas,
        fees_wei=account.fees_wei,
        wei=wei,
        steps=account.steps + disputes,
        messages=account.messages,
        bytes=account.bytes,
        refused=account.refused,
    )


def _duel(world: World, challenger: str, game: PublicGame) -> DuelResult:
    state, verdict = game.state, game.state.verdict
    reason, winner = "none", "open"
    summary = None
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
