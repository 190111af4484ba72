"""The gas of a whole dispute about late data, in a job as large as those of docs/gas.md: 1,000,000 steps, r = 5."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chain.duel import Duel, parties, play
from tests.chain.support import CLIENT, TRAINER, new_chain
from tests.protocol.instructions import committed, const, source
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import LogTree, logs_tree
from tiebreak.protocol.commitments.records import StepRecord, loss_id
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.game.moves import Phase, Side
from tiebreak.protocol.game.state import Reason
from tiebreak.protocol.numbers.float32 import ONE
from tiebreak.protocol.program.isa import DType, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Policy, StepLog
from tiebreak.protocol.tags import EMPTY, Digest
from tiebreak.protocol.trees import Tree

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs/gas.md"
STEPS, INTERVAL, STEP = 1_000_000, 1000, 654_321
BODY, COMMITS, WRITTEN, SHAPE = 5000, 444, 1707, (8, 1024)


def digest(*place: object) -> Digest:
    return Digest(sha256(repr(place).encode()).digest())


def program() -> Program:
    """As many instructions and entries as GPT-2's with 12 layers, of which one reads late data: tokens of a step."""
    body = [source(SourceKind.LATE, "tokens", DType.I64, *SHAPE) if n == WRITTEN else const(n) for n in range(BODY)]
    commits = (committed(f"w{n:03d}", DType.F32, (), n, slot=n) for n in range(COMMITS))
    made = Program(tuple(body), tuple(commits))
    made.validate()
    return made


@dataclass(eq=False)
class Large:
    """The evidence of a run in which everything is made up but what a dispute about the late data of a step opens."""

    job: Job
    program: Program
    lies: bool
    log: LogTree = field(init=False)

    def __post_init__(self) -> None:
        count = SHAPE[0] * SHAPE[1]
        self.log = LogTree(
            self.program, StepLog(late={"tokens": b"".join(n.to_bytes(8, "little") for n in range(count))})
        )

    @cached_property
    def state(self) -> list[Digest]:
        return [digest("state", n, self.lies) for n in range(COMMITS)]

    def log_tree(self, step: int) -> Any:
        return self.log if step == STEP else SimpleNamespace(root=digest("log", step))

    def record(self, step: int) -> StepRecord:
        first = self.job.first_step(self.job.checkpoint_of(STEP))
        logs = logs_tree([self.log_tree(first + n).root for n in range(INTERVAL)])
        return StepRecord(step=step, state_root=Tree(self.state).root, loss_bits=ONE, log_root=logs.root)

    def steps_tree(self, checkpoint: int) -> Tree:
        last = self.job.last_step(checkpoint)
        leaves = [digest("record", n) for n in range(self.job.first_step(checkpoint), last + 1)]
        for step in (STEP, last):
            leaves[step - self.job.first_step(checkpoint)] = self.record(step).digest
        return Tree(leaves)

    def run_tree(self, count: int) -> Tree:
        leaves, place = [digest("checkpoint", n) for n in range(count)], self.job.checkpoint_of(STEP)
        leaves[place] = self.record(self.job.last_step(place)).digest
        return Tree(leaves, self.job.run_depth)

    def value_tree(self, _step: int) -> Tree:
        body = [digest("value", n) for n in range(BODY)]
        body[WRITTEN] = digest("a better one") if self.lies else self.log.late[WRITTEN]
        body[-1] = loss_id(ONE)
        padding = [EMPTY] * ((1 << self.job.half_depth) - BODY)
        return Tree([*body, *padding, *self.state], self.job.half_depth + 1)


def test_a_dispute_down_to_a_late_value_costs_what_the_page_says() -> None:
    terms = Terms(audit_time=60, descent_levels=5, nonce=1)
    job = Job.over(
        made := program(), client=CLIENT.address, trainer=TRAINER.address, initial_state_root=digest("state 0"),
        data_root=EMPTY, steps=STEPS, checkpoint_interval=INTERVAL, policy=int(Policy.LOGGED),
        **terms.job_fields,
    )  # fmt: skip
    false, true = Large(job, made, lies=True), Large(job, made, lies=False)
    duel: Any = Duel(new_chain(), false, head_count=job.checkpoints)  # type: ignore[arg-type]
    play(duel, parties(false, true))  # type: ignore[arg-type]
    assert (duel.state.verdict.winner, duel.state.verdict.reason) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert (duel.state.step, duel.state.leaf) == (STEP, WRITTEN)
    moves = [gas for found in duel.gas.values() for gas in found]
    words = r"about late data .*?([\d,]+) gas in (\d+) transactions, .*?the proof ([\d,]+)"
    said = re.search(words, " ".join(DOCS.read_text().split()))
    assert said is not None
    total, transactions, proof = (int(figure.replace(",", "")) for figure in said.groups())
    assert 1 + len(moves) == transactions
    assert duel.started.gas_used + sum(moves) == pytest.approx(total, abs=500)  # it moves with the code of the board
    assert duel.gas[Phase.PROVE] == [pytest.approx(proof, abs=500)]
