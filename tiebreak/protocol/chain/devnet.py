"""A local chain for development: anvil if it is installed, otherwise the embedded EVM behind JSON-RPC.

The accounts come from a publicly known mnemonic: never use their keys anywhere else.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from eth_account.hdaccount import key_from_seed, seed_from_mnemonic

from tiebreak.protocol.chain.anvil import HOST, Anvil, find_anvil
from tiebreak.protocol.chain.embedded import ACCOUNTS_PATH, new_tester
from tiebreak.protocol.chain.rpc import RpcServer

MNEMONIC: Final = "test test test test test test test test test test test junk"
"""The default mnemonic of anvil and similar nodes."""
BALANCE: Final = 10_000 * 10**18
"""Initial balance of each account in wei, in both kinds of node."""
MAX_ACCOUNTS: Final = 100


def free_port() -> int:
    """A port of this machine that is currently not in use."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class RunningNode:
    """A node that answers at `url`."""

    url: str
    kind: str
    """Either "anvil" or "embedded"."""
    check: Callable[[], None]
    """Raises `NodeError` if the node has exited."""


def dev_secrets(count: int) -> list[int]:
    """The private keys of the accounts, derived from the mnemonic by BIP-32."""
    seed = seed_from_mnemonic(MNEMONIC, "")
    return [int.from_bytes(key_from_seed(seed, f"{ACCOUNTS_PATH}/{index}"), "big") for index in range(count)]


@contextmanager
def running_node(*, port: int, accounts: int, block_seconds: int = 0, embedded: bool = False) -> Iterator[RunningNode]:
    """Run a node with funded accounts for the duration of the context. With `embedded`, anvil is not looked for.

    Raises `NodeError` if the port is taken or anvil does not start.
    """
    binary = None if embedded else find_anvil()
    if binary is None:
        tester = new_tester(MNEMONIC, accounts, BALANCE)
        with RpcServer(tester, port, block_seconds) as server:
            yield RunningNode(server.url, "embedded", lambda: None)
        return
    with Anvil(binary, port=port, mnemonic=MNEMONIC, accounts=accounts, block_seconds=block_seconds) as anvil:
        yield RunningNode(anvil.url, "anvil", anvil.check)
