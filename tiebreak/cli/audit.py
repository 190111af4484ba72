"""`tiebreak audit`: replay a run, or a part of it, and compare.

Exit codes: 0 everything that was replayed agrees; 2 the trainer committed what the program does not produce; 3 the
audit could not be made, for what it needs of the run is withheld or damaged; 1 what was asked makes no sense here.
"""

import json
import math
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from tiebreak.api.running import make_interpreter
from tiebreak.cli.console import training_progress
from tiebreak.cli.options import device_option, output_option, permute_option, threads_option
from tiebreak.cli.progress import Tally
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.following import LogReport
from tiebreak.engine.logged.policy import LoggedPolicy
from tiebreak.engine.run.audit import (
    SegmentAudit,
    audit_segments,
    compare,
    detection_probability,
    draw_segments,
    signed_records,
    steps_to_replay,
)
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.train import Progress, Worker
from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, TiebreakError, VerificationError

COULD_NOT_CHECK: Final = 3
SHOWN_FINDINGS: Final = 5
SHARES: Final = (0.01, 0.1)
"""Of all segments: for how many false ones the chance of detection is printed, beside a single one."""


class AuditFailure(VerificationError):
    """The replay contradicts what the trainer signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """How to compute; none of it changes a bit.

    policy: the auditor's own thresholds, never the trainer's: with ones that are too small it would err, and accuse.
    """

    threads: int | None
    permute: int | None
    device: str
    policy: Path | None

    def interpreter(self, run: RunDirectory) -> Interpreter:
        """One for the run's program, on a qualified device."""
        return make_interpreter(
            run.program,
            job=run.job,
            policy=None if self.policy is None else LoggedPolicy.load(self.policy),
            threads=self.threads,
            permute=self.permute,
            device=self.device,
        )


policy_option: Final = click.option(
    "--policy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Policy `logged`: your own thresholds (see `tiebreak calibrate`).  [default: the proven bounds]",
)


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@output_option("replay", "The auditor's own run directory of a whole audit; one that exists is resumed.")
@click.option("--segment", type=click.IntRange(0), help="Check only the steps up to this checkpoint (from 0).")
@click.option("--from-step", type=click.IntRange(1), help="Check the segments from the one with this step on.")
@click.option("--to-step", type=click.IntRange(1), help="Check the segments up to the one with this step.")
@click.option("--sample", type=click.IntRange(1), help="Check so many segments, drawn at random.")
@click.option("--seed", help="Of the draw, to repeat one. Secret until the head is signed.  [default: a new one]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of words.")
@policy_option
@threads_option
@permute_option
@device_option
def audit(
    run: Path, output: Path, segment: int | None, from_step: int | None, to_step: int | None, sample: int | None,
    seed: str | None, as_json: bool, policy: Path | None, threads: int | None, permute: int | None, device: str,
) -> int:  # fmt: skip
    """Replay the trainer's RUN and compare its signed heads with what the program really produces.

    A whole audit needs only the job, the program, the data and the initial state of RUN, each checked against the job's
    roots; nothing else of it is believed. Its replay is kept, for a dispute needs it.

    --segment, --from-step/--to-step and --sample check parts of it: each segment from the nearest checkpoint that the
    trainer kept before it, which must hash to what is signed, to the record at its end. A sample finds a cheat with the
    probability that is printed, if it was drawn after the head was signed.

    Under policy `logged` the trainer's logs in RUN are followed, once they hash to what is signed.

    Exit codes: 0 agrees, 2 fraud, 3 could not be checked (withheld or damaged), 1 asked for what is not there.
    """
    machine = Machine(threads=threads, permute=permute, device=device, policy=policy)
    report: dict[str, Any] = {"run": str(run)}
    try:
        _check_choice(segment, from_step, to_step, sample, seed)
        trainer = RunDirectory.open(run)
        report["job"] = trainer.job.id.hex()
        if segment is None and from_step is None and to_step is None and sample is None:
            lines = _whole(trainer, output, machine, report)
        else:
            lines = _parts(trainer, segment, (from_step, to_step), sample, seed, machine, report)
    except AuditFailure as failure:
        return _end(report, "fraud", as_json, failure, 2)
    except (CannotCheck, VerificationError) as error:
        return _end(report, "could not check", as_json, error, COULD_NOT_CHECK)
    report["verdict"] = "agrees"
    click.echo(json.dumps(report) if as_json else "\n".join(lines))
    return 0


