"""Runs `tiebreak` with what this system has in addition to Windows and to the light install taken away.

Taken away are the modules and names that CPython lacks on Windows, as far as `tiebreak` could meet them, and the
libraries of all extras. What is called with a descriptor of a folder fails as there.
"""

import os
import select
import signal
import socket
import stat
import sys
from importlib import import_module
from typing import Any, NoReturn

from tiebreak.cli.main import EXTRAS, main

LOADED = (
    "asyncio concurrent.futures.process logging.handlers multiprocessing.util random shutil subprocess tempfile uuid "
    "coincurve cryptography.hazmat.primitives.serialization eth_hash.auto filelock numpy rich.console"
)
"""What has other code on Windows, and is loaded before."""
MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
OF_OS = (
    "O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK chown fchmod fchown fork forkpty getegid geteuid getgid "
    "getpgid getuid killpg lchown mkfifo mknod nice posix_fadvise posix_fallocate pread preadv pwrite pwritev "
    "register_at_fork sched_getaffinity sched_setaffinity sendfile setsid sysconf uname wait3 wait4"
)
OF_SIGNAL = "SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGUSR1 SIGUSR2 alarm pthread_sigmask setitimer"


def portable(name: str) -> Any:
    """A function of `os` that knows paths alone, and opens no folder."""
    real, status = getattr(os, name), os.stat

    def function(*given: Any, **options: Any) -> Any:
        if any(options.get(f"{which}dir_fd") is not None for which in ("", "src_", "dst_")):
            raise NotImplementedError("dir_fd unavailable on this platform")
        if name in ("listdir", "scandir") and given and isinstance(given[0], int):
            raise TypeError("path should be string, bytes, os.PathLike or None, not int")
        if name == "open" and os.path.exists(given[0]) and stat.S_ISDIR(status(given[0]).st_mode):  # noqa: PTH110
            raise PermissionError(13, "Permission denied", given[0])
        return real(*given, **options)

    return function


def refuse(*_: Any) -> NoReturn:
    raise OSError(10038, "An operation was attempted on something that is not a socket")


def block() -> None:
    """Takes it all away."""
    for name in LOADED.split():
        import_module(name)
    gone = MODULES | set(EXTRAS)
    assert not gone & set(sys.modules) - MODULES, "the command line loads no library of an extra"
    sys.modules |= dict.fromkeys(gone)  # type: ignore[arg-type]
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL), (socket, "AF_UNIX"), (select, "poll epoll")):
        for name in names.split():
            delattr(module, name)
    select.select = refuse
    functions = ["open", "stat", "lstat", "mkdir", "unlink", "remove", "rename", "replace", "listdir", "scandir"]
    for name, function in [(name, portable(name)) for name in functions]:
        setattr(os, name, function)
    os.supports_dir_fd = os.supports_fd = set()


if __name__ == "__main__":
    block()
    main()
