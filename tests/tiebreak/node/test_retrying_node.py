"""How often a node is asked again within one look at the chain, and for how long."""

from typing import Any

import pytest

from tiebreak.node.retrying_node import AGAIN, SECONDS, RetryingNode
from tiebreak.protocol.chain import NodeError


class Silent:
    """A node that never answers. Each question takes some seconds of its clock."""

    name = "silent"

    def __init__(self, takes: float) -> None:
        self.takes, self.asked, self.clock = takes, 0, 100.0

    def block(self, number: int) -> Any:
        self.asked += 1
        self.clock += self.takes
        assert self.asked < 1000, "it is asked without end"
        raise NodeError(f"no answer about block {number}")


def looked(node: Silent, looks: int = 1) -> RetryingNode:
    patient = RetryingNode(node, lambda: node.clock)
    for _ in range(looks):
        patient.begin()
        with pytest.raises(NodeError, match="block 7"):
            patient.block(7)
    return patient


def test_retries_per_poll_are_limited_and_reset_by_the_next_poll() -> None:
    node = Silent(0.0)
    patient = looked(node)
    assert node.asked == 1 + AGAIN
    with pytest.raises(NodeError):
        patient.block(7)
    assert node.asked == 2 + AGAIN, "no more in this look"
    patient.begin()
    with pytest.raises(NodeError):
        patient.block(7)
    assert node.asked == 2 + AGAIN + 1 + AGAIN


@pytest.mark.parametrize(
    ("takes", "asked"), [(SECONDS, 1), (SECONDS - 0.5, 2), (SECONDS / 2, 2), (SECONDS / 2 - 0.5, 3)]
)
def test_a_slow_node_is_not_asked_again_after_some_seconds(takes: float, asked: int) -> None:
    node = Silent(takes)
    looked(node)
    assert node.asked == asked
