"""`tiebreak dispute`: finds where a trainer's run departs from the program, and gives the referee's verdict."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.cli.options import FOLDER, machine_options

if TYPE_CHECKING:
    from tiebreak.api.disputing.disputes import Dispute


@click.command()
@click.argument("run", type=FOLDER)
@click.argument("replay", type=FOLDER)
@click.option("--count", type=click.IntRange(1), help="Checkpoints of the disputed head [default: the last head].")
@machine_options("threads", "device")
def dispute(run: Path, replay: Path, count: int | None, machine: Machine) -> None:
    """Play the verification game over a head of RUN against the auditor's REPLAY (see `tiebreak audit`).

    Both sides are played here: the defender reveals what follows from RUN, the challenger what follows from REPLAY,
    and the referee judges in integers. A trainer whose checkpoints do not follow from each other cannot answer for
    them and loses; the walk then goes on by REPLAY to the first step, module and instruction whose result differs from
    what the trainer committed to, or reported as its loss. Exit code 0 says that a verdict was reached; it is printed.
    In earnest the same moves are signed messages (tiebreak.protocol.game.messages) or transactions.
    """
    defended, own = api.disputes.open_both(run, replay)
    found = api.disputes.dispute(defended, own, machine, count)
    if found is None:
        click.echo(f"nothing to dispute: head {count or len(defended.heads())} has the root of {replay}")
        return
    show(found)


def show(dispute: "Dispute") -> None:
    """Prints the sentence that locates the difference, the verdict, the bits, and the walk that found them."""
    verdict = dispute.final.verdict
    assert verdict is not None  # a finished game always has a verdict
    click.echo(f"{dispute.sentence}")
    click.echo(f"{dispute.loser} loses after {dispute.final.moves} moves: {verdict.detail}")
    for name, bits in (("committed", dispute.summary.committed), ("correct", dispute.summary.correct)):
        if bits:
            click.echo(f"{name:<10}{bits}")
    for level, height, position in dispute.walk:
        click.echo(f"{level.name.lower():<8}height {height:>3}  position {position}")
