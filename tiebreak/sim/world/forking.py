"""Runs of several jobs over one computation, with each step computed only once."""

from pathlib import Path

from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.job import Job, SignedJob
from tiebreak.protocol.errors import ConfigurationError


def fork(source: RunDirectory, path: Path, agreement: SignedJob, *, upto: int) -> RunDirectory:
    """A run of another job over the same computation that starts with the checkpoints of `source` up to step `upto`.

    An honest run depends only on program, state, data and logs. A party that has computed it once need not repeat it:
    an auditor of several jobs, or a cheat that is honest up to its lie. Raises `ConfigurationError` for a job with
    other checkpoints or roundings, `VerificationError` for one of another program, state or data.
    """
    if (rules := _rules(source.job)) != _rules(agreement.job):
        raise ConfigurationError(
            f"expected a job of policy, precision, tolerances {rules}, got {_rules(agreement.job)}"
        )
    if (source.job.steps, source.job.checkpoint_interval) != (agreement.job.steps, agreement.job.checkpoint_interval):
        raise ConfigurationError(
            f"expected a job of {source.job.steps} steps with a checkpoint every {source.job.checkpoint_interval}, got "
            f"{agreement.job.steps} and {agreement.job.checkpoint_interval}"
        )
    run = RunDirectory.create(path, agreement, source.program, source.state(0), source.data())
    theirs, logs = LogFiles(source), LogFiles(run)
    for checkpoint, record in enumerate(source.records()):
        if record.step <= upto:
            if agreement.job.is_logged:
                for step in range(agreement.job.first_step(checkpoint), record.step + 1):
                    logs.write(step, theirs.step_log(step))
                logs.sync(checkpoint)
            if source.state_path(record.step).exists():
                run.write_state(record.step, source.state(record.step))
            run.append_record(record)
    for metric in source.metrics():
        if metric["step"] <= upto:
            run.add_metric(int(metric["step"]), metric["loss"], metric["seconds"])
    return run


def _rules(job: Job) -> tuple[int, int, int]:
    return job.policy, job.precision, job.tolerances
