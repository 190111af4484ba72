"""`tiebreak devnet` and `tiebreak deploy`: the contracts on a development chain, which runs here, or on any chain."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from tiebreak import api
from tiebreak.cli.key import load_key, passphrase
from tiebreak.cli.options import FILE, NEW_FILE, json_option, number, tell
from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from tiebreak.api.chain.chains import Devnet
    from tiebreak.protocol.chain import Creation

MAX_ACCOUNTS = 100
WATCH_SECONDS = 0.5
"""The time between two checks that the node is still alive."""


@click.command()
@number("--port", 1, 65535, 8545, "Port on this machine.")
@number("--accounts", 1, MAX_ACCOUNTS, 5, "Number of accounts with money.")
@number("--block-time", 0, 3600, 0, "Seconds between blocks; 0 mines each transaction at once.")
@click.option("--embedded", is_flag=True, help="Use the EVM that comes with Tiebreak, even where anvil is installed.")
@click.option("--keys", type=click.Path(file_okay=False, path_type=Path), help="Also write the accounts' keys to this "
              "folder, as encrypted key files that other commands take.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def devnet(port: int, accounts: int, block_time: int, embedded: bool, keys: Path | None, as_json: bool) -> None:
    """Run a chain for development until Ctrl-C, with the job board, the referee and funded accounts.

    It is anvil if that is on PATH or was installed by `make contracts`, else an EVM in this process; both answer
    JSON-RPC on 127.0.0.1 only. The accounts come from a mnemonic that everybody knows: their keys are for such a chain
    and for nothing else. The first account deploys the contracts, so their addresses are the same every time.

    In another terminal, play there through `tiebreak.protocol.chain.Chain.connect(URL)` and `attach(BOARD)`; see
    docs/chain.md.
    """
    word = None
    if keys is not None:
        keys.mkdir(parents=True, exist_ok=True)
        word = passphrase(keys)  # asked for before the chain starts
    with (
        terminated(),
        api.chains.devnet(port=port, accounts=accounts, block_seconds=block_time, embedded=embedded) as running,
    ):
        if keys is not None and word is not None:
            for index, (signer, _) in enumerate(running.accounts):
                api.keys.save_key(signer, keys / f"account-{index}.pem", word)
        _print(running, as_json=as_json)
        _wait(running)
    if not as_json:
        click.echo("stopped")


def _wait(running: "Devnet") -> None:
    """Waits until Ctrl-C. Raises `NodeError` if the node stops before."""
    try:
        while True:
            running.node.check()
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return


@contextmanager
def terminated() -> Iterator[None]:
    """Lets SIGTERM end the command as Ctrl-C does, so that no anvil process is left behind."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print(running: "Devnet", *, as_json: bool) -> None:
    document: dict[str, Any] = {
        "rpc": running.node.url,
        "node": running.node.kind,
        "chainId": running.chain.chain_id,
        "contracts": {name: f"0x{address.hex()}" for name, address in running.deployment.named().items()},
        "mnemonic": running.mnemonic,
        "accounts": [
            {"address": f"0x{signer.address.hex()}", "key": f"0x{secret:064x}"} for signer, secret in running.accounts
        ],
    }
    if as_json:
        click.echo(json.dumps(document, indent=1))
        return
    accounts = {f"account {n}": f"{a['address']}  key {a['key']}" for n, a in enumerate(document["accounts"])}
    rows = {"RPC": f"{document['rpc']} ({document['node']})", "chain id": document["chainId"], **document["contracts"]}
    for name, value in {**rows, "mnemonic": document["mnemonic"], **accounts}.items():
        click.echo(f"{name:<16}{value}")
    click.echo(f"Each account started with {ether(running.balance)}. These keys are public. Ctrl-C stops the chain.")


@click.command()
@click.option("--rpc", required=True, help="The chain: an http(s) URL, or the path of a node's IPC socket.")
@click.option("--key", type=NEW_FILE, help="Key file of the account that pays (tiebreak key).")
@click.option("--chain-id", type=click.IntRange(1), help="Refuse to deploy to any other chain than this.")
@click.option("--output", "-o", type=NEW_FILE, default=Path("deployment.json"), show_default=True,
              help="File to write the addresses to; it must not exist.")  # fmt: skip
@click.option("--check", "checked", type=FILE, help="Deploy nothing: verify a file that an earlier deployment wrote.")
@json_option
def deploy(
    rpc: str, key: Path | None, chain_id: int | None, output: Path, checked: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Put the four contracts on a chain, or verify that they stand there.

    Each is created by a transaction with EIP-1559 fees that is waited for; address and gas are printed, and written
    to a JSON file together with the chain id, the blocks and hashes of the code. An account that cannot pay for all
    of it is refused before anything is sent, with the amount that it needs. A chain on which seats cannot be drawn
    fairly, because `prevrandao` is constant there, is warned of.

    With --check FILE nothing is sent and no key is needed: the command recreates each contract in a call and compares
    what would stand there with what does, byte for byte. Check a deployment like that before you pay money into it.
    """
    chain = api.chains.connect(rpc, chain_id)
    if checked is not None:
        found = {name: f"0x{address.hex()}" for name, address in api.chains.check(chain, checked).items()}
        tell(found if as_json else {k: f"{at}  this version's code" for k, at in found.items()}, as_json=as_json)
        return
    if key is None:
        raise ConfigurationError("expected --key FILE of the account that pays, or --check FILE, got neither")
    if output.exists():
        raise ConfigurationError(f"{output} already exists; choose another --output")
    signer = load_key(key)
    if not as_json:
        click.echo(f"{'chain id':<16}{chain.chain_id}")
        click.echo(f"{'deployer':<16}0x{signer.address.hex()}")
    told = (lambda _: None) if as_json else _show
    document = api.chains.deploy(chain, signer, told, lambda text: click.echo(f"warning: {text}", err=True))
    output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    if as_json:
        tell(document, as_json=True)
        return
    gas = sum(contract["gasUsed"] for contract in document["contracts"].values())
    click.echo(f"{'in all':<16}{gas} gas; written to {output}")


def _show(creation: "Creation") -> None:
    click.echo(f"{creation.name:<16}0x{creation.address.hex()}  {creation.gas_used} gas, block {creation.block}")
