"""`tiebreak receipt check`: whether a fine-tuning service trained what was ordered."""

import secrets
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.cli import options as opt
from tiebreak.engine.data.disk import read_file
from tiebreak.node.finetuning.service_client import ServiceClient
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, VerificationError, own_file, printable

VERDICTS: Final = {
    0: "What was ordered is what was trained, as far as the segments that were computed again show.",
    2: "CONVICTED: this is not what was ordered, or not what the trainer signed.",
    3: "Not all could be checked; what could be is right.",
}
MAX_ORDER_BYTES: Final = 1 << 20
DATA: Final = click.Path(exists=True, path_type=Path)


@click.group()
def receipt() -> None:
    """Check that a fine-tuning service trained what was ordered.

    The service shows its signed records, the events of the job and the adapter with its certificate. The customer makes
    the same job anew from the own order, data and base, and computes drawn segments of the run again. What contradicts
    these, or what the service signed itself, convicts it.
    """


@receipt.command()
@click.option("--service", metavar="URL", help="The service, without /v1.")
@click.option("--job", "job_id", metavar="ID", help="The job's id there, such as ftjob-12ab.")
@click.option("--api-key", envvar="OPENAI_API_KEY", default="", help="Your key there; also from OPENAI_API_KEY.")
@click.option("--folder", type=opt.FOLDER, help="Check this folder that --output wrote instead: anyone can.")
@click.option("--output", "-o", type=opt.NEW_FOLDER, help="New or empty folder for what the service shows.  "
              "[default: a temporary one]")  # fmt: skip
@click.option("--order", type=opt.FILE, help="The JSON of the request that you sent.  [default: what the service "
              "says that it was]")  # fmt: skip
@click.option("--data", type=DATA, help="The training file that you uploaded.")
@click.option("--base", type=opt.FOLDER, help="Folder of the base model, from where you trust.")
@opt.require_option
@opt.number("--replay", 0, None, 3, "Segments to compute again, drawn at random.")
@click.option("--seed", help="Seed of the draw, to repeat it.  [default: a new one, which nobody could know]")
@opt.machine_options("threads", "device")
@opt.json_option
def check(
    service: str | None, job_id: str | None, api_key: str, folder: Path | None, output: Path | None, order: Path | None,
    data: Path | None, base: Path | None, require: tuple[Address, ...], replay: int, seed: str | None, machine: Machine,
    as_json: bool,
) -> int:  # fmt: skip
    """Check what a service shows of a job.

    That is the order, certificate, base, records, events and losses. The job is made anew from your own order, base and
    data, compared with the one that the trainer signed, and drawn segments of it are computed again. Without the extra
    `finetune`, --base or --data the rest is checked. See docs/receipts.md.

    Exit codes: 0 right, 2 convicted, 3 not all could be checked, 1 not possible as asked.
    """
    if (service is None) == (folder is None) or (service is None) != (job_id is None):
        raise ConfigurationError("expected --service with --job, or --folder, got neither or both")
    if output is not None and (folder is not None or (output.is_dir() and any(output.iterdir()))):
        raise ConfigurationError(f"expected --service, and a new or empty folder for its files, got {output}")
    with own_file():
        request = None if order is None else api.job_receipts.parsed(str(order), read_file(order, MAX_ORDER_BYTES))
    with TemporaryDirectory() as temporary:
        place, missed = folder or output or Path(temporary, "receipt"), list[str]()
        if service is not None and job_id is not None:
            try:
                missed = ServiceClient(service, api_key).download(job_id, place, states=replay > 0)
            except (CannotCheck, VerificationError) as error:
                missed = [str(error)]
        found = api.job_receipts.check(place, order=request, base=base, require=require)
        found.unchecked[:0] = missed
        if base is None or data is None:
            found.unchecked.append("expected --base and --data, to compare the job with the order, got not both")
        else:
            try:
                api.ordered_jobs.check(
                    found, base=base, data=data, replay=replay, seed=seed or secrets.token_hex(16), machine=machine,
                    quiet=as_json,
                )  # fmt: skip
            except ModuleNotFoundError as error:
                found.unchecked.append(f"{error.name} is not installed: pip install 'tiebreak[finetune]'")
    document = {
        "verdict": VERDICTS[found.code], "ordered": found.ordered,
        "ordered_by": "your request" if request else "the service's word: compare it with what you asked for (--order)",
        "false": found.false, "unchecked": found.unchecked, "checked": found.checked, "notes": found.notes,
    }  # fmt: skip
    shown = {n: v if isinstance(v, list) else printable(str(v)[:2000]) for n, v in document.items()}
    opt.tell(document if as_json else shown, as_json=as_json)
    return found.code
