"""Checks what a fine-tuning service shows of a job against what its customer ordered. Imports no torch.

The folder of a receipt has what the service serves: `job.json` and `events.jsonl` in the shapes of OpenAI's interface,
and the result files by their names: `metrics.csv`, `adapter/...`, `evaluation/...` with the scores of a validation
file, and of the run `run/records.bin` and `run/checkpoints/...`. All of it is a stranger's. What contradicts the order,
or what the service itself has signed, is false; what is missing or cannot be read is unchecked.

Numbered plan: (1) the service shows the order that its customer sent; (2) the adapter is that of its certificate, which
the trainer signed, and those that were asked for; (3) its base is the customer's; (4) the records are those of the
certificate's head; (5) each event has a head that the trainer signed for the beginning of these very records; (6)
events and `metrics.csv` have the losses of the records, each number counting as the float32 nearest to it; (7) the
certificate's job is the one that the order makes of the customer's own files (`ordered_jobs`); (8) segments that are
drawn now, long after they were signed, give the signed records when they are computed again; (9) the scores are of this
adapter and base, by the evaluation that the job named.
"""

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tiebreak.api.certification import certificates
from tiebreak.api.certification.certificates import SignedCertificate
from tiebreak.api.certification.folders import ADAPTER as ADAPTER_CONFIG
from tiebreak.api.certification.lineage import registered
from tiebreak.api.training.orders import hyperparameters
from tiebreak.engine.data.disk import Folder
from tiebreak.engine.run.directory import RECORD_BYTES
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.errors import CannotCheck, EncodingError, TiebreakError, VerificationError, own_file
from tiebreak.protocol.numbers import float32
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.trees import Frontier

JOB, EVENTS, METRICS, ADAPTER, RUN = "job.json", "events.jsonl", "metrics.csv", "adapter", "run"
EVALUATION: Final = "evaluation"
MAX_BYTES: Final = 1 << 28
"""The most bytes of a file of text."""
MAX_CHECKPOINTS: Final = 1 << 16
DEPTH: Final = 16
"""The most brackets inside each other in what a service answers."""
LOSS: Final = "train_loss"
_ROW: Final = re.compile(r"^([1-9][0-9]*),([^,\s]+)(?:,\S*)?$", re.MULTILINE)
"""A line of `metrics.csv`: step, loss, and columns that are not compared."""


@dataclass(kw_only=True)
class JobReceipt:
    """The findings about a job of a fine-tuning service, as sentences.

    ordered: what is taken for the order. shown: the service's job. false: what convicts the service. roots: of the
    first n records, for each n. losses: those of `metrics.csv`, by step.
    """

    folder: Path
    ordered: dict[str, Any] = field(default_factory=dict)
    shown: dict[str, Any] = field(default_factory=dict)
    checked: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    signed: SignedCertificate | None = None
    records: list[StepRecord] = field(default_factory=list)
    roots: list[bytes] = field(default_factory=list)
    losses: dict[str, str] = field(default_factory=dict)

    @property
    def code(self) -> int:
        """The exit code: 0 right, 2 convicted, 3 not all could be checked."""
        return 2 if self.false else 3 if self.unchecked else 0

    @contextmanager
    def part(self, sentence: str) -> Iterator[None]:
        """Notes the sentence as checked, unless the block raises an error, whose words are then false or unchecked."""
        try:
            yield
            self.checked.append(sentence)
        except TiebreakError as error:
            (self.false if isinstance(error, VerificationError) else self.unchecked).append(str(error))

    def read(self, name: str, limit: int) -> bytes:
        """A file of the service. Raises `CannotCheck` if it is not there."""
        *inside, last = name.split("/")
        if not (self.folder / name).exists():
            raise CannotCheck(f"expected the service's file {name}, got none")
        with Folder(self.folder, *inside) as files:
            return files.read(last, limit)


