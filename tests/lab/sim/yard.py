"""A small job with every family of instructions, and duels over it: a cheat, its auditor, both referees."""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebreak import SGD, Batch, Rows, Task
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.segments import compare
from tiebreak.engine.run.train import Worker
from tiebreak.lab.sim.adversaries.tampering import Cheat, ForgedEvidence, long_sums
from tiebreak.lab.sim.games import disputes
from tiebreak.protocol.chain import JobStatus
from tiebreak.protocol.commitments.job import Job, SignedHead, SignedJob
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.game.match import Match
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.program.isa import Instruction, Opcode
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest

STEPS, BATCH, CLASSES = 8, 6, 3
INTERVAL = 3
"""Segments of 3, 3 and 2 steps."""


class Net(nn.Module):
    """Numbers [B, 9] and a word each to logits [B, 3]: gather and its scatter, cat, max-pool, norm, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.hidden = nn.Linear(13, 24)
        self.norm = nn.BatchNorm1d(24)
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x_BC: Tensor, word_B: Tensor) -> Tensor:
        h_BC = self.norm(self.hidden(torch.cat([x_BC, self.words(word_B)], 1)))
        pooled_BC = F.max_pool2d(F.pad(h_BC.view(-1, 1, 4, 6), (0, 0, 1, 1)), (3, 2)).flatten(1)
        logits: Tensor = self.head(self.dropout(torch.tanh(pooled_BC)))
        return logits


def classify(model: nn.Module, numbers: Tensor, words: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(numbers, words), labels)


def make_task() -> Task:
    generator = torch.Generator().manual_seed(5)
    model = Net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    count = 20
    return Task(
        name="yard", model=model, loss=classify, optimizer=SGD(lr=0.1, momentum=0.9),
        data={
            "numbers": torch.randn(count, 9, generator=generator),
            "words": torch.randint(0, 7, (count,), generator=generator),
            "labels": torch.randint(0, CLASSES, (count,), generator=generator),
        },
        batch=Batch(size=BATCH, examples=Rows(names=("numbers", "words", "labels"))), steps=STEPS,
        checkpoint_interval=INTERVAL, seed=3,
    )  # fmt: skip


def kind_of(i: Instruction) -> tuple[str, int]:
    return i.opcode.name, int(i.function)


def other_value(value: Tensor) -> Tensor:
    return ~value if value.dtype == torch.bool else value + 1


def any_cheat(program: Program, leaf: int, *, step: int, rng: random.Random) -> Cheat:
    half = 1 << program.half_depth
    value = leaf if leaf < half else program.commits[leaf - half].operands[0].value
    element = rng.randrange(program.body[value].numel)
    return Cheat(name=f"leaf {leaf}", step=step, leaf=leaf, element=element, change=other_value)


def sums_of(program: Program, more_than: int) -> list[int]:
    """f32 sums whose elements have an accumulator tree, of more than so many terms."""
    return [n for n in long_sums(program, more_than + 1) if program.body[n].opcode == Opcode.REDUCE]


@dataclass(frozen=True)
class Duel:
    """A cheat's run against its auditor: what was signed, and how the game off the chain ended."""

    agreement: SignedJob
    head: SignedHead
    match: Match


