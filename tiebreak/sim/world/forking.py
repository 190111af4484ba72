"""Runs of several jobs over one computation, with each step computed only once."""

from pathlib import Path

from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.job import SignedJob
from tiebreak.protocol.errors import ConfigurationError


def fork(source: RunDirectory, path: Path, agreement: SignedJob, *, upto: int) -> RunDirectory:
    """A run of another job over the same computation that starts with the checkpoints of `source` up to step `upto`.

    An honest run depends only on program, state, data and logs. A party that has computed it once need not repeat it:
    an auditor of several jobs, or a cheat that is honest up to its lie. Raises `ConfigurationError` for a job with
    other checkpoints or roundings, `VerificationError` for one of another program, state or data.
    """
    for what in ("policy", "precision", "tolerances", "steps", "checkpoint_interval"):
        if (theirs := getattr(source.job, what)) != (ours := getattr(agreement.job, what)):
            raise ConfigurationError(f"expected a job of {what} {theirs}, got {ours}")
    run = RunDirectory.create(path, agreement, source.program, source.state(0), source.data())
    published, logs = LogFiles(source), LogFiles(run)
    for checkpoint, record in enumerate(source.records()):
        if record.step <= upto:
            if agreement.job.is_logged:
                for step in range(agreement.job.first_step(checkpoint), record.step + 1):
                    logs.write(step, published.step_log(step))
                logs.sync(checkpoint)
            if source.state_path(record.step).exists():
                run.write_state(record.step, source.state(record.step))
            run.append_record(record)
    for metric in source.metrics():
        if metric["step"] <= upto:
            run.add_metric(int(metric["step"]), metric["loss"], metric["seconds"])
    return run
