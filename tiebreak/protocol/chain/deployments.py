"""The file that records where the contracts are deployed. `tiebreak deploy` writes it.

It is a JSON object: version 1, chainId, deployer, contracts: {name: {address, block, transaction, gasUsed, codeHash}}.
Addresses, transactions and code hashes (keccak-256 of the deployed code) are hexadecimal with 0x.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eth_hash.auto import keccak

from tiebreak.protocol.chain.artifacts import BOARD, CONTRACTS
from tiebreak.protocol.chain.client import Chain, Creation
from tiebreak.protocol.chain.errors import ContractMismatch
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.errors import ConfigurationError, VerificationError
from tiebreak.protocol.strict_json import parse_json

VERSION: Final = 1
MAX_DEPTH: Final = 4


@dataclass(frozen=True, slots=True)
class Standing:
    """One contract of a deployment file."""

    address: Address
    code_hash: bytes


@dataclass(frozen=True, slots=True)
class DeploymentFile:
    """The part of a deployment file that checks need."""

    chain_id: int
    contracts: dict[str, Standing]


def document(chain: Chain, deployer: Address, creations: Sequence[Creation]) -> dict[str, Any]:
    """The JSON object that describes a deployment that was just made."""
    contracts = {
        c.name: {
            "address": _hex(c.address),
            "block": c.block,
            "transaction": _hex(c.transaction),
            "gasUsed": c.gas_used,
            "codeHash": _hex(_code_hash(chain, c.address)),
        }
        for c in creations
    }
    return {"version": VERSION, "chainId": chain.chain_id, "deployer": _hex(deployer), "contracts": contracts}


def read_deployment(path: Path) -> DeploymentFile:
    """Read a deployment file. Raises `ConfigurationError` if it is unreadable or malformed."""
    try:
        content = parse_json(path.read_bytes(), MAX_DEPTH)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path}: expected JSON, got something else: {error}") from error
    try:
        if content["version"] != VERSION or type(content["chainId"]) is not int:
            raise ValueError(f"expected version {VERSION} and a chain id")
        return DeploymentFile(content["chainId"], {name: _standing(content["contracts"][name]) for name in CONTRACTS})
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path}: expected a deployment as `tiebreak deploy` writes it: {error!r}") from error


def check_deployment(chain: Chain, file: DeploymentFile) -> None:
    """Check that the contracts in a file are deployed where it says.

    Numbered plan: (1) the chain is the file's, (2) the code at the addresses is this version's, and the contracts refer
    to each other as in the file, (3) the code is the one that the file was written for.

    Raises `ConfigurationError` for (1), `ContractMismatch` for (2) and `VerificationError` for (3).
    """
    require_chain(chain, file.chain_id)  # (1)
    found = chain.attach(file.contracts[BOARD].address).named()  # (2)
    for name, standing in file.contracts.items():
        if found[name] != standing.address:
            raise ContractMismatch(name, standing.address, f"a board that uses the one at {_hex(found[name])}")
        code_hash = _code_hash(chain, standing.address)
        if code_hash != standing.code_hash:  # (3)
            raise VerificationError(f"{name}: expected code of hash {_hex(standing.code_hash)}, got {_hex(code_hash)}")


def require_chain(chain: Chain, chain_id: int) -> None:
    """Raise `ConfigurationError` unless the chain has this id."""
    if chain.chain_id != chain_id:
        raise ConfigurationError(f"expected chain id {chain_id}, got {chain.chain_id}; is this the right endpoint?")


def _standing(item: Any) -> Standing:
    return Standing(Address(_bytes(item["address"], 20)), _bytes(item["codeHash"], 32))


def _bytes(text: Any, length: int) -> bytes:
    data = bytes.fromhex(text.removeprefix("0x")) if isinstance(text, str) else b""
    if len(data) != length:
        raise ValueError(f"expected {length} bytes in hexadecimal, got {text!r}")
    return data


def _code_hash(chain: Chain, address: Address) -> bytes:
    return bytes(keccak(chain.code(address)))


def _hex(data: bytes) -> str:
    return "0x" + data.hex()
