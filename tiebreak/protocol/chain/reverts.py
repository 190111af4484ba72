"""What a contract reverted with: its custom errors, by name and with their values."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Final

from eth_abi.exceptions import DecodingError

from tiebreak.protocol.chain.abi import U256, Refusal, String
from tiebreak.protocol.chain.errors import Reverted
from tiebreak.protocol.chain.generated import ERRORS


@dataclass(frozen=True, slots=True)
class BuiltInError(Refusal):
    """`require` with words."""

    NAME: ClassVar = "Error"
    message: String


@dataclass(frozen=True, slots=True)
class PanicError(Refusal):
    """The compiler's own checks."""

    NAME: ClassVar = "Panic"
    code: U256


_BUILT_IN: Final = (BuiltInError, PanicError)


@cache
def _errors() -> dict[bytes, type[Refusal]]:
    """Selector -> error, over all contracts: the referee's errors come out of the board's `prove`."""
    return {error.selector(): error for error in (*ERRORS, *_BUILT_IN)}


def decode_revert(data: bytes, message: str) -> Reverted:
    """The error that a contract reverted with; `message` is the node's, for a revert without data."""
    if not data:
        return Reverted("Halted", {"message": message})
    error = _errors().get(data[:4])
    if error is None:
        return Reverted("Unknown", {"data": data})
    try:
        return Reverted(error.NAME, error.decode(data[4:]).named())
    except DecodingError:
        return Reverted("Unknown", {"data": data})
