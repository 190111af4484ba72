"""`tiebreak devnet`: the contracts on a chain for development, which runs here."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from tiebreak import api
from tiebreak.cli import options as opt
from tiebreak.cli.key import passphrase
from tiebreak.protocol.commitments.terms import ether

MAX_ACCOUNTS = 100
WATCH_SECONDS = 0.5
"""The time between two checks that the node is still alive."""


@click.command()
@opt.number("--port", 1, 65535, 8545, "Port on this machine.")
@opt.number("--accounts", 1, MAX_ACCOUNTS, 5, "Number of accounts with money.")
@opt.number("--block-time", 0, 3600, 0, "Seconds between blocks; 0 mines each transaction at once.")
@click.option("--embedded", is_flag=True, help="Use the EVM that comes with Tiebreak, even where anvil is installed.")
@click.option("--keys", type=opt.NEW_FOLDER, help="Also write the accounts' keys to this folder, as encrypted key "
              "files that other commands take.")  # fmt: skip
@opt.json_option
def devnet(port: int, accounts: int, block_time: int, embedded: bool, keys: Path | None, as_json: bool) -> None:
    """Run a chain for development, with the contracts and money.

    It runs until Ctrl-C, with the job board, the referee and funded accounts. It is anvil if that is on PATH or was
    installed by `make contracts`, else an EVM in this process; both answer JSON-RPC on 127.0.0.1 only. The accounts
    come from a mnemonic that everybody knows: their keys are for such a chain and for nothing else. The first account
    deploys the contracts, so their addresses are the same every time.

    In another terminal, use it with `tiebreak chain`, or by `tiebreak.protocol.chain.Chain.connect(URL)` and
    `attach(BOARD)`; see docs/chain.md.
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
        try:
            while True:
                running.node.check()
                time.sleep(WATCH_SECONDS)
        except KeyboardInterrupt:
            pass
    if not as_json:
        click.echo("stopped")


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


def _print(running: "api.chains.Devnet", *, as_json: bool) -> None:
    contracts = {name: f"0x{address.hex()}" for name, address in running.deployment.named().items()}
    accounts = [(f"0x{signer.address.hex()}", f"0x{secret:064x}") for signer, secret in running.accounts]
    node, chain_id = running.node, running.chain.chain_id
    document: dict[str, Any] = {"rpc": node.url, "node": node.kind, "chainId": chain_id, "contracts": contracts}
    document |= {"mnemonic": running.mnemonic, "accounts": [{"address": at, "key": key} for at, key in accounts]}
    if as_json:
        opt.tell(document, as_json=True)
        return
    rows = {f"account {index}": f"{at}  key {key}" for index, (at, key) in enumerate(accounts)}
    where = {"RPC": f"{node.url} ({node.kind})", "chain id": chain_id}
    opt.tell({**where, **contracts, "mnemonic": running.mnemonic, **rows}, as_json=False)
    click.echo(f"Each account started with {ether(running.balance)}. These keys are public. Ctrl-C stops the chain.")
