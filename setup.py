"""Puts the compiled contracts, which live in `contracts/artifacts`, into the package that is built."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SOURCE = Path(__file__).resolve().parent / "contracts" / "artifacts"


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


setup(cmdclass={"build_py": WithContracts})
