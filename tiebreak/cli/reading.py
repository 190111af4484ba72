"""Jobs and games as they stand, on the disk, on a chain or on a hub, and transactions about them by hand.

The commands are `tiebreak status`, `show`, `jobs`, `games`; `post`, `challenge`, `games claim`, `settle`, `withdraw`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tiebreak import api, node
from tiebreak.cli.key import load_key
from tiebreak.cli.options import FILE, FOLDER, AnyFunction, json_option, number, options, rpc_option, tell
from tiebreak.cli.terms import AddressType, DigestType
from tiebreak.engine.data.disk import Folder
from tiebreak.node.settings import FILE as SETTINGS
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Address
from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.errors import ConfigurationError, TiebreakError, VerificationError
from tiebreak.protocol.strict_json import parse_json
from tiebreak.protocol.tags import Digest

if TYPE_CHECKING:
    from tiebreak.api.chain.boards import HubBoard
    from tiebreak.api.chain.onchain import SentTransaction
    from tiebreak.protocol.chain import Chain


MAX_STATUS_BYTES = 1 << 24

from_block = number("--from-block", 0, None, 0, "The first block to look at; of a hub, the first place.")


board_options = options(
    rpc_option(required=False),
    click.option("--board", type=AddressType(), envvar="TIEBREAK_BOARD",
                 help="Address of the job board; also from TIEBREAK_BOARD."),
    click.option("--hub", help="URL of a hub whose jobs have no chain, to be read in place of one."),
)  # fmt: skip
"""--rpc and --board, or --hub: where jobs and games are read."""


def board_from(rpc: str | None, board: Address | None, hub: str | None, *jobs: Digest) -> "Chain | HubBoard":
    """The board to read; of a hub, perhaps only its posts about some jobs."""
    if hub is not None:
        hub_client = node.exchange.open_hub(hub, OFF_CHAIN)
        verified_posts = node.exchange.read_posts(hub_client, *jobs)
        return api.boards.HubBoard(((one.place, one.at, one.post, one.body) for one in verified_posts), OFF_CHAIN)
    if rpc is None or board is None:
        raise ConfigurationError("expected --rpc and --board of a chain, or the --hub of jobs without one")
    return api.boards.board_at(rpc, board)


@click.command()
@click.argument("folder", type=FOLDER)
@rpc_option(required=False)
@json_option
def status(folder: Path, rpc: str | None, as_json: bool) -> None:
    """Say how a run stands, or a party (client, trainer, auditor, watcher), by what is in FOLDER.

    Of a party, what it last said of itself: money, what is at stake, and how much time is left.

    Of a run, from the disk: checkpoints that are complete, those that are signed, the last loss and the root so far.
    With --rpc, from its chain: heads that are posted, open games, by when the next head is due or when the job can be
    settled, how many seconds are left, what is staked, and what the board owes to client and trainer.
    """
    if (folder / SETTINGS).is_file():
        tell_party(folder, as_json=as_json)
        return
    opened = api.reading.open_offer(folder)
    document = api.reading.status(opened)
    if rpc is not None:
        document["chain"] = api.boards.standing(api.boards.board_of(rpc, opened), opened.job)
    if not as_json:
        document |= {f"chain {name}": value for name, value in document.pop("chain", {}).items()}
    tell(document, as_json=as_json)


def tell_party(folder: Path, *, as_json: bool) -> None:
    """Prints what the party of a folder last wrote about itself."""
    try:
        with Folder(folder) as opened:
            text = opened.read("status.json", MAX_STATUS_BYTES)
    except (OSError, TiebreakError) as error:
        raise ConfigurationError(
            f"expected {folder / 'status.json'}, got none; start the party: tiebreak ROLE run {folder}"
        ) from error
    try:
        found = parse_json(text, 8)
        rows = {n: "".join(c if c.isprintable() else "?" for c in row) for n, row in _party_rows(found).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise VerificationError(
            f"{folder / 'status.json'}: expected what a party says of itself, got {error}"
        ) from error
    tell(found if as_json else rows, as_json=as_json)


def _party_rows(found: dict[str, Any]) -> dict[str, str]:
    rows: list[tuple[str, str]] = [(name, str(found[name])) for name in ("role", "address") if name in found]
    amounts = ("balance", "floor", "credit", "at_risk")
    rows += [(name.replace("_", " "), ether(found[name])) for name in amounts if found.get(name) is not None]
    left = found.get("seconds_left")
    rows.append(("time left", "nothing waits for it" if left is None else f"{left} s"))
    for job_id, job in found["jobs"].items():
        why = f": {job['why']}" if job.get("why") else ""
        rows.append((f"job {job_id[:8]}", f"{job['status']}, {job['heads']} of {job['checkpoints']} heads{why}"))
    for game in found.get("games", []):
        turn = "its turn" if game["our_turn"] else "the other's turn"
        rows.append((f"game {game['game'][:8]}", f"{turn}, {game['seconds_left']} s, stake {ether(game['stake'])}"))
    return dict(rows)


_AMOUNTS: Final = ("reward", "trainerStake", "challengerStake", "seatFee", "seatBond")


@click.command()
@click.argument("run", type=FOLDER)
@json_option
def show(run: Path, as_json: bool) -> None:
    """Show the job of the folder RUN at length: who agreed on what, by which roots, and its files.

    RUN may also hold an offer that its trainer has not signed yet. Signatures and program are checked. Times are in
    seconds, amounts in ether (with --json in wei). The files are those that others need of it, with their sizes;
    `tiebreak pack` copies them, and `tiebreak publish` puts them on a hub.
    """
    opened = api.reading.open_offer(run)
    count = max((head.head.count for head in opened.heads()), default=0)
    files = [{"file": part.name, "bytes": part.size} for part in node.parts.parts(opened, count)]
    shown = api.reading.show(opened)
    if not as_json:
        shown |= {name: ether(int(shown[name])) for name in _AMOUNTS}
    tell({**shown, "files": files}, as_json=as_json)


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
    found = list(api.boards.jobs(board_from(rpc, board, hub), from_block))
    tell(found if as_json else [{**row, "reward": ether(row["reward"])} for row in found], as_json=as_json)


@jobs.command("show")
@click.argument("job", type=DigestType())
@board_options
@json_option
def show_job(job: Digest, rpc: str | None, board: Address | None, hub: str | None, as_json: bool) -> None:
    """Show what a board stores of JOB, an id."""
    tell(api.boards.job_document(board_from(rpc, board, hub, job), job), as_json=as_json)


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
    tell(list(api.boards.games(board_from(rpc, board, hub), from_block, job)), as_json=as_json)


@games.command("show")
@click.argument("game", type=DigestType())
@board_options
@from_block
@json_option
def show_game(
    game: Digest, rpc: str | None, board: Address | None, hub: str | None, from_block: int, as_json: bool
) -> None:
    """Show what a board stores of GAME, an id, and what it logged about it."""
    tell(api.boards.game_document(board_from(rpc, board, hub), game, from_block), as_json=as_json)


key_option = click.option("--key", type=FILE, required=True, help="Key file of the account that sends and pays.")


@games.command("claim")
@click.argument("game", type=DigestType())
@key_option
@rpc_option(required=True)
@click.option("--board", type=AddressType(), envvar="TIEBREAK_BOARD", required=True,
              help="Address of the job board; also from TIEBREAK_BOARD.")  # fmt: skip
@json_option
def claim_game(game: Digest, key: Path, rpc: str, board: Address, as_json: bool) -> None:
    """Claim GAME, an id, in which the side to move has used up its clock.

    Anybody may do it; the board decides the game against that side. If there is time left, nothing is sent.
    """
    _told(api.onchain.claim(api.boards.board_at(rpc, board), game, load_key(key)), as_json)


def on_chain(function: AnyFunction) -> click.Command:
    """A command about a RUN on its job's chain, for the owner of a key."""
    return click.command()(click.argument("run", type=FOLDER)(key_option(rpc_option(required=True)(function))))


