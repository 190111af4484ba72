"""The segments of a run: those that a signed head commits to, draws of them, and what replaying them takes."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import ceil, prod
from typing import Final

from tiebreak.engine.run.directory import RunDirectory, kept_steps
from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, StateError
from tiebreak.protocol.tags import Digest

_DRAW: Final = b"tiebreak: segments of an audit"
SHARES: Final = (0.01, 0.1)
"""Shares of false segments for which a sample's chance of detection is reported, as for a single false segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootComparison:
    """A signed head compared with the auditor's own replay."""

    count: int
    committed: Digest
    replayed: Digest

    @property
    def agrees(self) -> bool:
        return self.committed == self.replayed


def compare(replay: RunDirectory, head: SignedHead) -> RootComparison:
    """Compares a signed head with the auditor's own run.

    Raises `StateError` if the replay has fewer checkpoints than the head.
    """
    head.verify(replay.job, replay.agreement.domain)
    count, recorded = head.head.count, len(replay.records())
    if recorded < count:
        raise StateError(f"the replay has {recorded} checkpoints; replay to {count} before comparing")
    return RootComparison(count=count, committed=head.head.run_root, replayed=replay.root(count))


def signed_records(run: RunDirectory) -> tuple[list[StepRecord], SignedHead]:
    """The records that the run's last signed head commits to, and that head.

    That is step (1) of an audit of segments (`tiebreak.engine.run.audit`). Raises `ConfigurationError` if nothing is
    signed yet, `CannotCheck` if the records are not the head's, and `ForbiddenLoss` for one that the job forbids.
    """
    head = run.last_head()
    if head is None:
        raise ConfigurationError(
            f"{run.path}: expected at least one signed head, got none; train with the key that signs them"
        )
    records = run.records()[: head.head.count]
    root = run.root(len(records))
    if len(records) < head.head.count or root != head.head.run_root:
        raise CannotCheck(
            f"expected {head.head.count} records with the signed root {head.head.run_root.hex()}, got {len(records)} "
            f"with {root.hex()}; a whole audit needs none of them"
        )
    for record in records:
        run.job.check_loss(record)
    return records, head


def steps_to_replay(run: RunDirectory, checkpoints: Sequence[int]) -> int:
    """The number of steps that auditing these segments takes, provided that every state on disk is good."""
    job, kept = run.job, kept_steps(run, max(checkpoints, default=-1) + 1)
    total, at = 0, -1
    for checkpoint in sorted(checkpoints):
        place = bisect_right(kept, job.first_step(checkpoint) - 1)
        start = max(at, kept[place - 1] if place else 0)
        at = job.last_step(checkpoint)
        total += at - start
    return total


def draw_segments(total: int, sample: int, seed: bytes, run_root: Digest) -> tuple[int, ...]:
    """Draws `sample` different segments of 0 ... total-1, ascending; every choice is equally likely.

    Number i of the draw is the first 8 bytes of SHA-256(seed and run root, i), reduced modulo `total` by rejection
    sampling; repeated segments are drawn again. Anyone who knows the seed before the head of this root is signed can
    choose where to cheat, so it must be secret until then. The root is hashed in so that one seed selects different
    segments in different runs.
    """
    if not 1 <= sample <= total:
        raise ConfigurationError(f"expected a sample of 1 to {total} segments, got {sample}")
    key = sha256(_DRAW + sha256(seed).digest() + run_root).digest()
    fair = (1 << 64) // total * total
    chosen: set[int] = set()
    number = 0
    while len(chosen) < sample:
        word = int.from_bytes(sha256(key + number.to_bytes(8, "big")).digest()[:8], "big")
        number += 1
        if word < fair:
            chosen.add(word % total)
    return tuple(sorted(chosen))


def detection_probability(total: int, checked: int, tampered: int) -> float:
    """The probability that a sample of `checked` of `total` segments holds one of `tampered` or more.

    This is 1 - C(n-x, s)/C(n, s) for n segments, x of them tampered with, and a sample of s.
    """
    few, many = sorted((checked, tampered))
    if few + many > total:  # also where no segment is left that a cheat could hope for
        return 1.0
    return 1.0 - prod((total - many - i) / (total - i) for i in range(few))


def chances(count: int, sample: int) -> list[tuple[int, float]]:
    """Pairs of a number of false segments of `count` and the chance to draw one: for one, and for each of `SHARES`."""
    false = dict.fromkeys([1, *(max(1, ceil(share * count)) for share in SHARES)])
    return [(number, detection_probability(count, sample, number)) for number in false]
