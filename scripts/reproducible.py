"""Builds the sdist and the wheels of a commit twice, and fails unless the bytes are equal: `make dist`, and a gate.

The builds differ in folder, umask, time zone, locale, hash seed and dates of files, and in what the wheels are built
from: the commit's files, or the sdist. There is a wheel for all machines, and one with compiled kernels for this
machine if `tiebreak.engine.prebuilt` has levels for it. Both builds share the compiler and the version of setuptools.
"""

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from tiebreak.engine.prebuilt import LEVELS

ROOT: Final = Path(__file__).resolve().parent.parent
BUILD: Final = "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"
SETTINGS: Final = (
    (0o022, 0, {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1"}),
    (0o077, 1_000_000_000, {"TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"}),
)
"""umask, date of all files (0: now), environment."""


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def run(kind: str, source: Path, output: Path, settings: tuple[int, int, dict[str, str]], **more: str) -> None:
    """One call of the build back-end, in a process of its own."""
    umask, _, environment = settings
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "CC") if name in os.environ}
    command = [sys.executable, "-c", BUILD, kind, str(output)]
    done = subprocess.run(
        command, cwd=source, env=kept | environment | more, umask=umask, text=True, capture_output=True, check=False
    )
    if done.returncode:
        sys.exit(f"{kind} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def build(commit: str, folder: Path, settings: tuple[int, int, dict[str, str]], *, from_sdist: bool) -> Path:
    """Builds in a folder; returns the one with the results."""
    source, output = folder / "source", folder / "dist"
    source.mkdir(parents=True)
    output.mkdir()
    subprocess.run(["tar", "x"], cwd=source, input=git("archive", commit), check=True, umask=settings[0])
    for path in source.rglob("*") if settings[1] else ():
        os.utime(path, (settings[1], settings[1]))
    date = git("log", "-1", "--format=%ct", commit).decode().strip()
    run("build_sdist", source, output, settings, SOURCE_DATE_EPOCH=date)
    if from_sdist:
        (sdist,) = output.glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        source = folder / sdist.name.removesuffix(".tar.gz")
        date = ""  # that of the files
    machines = ["", platform.machine()] if sys.platform == "linux" and platform.machine() in LEVELS else [""]
    for machine in machines:
        shutil.rmtree(source / "build", ignore_errors=True)
        run("build_wheel", source, output, settings, SOURCE_DATE_EPOCH=date, TIEBREAK_KERNELS=machine)
    return output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", nargs="?", default="HEAD")
    parser.add_argument("--output", type=Path, help="folder that gets the files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        first = build(arguments.commit, Path(scratch, "a"), SETTINGS[0], from_sdist=False)
        second = build(arguments.commit, Path(scratch, "elsewhere", "b"), SETTINGS[1], from_sdist=True)
        digests = [
            {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
            for folder in (first, second)
        ]
        for name, digest in digests[0].items():
            print(f"{digest}  {name}")
        if digests[0] != digests[1]:
            sys.exit(f"expected the same bytes of both builds, got of the second: {digests[1]}")
        if arguments.output:
            shutil.copytree(first, arguments.output, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