def _told(sent: "SentTransaction", as_json: bool, **more: str) -> None:
    receipt = sent.receipt
    place = {"transaction": f"0x{receipt.transaction.hex()}", "block": receipt.block, "gas": receipt.gas_used}
    tell({"sent": sent.what, **more, **place}, as_json=as_json)


@on_chain
@click.option("--count", type=click.IntRange(1), help="Number of checkpoints of the head to post.  [default: the last]")
@json_option
def post(run: Path, key: Path, rpc: str, count: int | None, as_json: bool) -> None:
    """Send the chain what the job in RUN needs next from the owner of a key.

    The client creates the job and pays the reward; then the trainer accepts it and pays its stake; then the trainer
    posts its signed heads. The board and its chain are those that the job names, and their code is checked first. Calls
    that the contract would refuse are not sent. By hand you watch the deadlines yourself (`tiebreak status`): a trainer
    that posts no head in time loses its stake. `tiebreak trainer` and `tiebreak client` do all of this by themselves.
    """
    opened = api.reading.open_directory(run)
    _told(api.onchain.post(api.boards.board_of(rpc, opened), opened, load_key(key), count), as_json)


@on_chain
@click.option("--replay", type=FOLDER, help="Your own replay of the job (tiebreak audit), which contradicts the head.")
@click.option("--anyway", is_flag=True, help="Challenge without a replay, and lose the stake if the head is true.")
@click.option(
    "--count", type=click.IntRange(1), help="Number of checkpoints of the challenged head.  [default: the last]"
)
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
    opened = api.reading.open_directory(run)
    game_id, sent = api.onchain.challenge(
        api.boards.board_of(rpc, opened), opened, load_key(key), replay=replay, count=count, nonce=nonce
    )
    _told(sent, as_json, game=game_id.hex())


@on_chain
@click.option("--how", type=click.Choice(["settle", "cancel", "abandon", "part", "concede"]), default="settle",
              show_default=True, help="settle: the final head stood; cancel: nobody accepted the offer; abandon: the "
              "trainer fell silent; part: a receipt for logs did not come (policy logged); concede: the trainer says "
              "that its last head is false.")  # fmt: skip
@click.option(
    "--to", type=AddressType(), help="With concede: the account that showed it, which gets half of the stake."
)
@json_option
def settle(run: Path, key: Path, rpc: str, how: str, to: Address | None, as_json: bool) -> None:
    """End the job of RUN on the chain.

    Once the final head has stood through its window and no game is open, anybody may settle: the trainer is credited
    with the reward and its stake. The other ways to end a job are for when a party does not do its part. If it is too
    early, or not yours to do, the contract's reason is printed and nothing is sent. Credited money is fetched with
    `tiebreak withdraw`.
    """
    if (to is None) is (how == "concede"):
        raise ConfigurationError("expected --to ADDRESS with --how concede, and only there")
    opened, owner = api.reading.open_directory(run), load_key(key)
    board = api.boards.board_of(rpc, opened)
    if to is not None:
        _told(api.onchain.concede(board, opened, owner, to), as_json)
    else:
        _told(api.onchain.end(board, opened, owner, how), as_json)


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
    _told(api.onchain.withdraw(api.boards.board_at(rpc, board), load_key(key), to), as_json)