def _check_choice(
    segment: int | None, from_step: int | None, to_step: int | None, sample: int | None, seed: str | None
) -> None:
    chosen = [segment is not None, from_step is not None or to_step is not None, sample is not None]
    if sum(chosen) > 1:
        raise ConfigurationError("expected one of --segment, --from-step/--to-step and --sample, got several")
    if seed is not None and sample is None:
        raise ConfigurationError("expected --seed together with --sample, got it alone")


def _end(report: dict[str, Any], verdict: str, as_json: bool, error: TiebreakError, code: int) -> int:
    reason = " ".join(str(error).split())
    if as_json:
        click.echo(json.dumps(report | {"verdict": verdict, "reason": reason}))
    click.echo(f"{type(error).__name__}: {reason}", err=True)
    return code


def _whole(trainer: RunDirectory, output: Path, machine: Machine, report: dict[str, Any]) -> list[str]:
    heads = trainer.heads()
    if not heads:
        raise ConfigurationError(f"{trainer.path}: expected at least one signed head, got none; nothing to audit yet")
    replay = open_replay(trainer, output)
    last = replay.job.last_step(heads[-1].head.count - 1)
    logs = CommittedLogs(trainer, signed_records(trainer)[0].__getitem__) if trainer.job.is_logged else None
    root, log = _replay_whole(replay, last, machine, logs)
    comparison = compare(replay, heads[-1])
    report |= _of_head(heads[-1]) | {"kind": "whole", "steps": [1, last], "replayed_root": comparison.replayed.hex()}
    if trainer.job.is_logged:
        report["log"] = _of_log(log)
    if not comparison.agrees:
        raise AuditFailure(
            f"expected run root {comparison.replayed.hex()} after {comparison.count} checkpoints, got "
            f"{comparison.committed.hex()}, signed by 0x{replay.job.trainer.hex()}; see `tiebreak dispute`"
        )
    lines = _log_words(log) if trainer.job.is_logged else []
    return [f"run root {root}", *lines, f"agrees: {comparison.count} checkpoints, {last} steps"]


def _replay_whole(
    replay: RunDirectory, last: int, machine: Machine, logs: CommittedLogs | None
) -> tuple[str, LogReport]:
    with training_progress(Console(stderr=True), "replaying", replay.job.steps, replay.last_complete()) as on_step:

        def told(progress: Progress) -> None:
            tally.step(progress)
            on_step(progress.step, progress.loss, tally.words())

        interpreter, tally = machine.interpreter(replay), Tally()
        worker = Worker(replay, interpreter, on_progress=told, on_commit=tally.commit, logs=logs)
        return worker.work(last).hex(), worker.log_report


def _of_head(head: SignedHead) -> dict[str, Any]:
    return {"head": {"count": head.head.count, "run_root": head.head.run_root.hex()}}


def open_replay(trainer: RunDirectory, folder: Path) -> RunDirectory:
    """The auditor's run of the same job, made from the job's own inputs if it is not there yet."""
    if (folder / "job.bin").exists():
        replay = RunDirectory.open(folder)
        if replay.job != trainer.job:
            raise ConfigurationError(f"{folder}: expected a replay of job {trainer.job.id.hex()}, got another job's")
        return replay
    return RunDirectory.create(folder, trainer.agreement, trainer.program, trainer.state(0), trainer.data())


def _parts(
    trainer: RunDirectory, segment: int | None, steps: tuple[int | None, int | None], sample: int | None,
    seed: str | None, machine: Machine, report: dict[str, Any],
) -> list[str]:  # fmt: skip
    records, head = signed_records(trainer)
    lines = []
    if sample is not None:
        seed = secrets.token_hex(16) if seed is None else seed
        chosen: tuple[int, ...] = draw_segments(len(records), sample, seed.encode(), head.head.run_root)
        chances = _chances(len(records), sample)
        report |= {"seed": seed, "detection": [{"false": x, "probability": p} for x, p in chances]}
        lines = [f"sample     {sample} of {len(records)} segments, drawn from the seed {seed} and the signed root"]
        lines.append(f"detection  {'; '.join(f'{_false(x)}: {100 * p:.3g}%' for x, p in chances)}")
    else:
        chosen = (segment,) if segment is not None else segments_of(trainer, len(records), *steps)
    report |= _of_head(head) | {"kind": "segments" if sample is None else "sample", "wanted": list(chosen)}
    done = _replay(trainer, chosen, machine, records)
    report |= _of_audit(done)
    if trainer.job.is_logged:
        report["log"] = _of_log(done.log)
        lines += _log_words(done.log)
    for step in done.refused:
        click.echo(f"warning: the state after step {step} is not what was committed; not used", err=True)
    if (fraud := done.fraud) is not None:
        raise AuditFailure(
            f"steps {fraud.first_step} to {fraud.last_step}: expected record {fraud.replayed.digest.hex()}, got "
            f"{fraud.committed.digest.hex()}, signed by 0x{trainer.job.trainer.hex()}; see a whole `tiebreak audit`"
        )
    return [*lines, *_words(done)]


