"""Pythons of their own, for what one process cannot do twice; and a disk that is full for this one."""

import os
import resource
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from tests.source_tree import ROOT


@contextmanager
def file_size(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def printed(*arguments: str, without: Collection[str] = (), **variables: str) -> str:
    """The last line that a Python prints, with these environment variables and without those."""
    environment = {name: value for name, value in os.environ.items() if name not in without} | variables
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]
