"""`tiebreak dispute` and `tiebreak judge`: who was right, by the referee's verdict or by what a hub has signed for.

`dispute` finds where a trainer's run departs from the program. `judge` says offline how a job without a chain ended.
"""

import json
import time
from pathlib import Path
from typing import Final

import click

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.cli import options as opt
from tiebreak.cli.audit import COULD_NOT_CHECK
from tiebreak.protocol.commitments.eip712 import Address, Domain

NOTHING_TO_DISPUTE: Final = 4
"""The exit code of a dispute over a head that is what the replay says."""


@click.command()
@click.argument("run", type=opt.FOLDER)
@click.argument("replay", type=opt.FOLDER)
@opt.count_option("Number of checkpoints of the disputed head.")
@opt.machine_options("threads", "device")
@opt.json_option
def dispute(run: Path, replay: Path, count: int | None, machine: Machine, as_json: bool) -> int:
    """Find where RUN leaves its program, by a game against REPLAY.

    This is the verification game over a head of RUN against an auditor's replay. Both sides are played here: the
    defender reveals what follows from RUN, the challenger what follows from REPLAY, and the referee judges in integers.
    A trainer whose checkpoints do not follow from each other cannot answer for them and loses; the walk then goes on by
    REPLAY to the first step, module and instruction whose result differs from what the trainer committed to, or
    reported as its loss. In earnest the same moves are signed messages (tiebreak.protocol.game.messages) or
    transactions.

    Exit codes: 0 a verdict was reached and is printed, 4 there is nothing to dispute: head and replay have one root.
    """
    for folder in (run, replay):
        api.reading.open_directory(folder)  # before torch
    defended, own = api.disputes.open_both(run, replay)
    if (found := api.disputes.dispute(defended, own, machine, count)) is None:
        same = f"nothing to dispute: head {count or len(defended.heads())} has the root of {replay}"
        click.echo(json.dumps({"loser": None, "sentence": same}) if as_json else same)
        return NOTHING_TO_DISPUTE
    show(found, as_json=as_json)
    return 0


def show(dispute: "api.disputes.Dispute", *, as_json: bool = False) -> None:
    """Prints the sentence that locates the difference, the verdict, the bits, and the walk that found them."""
    verdict = dispute.final.verdict
    assert verdict is not None  # a finished game always has a verdict
    if as_json:
        walk = [{"tree": level.name.lower(), "height": h, "position": at} for level, h, at in dispute.walk]
        found = {"committed": dispute.summary.committed, "correct": dispute.summary.correct, "walk": walk}
        ended = {"loser": dispute.loser, "moves": dispute.final.moves, "verdict": verdict.detail}
        opt.tell({**ended, "sentence": str(dispute.sentence), **found}, as_json=True)
        return
    click.echo(f"{dispute.sentence}")
    click.echo(f"{dispute.loser} loses after {dispute.final.moves} moves: {verdict.detail}")
    for name, bits in (("committed", dispute.summary.committed), ("correct", dispute.summary.correct)):
        if bits:
            click.echo(f"{name:<10}{bits}")
    for level, height, position in dispute.walk:
        click.echo(f"{level.name.lower():<8}height {height:>3}  position {position}")


@click.command()
@click.argument("transcripts", nargs=-1, required=True, metavar="TRANSCRIPT...", type=opt.FILE)
@click.option("--hub-key", type=opt.ADDRESS, help="Address of the key of the hub that the parties used (GET /key).")
@opt.domain_options
@opt.json_option
def judge(transcripts: tuple[Path, ...], hub_key: Address | None, domain: Domain, as_json: bool) -> int:
    """Judge a job without a chain by the TRANSCRIPTs of its hub.

    It says who was right and who owes what. A TRANSCRIPT is a file from a hub: `curl 'http://HUB/posts?job=ID' >
    POSTS`, one file for each page, and then its word that these are all, `curl 'http://HUB/posts/end?job=ID' > END`.
    Nothing is asked of anybody: the signatures of the hub and of the parties are checked, and the rules are applied to
    the posts in their order, at the hub's instants. Name the hub that the parties agreed on: anybody can make another
    one, and have it sign.

    Exit codes: 0 judged, 2 not what this hub signed for, 3 posts may be missing or added, or a job has not ended, so
    nothing is said of money; the reasons are printed.
    """
    document = api.judging.judge(*api.judging.read_transcripts(transcripts), domain, hub_key, now=int(time.time()))
    for problem in document["problems"]:
        click.echo(f"CannotCheck: {problem}", err=True)
    opt.tell(document, as_json=as_json)
    return COULD_NOT_CHECK if document["problems"] else 0
