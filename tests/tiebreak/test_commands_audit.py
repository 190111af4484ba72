"""`tiebreak audit`: an honest run passes, another fails with what was signed and what is true."""

from pathlib import Path

import pytest

from engine.auditing import compare
from engine.storage import RunDirectory
from protocol.errors import VerificationError
from tests.tiebreak.parties import PASSPHRASE, STEPS, Parties, doubled_weight
from tests.tiebreak.test_commands_train import one_line, root_of
from tiebreak.cli import run, tiebreak
from tiebreak.commands.audit import AuditFailure
from tiebreak.keyfiles import PASSPHRASE_VARIABLE

TAMPERED_STEP = 5


@pytest.fixture(scope="module")
def cheating(tmp_path_factory: pytest.TempPathFactory, shared_parties: Parties) -> Path:
    """A run that leaves the program in its second segment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
        folder = tmp_path_factory.mktemp("cheating") / "run"
        return shared_parties.tampered(folder, doubled_weight(shared_parties.path("agreed"), TAMPERED_STEP))


def test_an_honest_run_agrees(parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, replay = parties.trained(tmp_path / "run"), tmp_path / "replay"
    root = RunDirectory.open(folder).heads()[-1].head.run_root.hex()
    capsys.readouterr()
    assert parties.audit(folder, replay, "--permute", "5") == 0
    text = capsys.readouterr().out
    assert root_of(text) == root
    assert text.splitlines()[-1] == f"agrees: 3 checkpoints, {STEPS} steps"
    own = RunDirectory.open(replay)
    assert own.records() == RunDirectory.open(folder).records()
    assert own.heads() == [], "an auditor signs no heads"
    assert parties.audit(folder, replay) == 0, "a replay that is there is used again"


def test_a_run_under_way_is_audited_as_far_as_it_is_signed(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, replay = parties.signed(tmp_path / "run"), tmp_path / "replay"
    assert parties.audit(folder, replay) == 1
    assert "expected at least one signed head, got none" in capsys.readouterr().err
    for until, line in (("4", "agrees: 1 checkpoints, 3 steps"), ("6", "agrees: 2 checkpoints, 6 steps")):
        assert parties.train(folder, "--until", until) == 0
        assert parties.audit(folder, replay) == 0
        assert capsys.readouterr().out.splitlines()[-1] == line


@pytest.mark.parametrize(("segment", "steps"), [("0", "1 to 3"), ("1", "4 to 6"), ("2", "7 to 7")])
def test_one_segment(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str], segment: str, steps: str
) -> None:
    folder = parties.trained(tmp_path / "run")
    capsys.readouterr()
    assert parties.audit(folder, tmp_path / "unused", "--segment", segment) == 0
    assert capsys.readouterr().out == f"agrees: steps {steps}\n"
    assert not (tmp_path / "unused").exists()


def test_a_segment_that_is_not_there(parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = parties.trained(tmp_path / "run")
    capsys.readouterr()
    assert parties.audit(folder, tmp_path / "unused", "--segment", "3") == 1
    assert "expected a checkpoint below 3, got 3" in one_line(capsys)


def test_a_lie_fails_the_audit(
    cheating: Path, parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay = tmp_path / "replay"
    assert parties.audit(cheating, replay) == 2
    printed = capsys.readouterr()
    comparison = compare(RunDirectory.open(replay), RunDirectory.open(cheating).heads()[-1])
    assert not comparison.agrees
    last = printed.err.strip().splitlines()[-1]
    assert last.startswith(f"AuditFailure: expected run root {comparison.replayed.hex()} after 3 checkpoints, got ")
    assert comparison.committed.hex() in last
    assert RunDirectory.open(cheating).job.trainer.hex() in last
    assert "agrees" not in printed.out
    honest = RunDirectory.open(parties.trained(tmp_path / "honest")).heads()[-1].head.run_root
    assert comparison.replayed == honest != comparison.committed
    assert issubclass(AuditFailure, VerificationError)


@pytest.mark.parametrize(("segment", "code"), [("0", 0), ("1", 2), ("2", 0)])
def test_only_the_segment_with_the_lie_fails(
    cheating: Path, parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str], segment: str, code: int
) -> None:
    """What comes after a lie follows from it."""
    assert parties.audit(cheating, tmp_path / "unused", "--segment", segment) == code
    printed = capsys.readouterr()
    if code:
        records = RunDirectory.open(cheating).records()
        assert printed.err.startswith("AuditFailure: steps 4 to 6: expected record ")
        assert records[1].digest.hex() in printed.err
    else:
        assert printed.out.startswith("agrees: steps ")


def test_a_head_that_does_not_follow_from_the_records(
    cheating: Path, parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Honest records beside the signed heads of a lie: what is signed counts."""
    folder = parties.trained(tmp_path / "run")
    for path in (cheating / "heads").iterdir():
        (folder / "heads" / path.name).write_bytes(path.read_bytes())
    capsys.readouterr()
    assert parties.audit(folder, tmp_path / "replay") == 2
    assert "AuditFailure: expected run root" in capsys.readouterr().err


def test_a_forged_signature_is_no_head(parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = parties.trained(tmp_path / "run")
    head = max((folder / "heads").iterdir())
    content = bytearray(head.read_bytes())
    content[-10] ^= 1
    head.write_bytes(content)
    capsys.readouterr()
    assert parties.audit(folder, tmp_path / "replay") == 2
    assert one_line(capsys).split(":")[0] in ("SignatureError", "EncodingError")


def test_a_checkpoint_that_was_not_committed(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = parties.trained(tmp_path / "run")
    path = RunDirectory.open(folder).state_path(3)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    capsys.readouterr()
    assert parties.audit(folder, tmp_path / "unused", "--segment", "1") == 2
    assert one_line(capsys).startswith("VerificationError: state after step 3: expected root")
    assert parties.audit(folder, tmp_path / "replay") == 0, "a whole audit does not read the trainer's checkpoints"


def test_a_replay_of_another_job_is_not_resumed(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = parties.trained(tmp_path / "run")
    keys = ["--client-key", str(parties.path("client.pem")), "--trainer-key", str(parties.path("trainer.pem"))]
    other = ["agree", str(parties.path("captured")), *keys, "--nonce", "5", "--output", str(tmp_path / "other")]
    assert run(tiebreak, other) == 0
    capsys.readouterr()
    assert parties.audit(folder, tmp_path / "other") == 1
    assert "got another job's" in one_line(capsys)
    (tmp_path / "other" / "job.bin").unlink()
    assert parties.audit(folder, tmp_path / "other") == 1
    assert "expected a new or empty directory" in one_line(capsys)


def test_an_empty_folder_may_take_the_replay(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "replay").mkdir()
    assert parties.audit(parties.trained(tmp_path / "run"), tmp_path / "replay") == 0
    assert "agrees" in capsys.readouterr().out
