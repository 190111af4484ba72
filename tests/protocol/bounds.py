"""What only tests ask of the protocol: the longest possible game, and a tree over given accumulators."""

from collections.abc import Sequence

from tiebreak.protocol.commitments.accumulator_tree import AccumulatorTree
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.records import chunk_count
from tiebreak.protocol.game.rules import GameState, Level, Reason, walk_moves
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.program.accumulator import BLOCK_LEAVES
from tiebreak.protocol.program.isa import MAX_NUMEL, MAX_TERMS, TERMS_PER_LEAF, DType
from tiebreak.protocol.trees import depth_of


def max_moves(job: Job) -> int:
    """An upper bound on the moves of any game about the job (invariant 7)."""
    return walk_moves(
        job.descent_levels,
        run=job.run_depth,
        steps=depth_of(job.checkpoint_interval),
        values=job.half_depth + 1,
        chunks=depth_of(MAX_NUMEL * max(dtype.size for dtype in DType) // CHUNK_BYTES),
        terms=depth_of(MAX_TERMS // TERMS_PER_LEAF),
    )


def check_length(end: GameState) -> None:
    """A walk to an element, or to some of its terms, takes as many moves as it says (invariant 7)."""
    job = end.job
    if end.level not in (Level.CHUNKS, Level.TERMS) or end.verdict.reason is not Reason.RECOMPUTED:
        return
    moves = walk_moves(
        job.descent_levels,
        run=job.run_depth,
        steps=depth_of(job.segment_steps(end.checkpoint)),
        values=job.half_depth + 1,
        chunks=depth_of(chunk_count(end.dtype, end.shape)),
        terms=depth_of(-(-end.terms // TERMS_PER_LEAF)) if end.terms else 0,
    )
    assert end.moves == moves <= max_moves(job)


def tree_over(encoded: Sequence[bytes]) -> AccumulatorTree:
    starts = range(0, len(encoded), BLOCK_LEAVES)
    blocks = [b"".join(encoded[start : start + BLOCK_LEAVES]) for start in starts]
    return AccumulatorTree(len(encoded), blocks.__getitem__)
