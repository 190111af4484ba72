"""`tiebreak post`, `challenge`, `settle` and `withdraw`: transactions on a chain, one at a time, by hand."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tiebreak import api
from tiebreak.cli.key import load_key
from tiebreak.cli.options import FILE, FOLDER, AnyFunction, json_option, number, rpc_option, tell
from tiebreak.cli.terms import AddressType
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from tiebreak.api.chain.onchain import SentTransaction

key_option = click.option("--key", type=FILE, required=True, help="Key file of the account that sends and pays.")


def on_chain(function: AnyFunction) -> click.Command:
    """A command about a RUN on its job's chain, for the owner of a key."""
    return click.command()(click.argument("run", type=FOLDER)(key_option(rpc_option(required=True)(function))))


def _told(sent: "SentTransaction", as_json: bool, **more: str) -> None:
    receipt = sent.receipt
    place = {"transaction": f"0x{receipt.transaction.hex()}", "block": receipt.block, "gas": receipt.gas_used}
    tell({"sent": sent.what, **more, **place}, as_json=as_json)


@on_chain
@click.option("--count", type=click.IntRange(1), help="Post the head of so many checkpoints.  [default: the last]")
@json_option
def post(run: Path, key: Path, rpc: str, count: int | None, as_json: bool) -> None:
    """Send the chain what the job in RUN needs next from the owner of a key.

    The client creates the job and pays the reward; then the trainer accepts it and pays its stake; then the trainer
    posts its signed heads. The board and its chain are those that the job names, and their code is checked first. Calls
    that the contract would refuse are not sent. By hand you watch the deadlines yourself (`tiebreak status`): a trainer
    that posts no head in time loses its stake. `tiebreak trainer` and `tiebreak client` do all of this by themselves.
    """
    opened = api.runs.open_directory(run)
    _told(api.onchain.post(api.onchain.board_of(rpc, opened), opened, load_key(key), count), as_json)


@on_chain
@click.option("--replay", type=FOLDER, help="Your own replay of the job (tiebreak audit), which contradicts the head.")
@click.option("--anyway", is_flag=True, help="Challenge without a replay, and lose the stake if the head is true.")
@click.option("--count", type=click.IntRange(1), help="Challenge the head of so many checkpoints.  [default: the last]")
@number("--nonce", 0, None, 0, "Tells your games against one head apart.")
@json_option
def challenge(
    run: Path, key: Path, rpc: str, replay: Path | None, anyway: bool, count: int | None, nonce: int, as_json: bool
) -> None:
    """Start a game on the chain against a signed head of RUN, and put up the challenger's stake.

    A challenge is for a head that your own replay contradicts. The replay is compared once more before anything is
    sent, because a challenge of a true head loses the stake. The trainer then has to answer, and so do you, each within
    its clock: go on with `tiebreak auditor`, which plays the game to its end. `tiebreak dispute` shows at once
    where the run is false.
    """
    if (replay is None) != anyway:
        raise ConfigurationError("expected --replay FOLDER, or --anyway in its place")
    opened = api.runs.open_directory(run)
    game_id, sent = api.onchain.challenge(
        api.onchain.board_of(rpc, opened), opened, load_key(key), replay=replay, count=count, nonce=nonce
    )
    _told(sent, as_json, game=game_id.hex())


@on_chain
@click.option("--how", type=click.Choice(["settle", "cancel", "abandon", "part"]), default="settle", show_default=True,
              help="settle: the final head stood; cancel: nobody accepted the offer; abandon: the trainer fell silent; "
              "part: a receipt for logs did not come (policy logged).")  # fmt: skip
@json_option
def settle(run: Path, key: Path, rpc: str, how: str, as_json: bool) -> None:
    """End the job of RUN on the chain.

    Once the final head has stood through its window and no game is open, anybody may settle: the trainer is credited
    with the reward and its stake. The other ways to end a job are for when a party does not do its part. If it is too
    early, or not yours to do, the contract's reason is printed and nothing is sent. Credited money is fetched with
    `tiebreak withdraw`.
    """
    opened = api.runs.open_directory(run)
    _told(api.onchain.end(api.onchain.board_of(rpc, opened), opened, load_key(key), how), as_json)


@click.command()
@key_option
@rpc_option(required=True)
@click.option("--board", type=AddressType(), required=True, help="Address of the job board (tiebreak deploy).")
@click.option("--to", type=AddressType(), help="Send the money to this address.  [default: the key's account]")
@json_option
def withdraw(key: Path, rpc: str, board: Address, to: Address | None, as_json: bool) -> None:
    """Withdraw all that a board owes to the account of a key.

    The board never sends money by itself: rewards, returned stakes and what a won game brings are credited to an
    account, in all jobs together, and its owner takes them out in one transaction. The code of the board is compared
    with this version's before anything is sent.
    """
    _told(api.onchain.withdraw(api.onchain.board_at(rpc, board), load_key(key), to), as_json)
