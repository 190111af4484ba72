"""`tiebreak chain`: jobs and games on a chain, by hand: the contracts, what stands there, and transactions.

Long-running parties (`tiebreak trainer`, `client`, `auditor`) do the latter by themselves, in time. `tiebreak devnet`
runs a chain for development, with the contracts on it.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tiebreak import api, node
from tiebreak.cli import options as opt
from tiebreak.cli.key import load_key
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Address
from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.tags import Digest

if TYPE_CHECKING:
    from tiebreak.api.chain.boards import HubBoard
    from tiebreak.api.chain.onchain import SentTransaction
    from tiebreak.protocol.chain import Chain, Creation
import signal
import time
from functools import partial
from typing import Any

from tiebreak.cli.key import passphrase
from tiebreak.engine import system


@click.group()
def chain() -> None:
    """Deploy contracts, list jobs and games, send what a job needs.

    `deploy` puts the contracts on a chain or verifies them. `jobs` and `games` show what a board stores; nothing is
    sent and no key is needed. The others send one transaction each: `post` what a job needs next, `challenge` a head,
    `claim` a game whose other side ran out of time, `settle` a job, and `withdraw` what the board owes. The contracts'
    code is compared with this version's first, and calls that the contract would refuse are not sent: its reason is
    printed. By hand you watch the deadlines yourself (`tiebreak show RUN --rpc URL`): a trainer that posts no head in
    time loses its stake. `tiebreak trainer`, `client` and `auditor` do all of this by themselves.
    """


@chain.command()
@opt.rpc_option(required=True)
@opt.key_option("Key file of the account that pays.", required=False)
@click.option("--chain-id", type=click.IntRange(1), help="Refuse to deploy to any other chain than this.")
@opt.output_option("deployment.json", "New file for the addresses.", kind=opt.NEW_FILE)
@click.option("--check", "checked", type=opt.FILE, help="Deploy nothing: verify the file of an earlier deployment.")
@opt.json_option
def deploy(
    rpc: str, key: Path | None, chain_id: int | None, output: Path, checked: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Put the contracts on a chain, or verify what stands there.

    Each is created by a transaction with EIP-1559 fees that is waited for; address and gas are printed, and written
    to a JSON file together with the chain id, the blocks and hashes of the code. An account that cannot pay for all
    of it is refused before anything is sent, with the amount that it needs. A chain on which seats cannot be drawn
    fairly, because `prevrandao` is constant there, is warned of.

    With --check FILE nothing is sent and no key is needed: the command recreates each contract in a call and compares
    what would stand there with what does, byte for byte. Check a deployment like that before you pay money into it.
    """
    connected = api.boards.connect(rpc, chain_id)
    if checked is not None:
        found = {name: f"0x{address.hex()}" for name, address in api.chains.check(connected, checked).items()}
        opt.tell(found if as_json else {k: f"{at}  this version's code" for k, at in found.items()}, as_json=as_json)
        return
    if key is None:
        raise ConfigurationError("expected --key FILE of the account that pays, or --check FILE, got neither")
    if output.exists():
        raise ConfigurationError(f"{output} already exists; choose another --output")
    signer = load_key(key)
    if not as_json:
        click.echo(f"{'chain id':<16}{connected.chain_id}")
        click.echo(f"{'deployer':<16}0x{signer.address.hex()}")

    def created(creation: "Creation") -> None:
        if not as_json:
            where = f"0x{creation.address.hex()}  {creation.gas_used} gas, block {creation.block}"
            click.echo(f"{creation.name:<16}{where}")

    document = api.chains.deploy(connected, signer, created, lambda text: click.echo(f"warning: {text}", err=True))
    output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    if as_json:
        opt.tell(document, as_json=True)
        return
    gas = sum(contract["gasUsed"] for contract in document["contracts"].values())
    click.echo(f"{'in all':<16}{gas} gas; written to {output}")


# ---------------------------------------------------------------- what stands there


