"""`tiebreak show`: how a run, an offer or a party stands, by what is in its folder."""

from pathlib import Path
from typing import Any, Final

import click

from tiebreak import api, node
from tiebreak.cli import options as opt
from tiebreak.engine.data.disk import Folder
from tiebreak.node.settings import FILE as SETTINGS
from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.errors import ConfigurationError, TiebreakError, VerificationError
from tiebreak.protocol.strict_json import parse_json

MAX_STATUS_BYTES: Final = 1 << 24
_AMOUNTS: Final = ("reward", "trainerStake", "challengerStake", "seatFee", "seatBond")


@click.command()
@click.argument("folder", type=opt.FOLDER)
@click.option("--long", "-l", "is_long", is_flag=True, help="Show the whole job instead: terms, roots, rules, files.")
@click.option("--workers", type=click.IntRange(1, 1 << 16), help="Show instead how this many workers would share a "
              "step, and what each of them would send and hold, in bytes. No worker is started.")  # fmt: skip
@opt.rpc_option(required=False)
@opt.json_option
def show(folder: Path, is_long: bool, workers: int | None, rpc: str | None, as_json: bool) -> None:
    """Show how a run, an offer or a party stands, by its FOLDER.

    Of a party (client, trainer, auditor, watcher): what it last said of itself, such as money, what is at stake, and
    how much time is left.

    Of a run: checkpoints that are complete, those that are signed, the last loss and the root so far. With --rpc, also
    from its chain: heads that are posted, open games, by when the next head is due or when the job can be settled, how
    many seconds are left, what is staked, and what the board owes to client and trainer.

    With --long, who agreed on what, by which roots. Signatures and program are checked. Times are in seconds, amounts
    in ether (with --json in wei). The files are those that others need, with their sizes: `tiebreak publish`.

    With --workers, the values of a step are listed by how they are held: in shards by the batch's examples, in shards
    by elements of weights and state, or whole. Bytes sent are those of the worker that sends most, without a few for
    sums that FP64 does not decide; rounds are exchanges that wait for each other, of one to four messages each. Bytes
    of FP32 DDP are those of the same model under plain data parallelism.
    """
    if (folder / SETTINGS).is_file():
        _show_party(folder, as_json=as_json)
        return
    opened = api.reading.open_offer(folder)
    if workers is not None:
        document = api.distributed.plan(opened, workers)
    elif is_long:
        count = max((head.head.count for head in opened.heads()), default=0)
        document = api.reading.show(opened)
        if not as_json:
            document |= {name: ether(int(document[name])) for name in _AMOUNTS}
        document["files"] = [{"file": part.name, "bytes": part.size} for part in node.parts.parts(opened, count)]
    else:
        document = api.reading.status(opened)
    if rpc is not None:
        chain = api.boards.standing(api.boards.board_of(rpc, opened), opened.job)
        document |= {"chain": chain} if as_json else {f"chain {name}": value for name, value in chain.items()}
    opt.tell(document, as_json=as_json)


def _show_party(folder: Path, *, as_json: bool) -> None:
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
    opt.tell(found if as_json else rows, as_json=as_json)


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