class Yard:
    """One market, one captured job, and per checkpoint interval an honest run, on the board, with its replay."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.folder = folder
        self.captured: Captured = capture_task(make_task())
        self.market = disputes.DisputeMarket()
        self.interpreter: Interpreter = make_interpreter(self.captured.program)
        self.jobs: list[Digest] = []
        self._arenas: dict[int, disputes.Arena] = {}
        self._numbers = iter(range(1 << 30))

    @property
    def program(self) -> Program:
        return self.captured.program

    def fresh(self, name: str) -> Path:
        return self.folder / f"{next(self._numbers)}-{name}"

    def job(self, interval: int = INTERVAL, levels: int = 2) -> Job:
        """A job of its own over the computation. Its stake is odd, so that half of it is not half of it."""
        job = self.market.draft(
            self.captured,
            steps=STEPS,
            checkpoint_interval=interval,
            # Games are played one after the other against one head, and the proof of each waits for six hours.
            terms=Terms(
                descent_levels=levels, reward=7, trainer_stake=1001, challenger_stake=55, challenge_window=30 * 86400
            ),
        )
        return disputes.another(job)

    def arena(self, interval: int = INTERVAL) -> disputes.Arena:
        """The honest run, with signed heads, and a replay of it that takes the terms of all sums in another order."""
        if interval not in self._arenas:
            agreement, c = self.market.sign(self.job(interval)), self.captured
            self.open(agreement)
            run = RunDirectory.create(self.fresh("honest"), agreement, c.program, c.state, c.data)
            Worker(run, self.interpreter, key=self.market.parties.trainer).work()
            replay = RunDirectory.create(self.fresh("replay"), agreement, c.program, c.state, c.data)
            Worker(replay, Interpreter(c.program, Arithmetic(permute=77))).work()
            assert compare(replay, run.heads()[-1]).agrees
            self._arenas[interval] = disputes.Arena(self.market, run, replay, self.interpreter, self.folder)
        return self._arenas[interval]

    def open(self, agreement: SignedJob) -> None:
        self.market.open(agreement)
        self.jobs.append(agreement.job.id)

    def duel(self, cheat: Cheat, *, interval: int = INTERVAL, levels: int = 5, forged: bool = True) -> Duel | None:
        arena, job = self.arena(interval), self.job(interval, levels)
        agreement = self.market.sign(job)
        # A lie may blow up what follows from it; this trainer wants its reward nevertheless.
        key, name = self.market.parties.trainer, self.fresh("cheat").name
        cheating, machine = disputes.deviate(arena, agreement, cheat, name, key=key, stop_if_not_finite=False)
        own = disputes.fork(arena.replay, self.fresh("own"), agreement, upto=STEPS)
        head = cheating.heads()[-1]
        if compare(own, head).agrees:
            return None
        defender = (ForgedEvidence if forged else Evidence)(cheating, machine)
        courier, identity = (
            disputes.signed_messages(self.market, agreement, head),
            disputes.game_of(self.market, agreement, head),
        )
        match = disputes.play(agreement, head, defender, Evidence(own, self.interpreter), courier, identity=identity)
        return Duel(agreement, head, match)

    def settle(self, duel: Duel) -> disputes.ChainMatch:
        self.open(duel.agreement)
        return disputes.replay_on_chain(self.market, duel.agreement, duel.head, duel.match)

    def convict(self, cheat: Cheat, *, interval: int = INTERVAL, levels: int = 2) -> disputes.ChainMatch:
        """The whole story: the cheat must lose at its own leaf before both referees, and pay for it."""
        arena, job, before = self.arena(interval), self.job(interval, levels), self.credits()
        self.jobs.append(job.id)
        match = disputes.fight(arena, cheat, job, self.fresh("fight").name).match
        assert_caught_at(match, cheat)
        assert_same_end(match)
        assert_slashed(self, job, match, before)
        return match

    def credits(self) -> dict[str, int]:
        """Wei that each account can withdraw, and those that the board has besides, and owes nobody."""
        keys, chain = self.market.parties, self.market.chain
        accounts = {"client": keys.client.address, "trainer": keys.trainer.address}
        accounts |= {"challenger": keys.challenger.address}
        found = {name: chain.credit(account) for name, account in accounts.items()}
        return found | {"burned": chain.balance(chain.deployment.board) - self.escrow() - sum(found.values())}

    def escrow(self) -> int:
        """Wei that the board holds for jobs and games that are not over, by the jobs' own records."""
        total = 0
        for job_id in self.jobs:
            job = self.market.chain.job_state(job_id)
            if job.status in (JobStatus.OFFERED, JobStatus.ACTIVE):
                total += job.reward + (job.trainer_stake if job.status is JobStatus.ACTIVE else 0)
            total += ((1 << job.open_games) - 1) * job.challenger_stake
        return total


def assert_caught_at(match: Match, cheat: Cheat) -> None:
    """The trainer lost, in Python, at the step, leaf and element that it tampered with."""
    state = match.final
    assert match.loser is Side.DEFENDER, cheat.name
    assert (state.step, state.leaf) == (cheat.step, cheat.leaf), cheat.name
    if state.claimed:
        assert state.element == cheat.element, cheat.name


def assert_same_end(match: disputes.ChainMatch) -> None:
    """The contract's game ended as the one in Python did: same verdict, same reason, same place."""
    record, state = match.chain.record, match.final
    assert state.verdict is not None
    assert match.chain.loser is match.loser
    assert record.reason == state.verdict.reason
    assert (record.level, record.step, record.height) == (state.level, state.step, state.height)
    assert record.position == state.position
    assert all(move.gas is not None and move.gas > 21_000 for move in match.moves)
    assert all(move.bytes > 0 for move in match.moves)


def assert_slashed(yard: Yard, job: Job, match: disputes.ChainMatch, before: dict[str, int]) -> None:
    """Stake split between challenger and nobody, reward back to the client, and nothing lost or made."""
    assert match.chain.trainer_gain == -job.trainer_stake
    assert match.chain.challenger_gain == job.trainer_stake // 2
    after = yard.credits()
    assert {name: after[name] - before[name] for name in after} == {
        "client": job.reward,
        "trainer": 0,
        "challenger": job.challenger_stake + job.trainer_stake // 2,
        "burned": job.trainer_stake - job.trainer_stake // 2,
    }
    assert yard.market.chain.job_state(job.id).status is JobStatus.SLASHED
