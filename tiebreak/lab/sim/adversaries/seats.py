"""Jobs with seats: auditors that want a fee without an audit, trainers that want to be their own, and a client's bait.

Each gets into a job with seats and an honest auditor beside it, which audits if it draws a seat, is paid for it, and
replays the head once it is opened. Nobody who has computed nothing is paid in a job that settles (promise 7).
"""

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from tiebreak.lab.sim.adversaries import base
from tiebreak.lab.sim.adversaries.auditors import seat_auditor
from tiebreak.lab.sim.adversaries.base import Catch, between, false_sum, with_a_cheat
from tiebreak.lab.sim.adversaries.collusion import SelfReporter, seat_pair
from tiebreak.lab.sim.world.agents import ClientAgent, Process, Scripted, TrainerAgent
from tiebreak.lab.sim.world.game import FUNDS, Cast, Factory
from tiebreak.lab.sim.world.simulated import TRANSACTION_WEI
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.commitments.terms import least_challenger_stake, pool_bond
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import PublicJob
from tiebreak.protocol.parties.events import Work
from tiebreak.protocol.tags import Digest

MOST_SLOTS: Final = 3
"""Slots that a trainer buys of a pool in which the honest auditor has one."""


def require_exact(cast: Cast) -> None:
    """Raises `ConfigurationError` under policy `logged`."""
    if cast.workshop.is_logged:
        raise ConfigurationError(f"expected workshop=exact for a job with seats, got {cast.workshop.name}")


def with_seats(cast: Cast, rng: Random) -> None:
    """Gives the job seats, if its line sets none. Raises `ConfigurationError` under policy `logged`."""
    require_exact(cast)
    if not cast.terms.seats:
        fee = cast.terms.reward // 10
        cast.terms = replace(cast.terms, seats=rng.randint(2, 8), seat_fee=fee, seat_bond=pool_bond(fee + 1))


# ---------------------------------------------------------------- auditors


class Guessing(Scripted):
    """Seals a root that it made up."""

    def root_to_seal(self, job: PublicJob) -> Digest | None:  # noqa: ARG002
        return Digest(self.rng.randbytes(32))


class Absent(Scripted):
    """Takes a slot, and leaves its seats empty."""

    def begin(self, work: Work) -> None:
        """It computes nothing, and so has nothing to seal."""


class SealCopier(Absent):
    """Posts a copy of another auditor's seal to its own seat, and claims with what that one opens."""

    def follow(self, job: PublicJob) -> Process:
        """Wait for a seal to copy, and then for what opens it."""
        copied = list[int]()
        yield from self.until(lambda: bool(job.seating.seals) or job.is_over)
        theirs = next((seal for _, seal in job.seating.seals.values()), None)
        for seat in range(job.job.seats):
            if theirs is None or job.is_over or self.world.board.seat_owner(job, seat) != self.address:
                continue
            sealed = tx.SealRoot(job_id=job.id, seat=seat, seal=theirs)
            if (yield from self.attempt(Call.of(sealed, job.job.seat_bond))):
                copied.append(seat)
        yield from self.until(lambda: job.is_over)
        if not copied:
            return
        yield from self.until(lambda: bool(self._claims_of(job)), job.claim_end - self.world.block_seconds)
        for shown in self._claims_of(job)[:1]:
            _, _, _, root, salt = shown.arguments
            self.spam(
                Call.of(tx.ClaimSeat(job_id=job.id, seat=seat, auditor=self.address, run_root=root, salt=salt))
                for seat in copied
            )

    def _claims_of(self, job: PublicJob) -> list[Call]:
        done = (included.pending.call for block in self.world.blocks for included in block.transactions)
        return [call for call in done if call.job_id == job.id and call.kind == "claimSeat"]


# ---------------------------------------------------------------- trainers


class Keeping(TrainerAgent):
    """Never opens its sealed final head, so that nobody can challenge it."""

    def opens(self, job: PublicJob) -> bool:  # noqa: ARG002
        return False


class Bought(Scripted):
    """An account of the trainer's in the pool: it seals its master's root."""

    def root_to_seal(self, job: PublicJob) -> Digest | None:
        return base.trainer_of(self.world).held()[1].run_root(job.job.checkpoints)


