"""When to send a transaction so that it gets into the last block that is in time, or the first that is late."""

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.records import chunk_count
from tiebreak.protocol.game.rules import walk_moves
from tiebreak.protocol.program.isa import TERMS_PER_LEAF
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.trees import depth_of
from tiebreak.sim.world.agents import GameView
from tiebreak.sim.world.world import World


def last_call(world: World, deadline: int) -> int:
    """Seconds until the second before the last block that is not after `deadline`; 0 if that is past."""
    since_a_block = (deadline - world.next_block) % world.block_seconds
    return max(0, deadline - since_a_block - 1 - world.now)


def first_late(world: World, deadline: int) -> int:
    """Seconds until the second before the first block that is after `deadline`."""
    since_a_block = (deadline - world.next_block) % world.block_seconds
    return max(0, deadline - since_a_block + world.block_seconds - 1 - world.now)


def stalled(world: World, game: GameView) -> int:
    """The longest delay of a move, in seconds, that leaves a block of the clock for each of its later moves."""
    rest = longest_walk(game.state.job, world.workshop.program) - game.state.moves
    return last_call(world, game.state.deadline - max(0, (rest + 1) // 2) * world.block_seconds)


def longest_walk(job: Job, program: Program) -> int:
    """The largest number of moves of a game about a run of this program."""
    return walk_moves(
        job.descent_levels,
        run=job.run_depth,
        steps=depth_of(job.checkpoint_interval),
        values=job.half_depth + 1,
        chunks=depth_of(max(chunk_count(i.dtype, i.shape) for i in program.body)),
        terms=depth_of(max(-(-i.terms // TERMS_PER_LEAF) for i in program.body if i.is_reduction)),
    )
