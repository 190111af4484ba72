"""The compiled contracts, as checked in under `contracts/artifacts` (no Node needed to use them).

An artifact is a JSON object with `abi` (a list) and `bytecode` (creation code, hex with 0x).
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from eth_abi.exceptions import DecodingError

from protocol.chain.abi import decode_named, selector_of
from protocol.chain.errors import Reverted
from protocol.errors import ConfigurationError

ARTIFACTS: Final = Path(__file__).resolve().parents[2] / "contracts" / "artifacts"
BOARD: Final = "Tiebreak"
REFEREE: Final = "Referee"

_BUILT_IN: Final = (
    {"type": "error", "name": "Error", "inputs": [{"name": "message", "type": "string"}]},
    {"type": "error", "name": "Panic", "inputs": [{"name": "code", "type": "uint256"}]},
)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled contract: its interface, and the code that creates it."""

    name: str
    abi: tuple[dict[str, Any], ...]
    bytecode: bytes


@cache
def load_artifact(name: str) -> Artifact:
    """Read one artifact. Raises `ConfigurationError` if it is missing or broken."""
    path = ARTIFACTS / f"{name}.json"
    try:
        content = json.loads(path.read_text("utf-8"))
        return Artifact(name, tuple(content["abi"]), bytes.fromhex(content["bytecode"].removeprefix("0x")))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}; is this a whole checkout?") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{path}: expected a JSON object with abi and bytecode; restore the file") from error


@cache
def _errors() -> dict[bytes, dict[str, Any]]:
    """Selector -> error, over both contracts: the referee's errors come out of the board's `prove`."""
    entries = [*load_artifact(BOARD).abi, *load_artifact(REFEREE).abi, *_BUILT_IN]
    return {selector_of(entry): entry for entry in entries if entry["type"] == "error"}


def decode_revert(data: bytes, message: str) -> Reverted:
    """The error that a contract reverted with; `message` is the node's, for a revert without data."""
    if not data:
        return Reverted("Halted", {"message": message})
    entry = _errors().get(data[:4])
    if entry is None:
        return Reverted("Unknown", {"data": data})
    try:
        return Reverted(entry["name"], decode_named(entry["inputs"], data[4:]))
    except DecodingError:
        return Reverted("Unknown", {"data": data})
