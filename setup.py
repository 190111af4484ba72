"""What a build adds to `pyproject.toml`: the compiled contracts, and README.md as a package index can show it."""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SOURCE = ROOT / "contracts" / "artifacts"


def described(readme: str) -> str:
    """README.md without pictures, and with the names of files in place of links to them: an index has no such files."""
    without = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n*", "", readme)
    return re.sub(
        r"\[([^]]*)\]\((?!https?:|#)([^)]*)\)", lambda m: m[1] if m[1] == m[2] else f"{m[1]} ({m[2]})", without
    )


class WithContracts(build_py):
    """`build_py`, and then the artifacts beside the module that reads them. An editable install reads the originals."""

    def run(self) -> None:
        """Copies what `tiebreak.protocol.chain.artifacts` looks for first."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "tiebreak", "protocol", "chain", "contracts")
            self.mkpath(str(target))
            for path in sorted(SOURCE.glob("*.json")):
                self.copy_file(str(path), str(target / path.name))


setup(
    cmdclass={"build_py": WithContracts},
    long_description=described((ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
