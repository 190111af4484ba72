"""Peak memory of training steps, each party in a process of its own: `python -m benchmarks.peak WHO WORKLOAD|BUNDLE`.

Prints bytes: the greatest resident size while making the model and stepping, less the resident size before. The exact
parties load a captured bundle, as trainers and auditors do.
"""

import resource
import subprocess
import sys
from pathlib import Path
from typing import Final

import torch

from benchmarks.steps import ExactStep, eager_step
from benchmarks.workloads import STEPS, WORKLOADS
from engine.compile import Compiled
from tiebreak.bundle import load_bundle

EAGER: Final = {"eager FP32": torch.float32, "eager FP64": torch.float64}
_STEPS: Final = 3


def resident() -> int:
    """Bytes of this process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak_of(who: str, source: str) -> int:
    """Peak bytes of a party in this process. `source`: a workload's name, or for the exact parties a bundle."""
    before = resident()
    if who in EAGER:
        step = eager_step(WORKLOADS[source](), EAGER[who], keep=False)
    else:
        bundle = load_bundle(Path(source))
        compiled = Compiled(bundle.program, bundle.state, bundle.data)
        del bundle
        step = ExactStep(compiled, STEPS, permute=1 if who == "auditor" else None)
        del compiled
    for _ in range(_STEPS):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def measure(who: str, source: str, threads: int) -> int:
    """`peak_of` in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.peak", who, source, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    print(peak_of(sys.argv[1], sys.argv[2]))