_where = opt.options(
    opt.rpc_option(required=False), opt.board_option(required=False), opt.hub_option(required=False, variable=None)
)  # fmt: skip
"""--rpc and --board of a chain, or --hub for jobs without one."""
_since = opt.from_block_option("The first block to look at; of a hub, the first place.")


def _board(rpc: str | None, board: Address | None, hub: str | None, *jobs: Digest) -> "Chain | HubBoard":
    """The board to read; of a hub, perhaps only its posts about some jobs."""
    if hub is not None:
        posts = node.exchange.read_posts(node.exchange.open_hub(hub, OFF_CHAIN), *jobs)
        return api.boards.HubBoard(((one.place, one.at, one.post, one.body) for one in posts), OFF_CHAIN)
    if rpc is None or board is None:
        raise ConfigurationError("expected --rpc and --board of a chain, or the --hub of jobs without one")
    return api.boards.board_at(rpc, board)


@chain.command()
@click.argument("job", type=opt.DIGEST, required=False)
@_where
@_since
@opt.json_option
def jobs(
    job: Digest | None, rpc: str | None, board: Address | None, hub: str | None, from_block: int, as_json: bool
) -> None:  # fmt: skip
    """List the jobs on a board, or show one JOB, an id.

    The list has a line for each job that was created there: its status, its heads and its open games. Of one job, all
    that the board stores is shown, and the times that follow: by when its trainer has to post the next head, or when it
    can be settled. For jobs without a chain, --hub shows their state by the hub's posts.
    """
    if job is not None:
        opt.tell(api.boards.job_document(_board(rpc, board, hub, job), job), as_json=as_json)
        return
    found = list(api.boards.jobs(_board(rpc, board, hub), from_block))
    opt.tell(found if as_json else [{**row, "reward": ether(row["reward"])} for row in found], as_json=as_json)


@chain.command()
@click.argument("game", type=opt.DIGEST, required=False)
@_where
@click.option("--job", type=opt.DIGEST, help="List only games about this job.")
@_since
@opt.json_option
def games(
    game: Digest | None, rpc: str | None, board: Address | None, hub: str | None, job: Digest | None, from_block: int,
    as_json: bool,
) -> None:  # fmt: skip
    """List the games on a board, or show one GAME, an id.

    A game is a dispute about a head. The list has a line for each: who challenged which head, at which level of the
    walk it stands and how it ended. Of one game, all that the board stores and every move that it logged is shown.
    Whose turn a game is follows from its phase; the rests are the sides' clocks.
    """
    found = _board(rpc, board, hub)
    rows = api.boards.games(found, from_block, job)
    opt.tell(list(rows) if game is None else api.boards.game_document(found, game, from_block), as_json=as_json)


# ---------------------------------------------------------------- transactions


_payer = opt.options(opt.key_option("Key file of the account that sends and pays."), opt.rpc_option(required=True))
_of_run = opt.options(click.argument("run", type=opt.FOLDER), _payer)


def _sent(sent: "SentTransaction", as_json: bool, **more: str) -> None:
    receipt = sent.receipt
    place = {"transaction": f"0x{receipt.transaction.hex()}", "block": receipt.block, "gas": receipt.gas_used}
    opt.tell({"sent": sent.what, **more, **place}, as_json=as_json)


@chain.command()
@_of_run
@opt.count_option("Number of checkpoints of the head to post.")
@opt.json_option
def post(run: Path, key: Path, rpc: str, count: int | None, as_json: bool) -> None:
    """Send what the job in RUN needs next from the key's owner.

    The client creates the job and pays the reward; then the trainer accepts it and pays its stake; then the trainer
    posts its signed heads. The board and its chain are those that the job names.
    """
    opened = api.reading.open_directory(run)
    _sent(api.onchain.post(api.boards.board_of(rpc, opened), opened, load_key(key), count), as_json)


