"""Captures the golden runs and the zoo's models: `python -m tests.golden.program_roots` prints program roots."""

import json
import sys

import torch
import transformers

from tests.engine.lowering_bench import make_task
from tests.engine.models.test_zoo import ZOO, loss
from tests.golden import tasks
from tests.golden.bundle import NAMES
from tiebreak.engine.capture.captured import capture_task


def root(name: str) -> str:
    """The program root of a class of the zoo, or of a golden run."""
    if name in NAMES:
        return capture_task(tasks.make_task(name)).program.root.hex()
    torch.manual_seed(0)
    kind, (data, settings) = getattr(transformers, name), ZOO[name]
    model = kind(kind.config_class(**settings)).train()
    return capture_task(make_task(model, data(), rate=0.1, loss=loss)).program.root.hex()


if __name__ == "__main__":
    found = {"torch": torch.__version__, "roots": {name: root(name) for name in (*NAMES, *ZOO)}}
    sys.stdout.write(json.dumps(found) + "\n")
