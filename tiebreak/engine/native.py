"""Compiled accelerators: optional C kernels, built on this machine when first asked for and kept by content.

Each kernel is one C file, with headers, beside the Python module that uses it, and has a pure twin that computes the
same bytes: where there is no C compiler, or `TIEBREAK_NATIVE=0` is set, the twin is what runs. Nothing is downloaded;
what is compiled is only what this package holds. The cache is `$TIEBREAK_CACHE`, else `$XDG_CACHE_HOME/tiebreak`, else
`~/.cache/tiebreak`.

Kernels are called through `ctypes`, which releases the interpreter's lock, so threads of Python run them in parallel.
They are compiled without contraction of multiplications and additions and without any "fast math".
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

FLAGS: Final = ("-std=c11", "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
"""`-fno-trapping-math` lets comparisons vectorise; exception flags are never read."""
TUNE: Final = ("-march=native", "-mcpu=native", "")
"""Tried in this order: what x86 compilers, then others understand."""
TIMEOUT_S: Final = 300
SWITCH: Final = "TIEBREAK_NATIVE"
"""The variable that switches compiled kernels off when it is 0."""


@dataclass(frozen=True)
class Build:
    """What became of one kernel: the loaded library, or the reason why the pure twin is used."""

    library: ctypes.CDLL | None
    reason: str


def enabled() -> bool:
    """Whether compiled kernels are wanted: unless `TIEBREAK_NATIVE` is 0."""
    return os.environ.get(SWITCH, "1") != "0"


@contextmanager
def pure_path() -> Iterator[None]:
    """Without compiled kernels: every one asks the variable when it is used."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


def load(source: Path) -> Build:
    """The library compiled from one C file; built now if the cache does not hold it."""
    if not enabled():
        return Build(None, f"switched off by {SWITCH}=0")
    return _load(source)


def cache_directory() -> Path:
    """Where compiled kernels (and other derived files) are kept; may not exist yet."""
    if explicit := os.environ.get("TIEBREAK_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tiebreak"


@cache
def _load(source: Path) -> Build:
    compiler = _compiler()
    if compiler is None:
        return Build(None, "no C compiler found; install cc, gcc or clang, or set CC")
    try:
        directory = _private(cache_directory() / "native")
        target = directory / f"{source.stem}-{_key(source, compiler)}.so"
        if not target.is_file():
            _build(source, compiler, target)
        return Build(ctypes.CDLL(str(target)), f"compiled with {compiler[0]}")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return Build(None, str(error))


def _compiler() -> tuple[str, ...] | None:
    """The command line of the C compiler: `CC`, else the first that is on PATH."""
    if wanted := os.environ.get("CC"):
        command = tuple(shlex.split(wanted))
        return command if command and shutil.which(command[0]) else None
    found = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    return None if found is None else (found,)


def _private(directory: Path) -> Path:
    """The directory, made for this user alone. What others could write there would be loaded as code."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise RuntimeError(f"expected {directory} to be writable by this user alone; no compiled kernel is loaded")
    return directory


def _key(source: Path, compiler: tuple[str, ...]) -> str:
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=True, timeout=TIMEOUT_S).stdout
    headers = [header.read_bytes() for header in sorted(source.parent.glob("*.h"))]
    parts = (source.read_bytes(), *headers, version, repr((FLAGS, TUNE, compiler)).encode(), _processor())
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]


def _processor() -> bytes:
    """What decides which machine code runs here: a home directory may be shared by different machines."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return repr((platform.system(), platform.machine(), platform.processor(), flags)).encode()


def _build(source: Path, compiler: tuple[str, ...], target: Path) -> None:
    """Compiles into a new file, then renames it: another process never sees half a library."""
    problem = ""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        for tune in TUNE:
            command = [*compiler, *FLAGS, *filter(None, [tune]), str(source), "-o", str(made), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
            if done.returncode == 0:
                made.replace(target)
                return
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            problem = errors[0] if errors else f"exit {done.returncode}"
    raise RuntimeError(f"{compiler[0]} could not compile {source.name}: {problem}")
