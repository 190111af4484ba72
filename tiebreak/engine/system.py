"""The operating system: what Linux, macOS and Windows do differently or lack. No other module asks which one it is.

docs/guarantees.md lists what holds where something is missing.
"""

import errno
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import IOBase
from pathlib import Path
from typing import Any, Final

from tiebreak.protocol.errors import ConfigurationError


def _optional(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None


_fcntl, _msvcrt, _resource = _optional("fcntl"), _optional("msvcrt"), _optional("resource")


def _flags(*names: str) -> int:
    """These flags of `os.open`, without those that are not there."""
    return sum(getattr(os, name, 0) for name in names)


OPEN: Final = _flags("O_CLOEXEC", "O_NONBLOCK", "O_BINARY")
"""Flags by which any file is opened: not for child processes, without waiting for a writer, byte by byte."""
NOFOLLOW: Final = _flags("O_NOFOLLOW")
IS_RELATIVE: Final = {os.open, os.stat, os.mkdir, os.unlink, os.rename} <= os.supports_dir_fd and NOFOLLOW != 0
"""Whether names can be resolved relative to an open folder and without following links."""
COMPILES: Final = hasattr(os, "getuid")
"""Whether kernels are compiled: where it can be told that nobody else may write what is loaded as code."""
FORBIDDEN: Final = frozenset("/\0" if os.sep == "/" else '/\\:*?"<>|\0')
"""Characters that no name of a file has; on Windows a colon would name a drive or another stream of the file."""
_REPARSE: Final = 0x400
"""FILE_ATTRIBUTE_REPARSE_POINT: on Windows, whatever stands for something elsewhere, such as a link or a junction."""


def open_folder(name: str | Path, inside: int | None = None) -> int | None:
    """A descriptor of a folder, reached through no link if it is inside an open one; None where there are none."""
    if not IS_RELATIVE:
        if not Path(name).is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(name))
        return None
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    return os.open(name, flags if inside is None else flags | NOFOLLOW, dir_fd=inside)


def is_link(status: os.stat_result) -> bool:
    """Whether this is the status (`lstat`) of a link, or of what Windows has besides links."""
    return stat.S_ISLNK(status.st_mode) or bool(getattr(status, "st_file_attributes", 0) & _REPARSE)


def is_folder(entry: "os.DirEntry[str]") -> bool:
    """Whether this is a folder, and no link or junction to one."""
    is_plain = entry.is_dir(follow_symlinks=False)
    return is_plain and (os.sep == "/" or not is_link(entry.stat(follow_symlinks=False)))


def synced(descriptor: int) -> None:
    """Waits until a file, or the names in a folder, are on the disk; on macOS, until they have left its cache."""
    if (full := getattr(_fcntl, "F_FULLFSYNC", None)) is not None:
        with suppress(OSError):  # not every file system has it
            _fcntl.fcntl(descriptor, full)
            return
    os.fsync(descriptor)


def lock(file: IOBase, *, shared: bool = False, wait: bool = False) -> None:
    """Locks an open file against other processes until it is closed. Windows knows no shared locks: it is then whole.

    Raises `BlockingIOError` if another process has it and `wait` is false.
    """
    if _fcntl is not None:
        kind = _fcntl.LOCK_SH if shared else _fcntl.LOCK_EX
        _fcntl.flock(file, kind if wait else kind | _fcntl.LOCK_NB)
    elif _msvcrt is not None:
        file.seek(0)
        try:
            _msvcrt.locking(file.fileno(), _msvcrt.LK_LOCK if wait else _msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from error
    else:
        raise ConfigurationError("expected a system that can lock files, got one without flock and locking")


def is_private(status: os.stat_result, *, is_parent: bool = False) -> bool:
    """Whether it is this user's and nobody else may write there. True on Windows, whose folders pass on who may.

    is_parent: of a folder above, whether others cannot exchange what is in it: it may be root's, and sticky as /tmp is.
    """
    if not hasattr(os, "getuid"):
        return True
    owners = {os.getuid(), 0} if is_parent else {os.getuid()}
    return status.st_uid in owners and not (
        status.st_mode & 0o022 and not (is_parent and status.st_mode & stat.S_ISVTX)
    )


def others_may(status: os.stat_result) -> int:
    """The permissions of others on a file, as bits of its mode. 0 on Windows, where the mode does not hold them."""
    return status.st_mode & 0o077 if hasattr(os, "getuid") else 0


def descriptor_path(descriptor: int, path: Path) -> Path:
    """A path that leads to this open file even if its name is given to another; on Linux, else the path itself."""
    opened = Path(f"/proc/self/fd/{descriptor}")
    return opened if opened.exists() else path


def end_session(process: "subprocess.Popen[bytes]") -> None:
    """Kills a process with its session, if it leads one; on Windows, the process alone."""
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def usable_cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_line(*names: str) -> str:
    """The first line of /proc/cpuinfo that begins with one of these, in lower case; empty if there is none."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    return next((line for line in lines if line.lower().startswith(names)), "")


def driver_version() -> str:
    """The version of NVIDIA's driver, as Linux reports it."""
    driver = Path("/sys/module/nvidia/version")
    return driver.read_text().strip() if driver.is_file() else "unknown"


def memory_bytes() -> int:
    """The memory of this machine, or of the container that this process is in, if that has less."""
    found: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no cgroup, or one without a limit: "max"
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return found


def most_resident_bytes() -> int:
    """The most memory that this process has used; the system counts it in KiB, macOS in bytes."""
    most: int = _resource.getrusage(_resource.RUSAGE_SELF).ru_maxrss
    return most if os.uname().sysname == "Darwin" else most * 1024


def limit_process(seconds: int, growth: int) -> None:
    """Ends this process when it has used this many seconds of processors.

    On Linux, it gets at most `growth` more bytes of memory.
    """
    _resource.setrlimit(_resource.RLIMIT_CORE, (0, 0))
    _resource.setrlimit(_resource.RLIMIT_CPU, (seconds, _resource.RLIM_INFINITY))
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        most = pages * _resource.getpagesize() + growth
        _resource.setrlimit(_resource.RLIMIT_AS, (most, _resource.RLIM_INFINITY))


def allow_files(wanted: int) -> None:
    """Raises the limit of open files to this number, as far as the system lets this process."""
    soft, hard = _resource.getrlimit(_resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        _resource.setrlimit(_resource.RLIMIT_NOFILE, (max(soft, min(hard, wanted) if hard >= 0 else wanted), hard))


def allowed_files() -> int:
    """The limit of open files; negative if there is none."""
    limit: int = _resource.getrlimit(_resource.RLIMIT_NOFILE)[0]
    return limit


@contextmanager
def on_signals(handle: Callable[[int, Any], object], *numbers: int) -> Iterator[None]:
    """Calls a function when one of these signals comes, while the block runs."""
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