def segments_of(trainer: RunDirectory, count: int, first: int | None, last: int | None) -> tuple[int, ...]:
    """The signed segments that hold the steps `first` (default: the first) to `last` (default: the last signed)."""
    job = trainer.job
    signed = job.last_step(count - 1)
    first, last = 1 if first is None else first, signed if last is None else last
    if not 1 <= first <= last <= signed:
        raise ConfigurationError(f"expected steps within 1 to {signed}, which are signed, got {first} to {last}")
    return tuple(range(job.checkpoint_of(first), job.checkpoint_of(last) + 1))


def _replay(trainer: RunDirectory, chosen: tuple[int, ...], machine: Machine, records: list[Any]) -> SegmentAudit:
    if chosen[-1] >= len(records):
        raise ConfigurationError(f"expected a checkpoint below {len(records)}, got {chosen[-1]}")
    interpreter, total = machine.interpreter(trainer), steps_to_replay(trainer, chosen)
    started = time.perf_counter()
    with training_progress(Console(stderr=True), "replaying", total) as on_step:

        def told(done: int, loss: float) -> None:
            rate = done / (time.perf_counter() - started)
            on_step(done, loss, f"{rate:.3g} steps/s, {max(0, total - done) / rate:.0f} s left")

        return audit_segments(trainer, interpreter, chosen, records, told)


def _chances(total: int, sample: int) -> list[tuple[int, float]]:
    counts = dict.fromkeys([1, *(max(1, math.ceil(share * total)) for share in SHARES)])
    return [(count, detection_probability(total, sample, count)) for count in counts]


def _false(count: int) -> str:
    return "one false segment" if count == 1 else f"{count} false segments"


def _of_audit(done: SegmentAudit) -> dict[str, Any]:
    return {
        "checked": [[r.checkpoint, r.first_step, r.last_step] for r in done.checked],
        "not_checked": done.total - len(done.checked),
        "started_after_steps": done.starts,
        "refused_states": done.refused,
        "steps_replayed": done.steps,
        "seconds": round(done.seconds, 3),
    }


def _of_log(log: LogReport) -> dict[str, Any]:
    counts = {"entries": log.entries, "needed": log.needed, "elsewhere": log.elsewhere, "missing": log.missing}
    return {"steps": log.steps, **counts, "findings": [str(finding) for finding in log.findings]}


def _log_words(log: LogReport) -> list[str]:
    """What following the logs came to; findings convict nobody, so they are told beside the verdict."""
    lines = [f"logs       {log.entries} entries in {log.steps} steps; {log.needed} were needed here"]
    for count, what in ((log.elsewhere, "have no effect"), (log.missing, "are missing and were computed exactly")):
        if count:
            lines.append(f"           {count} {what}")
    return [*lines, *(f"           {finding}" for finding in log.findings[:SHOWN_FINDINGS])]


def _words(done: SegmentAudit) -> list[str]:
    """What was checked, and what was not."""
    spans: list[list[int]] = []
    for report in done.checked:
        if spans and spans[-1][1] + 1 == report.first_step:
            spans[-1][1] = report.last_step
        else:
            spans.append([report.first_step, report.last_step])
    rate = f", {done.steps / done.seconds:.3g} a second" if done.seconds else ""
    left = done.total - len(done.checked)
    return [
        f"replayed   {done.steps} steps{rate}, from the states after steps {', '.join(map(str, done.starts))}",
        f"unchecked  {left} of {done.total} signed segments" if left else "unchecked  nothing that is signed",
        f"agrees: steps {', '.join(f'{first} to {last}' for first, last in spans)}",
    ]
