"""`tiebreak status`, `show`, `jobs` and `games`: what there is, on the disk, on a chain, and on a hub without one."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tiebreak import api, node
from tiebreak.cli.options import FOLDER, AnyFunction, json_option, number, rpc_option, tell
from tiebreak.cli.terms import AddressType, DigestType
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Address
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.tags import Digest

if TYPE_CHECKING:
    from tiebreak.api.chain.onchain import HubBoard
    from tiebreak.protocol.chain import Chain

from_block = number("--from-block", 0, None, 0, "The first block to look at; of a hub, the first place.")


def board_options(function: AnyFunction) -> AnyFunction:
    """--rpc and --board, or --hub: where jobs and games are read."""
    hub = click.option("--hub", help="URL of a hub whose jobs have no chain, to be read in place of one.")(function)
    text = "Address of the job board; also from TIEBREAK_BOARD."
    board = click.option("--board", type=AddressType(), envvar="TIEBREAK_BOARD", help=text)(hub)
    return rpc_option(required=False)(board)


def board_from(rpc: str | None, board: Address | None, hub: str | None, *jobs: Digest) -> "Chain | HubBoard":
    """The board to read; of a hub, perhaps only its posts about some jobs."""
    if hub is not None:
        mail = node.exchange.open_hub(hub, OFF_CHAIN)
        return api.onchain.HubBoard(node.exchange.letters(mail, *jobs), OFF_CHAIN)
    if rpc is None or board is None:
        raise ConfigurationError("expected --rpc and --board of a chain, or the --hub of jobs without one")
    return api.onchain.board_at(rpc, board)


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
    code is compared with this version's first. For jobs without a chain, --hub shows their state by the hub's posts.
    """


@jobs.command("list")
@board_options
@from_block
@json_option
def list_jobs(rpc: str | None, board: Address | None, hub: str | None, from_block: int, as_json: bool) -> None:
    """List the jobs that were created on a board."""
    tell(list(api.onchain.jobs(board_from(rpc, board, hub), from_block)), as_json=as_json)


@jobs.command("show")
@click.argument("job", type=DigestType())
@board_options
@json_option
def show_job(job: Digest, rpc: str | None, board: Address | None, hub: str | None, as_json: bool) -> None:
    """Show what a board stores of one job."""
    tell(api.onchain.job_document(board_from(rpc, board, hub, job), job), as_json=as_json)


@click.group()
def games() -> None:
    """List the games on a board, or show one of them.

    A game is a dispute about a head. `tiebreak games list` has a line for each: who challenged which head, at which
    level of the walk it stands and how it ended. `tiebreak games show ID` shows all that the board stores of one (whose
    turn it is follows from the phase, the rests are the sides' clocks) and every move that it logged. Nothing is sent
    and no key is needed.
    """


@games.command("list")
@board_options
@click.option("--job", type=DigestType(), help="Only games about this job.")
@from_block
@json_option
def list_games(
    rpc: str | None, board: Address | None, hub: str | None, job: Digest | None, from_block: int, as_json: bool
) -> None:
    """List the games that were started on a board."""
    tell(list(api.onchain.games(board_from(rpc, board, hub), from_block, job)), as_json=as_json)


@games.command("show")
@click.argument("game", type=DigestType())
@board_options
@from_block
@json_option
def show_game(
    game: Digest, rpc: str | None, board: Address | None, hub: str | None, from_block: int, as_json: bool
) -> None:
    """Show what a board stores of one game, and what it logged about it."""
    tell(api.onchain.game_document(board_from(rpc, board, hub), game, from_block), as_json=as_json)
