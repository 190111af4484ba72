"""A party's bids for a place in a block (EIP-1559), and how it raises a bid that builders pass by.

Pure decisions: `tiebreak.protocol.chain.outbox` reads the market and sends. All amounts are in wei per gas.
"""

from dataclasses import dataclass
from typing import Final

RAISE: Final = 8
"""A raise is at least an eighth. Nodes replace a waiting transaction only if both of its prices rise by a tenth."""
REPLACEMENT: Final = 10
CAP_FACTOR: Final = 16
"""A party that states no cap stops at this multiple of its first bid."""


@dataclass(frozen=True, slots=True)
class Market:
    """The base fee of the newest block, and the tip that the node suggests."""

    base: int
    tip: int


@dataclass(frozen=True, slots=True)
class Bid:
    """The most to pay, `maxFeePerGas`, and the builder's part of it, `maxPriorityFeePerGas`."""

    most: int
    tip: int

    def replaces(self, other: "Bid") -> bool:
        """Whether nodes take a transaction with this bid in place of one of the same number with the other."""
        pairs = ((self.most, other.most), (self.tip, other.tip))
        return all(REPLACEMENT * new >= (REPLACEMENT + 1) * old for new, old in pairs)


def first_bid(market: Market, cap: int) -> Bid:
    """A bid that stays good while the base fee doubles, which takes it six full blocks; never above the cap."""
    most = min(cap, 2 * market.base + market.tip)
    return Bid(most, min(market.tip, most))


def raised_bid(last: Bid, market: Market, cap: int, blocks_left: int | None) -> Bid | None:
    """A bid that replaces the last one, or None if the cap leaves no room for one.

    With `blocks_left` until the transaction is of no more use, the bids reach the cap in the last of them.
    """
    spread = 0 if blocks_left is None else max(0, cap - last.most) // max(1, blocks_left)
    most = max(last.most + max(1, -(-last.most // RAISE), spread), 2 * market.base + market.tip)
    if REPLACEMENT * cap < (REPLACEMENT + 1) * most:
        most = cap  # no later raise would be possible
    # The tip rises with the whole: without it a raise only pays for a base fee that has not risen.
    tip = min(most, max(market.tip, -(-last.tip * most // max(1, last.most)), last.tip + max(1, -(-last.tip // RAISE))))
    bid = Bid(most, tip)
    return bid if bid.replaces(last) else None
