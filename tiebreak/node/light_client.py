"""The newest blocks, linked by their headers, and the contracts' logs there, proven by receipts.

A node's answer about a block's logs may be incomplete, by mistake or not. Where headers hash to what they say, each
block is held by the hash of the newest one, so nothing can be left out of them unnoticed. A node that makes up other
blocks altogether, with other hashes, is not found out: nobody's consensus is checked.
"""

from collections.abc import Mapping
from typing import Any, Final

from tiebreak.protocol.chain import Chain, NodeError
from tiebreak.protocol.chain.node import Tip
from tiebreak.protocol.chain.outbox import LOOKS

LINKED: Final = 64
"""The number of newest blocks that are linked; Ethereum finalises after as many."""


class LightClient:
    def __init__(self, chain: Chain) -> None:
        """`chain` is attached to the board."""
        self._chain, self._node = chain, chain.node
        self._tips: dict[int, Tip] = {}
        """Blocks by number, each with a header that names the one before by its hash."""
        self._proven: dict[bytes, list[dict[str, Any]]] = {}
        """All logs of the contracts in a block, by the block's hash."""
        self.is_proven = True
        """Whether the node's headers have the hashes that it names; if not, nothing shows what it leaves out."""
        self.withheld: dict[int, int] = {}
        """Blocks whose logs of the contracts the node has neither shown nor disproved, and the number of times."""

    def hidden(self) -> list[int]:
        """The blocks whose logs, or the proof that there are none, the node has withheld several times."""
        return sorted(number for number, times in self.withheld.items() if times >= LOOKS)

    def at(self, number: int) -> Tip | None:
        """The block of this number, if it is one of the newest."""
        return self._tips.get(number)

    def drop(self, first: int) -> None:
        """Forget the blocks from this number on."""
        for number in [number for number in self._tips if number >= first]:
            self._proven.pop(self._tips.pop(number).hash, None)
        self.withheld = {number: times for number, times in self.withheld.items() if number < first}

    def link(self, newest: Tip, last: int) -> bytes:
        """Have the headers from a block back to number `last`. Returns the hash before them; empty without headers."""
        self.is_proven = newest.header is not None
        at, parent = newest, b""
        while at.header is not None:
            self._tips[at.number], parent = at, at.header.parent
            if at.number <= max(last, 1):
                break
            if (below := self._tips.get(at.number - 1)) is None or below.hash != parent:
                below = self._node.block(at.number - 1)
            if below is None or below.hash != parent:
                raise NodeError(f"expected the parent of block {at.number}, got another block or none")
            at = below
        else:
            self.drop(0)
            return b""
        for number in [number for number in self._tips if number <= newest.number - 2 * LINKED]:
            self._proven.pop(self._tips.pop(number).hash, None)
        return parent

    def logs(self, first: int, last: int) -> list[Mapping[str, Any]]:
        """The contracts' logs in these blocks: proven ones where that can be, elsewhere those that the node names."""
        proven = {number: self._logs(number) for number in range(max(first, last - LINKED + 1), last + 1)}
        for number in [number for number in self.withheld if proven.get(number) is not None]:
            del self.withheld[number]
        found: list[Mapping[str, Any]] = [log for logs in proven.values() for log in logs or ()]
        if len(proven) == last - first + 1 and None not in proven.values():
            return found
        said = self._chain.logs(first, last)
        shown = {int(log["blockNumber"]) for log in said}
        for number, logs in proven.items():
            if number in shown:
                self.withheld.pop(number, None)
            elif logs is None and number in self._tips:
                self.withheld[number] = self.withheld.get(number, 0) + 1
        return found + [log for log in said if proven.get(int(log["blockNumber"])) is None]

    def _logs(self, number: int) -> list[dict[str, Any]] | None:
        """All logs of the contracts in a block; None if the node does not prove them."""
        if (tip := self._tips.get(number)) is None or tip.header is None:
            return None
        addresses = (self._chain.deployment.board, self._chain.deployment.games)
        if tip.hash not in self._proven:
            if not tip.header.may_log(addresses):
                return []
            try:
                self._proven[tip.hash] = self._node.logs_under(tip.header, addresses)
            except NodeError:
                return None
        return self._proven[tip.hash]
