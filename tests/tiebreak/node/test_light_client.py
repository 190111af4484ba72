"""Blocks that are linked by their headers, from a node in memory that may lie about any of them."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from eth_bloom import BloomFilter

from tiebreak.node.light_client import LINKED, LightClient
from tiebreak.protocol.chain import NodeError
from tiebreak.protocol.chain.headers import Header
from tiebreak.protocol.chain.node import Tip
from tiebreak.protocol.chain.outbox import LOOKS

BOARD, GAMES = b"\1" * 20, b"\2" * 20


def name(number: int, fork: int = 0) -> bytes:
    return bytes([fork]) * 16 + number.to_bytes(16, "big")


def tip(number: int, fork: int = 0, parent_fork: int | None = None) -> Tip:
    """A block that may hold logs of the board."""
    parent = name(number - 1, fork if parent_fork is None else parent_fork)
    bloom = BloomFilter()
    bloom.add(BOARD)
    header = Header(name(number, fork), number, parent, bloom, bytes(32))
    return Tip(number, name(number, fork), 12 * number, header)


class Node:
    """Blocks by number, and the logs that it proves under a header's hash."""

    def __init__(self, last: int) -> None:
        self.blocks = {number: tip(number) for number in range(1, last + 1)}
        self.proven: dict[bytes, list[dict[str, Any]]] = {}
        self.said: list[dict[str, Any]] = []
        self.asked = 0

    def block(self, number: int) -> Tip | None:
        self.asked += 1
        return self.blocks.get(number)

    def logs_under(self, header: Header, _: Any) -> list[dict[str, Any]]:
        if header.hash not in self.proven:
            raise NodeError("no receipts")
        return self.proven[header.hash]


def linked_to(node: Node) -> LightClient:
    deployment = SimpleNamespace(board=BOARD, games=GAMES)
    return LightClient(SimpleNamespace(node=node, deployment=deployment, logs=lambda *_: node.said))  # type: ignore[arg-type]


@pytest.fixture
def linked() -> tuple[Node, LightClient]:
    """A client that has linked the newest five of nine blocks."""
    node = Node(9)
    light_client = linked_to(node)
    light_client.link(node.blocks[9], 5)
    return node, light_client


def test_blocks_are_linked_backwards_from_the_newest_by_parent_hash() -> None:
    node = Node(9)
    light_client = linked_to(node)
    assert light_client.link(node.blocks[9], 5) == name(4)
    assert [number for number in range(10) if light_client.at(number)] == [5, 6, 7, 8, 9]
    assert node.asked == 4
    node.blocks[10] = tip(10)
    assert light_client.link(node.blocks[10], 5) == name(4)
    assert node.asked == 4, "those that are linked are not asked for again"


@pytest.mark.parametrize("wrong", [None, tip(7, 1), tip(7, 1, 0)], ids=["none", "of another fork", "with that parent"])
def test_a_block_that_is_not_the_parent_is_refused(wrong: Tip | None) -> None:
    node = Node(9)
    node.blocks = {number: block for number, block in node.blocks.items() if number != 7 or wrong}
    if wrong:
        node.blocks[7] = wrong
    with pytest.raises(NodeError, match="expected the parent of block 8"):
        linked_to(node).link(node.blocks[9], 5)


def test_blocks_of_another_fork_take_the_place_of_those_that_vanished(linked: tuple[Node, LightClient]) -> None:
    node, light_client = linked
    node.blocks |= {8: tip(8, 1, 0), 9: tip(9, 1)}
    assert light_client.link(node.blocks[9], 5) == name(4)
    assert [light_client.at(number) for number in (7, 8, 9)] == [node.blocks[number] for number in (7, 8, 9)]


def test_blocks_are_dropped_from_the_first_reorganised_one_on(linked: tuple[Node, LightClient]) -> None:
    _, light_client = linked
    light_client.withheld = {6: 1, 7: 2, 8: 3}
    light_client.drop(7)
    assert [number for number in range(10) if light_client.at(number)] == [5, 6]
    assert light_client.withheld == {6: 1}


def test_an_unverifiable_header_discards_all_linked_blocks(linked: tuple[Node, LightClient]) -> None:
    node, light_client = linked
    assert light_client.is_proven
    assert light_client.link(replace(node.blocks[9], header=None), 5) == b""
    assert not light_client.is_proven
    assert light_client.at(9) is None


def test_old_blocks_are_forgotten() -> None:
    node = Node(2 * LINKED + 3)
    light_client = linked_to(node)
    light_client.link(node.blocks[2 * LINKED], 1)
    assert light_client.at(1)
    light_client.link(node.blocks[2 * LINKED + 1], 2)
    assert light_client.at(1) is None
    assert light_client.at(2)


def test_unproven_logs_are_trusted_and_blocks_withholding_logs_are_named() -> None:
    node = Node(9)
    light_client = linked_to(node)
    light_client.link(node.blocks[9], 7)
    proven, said = {"blockNumber": 8, "logIndex": 0}, {"blockNumber": 7, "logIndex": 0}
    node.proven = {name(8): [proven]}
    node.said = [said, {"blockNumber": 8, "logIndex": 5}]
    for look in range(1, LOOKS + 1):
        assert light_client.logs(7, 9) == [proven, said], "of block 8 only what is proven"
        assert light_client.withheld == {9: look}
        assert light_client.hidden() == ([9] if look == LOOKS else [])
    node.proven |= {name(7): [said], name(9): []}
    assert light_client.logs(7, 9) == [said, proven]
    assert light_client.withheld == {}
