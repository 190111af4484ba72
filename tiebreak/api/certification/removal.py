"""Exact unlearning: the job of a run without some rows, which goes on from before they were read, and its receipt.

The new job has the program, the initial state and the data of the run, but for two things: the rows are not in its
data, and its order is a list in them, that of the run with the rows left out. So later examples move up. There are as
many steps as before, so draws of further epochs fill the end.

The receipt is an in-toto Statement in a DSSE envelope (`tiebreak.protocol.commitments.statement`), signed by the new
job's trainer. Its subjects are the signed jobs of both runs, `before.job.bin` and `after.job.bin`. The predicate has

    before, after   the `job` (its id) and the `root` of the run tree over all checkpoints
    removed         the number of rows that were left out
    shared          the step of the last checkpoint before any of them was read; 0: the initial state

Numbered plan of `check`, for both folders of runs that anybody may have made: (1) the file is one envelope of at most
`MAX_ENVELOPE_BYTES`; (2) the new job's trainer has signed it; (3) the new job has the roots and rules of the old one
without those of its rows that are not in the new data; (4) the new run is finished, its states are those of its
records, and it has the records of the old one up to the shared checkpoint; (5) all bytes are what these runs say.
"""

from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self

import torch
from torch import Tensor

from tiebreak.api.certification.job_data import JobData
from tiebreak.api.machine import Machine
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training.bundle import Bundle
from tiebreak.api.training.reading import check_of, name_of, open_directory
from tiebreak.api.training.runs import Run, agree_on
from tiebreak.api.training.settings import TUNING
from tiebreak.engine.arithmetic.plain.random import Shuffles
from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.engine.logged.policy import policy_of
from tiebreak.engine.run.directory import JOB, MAX_NAMES_BYTES, NAMES, RunDirectory
from tiebreak.protocol.commitments import statement as intoto
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES, Envelope
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError, EncodingError, SignatureError, VerificationError, own_file
from tiebreak.protocol.program.example_order import ExampleOrder, list_examples
from tiebreak.protocol.program.isa import Access, DType, Instruction, Opcode
from tiebreak.protocol.tags import Digest

PREDICATE_TYPE: Final = "urn:tiebreak:removal:1"
RECEIPT: Final = "removal.json"
"""The file of the receipt, in the folder of the new run."""
MAX_DRAWS: Final = 1 << 30
"""The most draws of rows that are looked at, of 8 bytes each: a job may name any number of steps."""
MAX_ROWS_BYTES: Final = 1 << 24
RULES: Final = ("steps", "checkpoint_interval", "policy", "precision", "tolerances")
_DEPTH: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The job without rows of a run. rows: their numbers. shared: the step of the last checkpoint of both runs."""

    before: RunDirectory
    rows: tuple[int, ...]
    bundle: Bundle
    shared: int

    @classmethod
    def of(cls, before: RunDirectory, rows: Collection[int]) -> Self:
        """Makes the job. Raises `ConfigurationError` for programs without rows, or if rows or their copies are left."""
        found, job, removed = JobData(before), before.job, sorted(set(rows))
        (order, ids), keeps = (found.order, found.row_ids()), torch.ones(found.count, dtype=torch.bool)
        if not 0 < len(removed) < len(keeps) or not 0 <= removed[0] <= removed[-1] < len(keeps):
            raise ConfigurationError(f"expected some of {len(keeps):,} rows, by numbers from 0 or values, got others")
        keeps[removed] = False
        gone = {ids[row] for row in removed}
        if copies := [n for n, one in enumerate(ids) if one in gone and keeps[n]]:
            raise ConfigurationError(f"expected all copies of a row, got not row {copies[0]}, of the same values")
        program, name = list_examples(before.program, job.steps, int(keeps.sum()))
        old, data, wanted = torch.empty(0), before.data(), job.steps * order.each
        left, count = old, max(wanted, order.epoch)
        while len(left) < wanted:
            if count > MAX_DRAWS:
                raise ConfigurationError(f"expected at most {MAX_DRAWS:,} draws of rows, got {count:,}")
            old = _draws(order, count, data)
            if not 0 <= old.min() <= old.max() < len(keeps):
                raise EncodingError(f"{before.path}: expected an order of {len(keeps):,} rows, got others in it")
            left, count = old[keeps[old]], 2 * count
            if not len(left):
                raise ConfigurationError("expected rows that are read to be left, got none")
        alike = (old[:wanted] == left[:wanted]).long().cumprod(0).sum()
        steps = [0] if job.is_logged else [0, *(one.step for one in before.records())]
        listed = (keeps.cumsum(0) - 1)[left[:wanted]].view(job.steps, order.each)
        data = {key: data[key][keeps] if key in found.elements else data[key] for key in data} | {name: listed}
        return cls(
            before=before, rows=tuple(removed), shared=max(n for n in steps if n * order.each <= alike),
            bundle=Bundle(
                name=name_of(before), steps=job.steps, checkpoint_interval=job.checkpoint_interval, program=program,
                state=before.state(0), data={key: data[key] for key in program.data_spec()}, check=check_of(before),
            ),
        )  # fmt: skip

    @property
    def plan(self) -> str:
        """The steps that are to be computed, and their cost, in words."""
        steps, seconds = self.before.job.steps, [line["seconds"] for line in self.before.metrics()]
        count = steps - (start := self.before.kept_before(self.shared))
        return (
            f"no removed row was read up to the checkpoint of step {self.shared}; computes {count:,} of {steps:,} "
            f"steps, from step {start}, whose state was kept: about {count * sum(seconds) / max(1, len(seconds)):.0f} s"
        )

    def resume(self, folder: Path, key: PrivateKey, machine: Machine, *, keep: str, progress: bool) -> RunDirectory:
        """Computes the new run in a folder, or what is left of it there, and writes the receipt. key: the trainer's."""
        before = self.before
        if not (folder / JOB).exists():
            agree_on(
                self.bundle, folder, client=new_key(), trainer=key, terms=Terms(), domain=OFF_CHAIN,
                policy=policy_of(before), precision=before.job.precision,
            )  # fmt: skip
        self.check_job(after := open_directory(folder))
        with before.folder() as files:
            for name in filter(files.holds, (NAMES, TUNING)):
                write_file(folder / name, files.read(name, MAX_NAMES_BYTES))
        for line in before.metrics() if not after.recorded() else ():
            if line["step"] <= self.shared:
                after.add_metric(int(line["step"]), line["loss"], line["seconds"])
        for record in before.records()[after.recorded() :]:
            if record.step <= self.shared:
                if before.state_path(record.step).is_file():
                    after.write_state(record.step, before.state(record.step, narrow=True))
                after.append_record(record)
        Run(after, machine).resume(key, keep=keep, progress=progress)
        envelope = Envelope(payload=intoto.payload_of(self.document(after)))
        write_file(folder / RECEIPT, intoto.sign(envelope, key).encode())
        return after

    def check_job(self, after: RunDirectory) -> None:
        """Raises `VerificationError` unless the job of a run is this one."""
        fixed = {name: getattr(self.before.job, name) for name in RULES}
        fixed |= {name: bytes.fromhex(root) for name, root in self.bundle.roots().items()}
        for name, value in fixed.items():
            if (got := getattr(after.job, name)) != value:
                shown = [one.hex() if isinstance(one, bytes) else one for one in (value, got)]
                raise VerificationError(f"{after.path}: expected {name} {shown[0]} without the rows, got {shown[1]}")

    def document(self, after: RunDirectory) -> dict[str, Any]:
        """The statement about both runs. Raises `VerificationError` unless the new run is this job's."""
        self.check_job(after)  # (3)
        shared = [[one for one in run.records() if one.step <= self.shared] for run in (self.before, after)]
        if shared[0] != shared[1] or after.job.steps not in after.kept():  # (4)
            raise VerificationError(f"{after.path}: expected records of the run before, and all others, got others")
        for step in after.kept():
            after.state(step, narrow=True)
        runs = {"before": self.before, "after": after}
        jobs = {f"{name}.{JOB}": Digest(sha256(run.agreement.encode()).digest()) for name, run in runs.items()}
        roots = {name: {"job": run.job.id.hex(), "root": run.root().hex()} for name, run in runs.items()}
        return intoto.document_of(jobs, PREDICATE_TYPE, {**roots, "removed": len(self.rows), "shared": self.shared})


