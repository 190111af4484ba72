"""The gas of the job board's own transactions: each is sent once, on the embedded chain, by parties with credit there.

`benchmarks.dispute` and `benchmarks.million_steps` measure the moves of a game.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import click

from benchmarks.table import placed, publish, rows_of
from tiebreak.engine.run.agreement import Terms
from tiebreak.protocol.chain import EmbeddedChain, Receipt, calls
from tiebreak.protocol.commitments.job import Concession, Head, Job, LogReceipt, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.program.rounding import Policy
from tiebreak.protocol.tags import Digest, Tag, tagged_hash

CLIENT, TRAINER, CHALLENGER, SECOND = (PrivateKey.from_int(number) for number in (11, 12, 13, 14))
TERMS = Terms()
FEE, BOND = 10**17, 1 << 57


def digest(text: str) -> Digest:
    """A stand-in for a root; the board never looks inside one."""
    return Digest(sha256(text.encode()).digest())


@dataclass(kw_only=True)
class Bench:
    """A board, and the gas of its transactions."""

    chain: EmbeddedChain
    gas: dict[str, int] = field(default_factory=dict)
    jobs: int = 0
    slots: int = 0

    def take(self, name: str, receipt: Receipt) -> None:
        """Records the gas.

        The last one of equal operations counts, when the parties' credits and counters already exist.
        """
        self.gas[name] = receipt.gas_used

    def secret(self) -> bytes:
        """The secret of the client of the newest job."""
        return digest(f"secret {self.jobs}")

    def job(self, seats: int = 0, policy: Policy = Policy.EXACT) -> Job:
        """A job of eight checkpoints, offered."""
        self.jobs += 1
        nonce = int.from_bytes(tagged_hash(Tag.SECRET, self.secret()), "big") if seats else self.jobs
        pay = {"seat_fee": FEE, "seat_bond": BOND} if seats else {}
        job = Job(
            client=CLIENT.address, trainer=TRAINER.address, program_root=digest("program"), body_count=4000,
            state_count=400, data_count=2, initial_state_root=digest("state"), data_root=digest("data"), steps=8000,
            checkpoint_interval=1000, policy=int(policy), **asdict(replace(TERMS, nonce=nonce, seats=seats, **pay)),
        )  # fmt: skip
        receipt = self.chain.send(CLIENT, calls.create_job(job, TRAINER.sign(job.digest(self.chain.domain))))
        self.take("create job with seats" if seats else "create job", receipt)
        return job

    def accepted(self, seats: int = 0, policy: Policy = Policy.EXACT) -> Job:
        job = self.job(seats, policy)
        receipt = self.chain.send(TRAINER, calls.accept_job(job.id, job.trainer_stake))
        self.take("accept job with seats" if seats else "accept job", receipt)
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

    def parted(self) -> None:
        job = self.accepted(policy=Policy.LOGGED)
        head = self.head(job, 2)
        self.chain.send(TRAINER, calls.post_head(head))
        receipt = LogReceipt.sign(head.head, self.chain.domain, CLIENT)
        self.take("acknowledge", self.chain.send(TRAINER, calls.acknowledge(receipt)))
        self.chain.advance(max(TERMS.challenge_window, 2 * TERMS.audit_time) + 2)
        self.take("part", self.chain.send(TRAINER, calls.part(job.id)))
        self.chain.send(TRAINER, calls.withdraw(TRAINER.address))  # `settle` is measured without a credit there

    def slashed(self) -> None:
        """Measures slashing: conflicting heads during an open game, concessions, and a challenger out of time."""
        job = self.accepted()
        game = self.challenge(job, CHALLENGER)
        receipt = self.chain.send(SECOND, calls.report_equivocation(self.head(job, 3), self.head(job, 3, "another")))
        self.take("report equivocation", receipt)
        self.take("reclaim", self.chain.send(CHALLENGER, calls.reclaim(game)))
        head = self.head(self.accepted(), 3).head
        conceded = Concession.sign(head, SECOND.address, self.chain.domain, TRAINER)
        self.take("report concession", self.chain.send(SECOND, calls.report_concession(conceded)))
        job = self.accepted()
        game = self.challenge(job, CHALLENGER)
        self.take("concede", self.chain.send(TRAINER, calls.concede(game)))
        job = self.accepted()
        game = self.challenge(job, CHALLENGER)
        self.chain.advance(TERMS.clock + TERMS.replay_time + 2)
        self.take("timeout", self.chain.send(CHALLENGER, calls.timeout(game)))

    def seated(self) -> None:
        """A job with two seats, the deposit of whose auditor comes back in the end."""
        slot = self.slots
        self.slots += 1
        self.take("join pool", self.chain.send(CHALLENGER, calls.join_pool(slot, BOND)))
        job = self.accepted(seats=2)
        last, salt = job.checkpoints, digest("salt")
        self.chain.advance(TERMS.challenge_window // 2 + 1)
        for count in (1, last):
            head = tagged_hash(Tag.HEAD_SEAL, job.id, count.to_bytes(8, "big"), digest("run"), salt)
            receipt = self.chain.send(TRAINER, calls.seal_head(job.id, count, head))
            self.take("seal final head" if count == last else "seal head", receipt)
        self.take("draw seats", self.chain.send(CLIENT, calls.draw_seats(job, self.secret())))
        root = tagged_hash(Tag.ROOT_SEAL, job.id, CHALLENGER.address, digest("run"), salt)
        for seat in range(2):
            self.take("seal root", self.chain.send(CHALLENGER, calls.seal_root(job.id, seat, root, BOND)))
        wait = max(TERMS.challenge_window, last * TERMS.audit_time) + 2
        self.chain.advance(wait)
        self.take("open head", self.chain.send(TRAINER, calls.open_head(self.head(job, last), salt)))
        self.chain.advance(wait)
        self.take("settle with seats", self.chain.send(TRAINER, calls.settle(job.id)))
        self.chain.send(TRAINER, calls.withdraw(TRAINER.address))  # as after a job without seats
        claim = calls.claim_seat(job.id, 0, CHALLENGER.address, digest("run"), salt)
        self.take("claim seat", self.chain.send(CHALLENGER, claim))
        self.chain.advance(wait)
        self.take("close seats", self.chain.send(CLIENT, calls.close_seats(job.id)))
        self.chain.advance(1 << 21)
        self.take("leave pool", self.chain.send(CHALLENGER, calls.leave_pool(BOND, slot)))


def measure() -> dict[str, int]:
    """Gas of each operation. Each runs twice, so that no measured transaction pays for a party's first credit."""
    chain = EmbeddedChain()
    for key in (CLIENT, TRAINER, CHALLENGER, SECOND):
        chain.fund(key.address)
    chain.deploy(CLIENT)
    bench = Bench(chain=chain)
    parts: tuple[Callable[[], None], ...] = (
        bench.settled, bench.ended_early, bench.parted, bench.slashed, bench.seated,
    )  # fmt: skip
    for part in parts * 2:
        part()
    return bench.gas


@click.command()
@placed
def main(folder: Path) -> None:
    """Measure the gas of the board's transactions."""
    rows = rows_of("board", "gas", {f"gas: {name}": gas for name, gas in measure().items()})
    publish("board", rows, "the job board's own transactions", folder=folder, environment=[("chain", "embedded")])


if __name__ == "__main__":
    main()
