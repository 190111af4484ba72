"""`tiebreak pack`, `publish`, `fetch`, `weights`: what others need of a run, by folder or by hub, and its result."""

from pathlib import Path

import click

from tiebreak import api, node
from tiebreak.cli.key import load_key
from tiebreak.cli.options import FILE, FOLDER, json_option, number, output_option, rpc_option, tell
from tiebreak.cli.terms import AddressType, DigestType
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Address, Domain
from tiebreak.protocol.tags import Digest

count_option = click.option("--count", type=click.IntRange(0), help="Take what leads up to this checkpoint; 0: only "
                            "what is there before the first step.  [default: the last signed]")  # fmt: skip
states_option = click.option("--states", is_flag=True, help="Add all kept states, so that others can audit a sample.")


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--output", "-o", type=click.Path(file_okay=False, path_type=Path),
              help="New or empty folder to copy the files to.  [default: only say what there is]")  # fmt: skip
@count_option
@states_option
@json_option
def pack(run: Path, output: Path | None, count: int | None, states: bool, as_json: bool) -> None:
    """Copy what others need of RUN into a folder, and say how big it is.

    A trainer needs the offer, the program, the initial state and the data. An auditor also needs the head that it is
    to audit, the records, and under policy `logged` the logs; the last checkpoint brings the final state. Nothing
    else of RUN is copied: no telemetry, no settings, no key. The result is a run folder, which `tiebreak accept` and
    `tiebreak audit` take and check as they check any other.
    """
    opened = api.reading.open_offer(run)
    last = max((head.head.count for head in opened.heads()), default=0)
    listed = node.parts.parts(opened, last if count is None else count, states=states)
    if output is not None:
        node.library.pack(opened, listed, output)
    total = sum(part.size for part in listed)
    tell({
        "job": opened.job.id.hex(),
        "files": [{"file": part.name, "bytes": part.size} for part in listed],
        "bytes": total,
        "packed": None if output is None else str(output),
    }, as_json=as_json)  # fmt: skip


hub_option = click.option("--hub", required=True, envvar="TIEBREAK_HUB", help="URL of the hub; also from TIEBREAK_HUB.")


@click.command()
@click.argument("run", type=FOLDER)
@hub_option
@click.option("--key", type=FILE, required=True, help="Key file of the job's client or trainer, who publishes.")
@count_option
@states_option
@json_option
def publish(run: Path, hub: str, key: Path, count: int | None, states: bool, as_json: bool) -> None:
    """Put what others need of RUN on a hub, as its client or its trainer.

    The client publishes an offer, and with it program, initial state and data. The trainer publishes its answer, its
    signed heads, and what auditors need up to the last one. Everything is named by its root, so each reader can
    check it; of a sealed job (`tiebreak offer --seal-to`) the hub gets ciphertext. Files that are there already are not
    sent again, and a publication that broke off goes on when you repeat the command.
    """
    opened, signer = api.reading.open_offer(run), load_key(key)
    last = max((head.head.count for head in opened.heads()), default=0)
    client = node.exchange.open_hub(hub, opened.agreement.domain)
    listing, said = node.exchange.publish_to(client, opened, signer, last if count is None else count, states=states)
    tell({
        "job": opened.job.id.hex(),
        "count": listing.count,
        "files": [{"file": file.name.decode(), "bytes": file.size, "root": file.root.hex()} for file in listing.files],
        "bytes": sum(file.size for file in listing.files),
        "new_posts": said,
    }, as_json=as_json)  # fmt: skip


@click.command()
@click.argument("job", type=DigestType())
@hub_option
@output_option("fetched", "Folder for the job; one that a fetch began is completed.")
@click.option("--key", type=FILE, help="Key file of a reader, if the job is sealed.")
@click.option("--count", type=click.IntRange(0), help="Take what leads up to this checkpoint.  [default: the last]")
@states_option
@number("--chain-id", 0, None, 0, "Chain of the job's contract.")
@click.option("--contract", type=AddressType(), help="Address of the job board on that chain.  [default: none]")
@click.option("--most", type=click.IntRange(1), help="Refuse to fetch more bytes than this.")
@json_option
def fetch(
    job: Digest, hub: str, output: Path, key: Path | None, count: int | None, states: bool, chain_id: int,
    contract: Address | None, most: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Fetch what is published of JOB from a hub into a folder, and check it.

    A hub is trusted with nothing. Each piece is checked as it comes, and each file against the job before it takes its
    name: signatures, program, initial state, data, and records against the signed head. Files that do not fit are
    removed and named. The folder is then an offer for `tiebreak accept`, or a run for `tiebreak audit` and `tiebreak
    weights`. Repeat the command to go on after a break, or when the trainer has published more.
    """
    domain = Domain(chain_id=chain_id, contract=contract or OFF_CHAIN.contract)
    client = node.exchange.open_hub(hub, domain)
    reached, fetched = node.exchange.fetch_from(
        client, job, domain, output, count=count, states=states, key=None if key is None else load_key(key), most=most
    )
    tell({
        "job": job.hex(),
        "count": reached,
        "new_files": len(fetched.taken),
        "folder": str(output),
        "refused": [{"file": name, "why": "; ".join(why)} for name, why in fetched.missing.items() if why],
    }, as_json=as_json)  # fmt: skip


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True,
              help="New .safetensors file; with --like a new or empty folder.")  # fmt: skip
@click.option("--like", type=FOLDER, help="Write a folder as `save_pretrained` does, with configuration and tokenizer "
              "(no code) of this one. If this is a PEFT adapter's, write the adapter alone.")  # fmt: skip
@rpc_option(required=False)
@click.option("--unsettled", is_flag=True, help="Take weights that are signed, without asking the chain.")
@json_option
def weights(run: Path, output: Path, like: Path | None, rpc: str | None, unsettled: bool, as_json: bool) -> None:
    """Write the final weights of RUN as .safetensors, once its job is settled.

    RUN holds what the trainer published up to its last checkpoint (`tiebreak fetch`, or a pack). The signed head is
    compared with the one that the board was settled with, the records with the head, and every tensor with the root of
    the final record; nothing is written if any of them differs. The keys are those of the module's `state_dict`, so
    `load_state_dict` and, with --like, `from_pretrained` take them.
    """
    api.reading.open_directory(run)  # before torch
    found = api.weights.write_weights(run, output, rpc=rpc, like=like, unsettled=unsettled)
    tell({
        "written": str(found.path),
        "tensors": found.tensors,
        "parameters": found.parameters,
        "step": found.step,
        "state_root": found.state_root.hex(),
        "settled": "yes" if found.settled else "no board was asked: signed by the trainer alone",
    }, as_json=as_json)  # fmt: skip
