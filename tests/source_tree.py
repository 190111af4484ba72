"""The files of the working tree, for the tests that read them."""

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("protocol", "engine", "sim", "tiebreak")
"""In the order in which they may import: each only those before it, and itself."""


@cache
def committed_files() -> tuple[Path, ...]:
    """Files under version control, or, in an unpacked archive, all but what tools leave behind."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        return tuple(p for name in listed.split("\0") if name and (p := ROOT / name).is_file())
    skipped = {".venv", "node_modules", "__pycache__", "out", "cache", "demo-output", "runs", "build"}
    return tuple(p for p in sorted(ROOT.rglob("*")) if p.is_file() and not skipped & set(p.relative_to(ROOT).parts))


@cache
def package_modules() -> dict[str, Path]:
    """Dotted name -> file, for every module of the packages."""
    modules = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            modules[name] = path
    return modules


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(), filename=str(path))
