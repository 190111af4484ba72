"""Makes the golden runs again: `python -m tests.golden.make [NAME...]`.

Only when what capture makes of a model, or the meaning of an instruction, is *meant* to change: every job of before has
another program root, or other results, after that.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from tests.golden.bundle import FOLDER, INTERVAL, NAMES, STEPS, Expected, write_expected, write_program
from tests.golden.tasks import make_task
from tests.golden.train import Inputs, first_record, make_run, train
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.data.tensors import identities
from tiebreak.protocol.commitments.records import data_tree, state_tree


def make(name: str) -> Expected:
    captured = capture_task(make_task(name))
    made = Inputs(captured.program, captured.state, captured.data)
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run(Path(scratch) / name, made)
        root = train(run, Arithmetic())
        records = (first_record(made), *run.records())
    expected = Expected(
        torch=torch.__version__, transformers=transformers.__version__, steps=STEPS, checkpoint_interval=INTERVAL,
        program_root=captured.program.root.hex(), initial_state_root=state_tree(identities(captured.state)).root.hex(),
        data_root=data_tree(identities(captured.data)).root.hex(), run_root=root,
        records=tuple((record.step, record.state_root.hex(), record.loss_bits) for record in records),
    )  # fmt: skip
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    write_program(folder, captured.program)
    save_file(captured.state, folder / "state.safetensors")
    save_file(captured.data, folder / "data.safetensors")
    write_expected(folder, expected)
    return expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=(*NAMES, []), default=[], metavar="NAME", help="all if none is given"
    )
    torch.set_num_threads(1)
    for name in parser.parse_args().names or NAMES:
        expected = make(name)
        sys.stdout.write(f"{name}: program {expected.program_root[:16]}, run {expected.run_root[:16]}\n")


if __name__ == "__main__":
    main()
