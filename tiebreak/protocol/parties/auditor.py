"""Two parties that check runs: a watcher alerts its owner and needs no key; an auditor stakes money on its findings.

An auditor also holds seats: it joins pools, audits a job whose seat it drew, seals the root, and claims its pay.

If a replay does not match a head, the run is replayed a second time, and only two equal results count: the likeliest
cause of a false alarm is the auditor's own machine. If two replays differ, a third decides, and a person is alerted.
"""

from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from itertools import count, pairwise
from typing import Any, ClassVar, Final

from tiebreak.protocol.commitments.job import Concession, Job, SignedHead, game_id
from tiebreak.protocol.commitments.seats import POOL_SECONDS, SALT_BYTES, root_seal, salt_of
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.packing import Data, Fields, Uint, pack, unpack
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import JobStatus, PublicJob
from tiebreak.protocol.parties.events import Place
from tiebreak.protocol.parties.machine import PartyMachine, is_active
from tiebreak.protocol.parties.player import Player
from tiebreak.protocol.parties.terms import objections_to_auditing, objections_to_sitting
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree

ATTEMPTS: Final = 3
MAX_STRANGERS: Final = 1024
"""The most heads kept of jobs that the board does not show yet; bounded, because anybody can make them up."""


class Finding(Enum):
    """The result of replays about a head."""

    TRUE = "true"
    FALSE = "false"
    UNCHECKABLE = "uncheckable"


class WatcherParty(PartyMachine):
    """Replays every head of every job that it can compute, and raises alarms. It sends nothing and needs no key."""

    ROLE: ClassVar = "watcher"

    def __init__(self, **known: Any) -> None:
        super().__init__(**known)
        self._strangers: list[tuple[SignedHead, tuple[Digest, ...]]] = []
        self._fetched: set[tuple[Digest, int]] = set()

    # ------------------------------------------------------------------ decisions

    def concerns(self, job: PublicJob) -> bool:
        """Decide whether to watch a job. By default it watches every job that it can compute."""
        return self.program_of(job.job) is not None

    def replays(self, head: SignedHead) -> bool:  # noqa: ARG002
        """Decide whether to replay a head at all."""
        return True

    # ------------------------------------------------------------------ a round

    def learn(self, event: e.Event) -> None:
        """Record heads, fetched runs and the results of replays."""
        super().learn(event)
        match event:
            case e.HeadShown():
                if (event.head, event.leaves) not in self._strangers[:MAX_STRANGERS]:
                    self._strangers.append((event.head, event.leaves))
            case e.Arrived():
                self._fetched.add((event.job_id, event.count))
            case e.Done(work=e.Replay() as work):
                self.record((*_replayed(work.head), work.attempt), event.root)
                if event.problem and event.found is None:
                    self.alarm(f"{_name(work.head)} cannot be checked: {event.problem}")
        self._strangers = [shown for shown in self._strangers if not self._sort(*shown)][:MAX_STRANGERS]

    def _sort(self, head: SignedHead, leaves: tuple[Digest, ...]) -> bool:
        """Keep a head, and the leaves of its run tree. Returns False if the board does not show its job yet."""
        if (job := self.board.jobs.get(head.head.job_id)) is None:
            return False
        self.keep_head(head, job.job)
        is_kept = head in self.heads_of(job.id)
        is_new = len(leaves) == head.head.count and is_kept and _leaves_of(head) not in self.records
        if is_new and Tree(leaves, job.job.run_depth).root == head.head.run_root:
            self.record(_leaves_of(head), b"".join(leaves))
        return True

    def plan(self) -> None:
        for job in self.jobs():
            with self.apart(f"job {job.id.hex()[:8]}"):
                if not job.is_over and self.concerns(job):
                    self._watch(job)
        super().plan()

    def _watch(self, job: PublicJob) -> None:
        self._audit(job)
        for head in self.heads_of(job.id):
            if self.finding(head) is Finding.FALSE:
                self.alarm(f"{_name(head)} is false: two replays gave another root", is_error=True)
        for first, second in self.conflicts(job.id):
            self.alarm(f"{_name(first)}: the trainer also signed root {second.head.run_root.hex()}", is_error=True)
        if found := self.contradiction(job):
            names = f"{_name(found.first.head)} and head {found.second.head.head.count}"
            self.alarm(f"{names} differ in record {found.position}", is_error=True)

    def _audit(self, job: PublicJob) -> None:
        """Replay the heads of a job one after the other, in order of arrival."""
        for head in self.heads_of(job.id):
            if self.finding(head) is None and self.replays(head):
                if job.job.is_logged and (job.id, head.head.count) not in self._fetched:
                    self.once(e.FetchRun(job_id=job.id, count=head.head.count))
                else:
                    self.begin(e.Replay(job_id=job.id, head=head, attempt=len(self.results(head))))
                return

    # ------------------------------------------------------------------ what it knows

    def conflicts(self, job_id: Digest) -> Iterator[tuple[SignedHead, SignedHead]]:
        """Pairs of heads with the same count and different roots."""
        first = dict[int, SignedHead]()
        for head in self.heads_of(job_id):
            if (other := first.setdefault(head.head.count, head)) is not head:
                yield other, head

    def contradiction(self, job: PublicJob) -> tx.ReportInconsistency | None:
        """Two heads of a job with different records in one place; None if there are none among the leaves it was shown.

        No replay is needed for it. Heads of one count are `conflicts`.
        """
        heads = sorted(self.heads_of(job.id), key=lambda head: head.head.count)
        shown = [(head, self.records[_leaves_of(head)]) for head in heads if _leaves_of(head) in self.records]
        for (first, ours), (second, theirs) in pairwise(shown):
            if not theirs.startswith(ours):
                position = next(i for i in count() if ours[32 * i : 32 * i + 32] != theirs[32 * i : 32 * i + 32])
                opened = (_opened(job.job, head, data, position) for head, data in ((first, ours), (second, theirs)))
                return tx.ReportInconsistency(position=position, first=next(opened), second=next(opened))
        return None

    def finding(self, head: SignedHead) -> Finding | None:
        """The result of the replays so far; None if another one is needed."""
        results = self.results(head)
        if b"" in results:
            return Finding.UNCHECKABLE
        if head.head.run_root in results[:1]:
            return Finding.TRUE
        if len(results) > 1 and len(set(results)) > 1:
            self.alarm(f"{_name(head)}: two replays differ; check this machine", is_error=True)
        if twice := [root for root in results if results.count(root) > 1]:
            return Finding.TRUE if twice[0] == head.head.run_root else Finding.FALSE
        return Finding.UNCHECKABLE if len(results) == ATTEMPTS else None

    def results(self, head: SignedHead) -> list[bytes]:
        """The roots computed by the replays of a head, by attempt. Empty bytes: that replay was not possible."""
        place = _replayed(head)
        # The root that it computed for a seat of the job, before there was a head, counts as the first.
        places: list[Place] = [("audited", *place[1:3]), *((*place, attempt) for attempt in range(ATTEMPTS))]
        return [self.records[place] for place in places if place in self.records]


