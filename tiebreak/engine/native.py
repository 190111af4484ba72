"""Compiled accelerators: optional C kernels, of the wheel or built on this machine on first use and cached by content.

Each kernel is one C file beside the Python module that uses it, with headers there or in the folder above. It has a
pure twin that computes the same bytes, and that runs if there is no library or `TIEBREAK_NATIVE=0` is set. The library
is that of the wheel (`prebuilt`) unless `CC` is set, the wheel has none for this processor, or the system cannot load
it; then it is compiled here. Nothing is downloaded; only sources in this package are compiled. The cache is
`$TIEBREAK_CACHE`, else `$XDG_CACHE_HOME/tiebreak`, else `~/.cache/tiebreak`.

They are called through `ctypes`, which releases the interpreter's lock, so Python threads run them in parallel. They
are compiled without contracting multiplications and additions, and without any "fast math".

Triton's kernels are compiled in several processes at once (`compile_in_parallel`).
"""

import ctypes
import gc
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Timer
from typing import Any, Final

from tiebreak.engine import prebuilt, system

TUNE: Final = ("-march=native", "-mcpu=native", "")
"""Options that are tried in this order: that of x86 compilers, that of others, and none."""
TIMEOUT_S: Final = 300
PATIENCE_S: Final = 3
"""Seconds of compiling after which a message on standard error says why the user waits."""
SWITCH: Final = "TIEBREAK_NATIVE"
"""The environment variable that switches compiled kernels off when it is 0."""
INTEGERS: Final = "TIEBREAK_INTEGERS"
"""The environment variable that forbids products by integers if it is 0. If it is 1, GPUs compute all products by
integers that they can."""
EMULATION: Final = "CUBLAS_EMULATE_DOUBLE_PRECISION"
"""The environment variable by which cuBLAS composes FP64 products from narrower formats, unless it is 0 or empty."""


@dataclass(frozen=True)
class Build:
    """The outcome of building one kernel: the loaded library, or the reason why the pure twin is used."""

    library: ctypes.CDLL | None
    reason: str


def enabled() -> bool:
    """Whether compiled kernels may be used: unless `TIEBREAK_NATIVE` is 0."""
    return os.environ.get(SWITCH, "1") != "0"


def interprets() -> bool:
    """Whether Triton interprets its kernels, on the CPU, instead of compiling them: if TRITON_INTERPRET is 1."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def traces() -> bool:
    """Whether the engine prints what it executes (`tiebreak.engine.run.interpreter`): if TIEBREAK_TRACE is 1."""
    return os.environ.get("TIEBREAK_TRACE") == "1"


def release() -> None:
    """Gives freed memory back to the system; glibc keeps what lies between blocks that are still in use."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def emulation() -> str:
    """The value of `EMULATION`; empty if it is not set."""
    return os.environ.get(EMULATION, "")


def integers() -> str:
    """The value of `INTEGERS`; empty if it is not set."""
    return os.environ.get(INTEGERS, "")


def compile_in_parallel(jobs: Sequence[Callable[[], object]], cache_folder: Path) -> None:
    """Compiles into a cache, in forks of this process, as many as it has cores. A job that fails leaves nothing there.

    Only one process at a time does so: what another one has compiled meanwhile is found in the cache. Forks run Python
    and compilers alone. They use no device, collect no garbage, since that may lie on one, and end if a job takes
    `TIMEOUT_S`.
    """
    count = min(system.usable_cores(), len(jobs))
    notice = Timer(PATIENCE_S, sys.stderr.write, [f"compiling {len(jobs)} GPU kernels once\n"])
    cache_folder.mkdir(parents=True, exist_ok=True)
    notice.start()
    try:
        with (cache_folder / ".tiebreak").open("a") as lock, warnings.catch_warnings():
            system.lock(lock, wait=True)
            warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, of forks beside threads
            for fork in [_fork(jobs[first::count]) for first in range(count)]:
                with suppress(ChildProcessError):  # the user's own code may have waited for it
                    os.waitpid(fork, 0)
    finally:
        notice.cancel()


def _fork(jobs: Sequence[Callable[[], object]]) -> int:
    """Does jobs in a fork of this process, whose id it returns."""
    if fork := os.fork():
        return fork
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        gc.disable()
        for job in jobs:
            signal.alarm(TIMEOUT_S)
            with suppress(Exception):
                job()
    finally:
        os._exit(0)


