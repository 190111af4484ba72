"""`tiebreak publish`, `fetch`, `weights`: what others need of a run, by folder or by hub, and its result."""

from pathlib import Path
from typing import Any

import click

from tiebreak import api, node
from tiebreak.cli import options as opt
from tiebreak.cli.key import load_key
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.tags import Digest

_COUNT = "Take what leads up to the head of this many checkpoints; 0: what is there before the first step."
states_option = click.option("--states", is_flag=True, help="Add all kept states, so that others can audit a sample.")


@click.command()
@click.argument("run", type=opt.FOLDER)
@opt.hub_option(required=False)
@opt.key_option("With --hub: key file of the job's client or trainer, who publishes.", required=False)
@click.option("--output", "-o", type=opt.NEW_FOLDER, help="New or empty folder for the files, in place of a hub.")
@opt.count_option(_COUNT)
@states_option
@opt.json_option
def publish(
    run: Path, hub: str | None, key: Path | None, output: Path | None, count: int | None, states: bool, as_json: bool
) -> None:  # fmt: skip
    """Put what others need of RUN on a hub or into a folder.

    A trainer needs the offer, the program, the initial state and the data. An auditor also needs the head that it is
    to audit, the records, and under policy `logged` the logs; the last checkpoint brings the final state. Nothing
    else of RUN is taken: no telemetry, no settings, no key. With neither --hub nor --output, the files and their sizes
    are only listed. A folder is one that `tiebreak agree` and `tiebreak audit` take and check as they check any other.

    On a hub, the client publishes an offer; the trainer publishes its answer, its signed heads, and what auditors need.
    Everything is named by its root, so each reader can check it; of a sealed job (`tiebreak agree --seal-to`) the hub
    gets ciphertext. Files that are there already are not sent again: repeat a publication that broke off.
    """
    opened = api.reading.open_offer(run)
    last = max((head.head.count for head in opened.heads()), default=0) if count is None else count
    document: dict[str, Any] = {"job": opened.job.id.hex()}
    if hub is None or output is not None:
        listed = node.parts.parts(opened, last, states=states)
        if output is not None:
            node.library.pack(opened, listed, output)
        document["files"] = [{"file": part.name, "bytes": part.size} for part in listed]
        more: dict[str, Any] = {"packed": None if output is None else str(output)}
    else:
        if key is None:
            raise ConfigurationError("expected --key FILE of the client or the trainer with --hub, got none")
        mail, signer = node.exchange.open_hub(hub, opened.agreement.domain), load_key(key)
        listing, said = node.exchange.publish_to(mail, opened, signer, last, states=states)
        document["count"] = listing.count
        document["files"] = [
            {"file": file.name.decode(), "bytes": file.size, "root": file.root.hex()} for file in listing.files
        ]
        more = {"new_posts": said}
    opt.tell({**document, "bytes": sum(file["bytes"] for file in document["files"]), **more}, as_json=as_json)


@click.command()
@click.argument("job", type=opt.DIGEST)
@opt.hub_option(required=True)
@opt.output_option("fetched", "Folder for the job; one that a fetch began is completed.")
@opt.key_option("Key file of a reader, if the job is sealed.", required=False)
@opt.count_option(_COUNT)
@states_option
@opt.domain_options
@click.option("--most", type=click.IntRange(1), help="Refuse to fetch more bytes than this.")
@opt.json_option
def fetch(
    job: Digest, hub: str, output: Path, key: Path | None, count: int | None, states: bool, domain: Domain,
    most: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Fetch what is published of JOB from a hub into a folder.

    A hub is trusted with nothing. Each piece is checked as it comes, and each file against the job before it takes its
    name: signatures, program, initial state, data, and records against the signed head. Files that do not fit are
    removed and named. The folder is then an offer for `tiebreak agree`, or a run for `tiebreak audit` and `tiebreak
    weights`. Repeat the command to go on after a break, or when the trainer has published more.
    """
    mail, reader = node.exchange.open_hub(hub, domain), None if key is None else load_key(key)
    reached, fetched = node.exchange.fetch_from(
        mail, job, domain, output, count=count, states=states, key=reader, most=most
    )
    opt.tell({
        "job": job.hex(),
        "count": reached,
        "new_files": len(fetched.taken),
        "folder": str(output),
        "refused": [{"file": name, "why": "; ".join(why)} for name, why in fetched.missing.items() if why],
    }, as_json=as_json)  # fmt: skip


@click.command()
@click.argument("run", type=opt.FOLDER)
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True,
              help="New .safetensors file; with --like a new or empty folder.")  # fmt: skip
@click.option("--like", type=opt.FOLDER, help="Write a folder as `save_pretrained` does, with configuration and "
              "tokenizer (no code) of this one. If this is a PEFT adapter's, write the adapter alone.")  # fmt: skip
@opt.rpc_option(required=False)
@click.option("--unsettled", is_flag=True, help="Take weights that are signed, without asking the chain.")
@opt.json_option
def weights(run: Path, output: Path, like: Path | None, rpc: str | None, unsettled: bool, as_json: bool) -> None:
    """Write the final weights of a settled RUN as .safetensors.

    RUN holds what the trainer published up to its last checkpoint (`tiebreak fetch`). The signed head is compared with
    the one that the board was settled with, the records with the head, and every tensor with the root of the final
    record; nothing is written if any of them differs. The keys are those of the module's `state_dict`, so
    `load_state_dict` and, with --like, `from_pretrained` take them.
    """
    api.reading.open_directory(run)  # before torch
    found = api.weights.write_weights(run, output, rpc=rpc, like=like, unsettled=unsettled)
    opt.tell({
        "written": str(found.path),
        "tensors": found.tensors,
        "parameters": found.parameters,
        "step": found.step,
        "state_root": found.state_root.hex(),
        "settled": "yes" if found.settled else "no board was asked: signed by the trainer alone",
    }, as_json=as_json)  # fmt: skip
