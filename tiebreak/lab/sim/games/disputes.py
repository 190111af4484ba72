"""Disputes between run directories, on a chain of their own: the market, the game, and who cheats.

A game is first played as signed messages and then move by move on the chain. `fight` has a cheating trainer challenged,
`challenge_falsely` has an honest one challenged without cause.
"""

import secrets
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from tiebreak.engine.capture.captured import Captured, Terms, draft_job, sign_job
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.segments import compare
from tiebreak.engine.run.train import Worker
from tiebreak.lab.sim.adversaries.tampering import Cheat, ForgedEvidence, Tampered
from tiebreak.protocol.chain import Call, EmbeddedChain, GameRecord, Outcome
from tiebreak.protocol.commitments.job import Job, SignedHead, SignedJob, game_id
from tiebreak.protocol.commitments.keys import RANDOM_BYTES, PrivateKey
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.game import match, rules
from tiebreak.protocol.game.match import Courier, Match, by_hand, by_rules
from tiebreak.protocol.game.messages import Transcript
from tiebreak.protocol.game.moves import Move, Prove, Side
from tiebreak.protocol.game.sides import Challenger, Defender, Oracle
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.tags import Digest

ETHER = 10**18
FUNDS = 1000 * ETHER


@dataclass(frozen=True, slots=True)
class Parties:
    client: PrivateKey
    trainer: PrivateKey
    challenger: PrivateKey


class DisputeMarket:
    """A job board and a referee, deployed on a chain of their own, with the accounts of the parties."""

    def __init__(self) -> None:
        keys = [PrivateKey.generate(secrets.token_bytes(RANDOM_BYTES)) for _ in range(3)]
        self.parties, self.chain = Parties(*keys), EmbeddedChain()
        for key in keys:
            self.chain.fund(key.address, FUNDS)
        self.chain.deploy(self.parties.client)

    def draft(self, captured: Captured, *, steps: int, checkpoint_interval: int, terms: Terms | None = None) -> Job:
        """A job between the market's client and trainer, on the usual terms unless others are given."""
        client, trainer = self.parties.client.address, self.parties.trainer.address
        return draft_job(captured, steps=steps, checkpoint_interval=checkpoint_interval, client=client, trainer=trainer,
                         terms=Terms() if terms is None else terms)  # fmt: skip

    def sign(self, job: Job) -> SignedJob:
        """The job with both signatures, valid for this market's board."""
        return sign_job(job, self.chain.domain, client=self.parties.client, trainer=self.parties.trainer)

    def open(self, agreement: SignedJob) -> int:
        """Puts a job on the board: the client pays the reward, the trainer its stake. Returns the gas used."""
        job = agreement.job
        offer = tx.CreateJob(job=job, signature=agreement.trainer_signature)
        offered = self.chain.send(self.parties.client, Call.of(offer))
        accepted = self.chain.send(self.parties.trainer, Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake))
        return offered.gas_used + accepted.gas_used

    def post(self, head: SignedHead) -> int:
        """Posts a signed head. Returns the gas used."""
        return self.chain.send(self.parties.trainer, Call.of(tx.PostHead(head=head))).gas_used


def another(job: Job) -> Job:
    """The same job under another id. The computation is the same, and so is its true run."""
    return replace(job, nonce=secrets.randbits(128))


# ---------------------------------------------------------------- one game


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainVerdict:
    """The decision of the contract, and each party's gain or loss in wei (gas not counted)."""

    record: GameRecord
    start_gas: int
    trainer_gain: int
    challenger_gain: int

    @property
    def loser(self) -> Side:
        return Side.DEFENDER if self.record.verdict is Outcome.DEFENDER_LOST else Side.CHALLENGER


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainMatch(Match):
    """A match that was also played on the chain."""

    chain: ChainVerdict


def game_of(market: DisputeMarket, agreement: SignedJob, head: SignedHead, nonce: int = 0) -> Digest:
    """The id of the game that the market's challenger starts against a head."""
    return game_id(head.head, agreement.domain, market.parties.challenger.address, nonce)


