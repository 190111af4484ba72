"""Jobs of policy `logged` and of other precisions from the command line: train, audit, dispute."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.engine.logged_cases import INTERVAL, STEPS, TOLERANCE, WIDE, captured, log_of, logged_job
from tests.engine.tiny import TRAINER
from tests.source_tree import ROOT
from tests.tiebreak.parties import Commands, Once
from tiebreak.api.signing.keys import save_key
from tiebreak.cli.key import PASSPHRASE_VARIABLE
from tiebreak.cli.main import run as cli
from tiebreak.cli.main import tiebreak
from tiebreak.engine.logged.policy import POLICY, LoggedPolicy, policy_of
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.rounding import SumKind

PASSWORD = "a long passphrase"
POLICY_FILE = LoggedPolicy(
    precision=32, thresholds=dict.fromkeys(SumKind, WIDE), tolerances=dict.fromkeys(SumKind, TOLERANCE)
)
"""A wide one: a share of all elements is logged."""


def make_run(path: Path) -> RunDirectory:
    """A run in which nothing is computed yet."""
    made = captured()
    return RunDirectory.create(path, logged_job(), made.program, made.state, made.data, {POLICY: POLICY_FILE.encode()})


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that trains, but for the run."""
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSWORD)
    save_key(TRAINER, tmp_path / "key.pem", PASSWORD)
    return ["train", "--key", str(tmp_path / "key.pem"), "--threads", "1", "--quiet"]


@pytest.fixture
def trained(once: Once, tmp_path: Path, train: list[str]) -> RunDirectory:
    """A finished run."""

    def make(folder: Path) -> None:
        assert cli(tiebreak, [*train, str(make_run(folder).path)]) == 0

    return RunDirectory.open(shutil.copytree(once("logged-run", make), tmp_path / "run"))


@pytest.mark.slow
def test_a_logged_run_passes_audits_on_other_threads_and_instruction_sets(
    trained: RunDirectory, tmp_path: Path, command: Commands
) -> None:
    """More threads go by the trainer's thresholds; torch's default instructions, without C, by the proven ones."""
    entries = [log_of(trained, step).count for step in range(1, STEPS + 1)]
    assert sum(entries) > STEPS
    audit = ["audit", trained.path, "--output", tmp_path / "own", "--threads", 2, "--permute", 6]
    own = command.tell(*audit, "--policy", trained.path / POLICY)
    torch.set_num_threads(1)
    elsewhere = ["audit", trained.path, "--output", tmp_path / "proven", "--threads", 1, "--permute", 9, "--json"]
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default", "TIEBREAK_NATIVE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tiebreak", *map(str, elsewhere)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for found, name in ((own, "own"), (json.loads(done.stdout), "proven")):
        assert (found["verdict"], found["steps"]) == ("agrees", [1, STEPS])
        assert found["replayed_root"] == trained.heads()[-1].head.run_root.hex()
        log, replay = found["log"], RunDirectory.open(tmp_path / name)
        assert (log["entries"], log["steps"], log["elsewhere"], log["missing"]) == (sum(entries), STEPS, 0, 0)
        assert log["findings"] == []
        assert [log_of(replay, step) for step in (1, STEPS)] == [log_of(trained, step) for step in (1, STEPS)]
    words = command("audit", trained.path, "--output", tmp_path / "words")
    assert f"logs       {sum(entries)} entries in {STEPS} steps; 0 were needed here" in words
    assert "nothing to dispute" in command.printed("dispute", trained.path, tmp_path / "own", code=4)[0]


def test_training_reports_its_log_entries(
    trained: RunDirectory, train: list[str], tmp_path: Path, command: Commands
) -> None:
    again, aloud, until = make_run(tmp_path / "again").path, train[:-1], 2 * INTERVAL
    entries = [log_of(trained, step).count for step in range(1, STEPS + 1)]
    lines = map(json.loads, command(*aloud, "--json", "--until", until, again).splitlines())
    begun, *steps, ended = (event for event in lines if event["event"] != "checkpoint")
    assert begun["policy"].startswith("logged, 32 bits")
    assert [event["entries"] for event in steps] == entries[:until]
    assert (ended["entries"], ended["log_bytes"]) == (sum(entries[:until]), RunDirectory.open(again).log_bytes())
    assert f"logs     {sum(entries[until:])} entries in {STEPS - until} steps; " in command(*aloud, again)


def test_a_false_logged_run_fails_its_audit_and_loses_its_dispute(
    train: list[str], tmp_path: Path, command: Commands
) -> None:
    run, replay = make_run(tmp_path / "run"), tmp_path / "replay"
    command(*train, run.path, "--until", INTERVAL)
    state = run.state(INTERVAL)
    name = next(name for name, tensor in state.items() if tensor.dtype == torch.float32 and tensor.numel() > 4)
    record = run.records()[0]
    state[name].view(-1)[3] += 1
    replaced = RunDirectory.open(run.path)
    replaced.write_state(INTERVAL, state)
    (run.path / "records.bin").write_bytes(b"")
    (run.path / "heads" / f"{1:012d}.bin").unlink()
    replaced.append_record(make_record(INTERVAL, state, record.loss_bits, record.log_root))
    command(*train, run.path)
    command("audit", run.path, "--output", replay, code=2)
    for segment, code in ((0, 2), (3, 0)):
        command("audit", run.path, "--segment", segment, code=code)
    text = command("dispute", run.path, replay)
    assert "trainer loses" in text
    place = rf"steps 1 to {INTERVAL}; .* first in step {INTERVAL}, instruction \d+ \(.+ of the new {re.escape(name)}\)"
    assert re.search(rf"{place}, element 3$", text, flags=re.MULTILINE)


def test_an_auditor_does_not_believe_the_trainers_thresholds(
    trained: RunDirectory, tmp_path: Path, command: Commands
) -> None:
    """It would round wrong, and accuse, with ones that are too small."""
    assert policy_of(trained) == POLICY_FILE
    (trained.path / POLICY).write_text("{}")
    command("audit", trained.path, "--output", tmp_path / "replay")
    assert not (tmp_path / "replay" / "policy.json").exists()
    with pytest.raises(EncodingError, match=r"policy\.json"):
        policy_of(trained)
