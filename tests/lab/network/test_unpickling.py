"""No process that holds a key, or leads an audit, unpickles anything: in each, every way to do so raises."""

import os
import sys
from pathlib import Path

import pytest

from tests.lab.network.test_up import plan_of, play
from tests.tiebreak.test_parallel_audits import answer, honest, liar, make_run
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.lab.network.local_network import LocalNetwork

__all__ = ["honest", "liar", "make_run"]
pytestmark = pytest.mark.slow
BAN = """
import _pickle, multiprocessing.reduction, os, pickle, sys

def refuse(*_arguments, **_options):
    print("UNPICKLED", *sys.orig_argv, file=open(os.environ["UNPICKLING"], "a"))
    raise RuntimeError("expected nothing to be unpickled here")

# What the process that others are copies of is told comes from the party itself, on its way to a worker.
if not any("multiprocessing" in part for part in sys.orig_argv):
    class Unpickler(pickle._Unpickler):
        load = refuse

    for module in (pickle, _pickle):
        module.load = module.loads = refuse
        module.Unpickler = Unpickler
    multiprocessing.reduction.ForkingPickler.loads = refuse
    print("BANNED", *sys.orig_argv, file=open(os.environ["UNPICKLING"], "a"))
"""
"""What each process of Python runs first, as `sitecustomize`."""


@pytest.fixture
def ban(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that names the processes in which nothing may be unpickled, and those that tried."""
    folder, log = tmp_path / "first", tmp_path / "log"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BAN)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("UNPICKLING", str(log))
    return log


def banned(log: Path) -> list[str]:
    lines = log.read_text().splitlines()
    assert [line for line in lines if line.startswith("UNPICKLED")] == []
    return lines


def test_no_party_unpickles_anything_in_a_whole_game(tmp_path: Path, ban: Path) -> None:
    """Client, trainer and auditor, without a chain: trained, published, replayed, disputed and won."""
    story = list[str]()
    plan = plan_of(tmp_path / "town", cheat="rate", chain=False, embedded=False)
    assert play(LocalNetwork(plan, story.append), story).ending.status == "slashed"
    lines = banned(ban)
    for role in ("client run", "cheating_trainer rate", "auditor run"):
        assert any(role in line for line in lines), role


@pytest.mark.parametrize("name", ["honest", "liar"])
def test_no_audit_unpickles_anything(name: str, request: pytest.FixtureRequest, tmp_path: Path, ban: Path) -> None:
    """Nor do its workers: two, and one more where a disagreement is computed again."""
    run: RunDirectory = request.getfixturevalue(name)
    code, report, _ = answer(run, tmp_path / "ledger")
    assert (code, report["verdict"]) == ((0, "agrees") if name == "honest" else (2, "fraud"))
    lines = banned(ban)
    assert len([line for line in lines if "replayers import serve" in line]) >= 2
    assert any("audit" in line and sys.executable in line for line in lines)
