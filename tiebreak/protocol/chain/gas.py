"""Gas limits of transactions, from measured gas, and bids for a place in a block (EIP-1559).

What other people's waiting transactions do to an estimate is no concern of ours: it is made on a state that anyone can
change by sending something that is never mined. So a limit follows from the call alone: its calldata at the dearest
price there is, and what its function was measured to use, with a margin.

Bids are pure decisions, in wei per gas: `tiebreak.protocol.chain.outbox` reads the market and sends.
"""

from dataclasses import dataclass
from typing import Final

from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.game.messages import MAX_MESSAGE_BYTES
from tiebreak.protocol.parties.transactions import MOVE_GAS, TRANSACTIONS, MakeMove

BASE: Final = 21_000
BYTE: Final = 40
"""Gas of a byte of calldata that is not zero, at EIP-7623's floor; a zero byte costs a quarter of it.

Ordinary calldata costs 16. The rest pays for what the contracts do with each byte: they hash and log it.
"""
MARGIN: Final = (3, 2)
MOST: Final = 1 << 24
"""The most gas that one transaction may have (EIP-7825)."""
UNMEASURED: Final = 400_000
EXECUTED: Final = {wanted.FUNCTION: wanted.GAS for wanted in TRANSACTIONS if wanted is not MakeMove} | MOVE_GAS
"""The most gas that a transaction of each function was measured to use, at least, as it is declared.

A function that ends a game with a payout has the payout's gas. `tests/chain/test_gas.py` compares this table with
`contracts/snapshots`, `contracts/.gas-snapshot` and `benchmarks/results`.
"""

DEAREST: Final = BASE + BYTE * MAX_MESSAGE_BYTES + max(EXECUTED.values()) * MARGIN[0] // MARGIN[1]
"""The limit of a proof as large as a message may be: no transaction of a game has more."""

RAISE: Final = 8
"""A raise is at least an eighth. Nodes replace a waiting transaction only if both of its prices rise by a tenth."""
REPLACEMENT: Final = 10
CAP_FACTOR: Final = 16
"""A party that states no cap stops at this multiple of its first bid."""


def gas_limit(call: Call) -> int:
    """The gas to send with a call, from its calldata and the table alone: nothing is asked of a node."""
    zeros = call.data.count(0)
    calldata = BYTE // 4 * zeros + BYTE * (len(call.data) - zeros)
    executed = EXECUTED.get(call.kind, UNMEASURED)
    return min(MOST, BASE + calldata + executed * MARGIN[0] // MARGIN[1])


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