def check_removal(receipt: Path, before: RunDirectory, after: RunDirectory) -> Removal:
    """Checks a receipt, given both runs. Raises `VerificationError` unless it holds."""
    envelope = Envelope.decode(read_file(receipt, MAX_ENVELOPE_BYTES))  # (1)
    intoto.statement_of(envelope.payload, PREDICATE_TYPE, _DEPTH)
    if after.job.trainer not in intoto.signers_of(envelope, "receipt"):  # (2)
        raise SignatureError(f"receipt: expected a signature by {intoto.hexed(after.job.trainer)}, got none")
    left, rows = {*JobData(after).row_ids()}, JobData(before).row_ids()
    if not 0 < len(gone := [n for n, one in enumerate(rows) if one not in left]) < len(rows):
        raise VerificationError(f"{after.path}: expected data without some of {len(rows):,} rows, got others")
    removal = Removal.of(before, gone)
    intoto.require_same(envelope.payload, removal.document(after), "what both runs say")  # (5)
    return removal


@own_file()
def rows_in(path: Path, run: RunDirectory) -> set[int]:
    """The rows that a file names: numbers, or those that have the values of a .safetensors file at any place."""
    if path.suffix == ".safetensors":
        return {row for rows, _ in JobData(run).places(path) for row in rows}
    text = read_file(path, MAX_ROWS_BYTES).decode("utf-8", "replace").strip().removeprefix("[").removesuffix("]")
    try:
        return {int(number) for number in text.replace(",", " ").split()}
    except ValueError as error:
        raise ConfigurationError(f"{path}: expected numbers of rows, as a JSON list or lines, got {error}") from error


def _draws(order: ExampleOrder, count: int, data: dict[str, Tensor]) -> Tensor:
    """The rows of the first draws. A list begins again at its end."""
    places, epochs = (draws := torch.arange(count)) % order.epoch, draws // order.epoch
    if order.shuffle is None:
        return data[order.listed].flatten()[places] if order.listed else places
    reads = Access(0, 0, (1,)), Access(1, 0, (0,)), Access(2, 0, (1,))
    i = Instruction(opcode=Opcode.SHUFFLE, dtype=DType.I64, shape=(count,), operands=reads, params=order.shuffle)
    return Shuffles().run(i, [places, data[order.seed], epochs])
