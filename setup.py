"""What a build adds to `pyproject.toml`: the compiled contracts, the corpus, and README.md as an index can show it."""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
COPIES = {"contracts/artifacts": "tiebreak/protocol/chain/contracts", "corpus": "tiebreak/api/corpus/bundled"}
"""Folders of the checkout, and the places of their copies in the package. The corpus goes without `sealed/`."""


def described(readme: str) -> str:
    """README.md without pictures, and with the names of files in place of links to them: an index has no such files."""
    without = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n*", "", readme)
    return re.sub(
        r"\[([^]]*)\]\((?!https?:|#)([^)]*)\)", lambda m: m[1] if m[1] == m[2] else f"{m[1]} ({m[2]})", without
    )


class WithCopies(build_py):
    """`build_py`, and then files beside the module that reads them. An editable install reads the originals."""

    def run(self) -> None:
        """Copies what `tiebreak.protocol.chain.artifacts` and `tiebreak.api.corpus.programs` look for first."""
        super().run()
        for folder, copy in {} if self.editable_mode else COPIES.items():
            for path in sorted((ROOT / folder).rglob("*.*")):
                target = Path(self.build_lib, copy, path.relative_to(ROOT / folder))
                if path.is_file() and "sealed" not in path.parts:
                    self.mkpath(str(target.parent))
                    self.copy_file(str(path), str(target))


setup(
    cmdclass={"build_py": WithCopies},
    long_description=described((ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
