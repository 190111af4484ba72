"""What machine and software a result comes from, for people who compare numbers."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

_CPUINFO = Path("/proc/cpuinfo")


def cpu_name() -> str:
    """The CPU's own name where the system tells it."""
    if _CPUINFO.is_file():
        for line in _CPUINFO.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> tuple[tuple[str, str], ...]:
    """Name and value of each thing worth knowing, in a fixed order."""
    return (
        ("tiebreak", version("tiebreak")),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("numpy", version("numpy")),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("cpu", cpu_name()),
        ("cores", str(usable_cores())),
        ("torch threads", str(torch.get_num_threads())),
        ("torch instruction set", torch.backends.cpu.get_cpu_capability()),
    )
