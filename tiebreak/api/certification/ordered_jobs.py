"""Makes the job of an order from the customer's own files, and replays segments of it: steps (7) and (8) of receipts.

The plan stands in `job_receipts`. Only the order's numbers, and without the customer's own order these too, are by the
service's word; base, data, program and first state are the customer's.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tiebreak.api.auditing.progress import on_stderr
from tiebreak.api.certification.certificates import SignedCertificate
from tiebreak.api.certification.folders import ADAPTER_WEIGHTS, MAX_OTHER_BYTES
from tiebreak.api.certification.job_receipts import METRICS, RUN, JobReceipt, loss_bits, parsed
from tiebreak.api.machine import Machine, environment
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training import orders
from tiebreak.api.training.bundle import Bundle, capture_bundle
from tiebreak.api.training.finetuning import learnt_from, save, task_of
from tiebreak.engine.data.disk import Folder
from tiebreak.engine.run.audit import SegmentAuditor
from tiebreak.engine.run.directory import RECORDS, STATES, RunDirectory, state_name
from tiebreak.engine.run.segments import chances, draw_segments, steps_to_replay
from tiebreak.protocol.commitments.job import PRECISION_F32
from tiebreak.protocol.errors import CannotCheck, TiebreakError, VerificationError
from tiebreak.protocol.program.rounding import Policy

MEANINGS: Final = {
    "steps": ": fewer or more steps: other epochs, batches or examples",
    "program_root": ": another architecture, rank or scale of adapters, length or size of batches",
    "initial_state_root": ": other weights at the beginning: another base, seed or rank",
    "data_root": ": another file, other examples or another order of them, or other learning rates",
}
_PLACES: Final = ("base_model_name_or_path", "name_or_path", "_name_or_path")
"""Fields of files that name a folder of the machine that wrote them."""


def check(
    receipt: JobReceipt, *, base: Path, data: Path, replay: int, seed: str, machine: Machine, quiet: bool = False
) -> None:  # fmt: skip
    """Takes steps (7) and (8) of the plan. seed: draws the segments; the service must not have known it."""
    signed = receipt.signed
    if signed is None:
        return
    with TemporaryDirectory() as name, receipt.part("Drawn segments, computed again, give the signed records."):
        bundle = _compare(receipt, signed, base, data, Path(name))  # (7)
        receipt.checked.append("The certificate's job is the one that the order makes of the customer's files.")
        if replay and receipt.records:
            _replay(receipt, signed, bundle, Path(name), replay, seed, machine, quiet=quiet)  # (8)


def _compare(receipt: JobReceipt, signed: SignedCertificate, base: Path, data: Path, work: Path) -> Bundle:
    job, theirs, mine = signed.certificate.job, signed.certificate.environment, dict(environment.describe())
    try:  # all that fails here is the customer's own: it convicts nobody
        settings = orders.settings_of(receipt.ordered, base, data)
        task = task_of(settings, learnt_from(settings, settings.check(work).training))
        bundle = capture_bundle(task, check="none")
        save(settings, task.model, work / "adapter")
    except TiebreakError as error:
        raise CannotCheck(f"expected an order that can be trained here, got: {error}") from error
    own = {**bundle.roots(), "policy": int(Policy.EXACT), "precision": PRECISION_F32, "steps": bundle.steps,
           "checkpoint_interval": bundle.checkpoint_interval}  # fmt: skip
    trained = {name: got.hex() if isinstance(got := getattr(job, name), bytes) else got for name in own}
    found = [
        f"another job than the order's was trained: expected {name} {own[name]}, got {trained[name]}"
        f"{MEANINGS.get(name, '')}" for name in own if own[name] != trained[name]
    ]  # fmt: skip
    found += _other_files(receipt, work / "adapter")
    names = ("tiebreak", "torch", *environment.LIBRARIES)
    versions = [f"{n} {theirs.get(n)} (here {mine.get(n)})" for n in names if theirs.get(n) != mine.get(n)]
    if found and versions:
        raise CannotCheck(
            f"{'; '.join(found)}; but the service says that it used {', '.join(versions)}, by which the order may be "
            "another program: install these versions and check again"
        )
    tokens = bundle.steps * settings.batch * settings.length
    if not found and receipt.shown.get("trained_tokens") not in (None, tokens):
        found.append(f"expected {tokens} trained tokens, got a bill for {str(receipt.shown['trained_tokens'])[:80]}")
    if found:
        raise VerificationError("; ".join(found))
    return bundle


def _other_files(receipt: JobReceipt, own: Path) -> list[str]:
    """The files of an adapter but its weights that are not what the customer's own base and order make."""
    found = list[str]()
    for path in sorted(path for path in own.iterdir() if path.is_file() and path.name != ADAPTER_WEIGHTS):
        name = f"adapter/{path.name}"
        if not (receipt.folder / name).exists():  # which must not hide what else differs
            receipt.unchecked.append(f"expected the service's file {name}, got none")
            continue
        theirs, ours = receipt.read(name, MAX_OTHER_BYTES), path.read_bytes()
        if theirs != ours and _content(name, theirs) != _content(name, ours):
            found.append(f"{name}: expected what the order makes of the base, got another file")
    return found


