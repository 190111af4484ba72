"""The cost of a dispute at scale: one lie in one step of a job of 1,000,000 steps of GPT-2 124M, on a chain.

The disputed step is real: it is executed, hashed, opened and refereed. The records of the other 999,999 steps are
invented: both parties agree on those before the lie and differ on those after it. Lies are also settled after a talk:
a state that the other side signed enters the chain, or the liar signs a concession. Gas is a transaction's whole gas
(base cost, calldata by EIP-7623, execution), on anvil if that is installed, otherwise on the embedded chain. `python
-m benchmarks.million_steps --layers N` plays with fewer layers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import click
import torch
from rich.console import Console
from torch import Tensor

from benchmarks.dispute import match_rows
from benchmarks.table import Row, placed, publish
from benchmarks.workloads import gpt2
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.node.up import free_port
from tiebreak.protocol.chain import Call, Chain, Receipt
from tiebreak.protocol.chain.devnet import dev_secrets, running_node
from tiebreak.protocol.commitments.job import Concession, Head, Job, SignedHead, SignedJob
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import StepRecord, state_tree
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.game.match import Match
from tiebreak.protocol.game.moves import Prove, Side
from tiebreak.protocol.game.snapshot import Standing
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import JobStatus
from tiebreak.protocol.program.isa import MapFunction, Opcode
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Tag, tagged_hash
from tiebreak.sim.adversaries.forgery import ForgedEvidence
from tiebreak.sim.adversaries.tampering import Cheat, Tampered, flipped_weight_bit, long_sums, low_precision_sum
from tiebreak.sim.games.disputes import ChainMatch, DisputeMarket, Parties, another, game_of, play, play_out

STEPS, INTERVAL, STEP = 1_000_000, 1000, 654_321
GAS_TARGET, TRANSACTIONS_TARGET = "<= 3M at the best r", "<= 30 at the best r"
TALK_TIME = 3600
SILENCES = (8, 16, 24)
"""Moves from which on one side no longer answers messages, so that the rest is played on the chain."""
CONSOLE = Console()


LOSS_BITS = 0x40000000
"""The bits of 2.0, the loss of every step that was not executed."""


@dataclass(frozen=True, kw_only=True)
class StagedRun:
    """The part of a run directory that `Evidence` needs. `state_before` is used as the state after step `step` - 1.

    Raises `ConfigurationError` for the first or last step of a segment, because a record beside it would be a
    checkpoint's and the walk would not go through the steps tree.
    """

    job: Job
    program: Program
    step: int
    state_before: dict[str, Tensor]
    inputs: dict[str, Tensor]
    party: bytes
    """Makes this party's invented records after the lie differ from the other party's."""
    path: str = "a staged run"

    def __post_init__(self) -> None:
        first, last = self.job.first_step(self.segment), self.job.last_step(self.segment)
        if not first < self.step < last:
            raise ConfigurationError(f"expected a step between {first} and {last}, got {self.step}")

    @property
    def segment(self) -> int:
        """The checkpoint whose segment contains the real step."""
        return self.job.checkpoint_of(self.step)

    @cached_property
    def before(self) -> StepRecord:
        """The record of the step before the real one. Its state root is true."""
        root = state_tree(identities(self.state_before)).root
        return StepRecord(step=self.step - 1, state_root=root, loss_bits=LOSS_BITS)

    def record(self, step: int) -> StepRecord:
        """The record of any step except the real one."""
        if step == self.step - 1:
            return self.before
        root = tagged_hash(
            Tag.STEP_RECORD, b"made up" + step.to_bytes(8, "big") + (b"" if step < self.step else self.party)
        )
        return StepRecord(step=step, state_root=root, loss_bits=LOSS_BITS)

    def records(self) -> list[StepRecord]:
        return [self.record(self.job.last_step(checkpoint)) for checkpoint in range(self.job.checkpoints)]

    def kept_before(self, step: int) -> int:
        """The only step whose state is kept. Raises `ConfigurationError` for an earlier `step`."""
        if step < self.step - 1:
            raise ConfigurationError(f"expected a step from {self.step - 1} on, got {step}")
        return self.step - 1

    def state(self, step: int) -> dict[str, Tensor]:
        """The state before the real step, which is the only one kept."""
        self.kept_before(step)
        return self.state_before

    def data(self) -> dict[str, Tensor]:
        return self.inputs


class StagedEvidence(Evidence):
    """The honest party's evidence. It executes only the real step."""

    run: StagedRun

    def _replay_segment(self, checkpoint: int) -> None:
        steps = range(self.job.first_step(checkpoint), self.job.last_step(checkpoint) + 1)
        self._records.update({step: self.run.record(step) for step in steps if step != self.run.step})
        if checkpoint == self.run.segment:
            step = self.run.step
            result = next(self._steps(step, step, self._state_after(step - 1))).result
            self._records[self.run.step] = make_record(self.run.step, result.state, result.loss_bits)


