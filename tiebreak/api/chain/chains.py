"""The contracts on a chain: development nodes, and deployments with their file. Needs the extra `chain`.

The file records where the contracts are deployed; `tiebreak chain deploy` writes it. It is a JSON object: version 1,
chainId, deployer, contracts: {name: {address, block, transaction, gasUsed, codeHash}}. Addresses, transactions and code
hashes (keccak-256 of the deployed code) are hexadecimal with 0x.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eth_hash.auto import keccak

from tiebreak.api.chain.boards import require_chain
from tiebreak.protocol.chain import Chain, ContractMismatch, Creation, Deployment
from tiebreak.protocol.chain.artifacts import BOARD, CONTRACTS
from tiebreak.protocol.chain.devnet import BALANCE, MNEMONIC, RunningNode, dev_secrets, running_node
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError, EncodingError, VerificationError
from tiebreak.protocol.strict_json import JsonObject

CONSTANT_ENTROPY: Final = (
    "prevrandao was the same before and after: where it is constant, a client can choose the seats of its jobs, "
    "so agree on none here (docs/chains.md)"
)
VERSION: Final = 1
MAX_DEPTH: Final = 4


def deploy(
    chain: Chain, signer: PrivateKey, on_creation: Callable[[Creation], None], warn: Callable[[str], None]
) -> dict[str, Any]:
    """Deploys the contracts and returns the contents of the deployment file.

    Warns of a chain whose blocks have one `prevrandao`.
    """
    entropy = chain.entropy()
    creations: list[Creation] = []

    def made(creation: Creation) -> None:
        creations.append(creation)
        on_creation(creation)

    chain.deploy(signer, made)
    # Read the deployment back, so that the file never claims more than what stands on the chain.
    chain.attach(chain.deployment.board)
    if chain.entropy() == entropy:
        warn(CONSTANT_ENTROPY)
    return document(chain, signer.address, creations)


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


def check(chain: Chain, path: Path) -> dict[str, Address]:
    """Check that the contracts in a file are deployed where it says. Returns their addresses.

    Numbered plan: (1) the file is well-formed, (2) the chain is the file's, (3) the code at the addresses is this
    version's, and the contracts refer to each other as in the file, (4) the code is the one that the file was written
    for.

    Raises `ConfigurationError` for (1) and (2), `ContractMismatch` for (3) and `VerificationError` for (4).
    """
    chain_id, addresses, hashes = _read(path)  # (1)
    require_chain(chain, chain_id)  # (2)
    found = chain.attach(addresses[BOARD]).named()  # (3)
    for name, address in addresses.items():
        if found[name] != address:
            raise ContractMismatch(name, address, f"a board that uses the one at {_hex(found[name])}")
        if (code_hash := _code_hash(chain, address)) != hashes[name]:  # (4)
            raise VerificationError(f"{name}: expected code of hash {_hex(hashes[name])}, got {_hex(code_hash)}")
    return addresses


def _read(path: Path) -> tuple[int, dict[str, Address], dict[str, bytes]]:
    """The chain id of a deployment file, and the address and the code hash of each contract."""
    try:
        content = JsonObject.parse(str(path), path.read_bytes(), MAX_DEPTH)
        content.version("version", VERSION)
        chain_id, listed = content.integer("chainId", 0, (1 << 256) - 1), content.inner("contracts")
        contracts = {name: listed.inner(name) for name in CONTRACTS}
        addresses = {name: Address(item.data("address", 20)) for name, item in contracts.items()}
        return chain_id, addresses, {name: item.data("codeHash", 32) for name, item in contracts.items()}
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except EncodingError as error:
        raise ConfigurationError(f"{error}; is this a deployment as `tiebreak chain deploy` writes it?") from error


def _code_hash(chain: Chain, address: Address) -> bytes:
    return bytes(keccak(chain.node.code(address)))


def _hex(data: bytes) -> str:
    return "0x" + data.hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Devnet:
    """A running node with the contracts on it. accounts: keys with their secrets, which are publicly known."""

    node: RunningNode
    chain: Chain
    deployment: Deployment
    accounts: list[tuple[PrivateKey, int]]
    mnemonic: str = MNEMONIC
    balance: int = BALANCE
    """The wei of each account at the start."""


@contextmanager
def devnet(*, port: int, accounts: int, block_seconds: int, embedded: bool) -> Iterator[Devnet]:
    """Runs a development chain until the end of the `with` block. The first account deploys the contracts.

    block_seconds: the time between blocks, once the contracts stand; 0 mines each transaction at once.
    """
    secrets = dev_secrets(accounts)
    signers = [PrivateKey.from_int(secret) for secret in secrets]
    with running_node(port=port, accounts=accounts, embedded=embedded) as node:
        chain = Chain.connect(node.url)
        deployment = chain.deploy(signers[0])
        if block_seconds:
            node.mine_every(block_seconds)
        yield Devnet(node=node, chain=chain, deployment=deployment, accounts=list(zip(signers, secrets, strict=True)))
