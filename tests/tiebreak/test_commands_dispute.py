"""`tiebreak dispute`: the verdict over a lie, where it stands, and what is not worth a game."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.parts import slow_except
from tests.tiebreak.parties import Parties, doubled_weight
from tests.tiebreak.test_commands_train import one_line
from tiebreak.api.audits import difference
from tiebreak.api.runs import open_run
from tiebreak.cli.key import load_key
from tiebreak.cli.main import run, tiebreak
from tiebreak.engine.run.audit import SegmentReport
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.tags import Digest


def dispute(run_folder: Path, replay: Path, *more: str) -> int:
    return run(tiebreak, ["dispute", str(run_folder), str(replay), "--threads", "1", *more])


@pytest.fixture
def honest(parties: Parties, tmp_path: Path) -> Path:
    return parties.trained(tmp_path / "honest")


def walk(text: str) -> list[tuple[str, int, int]]:
    rows = re.findall(r"^(\w+) +height +(\d+)  position (\d+)$", text, flags=re.MULTILINE)
    return [(tree, int(height), int(position)) for tree, height, position in rows]


@pytest.mark.parametrize("step", slow_except([2, 5, 7], 5))
def test_a_run_that_leaves_the_program_loses(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str], step: int
) -> None:
    cheating = parties.tampered(tmp_path / "cheating", doubled_weight(parties.path("agreed"), step))
    replay = tmp_path / "replay"
    assert parties.audit(cheating, replay) == 2
    capsys.readouterr()
    assert dispute(cheating, replay) == 0
    text = capsys.readouterr().out
    steps = walk(text)
    assert [tree for tree, _, _ in steps] == sorted((t for t, _, _ in steps), key=["run", "steps", "values"].index)
    assert [position for tree, _, position in steps if tree == "run"][-1] == (step - 1) // 3
    sentence, line = text.splitlines()[:2]
    first = (step - 1) // 3 * 3 + 1
    place = rf"(steps {first} to {min(first + 2, 7)}|step {step}(, instruction \d+ \(.+\)(, element \d+)?)?)"
    assert re.fullmatch(
        rf"the run leaves the program first in checkpoint {(step - 1) // 3 + 1} of 3, {place}", sentence
    )
    assert re.fullmatch(r"trainer loses after \d+ moves: .+", line)


def test_the_first_head_may_be_true(
    parties: Parties, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cheating = parties.tampered(tmp_path / "cheating", doubled_weight(parties.path("agreed"), 5))
    capsys.readouterr()
    assert dispute(cheating, honest, "--count", "1") == 0
    assert capsys.readouterr().out == "nothing to dispute: head 1 is what the program produces\n"
    assert dispute(cheating, honest, "--count", "2") == 0
    assert "trainer loses" in capsys.readouterr().out
    opened = open_run(cheating, threads=1)
    assert opened.dispute(honest, count=1) is None
    found = opened.dispute(honest)
    assert found is not None
    assert found.loser == "trainer"
    assert found.sentence.startswith("the run leaves the program first in checkpoint 2 of 3, step")


STATE, OTHER = Digest(bytes(32)), Digest(b"\1" * 32)
BASE = StepRecord(step=6, state_root=STATE, loss_bits=0)


@pytest.mark.parametrize(
    ("first", "own", "sentence"),
    [
        (4, replace(BASE, state_root=OTHER), "steps 4 to 6, where the state differs; X names the step, module and"),
        (6, replace(BASE, loss_bits=1), "step 6, where the loss differs; X names the module and instruction"),
        (6, replace(BASE, log_root=OTHER), "step 6, where the record differs; X names the module and instruction"),
    ],
)
def test_an_audit_says_in_one_sentence_what_differs_and_who_finds_the_rest(
    first: int, own: StepRecord, sentence: str
) -> None:
    report = SegmentReport(checkpoint=1, first_step=first, last_step=6, committed=BASE, replayed=own)
    assert difference(report, 3, "X").startswith(f"the run leaves the program first in checkpoint 2 of 3, {sentence}")


def test_an_honest_run_is_not_disputed(
    parties: Parties, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parties.audit(honest, tmp_path / "replay") == 0
    capsys.readouterr()
    assert dispute(honest, tmp_path / "replay") == 0
    assert capsys.readouterr().out == "nothing to dispute: head 3 is what the program produces\n"


def test_a_signed_root_out_of_nowhere_loses(
    parties: Parties, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trainer has the honest run and signed something else: it cannot open what it signed."""
    liar = shutil.copytree(honest, tmp_path / "liar")
    made = RunDirectory.open(liar)
    head = Head(job_id=made.job.id, count=3, run_root=bytes(range(32)))
    signed = SignedHead.sign(head, made.agreement.domain, load_key(parties.path("trainer.pem")))
    max((liar / "heads").iterdir()).write_bytes(signed.encode())
    assert parties.audit(liar, tmp_path / "replay") == 2
    capsys.readouterr()
    assert dispute(liar, tmp_path / "replay") == 0
    assert "trainer loses after 1 moves" in capsys.readouterr().out


def test_a_count_that_nobody_signed(honest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispute(honest, honest, "--count", "4") == 1
    assert "expected a head of 4 checkpoints, got those of [1, 2, 3]" in one_line(capsys)


def test_a_run_without_heads(
    parties: Parties, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispute(parties.signed(tmp_path / "run"), honest) == 1
    assert "expected at least one signed head, got none; nothing to dispute yet" in one_line(capsys)


def test_a_replay_that_has_not_come_as_far(
    parties: Parties, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    behind = parties.signed(tmp_path / "behind")
    assert parties.train(behind, "--until", "3") == 0
    capsys.readouterr()
    assert dispute(honest, behind) == 1
    assert "StateError: the replay has 1 checkpoints; replay to 3 before comparing" in one_line(capsys)


def test_a_replay_of_another_job(
    parties: Parties, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ["--client-key", str(parties.path("client.pem")), "--trainer-key", str(parties.path("trainer.pem"))]
    command = ["agree", str(parties.path("captured")), *keys, "--nonce", "5", "--output", str(tmp_path / "other")]
    assert run(tiebreak, command) == 0
    capsys.readouterr()
    assert dispute(honest, tmp_path / "other") == 1
    assert f"{tmp_path / 'other'}: expected a replay of job " in one_line(capsys)


@pytest.mark.parametrize("which", [0, 1])
def test_a_damaged_run(honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], which: int) -> None:
    broken = shutil.copytree(honest, tmp_path / "broken")
    (broken / "records.bin").write_bytes(bytes(76))
    folders = (broken, honest) if which == 0 else (honest, broken)
    assert dispute(*folders) == (2 if which else 0)
    printed = capsys.readouterr()
    if which:
        assert "EncodingError" in printed.err
    else:  # its heads are true: what else lies in the folder is not asked for
        assert printed.out.startswith("nothing to dispute")
