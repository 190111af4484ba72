"""When to send what is to stand in the last block that is in time, or in the first that is not."""

from typing import Final

from sim.world.agents import GameView
from sim.world.world import World

OWN_MOVES: Final = 14
"""A side of a game about the small computation has fewer."""


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
    to_come = max(0, OWN_MOVES - (game.state.moves + 1) // 2)
    return last_call(world, game.state.deadline - to_come * world.block_seconds)
