"""Scenarios that start from an honest run: a cheating trainer that is challenged, and an unfounded challenge."""

from dataclasses import dataclass
from pathlib import Path

from tiebreak.engine.run.audit import compare
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.job import Job, SignedHead, SignedJob
from tiebreak.protocol.errors import StateError
from tiebreak.sim.adversaries.cheats import Cheat
from tiebreak.sim.adversaries.forgery import ForgedEvidence
from tiebreak.sim.adversaries.observers import Tampered
from tiebreak.sim.games.duel import ChainMatch, game_of, play, replay_on_chain, signed_messages
from tiebreak.sim.games.local_chain import Market
from tiebreak.sim.world.forking import fork


@dataclass(frozen=True, slots=True)
class Arena:
    """What disputes about one computation share: the market, the honest run, the auditor's replay, an interpreter."""

    market: Market
    run: RunDirectory
    replay: RunDirectory
    interpreter: Interpreter
    folder: Path


@dataclass(frozen=True, slots=True)
class Fought:
    """A finished dispute, with the evidence of the side that told the truth."""

    match: ChainMatch
    truth: Evidence
    replayed_steps: int
    """Steps that the challenger executed again for the dispute."""


def fight(arena: Arena, cheat: Cheat, job: Job, name: str) -> Fought:
    """A trainer takes `job` (the honest run's, under another id) and cheats once; then its last head is challenged.

    Both sides reuse what is already computed: the cheat is honest up to the checkpoint before its lie, and the auditor
    has replayed the same computation. Raises `StateError` if the cheat changed nothing that is committed.
    """
    market = arena.market
    agreement = market.sign(job)
    market.open(agreement)
    before = job.first_step(job.checkpoint_of(cheat.step)) - 1
    cheating = fork(arena.run, arena.folder / f"cheat-{name}", agreement, upto=before)
    Worker(cheating, Tampered(arena.interpreter, cheat.tamper), key=market.parties.trainer).work()
    head = cheating.heads()[-1]
    market.post(head)
    own = fork(arena.replay, arena.folder / f"audit-{name}", agreement, upto=job.steps)
    if compare(own, head).agrees:
        raise StateError(f"{cheat.name}: expected a run that differs from the honest one, got the same root")
    defender = ForgedEvidence(cheating, arena.interpreter, cheat)
    challenger = Evidence(own, arena.interpreter)
    match = play_out(market, agreement, head, defender, challenger)
    return Fought(match, challenger, challenger.replayed_steps)


def challenge_falsely(arena: Arena, mistake: Cheat, name: str, *, nonce: int = 0) -> Fought:
    """A challenger whose replay contains a mistake attacks the honest trainer's last head.

    Games of one challenger against one head need different nonces.
    """
    job = arena.run.job
    before = job.first_step(job.checkpoint_of(mistake.step)) - 1
    wrong = fork(arena.run, arena.folder / f"wrong-{name}", arena.run.agreement, upto=before)
    machine = Tampered(arena.interpreter, mistake.tamper)
    Worker(wrong, machine).work()
    defender = Evidence(arena.run, arena.interpreter)
    challenger = Evidence(wrong, machine)
    match = play_out(arena.market, arena.run.agreement, arena.run.heads()[-1], defender, challenger, nonce)
    return Fought(match, defender, challenger.replayed_steps)


def play_out(
    market: Market, agreement: SignedJob, head: SignedHead, defender: Evidence, challenger: Evidence, nonce: int = 0
) -> ChainMatch:
    """Plays the whole game, first as signed messages and then on the chain. The job must be on the board."""
    courier, identity = signed_messages(market, agreement, head, nonce), game_of(market, agreement, head, nonce)
    match = play(agreement, head, defender, challenger, courier, identity=identity)
    return replay_on_chain(market, agreement, head, match, nonce=nonce)
