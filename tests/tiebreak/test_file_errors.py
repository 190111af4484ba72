"""An error about a file names the file: one case for each kind of file that a command reads."""

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.tiebreak.parties import Parties
from tiebreak import api
from tiebreak.cli.key import load_key
from tiebreak.cli.scale import counts_from
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.chain.deployments import check_deployment
from tiebreak.protocol.errors import TiebreakError
from tiebreak.sim.incentives.figures import load


def read_all(folder: Path) -> None:
    run = RunDirectory.open(folder)
    run.heads()
    run.data()
    run.state(3)


FILES: dict[str, Callable[[Path], object]] = {
    "captured/program.tbp": lambda path: api.bundle.load_bundle(path.parent),
    "captured/bundle.json": lambda path: api.bundle.load_bundle(path.parent),
    "captured/state.safetensors": lambda path: api.bundle.load_bundle(path.parent),
    "captured/data.safetensors": lambda path: api.bundle.load_bundle(path.parent),
    "run/job.bin": lambda path: RunDirectory.open(path.parent),
    "run/program.tbp": lambda path: RunDirectory.open(path.parent),
    "run/data.safetensors": lambda path: read_all(path.parent),
    "run/checkpoints/*3.safetensors": lambda path: read_all(path.parent.parent),
    "run/heads/*": lambda path: read_all(path.parent.parent),
    "trainer.pem": load_key,
    "policy.json": api.calibrating.as_policy,
    "deployment.json": lambda path: check_deployment(None, path),  # type: ignore[arg-type]  # the file is read first
    "figures.toml": load,
    "figures.json": load,
    "program.tbp": lambda path: counts_from({"program": path}),
}


CASES = [
    *product(FILES, ("empty", "text", "one byte")),
    *((name, "gone") for name in FILES if name.startswith("run/") and name != "run/heads/*"),
]


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_the_error_names_the_file(parties: Parties, tmp_path: Path, name: str, damage: str, cases: Any) -> None:
    if "/" in name:
        folder = name.split("/", maxsplit=1)[0]
        if folder == "run":
            parties.trained(tmp_path / folder)
        else:
            shutil.copytree(parties.path(folder), tmp_path / folder)
        path = min(tmp_path.glob(name))
    else:
        path = tmp_path / name
        shutil.copy(parties.path(name if name == "trainer.pem" else "captured/program.tbp"), path)
    content = path.read_bytes()
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 0x55]) + content[middle + 1 :]
    path.unlink()
    if damage != "gone":
        path.write_bytes({"empty": b"", "text": b"{ no }", "one byte": changed}[damage])
    with pytest.raises(TiebreakError) as error:
        FILES[name](path)
    assert str(path) in str(error.value)
    cases()
