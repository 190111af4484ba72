"""Trains golden runs in a process of its own, so that threads, instruction set and kernels can be chosen for it.

    ATEN_CPU_CAPABILITY=default TIEBREAK_NATIVE=0 python -m tests.golden.train DIRECTORY NAME... --threads 2 --permute 7

makes a run of each in DIRECTORY/NAME, or goes on with the one that is there, and prints one line of JSON.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.golden.bundle import INTERVAL, STEPS, load
from tests.protocol.runs import TRAINER
from tiebreak.api.corpus.corpus_runs import inputs as corpus_inputs
from tiebreak.api.corpus.corpus_runs import new_run
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import builds
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter, State
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.program.program import Program


@dataclass(frozen=True)
class Inputs:
    """A program with its initial state and data; `capture.compile`, which captures, is not imported for it."""

    program: Program
    state: State
    data: State


def inputs(name: str) -> Inputs:
    found = load(name)
    return Inputs(found.program, *corpus_inputs(found))


def make_run(path: Path, made: Inputs, **terms: int) -> RunDirectory:
    """A run of `TRAINER`, who signs its heads; terms: other than those of the golden runs."""
    settings = {"steps": STEPS, "checkpoint_interval": INTERVAL, "precision": 32, "tolerances": 0} | terms
    return new_run(path, made.program, made.state, made.data, trainer=TRAINER, **settings)


def train(run: RunDirectory, arithmetic: Arithmetic, until: int | None = None) -> str:
    """Runs to a step (default: the end); the run root so far, in hex."""
    return Worker(run, Interpreter(run.program, arithmetic), key=TRAINER).work(until).hex()


def first_record(made: Inputs, arithmetic: Arithmetic | None = None) -> StepRecord:
    machine = Interpreter(made.program, Arithmetic() if arithmetic is None else arithmetic)
    result = machine.step(1, machine.to_device(made.state), machine.to_device(made.data))
    return make_record(1, result.state, result.loss_bits)


def main() -> None:
    """Train and print `roots` by name, the steps from which the runs went on, and the settings that took effect."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--permute", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    roots, begun = {}, {}
    for name in arguments.names:
        path = arguments.directory / name
        run = RunDirectory.open(path) if path.exists() else make_run(path, inputs(name))
        begun[name] = run.last_complete()
        roots[name] = train(run, Arithmetic(permute=arguments.permute))
    found = {
        "roots": roots,
        "begun": begun,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "compiled": [build.library is not None for build in builds().values()],
        "captured": [module for module in ("transformers", "tiebreak.engine.capture") if module in sys.modules],
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
