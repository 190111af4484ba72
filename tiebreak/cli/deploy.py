"""`tiebreak deploy`: puts the contracts on any chain, or checks that a deployment is of this version."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tiebreak import api
from tiebreak.cli.key import load_key
from tiebreak.cli.options import FILE, NEW_FILE
from tiebreak.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from tiebreak.protocol.chain import Creation


@click.command()
@click.option("--rpc", required=True, help="The chain: an http(s) URL, or the path of a node's IPC socket.")
@click.option("--key", type=NEW_FILE, help="Key file of the account that pays (tiebreak key).")
@click.option("--chain-id", type=click.IntRange(1), help="Refuse to deploy to any other chain than this.")
@click.option("--output", "-o", type=NEW_FILE, default=Path("deployment.json"), show_default=True,
              help="File to write the addresses to; it must not exist.")  # fmt: skip
@click.option("--check", "checked", type=FILE, help="Deploy nothing: verify a file that an earlier deployment wrote.")
def deploy(rpc: str, key: Path | None, chain_id: int | None, output: Path, checked: Path | None) -> None:
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
        for name, address in api.chains.check(chain, checked).items():
            click.echo(f"{name:<16}0x{address.hex()}  this version's code")
        return
    if key is None:
        raise ConfigurationError("expected --key FILE of the account that pays, or --check FILE, got neither")
    if output.exists():
        raise ConfigurationError(f"{output} already exists; choose another --output")
    signer = load_key(key)
    click.echo(f"{'chain id':<16}{chain.chain_id}")
    click.echo(f"{'deployer':<16}0x{signer.address.hex()}")
    document = api.chains.deploy(chain, signer, _show, lambda text: click.echo(f"warning: {text}", err=True))
    output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    gas = sum(contract["gasUsed"] for contract in document["contracts"].values())
    click.echo(f"{'in all':<16}{gas} gas; written to {output}")


def _show(creation: "Creation") -> None:
    click.echo(f"{creation.name:<16}0x{creation.address.hex()}  {creation.gas_used} gas, block {creation.block}")
