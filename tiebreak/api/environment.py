"""The machine and software that produced a result, for people who compare numbers."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from tiebreak.engine.arithmetic import elementwise, reduce, scatter
from tiebreak.engine.data import hashing
from tiebreak.engine.native import EMULATION, enabled

_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A compiled accelerator, or the reason why its pure twin runs instead."""

    name: str
    compiled: bool
    detail: str


def cpu_name() -> str:
    """The CPU's marketing name, where the system reports it."""
    if _CPUINFO.is_file():
        for line in _CPUINFO.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> tuple[tuple[str, str], ...]:
    """Name and value of each relevant property, in a fixed order."""
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


def kernels() -> tuple[Kernel, ...]:
    """Reports each compiled accelerator, and compiles those that have not been compiled yet."""
    kernels = (("reduce", reduce), ("scatter", scatter), ("elementwise", elementwise))
    found = [
        Kernel(name=name, compiled=(build := module.build()).library is not None, detail=build.reason)
        for name, module in kernels
    ]
    hasher, reason = hashing.kernel(), hashing.build().reason
    if hasher is not None:
        reason = f"{reason}, {hasher.implementation}"
    elif enabled() and reason.startswith("compiled"):
        reason = "does not compute what its twin computes"
    return (*found, Kernel(name="hasher", compiled=hasher is not None, detail=reason))


def describe_cuda() -> tuple[tuple[str, str], ...]:
    """Everything that decides how a CUDA device computes; empty if there is none."""
    if not torch.cuda.is_available():
        return ()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return (
        *((f"cuda:{i}", name) for i, name in enumerate(names)),
        ("cuda", str(torch.version.cuda)),
        ("cuda driver", cuda_driver()),
        ("cuda sums", f"Triton {version('triton')}" if reduce.runs_on(torch.device("cuda"), 1) else "torch"),
        # This affects FP32 products only; the engine multiplies in FP64.
        ("TF32 in FP32 products", "on" if torch.backends.cuda.matmul.allow_tf32 else "off"),
        *(
            (name, value)
            for name in (EMULATION, "CUBLAS_EMULATION_STRATEGY")
            if (value := os.environ.get(name)) is not None
        ),
    )


def cuda_driver() -> str:
    """The version of the kernel driver, as Linux reports it."""
    file = Path("/sys/module/nvidia/version")
    return file.read_text().strip() if file.is_file() else "unknown"
