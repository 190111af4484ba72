"""Captures the golden models again and prints the roots of what comes out, as one line of JSON by name."""

import json
import sys

import torch

from tests.golden.tasks import make_task
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.data.tensors import identities
from tiebreak.protocol.commitments.records import data_tree, state_tree


def roots(name: str) -> dict[str, str]:
    captured = capture_task(make_task(name))
    return {
        "program_root": captured.program.root.hex(),
        "initial_state_root": state_tree(identities(captured.state)).root.hex(),
        "data_root": data_tree(identities(captured.data)).root.hex(),
    }


def main() -> None:
    found = {name: roots(name) for name in sys.argv[1:]}
    capability = torch.backends.cpu.get_cpu_capability()
    sys.stdout.write(json.dumps({"roots": found, "capability": capability}) + "\n")


if __name__ == "__main__":
    main()
