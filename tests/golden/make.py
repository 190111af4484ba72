"""Makes programs of the corpus again: `python -m tests.golden.make [NAME...]`.

Only when what capture makes of a model, or the meaning of an instruction, is *meant* to change: every job of before has
another program root, or other results, after that.
"""

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest.mock import patch

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from tests.engine.logged_cases import TOLERANCE, WIDE, Flipping
from tests.golden.bundle import FOLDER, INTERVAL, NAMES, STEPS
from tests.golden.more import RECIPES, task_of
from tests.golden.signatures import signatures, signatures_data, signatures_state
from tests.golden.tasks import make_task
from tests.golden.train import Inputs, make_run
from tests.protocol import programs as by_hand
from tests.vectors import late
from tiebreak.api.corpus.programs import DATA, EXPECTED, LOGS, PROGRAM, STATE, ExpectedRun
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.ziv import Logging
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.data.tensors import from_bytes, identities
from tiebreak.engine.logged import journal
from tiebreak.engine.logged.encoding import encode_sparse
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter, State
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.records import data_tree, state_tree
from tiebreak.protocol.program.rounding import SumKind, pack_tolerances

BY_HAND = {
    "every": (by_hand.every_kind, by_hand.initial_state, by_hand.job_data),
    "signatures": (signatures, signatures_state, signatures_data),
    "late": (late.program, lambda: late.setting().start, lambda: late.setting().data),
}
ALL = (*NAMES, *BY_HAND, *RECIPES)


@dataclass(frozen=True)
class Made:
    """A program to be run, by these terms of its job."""

    inputs: Inputs
    precision: int = 32
    tolerances: dict[SumKind, int] = field(default_factory=dict)

    def supply(self, step: int, state: State) -> Mapping[str, Tensor]:
        """Late data, of which the first index depends on the weights of the moment."""
        spec = self.inputs.program.late_spec()
        found = {name: from_bytes(late.drawn(step)[name], *kind) for name, kind in spec.items()}
        if found:
            found["ids"][0] = state["w"].argmax()
        return found


def made(name: str) -> Made:
    if name in BY_HAND:
        program, state, data = (part() for part in BY_HAND[name])
        specs = ((program.state_spec(), state), (program.data_spec(), data))
        tensors = ({n: from_bytes(held[n], *kind) for n, kind in spec.items()} for spec, held in specs)
        return Made(Inputs(program, *tensors), tolerances=dict.fromkeys(SumKind, TOLERANCE) if name == "late" else {})
    recipe = RECIPES[name]() if name in RECIPES else None
    captured = capture_task(make_task(name) if recipe is None else task_of(name, recipe))
    inputs = Inputs(captured.program, captured.state, captured.data)
    if recipe is None:
        return Made(inputs)
    return Made(inputs, recipe.precision, dict.fromkeys(SumKind, TOLERANCE) if recipe.logged else {})


def train(run: RunDirectory, found: Made) -> bytes:
    """Trains a run. Under policy `logged` each sum near a tie is rounded the other way, so that the logs decide."""
    precision, tolerances = run.job.precision, found.tolerances
    threshold = WIDE * 2 ** (32 - precision)
    logging = Logging(thresholds=dict.fromkeys(SumKind, threshold), tolerances=tolerances) if tolerances else None
    interpreter = Interpreter(run.program, Arithmetic(precision=precision, logging=logging))
    with patch.object(journal, "Recorder", Flipping), patch.object(Flipping, "precision", precision):
        logs = journal.LogsInProgress.of(run, supply=found.supply)
        return Worker(run, interpreter, stop_if_not_finite=False, logs=logs).work()


def first_record(found: Made, run: RunDirectory) -> tuple[int, str, int]:
    """The record of step 1; under policy `logged`, of a run of the first step alone."""
    with tempfile.TemporaryDirectory() as scratch:
        terms = {"precision": found.precision, "tolerances": run.job.tolerances}
        one = make_run(Path(scratch) / "one", found.inputs, steps=1, checkpoint_interval=1, **terms)
        train(one, found)
        record = one.record_at(0)
    return 1, record.state_root.hex(), record.loss_bits


def compressed(data: bytes) -> bytes:
    """A file of gzip, whose bytes depend on the data alone."""
    return gzip.compress(data, 9, mtime=0)


def logs(run: RunDirectory) -> bytes:
    """The logs of all steps as the corpus has them."""
    files, steps = LogFiles(run), range(1, run.job.steps + 1)
    encoded = [encode_sparse(files.step_log(step), run.program, step) for step in steps]
    return compressed(b"".join(len(log).to_bytes(4, "big") + log for log in encoded))


def encode(expected: ExpectedRun) -> bytes:
    """The file `expected.json`: readable, one line for each record."""
    document = asdict(expected)
    records = ",\n  ".join(json.dumps(record) for record in document.pop("records"))
    text = json.dumps(document, indent=1).removesuffix("\n}")
    return f'{text},\n "records": [\n  {records}\n ]\n}}\n'.encode()


def make(name: str) -> ExpectedRun:
    found, folder = made(name), FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    inputs, tolerances = found.inputs, pack_tolerances(found.tolerances)
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run(Path(scratch) / name, inputs, precision=found.precision, tolerances=tolerances)
        root = train(run, found)
        records = ((r.step, r.state_root.hex(), r.loss_bits) for r in run.records())
        expected = ExpectedRun(
            torch=torch.__version__, transformers=transformers.__version__, steps=STEPS, checkpoint_interval=INTERVAL,
            precision=found.precision, tolerances=tolerances, program_root=inputs.program.root.hex(),
            initial_state_root=state_tree(identities(inputs.state)).root.hex(),
            data_root=data_tree(identities(inputs.data)).root.hex(), run_root=root.hex(),
            records=(first_record(found, run), *records),
        )  # fmt: skip
        if tolerances:
            (folder / LOGS).write_bytes(logs(run))
    (folder / PROGRAM).write_bytes(compressed(inputs.program.encode()))
    save_file(inputs.state, folder / STATE)
    save_file(inputs.data, folder / DATA)
    (folder / EXPECTED).write_bytes(encode(expected))
    return expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=(*ALL, []), default=[], metavar="NAME", help="all if none is given")
    torch.set_num_threads(1)
    for name in parser.parse_args().names or ALL:
        expected = make(name)
        sys.stdout.write(f"{name}: program {expected.program_root[:16]}, run {expected.run_root[:16]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
