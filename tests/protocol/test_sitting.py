"""Jobs with seats, by the machines alone: who says what when, what a crash leaves of it, and who stays away."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from tests.parts import slow_except
from tests.protocol.runs import CHALLENGER, CLIENT, SECRET, TRAINER, Liar, Run
from tests.protocol.test_parties import calls, known
from tests.protocol.town import JOB, LIE, START, Fate, KnowingAuditor, KnowingClient, KnowingTrainer, Town
from tests.protocol.town import root as root_of
from tiebreak.protocol.commitments.seats import head_seal, nonce_of, root_seal, seed_of
from tiebreak.protocol.packing import pack
from tiebreak.protocol.parties import auditor
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import Board, JobStatus, PoolSlot, PublicJob
from tiebreak.protocol.parties.terms import Means

SEATED = replace(
    JOB, seats=2, seat_fee=50, seat_bond=64, audit_time=30, nonce=nonce_of(SECRET), challenge_window=240,
    trainer_stake=601,
)  # fmt: skip
TRUTH, FALSE = Run(SEATED), Liar(SEATED, *LIE)
SHARE = SEATED.trainer_stake // 2 // 3
POOL_SECONDS = 1200
ENDED = (JobStatus.SETTLED, JobStatus.SLASHED, JobStatus.ABANDONED)


@pytest.fixture(autouse=True)
def short_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a town need not last for weeks."""
    monkeypatch.setattr(auditor, "POOL_SECONDS", POOL_SECONDS)


class SeatedTown(Town):
    """Its board has seats; it counts what it takes and pays for them."""

    def __init__(self, run: Run = TRUTH, **more: Any) -> None:
        super().__init__(run, **more)
        self.truth, self.seal, self.held = TRUTH, b"", 0
        self.at(START, lambda: self.tell("client", e.JobDrafted(at=self.now, job=SEATED, secret=SECRET)))

    def execute(self, sender: bytes, wanted: tx.Transaction) -> str:
        if isinstance(wanted, tx.OnSeats):
            return self.seat(sender, wanted)
        if isinstance(wanted, tx.PostHead):
            return "HeadMustBeSealed"
        if isinstance(wanted, tx.CreateJob):
            self.board.jobs[wanted.job.id] = PublicJob(job=wanted.job, last_progress=self.now)
            return ""
        return super().execute(sender, wanted)

    def pay(self, account: bytes, amount: int) -> None:
        self.held -= amount
        self.board.credits[account] = self.board.credits.get(account, 0) + amount  # type: ignore[index,arg-type]

    def seat(self, sender: Any, wanted: Any) -> str:  # noqa: C901  # one case a transaction
        now, pools = self.now, self.board.pools
        match wanted:
            case tx.JoinPool(bond=bond):
                slots = pools.setdefault(bond, [])
                number = self.board.free_slot(bond)
                slots[number : number + 1] = [PoolSlot(owner=sender, since=now)]
                self.held += bond
                return ""
            case tx.LeavePool(bond=bond, slot=number):
                if now <= pools[bond][number].since + POOL_SECONDS:
                    return "WindowOpen"
                pools[bond][number].owner = None
                self.pay(sender, bond)
                return ""
        job = self.job
        late = now > job.window_end
        match wanted:
            case tx.SealHead(count=count, seal=seal):
                assert count < SEATED.checkpoints or now > job.joining_end
                job.seal(count, now, len(pools.get(SEATED.seat_bond, [])))
                self.seal, self.held = seal, self.held + (2 * SEATED.seat_fee if count == 1 else 0)
            case tx.DrawSeats(job=drawn, secret=secret):
                assert nonce_of(secret) == drawn.nonce
                assert job.is_sealed
                job.draw(seed_of(job.id, bytes(32), secret), now)
            case tx.SealRoot(seat=seat, seal=seal):
                if late:
                    return "WindowClosed"
                assert self.board.seat_owner(job, seat) == sender
                job.seating.seals[seat] = (sender, seal)
                self.held += SEATED.seat_bond
            case tx.OpenHead(head=head, salt=salt):
                if not late:
                    return "WindowOpen"
                assert head_seal(job.id, head.head.count, head.head.run_root, salt) == self.seal
                job.post(head.head.count, now)
                self.posted.append(head)
            case tx.ClaimSeat(seat=seat, auditor=auditor, run_root=root, salt=salt):
                return self.claim(seat, auditor, root, salt)
            case tx.CloseSeats():
                if now <= job.claim_end:
                    return "WindowOpen"
                job.seating.is_closed = True
                self.pay(JOB.client, (SEATED.seats - job.paid_fees) * SEATED.seat_fee)
        return ""

    def claim(self, seat: int, auditor: Any, root: bytes, salt: bytes) -> str:
        job = self.job
        assert job.seating.seals[seat] == (auditor, root_seal(job.id, auditor, root, salt))  # type: ignore[arg-type]
        if seat in job.seating.claimed or job.status not in ENDED:
            return "WrongSealOpened"
        agrees = job.seating.is_opened and root == root_of(self.run, SEATED.checkpoints)
        if job.status is JobStatus.SETTLED and not agrees:
            return "WrongRoot"
        earns = agrees is (job.status is JobStatus.SETTLED)
        share = SHARE if job.status is JobStatus.SLASHED else 0
        job.seating.claimed[seat] = SEATED.seat_bond + (SEATED.seat_fee + share if earns else 0)
        self.pay(auditor, job.seating.claimed[seat])
        return ""

    def told(self, name: str, kind: type) -> list[Any]:
        """The transactions of a kind that a party asked for."""
        return [transaction for transaction in calls(self.seen[name].actions) if isinstance(transaction, kind)]


