"""Pythons of their own, for what one process cannot do twice."""

import os
import subprocess
import sys
from collections.abc import Collection

from tests.source_tree import ROOT


def printed(*arguments: str, without: Collection[str] = (), **variables: str) -> str:
    """The last line that a Python prints, with these environment variables and without those."""
    environment = {name: value for name, value in os.environ.items() if name not in without} | variables
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]
