"""The training of one job, in a process of its own that ends with its service.

`python -m tiebreak.node.finetuning.worker FOLDER MODELS ARGUMENTS` holds the lock of FOLDER and runs the command
`tiebreak ARGUMENTS` in the folder MODELS, so that what it writes names a model and not its place. The first line of its
standard input is the passphrase of the key. The service holds the other end of that pipe for as long as it lives: when
the pipe ends, so does this process, at once, and what it has committed stays.
"""

import os
import runpy
import signal
import sys
from pathlib import Path
from threading import Thread

from tiebreak.engine.data.disk import Folder


def _end_with_the_service() -> None:
    while os.read(0, 1):  # not from `sys.stdin`, whose lock a thread must not hold when the interpreter ends
        pass
    os._exit(1)


if __name__ == "__main__":
    # Only in this process: what stands in the environment of a new process, its user's other processes can read.
    os.environ["TIEBREAK_PASSPHRASE"] = sys.stdin.buffer.readline().decode().removesuffix("\n")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
    Thread(target=_end_with_the_service, daemon=True).start()
    own = Path(sys.argv.pop(1))
    os.chdir(sys.argv.pop(1))
    with Folder(own, to_write=True) as files, files.lock():
        runpy.run_module("tiebreak", run_name="__main__")
