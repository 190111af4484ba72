"""`tiebreak up`: everything on one machine, to watch."""

import os
from pathlib import Path

import click

from tiebreak.cli.chain import terminated
from tiebreak.cli.options import output_option
from tiebreak.lab.network import local_network
from tiebreak.lab.network.local_network import CHEATS
from tiebreak.protocol.commitments.job import MAX_SEATS
from tiebreak.protocol.errors import StateError, VerificationError

EXPECTED = {True: "slashed", False: "settled"}
LATE = ("abandoned", "cancelled", "declined")
"""The endings of jobs whose parties had, or saw, too little time."""


@click.command()
@click.argument("task", default="digits")
@click.option("--steps", type=click.IntRange(1), help="Steps of the job.  [default: the task's own]")
@click.option("--cheat", type=click.Choice(list(CHEATS)), metavar="NAME", help="Let the trainer cheat; see above.")
@click.option("--seats", type=click.IntRange(0, MAX_SEATS), default=0, show_default=True, metavar="N",
              help="Paid audits by auditors who are drawn by lot; a second auditor joins.")  # fmt: skip
@click.option("--no-chain", is_flag=True, help="Use no chain: the hub's signed receipts are the clock.")
@click.option("--embedded", is_flag=True, help="Use the EVM that comes with Tiebreak, even where anvil is installed.")
@click.option("--port", type=click.IntRange(0, 65535), default=8787, show_default=True,
              help="Port of the hub and its pages; 0 takes a free one.")  # fmt: skip
@output_option("up-output", "Folder for everything; emptied if this command made it.")
@click.option("--patience", type=click.IntRange(1, 1000), metavar="N",
              help="Multiply the times of the job's terms by N: windows, clocks, deadline.  [default: 1, or more where "
              "the start was slow]")  # fmt: skip
@click.option("--once", is_flag=True, help="Exit when the job has ended: code 0 if it ended as it should, 1 if the "
              "machine was too slow for its terms, 2 if it ended wrongly.")  # fmt: skip
def up(
    task: str, steps: int | None, cheat: str | None, seats: int, no_chain: bool, embedded: bool, port: int,
    output: Path, patience: int | None, once: bool,
) -> None:  # fmt: skip
    """Run chain, hub, pages and parties here, to watch in a browser.

    The parties are a client, a trainer and an auditor; all runs until Ctrl-C. Each is a process of its own with its own
    key and folder, as if they were on several machines. The client offers the job over TASK (digits, text, or a Python
    file of your own that defines task()); the trainer trains it; the auditor replays it while it is trained; then the
    board settles it. Open the page whose address is printed to watch. Needs the extra `node`.

    --cheat makes the trainer compute something other than the agreed program, and lose its stake. NAME: `label`, one
    label of one batch is changed; `rate`, one step uses another learning rate; `weight`, one bit of one weight in a
    checkpoint is flipped; `tf32`, one sum of products is truncated to TF32.
    """
    plan = local_network.UpPlan(
        task=task, steps=steps, cheat=cheat or "", chain=not no_chain, embedded=embedded, port=port, folder=output,
        until_over=once, seats=seats, patience=patience,
    )  # fmt: skip
    with terminated():
        ending = local_network.up(plan, click.echo)
    if once and not ending.status:
        raise click.Abort  # by Ctrl-C
    if not once or ending.status == (expected := EXPECTED[bool(cheat)]):
        return
    wrong = f"expected a job that is {expected}, got one that is {ending.status}"
    if ending.status in LATE:
        raise StateError(
            f"{wrong}: this machine was too slow for its terms (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} "
            f"cores); try again when less is running, or with --patience {4 * ending.patience}"
        )
    raise VerificationError(f"{wrong}; the logs in {output} say why")
