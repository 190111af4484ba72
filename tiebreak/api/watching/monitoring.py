"""Watches a run directory while it grows, or afterwards: its trainer's reports, against its signatures.

Losses come from `metrics.jsonl`, one for each step, samples from `monitor.jsonl`. Both are a stranger's and unsigned.
The trainer is bound by its records and the losses in its states (docs/decisions/trees-and-hashes.md), so (1) records
must be the signed head's; (2) the loss that was told for a checkpoint's step must be the one in its record; (3) with
`states`, those of all steps of a segment whose last state is kept must be the ones in that state; (4) a sample's loss
must be the step's; (5) steps computed twice, after a restart, must have one loss;
(6) steps follow each other, and go back only to what follows a checkpoint.
"""

import json
import struct
from collections.abc import Iterator
from math import isfinite, isnan
from typing import Final

from tiebreak.api.auditing.forward import losses_in
from tiebreak.api.watching import alarms
from tiebreak.api.watching.alarms import MONITOR, ProcessStart, Rule, Sample, Troubles, WorkerStanding
from tiebreak.engine.run.directory import MAX_METRIC_CHARACTERS, MAX_METRICS_BYTES, METRICS, RunDirectory
from tiebreak.engine.run.segments import signed_records
from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.errors import CannotCheck, EncodingError, VerificationError
from tiebreak.protocol.numbers.float32 import to_float

MAX_MONITOR_BYTES: Final = 1 << 28
AHEAD: Final = 60.0
"""Seconds by which the worker's clock may be ahead of ours."""
_CHUNK: Final = 1 << 20


class _Tail:
    """Reads the complete lines that a file has gained since the last call, with their numbers; cuts overlong ones."""

    def __init__(self, run: RunDirectory, name: str, most: int, longest: int) -> None:
        self._run, self.name, self._most, self._longest = run, name, most, longest
        self._at, self._inode, self._number, self._rest = 0, 0, 0, b""
        self.is_broken = False

    def lines(self, troubles: Troubles) -> Iterator[tuple[int, bytes]]:
        """Raises `EncodingError` for anything but a plain file. Nothing is read of one that shrank or is too big."""
        with self._run.folder() as folder:
            if self.is_broken or not folder.holds(self.name):
                return
            with folder.reading(self.name) as (file, stamp):
                self._inode = self._inode or stamp.inode
                if stamp.size < self._at or stamp.inode != self._inode or stamp.size > self._most:
                    self.is_broken = True
                    troubles.note(
                        f"{self.name}: expected a file that grows, to {self._most} bytes at most; it was shortened, "
                        f"exchanged or is larger"
                    )
                    return
                file.seek(self._at)
                while chunk := file.read(min(_CHUNK, self._most - self._at)):
                    self._at += len(chunk)
                    *whole, rest = (self._rest + chunk).split(b"\n")
                    self._rest = rest[: self._longest + 1]
                    for line in whole:
                        self._number += 1
                        yield self._number, line[: self._longest + 1]


