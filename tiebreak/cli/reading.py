"""`tiebreak status`, `show`, `jobs` and `games`: what there is, on the disk and on a chain."""

from pathlib import Path

import click

from tiebreak import api, node
from tiebreak.cli.options import FOLDER, json_option, number, rpc_option, tell
from tiebreak.cli.terms import AddressType, DigestType
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.tags import Digest

board_option = click.option(
    "--board", type=AddressType(), required=True, envvar="TIEBREAK_BOARD",
    help="Address of the job board; also from TIEBREAK_BOARD.",
)  # fmt: skip
from_block = number("--from-block", 0, None, 0, "The first block to look at.")


@click.command()
@click.argument("run", type=FOLDER)
@rpc_option(required=False)
@json_option
def status(run: Path, rpc: str | None, as_json: bool) -> None:
    """Say how far the run in the folder RUN is, and with --rpc how its job stands on the chain.

    From the disk: checkpoints that are complete, those that are signed, the last loss and the root so far. From the
    chain: heads that are posted, open games, by when the next head is due or when the job can be settled, how many
    seconds are left, what is staked, and what the board owes to client and trainer.
    """
    opened = api.offers.open_offer(run)
    document = api.reading.status(opened)
    if rpc is not None:
        document["chain"] = api.onchain.standing(api.onchain.board_of(rpc, opened), opened.job)
    if not as_json:
        document |= {f"chain {name}": value for name, value in document.pop("chain", {}).items()}
    tell(document, as_json=as_json)


@click.command()
@click.argument("run", type=FOLDER)
@json_option
def show(run: Path, as_json: bool) -> None:
    """Show the job of the folder RUN at length: who agreed on what, by which roots, and which files there are.

    RUN may also hold an offer that its trainer has not signed yet. Signatures and program are checked, and amounts are
    in wei, times in seconds. The files are those that others need of it, with their sizes; `tiebreak pack` copies them,
    and `tiebreak publish` puts them on a hub.
    """
    opened = api.offers.open_offer(run)
    count = max((head.head.count for head in opened.heads()), default=0)
    files = [{"file": part.name, "bytes": part.size} for part in node.library.parts(opened, count)]
    tell({**api.reading.show(opened), "files": files}, as_json=as_json)


@click.group()
def jobs() -> None:
    """List jobs on a board, or show one of them.

    `tiebreak jobs list` has a line for each job that was created there, with its status, its heads and its open games.
    `tiebreak jobs show ID` shows all that the board stores of one, and the times that follow from it: by when its
    trainer has to post the next head, or when it can be settled. Nothing is sent and no key is needed. The contracts'
    code is compared with this version's first.
    """


@jobs.command("list")
@rpc_option(required=True)
@board_option
@from_block
@json_option
def list_jobs(rpc: str, board: Address, from_block: int, as_json: bool) -> None:
    """List the jobs that were created on a board."""
    tell(list(api.onchain.jobs(api.onchain.board_at(rpc, board), from_block)), as_json=as_json)


@jobs.command("show")
@click.argument("job", type=DigestType())
@rpc_option(required=True)
@board_option
@json_option
def show_job(job: Digest, rpc: str, board: Address, as_json: bool) -> None:
    """Show what a board stores of one job."""
    tell(api.onchain.job_document(api.onchain.board_at(rpc, board), job), as_json=as_json)


@click.group()
def games() -> None:
    """List the games on a board, or show one of them.

    A game is a dispute about a head. `tiebreak games list` has a line for each: who challenged which head, at which
    level of the walk it stands and how it ended. `tiebreak games show ID` shows all that the board stores of one (whose
    turn it is follows from the phase, the rests are the sides' clocks) and every move that it logged. Nothing is sent
    and no key is needed.
    """


@games.command("list")
@rpc_option(required=True)
@board_option
@click.option("--job", type=DigestType(), help="Only games about this job.")
@from_block
@json_option
def list_games(rpc: str, board: Address, job: Digest | None, from_block: int, as_json: bool) -> None:
    """List the games that were started on a board."""
    tell(list(api.onchain.games(api.onchain.board_at(rpc, board), from_block, job)), as_json=as_json)


@games.command("show")
@click.argument("game", type=DigestType())
@rpc_option(required=True)
@board_option
@from_block
@json_option
def show_game(game: Digest, rpc: str, board: Address, from_block: int, as_json: bool) -> None:
    """Show what a board stores of one game, and what it logged about it."""
    tell(api.onchain.game_document(api.onchain.board_at(rpc, board), game, from_block), as_json=as_json)
