"""Audits runs of policy `logged` on the device of tests.engine.elsewhere, in a process of its own.

`python -m tests.engine.logged_on_another_device WIDE NARROW RUN REPLAY` prints one line of JSON: of a whole audit with
wide thresholds, and one of a segment with narrow ones. See `tests.engine.on_another_device`.
"""

import json
import sys
from pathlib import Path

import torch

from tests.engine.elsewhere import DEVICE, elsewhere
from tests.engine.logged_cases import logging_of, published
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.logged.journal import Journal
from tiebreak.engine.run.audit import audit_segments, compare, signed_records
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.train import Worker


def main() -> None:
    """Audit and print."""
    run = RunDirectory.open(Path(sys.argv[3]))
    own = RunDirectory.create(Path(sys.argv[4]), run.agreement, run.program, run.state(0), run.data())
    torch.set_num_threads(1)
    with elsewhere(worse=True) as mode:
        wide, narrow = (
            Interpreter(
                run.program,
                Arithmetic(DEVICE, precision=run.job.precision, logging=logging_of(run.job, float(threshold))),
            )
            for threshold in sys.argv[1:3]
        )
        logs = Journal(own, published(run).step_log)
        Worker(own, wide, logs=logs).work()
        parts = audit_segments(run, narrow, [2], signed_records(run)[0], logs=published(run))
    report = logs.report
    found = {
        "agrees": [compare(own, run.heads()[-1]).agrees, parts.agrees],
        "counts": [report.entries, report.needed, report.elsewhere, report.missing, parts.log.needed],
        "calls": sum(mode.calls.values()),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