class RunMonitor:
    """Monitors one run directory. `look` reads new lines; `rules` evaluates each rule."""

    def __init__(self, run: RunDirectory, *, step_seconds: float | None = None, states: bool = False) -> None:
        """step_seconds: the time of a step on the machine that was agreed on. states: read kept states, too."""
        self.run, self._step_seconds, self._states = run, step_seconds, states
        self._losses: dict[int, int] = {}
        self._metrics = _Tail(run, METRICS, MAX_METRICS_BYTES, MAX_METRIC_CHARACTERS)
        self._monitor = _Tail(run, MONITOR, MAX_MONITOR_BYTES, alarms.MAX_LINE)
        self._form, self._heads = Troubles(), Troubles()
        self._lives: list[list[Sample]] = []
        """The samples of each process that has computed the run, in order: a restart begins a new list."""
        self._new: list[Sample] = []
        self._unlike: dict[int, int] = {}
        """Bits of losses in samples, by step, whose lines of metrics have not come yet."""
        self._heard: float | None = None
        self._head: SignedHead | None = None
        self._checked = 0
        self._signed: dict[int, int] = {}
        """Bits of signed losses, by step, whose lines have not come yet."""
        self._bound = 0
        """The number of losses that were compared with the trainer's signed ones."""
        self._before = 0
        """The step of the line of metrics before."""
        self._bad_loss = self._bad_sample = ""
        """The problem of the last line, held back: a killed process may have left it, if the next line resumes."""

    @property
    def is_over(self) -> bool:
        return self.run.recorded() == self.run.job.checkpoints

    def look(self, now: float) -> list[Sample]:
        """Reads new lines, and returns the new samples. now: seconds since 1970.

        Raises `EncodingError` if a link or a device has taken the place of a file, `VerificationError` for a false
        signature.
        """
        for number, line in self._metrics.lines(self._form):
            self._take_loss(number, line)
        self._new = []
        for number, line in self._monitor.lines(self._form):
            self._take_line(number, line, now)
        for step in [step for step in self._unlike if step in self._losses]:
            if (bits := self._unlike.pop(step)) != self._losses[step]:  # (4)
                expected = alarms.shown_loss(self._losses[step])
                self._heads.note(f"a sample of step {step}: expected loss {expected}, got {alarms.shown_loss(bits)}")
        self._compare_heads()
        new = self._new
        if self._heard is None:  # samples from before are as old as they say
            self._heard = min(now, new[-1].time) if new else now
        elif new:
            self._heard = now
        return new

    def rules(self, now: float) -> tuple[Rule, ...]:
        """The paper's three rules and ours, as they stand now. now: seconds since 1970."""
        life, over, job = self._lives[-1] if self._lives else [], self.is_over, self.run.job
        working = [sample for life in self._lives for sample in life[1:]]
        count = sum(map(len, self._lives))
        lines = f"{count} samples in order, of this job" if self._lives else "no samples are told here"
        signed = f"{self._bound} losses are those that the trainer signed"
        return (
            alarms.losses_rule(len(self._losses), max(self._losses, default=0), job.steps, is_over=over),
            alarms.utilisation_rule(working),
            alarms.memory_rule(life),
            self._heads.rule("heads", signed if self._head else "nothing is signed", judged=self._bound > 0),
            alarms.rate_rule(life, self._step_seconds),
            self._silence(now, over=over),
            self._form.rule("lines", lines, judged=bool(self._lives)),
        )

    def _silence(self, now: float, *, over: bool) -> Rule:
        since = now if self._heard is None else self._heard
        for life in self._lives[:-1]:
            earlier = alarms.silence_rule(life, since, now, is_over=True)
            if earlier.standing is WorkerStanding.ALARM:
                return earlier
        return alarms.silence_rule(self._lives[-1] if self._lives else [], since, now, is_over=over)

    # ------------------------------------------------------------------ lines

    def _take_loss(self, number: int, raw: bytes) -> None:
        where = f"{METRICS} line {number}"
        try:
            if len(raw) > MAX_METRIC_CHARACTERS:
                raise ValueError("too long")
            entry = json.loads(raw)
            step, bits = entry["step"], _bits(entry["loss"])
            if type(step) is not int:
                raise ValueError("not a step")
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            # A process that is killed can leave half a line, and the next one goes on from a checkpoint.
            self._form.note(self._bad_loss)
            words = f"{where}: expected a step and its FP32 loss, got {raw[:40]!r}"
            self._bad_loss = self._held(words, len(raw) <= MAX_METRIC_CHARACTERS)
            return
        job = self.run.job
        if not 1 <= step <= job.steps:
            self._form.note(f"{where}: expected a step of 1 to {job.steps}, got {step}")
            return
        goes_on = step <= self._before + 1 and step == job.first_step(job.checkpoint_of(step))
        if not goes_on:  # which follows on what a kill has left
            self._form.note(self._bad_loss)
        if step != self._before + 1 and not goes_on:
            self._form.note(f"{where}: expected step {self._before + 1}, or one after a checkpoint, got {step}")
        if not isfinite(entry["loss"]):
            self._form.note(f"{where}: expected a finite loss of step {step}, got {entry['loss']}")
        self._bad_loss, self._before = "", step
        if step in self._signed:
            self._losses[step] = bits
            self._compare(step, self._signed.pop(step))
        elif self._losses.setdefault(step, bits) != bits:
            twice = f"{alarms.shown_loss(self._losses[step])} and {alarms.shown_loss(bits)}"
            self._heads.note(f"{where}: expected one loss of step {step}, however often computed, got {twice}")

    def _take_line(self, number: int, raw: bytes, now: float) -> None:
        where = f"{MONITOR} line {number}"
        try:
            line = alarms.read_line(raw)
        except EncodingError as error:
            self._form.note(self._bad_sample)
            self._bad_sample = self._held(f"{where}: {error}", len(raw) <= alarms.MAX_LINE)
            return
        if not isinstance(line, ProcessStart):  # which follows on what a kill has left
            self._form.note(self._bad_sample)
        self._bad_sample = ""
        last = self._lives[-1][-1] if self._lives and self._lives[-1] else None
        if line.time > now + AHEAD:
            self._form.note(f"{where}: expected a time that has been, got one {line.time - now:.0f} s ahead")
        if last is not None and line.time < last.time:
            self._form.note(f"{where}: expected times in order, got one {last.time - line.time:.0f} s before the last")
        if line.step > self.run.job.steps:
            self._form.note(f"{where}: expected a step of 0 to {self.run.job.steps}, got {line.step}")
        if isinstance(line, ProcessStart):
            if line.job != self.run.job.id.hex():
                self._form.note(f"{where}: expected lines of job {self.run.job.id.hex()[:16]}, got {line.job[:16]!r}")
            self._lives.append([])
        else:
            self._take_sample(where, line)

    def _take_sample(self, where: str, sample: Sample) -> None:
        if not self._lives:
            self._form.note(f"{where}: expected the line of a start first, got a sample")
            self._lives.append([])
        if (life := self._lives[-1]) and sample.step < life[-1].step:
            self._form.note(f"{where}: expected steps in order, got {sample.step} after {life[-1].step}")
        life.append(sample)
        self._new.append(sample)
        if sample.loss_bits is not None:
            self._unlike[sample.step] = sample.loss_bits

    def _held(self, words: str, is_short: bool) -> str:
        """The message for a bad line, kept back if a killed process may have left the line incomplete."""
        if not is_short:
            self._form.note(words)
        return words if is_short else ""

    # ------------------------------------------------------------------ signed losses

    def _compare_heads(self) -> None:
        head = self.run.last_head()
        if head is None or (self._head is not None and head.head.count <= self._head.head.count):
            return
        self._head = head
        try:
            records, _ = signed_records(self.run)  # (1)
        except CannotCheck as error:
            self._heads.note(str(error))
            return
        job, kept = self.run.job, set(self.run.kept()) if self._states else set()
        for checkpoint in range(self._checked, len(records)):
            record = records[checkpoint]
            self._compare(record.step, record.loss_bits)  # (2)
            if record.step in kept:
                try:
                    ring = losses_in(self.run.state(record.step, record.state_root), job.segment_steps(checkpoint))
                except VerificationError as error:
                    self._heads.note(f"the state after step {record.step} is withheld or damaged: {error}")
                    continue
                for step, bits in enumerate(ring[:-1], start=job.first_step(checkpoint)):  # (3)
                    self._compare(step, bits)
        self._checked = len(records)

    def _compare(self, step: int, signed: int) -> None:
        if (told := self._losses.get(step)) is None:
            self._signed[step] = signed
            return
        self._bound += 1
        if told != signed:
            expected, got = alarms.shown_loss(signed), alarms.shown_loss(told)
            self._heads.note(f"step {step}: expected loss {expected}, which is signed, got {got}")


def _bits(loss: object) -> int:
    """The bits of an FP32 number. Raises `ValueError` or `OverflowError` for anything else."""
    if not isinstance(loss, float):
        raise ValueError("not a number with a point")
    bits = int.from_bytes(struct.pack(">f", loss))
    if to_float(bits) != loss and not isnan(loss):
        raise ValueError("not an FP32 number")
    return bits
