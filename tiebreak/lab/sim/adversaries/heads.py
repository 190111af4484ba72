"""Trainers that misuse their heads: two for one count, none, late ones, or invalid ones."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from tiebreak.lab.sim.adversaries.base import Catch, between, false_sum, first_late, last_call, one_of, trainer
from tiebreak.lab.sim.world.agents import TrainerAgent
from tiebreak.lab.sim.world.game import Cast
from tiebreak.lab.sim.world.small_task import STEPS
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import Head, Job, SignedHead
from tiebreak.protocol.commitments.keys import ORDER, PrivateKey
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import PublicJob
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree

CHECKPOINTS: Final = 4
"""Number of checkpoints of the small computation's run, from which random ones are drawn."""

# ---------------------------------------------------------------- two heads for one place


class TwoHeads(TrainerAgent):
    """Publishes the head of its run by mail, and posts another one of the same count, `at`, on the board."""

    at: int

    def posts(self, job: Job, heads: list[SignedHead]) -> list[SignedHead]:  # noqa: ARG002
        (shown,) = heads
        if shown.head.count != self.at:
            return heads
        return [self.sign_head(replace(shown.head, run_root=Digest(self.rng.randbytes(32))))]


class LateSwap(TrainerAgent):
    """Publishes and posts true heads, except for a false last one that it posts in the last second of its window."""

    def heads(self, job: Job, count: int) -> list[SignedHead]:
        """Publishes all heads but the last, so that nobody can replay that one early."""
        return [] if count == job.checkpoints else [self.head(job, count)]

    def posts(self, job: Job, heads: list[SignedHead]) -> list[SignedHead]:
        """Posts the heads that it published, and at the end the one that it did not."""
        return heads or [self.head(job, job.checkpoints)]

    def posts_at(self, job: PublicJob, head: SignedHead) -> int:
        is_last = head.head.count == job.job.checkpoints
        return self.now + (last_call(self.world, job.due) if is_last else 0)


class Rewriting(TrainerAgent):
    """Publishes each head with its records; from checkpoint `at` on, the record of the first segment is another one."""

    at: int

    def _leaves(self, count: int) -> tuple[Digest, ...]:
        tree = self.held()[1].oracle.run_tree(count)
        true = tuple(tree.node(0, position) for position in range(count))
        return true if count < self.at else (Digest(bytes(32)), *true[1:])

    def heads(self, job: Job, count: int) -> list[SignedHead]:
        root = Tree(self._leaves(count), job.run_depth).root
        return [self.sign_head(Head(job_id=job.id, count=count, run_root=root))]

    def leaves_of(self, head: SignedHead) -> tuple[Digest, ...]:
        return self._leaves(head.head.count)


class Hasty(TrainerAgent):
    """Posts the final head as soon as it has the job, because inventing the run took no time."""

    def seconds(self, steps: int) -> int:  # noqa: ARG002
        return 0

    def ahead(self, job: PublicJob) -> int:
        """No receipt is worth waiting for."""
        return job.job.checkpoints

    def heads(self, job: Job, count: int) -> list[SignedHead]:
        return [self.head(job, count)] if count == job.checkpoints else []


class LastSecondTrainer(Hasty):
    """Posts a true head, unseen until then, at the last second of its window; then the rest, made up, at once."""

    def posts(self, job: Job, heads: list[SignedHead]) -> list[SignedHead]:
        """The first head, which it has not published, and the last."""
        first = ("trained", job.id, 2) not in self.records
        return [self.head(job, 1)] if first else heads

    def posts_at(self, job: PublicJob, head: SignedHead) -> int:
        return self.now + (last_call(self.world, job.due) if head.head.count == 1 else 0)