class Sitter(PartyMachine):
    """A party with a key that is paid for audits. It seals nothing that it has not computed itself."""

    # ------------------------------------------------------------------ decisions

    def sits(self, job: PublicJob) -> bool:
        """Decide whether to take a seat of a job: whether it can audit it, in time, for less than the fee."""
        if self.means.most_bond and job.job.seat_bond > self.means.most_bond:
            return False
        return not objections_to_sitting(job.job, self.program_of(job.job), self.pace_of(job.job))

    def root_to_seal(self, job: PublicJob) -> Digest | None:
        """Choose the root to seal; None starts an audit, after which it is asked again."""
        root = self.records.get(("audited", job.id, job.job.checkpoints))
        return None if root is None else Digest(root)

    def leaves(self, bond: int) -> bool:
        """Decide whether to leave a pool. The default is to leave when no job goes on that could draw from it.

        An offer is no reason to stay: it costs nothing, and may stand for ever.
        """
        return not any(is_active(job) for job in self.jobs() if job.job.seat_bond == bond)

    # ------------------------------------------------------------------ a round

    def learn(self, event: e.Event) -> None:
        """Record the results of audits."""
        super().learn(event)
        match event:
            case e.Done(work=e.Audit(job_id=job_id)) if event.problem:
                self.alarm(f"job {job_id.hex()[:8]} cannot be audited: {event.problem}", is_error=True)
            case e.Done(work=e.Audit(job_id=job_id)):
                self.record(("audited", job_id, self.board.jobs[job_id].job.checkpoints), event.root)

    def plan(self) -> None:
        for job in self.jobs():
            if job.job.seats:
                with self.apart(f"job {job.id.hex()[:8]}"):
                    self._join(job)
                    self._seal(job)
                    self._claim(job)
        for bond, number in self.board.slots_of(self.address):
            since = self.board.pools[bond][number].since
            if self.leaves(bond) and self.has_come(since + POOL_SECONDS + 1):
                self.want(("leave", bond, number, since), tx.LeavePool(bond=bond, slot=number))
        super().plan()

    def has_business(self) -> bool:
        """Whether it also has a seat to claim. A deposit in a pool, which stays for weeks, is none."""
        claims = any(not self.is_given_up(place) for job in self.jobs() for place in self._claims(job))
        return claims or super().has_business()

    def _join(self, job: PublicJob) -> None:
        """Join before the final seal, as later slots are not drawn, but not for an offer, which is withdrawn for free.

        The money that is left has to pay for a seat and for a challenge.
        """
        bond, stake = job.job.seat_bond, job.job.challenger_stake
        if not is_active(job) or job.seating.sealed_at or not self.sits(job):
            return
        if bond in (bond for bond, _ in self.board.slots_of(self.address)):
            return
        place, spare = ("join", bond), bond + max(0, self.means.most_stake - stake)
        if self.affords(place, job.job, bond + stake, spare=spare, urgent=False):
            self.want(place, tx.JoinPool(bond=bond))

    def _seal(self, job: PublicJob) -> None:
        """Seal the root that it computed. The root is in the journal before, so the seal can be opened in any case."""
        if not is_active(job) or not job.is_sealed or self.now > job.window_end:
            return
        for seat in range(job.job.seats):
            if seat in job.seating.seals or self.board.seat_owner(job, seat) != self.address or not self.sits(job):
                continue
            bond, left = job.job.seat_bond, max(self.means.most_stake, job.job.challenger_stake)
            if not self.affords(("sit", job.id, seat), job.job, bond, spare=left):
                return
            place: Place = ("seat", job.id, seat)
            if place not in self.records:
                if (root := self.root_to_seal(job)) is None:
                    self.begin(e.Audit(job_id=job.id))
                    return
                self.record(place, pack([root, salt_of(self.key, job.id)]))
            seal = root_seal(job.id, self.address, *self._sealed(place))
            sealing = tx.SealRoot(job_id=job.id, seat=seat, seal=seal)
            self.want(("sit", job.id, seat), sealing, deadline=job.window_end)

    def _claim(self, job: PublicJob) -> None:
        for place in self._claims(job):
            root, salt = self._sealed(("seat", *place[1:]))
            claim = tx.ClaimSeat(job_id=job.id, seat=int(place[2]), auditor=self.address, run_root=root, salt=salt)
            self.want(place, claim, deadline=job.claim_end)

    def _claims(self, job: PublicJob) -> list[Any]:
        """The places of its claims that are open, of a job that has ended."""
        if not job.is_over or job.status is JobStatus.CANCELLED or self.now > job.claim_end:
            return []
        open_seats = [seat for seat in job.seating.seals if seat not in job.seating.claimed]
        own = [seat for seat in open_seats if job.seating.seals[seat][0] == self.address]
        return [("claim", job.id, seat) for seat in own if ("seat", job.id, seat) in self.records]

    def _sealed(self, place: Place) -> tuple[Digest, bytes]:
        """The root and the salt that it sealed for a seat."""
        fields = Fields("seat", unpack(self.records[place], 1 << 8), 2)
        return Digest(fields.take(Data(SALT_BYTES))), fields.take(Data(SALT_BYTES))


