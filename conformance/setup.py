"""Assembles the package from files of the repository, where they are; the names of modules are rewritten on the way."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parents[1]
ENTRIES = ("conformance.__main__", "conformance.signed")
NAMES = {
    "tiebreak.protocol": "tiebreak_reference.protocol",
    "conformance": "tiebreak_reference",
}
"""Beginnings of modules' names here, and in the package."""


def renamed(text: str) -> str:
    """Text with the names that modules have in the package."""
    return re.sub("|".join(rf"\b{re.escape(name)}\b" for name in NAMES), lambda found: NAMES[found[0]], text)


def modules() -> Iterator[tuple[Path, str]]:
    """File and name of each module of the repository that the entries import, directly or not."""
    waiting, seen = list(ENTRIES), set()
    while waiting:
        name = waiting.pop()
        found = [ROOT / name.replace(".", "/") / "__init__.py", ROOT / f"{name.replace('.', '/')}.py"]
        path = next((path for path in found if path.is_file()), None)
        if name in seen or not name.startswith(tuple(NAMES)):
            continue
        seen.add(name)
        waiting.append(name.rpartition(".")[0])
        if path is None:
            continue
        yield path, f"{name}.__init__" if path.name == "__init__.py" else name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]


def data() -> Iterator[tuple[Path, str]]:
    """Files that are no code, with their places in the package."""
    vectors = sorted((ROOT / "tests" / "vectors").iterdir())
    yield from ((path, f"vectors/{path.name}") for path in vectors if path.suffix in (".json", ".md"))
    for name in run_path(str(ROOT / "conformance" / "__init__.py"))["PROGRAMS"]:
        yield from ((path, f"corpus/{name}/{path.name}") for path in sorted((ROOT / "corpus" / name).iterdir()))
    yield from ((ROOT / place, Path(place).name) for place in ("docs/SPEC.md", "LICENSE"))


class Assembled(build_py):
    """`build_py` that takes everything from where it is."""

    def run(self) -> None:
        """Writes the modules and the data below the folder of the build."""
        for path, name in modules():
            target = Path(self.build_lib, renamed(name).replace(".", "/") + ".py")
            self.mkpath(str(target.parent))
            target.write_text(renamed(path.read_text(encoding="utf-8")), encoding="utf-8")
        for path, place in data():
            target = Path(self.build_lib, "tiebreak_reference", "data", place)
            self.mkpath(str(target.parent))
            self.copy_file(str(path), str(target))


setup(cmdclass={"build_py": Assembled})