def signed_messages(market: DisputeMarket, agreement: SignedJob, head: SignedHead, nonce: int = 0) -> Courier:
    """Carries moves as messages signed by the market's trainer and challenger."""
    keys = market.parties
    start = rules.start(agreement.job, head.head, game_of(market, agreement, head, nonce), 0)
    transcript = Transcript(start, domain=agreement.domain, challenger=keys.challenger.address)

    def carry(side: Side, move: Move) -> tuple[Move, int]:
        wire = transcript.sign(move, keys.trainer if side is Side.DEFENDER else keys.challenger)
        return transcript.append(wire), len(wire)

    return carry


def play(
    agreement: SignedJob,
    head: SignedHead,
    defender: Oracle,
    challenger: Oracle,
    courier: Courier = by_hand,
    *,
    identity: Digest | None = None,
    secret: bytes | None = None,
) -> Match:
    """Plays a game to its end, refereed in Python. A second passes with every move.

    identity: the game's id, if the game is played elsewhere too, since the challenger's seals are bound to it. The
    default is the id for a challenger with the zero address. secret: derives the challenger's seals; a new one by
    default.
    """
    head.verify(agreement.job, agreement.domain)
    identity = game_id(head.head, agreement.domain, bytes(20), 0) if identity is None else identity
    return match.play(
        rules.start(agreement.job, head.head, identity, 0),
        defender=Defender(defender),
        challenger=Challenger(challenger, secrets.token_bytes(32) if secret is None else secret),
        judge=by_rules(count(1).__next__),
        courier=courier,
    )


def replay_on_chain(
    market: DisputeMarket, agreement: SignedJob, head: SignedHead, played: Match, *, nonce: int = 0
) -> ChainMatch:
    """Plays the same moves as transactions, with the contract's own step check deciding.

    The job must be on the board.
    """
    chain, keys = market.chain, market.parties
    # Gas is paid from the balances, and counted separately.
    before = chain.credit(keys.trainer.address), chain.credit(keys.challenger.address)
    stake = agreement.job.challenger_stake
    identity, started = chain.challenge(keys.challenger, head, nonce)
    if identity != played.final.game_id:
        raise StateError(f"expected a match of game {identity.hex()}, got one of {played.final.game_id.hex()}")
    signers = {Side.DEFENDER: keys.trainer, Side.CHALLENGER: keys.challenger}
    moves = []
    for item in played.moves:
        if isinstance(item.move, Prove):
            chain.pass_until(chain.game_state(identity).last + agreement.job.clock)
        receipt = chain.play(signers[item.by], item.before, item.move)
        moves.append(replace(item, gas=receipt.gas_used))
    record = chain.game_state(identity)
    if record.verdict is Outcome.NONE:
        raise StateError("expected the contract to reach a verdict with the last move, got a game that goes on")
    slashed = agreement.job.trainer_stake if record.verdict is Outcome.DEFENDER_LOST else 0
    verdict = ChainVerdict(
        record=record,
        start_gas=started.gas_used,
        trainer_gain=chain.credit(keys.trainer.address) - before[0] - slashed,
        challenger_gain=chain.credit(keys.challenger.address) - before[1] - stake,
    )
    return ChainMatch(moves=tuple(moves), chain=verdict)


def play_out(
    market: DisputeMarket,
    agreement: SignedJob,
    head: SignedHead,
    defender: Evidence,
    challenger: Evidence,
    nonce: int = 0,
) -> ChainMatch:
    """Plays the whole game, first as signed messages and then on the chain. The job must be on the board."""
    courier, identity = signed_messages(market, agreement, head, nonce), game_of(market, agreement, head, nonce)
    match = play(agreement, head, defender, challenger, courier, identity=identity)
    return replay_on_chain(market, agreement, head, match, nonce=nonce)


# ---------------------------------------------------------------- one dispute


@dataclass(frozen=True, slots=True)
class Arena:
    """The things that disputes about one computation share: market, honest run, auditor's replay, interpreter."""

    market: DisputeMarket
    run: RunDirectory
    replay: RunDirectory
    interpreter: Interpreter
    folder: Path


