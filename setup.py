"""What a build adds to `pyproject.toml`: files of the checkout, compiled kernels, and equal bytes for equal commits.

`TIEBREAK_KERNELS=x86_64` (or aarch64, with a compiler for it in `CC`) makes a wheel of that machine, with the engine's
kernels in C compiled. Without it the wheel is one for all machines, and kernels are compiled at first use.
"""

import gzip
import os
import re
import runpy
import shlex
import subprocess
import tarfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
COPIES = {"contracts/artifacts": "tiebreak/protocol/chain/contracts", "corpus": "tiebreak/api/corpus/bundled"}
"""Folders of the checkout, and the places of their copies in the package. The corpus goes without `sealed/`."""
MACHINE = os.environ.get("TIEBREAK_KERNELS", "")


def described(readme: str) -> str:
    """README.md without pictures, and with the names of files in place of links to them: an index has no such files."""
    without = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n*", "", readme)
    return re.sub(
        r"\[([^]]*)\]\((?!https?:|#)([^)]*)\)", lambda m: m[1] if m[1] == m[2] else f"{m[1]} ({m[2]})", without
    )


def date() -> int:
    """Seconds since 1970 that all files of an archive get: SOURCE_DATE_EPOCH, else the commit's, else the sdist's."""
    if wanted := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(wanted)
    if (ROOT / ".git").exists():
        return int(
            subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True).stdout
        )
    return int((ROOT / "setup.py").stat().st_mtime)


def compile_kernels(package: Path) -> None:
    """Compiles each kernel for each level of the machine, into the package."""
    prebuilt = runpy.run_path(str(ROOT / "tiebreak/engine/prebuilt.py"))
    compiler = shlex.split(os.environ.get("CC", "cc"))
    for source in sorted(package.rglob("*.c")):
        prebuilt["folder"](source).mkdir(exist_ok=True)
        for level in prebuilt["LEVELS"][MACHINE]:
            target = prebuilt["library"](source, level)
            # Relative names, and no symbols: nothing of the folder is in the library.
            options = [*prebuilt["FLAGS"], *level.options, "-w", "-s", source.name, "-o", str(target.resolve()), "-lm"]
            subprocess.run([*compiler, *options], cwd=source.parent, check=True)


class WithCopies(build_py):
    """`build_py`, and then files beside the module that reads them. An editable install reads the originals."""

    def run(self) -> None:
        """Copies what `tiebreak.protocol.chain.artifacts` and `tiebreak.api.corpus.programs` look for first."""
        super().run()
        if self.editable_mode:
            return
        for folder, copy in COPIES.items():
            for path in sorted((ROOT / folder).rglob("*.*")):
                target = Path(self.build_lib, copy, path.relative_to(ROOT / folder))
                if path.is_file() and "sealed" not in path.parts:
                    self.mkpath(str(target.parent))
                    self.copy_file(str(path), str(target))
        if MACHINE:
            compile_kernels(Path(self.build_lib, "tiebreak"))


class OfMachine(Distribution):
    """What is built is for one machine if it has kernels, and its modules lie beside libraries."""

    def has_ext_modules(self) -> bool:
        return bool(MACHINE)


class MachineWheel(bdist_wheel):
    """A wheel for each Python on one machine, if it has kernels. auditwheel adds the least C library to its name."""

    def get_tag(self) -> tuple[str, str, str]:
        """Kernels use nothing of Python's."""
        return ("py3", "none", f"linux_{MACHINE}") if MACHINE else super().get_tag()

    def write_wheelfile(self, *arguments: str) -> None:
        """The last step before all is packed: the builder's rights go."""
        super().write_wheelfile(*arguments)
        for path in Path(self.bdist_dir).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


class SameSdist(sdist):
    """An sdist without the builder's dates, rights, name and order of files."""

    def make_archive(self, base_name: str, *_: object, base_dir: str, **__: object) -> str:
        def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mode, entry.mtime = 0o755 if entry.isdir() else 0o644, date()
            return entry

        with (
            open(f"{base_name}.tar.gz", "wb") as raw,  # noqa: PTH123
            gzip.GzipFile("", "wb", fileobj=raw, mtime=date()) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, dereference=True) as archive,
        ):
            for path in (Path(base_dir), *sorted(Path(base_dir).rglob("*"))):
                archive.add(path, recursive=False, filter=plain)
        return raw.name


os.environ["SOURCE_DATE_EPOCH"] = str(date())
setup(
    distclass=OfMachine,
    cmdclass={"bdist_wheel": MachineWheel, "build_py": WithCopies, "sdist": SameSdist},
    long_description=described((ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