class AuditorParty(Player, Sitter, WatcherParty):
    """A watcher with a key: it challenges false heads, reports contradictory ones, and plays its games."""

    ROLE: ClassVar = "auditor"

    # ------------------------------------------------------------------ decisions

    def accuses(self, head: SignedHead, agrees: bool) -> bool:  # noqa: ARG002
        """Decide whether to challenge a head. `agrees` tells whether the replays gave the head's root."""
        return not agrees

    def objects(self, job: PublicJob) -> bool:
        """Whether it stays out of a job because under its terms it would lose its stake, or win nothing."""
        return bool(objections_to_auditing(job.job, self.program_of(job.job), self.pace_of(job.job)))

    def reports(self, first: SignedHead, second: SignedHead) -> bool:  # noqa: ARG002
        """Decide whether to report two heads that contradict each other."""
        return True

    def accused(self, job: PublicJob) -> SignedHead | None:
        """The first head of a job that it will challenge, or None if it knows of none."""
        for head in self.heads_of(job.id):
            finding = self.finding(head)
            if finding in (Finding.TRUE, Finding.FALSE) and self.accuses(head, finding is Finding.TRUE):
                return head
        return None

    # ------------------------------------------------------------------ a round

    def plan(self) -> None:
        """Play the open games first, because their clocks are running."""
        for game in list(self.board.games.values()):
            if game.challenger == self.address:
                self.play(game, Side.CHALLENGER)
        super().plan()

    def learn(self, event: e.Event) -> None:
        """Record the concessions that pay this auditor."""
        super().learn(event)
        if isinstance(event, e.ConcessionShown) and event.concession.prover == self.address:
            conceded = event.concession
            with suppress(VerificationError, KeyError):  # anybody can send anything
                conceded.verify(self.board.jobs[conceded.head.job_id].job, self.domain)
                self.record(("conceded", conceded.head.job_id), conceded.encode())

    def _watch(self, job: PublicJob) -> None:
        conceded, place = self.records.get(("conceded", job.id)), ("concession", job.id)
        if is_active(job) and conceded is not None and not self.is_given_up(place):
            self.want(place, tx.ReportConcession(concession=Concession.decode(conceded)))
            return  # a game would be dearer, and bring no more
        if self.reports_loss(job):
            return  # nor would it here
        for first, second in self.conflicts(job.id):
            if is_active(job) and self.reports(first, second):
                self.want(("report", job.id), tx.Report(first=first, second=second))
                break
        found = self.contradiction(job) if is_active(job) else None
        if found is not None and self.reports(found.first.head, found.second.head):
            self.want(("inconsistency", job.id), found)
        if not self._challenge(job):
            self._audit(job)

    def _challenge(self, job: PublicJob) -> bool:
        """Challenge the first false head, once per job. Returns whether the challenge is still under way."""
        place: Place = ("challenge", job.id)
        if place not in self.records:
            if (head := self.accused(job)) is None:
                return False
            if self.objects(job):
                self.alarm(f"{_name(head)} is false, but nobody can win a game on its terms", is_error=True)
                return False
            self.alarm(f"{_name(head)} is false: challenging it")
            self.record(place, pack([0, head.encode()]))
        fields = Fields("challenge", unpack(self.records[place], 1 << 16), 2)
        nonce, head = fields.take(Uint(64)), SignedHead.decode(fields.take(Data(1 << 16)))
        if game_id(head.head, self.domain, self.address, nonce) in self.board.games or self.is_given_up(place):
            return False
        if self.now > job.window_end:  # it opens again if the final head was sealed: it may be shown a block too soon
            self.alarm(f"{_name(head)} is false, but nobody can challenge it now", is_error=not job.is_sealed)
            return False
        # Games that others start just before this one raise its price, and a builder may leave no block for another
        # try. So it pays for as many as burn what a false run can win, and gets the rest back; for one more each try.
        least = self.refusals(place)
        tries = range(job.job.games_that_burn_its_worth - 1, least, -1)
        more = next((n for n in tries if self.could_pay(job.job, self.board.price(job, n))), least)
        challenge = tx.Challenge(head=head, nonce=nonce, more=more)
        if not self.affords(place, job.job, self.board.stake_of(challenge)):
            return False
        self.want(place, challenge, deadline=job.window_end)
        return True


def _replayed(head: SignedHead) -> Place:
    return ("replayed", head.head.job_id, head.head.count, head.head.run_root)


def _leaves_of(head: SignedHead) -> Place:
    return ("leaves", head.head.job_id, head.head.count, head.head.run_root)


def _opened(job: Job, head: SignedHead, leaves: bytes, position: int) -> tx.OpenedHead:
    tree = Tree([leaves[i : i + 32] for i in range(0, len(leaves), 32)], job.run_depth)
    return tx.OpenedHead(head=head, leaf=tree.node(0, position), siblings=tuple(tree.proof(position)))


def _name(head: SignedHead) -> str:
    return f"job {head.head.job_id.hex()[:8]}, head {head.head.count}"