def window_shorter_than_a_replay(cast: Cast, _rng: Random) -> None:
    """Makes the window hold some segments, but not the replay of the whole run.

    While a trainer computes as slowly as everyone, an auditor that replays beside it is never more than a segment
    behind, and such a window is long enough. A trainer that computes nothing is not slow: it has to wait until each
    segment that it posts has had its audit time.
    """
    cast.terms = replace(cast.terms, challenge_window=STEPS * cast.step_seconds * 3 // 4)


# ---------------------------------------------------------------- no heads, and late ones


class Withholding(TrainerAgent):
    """Accepts the job, and publishes and posts nothing from checkpoint `first` on."""

    first: int

    def heads(self, job: Job, count: int) -> list[SignedHead]:
        return [] if count >= self.first else [self.head(job, count)]


class LastSecond(TrainerAgent):
    """Posts each head of a true run in the last block of its window."""

    def posts_at(self, job: PublicJob, head: SignedHead) -> int:  # noqa: ARG002
        return self.now + last_call(self.world, job.due)


class TooLate(TrainerAgent):
    """Posts its first head a block after the first block in which its client could have given up, and did."""

    def posts_at(self, job: PublicJob, head: SignedHead) -> int:  # noqa: ARG002
        return self.now + first_late(self.world, job.due) + self.world.block_seconds


def with_a_deadline(cast: Cast, _rng: Random) -> None:
    """Makes the deadline three times what the run takes."""
    cast.terms = replace(cast.terms, deadline=3 * STEPS * cast.step_seconds)


# ---------------------------------------------------------------- heads that are none


class RefusedHeads(TrainerAgent):
    """Posts what the contract must refuse, at any cost, before each head of a true run. Nothing changes by it."""

    bad: Callable[["RefusedHeads", PublicJob, SignedHead], list[Call]]
    """Makes the calls to be refused, sent before the call that posts a correct head."""

    def posts_at(self, job: PublicJob, head: SignedHead) -> int:
        """Posts the correct head in the next block."""
        self.spam(self.bad(self, job, head))
        return self.world.next_block

    def shown(self, heads: Sequence[SignedHead]) -> list[Call]:
        """Calls that post these heads, including ones that the contract cannot decode. Publishes the heads, too."""
        for head in heads:
            self.publish_head(head)
        return [Call("postHead", (head.head.values, head.signature)) for head in heads]


def foreign(trainer: RefusedHeads, job: PublicJob, head: SignedHead) -> list[Call]:
    """Heads with signatures that are valid elsewhere: of another job, chain, key or root."""
    other, domain = replace(job.job, nonce=job.job.nonce ^ 1), trainer.world.domain
    elsewhere = Domain(chain_id=domain.chain_id + 1, contract=domain.contract)
    stranger = PrivateKey.from_int(trainer.rng.randrange(1, ORDER))
    return trainer.shown(
        [
            trainer.sign_head(replace(head.head, job_id=other.id)),
            SignedHead.sign(head.head, elsewhere, trainer.key),
            SignedHead.sign(head.head, domain, stranger),
            replace(head, head=replace(head.head, run_root=Digest(trainer.rng.randbytes(32)))),
        ]
    )


def malformed(trainer: RefusedHeads, _job: PublicJob, head: SignedHead) -> list[Call]:
    """The signatures of its true heads with the high s, another v, cut off, lengthened, and all zeros."""
    r, s, v = head.signature[:32], int.from_bytes(head.signature[32:64], "big"), head.signature[64]
    high = r + (ORDER - s).to_bytes(32, "big") + bytes([55 - v])  # swaps 27 and 28
    low_v = head.signature[:64] + bytes([v - 27])
    signatures = (high, low_v, head.signature[:64], head.signature + b"\0", bytes(65))
    return trainer.shown([replace(head, signature=signature) for signature in signatures])


def beyond(trainer: RefusedHeads, job: PublicJob, head: SignedHead) -> list[Call]:
    """Heads over more checkpoints than the run has, and over none."""
    last = job.job.checkpoints
    found = [trainer.sign_head(replace(head.head, count=count)) for count in (last + 1, last + 2, (1 << 64) - 1)]
    return [*trainer.shown(found), Call("postHead", ((job.id, 0, head.head.run_root), head.signature))]


def repeated(trainer: RefusedHeads, job: PublicJob, _head: SignedHead) -> list[Call]:
    """All its old heads, again before each new one."""
    return [Call.of(tx.PostHead(head=trainer.head(job.job, count))) for count in range(1, job.head_count + 1)]


_REFUSED: Final = {Catch.REFUSED}
EQUIVOCATION: Final = trainer(
    "equivocation",
    TwoHeads,
    "the auditor checks one run while the board pays for another",
    {Catch.EQUIVOCATION},
    at=between(1, CHECKPOINTS),
)
# fmt: off
ADVERSARIES: Final = (
    EQUIVOCATION,
    trainer("false head swapped in late", LateSwap, "a false result that there is no time left to look at",
        run=false_sum(in_last_segment=True)),
    trainer("final head at once", Hasty, "a false result that is paid before anyone has replayed it", run=false_sum()),
    trainer("final head at once, in a short window", Hasty, "a false result that is paid before anyone has replayed it",
        run=false_sum(), before=window_shorter_than_a_replay),
    trainer("true heads at the last second, then the rest at once", LastSecondTrainer,
        "a false rest that is paid before anyone has replayed it", run=false_sum(in_last_segment=True),
        before=window_shorter_than_a_replay),
    trainer("records rewritten", Rewriting, "heads of one run for the auditor, and of another for the board",
        {Catch.INCONSISTENCY}, at=between(2, CHECKPOINTS)),
    trainer("withheld heads", Withholding, "the client waits for a result that never comes",
        {Catch.ABANDONED, Catch.PARTED}, first=between(1, CHECKPOINTS)),
    trainer("heads at the last second", LastSecond, "time, for whatever it uses its machines for meanwhile",
        # Its answer is refused where a builder takes the choice back; abandoned where the block with its head vanishes.
        {Catch.HARMLESS, Catch.REFUSED}, rough={Catch.ABANDONED}),
    trainer("heads at the last second, past the deadline", LastSecond,
        "a reward that is held for as long as there are checkpoints", {Catch.ABANDONED, Catch.PARTED},
        before=with_a_deadline),
    trainer("a head too late", TooLate, "time that was not agreed", {Catch.ABANDONED}),
    trainer("heads replayed from elsewhere", RefusedHeads, "pay for a run with the heads of another one", _REFUSED,
        bad=one_of(foreign)),
    trainer("malformed and malleable signatures", RefusedHeads,
        "two different statements of one head, or one that nobody signed", _REFUSED, bad=one_of(malformed)),
    trainer("heads beyond the run", RefusedHeads, "a final head without a run, or a window that starts again", _REFUSED,
        bad=one_of(beyond)),
    trainer("repeated heads", RefusedHeads, "windows that start again, and never end", _REFUSED, bad=one_of(repeated)),
)
# fmt: on
