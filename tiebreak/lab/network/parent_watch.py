"""`python -m tiebreak.lab.network.parent_watch COMMAND ...`: runs `tiebreak COMMAND ...` until standard input ends.

Its starter holds the other end of that pipe, which the system closes however its holder dies. So no process of
`tiebreak up` outlives it, on any platform.

`--import MODULE` in place of a command imports a module first; then the command comes as a line of JSON, a list of
words, on standard input. So a process can start before its starter knows all of its arguments.
"""

import json
import os
import runpy
import signal
import sys
import time
from importlib import import_module
from threading import Thread
from typing import Final

GRACE_SECONDS: Final = 5.0


def _watch() -> None:
    """Wait for the end of standard input; then end this process as SIGTERM does, or else as SIGKILL does."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def hold() -> None:
    """Let this process end with its standard input."""
    Thread(target=_watch, daemon=True).start()


def _command() -> list[str]:
    """The words of the command, once they have come."""
    match sys.argv[1:]:
        case ["--import", module]:
            import_module(module)
            return list(json.loads(sys.stdin.readline() or "[]"))
        case words:
            return words


if __name__ == "__main__":
    sys.argv[1:] = _command()
    hold()
    runpy.run_module("tiebreak", run_name="__main__", alter_sys=True)