def load(beside: str | Path, **functions: tuple[Any, ...]) -> Build:
    """The library of the C file beside a Python file (or of a C file), built now if the cache does not hold it.

    functions: the ctypes of result and arguments by name; a result of None is none.
    """
    if not enabled():
        return Build(None, f"switched off by {SWITCH}=0")
    if not system.COMPILES:
        return Build(None, "not compiled on this system")
    return _load(str(beside), tuple(functions.items()))


def cache_directory() -> Path:
    """The folder of compiled kernels and other derived files, which may not exist yet."""
    if explicit := os.environ.get("TIEBREAK_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tiebreak"


@cache
def _load(beside: str, functions: tuple[tuple[str, tuple[Any, ...]], ...]) -> Build:
    source = Path(beside).with_suffix(".c")
    if (built := _load_prebuilt(source, functions)) is not None:
        return built
    if (compiler := _compiler()) is None:
        return Build(None, "no C compiler found; install cc, gcc or clang, or set CC")
    try:
        directory = cache_directory() / "native"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = directory.resolve()
        # Whatever others could write there would be loaded as code; who may rename a parent may put another in its
        # place.
        for each in (directory, *directory.parents):
            _refuse_others(each, each.stat(), is_parent=each != directory)
        target = directory / f"{source.stem}-{_key(source, compiler)}.so"
        if not target.is_file():
            _build(source, compiler, target)
        return Build(_declare(_open(target), functions), f"compiled with {compiler[0]}")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return Build(None, str(error))


def _load_prebuilt(source: Path, functions: tuple[tuple[str, tuple[Any, ...]], ...]) -> Build | None:
    """The library that the wheel brought; None if there is none for this processor, or this system cannot load it."""
    if os.environ.get("CC") or not prebuilt.folder(source).is_dir():
        return None
    found = prebuilt.find(source, platform.machine(), frozenset(system.processor_line("flags", "features").split()))
    with suppress(OSError):  # an older C library lacks its symbols
        # No check who can write there: they could as well write to the Python beside it.
        return found and Build(_declare(ctypes.CDLL(str(found[1])), functions), f"compiled for {found[0].name} (wheel)")
    return None


def _declare(library: ctypes.CDLL, functions: tuple[tuple[str, tuple[Any, ...]], ...]) -> ctypes.CDLL:
    for name, (result, *arguments) in functions:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _compiler() -> tuple[str, ...] | None:
    """The command line of the C compiler: `CC`, else the first one on PATH."""
    if wanted := os.environ.get("CC"):
        command = tuple(shlex.split(wanted))
        return command if command and shutil.which(command[0]) else None
    found = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    return None if found is None else (found,)


def _refuse_others(path: Path, status: os.stat_result, *, is_parent: bool = False) -> None:
    """Raises `RuntimeError` if others could write there. A parent may be root's, and shared as /tmp is: sticky."""
    if not system.is_private(status, is_parent=is_parent):
        raise RuntimeError(f"expected {path} to be writable by this user alone; no compiled kernel is loaded")


def _open(target: Path) -> ctypes.CDLL:
    """Loads the library that was checked, by its descriptor where the system has a name for one.

    The descriptor stays open: under the number of a closed one the loader would find the library that it had before.
    """
    descriptor = os.open(target, os.O_RDONLY | system.NOFOLLOW)
    _refuse_others(target, os.fstat(descriptor))
    return ctypes.CDLL(str(system.descriptor_path(descriptor, target)))


def _key(source: Path, compiler: tuple[str, ...]) -> str:
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=True, timeout=TIMEOUT_S).stdout
    features = system.processor_line("flags", "features")  # different machines may share a home directory
    processor = repr((platform.system(), platform.machine(), platform.processor(), features)).encode()
    parts = (*prebuilt.contents(source), version, repr((prebuilt.FLAGS, TUNE, compiler)).encode(), processor)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]


def _build(source: Path, compiler: tuple[str, ...], target: Path) -> None:
    """Compiles into a new file and renames it, so that no other process sees half a library."""
    problem = ""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        for tune in TUNE:
            command = [*compiler, *prebuilt.FLAGS, *filter(None, [tune]), str(source), "-o", str(made), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
            if done.returncode == 0:
                with made.open("rb") as library:
                    os.fsync(library.fileno())
                made.replace(target)
                return
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            problem = errors[0] if errors else f"exit {done.returncode}"
    raise RuntimeError(f"{compiler[0]} could not compile {source.name}: {problem}")
