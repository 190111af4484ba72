"""The gas of the job board's own transactions: each is sent once, on the embedded chain, by parties with credit there.

`benchmarks.dispute` and `benchmarks.million_steps` measure the moves of a game.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import click

from benchmarks.table import Row, placed, publish
from tiebreak.engine.run.agreement import Terms
from tiebreak.protocol.chain import EmbeddedChain, Receipt, calls
from tiebreak.protocol.commitments.job import Head, Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.tags import Digest

CLIENT, TRAINER, CHALLENGER, SECOND = (PrivateKey.from_int(number) for number in (11, 12, 13, 14))
TERMS = Terms()


def digest(text: str) -> Digest:
    """A stand-in for a root; the board never looks inside one."""
    return Digest(sha256(text.encode()).digest())


@dataclass(kw_only=True)
class Bench:
    """A board, and the gas of its transactions."""

    chain: EmbeddedChain
    gas: dict[str, int] = field(default_factory=dict)
    jobs: int = 0

    def take(self, name: str, receipt: Receipt) -> None:
        """Records the gas.

        Of equal operations the last one counts, when the parties' credits and counters already exist.
        """
        self.gas[name] = receipt.gas_used

    def job(self) -> Job:
        """An active job of eight checkpoints."""
        self.jobs += 1
        job = Job(
            client=CLIENT.address, trainer=TRAINER.address, program_root=digest("program"), body_count=4000,
            state_count=400, data_count=2, initial_state_root=digest("state"), data_root=digest("data"), steps=8000,
            checkpoint_interval=1000, reward=TERMS.reward, trainer_stake=TERMS.trainer_stake,
            challenger_stake=TERMS.challenger_stake, challenge_window=TERMS.challenge_window, clock=TERMS.clock,
            replay_time=TERMS.replay_time, talk_time=TERMS.talk_time,
            audit_time=TERMS.audit_time, deadline=TERMS.deadline, descent_levels=TERMS.descent_levels, nonce=self.jobs,
        )  # fmt: skip
        self.take(
            "create job", self.chain.send(CLIENT, calls.create_job(job, TRAINER.sign(job.digest(self.chain.domain))))
        )
        return job

    def accepted(self) -> Job:
        job = self.job()
        self.take("accept job", self.chain.send(TRAINER, calls.accept_job(job.id, job.trainer_stake)))
        return job

    def head(self, job: Job, count: int, run: str = "run") -> SignedHead:
        return SignedHead.sign(Head(job_id=job.id, count=count, run_root=digest(run)), self.chain.domain, TRAINER)

    def challenge(self, job: Job, challenger: PrivateKey) -> Digest:
        """Opens a game against the last head."""
        game, receipt = self.chain.challenge(challenger, self.head(job, job.checkpoints), nonce=0)
        self.take("challenge", receipt)
        return game

    def settled(self) -> None:
        job = self.accepted()
        for count in range(1, job.checkpoints + 1):
            receipt = self.chain.send(TRAINER, calls.post_head(self.head(job, count)))
            self.take("first head" if count == 1 else "post head", receipt)
        self.chain.advance(max(TERMS.challenge_window, job.checkpoints * TERMS.audit_time) + 2)
        self.take("settle", self.chain.send(TRAINER, calls.settle(job.id)))
        self.take("withdraw", self.chain.send(TRAINER, calls.withdraw(TRAINER.address)))

    def ended_early(self) -> None:
        self.take("cancel job", self.chain.send(CLIENT, calls.cancel_job(self.job().id)))
        job = self.accepted()
        self.chain.advance(TERMS.challenge_window + 2)
        self.take("abandon", self.chain.send(CLIENT, calls.abandon(job.id)))

    def slashed(self) -> None:
        """Measures slashing: conflicting heads during an open game, a concession, and a challenger out of time."""
        job = self.accepted()
        game = self.challenge(job, CHALLENGER)
        receipt = self.chain.send(SECOND, calls.report_equivocation(self.head(job, 3), self.head(job, 3, "another")))
        self.take("report equivocation", receipt)
        self.take("reclaim", self.chain.send(CHALLENGER, calls.reclaim(game)))
        job = self.accepted()
        game = self.challenge(job, CHALLENGER)
        self.take("concede", self.chain.send(TRAINER, calls.concede(game)))
        job = self.accepted()
        game = self.challenge(job, CHALLENGER)
        self.chain.advance(TERMS.clock + TERMS.replay_time + 2)
        self.take("timeout", self.chain.send(CHALLENGER, calls.timeout(game)))


def measure() -> dict[str, int]:
    """Gas of each operation. Each runs twice, so that no measured transaction pays for a party's first credit."""
    chain = EmbeddedChain()
    for key in (CLIENT, TRAINER, CHALLENGER, SECOND):
        chain.fund(key.address)
    chain.deploy(CLIENT)
    bench = Bench(chain=chain)
    parts: tuple[Callable[[], None], ...] = (bench.settled, bench.ended_early, bench.slashed)
    for part in parts * 2:
        part()
    return bench.gas


@click.command()
@placed
def main(folder: Path) -> None:
    """Measure the gas of the board's transactions."""
    rows = [Row(metric=f"gas: {name}", case="board", value=gas, unit="gas") for name, gas in measure().items()]
    publish("board", rows, "the job board's own transactions", folder=folder, environment=[("chain", "embedded")])


if __name__ == "__main__":
    main()
