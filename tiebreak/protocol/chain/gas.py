"""Gas limits from measured gas. What other people's waiting transactions do to an estimate is no concern of ours.

An estimate is made on a state that anyone can change by sending something that is never mined. So a limit follows
from the call alone: its calldata at the dearest price there is, and what its function was measured to use, with a
margin.
"""

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


def gas_limit(call: Call) -> int:
    """The gas to send with a call, from its calldata and the table alone: nothing is asked of a node."""
    zeros = call.data.count(0)
    calldata = BYTE // 4 * zeros + BYTE * (len(call.data) - zeros)
    executed = EXECUTED.get(call.kind, UNMEASURED)
    return min(MOST, BASE + calldata + executed * MARGIN[0] // MARGIN[1])