class StagedForgery(StagedEvidence, ForgedEvidence):
    """The cheat's evidence: it lies in the real step and forges its sums to fit the lie."""


def posted(market: DisputeMarket, job: Job, defender: StagedEvidence) -> tuple[SignedJob, SignedHead]:
    """Puts the job on the board and posts the defender's last head."""
    agreement = market.sign(job)
    market.open(agreement)
    head = Head(job_id=job.id, count=job.checkpoints, run_root=defender.run_tree(job.checkpoints).root)
    signed = SignedHead.sign(head, agreement.domain, market.parties.trainer)
    market.post(signed)
    return agreement, signed


def dispute(market: DisputeMarket, job: Job, defender: StagedEvidence, challenger: StagedEvidence) -> ChainMatch:
    """Plays the whole game against the defender's last head."""
    return play_out(market, *posted(market, job, defender), defender, challenger)


def settle(market: DisputeMarket, head: SignedHead, match: Match, talked: int | None) -> list[Receipt]:
    """The transactions of a dispute whose first `talked` moves were messages. None: the trainer signs a concession."""
    chain, keys = market.chain, market.parties
    signers = {Side.DEFENDER: keys.trainer, Side.CHALLENGER: keys.challenger}
    if talked is None:
        conceded = Concession.sign(head.head, keys.challenger.address, chain.domain, keys.trainer)
        return [chain.send(keys.challenger, Call.of(tx.ReportConcession(concession=conceded)))]
    game, started = chain.challenge(keys.challenger, head, 0)
    sent, left = [started], match.moves[talked:]
    state, move = left[0].before, left[0].move
    if isinstance(move, Prove):
        signature = keys.trainer.sign(Standing.of(state).digest(chain.domain))
        return [started, chain.send(keys.challenger, Call.of(tx.EnterAndProve.of(state, signature, move)))]
    if talked:
        maker = match.moves[talked - 1].by
        signature = signers[maker].sign(Standing.of(state).digest(chain.domain))
        sent.append(chain.send(signers[maker.other], Call.of(tx.Enter.of(state, signature))))
    for item in left:
        if isinstance(item.move, Prove):
            chain.pass_until(chain.game_state(game).last + item.before.job.clock)
        sent.append(chain.play(signers[item.by], item.before, item.move))
    return sent


@contextmanager
def market() -> Iterator[tuple[DisputeMarket, str]]:
    """A market on a development node, and the kind of that node."""
    with running_node(port=free_port(), accounts=3) as node:
        keys = Parties(*(PrivateKey.from_int(secret) for secret in dev_secrets(3)))
        yield DisputeMarket(keys, Chain.connect(node.url)), node.kind


@dataclass(frozen=True)
class Stage:
    """The job and its honest party. Cheats are made for it one by one."""

    market: DisputeMarket
    captured: Captured
    interpreter: Interpreter
    job: Job

    def run(self, party: bytes) -> StagedRun:
        made = self.captured
        return StagedRun(job=self.job, program=made.program, step=STEP, state_before=made.state, inputs=made.data,
                         party=party)  # fmt: skip

    @cached_property
    def honest(self) -> StagedEvidence:
        return StagedEvidence(self.run(b"truth"), self.interpreter)

    def parties(
        self, forgery: StagedForgery, levels: int, talk_time: int = 0
    ) -> tuple[Job, StagedForgery, StagedEvidence]:
        """A new job and its two sides. Raises `StateError` for a lie without a trace."""
        if forgery.record(STEP) == self.honest.record(STEP):
            raise StateError("expected a lie that leaves a trace in the state, got the honest record")
        job = replace(another(self.job), descent_levels=levels, talk_time=talk_time)
        for evidence in (forgery, self.honest):
            evidence.run = replace(evidence.run, job=job)
        return job, forgery, self.honest

    def talk(self, forgery: StagedForgery, talked: int | None) -> list[Receipt]:
        """Settles the dispute at r = 5 as `settle` does; -1: all but the proof was talked about."""
        job, defender, challenger = self.parties(forgery, 5, TALK_TIME)
        agreement, head = posted(self.market, job, forgery)
        game = game_of(self.market, agreement, head)
        match = play(agreement, head, defender, challenger, identity=game)
        sent = settle(self.market, head, match, len(match.moves) - 1 if talked == -1 else talked)
        if self.market.chain.job_state(job.id).status is not JobStatus.SLASHED:
            raise StateError("expected the liar to lose on the chain, got another end")
        return sent


