"""The chain adapter: the contracts of `contracts/`, from Python, over any Ethereum node or an embedded one.

The only place of the project that imports web3. Everything else sees jobs, heads, moves and bytes.
"""

from tiebreak.protocol.chain.accounts import Signer
from tiebreak.protocol.chain.client import Chain, Creation, Deployment
from tiebreak.protocol.chain.embedded import EmbeddedChain
from tiebreak.protocol.chain.errors import ChainError, ContractMismatch, InsufficientFunds, NodeError, Reverted
from tiebreak.protocol.chain.records import EndReason, Event, GameRecord, JobRecord, JobStatus, Outcome, Receipt

__all__ = [
    "Chain",
    "ChainError",
    "ContractMismatch",
    "Creation",
    "Deployment",
    "EmbeddedChain",
    "EndReason",
    "Event",
    "GameRecord",
    "InsufficientFunds",
    "JobRecord",
    "JobStatus",
    "NodeError",
    "Outcome",
    "Receipt",
    "Reverted",
    "Signer",
]
