"""`tiebreak offer`, `accept` and `agree`: a job that client and trainer sign, on two machines or on one."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.cli.key import load_key
from tiebreak.cli.options import FILE, FOLDER, json_option, machine_options, number, output_option, tell
from tiebreak.cli.terms import AddressType, job_document, job_options
from tiebreak.node import settings
from tiebreak.node.parties import deliver
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from tiebreak.api.agreeing.readers import Card

MAX_PATH: Final = 1024
"""More characters than a card has, and than a path that people write."""


@click.command()
@click.argument("captured", type=FOLDER)
@click.option("--key", type=FILE, help="Key file of the client, who offers and pays.  [default: that of --client]")
@click.option("--client", type=FOLDER, help="Folder of a client (`tiebreak client init`) that is to offer the job: its "
              "key signs, and it takes a copy, at once if it runs.")  # fmt: skip
@click.option("--trainer", type=AddressType(), required=True, help="Address of the trainer.")
@click.option("--seal-to", multiple=True, metavar="CARD",
              help="Encrypt the published job to this reader as well: a card (tiebreak key --card) or a file that "
              "holds one. May be given several times; you are always among the readers.")  # fmt: skip
@click.option("--auditor", "auditors", type=AddressType(), multiple=True, help="Account of an auditor for --client "
              "to name: without a chain, strangers cannot keep it from a challenge. May be repeated.")  # fmt: skip
@output_option("offer", "New or empty folder for the offer.")
@job_options
@json_option
def offer(
    captured: Path, key: Path | None, client: Path | None, trainer: Address, seal_to: tuple[str, ...],
    auditors: tuple[Address, ...], output: Path, policy_file: Path | None, precision: int | None, terms: Terms,
    domain: Domain, as_json: bool,
) -> None:  # fmt: skip
    """Draft a job over CAPTURED and sign it as its client, for a trainer to accept.

    The folder that is made holds the offer, the program, the initial state and the data. Give it to the trainer, or put
    it on a hub (`tiebreak publish`); with --client, a client that runs does the rest. It becomes a run when the trainer
    signs (`tiebreak accept`); with the trainer's `job.bin` put into it, your copy is one as well. Your signature alone
    binds you to nothing: on a chain you pay when you create the job there. The terms are those of `tiebreak agree`;
    `tiebreak economics` recommends some.

    With --seal-to, all published files of the job are encrypted to its readers, and a hub sees ciphertext. That
    protects program, state and data where they are stored and on their way. It does not protect them from the trainer,
    who must read them to train, nor hide sizes, losses or heads. In the folder here nothing is encrypted.
    """
    if client is not None:
        key = key or client / settings.read("client", client).key
    if key is None or (auditors and client is None):
        wanted = "--client FOLDER with --auditor" if auditors else "--key FILE or --client FOLDER"
        raise ConfigurationError(f"expected {wanted}, got none")
    made = api.offers.offer_on(
        api.bundle.load_bundle(captured), output, client=load_key(key), trainer=trainer, terms=terms, domain=domain,
        policy=policy_file, precision=precision, readers=[_card(text) for text in seal_to],
    )  # fmt: skip
    if client is not None:
        deliver(output, client, auditors)
    tell({**job_document(made.job), "offer": str(output)}, as_json=as_json)


def _card(text: str) -> "Card":
    """The card in a file of this name, or else in the text itself."""
    path = Path(text)
    is_file = len(text) < MAX_PATH and path.is_file()
    return api.readers.Card.read(path.read_text("ascii", "replace")[:MAX_PATH] if is_file else text)


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--key", type=FILE, help="Key file of the trainer. Without it the terms are only judged.")
@number("--block-seconds", 1, 3600, 12, "Seconds between blocks of the chain that the job is for.")
@click.option("--step-seconds", type=click.IntRange(1),
              help="Seconds that a step takes on your machine.  [default: it is measured here]")  # fmt: skip
@number("--slowdown", 1, 10_000, 1, "Factor by which the worst data slow a step down (tiebreak worst).")
@click.option("--anyway", is_flag=True, help="Sign although honest work could lose your stake by these terms.")
@machine_options("threads", "device", "policy")
@json_option
def accept(
    folder: Path, key: Path | None, block_seconds: int, step_seconds: int | None, slowdown: int, anyway: bool,
    machine: Machine, as_json: bool,
) -> None:  # fmt: skip
    """Judge the offer in FOLDER as its trainer, and sign it.

    The client's signature, program, initial state and data are checked first. Then the terms are judged by how long a
    start and a step take here, which is measured unless you say the seconds of a step: the windows must leave time for
    the slowest data that a client can choose, and the clocks for the longest game. An offer by which an honest trainer
    could lose its stake is not signed.

    The signature makes a run of the folder: `tiebreak train` computes it. Send `job.bin` back to the client.
    """
    offered = api.reading.open_offer(folder)
    seconds, start, began = float(step_seconds or 0), 0.0, time.monotonic()
    if step_seconds is None:
        seconds = api.offers.seconds_per_step(offered, machine)
        start = time.monotonic() - began - seconds
    pace = api.offers.pace_of(seconds, block_seconds=block_seconds, slowdown=slowdown, start=start)
    reasons = api.offers.objections(offered, pace)
    document = {
        **job_document(offered.job),
        "step_seconds": float(f"{seconds:.3g}"),
        "start_seconds": float(f"{start:.3g}"),
        "slowdown": slowdown,
        "objections": list(reasons),
        "signed": None,
    }
    refused = bool(reasons) and key is not None and not anyway
    if key is not None and not refused:
        run = api.offers.accept(folder, load_key(key), machine.policy)
        document |= {"signed": f"0x{run.agreement.trainer_signature.hex()}", "to_the_client": str(folder / "job.bin")}
    if not as_json and not reasons:
        document["objections"] = "none: the terms leave an honest trainer enough time"
    tell(document, as_json=as_json)
    if refused:
        raise ConfigurationError("expected terms by which honest work keeps its stake, got others; nothing is signed")


@click.command()
@click.argument("captured", type=FOLDER)
@click.option("--client-key", type=FILE, required=True, help="Key file of the client.")
@click.option("--trainer-key", type=FILE, required=True, help="Key file of the trainer.")
@output_option("run", "New or empty folder for the run.")
@job_options
@json_option
def agree(
    captured: Path, client_key: Path, trainer_key: Path, output: Path, policy_file: Path | None, precision: int | None,
    terms: Terms, domain: Domain, as_json: bool,
) -> None:  # fmt: skip
    """Sign the CAPTURED job as client and trainer, into a new run folder.

    Everything in CAPTURED is checked first. The job fixes the roots of program, initial state and data, the number of
    steps and checkpoints, rewards, stakes and clocks; both signatures bind it. This command is for when both keys are
    at hand; for two machines there are `tiebreak offer` and `tiebreak accept`. The run folder is what a trainer works
    in, and a copy of it what an auditor starts from.

    Under policy `exact` every result is the exact one, rounded. With --policy, sums near a tie go the way that the
    trainer's log says: precision and tolerances are agreed on, thresholds are each party's own, and those of the file
    are the trainer's.
    """
    run = api.runs.agree_on(
        api.bundle.load_bundle(captured),
        output,
        client=load_key(client_key),
        trainer=load_key(trainer_key),
        terms=terms,
        domain=domain,
        policy=policy_file,
        precision=precision,
    )
    tell({**job_document(run.job), "run": str(output)}, as_json=as_json)
