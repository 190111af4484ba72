"""The chain adapter: access to the contracts of `contracts/` from Python, over any Ethereum node or an embedded one.

This is the only package that imports web3, and it does so only when it connects to a node, since the import takes
seconds. All other packages see only jobs, heads, moves and bytes.
"""

from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.chain.client import Chain, Creation, Deployment
from tiebreak.protocol.chain.embedded import EmbeddedChain
from tiebreak.protocol.chain.errors import ChainError, ContractMismatch, InsufficientFunds, NodeError, Reverted
from tiebreak.protocol.chain.records import Event, GameRecord, JobRecord, Outcome, Receipt
from tiebreak.protocol.parties.board import JobStatus

__all__ = [
    "Call",
    "Chain",
    "ChainError",
    "ContractMismatch",
    "Creation",
    "Deployment",
    "EmbeddedChain",
    "Event",
    "GameRecord",
    "InsufficientFunds",
    "JobRecord",
    "JobStatus",
    "NodeError",
    "Outcome",
    "Receipt",
    "Reverted",
]
