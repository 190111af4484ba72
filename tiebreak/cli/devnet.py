"""`tiebreak devnet`: runs a development chain that has the contracts on it."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from tiebreak import api
from tiebreak.cli.keyfiles import passphrase
from tiebreak.protocol.commitments.terms import ether

if TYPE_CHECKING:
    from tiebreak.api.chains import Devnet

MAX_ACCOUNTS = 100
WATCH_SECONDS = 0.5
"""How often to check that the node is still alive."""


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=8545, show_default=True, help="Port on this machine.")
@click.option(
    "--accounts",
    type=click.IntRange(1, MAX_ACCOUNTS),
    default=5,
    show_default=True,
    help="Number of accounts with money.",
)
@click.option(
    "--block-time",
    type=click.IntRange(0, 3600),
    default=0,
    show_default=True,
    help="Seconds between blocks; 0 mines each transaction at once.",
)
@click.option("--embedded", is_flag=True, help="Use the EVM that comes with Tiebreak, even where anvil is installed.")
@click.option(
    "--keys",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write the accounts' keys to this folder, as encrypted key files that other commands take.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def devnet(port: int, accounts: int, block_time: int, embedded: bool, keys: Path | None, as_json: bool) -> None:
    """Run a chain for development until Ctrl-C, with the job board, the referee and funded accounts.

    It is anvil if that is on PATH or was installed by `make contracts`, else an EVM in this process; both answer
    JSON-RPC on 127.0.0.1 only. The accounts come from a mnemonic that everybody knows: their keys are for such a chain
    and for nothing else. The first account deploys the contracts, so their addresses are the same every time.

    In another terminal, play there through `tiebreak.protocol.chain.Chain.connect(URL)` and `attach(BOARD)`; see
    docs/chain.md.
    """
    word = None if keys is None else _folder_for_keys(keys)
    with (
        _terminated(),
        api.chains.devnet(port=port, accounts=accounts, block_seconds=block_time, embedded=embedded) as running,
    ):
        if keys is not None and word is not None:
            for index, (signer, _) in enumerate(running.accounts):
                api.keys.save_key(signer, keys / f"account-{index}.pem", word)
        (_print_json if as_json else _print_table)(running)
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
def _terminated() -> Iterator[None]:
    """Lets SIGTERM end the command as Ctrl-C does, so that no anvil process is left behind."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _folder_for_keys(folder: Path) -> str:
    """Creates the folder, and asks for the passphrase before the chain starts."""
    folder.mkdir(parents=True, exist_ok=True)
    return passphrase(folder)


def _print_table(running: "Devnet") -> None:
    click.echo(f"{'RPC':<16}{running.node.url} ({running.node.kind})")
    click.echo(f"{'chain id':<16}{running.chain.chain_id}")
    for name, address in running.deployment.named().items():
        click.echo(f"{name:<16}0x{address.hex()}")
    click.echo(f"{'mnemonic':<16}{running.mnemonic}")
    for index, (signer, secret) in enumerate(running.accounts):
        click.echo(f"{f'account {index}':<16}0x{signer.address.hex()}  key 0x{secret:064x}")
    click.echo(f"Each account started with {ether(running.balance)}. These keys are public. Ctrl-C stops the chain.")


def _print_json(running: "Devnet") -> None:
    document = {
        "rpc": running.node.url,
        "node": running.node.kind,
        "chainId": running.chain.chain_id,
        "contracts": {name: f"0x{address.hex()}" for name, address in running.deployment.named().items()},
        "mnemonic": running.mnemonic,
        "accounts": [
            {"address": f"0x{signer.address.hex()}", "key": f"0x{secret:064x}"} for signer, secret in running.accounts
        ],
    }
    click.echo(json.dumps(document, indent=1))
