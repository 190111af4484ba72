"""A local chain for development: anvil if it is installed, otherwise the embedded EVM behind JSON-RPC.

The accounts come from a publicly known mnemonic: never use their keys anywhere else.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eth_account.hdaccount import key_from_seed, seed_from_mnemonic
from web3 import HTTPProvider, Web3
from web3.types import RPCEndpoint

from tiebreak.protocol.chain.embedded import ACCOUNTS_PATH, new_tester
from tiebreak.protocol.chain.errors import NodeError
from tiebreak.protocol.chain.rpc import HOST, RpcServer
from tiebreak.protocol.errors import ConfigurationError

MNEMONIC: Final = "test test test test test test test test test test test junk"
"""The default mnemonic of anvil and similar nodes."""
BALANCE: Final = 10_000 * 10**18
"""Initial balance of each account in wei, in both kinds of node."""
INSTALLED: Final = Path(__file__).resolve().parents[3] / "contracts" / "node_modules" / ".bin" / "anvil"
"""The path at which `make contracts` installs anvil."""
START_SECONDS: Final = 30
STOP_SECONDS: Final = 5
HARDFORK: Final = "prague"
"""The hardfork that the contracts are built for (contracts/foundry.toml) and that the embedded chain uses."""


def dev_secrets(count: int) -> list[int]:
    """The private keys of the accounts, derived from the mnemonic by BIP-32."""
    seed = seed_from_mnemonic(MNEMONIC, "")
    return [int.from_bytes(key_from_seed(seed, f"{ACCOUNTS_PATH}/{index}"), "big") for index in range(count)]


def find_anvil() -> Path | None:
    """The anvil on PATH, or the one installed with the contracts' packages; None if there is neither."""
    found = shutil.which("anvil") or (str(INSTALLED) if INSTALLED.exists() else None)
    return None if found is None else Path(found)


@dataclass(frozen=True, slots=True)
class RunningNode:
    """A node that answers at `url`."""

    url: str
    kind: str
    """Either "anvil" or "embedded"."""
    check: Callable[[], None]
    """Raises `NodeError` if the node has exited."""
    mine_every: Callable[[int], object]
    """Begins to mine a block each time this many seconds pass. Before that, each transaction is mined at once."""


@contextmanager
def run_anvil(binary: Path, *, port: int, mnemonic: str, accounts: int) -> Iterator[RunningNode]:
    """Run anvil for the duration of the context."""
    command = [str(binary), "--host", HOST, "--port", str(port), "--hardfork", HARDFORK, "--silent"]
    command += ["--mnemonic", mnemonic, "--accounts", str(accounts)]
    url = f"http://{HOST}:{port}"
    web3 = Web3(HTTPProvider(url, request_kwargs={"timeout": 1}, exception_retry_configuration=None))
    if web3.is_connected():
        raise NodeError(f"expected no node at {url}, got one; choose another --port")
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
        except OSError as error:
            raise ConfigurationError(f"cannot run {binary}: {error.strerror}; use --embedded") from error

        def check() -> None:
            if (code := process.poll()) is not None:
                errors.seek(0)
                last = errors.read().decode("utf-8", "replace").strip().splitlines()[-3:]
                raise NodeError(f"expected a running anvil, got one that ended with code {code}: {' '.join(last)}")

        def mine_every(seconds: int) -> None:
            method = RPCEndpoint("evm_setIntervalMining")
            if "error" in (answer := web3.provider.make_request(method, (seconds,))):
                raise NodeError(f"expected anvil to take {method}, got {answer['error']}")

        try:
            end = time.monotonic() + START_SECONDS
            while not web3.is_connected():
                check()
                if time.monotonic() > end:
                    raise NodeError(f"expected anvil to answer at {url} within {START_SECONDS} s, got nothing")
                time.sleep(0.05)
            yield RunningNode(url, "anvil", check, mine_every)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def running_node(*, port: int, accounts: int, embedded: bool = False) -> Iterator[RunningNode]:
    """Run a node with funded accounts for the duration of the context. With `embedded`, anvil is not looked for.

    Raises `NodeError` if the port is taken or anvil does not start.
    """
    binary = None if embedded else find_anvil()
    if binary is None:
        tester = new_tester(MNEMONIC, accounts, BALANCE)
        with RpcServer(tester, port) as server:
            yield RunningNode(server.url, "embedded", server.check, server.mine_every)
        return
    with run_anvil(binary, port=port, mnemonic=MNEMONIC, accounts=accounts) as anvil:
        yield anvil