def _content(name: str, data: bytes) -> dict[str, Any]:
    """The content of a file for comparison: of JSON without names of folders."""
    fields: dict[str, Any] = parsed(name, data) if name.endswith(".json") else {"": data}
    return {name: value for name, value in fields.items() if name not in _PLACES}


def _replay(
    receipt: JobReceipt, signed: SignedCertificate, bundle: Bundle, work: Path, count: int, seed: str,
    machine: Machine, *, quiet: bool,
) -> None:  # fmt: skip
    head, records, losses = signed.certificate.head, receipt.records, list[float]()
    run = RunDirectory.create(work / "run", signed.certificate.agreement, bundle.program, bundle.state, bundle.data)
    with run.folder(to_write=True) as files:
        files.write(RECORDS, b"".join(record.encode() for record in records))
    run.write_head(head)
    segments = draw_segments(len(records), min(count, len(records)), seed.encode(), head.head.run_root)
    if (receipt.folder / RUN / STATES).exists():
        with Folder(receipt.folder, RUN, STATES) as theirs, run.folder(STATES, to_write=True) as own:
            for name in {*theirs.names()} & {state_name(record.step) for record in records}:
                with theirs.reading(name) as (source, _), own.replacing(name) as target:
                    shutil.copyfileobj(source, target)
    with on_stderr("replaying", steps_to_replay(run, segments), quiet=quiet) as on_step:

        def told(done: int, loss: float) -> None:
            losses.append(loss)
            on_step(done, loss)

        audit = SegmentAuditor(run, make_interpreter(run.program, machine, run.job), records).audit(segments, told)
    if audit.fraud is not None:
        first, last = audit.fraud.first_step, audit.fraud.last_step
        raise VerificationError(
            f"steps {first} to {last} were not computed as was signed: expected the record "
            f"{audit.fraud.replayed.digest.hex()}, got {audit.fraud.committed.digest.hex()}"
        )
    steps = [step for report in audit.checked for step in range(report.first_step, report.last_step + 1)]
    for step, loss in zip(steps, losses, strict=True):
        shown = receipt.losses.get(str(step))
        if shown is not None and loss_bits(shown) != loss_bits(loss):
            raise VerificationError(f"{METRICS}, step {step}: expected the loss {loss!r}, got {shown[:80]!r}")
    receipt.notes.append(
        f"Replayed: segments {', '.join(str(one + 1) for one in segments)} of {len(records)}, {audit.steps} of "
        f"{run.job.steps} steps, drawn by the seed {seed}."
    )
    receipt.notes += [
        f"Of {false} false segments among {len(records)}, such a draw of {len(segments)} finds one with probability "
        f"{chance:.3g} (1 - C(n-x, s)/C(n, s))." for false, chance in chances(len(records), len(segments))
    ]  # fmt: skip
    receipt.notes.append("A lie in one segment alone is only found by replaying that segment (--replay).")
