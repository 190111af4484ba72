"""The pending state is that of the next block, also after blocks that never came."""

from random import Random

from tiebreak.lab.sim.world.cast import Cast
from tiebreak.lab.sim.world.game import seat
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.lab.sim.world.world import BLOCK_SECONDS
from tiebreak.protocol.chain.calls import Call


def test_refused_transactions_do_not_stop_the_pending_blocks_time() -> None:
    world, agents = seat(Cast(workshop=Workshop.open("exact")), Random(1))
    client = agents["client"]
    for _ in range(3):
        refused = world.submit(client, Call("withdraw", (client.address,)))
        assert not refused.ok
        assert world._draft_of_next().draft.timestamp == world.next_block
        world.env.run(until=world.env.now + BLOCK_SECONDS)
    assert world.blocks == []
