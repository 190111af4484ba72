"""`tiebreak plan`: how several workers would share out a step."""

from pathlib import Path

import click

from tiebreak import api
from tiebreak.cli.options import FOLDER, json_option, tell


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--workers", type=click.IntRange(1, 1 << 16), required=True, help="Number of workers.")
@json_option
def plan(run: Path, workers: int, as_json: bool) -> None:
    """Say how several workers would share a step of RUN, and what each of them would send and hold.

    Nothing is computed and no worker is started. The values of a step are listed by how they are held: in shards by
    the batch's examples, in shards by elements of weights and state, or whole. Bytes sent are those of the worker that
    sends most. A few more are for sums that FP64 does not decide; their number depends on the data. Rounds are
    exchanges that wait for each other, of one to four messages each.

    Bytes of FP32 DDP are those of the same model under plain data parallelism. The memory is that of the worker that
    needs most.
    """
    tell(api.distributed.plan(api.runs.open_directory(run), workers), as_json=as_json)
