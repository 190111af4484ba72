"""Jobs of policy `logged` and of other precisions from the command line: train, audit, dispute."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.engine.logged_cases import INTERVAL, STEPS, compiled, log_of
from tests.engine.tiny import CLIENT, DOMAIN, TRAINER
from tests.tiebreak.parties import Commands, Once
from tiebreak.api.keys import save_key
from tiebreak.cli.key import PASSPHRASE_VARIABLE
from tiebreak.cli.main import run as cli
from tiebreak.cli.main import tiebreak
from tiebreak.engine.logged.policy import POLICY, LoggedPolicy
from tiebreak.engine.logged.policy import policy_of as read_policy
from tiebreak.engine.run.agreement import Terms, draft_job, sign_job
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.rounding import Policy, SumKind, pack_tolerances

PASSWORD = "a long passphrase"
TOLERANCES = dict.fromkeys(SumKind, 2)


def policy_of(precision: int = 32, threshold: float | None = 2.0**24) -> LoggedPolicy:
    """A wide policy: a share of all elements is logged."""
    thresholds = dict.fromkeys(SumKind, threshold)
    return LoggedPolicy(precision=precision, thresholds=thresholds, tolerances=TOLERANCES)


def make_run(path: Path, precision: int = 32, *, logged: bool = True) -> RunDirectory:
    """A run in which nothing is computed yet."""
    made = compiled()
    job = draft_job(
        made,
        steps=STEPS,
        checkpoint_interval=INTERVAL,
        client=CLIENT.address,
        trainer=TRAINER.address,
        terms=Terms(clock=1000),
        policy=Policy.LOGGED if logged else Policy.EXACT,
        precision=precision,
        tolerances=pack_tolerances(TOLERANCES) if logged else 0,
    )
    signed = sign_job(job, DOMAIN, client=CLIENT, trainer=TRAINER)
    more = {POLICY: policy_of(precision).encode()} if logged else {}
    return RunDirectory.create(path, signed, made.program, made.state, made.data, more)


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
def test_a_logged_run_is_trained_audited_and_its_logs_are_told_of(
    trained: RunDirectory, tmp_path: Path, command: Commands
) -> None:
    entries = sum(log_of(trained, step).count for step in range(1, STEPS + 1))
    assert entries > STEPS
    policy_of().save(tmp_path / "own.json")
    audit, replay = ["audit", trained.path], tmp_path / "replay"
    log = command.tell(*audit, "--output", replay, "--permute", 3, "--policy", tmp_path / "own.json")["log"]
    assert (log["entries"], log["steps"], log["elsewhere"], log["missing"]) == (entries, STEPS, 0, 0)
    assert log["findings"] == []
    assert "logs       " in command(*audit, "--sample", 2, "--seed", "a")
    words = command(*audit, "--output", tmp_path / "words")
    assert f"logs       {entries} entries in {STEPS} steps; 0 were needed here" in words
    assert "nothing to dispute" in command("dispute", trained.path, replay)


def test_withheld_logs_are_no_fraud_and_no_audit(trained: RunDirectory, tmp_path: Path, command: Commands) -> None:
    (trained.path / "logs" / f"{2 * INTERVAL:012d}.log").unlink()
    for extra in (["--output", tmp_path / "replay"], ["--segment", 1]):
        error = command("audit", trained.path, *extra, code=3)
        assert f"CannotCheck: {trained.path}: log of step {INTERVAL + 1}: " in error
    command("audit", trained.path, "--segment", 0)


def test_a_lie_in_a_logged_run_is_fraud_and_loses_its_dispute(
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
    assert "trainer loses" in command("dispute", run.path, replay)


def test_an_auditor_does_not_believe_the_trainers_thresholds(
    trained: RunDirectory, tmp_path: Path, command: Commands
) -> None:
    """With ones that are too small it would round wrong, and accuse."""
    assert read_policy(trained) == policy_of()
    (trained.path / POLICY).write_text("{}")
    command("audit", trained.path, "--output", tmp_path / "replay")
    assert not (tmp_path / "replay" / "policy.json").exists()
    with pytest.raises(EncodingError, match=r"policy\.json"):
        read_policy(trained)
