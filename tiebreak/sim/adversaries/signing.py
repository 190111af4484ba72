"""Trainers that do with heads what was not agreed: two for one place, none, late ones, or some that are none."""

from dataclasses import replace
from functools import partial
from random import Random
from typing import ClassVar, Final

from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.commitments.keys import ORDER, PrivateKey
from tiebreak.protocol.parties.board import PublicJob
from tiebreak.protocol.tags import Digest
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.false_runs import FalseSum, seat_trainer
from tiebreak.sim.adversaries.waiting import last_call
from tiebreak.sim.world import calls
from tiebreak.sim.world.agents import Trainer
from tiebreak.sim.world.calls import Call
from tiebreak.sim.world.cast import Cast
from tiebreak.sim.world.small_task import STEPS
from tiebreak.sim.world.world import World

CHECKPOINTS: Final = 4
"""Of the small computation's run; which of them a choice falls on is drawn among so many."""


class _Signing(Adversary):
    """A trainer that lies in its heads."""

    role: ClassVar[Role] = Role.TRAINER


# ---------------------------------------------------------------- two heads for one place


class TwoHeads(Trainer):
    """Shows everyone the head of its run, and posts another of the same count."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, at: int) -> None:
        super().__init__(world, name, key)
        self.at = at

    def posts(self, job: Job, heads: list[SignedHead]) -> list[SignedHead]:  # noqa: ARG002
        """Another head, at one checkpoint."""
        (shown,) = heads
        if shown.head.count != self.at:
            return heads
        return [self.sign_head(replace(shown.head, run_root=Digest(self.rng.randbytes(32))))]


class Equivocation(_Signing):
    """Two signed heads for one count: the true one for whoever audits, another one on the board."""

    name: ClassVar[str] = "equivocation"
    gain: ClassVar[str] = "the auditor checks one run while the board pays for another"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.EQUIVOCATION})

    def join(self, cast: Cast, rng: Random) -> None:
        """At one of the checkpoints."""
        seat_trainer(cast, self.name, partial(TwoHeads, at=rng.randint(1, CHECKPOINTS)))


class LateSwap(Trainer):
    """Shows and posts the heads of its run as agreed, but the last, which it posts when the window is all but over."""

    def heads(self, job: Job, count: int) -> list[SignedHead]:
        """None at the end: nobody is to look at it early."""
        return [] if count == job.checkpoints else [self.head(job, count)]

    def posts(self, job: Job, heads: list[SignedHead]) -> list[SignedHead]:
        """What it showed; at the end what it did not show."""
        return heads or [self.head(job, job.checkpoints)]

    def posts_at(self, job: PublicJob, head: SignedHead) -> int:
        """The last at the last second."""
        is_last = head.head.count == job.job.checkpoints
        return self.now + (last_call(self.world, job.window_end) if is_last else 0)


class SwappedHead(_Signing):
    """All heads are true but the last, which nobody sees before the last second of its window."""

    name: ClassVar[str] = "false head swapped in late"
    gain: ClassVar[str] = "a false result that there is no time left to look at"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.RECOMPUTED})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # the false number is drawn when it computes
        """With a run that is false in its last segment."""
        seat_trainer(cast, self.name, LateSwap, false_run=FalseSum(in_last_segment=True))


class _Hasty(Trainer):
    """Posts the final head as soon as it has the job: what it made up took it no time."""

    def seconds(self, steps: int) -> int:  # noqa: ARG002
        """None."""
        return 0

    def heads(self, job: Job, count: int) -> list[SignedHead]:
        """The last alone."""
        return [self.head(job, count)] if count == job.checkpoints else []


class HastyHead(_Signing):
    """The final head at once, so that an auditor has no more than the window for the replay of the whole run."""

    name: ClassVar[str] = "final head at once"
    gain: ClassVar[str] = "a false result that is paid before anyone has replayed it"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.RECOMPUTED})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # the false number is drawn when it computes
        """On the cast's terms."""
        seat_trainer(cast, self.name, _Hasty, false_run=FalseSum())


