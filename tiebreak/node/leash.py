"""`python -m tiebreak.node.leash COMMAND ...`: runs `tiebreak COMMAND ...` until standard input ends.

Its starter holds the other end of that pipe, which the system closes however its holder dies. So no process of
`tiebreak up` outlives it, on any platform.
"""

import os
import runpy
import signal
import time
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


if __name__ == "__main__":
    hold()
    runpy.run_module("tiebreak", run_name="__main__", alter_sys=True)