class Leaking(TrainerAgent):
    """Publishes its signed final head as soon as it is sealed, so that auditors may copy it instead of replaying."""

    def follow(self, job: PublicJob) -> Process:
        yield from self.until(lambda: job.is_sealed or job.is_over)
        if job.is_sealed:
            self.publish_head(self.head(job.job, job.job.checkpoints))


class Believing(Absent):
    """Seals the root of the head that the trainer showed too early."""

    def root_to_seal(self, job: PublicJob) -> Digest | None:
        shown = [head.head.run_root for head in self.heads_of(job.id) if head.head.count == job.job.checkpoints]
        return shown[0] if shown else None


# ---------------------------------------------------------------- clients


class BaitTrainer(Scripted):
    """The trainer of offers that are bait."""

    def sits(self, job: PublicJob) -> bool:  # noqa: ARG002
        return False


class Draining(ClientAgent):
    """Offers jobs whose bonds take most of an auditor's balance, so that it cannot pay for a dispute.

    Its accomplice accepts the latter, and goes no further. Then comes the job in which somebody lies.
    """

    baits: int

    def run(self) -> Process:
        """Lay the bait, give everybody time to take it, and offer the job. Its machine takes the offers back."""
        (accomplice,) = (found for found in self.world.parties.values() if isinstance(found, BaitTrainer))
        for number in range(self.baits):
            bond = pool_bond(FUNDS - 2 * TRANSACTION_WEI if number % 2 == 0 else FUNDS // 4 + number) // 2
            terms = replace(self.world.terms, seats=1, seat_fee=1, seat_bond=bond)
            worth = {
                name: getattr(terms, name) for name in ("reward", "trainer_stake", "seats", "seat_fee", "seat_bond")
            }
            terms = replace(terms, challenger_stake=max(terms.challenger_stake, least_challenger_stake(**worth)))
            parties = {"client": self.address, "trainer": accomplice.address}
            job = self.world.workshop.job(**parties, nonce=self.rng.getrandbits(128), terms=terms)
            yield from self.attempt(Call.of(tx.CreateJob(job=job, signature=job.sign(self.domain, accomplice.key))))
            if number % 2:
                self.world.submit(accomplice, Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake))
        yield from self.sleep(3 * self.world.block_seconds)
        yield from super().run()


def seat_with_accomplice(cast: Cast, rng: Random, name: str, make: Factory[Any]) -> None:
    require_exact(cast)
    base.seat_friend(cast, name, "accomplice", BaitTrainer)
    base.seat_client(cast, rng, name, make)


_EARNED_NOTHING: Final = {Catch.UNPAID, Catch.HARMLESS, Catch.REFUSED}
"""Refused if another auditor took the slot of the pool that it wanted in the same block."""
_seat: Final = partial(
    base.row,
    base.Role.AUDITOR,
    seat_auditor,
    before=with_seats,
    caught=_EARNED_NOTHING | {Catch.FORFEITED},
    seated=True,
)
_trainer: Final = partial(base.row, base.Role.TRAINER, before=with_seats, seated=True)
# fmt: off
ADVERSARIES: Final = (
    _seat("seat sealed with a guess", Guessing, "a fee without an audit"),
    _seat("seal of a seat copied", SealCopier, "a fee for another's audit"),
    _seat("seat left empty", Absent, "nothing: it takes a chance from those that would audit",
        caught=_EARNED_NOTHING),
    _trainer(seat_pair(Bought, "slot", MOST_SLOTS), "seats bought, all but one", TrainerAgent,
        "auditors of its own, who find nothing", run=false_sum()),
    _trainer(seat_pair(Believing, "believer"), "root shown to the seats", Leaking,
        "auditors who believe it, and do not look", run=false_sum()),
    _trainer(base.seat_trainer, "sealed head never opened", Keeping, "that its lie stays under the seal",
        {Catch.ABANDONED}, run=false_sum()),
    _trainer(seat_pair(SelfReporter), "self-report in a job with seats", TrainerAgent,
        "the prover's half of its stake, of which the seats get their shares", {Catch.EQUIVOCATION}, run=false_sum()),
    base.row(base.Role.CLIENT, seat_with_accomplice, "offers that drain", Draining,
        "auditors with no money left to challenge", {Catch.HARMLESS}, before=with_a_cheat, seated=True,
        baits=between(1, 4)),
)
# fmt: on
