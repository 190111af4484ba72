"""Qualifies the device of tests.engine.elsewhere and trains golden runs on it, in a process of its own.

`python -m tests.engine.on_another_device DIRECTORY STEPS NAME...` prints one line of JSON. A process of its own,
because torch cannot forget a device that it was told of.
"""

import json
import sys
from pathlib import Path
from unittest import mock

import torch

from tests.engine.elsewhere import DEVICE, elsewhere
from tests.golden.bundle import load
from tests.golden.train import inputs, make_run, train
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.reduce import pure as sums
from tiebreak.engine.arithmetic.reduce.pure import _matmul
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.placement import place
from tiebreak.engine.run.qualify import qualify
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


def main() -> None:
    """Run and print."""
    directory, steps, names = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    with elsewhere(worse=True) as mode:
        cases = qualify(Arithmetic(DEVICE)).cases
        refused = refusal_of_emulation()
        runs = {name: make_run(directory / name, inputs(name)) for name in names}
        undecided = {}
        for name, run in runs.items():
            arithmetic = Arithmetic(DEVICE)
            train(run, arithmetic, steps)
            undecided[name] = sum(counts.undecided for counts in arithmetic.stats.kinds.values())
        firsts = {name: first_with_tables_elsewhere(name) for name in names}
    found = {
        "cases": cases,
        "refused": refused,
        "calls": sum(mode.calls.values()),
        "undecided": undecided,
        "firsts": firsts,
        "records": {
            name: [(r.step, r.state_root.hex(), r.loss_bits) for r in run.records()] for name, run in runs.items()
        },
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
