"""The wheel, installed elsewhere, does everything, and modules of a user's own do not stand in its way."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.source_tree import ROOT, committed_files
from tests.tiebreak.parties import PASSPHRASE, TASK

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and a folder of a user's outside the checkout."""

    python: Path
    folder: Path

    def run(self, *command: str, code: int = 0) -> str:
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TIEBREAK_CACHE")}
        environment |= {"TIEBREAK_PASSPHRASE": PASSPHRASE, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def tiebreak(self, *arguments: str, code: int = 0) -> str:
        return self.run(str(self.python.parent / "tiebreak"), *arguments, code=code)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built from the committed files, installed into a fresh environment that sees the packages of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    built_from = ("tiebreak", "contracts", "corpus", "pyproject.toml", "setup.py", "README.md", "LICENSE")
    for path in committed_files():
        if path.relative_to(ROOT).parts[0] in built_from:
            target = folder / "source" / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    quiet = ["--no-deps", "--no-index"]
    build = [*pip, "wheel", *quiet, "--no-build-isolation", "-w", str(folder), str(folder / "source")]
    subprocess.run(build, check=True, capture_output=True)
    shutil.rmtree(folder / "source")
    (wheel,) = folder.glob("tiebreak-*.whl")
    venv.create(folder / "environment", symlinks=True)
    python = folder / "environment" / "bin" / "python"
    site = next((folder / "environment").glob("lib/python*/site-packages"))
    # Not through a .pth file of its own: an editable install of the checkout is not seen.
    shared = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "shared.pth").write_text("".join(f"{path}\n" for path in shared))
    subprocess.run([*pip, "--python", str(python), "install", *quiet, str(wheel)], check=True, capture_output=True)
    (folder / "user").mkdir()
    return Installed(python, folder / "user")


def test_installed_wheel_works_beside_user_modules_of_the_same_names(installed: Installed) -> None:
    """A user's own `protocol.py`, `engine.py` and `sim.py` are the user's, and break nothing."""
    for name in ("protocol", "engine", "sim", "api", "cli", "demo"):
        (installed.folder / f"{name}.py").write_text(f"WHO = 'the user, {name}'\n")
    (installed.folder / "script.py").write_text(
        "import engine, protocol, sim, torch, tiebreak\n"
        "assert (protocol.WHO, engine.WHO, sim.WHO) == ('the user, protocol', 'the user, engine', 'the user, sim')\n"
        "x = torch.linspace(-1, 1, 32).reshape(-1, 1)\n"
        "task = tiebreak.Task(torch.nn.Linear(1, 1), torch.nn.MSELoss(), optimizer=tiebreak.SGD(lr=0.1),\n"
        "                     data={'x': x, 'y': 2 * x}, batch=8, steps=3)\n"
        "trainer = tiebreak.reproducible(task).run(progress=False)\n"
        "print(tiebreak.__file__, trainer.digest())\n"
    )
    where, digest = installed.run(str(installed.python), "script.py").split()
    assert len(bytes.fromhex(digest)) == 32
    assert Path(where).is_relative_to(installed.python.parents[1])


def test_wheel_description_is_markdown_with_absolute_links(installed: Installed) -> None:
    code = "from importlib.metadata import metadata as m; print(m('tiebreak')); print(m('tiebreak').get_payload())"
    shown = installed.run(str(installed.python), "-c", code)
    assert "Description-Content-Type: text/markdown" in shown
    assert "Requires-Dist: torch>=2.10" in shown
    assert "# Tiebreak" in shown
    assert len(re.findall(r"\(docs/[a-z/-]+\.md\)", shown)) > 5
    links = re.findall(r"\[[^]]*\]\(([^)]*)\)", shown)
    assert links
    assert all(link.startswith("https://") for link in links)


def test_installed_wheel_runs_a_job_from_capture_to_dispute(installed: Installed) -> None:
    (installed.folder / "task.py").write_text(TASK)
    assert installed.tiebreak("--version").startswith("tiebreak, version ")
    for name in ("client", "trainer"):
        assert installed.tiebreak("key", f"{name}.pem").startswith("0x")
    assert "program root" in installed.tiebreak("capture", "task.py", "-o", "captured")
    keys = ["--client", "client.pem", "--trainer", "trainer.pem"]
    assert "exact, 32 bits" in installed.tiebreak("agree", "captured", *keys, "-o", "run")
    assert "run root" in installed.tiebreak("train", "run", "--key", "trainer.pem")
    installed.tiebreak("weights", "run", "-o", "w.safetensors")
    certify = ["certify", "run", "--weights", "w.safetensors", "--key", "trainer.pem", "-o", "c.json"]
    assert "tiebreak.spdx.json" in installed.tiebreak(*certify, "--for", "dossier,cyclonedx,spdx")
    assert "agrees: 3 checkpoints, 7 steps" in installed.tiebreak("audit", "run", "-o", "replay")
    assert "nothing to dispute" in installed.tiebreak("dispute", "run", "replay", code=4)
    assert "exact: " in installed.tiebreak("doctor", "--device", "cpu")


def test_installed_wheel_contains_the_corpus(installed: Installed) -> None:
    assert "2 of 2 programs reach their root" in installed.tiebreak("corpus", "run", "every", "logged", "-o", "s.json")
    assert "2 of 2 programs reach their root" in installed.tiebreak("corpus", "check", "s.json")
    assert '"equal": true' in installed.tiebreak("corpus", "check", str(ROOT / "corpus/sealed/x86-avx2.json"), "--json")


@pytest.mark.nightly
def test_installed_wheel_runs_economics_and_simulation(installed: Installed) -> None:
    assert "tiebreak agree" in installed.tiebreak("economics", "--preset", "fine-tune")
    assert "hopes for" in installed.tiebreak("simulate", "--list")
    text = installed.tiebreak("simulate", "-n", "1", "-j", "1", "-m", "honest", "-o", "games")
    assert "1 games" in text
    assert "BROKEN PROMISE" not in text


@pytest.mark.nightly
def test_installed_wheel_runs_the_demo(installed: Installed) -> None:
    assert "Disputes" in installed.tiebreak("demo", "--steps", "14", "-o", "shown")
    assert json.loads((installed.folder / "shown" / "result.json").read_text())["succeeded"] is True
