"""Small changes of the product, each of which must fail tests that are named with it.

`python -m tests.mutants` tries all of them, `python -m tests.mutants TEXT ...` those whose name or file has a text in
it. The product lies changed in a copy of the tree, so nothing here is touched. Of each mutant a line is written: what
killed it, or that it lives. `mutants.toml` holds them. A text that the product no longer has, or has twice, is an
error.
"""

import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import hypothesis  # noqa: F401  (for the forks)
import pytest
import torch  # noqa: F401

ROOT: Final = Path(__file__).resolve().parents[2]
LIST: Final = Path(__file__).with_name("mutants.toml")
SECONDS: Final = 900
"""A test that takes longer hangs, which also tells that something is wrong."""
_CHANGED: Final = count(10, 10)
"""Seconds, which no two changed files have in common."""
COPIED: Final = ("tiebreak", "tests", "conformance", "benchmarks", "corpus", "examples", "docs", "scripts", "recheck")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change of one file: a text that occurs once, and what takes its place. tests: arguments for pytest."""

    name: str
    file: str
    old: str
    new: str
    tests: str

    def check(self) -> None:
        """Raises `ValueError` unless the product has the text once, and the change changes it."""
        found = (ROOT / self.file).read_text().count(self.old)
        if found != 1 or self.old == self.new:
            raise ValueError(
                f"{self.name}: expected a text that {self.file} has once, got one that it has {found} times; "
                f"write the mutant again in {LIST.relative_to(ROOT)}"
            )


def mutants(*texts: str) -> list[Mutant]:
    """The mutants with one of the texts in their name or file; all without a text."""
    found = [Mutant(**each) for each in tomllib.loads(LIST.read_text())["mutant"]]
    return [each for each in found if not texts or any(text in each.name + each.file for text in texts)]


@contextmanager
def copied(place: Path) -> Iterator[Path]:
    """A copy of the tree without what is built. It is removed afterwards."""
    place.mkdir()
    try:
        built = shutil.ignore_patterns("__pycache__", ".*", "node_modules", "build")
        for name in COPIED:
            shutil.copytree(ROOT / name, place / name, ignore=built)
        for file in ("pyproject.toml", "constraints.txt", "contracts", "model", "Makefile", ".ci", "README.md"):
            (place / file).symlink_to(ROOT / file)
        yield place
    finally:
        shutil.rmtree(place)


def failed(tree: Path, tests: str) -> str:
    """The first test that fails in a tree; empty if all pass. Raises `ValueError` if they do not run.

    They run in a fork of this process, which has imported what takes long and is no part of the tree.
    """
    with tempfile.TemporaryFile("w+") as output:
        code = _forked(lambda: _run(tree, tests), output.fileno())
        output.seek(0)
        text = output.read()
    if code is None:
        return f"no end after {SECONDS} seconds"
    if code == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    if code < 0 or (code == 1 and found is not None):
        return found[1] if found else f"signal {-code}"
    raise ValueError(f"expected tests that run, got {code}: {text[-2000:]}")


def _run(tree: Path, tests: str) -> int:
    """Runs tests in a tree; the exit code of pytest."""
    for name in [name for name in sys.modules if name.split(".")[0] in COPIED]:
        del sys.modules[name]
    sys.path[:] = [str(tree), *(path for path in sys.path if path and Path(path) not in (ROOT, Path.cwd()))]
    os.environ["PYTHONPATH"], sys.dont_write_bytecode = str(tree), False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.chdir(tree)
    return int(pytest.main(["-x", "-q", "-n0", "-p", "no:cacheprovider", *shlex.split(tests)]))


def _forked(run: Callable[[], int], output: int) -> int | None:
    """The exit code of a function in a process of its own, below 0 for a signal; None if it took too long."""
    child = os.fork()
    if not child:
        try:
            os.setsid()
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = run()
            sys.stdout.flush()
            os._exit(code)
        finally:
            os._exit(3)
    end = time.monotonic() + SECONDS
    while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it started and left behind, too
    if done[0]:
        return os.waitstatus_to_exitcode(done[1])
    os.waitpid(child, 0)
    return None


def killer(mutant: Mutant, tree: Path) -> str:
    """The test that fails with a mutant; empty if it lives. The tree is as before afterwards."""
    mutant.check()
    path = tree / mutant.file
    text, since = path.read_text(), path.stat().st_mtime
    path.write_text(text.replace(mutant.old, mutant.new))
    os.utime(path, (since, since - next(_CHANGED)))  # byte code is told apart by this time, in seconds
    try:
        return failed(tree, mutant.tests)
    finally:
        path.write_text(text)
        os.utime(path, (since, since))


def tried(chosen: Sequence[Mutant], place: Path, jobs: int) -> list[Mutant]:
    """Tries mutants, so many at once, with a line for each. Returns those that live."""

    def share(number: int) -> list[Mutant]:
        lives = []
        with copied(place / f"tree{number}") as tree:
            for mutant in chosen[number::jobs]:
                found = killer(mutant, tree)
                sys.stdout.write(f"{mutant.name}: {found or 'LIVES'}\n")
                sys.stdout.flush()
                if not found:
                    lives.append(mutant)
        return lives

    with ThreadPoolExecutor(jobs) as pool:
        return [mutant for lives in pool.map(share, range(jobs)) for mutant in lives]
