"""Trains and audits on the device of tests.engine.elsewhere, in a process of its own.

`python -m tests.engine.on_another_device reach DIRECTORY STEPS NAME...`, or `follow RUN REPLAY WIDE NARROW`, prints one
line of JSON. A process of its own, because torch cannot forget a device that it was told of.
"""

import json
import sys
from pathlib import Path
from unittest import mock

import torch

from tests.engine.elsewhere import DEVICE, elsewhere
from tests.engine.logged_cases import logging_of, published
from tests.golden.bundle import load
from tests.golden.train import inputs, make_run, train
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plain import sums
from tiebreak.engine.arithmetic.plain.sums import _matmul
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.logged.journal import LogsInProgress
from tiebreak.engine.run.audit import SegmentAuditor
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter, place
from tiebreak.engine.run.qualify import qualify
from tiebreak.engine.run.segments import compare, signed_records
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.records import state_tree
from tiebreak.protocol.errors import ConfigurationError


def emulated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """FP64 products as from smaller formats: a few bits short, and only where they are large."""
    right = _matmul(a, b)
    large = a.numel() > 1 << 16
    return right * (1 + 2.0**-36) if large else right


def refusal_of_emulation() -> str:
    """What qualification says of a device that emulates FP64 in large products."""
    with mock.patch.object(sums, "_matmul", emulated):
        try:
            qualify(Arithmetic(DEVICE))
        except ConfigurationError as error:
            return str(error)
    return ""


def first_with_tables_elsewhere(name: str) -> str:
    """The state root after step 1, where the device has no room for the datasets: they stay on the CPU."""
    made, machine = inputs(name), Interpreter(load(name).program, Arithmetic(DEVICE))
    data = place(made.program, made.data, DEVICE, room=0)
    assert {tensor.device.type for tensor in data.values()} == {"cpu", DEVICE.type}
    return state_tree(identities(machine.step(1, machine.to_device(made.state), data).state)).root.hex()


def follow(path: str, own_path: str, wide: str, narrow: str) -> dict[str, object]:
    """Audits a run of policy `logged`: all of it with wide thresholds, and one segment with narrow ones."""
    run = RunDirectory.open(Path(path))
    own = RunDirectory.create(Path(own_path), run.agreement, run.program, run.state(0), run.data())

    def machine(threshold: str) -> Interpreter:
        logging = logging_of(run.job, float(threshold))
        return Interpreter(run.program, Arithmetic(DEVICE, precision=run.job.precision, logging=logging))

    with elsewhere(worse=True) as mode:
        logs = LogsInProgress(own, published(run).step_log)
        Worker(own, machine(wide), logs=logs).work()
        parts = SegmentAuditor(run, machine(narrow), signed_records(run)[0]).audit([2], logs=published(run))
    report = logs.report
    return {
        "agrees": [compare(own, run.heads()[-1]).agrees, parts.agrees],
        "counts": [report.entries, report.needed, report.elsewhere, report.missing, parts.log.needed],
        "calls": sum(mode.calls.values()),
    }


def reach(directory: str, count: str, *names: str) -> dict[str, object]:
    """Qualifies, and trains golden runs for some steps."""
    steps = int(count)
    with elsewhere(worse=True) as mode:
        cases = qualify(Arithmetic(DEVICE)).cases
        refused = refusal_of_emulation()
        runs = {name: make_run(Path(directory) / name, inputs(name)) for name in names}
        undecided = {}
        for name, run in runs.items():
            arithmetic = Arithmetic(DEVICE)
            train(run, arithmetic, steps)
            undecided[name] = sum(counts.undecided for counts in arithmetic.stats.kinds.values())
        firsts = {name: first_with_tables_elsewhere(name) for name in names}
    return {
        "cases": cases,
        "refused": refused,
        "calls": sum(mode.calls.values()),
        "undecided": undecided,
        "firsts": firsts,
        "records": {
            name: [(r.step, r.state_root.hex(), r.loss_bits) for r in run.records()] for name, run in runs.items()
        },
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps({"follow": follow, "reach": reach}[sys.argv[1]](*sys.argv[2:])) + "\n")