def check(
    folder: Path, *, order: Mapping[str, Any] | None = None, base: Path | None = None, require: Sequence[Address] = ()
) -> JobReceipt:  # fmt: skip
    """Takes steps (1) to (6) of the plan. order: the customer's request; None: that which the service shows."""
    receipt = JobReceipt(folder=folder)
    with receipt.part("The service shows the order as it was sent." if order else "The service shows an order."):
        _check_order(receipt, order)  # (1)
    with receipt.part("The adapter is the one of its certificate, which the trainer signed."):
        _check_adapter(receipt, base, require)
    if (signed := receipt.signed) is not None:
        with receipt.part("The records are those that the trainer signed."):
            _check_records(receipt, signed)  # (4)
        with receipt.part("All events are of these records, by heads that the trainer signed."):
            _check_events(receipt, signed)
        with receipt.part(f"{METRICS} has the losses of the records at all checkpoints."):
            _check_metrics(receipt)
    if base is not None and (receipt.folder / EVALUATION).exists():
        with receipt.part("The scores are this adapter's, by the evaluation that its job named."):
            _check_scores(receipt, base)  # (9)
    return receipt


def parsed(name: str, data: bytes) -> dict[str, Any]:
    """An object in JSON. Raises `EncodingError` if it is none."""
    found = JsonObject.parse(name, data, DEPTH)
    return {key: found.take(key, "a value", lambda _: True) for key in found.names()}


def _words(order: Mapping[str, Any]) -> dict[str, Any]:
    """The choices of an order or a job, by the names of the interface."""
    try:
        found = {name: order.get(name) for name in ("model", "training_file", "validation_file", "seed")}
        found["suffix"] = order.get("user_provided_suffix", order.get("suffix"))
        method = {"type": (order.get("method") or {}).get("type", "supervised")}
        return {**found, "method": method, "hyperparameters": hyperparameters(order)}
    except (AttributeError, TypeError) as error:
        raise CannotCheck(f"expected an order in the shapes of OpenAI's interface, got another: {error}") from error


def _check_order(receipt: JobReceipt, order: Mapping[str, Any] | None) -> None:
    receipt.shown = parsed(JOB, receipt.read(JOB, MAX_BYTES))
    if (status := receipt.shown.get("status")) != "succeeded":
        receipt.unchecked.append(f"expected a job that has succeeded, got status {str(status)[:80]!r}")
    shown, ordered = _words(receipt.shown), _words(order or receipt.shown)
    ordered["seed"] = shown["seed"] if ordered["seed"] is None else ordered["seed"]
    receipt.ordered = ordered
    for name, value in ordered.items():
        if value is not None and value != shown[name]:
            raise VerificationError(
                f"the service shows another order: expected {name} {value!r}, got {str(shown[name])[:200]!r}"
            )


def _check_adapter(receipt: JobReceipt, base: Path | None, require: Sequence[Address]) -> None:
    folder, name = receipt.folder / ADAPTER, f"{ADAPTER}/certificate.json"
    receipt.signed = SignedCertificate.read(receipt.read(name, MAX_ENVELOPE_BYTES))
    receipt.notes.append(f"The trainer is 0x{receipt.signed.certificate.job.trainer.hex()} (--require).")
    certificate = receipt.signed.certificate
    names = [*certificate.files, *([ADAPTER_CONFIG] if certificate.adapter else []), *(certificate.others or {})]
    if missing := [name for name in names if not (folder / name).exists()]:
        raise CannotCheck(f"expected all files that were signed for, got no {ADAPTER}/{missing[0]}")
    _, found = certificates.verify(folder, receipt.folder / name, require=require)  # (2)
    if found.different:
        raise VerificationError(
            f"{ADAPTER}: expected the files that were signed for, got another {min(found.different)}"
        )
    if base is not None:
        with own_file():
            tensors = certificates.read_weights(base).tensors
        certificate.check_base(found.tensors, tensors)  # (3)
        receipt.checked.append(f"{base} is the base that the adapter was trained on.")


def _check_scores(receipt: JobReceipt, base: Path) -> None:
    """That these are scores of the validation file is for whoever has that to check (`tiebreak evaluate --against`)."""
    scores, adapter = receipt.folder / EVALUATION, receipt.folder / ADAPTER
    certificate, own = (folder / "certificate.json" for folder in (scores, adapter))
    if not registered(certificates.verify_lineage(scores, certificate, [adapter, base], [own])):
        raise VerificationError(f"{EVALUATION}: expected the evaluation that the job named, got another")


