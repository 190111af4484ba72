"""Captures models of the corpus again and prints the roots of what comes out, as one line of JSON by name."""

import json
import sys

import torch

from tests.golden.make import made
from tiebreak.engine.data.tensors import identities
from tiebreak.protocol.commitments.records import data_tree, state_tree


def roots(name: str) -> dict[str, str]:
    captured = made(name).inputs
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