@dataclass(frozen=True, slots=True)
class Fought:
    """A finished dispute, with the honest side's evidence."""

    match: ChainMatch
    truth: Evidence
    replayed_steps: int
    """Steps that the challenger executed again for the dispute."""


def fork(source: RunDirectory, path: Path, agreement: SignedJob, *, upto: int) -> RunDirectory:
    """A run of another job over the same computation that starts with the checkpoints of `source` up to step `upto`.

    An honest run depends only on program, state, data and logs. A party that has computed it once need not repeat it:
    an auditor of several jobs, or a cheat that is honest up to its lie. Raises `ConfigurationError` for a job with
    other checkpoints or roundings, `VerificationError` for one of another program, state or data.
    """
    for what in ("policy", "precision", "tolerances", "steps", "checkpoint_interval"):
        if (theirs := getattr(source.job, what)) != (ours := getattr(agreement.job, what)):
            raise ConfigurationError(f"expected a job of {what} {theirs}, got {ours}")
    run = RunDirectory.create(path, agreement, source.program, source.state(0), source.data())
    published, logs = LogFiles(source), LogFiles(run)
    for checkpoint, record in enumerate(source.records()):
        if record.step <= upto:
            if agreement.job.is_logged:
                for step in range(agreement.job.first_step(checkpoint), record.step + 1):
                    logs.write(step, published.step_log(step))
                logs.sync(checkpoint)
            if source.state_path(record.step).exists():
                run.write_state(record.step, source.state(record.step))
            run.append_record(record)
    for metric in source.metrics():
        if metric["step"] <= upto:
            run.add_metric(int(metric["step"]), metric["loss"], metric["seconds"])
    return run


def deviate(
    arena: Arena, agreement: SignedJob, cheat: Cheat, name: str, *, key: PrivateKey | None = None,
    stop_if_not_finite: bool = True,
) -> tuple[RunDirectory, Interpreter]:  # fmt: skip
    """The run of a party that is honest up to the checkpoint before its lie, and the machine that computed it."""
    job = agreement.job
    before = job.first_step(job.checkpoint_of(cheat.step)) - 1
    run = fork(arena.run, arena.folder / name, agreement, upto=before)
    machine = Tampered(arena.interpreter, cheat.tamper)
    Worker(run, machine, key=key, stop_if_not_finite=stop_if_not_finite).work()
    return run, machine


def fight(arena: Arena, cheat: Cheat, job: Job, name: str) -> Fought:
    """A trainer takes `job` (the honest run's, under another id), cheats once, and posts its last head.

    Then an auditor challenges the head, and the trainer forges evidence to fit the lie. The auditor has replayed the
    same computation for another job, so nothing is computed again for the audit. Raises `StateError` if the cheat
    changed nothing that is committed.
    """
    market, agreement = arena.market, arena.market.sign(job)
    market.open(agreement)
    run, machine = deviate(arena, agreement, cheat, f"cheat-{name}", key=market.parties.trainer)
    head = run.heads()[-1]
    market.post(head)
    own = fork(arena.replay, arena.folder / f"audit-{name}", agreement, upto=job.steps)
    if compare(own, head).agrees:
        raise StateError(f"{run.path.name}: expected a run that differs from the honest one, got the same root")
    challenger = Evidence(own, arena.interpreter)
    match = play_out(market, agreement, head, ForgedEvidence(run, machine), challenger)
    return Fought(match, challenger, challenger.replayed_steps)


def challenge_falsely(arena: Arena, mistake: Cheat, name: str, *, nonce: int = 0) -> Fought:
    """A challenger whose replay contains a mistake attacks the honest trainer's last head.

    Games of one challenger against one head need different nonces.
    """
    agreement = arena.run.agreement
    wrong, machine = deviate(arena, agreement, mistake, f"wrong-{name}")
    defender = Evidence(arena.run, arena.interpreter)
    challenger = Evidence(wrong, machine)
    match = play_out(arena.market, agreement, arena.run.heads()[-1], defender, challenger, nonce)
    return Fought(match, defender, challenger.replayed_steps)