def test_seated_auditor_audits_then_seals_and_is_paid_after_the_job() -> None:
    town = SeatedTown().play(3000)
    assert town.job.status is JobStatus.SETTLED
    assert set(town.job.seating.claimed.values()) == {SEATED.seat_bond + SEATED.seat_fee}
    assert len(town.job.seating.claimed) == 2
    assert not any(town.board.credits.values()), "everyone has withdrawn"
    assert town.held == 0
    order = [type(a.work if isinstance(a, e.Start) else a.transaction) for a in town.seen["auditor"].actions
             if isinstance(a, e.Start | e.Transact)]  # fmt: skip
    assert order[:4] == [tx.JoinPool, e.Audit, tx.SealRoot, tx.SealRoot]
    assert e.Replay not in order, "what it computed for its seat says that the head is true"


def test_trainer_reveals_its_root_only_after_auditors_seal_theirs() -> None:
    town = SeatedTown()
    town.play(300)
    (sealed,) = town.board.jobs.values()
    assert sealed.is_sealed
    assert sealed.seating.seals
    assert not [a for a in town.seen["trainer"].actions if isinstance(a, e.ShowHead | e.PublishRun)]
    town.play(3000)
    (opened,) = [a for a in town.seen["trainer"].actions if isinstance(a, e.ShowHead)]
    assert opened.head.head.count == SEATED.checkpoints


def test_seated_auditors_share_a_slashed_stake() -> None:
    town = SeatedTown(FALSE).play(3000)
    assert town.job.status is JobStatus.SLASHED
    assert set(town.job.seating.claimed.values()) == {SEATED.seat_bond + SEATED.seat_fee + SHARE}


class Silent(KnowingClient):
    def draws(self, job: PublicJob) -> bool:
        return False


class Keeping(KnowingTrainer):
    def opens(self, job: PublicJob) -> bool:
        return False


class Elsewhere(KnowingAuditor):
    def sits(self, job: PublicJob) -> bool:
        return False


def test_client_that_never_draws_seats_has_no_fees_to_reclaim() -> None:
    town = SeatedTown(kinds={"client": Silent}).play(3000)
    assert (town.job.status, town.job.seating.seals) == (JobStatus.SETTLED, {})
    assert town.told("client", tx.CloseSeats) == []