class UnreplayableHead(HastyHead):
    """The final head at once, of a job whose window holds some segments, but not the replay of the whole run.

    **Not stopped.** While a trainer computes as slowly as everyone, an auditor that replays beside it is never more
    than a segment behind, and such a window looks long enough. A trainer that computes nothing is not slow: it is paid
    before a diligent auditor is through. So the window has to hold a replay of the run, from the first step.
    """

    name: ClassVar[str] = "final head at once, in a short window"
    caught: ClassVar[frozenset[Catch]] = frozenset()
    open: ClassVar[bool] = True

    def join(self, cast: Cast, rng: Random) -> None:
        """On terms whose window is three quarters of the run."""
        super().join(cast, rng)
        cast.terms = replace(cast.terms, challenge_window=STEPS * cast.step_seconds * 3 // 4)


# ---------------------------------------------------------------- no heads


class Withholding(Trainer):
    """From one checkpoint on it shows and posts nothing."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, first: int) -> None:
        super().__init__(world, name, key)
        self.first = first

    def heads(self, job: Job, count: int) -> list[SignedHead]:
        """Those before."""
        return [] if count >= self.first else [self.head(job, count)]


class WithheldHeads(_Signing):
    """It takes the job, and at some checkpoint falls silent."""

    name: ClassVar[str] = "withheld heads"
    gain: ClassVar[str] = "the client waits for a result that never comes"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.ABANDONED})

    def join(self, cast: Cast, rng: Random) -> None:
        """From a checkpoint on, maybe the first."""
        seat_trainer(cast, self.name, partial(Withholding, first=rng.randint(1, CHECKPOINTS)))


# ---------------------------------------------------------------- heads that are none


class Refused(Trainer):
    """Before it posts a head it posts what the contract must refuse, whatever that costs; then it does as agreed."""

    def bad(self, job: PublicJob, head: SignedHead) -> list[SignedHead]:  # noqa: ARG002  # for those that look at it
        """What it posts, beside a head that is right."""
        return []

    def bad_calls(self, job: PublicJob, head: SignedHead) -> list[Call]:
        """As transactions; it shows the same to everyone."""
        found = self.bad(job, head)
        for other in found:
            self.publish_head(other)
        return [calls.post_head(other) for other in found]

    def posts_at(self, job: PublicJob, head: SignedHead) -> int:
        """In the block after."""
        self.spam(self.bad_calls(job, head))
        return self.world.next_block


class _RefusedHeads(_Signing):
    """What it gains is for naught: not a bit changes, and the job goes on."""

    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.REFUSED})
    trainer: ClassVar[type[Refused]]

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # its choices are made as it goes
        """With a true run."""
        seat_trainer(cast, self.name, self.trainer)


class _Foreign(Refused):
    def bad(self, job: PublicJob, head: SignedHead) -> list[SignedHead]:
        """Signed for another job, for another chain, by another key, and over another root."""
        other = replace(job.job, nonce=job.job.nonce ^ 1)
        domain = self.world.domain
        elsewhere = Domain(chain_id=domain.chain_id + 1, contract=domain.contract)
        stranger = PrivateKey.from_int(self.rng.randrange(1, ORDER))
        return [
            self.sign_head(replace(head.head, job_id=other.id)),
            SignedHead.sign(head.head, elsewhere, self.key),
            SignedHead.sign(head.head, domain, stranger),
            replace(head, head=replace(head.head, run_root=Digest(self.rng.randbytes(32)))),
        ]


class ForeignHeads(_RefusedHeads):
    """Heads with signatures that are good elsewhere."""

    name: ClassVar[str] = "heads replayed from elsewhere"
    gain: ClassVar[str] = "pay for a run with the heads of another one"
    trainer: ClassVar[type[Refused]] = _Foreign


class _Malformed(Refused):
    def bad(self, job: PublicJob, head: SignedHead) -> list[SignedHead]:  # noqa: ARG002
        """The same signature with the high s, another v, cut off, lengthened, and nothing but zeros."""
        r, s, v = head.signature[:32], int.from_bytes(head.signature[32:64], "big"), head.signature[64]
        high = r + (ORDER - s).to_bytes(32, "big") + bytes([55 - v])  # 27 and 28 change places
        low_v = head.signature[:64] + bytes([v - 27])
        signatures = (high, low_v, head.signature[:64], head.signature + b"\0", bytes(65))
        return [replace(head, signature=signature) for signature in signatures]


class MalformedSignatures(_RefusedHeads):
    """Heads whose signatures are those of its heads in another form."""

    name: ClassVar[str] = "malformed and malleable signatures"
    gain: ClassVar[str] = "two different statements of one head, or one that nobody signed"
    trainer: ClassVar[type[Refused]] = _Malformed


class _Beyond(Refused):
    def bad(self, job: PublicJob, head: SignedHead) -> list[SignedHead]:
        """Of more checkpoints than the run has."""
        last = job.job.checkpoints
        counts = (last + 1, last + 2, (1 << 64) - 1)
        return [self.sign_head(replace(head.head, count=count)) for count in counts]

    def bad_calls(self, job: PublicJob, head: SignedHead) -> list[Call]:
        """And of none."""
        none = Call("postHead", ((job.id, 0, head.head.run_root), head.signature))
        return [*super().bad_calls(job, head), none]


class HeadsBeyondTheRun(_RefusedHeads):
    """Heads of counts that the run does not have."""

    name: ClassVar[str] = "heads beyond the run"
    gain: ClassVar[str] = "a final head without a run, or a window that starts again"
    trainer: ClassVar[type[Refused]] = _Beyond


class _Repeating(Refused):
    def bad_calls(self, job: PublicJob, head: SignedHead) -> list[Call]:  # noqa: ARG002
        """All heads that were posted before, again."""
        return [calls.post_head(self.head(job.job, count)) for count in range(1, job.head_count + 1)]


class RepeatedHeads(_RefusedHeads):
    """Old heads, again and again."""

    name: ClassVar[str] = "repeated heads"
    gain: ClassVar[str] = "windows that start again, and never end"
    trainer: ClassVar[type[Refused]] = _Repeating


ADVERSARIES: tuple[type[Adversary], ...] = (
    Equivocation,
    SwappedHead,
    HastyHead,
    UnreplayableHead,
    WithheldHeads,
    ForeignHeads,
    MalformedSignatures,
    HeadsBeyondTheRun,
    RepeatedHeads,
)
