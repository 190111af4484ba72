"""When to send what is to stand in the last block that is in time, or in the first that is not."""

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.records import chunk_count
from tiebreak.protocol.game.rules import walk_moves
from tiebreak.protocol.program.isa import TERMS_PER_LEAF
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.trees import depth_of
from tiebreak.sim.world.agents import GameView
from tiebreak.sim.world.world import World


def last_call(world: World, deadline: int) -> int:
    """Seconds until the second before the last block that is not after an instant; 0 if that is past."""
    since_a_block = (deadline - world.next_block) % world.block_seconds
    return max(0, deadline - since_a_block - 1 - world.now)


def first_late(world: World, deadline: int) -> int:
    """Seconds until the second before the first block that is after an instant."""
    since_a_block = (deadline - world.next_block) % world.block_seconds
    return max(0, deadline - since_a_block + world.block_seconds - 1 - world.now)


def stalled(world: World, game: GameView) -> int:
    """Seconds that a move may wait at the most: what is left of the clock but for a block for each move to come."""
    rest = longest_walk(game.state.job, world.workshop.program) - game.state.moves
    return last_call(world, game.state.deadline - max(0, (rest + 1) // 2) * world.block_seconds)


def longest_walk(job: Job, program: Program) -> int:
    """No game about a run of this program has more moves."""
    return walk_moves(
        job.descent_levels,
        run=job.run_depth,
        steps=depth_of(job.checkpoint_interval),
        values=job.half_depth + 1,
        chunks=depth_of(max(chunk_count(i.dtype, i.shape) for i in program.body)),
        terms=depth_of(max(-(-i.terms // TERMS_PER_LEAF) for i in program.body if i.is_reduction)),
    )
