"""Holds seats of jobs: joins pools, audits a job whose seat it drew, seals the root, and claims its pay."""

from typing import Any

from tiebreak.protocol.commitments.seats import POOL_SECONDS, SALT_BYTES, root_seal, salt_of
from tiebreak.protocol.packing import Data, Fields, pack, unpack
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import JobStatus, PublicJob
from tiebreak.protocol.parties.machine import PartyMachine, is_active
from tiebreak.protocol.parties.terms import objections_to_sitting
from tiebreak.protocol.tags import Digest


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
            place: e.Place = ("seat", job.id, seat)
            if place not in self.records:
                root = self.root_to_seal(job)
                if root is None:
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

    def _sealed(self, place: e.Place) -> tuple[Digest, bytes]:
        """The root and the salt that it sealed for a seat."""
        fields = Fields("seat", unpack(self.records[place], 1 << 8), 2)
        return Digest(fields.take(Data(SALT_BYTES))), fields.take(Data(SALT_BYTES))
