"""The chain adapter: the contracts of `contracts/`, from Python, over any Ethereum node or an embedded one.

The only package that imports web3, and only when a node is talked to: web3 takes seconds to import. Everything else
sees jobs, heads, moves and bytes.
"""

from typing import TYPE_CHECKING, Any

from tiebreak.protocol.chain.accounts import Signer
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.chain.client import Chain, Creation, Deployment
from tiebreak.protocol.chain.errors import ChainError, ContractMismatch, InsufficientFunds, NodeError, Reverted
from tiebreak.protocol.chain.records import EndReason, Event, GameRecord, JobRecord, JobStatus, Outcome, Receipt

if TYPE_CHECKING:
    from tiebreak.protocol.chain.embedded import EmbeddedChain

__all__ = [
    "Call",
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


def __getattr__(name: str) -> Any:
    if name != "EmbeddedChain":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tiebreak.protocol.chain.embedded import EmbeddedChain  # noqa: PLC0415  # imports web3 and an EVM

    return EmbeddedChain
