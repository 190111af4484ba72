"""Errors in dealing with a chain. They pass their arguments to `Exception`, so that they can be copied."""

from collections.abc import Mapping

from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.errors import TiebreakError


class ChainError(TiebreakError):
    """Base of every error of the chain adapter."""


class NodeError(ChainError):
    """The node cannot be reached, or its answer makes no sense."""


class InsufficientFunds(ChainError):
    """An account cannot pay for a transaction. Amounts are in wei; `needed` includes the maximum cost of gas."""

    def __init__(self, account: bytes, needed: int, available: int) -> None:
        self.account, self.needed, self.available = account, needed, available
        super().__init__(account, needed, available)

    def __str__(self) -> str:
        needed, available = ether(self.needed), ether(self.available)
        return f"account 0x{self.account.hex()}: expected at least {needed}, got {available}; fund it first"


class ContractMismatch(ChainError):
    """The code at an address is not that of the contract that this version of the project was built with."""

    def __init__(self, name: str, address: bytes, found: str) -> None:
        self.name, self.address, self.found = name, address, found
        super().__init__(name, address, found)

    def __str__(self) -> str:
        return f"expected the contract {self.name} of this version at 0x{self.address.hex()}, got {self.found}"


class Reverted(ChainError):
    """A contract refused a call, and nothing changed. `name` and `values` are those of its custom error.

    Four names are not in the contracts' ABIs: `Error` and `Panic` (the compiler's), `Unknown` (values: the raw data)
    and `Halted` (no revert data: out of gas, or no such function; values: the node's message).
    """

    def __init__(self, name: str, values: Mapping[str, object]) -> None:
        self.name = name
        self.values = dict(values)
        super().__init__(name, self.values)

    def __str__(self) -> str:
        return f"the contract refused: {self.name}({', '.join(f'{k}={_show(v)}' for k, v in self.values.items())})"


def _show(value: object) -> str:
    return "0x" + value.hex() if isinstance(value, bytes) else str(value)
