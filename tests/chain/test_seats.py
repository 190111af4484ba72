"""Seats on the embedded EVM, call by call in random order, against the rules of SPEC section 11.1 written once more.

The seals and the draw are `tiebreak.protocol.commitments.seats`; contracts/test/Seats.t.sol spells their preimages out.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from random import Random

import pytest

from tests.chain.support import CHALLENGER, CLIENT, JOB, OTHER_RUN, PAUPER, RUN, STRANGER, TRAINER, head, new_chain
from tiebreak.protocol.chain import Call, EmbeddedChain, JobStatus, Receipt, Reverted
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.seats import ATTEMPTS, POOL_SECONDS, head_seal, nonce_of, root_seal, seed_of, slot_of
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.tags import Digest

pytestmark = pytest.mark.slow

WINDOW, AUDIT, DEADLINE, POOL = 100, 30, 400, POOL_SECONDS
FEE, BOND, STAKE = 3 * 10**17, 1 << 59, JOB.trainer_stake
AUDITORS = (CHALLENGER, STRANGER, PAUPER)
NOBODY = Address(bytes(20))
BURNED = Address(bytes(18) + b"\xde\xad")
SALT = sha256(b"salt").digest()
ENDED = (JobStatus.SETTLED, JobStatus.SLASHED, JobStatus.ABANDONED)


@dataclass
class Seated:
    job: Job
    secret: bytes
    root: Digest
    """What the trainer seals."""
    status: JobStatus = JobStatus.OFFERED
    count: int = 0
    last: int = 0
    audit_end: int = 0
    due: int = 0
    is_sealed: bool = False
    is_opened: bool = False
    sealed_at: int = 0
    length: int = 0
    seed: Digest | None = None
    entropy: bytes = b""
    seals: dict[int, tuple[Address, Digest]] = field(default_factory=dict)
    claimed: set[int] = field(default_factory=set)
    pot: int = 0
    paid: int = 0

    @property
    def end(self) -> int:
        return max(self.last + WINDOW, self.audit_end)


class Town:
    """The rules beside the contract: each call is predicted, made, and compared."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.chain: EmbeddedChain = new_chain()
        self.chain.fund(PAUPER.address, 10_000 * 10**18)
        self.clock = self.chain.now()
        self.jobs: list[Seated] = []
        self.pool: list[tuple[Address, int] | None] = []
        self.credits: Counter[Address] = Counter()
        self.taken: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    # ------------------------------------------------------------------ what the rules say

    def owner(self, one: Seated, seat: int) -> Address:
        if one.seed is None or not one.length or seat >= one.job.seats:
            return NOBODY
        for attempt in range(ATTEMPTS):
            slot = self.pool[slot_of(one.seed, seat, attempt, one.length)]
            if slot is not None and slot[1] < one.sealed_at:
                return slot[0]
        return NOBODY

    def make(self, key: PrivateKey, call: Call, *broken: tuple[str, bool]) -> bool:
        """Send a call. broken: errors in the contract's order, and whether each applies."""
        expected = next((name for name, applies in broken if applies), None)
        receipt, error = self.send(key, call)
        assert error == expected, (call.kind, expected, error)
        if receipt is None:
            return False
        assert receipt.timestamp == self.clock
        self.taken[call.kind] += 1
        return True

    def send(self, key: PrivateKey, call: Call) -> tuple[Receipt | None, str | None]:
        try:
            return self.chain.send(key, call), None
        except Reverted as error:
            self.refused[error.name] += 1
            return None, error.name

    def pay(self, account: Address, amount: int) -> None:
        self.credits[account] += amount

    def finish(self, one: Seated, status: JobStatus) -> None:
        one.status, one.last = status, self.clock

    # ------------------------------------------------------------------ one call at random

    def step(self) -> None:
        rng = self.rng
        self.clock = max(self.clock, self.chain.now()) + rng.choice((*(1,) * 9, 10, WINDOW // 2, WINDOW + 1))
        if rng.random() < 0.01:
            self.clock += POOL
        if self.clock > self.chain.now() + 1:
            self.chain.travel_to(self.clock)
        if len(self.pool) < 3 or rng.random() < 0.06:
            self.change_pool()
        elif not (open_jobs := [one for one in self.jobs if not self.is_over(one)]) or rng.random() < 0.03:
            self.offer()
        else:
            one = rng.choice(open_jobs[-2:]) if rng.random() < 0.97 else rng.choice(self.jobs)
            rng.choice(self.likely(one) if rng.random() < 0.85 else self.all)(one)

    def is_over(self, one: Seated) -> bool:
        return one.status is JobStatus.CANCELLED or (one.status in ENDED and one.pot == 0)

    @property
    def all(self) -> tuple[Callable[[Seated], None], ...]:
        life = (
            self.accept, self.cancel, self.seal_head, self.draw, self.seal_root, self.open, self.settle, self.abandon,
        )  # fmt: skip
        return (*life, self.slash, self.claim, self.close)

    def likely(self, one: Seated) -> tuple[Callable[[Seated], None], ...]:
        if one.status is JobStatus.OFFERED:
            return (*([self.accept] * 9), self.cancel)
        if one.status is not JobStatus.ACTIVE:
            return (self.claim, self.claim, self.claim, self.close)
        if not one.is_sealed and not one.is_opened:
            return (self.seal_head,) if one.count < 3 else (self.settle,)
        if one.is_opened:
            return (self.settle, self.settle, self.settle, self.slash)
        if self.clock > one.end:
            return (self.open, self.open, self.open, self.abandon, self.slash)
        return (self.draw,) if one.seed is None else (self.seal_root,) * 5 + (self.slash,)

    def offer(self) -> None:
        secret = self.rng.randbytes(32)
        nonce = nonce_of(secret)
        times = {"challenge_window": WINDOW, "audit_time": AUDIT, "deadline": DEADLINE}
        job = replace(JOB, seats=self.rng.randint(1, 4), seat_fee=FEE, seat_bond=BOND, nonce=nonce, **times)
        signed = TRAINER.sign(job.digest(self.chain.domain))
        assert self.make(CLIENT, Call.of(tx.CreateJob(job=job, signature=signed)))
        self.jobs.append(Seated(job, secret, self.rng.choice((RUN, RUN, OTHER_RUN))))

    def change_pool(self) -> None:
        auditor, at = self.rng.choice(AUDITORS), self.rng.randrange(len(self.pool) + 2)
        slot = self.pool[at] if at < len(self.pool) else None
        if self.rng.random() < 0.6:
            free = at <= len(self.pool) and slot is None
            if self.make(auditor, Call("joinPool", (at,), BOND), ("SlotNotFree", not free)):
                self.pool[at : at + 1] = [(auditor.address, self.clock)]
            return
        known = {key.address: key for key in AUDITORS}
        if slot is not None and self.rng.random() < 0.7:
            auditor = known[slot[0]]
        foreign = slot is None or slot[0] != auditor.address
        early = ("WindowOpen", slot is not None and self.clock <= slot[1] + POOL)
        if self.make(auditor, Call.of(tx.LeavePool(bond=BOND, slot=at)), ("WrongCaller", foreign), early):
            self.pool[at] = None
            self.pay(auditor.address, BOND)

    def is_not(self, one: Seated, status: JobStatus) -> tuple[str, bool]:
        return "WrongJobStatus", one.status is not status

    def cancel(self, one: Seated) -> None:
        if self.make(CLIENT, Call.of(tx.CancelJob(job_id=one.job.id)), self.is_not(one, JobStatus.OFFERED)):
            one.status = JobStatus.CANCELLED
            self.pay(CLIENT.address, one.job.reward + one.job.seats * FEE)

    def accept(self, one: Seated) -> None:
        if self.make(TRAINER, Call.of(tx.AcceptJob(job_id=one.job.id), STAKE), self.is_not(one, JobStatus.OFFERED)):
            one.status, one.last, one.due = JobStatus.ACTIVE, self.clock, self.clock + DEADLINE
            one.audit_end = self.clock
            self.clock += self.rng.choice((0, WINDOW // 2, WINDOW // 2))  # until nobody joins any more
            one.pot = one.job.seats * FEE

    def seal_head(self, one: Seated) -> None:
        count = self.rng.choice((0, 1, 2, 3, 3, 3, 3, 4))
        who = self.rng.choice((TRAINER,) * 9 + (CLIENT,))
        call = Call.of(tx.SealHead(job_id=one.job.id, count=count, seal=head_seal(one.job.id, count, one.root, SALT)))
        broken = (
            self.is_not(one, JobStatus.ACTIVE),
            ("WrongCaller", who is not TRAINER),
            ("HeadOutOfRange", count > 3),
            ("HeadNotAscending", count <= one.count),
            ("WindowClosed", self.clock > min(one.last + WINDOW, one.due)),
            ("WindowOpen", count == 3 and self.clock <= one.due - DEADLINE + WINDOW // 2),
        )
        if not self.make(who, call, *broken):
            return
        one.count, one.last, one.audit_end = count, self.clock, max(one.audit_end, self.clock)
        if count == 3:
            one.is_sealed, one.sealed_at, one.length = True, self.clock, len(self.pool)
            # The embedded chain executes with a prevrandao of zero.
            one.entropy = self.chain._read(Call("seating", (one.job.id,))).seed

    def draw(self, one: Seated) -> None:
        secret = one.secret if self.rng.random() < 0.9 else SALT
        broken = (
            self.is_not(one, JobStatus.ACTIVE),
            ("NotSealed", not one.is_sealed),
            ("AlreadyDrawn", one.seed is not None),
            ("WindowClosed", self.clock > one.end),
            ("WrongSecret", secret != one.secret),
        )
        if self.make(STRANGER, Call.of(tx.DrawSeats(job=one.job, secret=secret)), *broken):
            one.seed = seed_of(one.job.id, one.entropy, secret)
            one.last, one.audit_end = self.clock, max(one.audit_end, self.clock) + 3 * AUDIT

    def seal_root(self, one: Seated) -> None:
        seat = self.rng.randrange(one.job.seats + (self.rng.random() < 0.1))
        owner = self.owner(one, seat)
        keys = [key for key in AUDITORS if key.address == owner] or [CLIENT]
        who = keys[0] if self.rng.random() < 0.9 else TRAINER
        seal = root_seal(one.job.id, who.address, self.rng.choice((one.root, RUN)), SALT)
        paid = BOND if self.rng.random() < 0.95 else BOND + 1
        broken = (
            self.is_not(one, JobStatus.ACTIVE),
            ("NotSealed", not one.is_sealed),
            ("WrongPayment", paid != BOND),
            ("WrongCaller", who.address != owner),
            ("AlreadySealed", seat in one.seals),
            ("WindowClosed", self.clock > one.end),
        )
        if self.make(who, Call.of(tx.SealRoot(job_id=one.job.id, seat=seat, seal=seal), paid), *broken):
            one.seals[seat] = (who.address, seal)
            one.pot += BOND

    def open(self, one: Seated) -> None:
        root = one.root if self.rng.random() < 0.9 else Digest(SALT)
        broken = (
            self.is_not(one, JobStatus.ACTIVE),
            ("NotSealed", not one.is_sealed),
            ("WrongSealOpened", root != one.root),
            ("WindowOpen", self.clock <= one.end),
            ("WindowClosed", self.clock > one.end + WINDOW),
        )
        if self.make(STRANGER, Call.of(tx.OpenHead(head=head(self.chain, one.job, 3, root), salt=SALT)), *broken):
            one.is_sealed, one.is_opened, one.last = False, True, self.clock

    def settle(self, one: Seated) -> None:
        broken = (
            self.is_not(one, JobStatus.ACTIVE),
            ("FinalHeadMissing", one.count != 3),
            ("FinalHeadSealed", one.is_sealed),
            ("WindowOpen", self.clock <= one.end),
        )
        if self.make(STRANGER, Call.of(tx.Settle(job_id=one.job.id)), *broken):
            self.finish(one, JobStatus.SETTLED)
            self.pay(TRAINER.address, one.job.reward + STAKE)

    def abandon(self, one: Seated) -> None:
        due = one.end + WINDOW if one.is_sealed else min(one.last + WINDOW, one.due)
        broken = (
            self.is_not(one, JobStatus.ACTIVE),
            ("FinalHeadPosted", one.is_opened),
            ("WindowOpen", self.clock <= due),
        )
        if self.make(STRANGER, Call.of(tx.Abandon(job_id=one.job.id)), *broken):
            self.finish(one, JobStatus.ABANDONED)
            self.pay(CLIENT.address, one.job.reward + STAKE)

    def slash(self, one: Seated) -> None:
        if self.rng.random() < 0.8:  # it ends a job
            return
        two = (head(self.chain, one.job, 1), head(self.chain, one.job, 1, OTHER_RUN))
        if self.make(STRANGER, Call.of(tx.Report(first=two[0], second=two[1])), self.is_not(one, JobStatus.ACTIVE)):
            self.finish(one, JobStatus.SLASHED)
            half = STAKE // 2
            share = half // (1 + one.job.seats)
            one.pot += half - share
            self.pay(CLIENT.address, one.job.reward)
            self.pay(STRANGER.address, share)
            self.pay(BURNED, STAKE - half)

    def claim(self, one: Seated) -> None:
        seat = self.rng.randrange(one.job.seats)
        auditor, sealed = one.seals.get(seat, (STRANGER.address, Digest(bytes(32))))
        root = self.rng.choice((RUN, OTHER_RUN))
        fits = seat not in one.claimed and root_seal(one.job.id, auditor, root, SALT) == sealed
        agrees = one.is_opened and root == one.root
        settled = one.status is JobStatus.SETTLED
        broken = (
            ("JobNotEnded", one.status not in ENDED),
            ("WindowClosed", self.clock > one.last + WINDOW),
            ("WrongSealOpened", not fits),
            ("WrongRoot", settled and not agrees),
        )
        claim = tx.ClaimSeat(job_id=one.job.id, seat=seat, auditor=auditor, run_root=root, salt=SALT)
        if not self.make(TRAINER, Call.of(claim), *broken):
            return
        amount = BOND
        if settled or not agrees:
            amount += FEE
            one.paid += 1
            if one.status is JobStatus.SLASHED:
                amount += STAKE // 2 // (1 + one.job.seats)
        one.claimed.add(seat)
        one.pot -= amount
        self.pay(auditor, amount)

    def close(self, one: Seated) -> None:
        broken = (
            ("JobNotEnded", one.status not in ENDED),
            ("WindowOpen", self.clock <= one.last + WINDOW),
            ("PotEmpty", one.pot == 0),
        )
        if self.make(STRANGER, Call.of(tx.CloseSeats(job_id=one.job.id)), *broken):
            wasted = one.status is JobStatus.SETTLED and one.seed is None
            to_client = 0 if wasted else (one.job.seats - one.paid) * FEE
            self.pay(CLIENT.address, to_client)
            self.pay(BURNED, one.pot - to_client)
            one.pot = 0

    # ------------------------------------------------------------------ both

    def compare(self) -> None:
        everybody = [key.address for key in (CLIENT, TRAINER, *AUDITORS)]
        assert {who: self.chain.credit(who) for who in everybody} == {who: self.credits[who] for who in everybody}
        for one in self.jobs[-3:]:
            seats = self.chain._read(Call("seating", (one.job.id,)))
            assert (seats.pot, seats.paid, seats.is_drawn) == (one.pot, one.paid, one.seed is not None)
            assert (seats.head_seal != bytes(32)) is one.is_sealed
            for seat in range(one.job.seats):
                assert self.chain._read(Call("seatOwner", (one.job.id, seat))) == self.owner(one, seat)

    def owed(self) -> int:
        held = sum(one.job.reward + one.job.seats * FEE for one in self.jobs if one.status is JobStatus.OFFERED)
        held += sum(one.job.reward + STAKE for one in self.jobs if one.status is JobStatus.ACTIVE)
        deposits = BOND * sum(slot is not None for slot in self.pool)
        return held + sum(one.pot for one in self.jobs) + deposits + self.credits.total()


def play(seed: int, steps: int) -> Town:
    town = Town(seed)
    for number in range(steps):
        town.step()
        if number % 3 == 0 or number == steps - 1:  # what is wrong once stays so
            town.compare()
    board = town.chain.deployment.board
    assert town.chain.balance(board) == town.owed()
    return town


def test_seats_follow_the_rules_in_many_orders(cases: Callable[[], None]) -> None:
    taken: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for seed in (2, 3):
        town = play(seed, 130)
        taken += town.taken
        refused += town.refused
        cases()
    kinds = {"joinPool", "sealHead", "drawSeats", "sealRoot", "openHead", "claimSeat", "closeSeats"}
    assert kinds <= taken.keys(), taken
    # Most calls come to pass, and many are refused for the reason that the rules name.
    assert taken.total() > 60
    assert len(refused) > 4, refused
