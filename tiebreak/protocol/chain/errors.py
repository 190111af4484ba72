"""What can go wrong between us and a chain. Errors keep their arguments: so they can be copied."""

from collections.abc import Mapping

from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.errors import TiebreakError


class ChainError(TiebreakError):
    """Base of every error of the chain adapter."""


class NodeError(ChainError):
    """The node cannot be reached, or answers with something that is no answer."""


class InsufficientFunds(ChainError):
    """An account cannot pay for a transaction. Amounts in wei; `needed` includes the most that gas can cost."""

    def __init__(self, account: bytes, needed: int, available: int) -> None:
        self.account = account
        self.needed = needed
        self.available = available
        super().__init__(account, needed, available)

    def __str__(self) -> str:
        needed, available = ether(self.needed), ether(self.available)
        return f"account 0x{self.account.hex()}: expected at least {needed}, got {available}; fund it first"


class ContractMismatch(ChainError):
    """What stands at an address is not the contract that this version of the project was built with."""

    def __init__(self, name: str, address: bytes, found: str) -> None:
        self.name = name
        self.address = address
        self.found = found
        super().__init__(name, address, found)

    def __str__(self) -> str:
        return f"expected the contract {self.name} of this version at 0x{self.address.hex()}, got {self.found}"


class Reverted(ChainError):
    """A contract refused a call; nothing changed. `name` and `values` are those of its custom error.

    Names outside the contracts' ABIs: `Error` and `Panic` (the compiler's own), `Unknown` (values: the raw data),
    `Halted` (the call stopped without data: out of gas, or no such function; values: the node's words).
    """

    def __init__(self, name: str, values: Mapping[str, object]) -> None:
        self.name = name
        self.values = dict(values)
        super().__init__(name, self.values)

    def __str__(self) -> str:
        return f"the contract refused: {self.name}({', '.join(f'{k}={_show(v)}' for k, v in self.values.items())})"


def _show(value: object) -> str:
    return "0x" + value.hex() if isinstance(value, bytes) else str(value)