def _check_records(receipt: JobReceipt, signed: SignedCertificate) -> None:
    job, root, name = signed.certificate.job, signed.certificate.head.head.run_root, f"{RUN}/records.bin"
    if job.checkpoints > MAX_CHECKPOINTS:
        raise CannotCheck(f"expected at most {MAX_CHECKPOINTS} checkpoints, got {job.checkpoints}")
    raw = receipt.read(name, RECORD_BYTES * MAX_CHECKPOINTS)
    if len(raw) != RECORD_BYTES * job.checkpoints:
        raise EncodingError(f"{name}: expected {job.checkpoints} records, as was signed, got {len(raw)} bytes")
    frontier = Frontier()
    for at in range(0, len(raw), RECORD_BYTES):
        receipt.records.append(StepRecord.decode(raw[at : at + RECORD_BYTES]))
        frontier.append(receipt.records[-1].digest)
        receipt.roots.append(frontier.root(job.run_depth))
    if receipt.roots[-1] != root:
        receipt.records.clear()
        raise VerificationError(f"{name}: expected the signed root {root.hex()}, got that of other records")


def _check_events(receipt: JobReceipt, signed: SignedCertificate) -> None:
    job, domain, seen = signed.certificate.job, signed.certificate.agreement.domain, set[int]()
    roots, at = receipt.roots, {record.step: record for record in receipt.records}
    for number, line in enumerate(receipt.read(EVENTS, MAX_BYTES).splitlines() if at else (), 1):
        name, event = f"{EVENTS}, line {number}", parsed(EVENTS, line)
        if event.get("type") != "metrics":
            continue
        data = JsonObject(name, event.get("data"))
        step = data.integer("step", 1, job.steps)
        if step in at and LOSS in data:
            _check_loss(name, data.take(LOSS, "a loss", lambda _: True), at[step])  # (6)
        if "head" in data and not data.is_null("head"):
            found = SignedHead.decode(bytes.fromhex(data.text("head", "(?:[0-9a-f]{2})+", "a head in hex")))
            found.verify(job, domain)  # (5)
            count, root = found.head.count, found.head.run_root
            if root != roots[count - 1]:
                raise VerificationError(
                    f"{name}: the trainer signed two histories, of roots {root.hex()} and {roots[count - 1].hex()} at "
                    f"checkpoint {count}: either signature convicts it by the other"
                )
            if step != job.last_step(count - 1):
                raise VerificationError(f"{name}: expected the head of step {step}, got that of checkpoint {count}")
            seen.add(count)
    receipt.notes.append(f"{len(seen)} of {job.checkpoints} checkpoints have an event with a signed head.")


def _check_metrics(receipt: JobReceipt) -> None:
    text = receipt.read(METRICS, MAX_BYTES).decode("utf-8", "replace").replace("\r\n", "\n").strip()
    rows = _ROW.findall(text)
    if len(rows) != text.count("\n") or not text.startswith(f"step,{LOSS}"):
        raise CannotCheck(f"{METRICS}: expected lines of step and {LOSS}, got others")
    receipt.losses = dict(rows)
    if len(receipt.losses) != len(rows):
        raise VerificationError(f"{METRICS}: expected each step once, got some more often")
    for record in receipt.records:
        if (loss := receipt.losses.get(str(record.step))) is None:
            raise CannotCheck(f"{METRICS}: expected a loss for each checkpoint, got none for step {record.step}")
        _check_loss(METRICS, loss, record)


def _check_loss(where: str, got: Any, record: StepRecord) -> None:
    bits = record.loss_bits
    if loss_bits(got) != bits and (got is not None or float32.is_finite(bits)):  # JSON has null for what is not finite
        said = f"step {record.step} that was signed, {float32.to_float(bits)!r}"
        raise VerificationError(f"{where}: expected the loss of {said}, got {str(got)[:80]!r}")


def loss_bits(value: Any) -> int | None:
    """The nearest float32 of a number, or of its text; None if there is none."""
    try:
        return int.from_bytes(struct.pack("<f", float(value)), "little")
    except (TypeError, ValueError, OverflowError):
        return None
