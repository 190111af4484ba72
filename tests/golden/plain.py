"""The golden models in plain FP32 PyTorch, in a process of its own: `python -m tests.golden.plain NAME... --threads 2`.

The same weights and examples as bytes, the same steps; dropout is off, so that nothing but rounding can differ. Prints
one line of JSON with the SHA-256 of each final state.
"""

import argparse
import json
import sys

import torch

from tests.golden.tasks import make_task
from tiebreak.demo.tasks.plain import train


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+")
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    states = {name: train(make_task(name, dropout=False))[1].state_sha256 for name in arguments.names}
    found = {
        "states": states,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
