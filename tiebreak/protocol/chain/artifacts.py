"""The compiled contracts, as checked in under `contracts/artifacts`.

An installed package has a copy next to this module. An artifact is a JSON object with `abi` (a list), `bytecode`
(creation code) and `deployedBytecode`, both in hex with 0x.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from eth_abi.abi import encode

from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.errors import ConfigurationError

_PACKAGED: Final = Path(__file__).resolve().parent / "contracts"
ARTIFACTS: Final = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[3] / "contracts" / "artifacts"
BOARD: Final = "Board"
GAMES: Final = "Games"
REFEREE: Final = "Referee"
TRANSCENDENTALS: Final = "Transcendentals"
CONTRACTS: Final = (TRANSCENDENTALS, REFEREE, GAMES, BOARD)
"""The contracts in order of deployment: each constructor takes the address of the one before, and the games' also that
of the board, which is made next."""

CONSTRUCTOR_GAS: Final = 20_000
"""An upper bound for all of these constructors, which only read one account's code size and return."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled contract: its interface, and the code that creates it."""

    name: str
    abi: tuple[dict[str, Any], ...]
    bytecode: bytes
    """Creation code without the constructor's arguments."""
    code_bytes: int
    """Length of the deployed code."""


@cache
def load_artifact(name: str) -> Artifact:
    """Read an artifact. Raises `ConfigurationError` if it is missing or malformed."""
    path = ARTIFACTS / f"{name}.json"
    try:
        content = json.loads(path.read_text("utf-8"))
        bytecode, deployed = (
            bytes.fromhex(content[key].removeprefix("0x")) for key in ("bytecode", "deployedBytecode")
        )
        return Artifact(name, tuple(content["abi"]), bytecode, len(deployed))
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {path}: {error.strerror}; is this a whole checkout, or a whole installation?"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{path}: expected a JSON object with abi and bytecode; restore the file") from error


def creation_code(name: str, *arguments: Address) -> bytes:
    """The data of a transaction that creates a contract. `arguments` are the constructor's."""
    return load_artifact(name).bytecode + encode(["address"] * len(arguments), arguments)


def creation_gas(name: str) -> int:
    """Upper bound: base cost, calldata (EIP-7623), initcode words (EIP-3860), code deposit and constructor."""
    artifact = load_artifact(name)
    zeros = artifact.bytecode.count(0)
    tokens = zeros + 4 * (len(artifact.bytecode) - zeros + 64)
    words = -(-len(artifact.bytecode) // 32) + 2
    executed = 32_000 + 4 * tokens + 2 * words + 200 * artifact.code_bytes + CONSTRUCTOR_GAS
    return 21_000 + max(executed, 10 * tokens)
