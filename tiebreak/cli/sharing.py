"""`tiebreak pack`: the files of a run that others need of it."""

from pathlib import Path

import click

from tiebreak import api, node
from tiebreak.cli.options import FOLDER, json_option, tell

count_option = click.option("--count", type=click.IntRange(0), help="Up to the head of so many checkpoints; 0: only "
                            "what is there before the first step.  [default: the last signed]")  # fmt: skip
states_option = click.option("--states", is_flag=True, help="Also all kept states, so that others can audit a sample.")


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--output", "-o", type=click.Path(file_okay=False, path_type=Path),
              help="New or empty folder to copy the files to.  [default: only say what there is]")  # fmt: skip
@count_option
@states_option
@json_option
def pack(run: Path, output: Path | None, count: int | None, states: bool, as_json: bool) -> None:
    """Copy what others need of RUN into a folder, and say how big it is.

    A trainer needs of an offer: the offer, the program, the initial state and the data. An auditor also needs the head
    it is to audit, the records, and under policy `logged` the logs; the last checkpoint brings the final state. Nothing
    else of RUN is copied: no telemetry, no settings, no key. What comes out is a run folder, which `tiebreak accept` or
    `tiebreak audit` take and check as they check any other.
    """
    opened = api.offers.open_offer(run)
    last = max((head.head.count for head in opened.heads()), default=0)
    listed = node.library.parts(opened, last if count is None else count, states=states)
    if output is not None:
        node.library.pack(opened, listed, output)
    total = sum(part.size for part in listed)
    tell({
        "job": opened.job.id.hex(),
        "files": [{"file": part.name, "bytes": part.size} for part in listed],
        "bytes": total,
        "packed": None if output is None else str(output),
    }, as_json=as_json)  # fmt: skip