@chain.command()
@_of_run
@click.option("--replay", type=opt.FOLDER, help="Your replay of the job (tiebreak audit), which contradicts the head.")
@click.option("--anyway", is_flag=True, help="Challenge without a replay, and lose the stake if the head is true.")
@opt.count_option("Number of checkpoints of the challenged head.")
@opt.number("--nonce", 0, None, 0, "Tells your games against one head apart.")
@opt.json_option
def challenge(
    run: Path, key: Path, rpc: str, replay: Path | None, anyway: bool, count: int | None, nonce: int, as_json: bool
) -> None:
    """Start a game against a head of RUN, and put up its stake.

    A challenge is for a head that your own replay contradicts. The replay is compared once more before anything is
    sent, because a challenge of a true head loses the stake. The trainer then has to answer, and so do you, each within
    its clock: go on with `tiebreak auditor`, which plays the game to its end. `tiebreak dispute` shows at once
    where the run is false.
    """
    if (replay is None) != anyway:
        raise ConfigurationError("expected --replay FOLDER, or --anyway in its place")
    opened = api.reading.open_directory(run)
    board = api.boards.board_of(rpc, opened)
    game_id, sent = api.onchain.challenge(board, opened, load_key(key), replay=replay, count=count, nonce=nonce)
    _sent(sent, as_json, game=game_id.hex())


@chain.command()
@click.argument("game", type=opt.DIGEST)
@_payer
@opt.board_option(required=True)
@opt.json_option
def claim(game: Digest, key: Path, rpc: str, board: Address, as_json: bool) -> None:
    """Claim GAME, an id, whose other side ran out of time.

    The side to move has used up its clock. Anybody may claim it; the board decides the game against that side. If there
    is time left, nothing is sent.
    """
    _sent(api.onchain.claim(api.boards.board_at(rpc, board), game, load_key(key)), as_json)


@chain.command()
@_of_run
@click.option("--how", type=click.Choice(["settle", "cancel", "abandon", "part", "concede"]), default="settle",
              show_default=True, help="settle: the final head stood; cancel: nobody accepted the offer; abandon: the "
              "trainer fell silent; part: a receipt for logs did not come (policy logged); concede: the trainer says "
              "that its last head is false.")  # fmt: skip
@click.option("--to", type=opt.ADDRESS, help="With concede: the account that showed it, which gets half of the stake.")
@opt.json_option
def settle(run: Path, key: Path, rpc: str, how: str, to: Address | None, as_json: bool) -> None:
    """End the job of RUN.

    Once the final head has stood through its window and no game is open, anybody may settle: the trainer is credited
    with the reward and its stake. The other ways to end a job are for when a party does not do its part. Credited money
    is fetched with `tiebreak chain withdraw`.
    """
    if (to is None) is (how == "concede"):
        raise ConfigurationError("expected --to ADDRESS with --how concede, and only there")
    opened, owner = api.reading.open_directory(run), load_key(key)
    board = api.boards.board_of(rpc, opened)
    end, concede = api.onchain.end, api.onchain.concede
    _sent(end(board, opened, owner, how) if to is None else concede(board, opened, owner, to), as_json)


@chain.command()
@_payer
@opt.board_option(required=True)
@click.option("--to", type=opt.ADDRESS, help="Send the money to this address.  [default: the key's account]")
@opt.json_option
def withdraw(key: Path, rpc: str, board: Address, to: Address | None, as_json: bool) -> None:
    """Withdraw all that a board owes to the account of a key.

    The board never sends money by itself: rewards, returned stakes and what a won game brings are credited to an
    account, in all jobs together, and its owner takes them out in one transaction.
    """
    _sent(api.onchain.withdraw(api.boards.board_at(rpc, board), load_key(key), to), as_json)


MAX_ACCOUNTS = 100
WATCH_SECONDS = 0.5
"""The time between two checks that the node is still alive."""
terminated = partial(system.on_signals, signal.default_int_handler, signal.SIGTERM)
"""A context in which SIGTERM ends the command as Ctrl-C does, so that no anvil process is left behind."""


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