def make_stage(market: DisputeMarket, layers: int) -> Stage:
    """Captures the model and drafts the job."""
    task = replace(gpt2(layers), steps=STEPS, checkpoint_interval=INTERVAL)
    captured = capture_task(task)
    job = market.draft(captured, steps=STEPS, checkpoint_interval=INTERVAL)
    return Stage(market, captured, Interpreter(captured.program, Arithmetic()), job)


def cheats(program: Program) -> dict[str, Cheat]:
    """Lies in an element of the largest product, of the longest reduction, of a transcendental, and of a weight."""
    products = [n for n in long_sums(program, 700) if len(program.body[n].operands) == 2]
    largest = max(products, key=lambda n: program.body[n].numel)
    longest = max(products, key=lambda n: program.body[n].terms)
    exps = [n for n, i in enumerate(program.body) if (i.opcode, i.function) == (Opcode.MAP, MapFunction.EXP)]
    exp = max(exps, key=lambda n: program.body[n].numel)
    last = {n: program.body[n].numel * 2 // 3 for n in (largest, longest, exp)}
    weight = next(name for name in program.state_spec() if name.endswith("wte.weight") and name.startswith("model."))
    sums = {f"sum of {program.body[n].terms} products": low_precision_sum(step=STEP, index=n, element=last[n])
            for n in (largest, longest)}  # fmt: skip
    return {
        **sums,
        "exp": Cheat(name="exp", step=STEP, leaf=exp, element=last[exp], change=lambda value: 2 * value),
        "weight": flipped_weight_bit(program, state=weight, step=STEP, element=5),
    }


def rows_of(case: str, match: ChainMatch) -> list[Row]:
    """Rows of gas and transactions, with this benchmark's targets."""
    targets = {"gas in all": GAS_TARGET, "transactions": TRANSACTIONS_TARGET}
    found = [replace(row, target=targets.get(row.metric, "")) for row in match_rows(case, match)]
    return [row for row in found if row.metric != "bytes of messages"]


def rows_of_talk(case: str, sent: list[Receipt], gas: str, transactions: str) -> list[Row]:
    """Rows of a dispute that was talked about, with its targets."""
    total = sum(receipt.gas_used for receipt in sent)
    return [
        Row(metric="gas in all", case=case, value=total, unit="gas", target=gas),
        Row(metric="transactions", case=case, value=len(sent), unit="", target=transactions),
    ]


@click.command()
@click.option("--layers", default=12, show_default=True, help="Layers of the model; 12: GPT-2 124M.")
@placed
def main(layers: int, folder: Path) -> None:
    """Play the largest product at each r, the other lies at r = 5, and settle them after talks at r = 5."""
    torch.set_num_threads(2)
    rows: list[Row] = []
    with market() as (place, kind):
        stage = make_stage(place, layers)
        program = stage.captured.program
        CONSOLE.print(f"{len(program.body)} instructions, D = {program.half_depth}, on {kind}")
        for number, (name, cheat) in enumerate(cheats(program).items()):
            forgery = StagedForgery(stage.run(b"lie"), Tampered(stage.interpreter, cheat.tamper))
            moves = 0
            for levels in range(1, 6) if number == 0 else (5,):
                # Evidence can be reused: the trees depend neither on the job's number nor on r.
                match = dispute(stage.market, *stage.parties(forgery, levels))
                moves = len(match.moves)
                CONSOLE.print(f"{name}, r = {levels}: {moves} moves, {match.final.verdict}")
                rows += rows_of(f"{name}, r = {levels}", match)
            rows += rows_of_talk(f"cooperative, proved: {name}", stage.talk(forgery, -1), "<= 350k", "<= 2")
            if number == 0:
                rows += rows_of_talk("cooperative, conceded", stage.talk(forgery, None), "<= 150k", "<= 1")
                rows += rows_of_talk("nobody cooperates", stage.talk(forgery, 0), "<= 2.1M", "<= 30")
                for silent in SILENCES:
                    most = f"<= {moves - silent + 2}"
                    rows += rows_of_talk(f"silent from move {silent}", stage.talk(forgery, silent), "", most)
    note = f"one lie in a job of {STEPS:,} steps of GPT-2 with {layers} layers, checkpoints every {INTERVAL}"
    facts = [("chain", kind), ("instructions", str(len(program.body))), ("D", str(program.half_depth))]
    publish(
        "million_steps" if layers == 12 else f"million_steps_{layers}", rows, note, folder=folder, environment=facts
    )


if __name__ == "__main__":
    main()