def test_a_client_takes_back_the_fees_of_empty_seats() -> None:
    town = SeatedTown(kinds={"auditor": Elsewhere})
    town.at(START + 2400, town.mine)  # a block long after the job, when nobody else sends anything
    town.play(3000)
    assert town.job.status is JobStatus.SETTLED
    assert town.told("auditor", tx.JoinPool) == []
    assert len(town.told("client", tx.CloseSeats)) == 1
    assert not any(town.board.credits.values())
    assert town.held == 0


def test_job_is_abandoned_and_seats_paid_if_the_head_stays_sealed() -> None:
    town = SeatedTown(FALSE, kinds={"trainer": Keeping}).play(3000)
    assert town.job.status is JobStatus.ABANDONED
    assert set(town.job.seating.claimed.values()) == {SEATED.seat_bond + SEATED.seat_fee}


@pytest.mark.parametrize("name", slow_except(["client", "trainer", "auditor"], "trainer"))
def test_restarted_party_repeats_identical_statements(name: str, cases: Any) -> None:
    """It may die after any of its events: the seals are the same, byte for byte, and every wei is where it belongs."""
    whole = SeatedTown(FALSE).play(3000)
    for event in range(1, whole.seen[name].events, whole.seen[name].events // 4):
        town = SeatedTown(FALSE, fate=Fate(dies=(name, event))).play(3000)
        assert town.statements() == whole.statements(), event
        assert town.job.seating.claimed == whole.job.seating.claimed
        cases()


# ---------------------------------------------------------------- what it puts up


def auditor_of(*jobs: PublicJob, **means: Any) -> KnowingAuditor:
    board = Board()
    board.jobs.update({job.id: job for job in jobs})
    return KnowingAuditor(**known(board, CHALLENGER), means=Means(**means))


def joined(auditor: KnowingAuditor) -> list[int]:
    wanted = calls(auditor.observe(e.BoardChanged(at=START, block=START)))
    return [transaction.bond for transaction in wanted if isinstance(transaction, tx.JoinPool)]


BOND, STAKE = SEATED.seat_bond, SEATED.challenger_stake


@pytest.mark.parametrize(
    ("means", "joins"),
    [
        ({}, True),
        ({"most_bond": BOND}, True),
        ({"most_bond": BOND - 1}, False),
        ({"most_stake": BOND + STAKE}, True),
        ({"most_stake": BOND + STAKE - 1}, False),
        ({"most_exposed": 2 * BOND + STAKE}, True),
        ({"most_exposed": 2 * BOND + STAKE - 1}, False),
        ({"most_stake": 900, "most_exposed": 2 * BOND + 900}, True),
        ({"most_stake": 900, "most_exposed": 2 * BOND + 899}, False),
        ({"floor": 7, "balance": lambda: 2 * BOND + STAKE + 7}, True),
        ({"floor": 7, "balance": lambda: 2 * BOND + STAKE + 6}, False),
    ],
)
def test_auditor_joins_a_pool_only_within_its_spending_limits(means: Any, *, joins: bool) -> None:
    job = PublicJob(job=SEATED, last_progress=START)
    auditor = auditor_of(job, **means)
    assert joined(auditor) == [], "an offer is withdrawn for free"
    job.accept(START)
    assert joined(auditor) == [BOND] * joins
    assert joined(auditor) == [], "on its way"


def test_pending_pool_deposits_count_and_each_pool_is_joined_once() -> None:
    jobs = [PublicJob(job=replace(SEATED, seat_bond=bond), last_progress=0) for bond in (64, 128)]
    jobs.append(PublicJob(job=replace(SEATED, nonce=1), last_progress=0))
    for job in jobs:
        job.accept(START)
    assert joined(auditor_of(*jobs, most_exposed=2 * 64 + 128 + STAKE)) == [64]
    assert joined(auditor_of(*jobs)) == [64, 128]


def test_pool_reports_how_many_own_slots_make_cheating_pay(cases: Callable[[], None]) -> None:
    """The rule in fractions gives the same for each number of slots; holes do not count."""
    for seats, slots in ((1, 1), (1, 12), (2, 12), (16, 12), (1, 0)):
        job = PublicJob(job=replace(SEATED, seats=seats, reward=200), last_progress=0)
        board = auditor_of(job).board
        board.pools[BOND] = [PoolSlot(owner=CHALLENGER.address, since=0)] * slots + [PoolSlot(owner=None, since=0)]
        pays = []
        for own in range(slots):
            f = Fraction(own, slots)
            found = (1 - f**seats) * (job.job.reward + job.job.trainer_stake - job.share)
            pays.append(found <= job.job.reward + seats * f * (1 - f ** (seats - 1)) * job.share)
        assert pays == sorted(pays)
        assert board.pool_of(job) == (slots, pays.count(False))
        cases()


def test_pool_deposit_is_withdrawn_despite_offered_jobs() -> None:
    job = PublicJob(job=SEATED, last_progress=START)
    auditor = auditor_of(job)
    auditor.board.pools[BOND] = [PoolSlot(owner=CHALLENGER.address, since=START - POOL_SECONDS - 1)]
    (leaving,) = auditor.observe(e.BoardChanged(at=START, block=START))
    assert isinstance(leaving, e.Transact)
    assert leaving.transaction == tx.LeavePool(bond=BOND, slot=0)


@pytest.mark.parametrize("name", ["trainer", "auditor"])
def test_stake_is_sent_only_once_the_balance_suffices(name: str) -> None:
    """A stake for a job or a challenge, and later the bonds of seats: what there is has to pay for it and the floor."""
    purse = [0]
    kind = {"trainer": KnowingTrainer, "auditor": KnowingAuditor}[name]
    town = SeatedTown(FALSE)
    town.drivers[name].machine.means = Means(floor=5, balance=lambda: purse[0])
    town.play(120)
    assert isinstance(town.drivers[name].machine, kind)
    assert not town.told(name, tx.AcceptJob if name == "trainer" else tx.JoinPool)
    texts = [action.text for action in town.seen[name].actions if isinstance(action, e.Alarm)]
    assert any("expected a balance of at least" in text for text in texts)
    purse[0] = 10_000
    assert town.play(3000).job.status is JobStatus.SLASHED


@pytest.mark.parametrize(("money", "sent"), [(BOND + STAKE, True), (BOND + STAKE - 1, False)])
def test_a_seat_is_taken_only_with_the_money_for_a_challenge_left(money: int, *, sent: bool) -> None:
    town = SeatedTown(FALSE)
    town.at(START + 40, lambda: setattr(town.drivers["auditor"].machine, "means", Means(balance=lambda: money)))
    town.play(3000)
    assert bool(town.told("auditor", tx.SealRoot)) is sent
    assert town.told("auditor", tx.Challenge), "the stake is there"


# ---------------------------------------------------------------- terms


def seated_board(pool: list[PoolSlot], sealed_at: int = 10) -> tuple[Board, PublicJob]:
    board, job = Board(), PublicJob(job=SEATED, status=JobStatus.ACTIVE, last_progress=0)
    board.jobs[job.id], board.pools[SEATED.seat_bond] = job, pool
    job.seal(SEATED.checkpoints, sealed_at, len(pool))
    return board, job


def test_seat_goes_only_to_a_slot_filled_before_the_final_seal() -> None:
    owner = CHALLENGER.address
    board, job = seated_board(
        [PoolSlot(owner=owner, since=9), PoolSlot(owner=None, since=0), PoolSlot(owner=owner, since=10)]
    )
    assert board.seat_owner(job, 0) is None, "not drawn yet"
    job.draw(seed_of(job.id, bytes(32), SECRET), 11)
    assert board.seat_owner(job, 0) == owner
    for pool in ([], [PoolSlot(owner=None, since=0)], [PoolSlot(owner=owner, since=10)]):
        board, job = seated_board(pool)
        job.draw(seed_of(job.id, bytes(32), SECRET), 11)
        assert board.seat_owner(job, 0) is None
    assert board.free_slot(SEATED.seat_bond) == 1
    assert board.slots_of(owner) == [(SEATED.seat_bond, 0)]


# ---------------------------------------------------------------- the last second


def sealed_job(
    status: JobStatus, *, heads: int = SEATED.checkpoints, ended: int | None = None
) -> tuple[Board, PublicJob]:
    """A job whose final head is sealed, and whose seats are drawn to the auditor."""
    board, job = seated_board([PoolSlot(owner=CHALLENGER.address, since=0)])
    job.draw(seed_of(job.id, bytes(32), SECRET), START)
    job.status, job.head_count, job.ended = status, heads, ended
    return board, job


def sent(machine: Any, at: int) -> list[type]:
    """The types of the transactions that a party asks for at an instant."""
    return [type(transaction) for transaction in calls(machine.observe(e.Tick(at=at)))]


def test_seat_payment_is_claimed_once_and_until_the_last_second() -> None:
    for after, claimed in ((-1, False), (0, False), (1, False), (0, True)):
        board, job = sealed_job(JobStatus.SETTLED, ended=START)
        auditor = KnowingAuditor(**known(board, CHALLENGER))
        auditor.records["seat", job.id, 0] = pack([bytes(32), bytes(32)])
        job.seating.seals[0] = (CHALLENGER.address, root_seal(job.id, CHALLENGER.address, bytes(32), bytes(32)))
        job.seating.claimed = {0: 64} if claimed else {}
        assert (tx.ClaimSeat in sent(auditor, job.claim_end + after)) is (after <= 0 and not claimed), (after, claimed)


def test_client_reclaims_seat_fees_only_after_the_claim_deadline() -> None:
    for after in (-1, 0, 1):
        board, job = sealed_job(JobStatus.SETTLED, ended=START)
        client = KnowingClient(**known(board, CLIENT))
        assert (tx.CloseSeats in sent(client, job.claim_end + after)) is (after > 0)


def test_auditor_seals_its_root_until_the_windows_last_second() -> None:
    for after in (-1, 0, 1):
        board, job = sealed_job(JobStatus.ACTIVE)
        auditor = KnowingAuditor(**known(board, CHALLENGER))
        auditor.records["audited", job.id, SEATED.checkpoints] = root_of(TRUTH, SEATED.checkpoints)
        assert (tx.SealRoot in sent(auditor, job.window_end + after)) is (after <= 0)


def test_auditor_leaves_a_pool_only_after_its_minimum_time() -> None:
    for after in (-1, 0, 1):
        board = Board()
        board.pools[SEATED.seat_bond] = [PoolSlot(owner=CHALLENGER.address, since=START)]
        auditor = KnowingAuditor(**known(board, CHALLENGER))
        assert (tx.LeavePool in sent(auditor, START + POOL_SECONDS + after)) is (after > 0)


def test_trainer_seals_and_opens_its_head_only_after_each_deadline() -> None:
    """It seals when auditors had their time to join, and opens when they had theirs to seal."""
    counts = range(1, SEATED.checkpoints + 1)
    trained = [e.AppendRecord(place=("trained", SEATED.id, k), data=root_of(TRUTH, k)) for k in counts]
    for after in (-1, 0, 1):
        board, job = sealed_job(JobStatus.ACTIVE, heads=SEATED.checkpoints - 1)
        job.seating.sealed_at, job.seating.seed, job.accepted = 0, None, START
        trainer = KnowingTrainer(**known(board, TRAINER, trained))
        assert (tx.SealHead in sent(trainer, job.joining_end + after)) is (after > 0)
        board, job = sealed_job(JobStatus.ACTIVE)
        trainer = KnowingTrainer(**known(board, TRAINER, trained))
        assert (tx.OpenHead in sent(trainer, job.window_end + after)) is (after > 0)
