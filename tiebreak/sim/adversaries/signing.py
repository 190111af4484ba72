"""Trainers that misuse their heads: two for one count, none, late ones, or invalid ones."""

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
"""Number of checkpoints of the small computation's run, from which random ones are drawn."""


class _Signing(Adversary):
    """A trainer that lies in its heads."""

    role: ClassVar[Role] = Role.TRAINER


# ---------------------------------------------------------------- two heads for one place


class TwoHeads(Trainer):
    """Shows everyone the head of its run, and posts another one of the same count."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, at: int) -> None:
        super().__init__(world, name, key)
        self.at = at

    def posts(self, job: Job, heads: list[SignedHead]) -> list[SignedHead]:  # noqa: ARG002
        """Another head at one checkpoint."""
        (shown,) = heads
        if shown.head.count != self.at:
            return heads
        return [self.sign_head(replace(shown.head, run_root=Digest(self.rng.randbytes(32))))]


class Equivocation(_Signing):
    """Signs two heads for one count: the true one for auditors, another one for the board."""

    name: ClassVar[str] = "equivocation"
    gain: ClassVar[str] = "the auditor checks one run while the board pays for another"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.EQUIVOCATION})

    def join(self, cast: Cast, rng: Random) -> None:
        """Draw the checkpoint."""
        seat_trainer(cast, self.name, partial(TwoHeads, at=rng.randint(1, CHECKPOINTS)))


class LateSwap(Trainer):
    """Shows and posts its heads as agreed, except the last, which it posts when the window is almost over."""

    def heads(self, job: Job, count: int) -> list[SignedHead]:
        """Shows all heads but the last, so that nobody looks at that one early."""
        return [] if count == job.checkpoints else [self.head(job, count)]

    def posts(self, job: Job, heads: list[SignedHead]) -> list[SignedHead]:
        """Posts what it showed, and at the end the head that it did not show."""
        return heads or [self.head(job, job.checkpoints)]

    def posts_at(self, job: PublicJob, head: SignedHead) -> int:
        """The last head comes in the last second."""
        is_last = head.head.count == job.job.checkpoints
        return self.now + (last_call(self.world, job.window_end) if is_last else 0)


class SwappedHead(_Signing):
    """All heads are true but the last, which nobody sees before the last second of its window."""

    name: ClassVar[str] = "false head swapped in late"
    gain: ClassVar[str] = "a false result that there is no time left to look at"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.RECOMPUTED})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # the false number is drawn when it computes
        """The run is false in its last segment."""
        seat_trainer(cast, self.name, LateSwap, false_run=FalseSum(in_last_segment=True))


class _Hasty(Trainer):
    """Posts the final head as soon as it has the job, because inventing the run took no time."""

    def seconds(self, steps: int) -> int:  # noqa: ARG002
        return 0

    def heads(self, job: Job, count: int) -> list[SignedHead]:
        """Shows only the last head."""
        return [self.head(job, count)] if count == job.checkpoints else []


class HastyHead(_Signing):
    """Posts the final head at once, so that an auditor has only the window to replay the whole run."""

    name: ClassVar[str] = "final head at once"
    gain: ClassVar[str] = "a false result that is paid before anyone has replayed it"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.RECOMPUTED})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # the false number is drawn when it computes
        seat_trainer(cast, self.name, _Hasty, false_run=FalseSum())


class UnreplayableHead(HastyHead):
    """Posts the final head at once when the window holds some segments, but not the replay of the whole run.

    **Not stopped.** While a trainer computes as slowly as everyone, an auditor that replays beside it is never more
    than a segment behind, and such a window looks long enough. A trainer that computes nothing is not slow, and is paid
    before a diligent auditor has finished. So the window has to be long enough for a replay of the run from the first
    step.
    """

    name: ClassVar[str] = "final head at once, in a short window"
    caught: ClassVar[frozenset[Catch]] = frozenset()
    open: ClassVar[bool] = True

    def join(self, cast: Cast, rng: Random) -> None:
        """Sets the window to three quarters of the run's time."""
        super().join(cast, rng)
        cast.terms = replace(cast.terms, challenge_window=STEPS * cast.step_seconds * 3 // 4)


# ---------------------------------------------------------------- no heads


class Withholding(Trainer):
    """Shows and posts nothing from checkpoint `first` on."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, first: int) -> None:
        super().__init__(world, name, key)
        self.first = first

    def heads(self, job: Job, count: int) -> list[SignedHead]:
        """The heads before checkpoint `first`."""
        return [] if count >= self.first else [self.head(job, count)]


class WithheldHeads(_Signing):
    """Takes the job and falls silent at some checkpoint."""

    name: ClassVar[str] = "withheld heads"
    gain: ClassVar[str] = "the client waits for a result that never comes"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.ABANDONED})

    def join(self, cast: Cast, rng: Random) -> None:
        """Draw the checkpoint, which may be the first."""
        seat_trainer(cast, self.name, partial(Withholding, first=rng.randint(1, CHECKPOINTS)))


# ---------------------------------------------------------------- heads that are none


class Refused(Trainer):
    """Before each head posts something that the contract must refuse, at any cost; apart from that, as agreed."""

    def bad(self, job: PublicJob, head: SignedHead) -> list[SignedHead]:  # noqa: ARG002  # for those that look at it
        """The heads to be refused, posted before a correct head."""
        return []

    def bad_calls(self, job: PublicJob, head: SignedHead) -> list[Call]:
        """The same heads as transactions. They are also shown to everyone."""
        found = self.bad(job, head)
        for other in found:
            self.publish_head(other)
        return [calls.post_head(other) for other in found]

    def posts_at(self, job: PublicJob, head: SignedHead) -> int:
        """Posts the correct head in the next block."""
        self.spam(self.bad_calls(job, head))
        return self.world.next_block


class _RefusedHeads(_Signing):
    """A trainer of a true run that posts heads which are refused. Nothing changes, and the job goes on."""

    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.REFUSED})
    trainer: ClassVar[type[Refused]]

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # its choices are made as it goes
        seat_trainer(cast, self.name, self.trainer)


class _Foreign(Refused):
    def bad(self, job: PublicJob, head: SignedHead) -> list[SignedHead]:
        """Heads signed for another job, for another chain, by another key, and over another root."""
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
    """Heads with signatures that are valid elsewhere."""

    name: ClassVar[str] = "heads replayed from elsewhere"
    gain: ClassVar[str] = "pay for a run with the heads of another one"
    trainer: ClassVar[type[Refused]] = _Foreign


class _Malformed(Refused):
    def bad(self, job: PublicJob, head: SignedHead) -> list[SignedHead]:  # noqa: ARG002
        """The same signature with the high s, another v, cut off, lengthened, and all zeros."""
        r, s, v = head.signature[:32], int.from_bytes(head.signature[32:64], "big"), head.signature[64]
        high = r + (ORDER - s).to_bytes(32, "big") + bytes([55 - v])  # swaps 27 and 28
        low_v = head.signature[:64] + bytes([v - 27])
        signatures = (high, low_v, head.signature[:64], head.signature + b"\0", bytes(65))
        return [replace(head, signature=signature) for signature in signatures]


class MalformedSignatures(_RefusedHeads):
    """Heads with the signatures of its true heads in another form."""

    name: ClassVar[str] = "malformed and malleable signatures"
    gain: ClassVar[str] = "two different statements of one head, or one that nobody signed"
    trainer: ClassVar[type[Refused]] = _Malformed


class _Beyond(Refused):
    def bad(self, job: PublicJob, head: SignedHead) -> list[SignedHead]:
        """Heads over more checkpoints than the run has."""
        last = job.job.checkpoints
        counts = (last + 1, last + 2, (1 << 64) - 1)
        return [self.sign_head(replace(head.head, count=count)) for count in counts]

    def bad_calls(self, job: PublicJob, head: SignedHead) -> list[Call]:
        """Adds a head over zero checkpoints."""
        none = Call("postHead", ((job.id, 0, head.head.run_root), head.signature))
        return [*super().bad_calls(job, head), none]


class HeadsBeyondTheRun(_RefusedHeads):
    """Heads of counts that the run does not have."""

    name: ClassVar[str] = "heads beyond the run"
    gain: ClassVar[str] = "a final head without a run, or a window that starts again"
    trainer: ClassVar[type[Refused]] = _Beyond


class _Repeating(Refused):
    def bad_calls(self, job: PublicJob, head: SignedHead) -> list[Call]:  # noqa: ARG002
        """All heads that were posted before."""
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
