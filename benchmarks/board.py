"""The gas of the job board's own transactions: each is sent once, on the embedded chain, by parties with credit there.

`benchmarks.dispute` measures the moves of a game.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import click

from benchmarks.table import placed, publish, rows_of
from tiebreak.protocol.chain import Call, EmbeddedChain
from tiebreak.protocol.commitments.job import FINITE_LOSSES, Concession, Head, Job, LogReceipt, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import StepRecord, run_tree
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.parties import transactions as tx
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

    def take(self, name: str, key: PrivateKey, call: Call) -> None:
        """Makes a call, and records its gas.

        The last one of equal operations counts, when the parties' credits and counters already exist.
        """
        self.gas[name] = self.chain.send(key, call).gas_used

    def secret(self) -> bytes:
        """The secret of the client of the newest job."""
        return digest(f"secret {self.jobs}")

    def job(self, seats: int = 0, policy: Policy = Policy.EXACT, tolerances: int = 0) -> Job:
        """A job of eight checkpoints, offered."""
        self.jobs += 1
        nonce = int.from_bytes(tagged_hash(Tag.SECRET, self.secret()), "big") if seats else self.jobs
        pay = {"seat_fee": FEE, "seat_bond": BOND} if seats else {}
        job = Job(
            client=CLIENT.address, trainer=TRAINER.address, program_root=digest("program"), body_count=4000,
            state_count=400, data_count=2, initial_state_root=digest("state"), data_root=digest("data"), steps=8000,
            checkpoint_interval=1000, policy=int(policy), tolerances=tolerances,
            **replace(TERMS, nonce=nonce, seats=seats, **pay).job_fields,
        )  # fmt: skip
        offer = tx.CreateJob(job=job, signature=TRAINER.sign(job.digest(self.chain.domain)))
        self.take("create job with seats" if seats else "create job", CLIENT, Call.of(offer))
        return job

    def accepted(self, seats: int = 0, policy: Policy = Policy.EXACT, tolerances: int = 0) -> Job:
        job = self.job(seats, policy, tolerances)
        call = Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake)
        self.take("accept job with seats" if seats else "accept job", TRAINER, call)
        return job

    def head(self, job: Job, count: int, run: str = "run") -> SignedHead:
        return SignedHead.sign(Head(job_id=job.id, count=count, run_root=digest(run)), self.chain.domain, TRAINER)

    def challenge(self, job: Job, challenger: PrivateKey) -> Digest:
        """Opens a game against the last head."""
        game, receipt = self.chain.challenge(challenger, self.head(job, job.checkpoints), nonce=0)
        self.gas["challenge"] = receipt.gas_used
        return game

    def loss_report(self) -> tx.ReportLoss:
        """A report of the fifth of eight checkpoints."""
        job = self.accepted(policy=Policy.LOGGED, tolerances=FINITE_LOSSES)
        records = [
            StepRecord(step=1000 * n, state_root=digest("s"), loss_bits=0, log_root=digest("l")) for n in range(1, 9)
        ]
        records[4] = replace(records[4], loss_bits=NAN_BITS)
        root = run_tree([record.digest for record in records], job.steps, job.checkpoint_interval).root
        signed = SignedHead.sign(Head(job_id=job.id, count=8, run_root=root), self.chain.domain, TRAINER)
        found = tx.ReportLoss.of(job, signed, records)
        assert found is not None
        return found

    def settled(self) -> None:
        job = self.accepted()
        for count in range(1, job.checkpoints + 1):
            call = Call.of(tx.PostHead(head=self.head(job, count)))
            self.take("first head" if count == 1 else "post head", TRAINER, call)
        self.chain.advance(max(TERMS.challenge_window, job.checkpoints * TERMS.audit_time) + 2)
        self.take("settle", TRAINER, Call.of(tx.Settle(job_id=job.id)))
        self.take("withdraw", TRAINER, Call.of(tx.Withdraw(to=TRAINER.address)))

    def ended_early(self) -> None:
        self.take("cancel job", CLIENT, Call.of(tx.CancelJob(job_id=self.job().id)))
        job = self.accepted()
        self.chain.advance(TERMS.challenge_window + 2)
        self.take("abandon", CLIENT, Call.of(tx.Abandon(job_id=job.id)))

    def parted(self) -> None:
        job = self.accepted(policy=Policy.LOGGED)
        head = self.head(job, 2)
        self.chain.send(TRAINER, Call.of(tx.PostHead(head=head)))
        receipt = LogReceipt.sign(head.head, self.chain.domain, CLIENT)
        self.take("acknowledge", TRAINER, Call.of(tx.Acknowledge(receipt=receipt)))
        self.chain.advance(max(TERMS.challenge_window, 2 * TERMS.audit_time) + 2)
        self.take("part", TRAINER, Call.of(tx.Part(job_id=job.id)))
        # So `settle` is measured without a credit there.
        self.chain.send(TRAINER, Call.of(tx.Withdraw(to=TRAINER.address)))

    def slashed(self) -> None:
        """Measures slashing: conflicting heads during an open game, concessions, and a challenger out of time."""
        job = self.accepted()
        game = self.challenge(job, CHALLENGER)
        report = tx.Report(first=self.head(job, 3), second=self.head(job, 3, "another"))
        self.take("report equivocation", SECOND, Call.of(report))
        self.take("reclaim", CHALLENGER, Call.of(tx.Reclaim(game_id=game)))
        head = self.head(self.accepted(), 3).head
        conceded = Concession.sign(head, SECOND.address, self.chain.domain, TRAINER)
        self.take("report concession", SECOND, Call.of(tx.ReportConcession(concession=conceded)))
        self.take("report loss", SECOND, Call.of(self.loss_report()))
        job = self.accepted()
        game = self.challenge(job, CHALLENGER)
        self.take("concede", TRAINER, Call("concede", (game,)))
        job = self.accepted()
        game = self.challenge(job, CHALLENGER)
        self.chain.advance(TERMS.clock + TERMS.replay_time + 2)
        self.take("timeout", CHALLENGER, Call.of(tx.ClaimTimeout(game_id=game)))

    def seated(self) -> None:
        """A job with two seats, the deposit of whose auditor comes back in the end."""
        slot = self.slots
        self.slots += 1
        self.take("join pool", CHALLENGER, Call("joinPool", (slot,), BOND))
        job = self.accepted(seats=2)
        last, salt = job.checkpoints, digest("salt")
        self.chain.advance(TERMS.challenge_window // 2 + 1)
        for count in (1, last):
            head = tagged_hash(Tag.HEAD_SEAL, job.id, count.to_bytes(8, "big"), digest("run"), salt)
            call = Call.of(tx.SealHead(job_id=job.id, count=count, seal=head))
            self.take("seal final head" if count == last else "seal head", TRAINER, call)
        self.take("draw seats", CLIENT, Call.of(tx.DrawSeats(job=job, secret=self.secret())))
        root = tagged_hash(Tag.ROOT_SEAL, job.id, CHALLENGER.address, digest("run"), salt)
        for seat in range(2):
            self.take("seal root", CHALLENGER, Call.of(tx.SealRoot(job_id=job.id, seat=seat, seal=root), BOND))
        wait = max(TERMS.challenge_window, last * TERMS.audit_time) + 2
        self.chain.advance(wait)
        self.take("open head", TRAINER, Call.of(tx.OpenHead(head=self.head(job, last), salt=salt)))
        self.chain.advance(wait)
        self.take("settle with seats", TRAINER, Call.of(tx.Settle(job_id=job.id)))
        self.chain.send(TRAINER, Call.of(tx.Withdraw(to=TRAINER.address)))  # as after a job without seats
        claim = tx.ClaimSeat(job_id=job.id, seat=0, auditor=CHALLENGER.address, run_root=digest("run"), salt=salt)
        self.take("claim seat", CHALLENGER, Call.of(claim))
        self.chain.advance(wait)
        self.take("close seats", CLIENT, Call.of(tx.CloseSeats(job_id=job.id)))
        self.chain.advance(1 << 21)
        self.take("leave pool", CHALLENGER, Call.of(tx.LeavePool(bond=BOND, slot=slot)))


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
