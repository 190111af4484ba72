"""The contracts on a chain: development nodes and deployments. Needs the extra `chain`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tiebreak.protocol.chain import Chain, Creation, Deployment
from tiebreak.protocol.chain.deployments import check_deployment, document, require_chain
from tiebreak.protocol.chain.devnet import BALANCE, MNEMONIC, RunningNode, dev_secrets, running_node
from tiebreak.protocol.commitments.keys import PrivateKey

CONSTANT_ENTROPY: Final = (
    "prevrandao was the same before and after: where it is constant, a client can choose the seats of its jobs, "
    "so agree on none here (docs/chains.md)"
)
check = check_deployment


def connect(rpc: str, chain_id: int | None = None) -> Chain:
    """Connects to a chain by URL or IPC path. Raises `ConfigurationError` if its id is not `chain_id`."""
    chain = Chain.connect(rpc)
    if chain_id is not None:
        require_chain(chain, chain_id)
    return chain


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
