"""`tiebreak prove-ownership` and `tiebreak check-ownership`: whose run it was, shown to one checker."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.cli.key import load_key
from tiebreak.cli.options import FILE, FOLDER, json_option, machine_options, number, rpc_option, tell
from tiebreak.cli.terms import AddressType
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from tiebreak.api.certification.ownership import OwnershipChallenge, OwnershipClaim

MOST = (1 << 63) - 1


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--output", "-o", "proof", type=click.Path(file_okay=False, path_type=Path), default=Path("proof"),
              show_default=True, help="Folder of the proof.")  # fmt: skip
@click.option("--challenge", type=FILE, help="Challenge file from the checker; without it, write the claim.")
@click.option("--key", type=FILE, help="Key file of the job's trainer or client, who answers.  [default: only say "
              "what an answer would open]")  # fmt: skip
@json_option
def prove_ownership(run: Path, proof: Path, challenge: Path | None, key: Path | None, as_json: bool) -> None:
    """Show a checker that RUN is one's own, by opening a few of its states and no more.

    First without --challenge: that writes the claim, which has neither states nor data. Send it. The checker makes a
    challenge of it (`tiebreak check-ownership`). Then with --challenge and --key: that adds to the proof the state
    before each drawn segment, and the data. Look first, without --key, at what would be opened: one who has a state,
    program and data can train on from there.
    """
    opened = api.runs.open_directory(run)
    if challenge is None:
        made = api.ownership.claim(opened, proof)
        tell({"proof": str(proof), "job": opened.job.id.hex(), "segments": len(made.records)}, as_json=as_json)
        return
    made, asked = api.ownership.OwnershipClaim.read(proof), api.ownership.OwnershipChallenge.read(challenge)
    if made.run.job != opened.job:
        raise ConfigurationError(f"{proof}: expected a claim of job {opened.job.id.hex()}, got another job's")
    if key is None:
        steps = api.ownership.opened(made, asked)
    else:
        steps = api.ownership.answer(opened, made, asked, load_key(key))
    tell({"proof": str(proof), "answered": key is not None, "opened_states": steps, "data": "all"}, as_json=as_json)


@click.command()
@click.argument("proof", type=FOLDER)
@click.option("--challenge", type=click.Path(dir_okay=False, path_type=Path), required=True,
              help="Challenge file: written if it does not exist; otherwise PROOF has to answer it.")  # fmt: skip
@number("--top", 0, MOST, 2, "For a new challenge: number of segments with the largest claimed changes.")
@number("--uniform", 0, MOST, 8, "For a new challenge: number of other segments, drawn at random.")
@click.option("--model", type=click.Path(exists=True, path_type=Path), help="The disputed weights: a .safetensors "
              "file, or a folder as `save_pretrained` writes it.")  # fmt: skip
@click.option("--certificate", type=FILE, help="With --model: their certificate (`tiebreak certify`).")
@click.option(
    "--posts", type=FILE, multiple=True, help="Posts of the job, as a hub serves them (see `tiebreak judge`)."
)
@click.option("--hub", type=AddressType(), help="With --posts: the address of the hub's key.")
@rpc_option(required=False)
@number("--from-block", 0, None, 0, "With --rpc: the first block in which a head may have been posted.")
@machine_options("threads", "permute", "device")
@json_option
def check_ownership(
    proof: Path, challenge: Path, top: int, uniform: int, model: Path | None, certificate: Path | None,
    posts: tuple[Path, ...], hub: Address | None, rpc: str | None, from_block: int, machine: Machine,
    as_json: bool,
) -> None:  # fmt: skip
    """Challenge the owner of PROOF, and check the answer by replaying what was drawn.

    The first call checks the claim and writes a challenge, to be sent to the owner. When PROOF has the answer, the
    second call replays each drawn segment from its opened state, and compares every bit with the record that was
    signed. With --model it also checks that the disputed weights are what the run ended with. With --posts or --rpc it
    says when heads of the run were posted; without, a signature says who signed, and not when.

    Exit codes: 0 it holds, 2 it does not, 1 not possible as asked.
    """
    made = api.ownership.OwnershipClaim.read(proof)
    if not challenge.exists():
        asked = api.ownership.make_challenge(made, challenge, top, uniform)
        tell({"challenge": str(challenge), **_document(made, asked)}, as_json=as_json)
        return
    asked = api.ownership.OwnershipChallenge.read(challenge)
    if bool(posts) != (hub is not None):
        raise ConfigurationError("expected --posts and the address of their --hub, or neither, got one")
    postings = [] if hub is None else api.ownership.received(made, api.judging.read_posts(posts), hub)
    if rpc is not None:
        postings += api.onchain.heads_posted(api.onchain.board_of(rpc, made.run), made.run.job.id, from_block)
    api.ownership.check_posted(made, postings)
    found = api.ownership.check(made, asked, machine, model=model, certificate=certificate)
    role = "trainer" if found.signer == made.run.job.trainer else "client"
    tell({
        "holds": True, "owner": f"0x{found.signer.hex()}", "role": role, **_document(made, asked),
        "replayed_steps": found.steps, "seconds": round(found.seconds, 3),
        "weights": "the disputed ones are the run's" if found.linked else None,
        "moved_from_first_state": f"{100 * found.moved:.3g}% of the final weights' norm",
        "posted": [f"head {one.count}: {one.when}" for one in postings] or "no witness of any time was asked",
    }, as_json=as_json)  # fmt: skip


def _document(made: "OwnershipClaim", asked: "OwnershipChallenge") -> dict[str, Any]:
    count = len(made.records)
    return {
        "job": made.run.job.id.hex(),
        "segments": count,
        "drawn": list(made.drawn(asked)),
        "unseen": [
            {"false": false, "probability": api.ownership.unseen(count, asked.top, asked.uniform, false)}
            for false, _ in api.audits.chances(count, 1)
        ],
    }
