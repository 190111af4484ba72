"""The machine and software that produced a result, for people who compare numbers, and the mark of this user's work."""

import hmac
import os
import platform
import secrets
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch

from tiebreak.engine import native, system
from tiebreak.engine.arithmetic.backend import builds, launches
from tiebreak.engine.data import hashing
from tiebreak.engine.data.disk import Folder, storing

LIBRARIES: Final = ("transformers", "tokenizers", "peft")
"""Libraries that make what is captured: with other versions the program of the same settings may be another one."""
_KEY = "own-work.key"
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelStatus:
    """A compiled accelerator, or the reason why its pure twin runs instead."""

    name: str
    compiled: bool
    detail: str


def cpu_name() -> str:
    """The CPU's marketing name, where the system reports it."""
    named = system.processor_line("model name").partition(":")[2].strip()
    return named or platform.processor() or platform.machine()


def describe() -> tuple[tuple[str, str], ...]:
    """Name and value of each relevant property, in a fixed order."""
    own = "not installed"
    with suppress(PackageNotFoundError):  # of a plain copy of the sources
        own = version("tiebreak")
    return (
        ("tiebreak", own),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("numpy", version("numpy")),
        *((name, version(name)) for name in LIBRARIES if find_spec(name) is not None),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("cpu", cpu_name()),
        ("cores", str(system.usable_cores())),
        ("torch threads", str(torch.get_num_threads())),
        ("torch instruction set", torch.backends.cpu.get_cpu_capability()),
    )


def kernels() -> tuple[KernelStatus, ...]:
    """Reports each compiled accelerator, and compiles those that have not been compiled yet."""
    found = [
        KernelStatus(name=name, compiled=build.library is not None, detail=build.reason)
        for name, build in builds().items()
    ]
    hasher, reason = hashing.kernel(), hashing.build().reason
    if hasher is not None:
        reason = f"{reason}, {hasher.implementation}"
    elif native.enabled() and reason.startswith("compiled"):
        reason = "does not compute what its twin computes"
    return (*found, KernelStatus(name="hasher", compiled=hasher is not None, detail=reason))


def describe_cuda() -> tuple[tuple[str, str], ...]:
    """Properties and versions that determine how a CUDA device computes; empty if there is none."""
    if not torch.cuda.is_available():
        return ()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return (
        *((f"cuda:{i}", name) for i, name in enumerate(names)),
        ("cuda", str(torch.version.cuda)),
        ("cuda driver", system.driver_version()),
        ("cuda sums", f"Triton {version('triton')}" if launches(torch.device("cuda")) else "torch"),
        # This affects FP32 products only; the engine multiplies in FP64.
        ("TF32 in FP32 products", "on" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "off"),
        *(
            (name, value)
            for name in (native.EMULATION, "CUBLAS_EMULATION_STRATEGY")
            if (value := os.environ.get(name)) is not None
        ),
    )


def own_folder() -> Path:
    """The user's state folder: `$XDG_STATE_HOME/tiebreak`, else `~/.local/state/tiebreak`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "tiebreak"


def own_mark(of: str, path: Path) -> str:
    """The HMAC-SHA256, in hex, of a text and a path under a secret of this user.

    Work that can be resumed carries it, so that work planted by others is not resumed. The secret is in `own_folder`,
    made at the first call. Raises `StorageError` if it cannot be kept there.
    """
    folder = own_folder()
    with storing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with Folder(folder) as files:
            if not files.holds(_KEY):
                new = f"{_KEY}.{os.getpid()}"
                files.write(new, secrets.token_bytes(_KEY_BYTES))
                with suppress(FileExistsError):  # another process was faster
                    os.link(folder / new, folder / _KEY)
                files.remove(new)
            secret = files.read(_KEY, _KEY_BYTES)
    return hmac.new(secret, f"{of}\0{path.resolve()}".encode(errors="surrogateescape"), "sha256").hexdigest()
