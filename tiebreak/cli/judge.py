"""`tiebreak judge`: says offline, from what a hub has signed for, how a job without a chain ended."""

from pathlib import Path

import click

from tiebreak import api
from tiebreak.cli.audit import COULD_NOT_CHECK
from tiebreak.cli.options import json_option, tell
from tiebreak.cli.terms import AddressType
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Address, Domain


@click.command()
@click.argument(
    "transcripts", nargs=-1, required=True, metavar="TRANSCRIPT...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)  # fmt: skip
@click.option("--hub", type=AddressType(), help="Address of the key of the hub that the parties used (GET /key).")
@click.option("--chain-id", type=click.IntRange(0), default=OFF_CHAIN.chain_id, help="Chain id of the signed domain.")
@click.option("--board", type=AddressType(), help="Contract of the signed domain; none by default.")
@json_option
def judge(
    transcripts: tuple[Path, ...], hub: Address | None, chain_id: int, board: Address | None, as_json: bool
) -> int:
    """Check the TRANSCRIPTs of a job without a chain, and say who was right and who owes what.

    A TRANSCRIPT is a file from a hub: `curl 'http://HUB/posts?job=ID' > POSTS`, one file for each page, and then its
    word that these are all, `curl 'http://HUB/posts/end?job=ID' > END`. Nothing is asked of anybody: the signatures of
    the hub and of the parties are checked, and the rules are applied to the posts in their order, at the hub's
    instants. Name the hub that the parties agreed on: anybody can make another one, and have it sign.

    Exit codes: 0 judged, 2 not what this hub signed for, 3 posts may be missing or added, so nothing is said of money;
    the reasons are printed.
    """
    domain = Domain(chain_id=chain_id, contract=OFF_CHAIN.contract if board is None else board)
    document = api.judging.judge(*api.judging.read_transcripts(transcripts), domain, hub)
    for problem in document["problems"]:
        click.echo(f"CannotCheck: {problem}", err=True)
    tell(document, as_json=as_json)
    return COULD_NOT_CHECK if document["problems"] else 0
