"""Shows that plain FP32 PyTorch forks: runs that differ only in threads and instruction set end in different bits."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from safetensors.torch import save_file
from torch import Tensor

from tiebreak.lab.demo.results import PlainResult
from tiebreak.protocol.errors import StateError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSettings:
    """threads: torch's. capability: the value of ATEN_CPU_CAPABILITY, or None for the machine's own."""

    threads: int
    capability: str | None = None


SETTINGS: Final = (
    PlainSettings(threads=1),
    PlainSettings(threads=2),
    PlainSettings(threads=1, capability="default"),
)
"""The settings to compare by default."""


def plain_run(name: str, state_file: Path, settings: PlainSettings, steps: int | None = None) -> PlainResult:
    """Trains task `name` in its own process, from the state in a file.

    Raises `StateError` with the last output of the process if it fails.
    """
    command = [sys.executable, "-m", "tiebreak.lab.demo.plain", name, "--state", str(state_file)]
    command += ["--threads", str(settings.threads)]
    if steps is not None:
        command += ["--steps", str(steps)]
    environment = {k: v for k, v in os.environ.items() if k not in ("ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS")}
    if settings.capability is not None:
        environment["ATEN_CPU_CAPABILITY"] = settings.capability
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        raise StateError(f"expected plain PyTorch to train {name}, got exit code {done.returncode}: {last}")
    run = json.loads(done.stdout)
    words = f"{run['threads']} thread{'s' if run['threads'] > 1 else ''}, {run['capability']}"
    return PlainResult(job=name, settings=words, state_sha256=run["state_sha256"], final_loss=run["losses"][-1])


def plain_runs(
    name: str, state: dict[str, Tensor], settings: Sequence[PlainSettings] = SETTINGS, steps: int | None = None
) -> tuple[PlainResult, ...]:
    """Does one run for each of the settings, all from the same state bytes (named as in the model)."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "initial.safetensors"
        save_file(state, file)
        return tuple(plain_run(name, file, each, steps) for each in settings)
