"""`tiebreak dispute`: the verdict over a lie, where it stands, and what is not worth a game."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiebreak.parties import Commands, Parties
from tiebreak.api.auditing.audits import difference
from tiebreak.api.training.runs import open_run
from tiebreak.cli.dispute import NOTHING_TO_DISPUTE
from tiebreak.cli.key import load_key
from tiebreak.engine.run.audit import SegmentReport
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.tags import Digest

Dispute = Callable[..., str]


@pytest.fixture
def dispute(command: Commands) -> Dispute:
    """What the command prints on stdout about a run and a replay of it."""
    return lambda *more, code=0: command.printed("dispute", *more, "--threads", 1, code=code)[0]


@pytest.fixture
def honest(parties: Parties, tmp_path: Path) -> Path:
    return parties.trained(tmp_path / "honest")


@pytest.mark.parametrize("step", [5, 7])
def test_the_trainer_of_a_false_run_loses_its_dispute(
    parties: Parties, honest: Path, tmp_path: Path, dispute: Dispute, step: int
) -> None:
    text = dispute(parties.cheating(tmp_path / "cheating", step), honest)
    rows = re.findall(r"^(\w+) +height +\d+  position (\d+)$", text, flags=re.MULTILINE)
    trees = [tree for tree, _ in rows]
    assert trees == sorted(trees, key=["run", "steps", "values"].index)
    assert [int(position) for tree, position in rows if tree == "run"][-1] == (step - 1) // 3
    sentence, line = text.splitlines()[:2]
    first = (step - 1) // 3 * 3 + 1
    place, what = (f"steps {first} to 6", "the loss") if first < 7 else ("step 7", r"the new .*\w")
    assert re.fullmatch(
        rf"the run leaves the program first in checkpoint {(step - 1) // 3 + 1} of 3, {place}; "
        r"its archive does not show how, but what it committed to, or told, differs first in "
        rf"step {step}, instruction \d+ \(map \w+ of {what}\), element \d+",
        sentence,
    )
    assert re.fullmatch(r"trainer loses after 3 moves: the defender conceded in phase OPEN_(STEPS|VALUES)", line)
    assert re.search(r"^committed [0-9a-f]{8}\ncorrect   [0-9a-f]{8}$", text, flags=re.MULTILINE)
    found = json.loads(dispute(tmp_path / "cheating", honest, "--json"))
    assert (found["loser"], found["moves"], found["sentence"]) == ("trainer", 3, sentence)
    assert [step["tree"] for step in found["walk"]] == trees
    assert "values" in trees


def test_a_dispute_works_without_metrics_or_kept_states(
    parties: Parties, honest: Path, tmp_path: Path, dispute: Dispute
) -> None:
    """The state says more without losses, and nothing does without the state: then the walk ends in the archive."""
    cheating = parties.cheating(tmp_path / "cheating", 5)
    (cheating / "metrics.jsonl").write_text('{"step": 5, "loss": NaN}\n{"step": 5.5, "loss": 1.0}\n{"step": 4}\n')
    assert re.search(r"differs first in step 6, instruction \d+ \(.+ of .+\), element", dispute(cheating, honest))
    RunDirectory.open(cheating).drop_state(6)
    (ended, *_) = dispute(cheating, honest).splitlines()
    assert ended == "the run leaves the program first in checkpoint 2 of 3, steps 4 to 6"


def test_a_true_head_of_a_false_run_is_not_disputed(
    parties: Parties, honest: Path, tmp_path: Path, dispute: Dispute
) -> None:
    cheating = parties.cheating(tmp_path / "cheating", 5)
    said = f"nothing to dispute: head 1 has the root of {honest}"
    assert dispute(cheating, honest, "--count", 1, code=NOTHING_TO_DISPUTE) == f"{said}\n"
    found = json.loads(dispute(cheating, honest, "--count", 1, "--json", code=NOTHING_TO_DISPUTE))
    assert found == {"loser": None, "sentence": said}
    assert "trainer loses" in dispute(cheating, honest, "--count", 2)
    opened = open_run(cheating)
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
def test_audit_failures_name_the_first_difference_in_one_sentence(first: int, own: StepRecord, sentence: str) -> None:
    report = SegmentReport(checkpoint=1, first_step=first, last_step=6, committed=BASE, replayed=own)
    assert difference(report, 3, "X").startswith(f"the run leaves the program first in checkpoint 2 of 3, {sentence}")


def test_a_trainer_that_cannot_open_its_signed_root_loses(
    parties: Parties, honest: Path, tmp_path: Path, dispute: Dispute
) -> None:
    """The trainer has the honest run and signed something else: it cannot open what it signed."""
    liar = parties.trained(tmp_path / "liar")
    made = RunDirectory.open(liar)
    head = Head(job_id=made.job.id, count=3, run_root=Digest(bytes(range(32))))
    signed = SignedHead.sign(head, made.agreement.domain, load_key(parties.path("trainer.pem")))
    max((liar / "heads").iterdir()).write_bytes(signed.encode())
    assert "trainer loses after 1 moves" in dispute(liar, honest)


def test_missing_heads_and_mismatched_replays_cannot_be_disputed(
    parties: Parties, honest: Path, tmp_path: Path, command: Commands
) -> None:
    fresh, other = parties.signed(tmp_path / "fresh"), tmp_path / "other"
    said = "expected a head of 4 checkpoints, got those of [1, 2, 3]"
    assert said in command.error("dispute", honest, honest, "--count", 4)
    assert "at least one signed head, got none; nothing to dispute yet" in command.error("dispute", fresh, honest)
    assert parties.train(fresh, "--quiet", "--until", "3") == 0
    said = "StateError: the replay has 1 checkpoints; replay to 3 before comparing"
    assert said in command.error("dispute", honest, fresh)
    command("agree", parties.path("captured"), *parties.keys, "--nonce", 5, "--output", other)
    assert f"{other}: expected a replay of job " in command.error("dispute", honest, other)


def test_dispute_refuses_a_damaged_replay_but_not_a_damaged_run(
    parties: Parties, honest: Path, tmp_path: Path, dispute: Dispute, command: Commands
) -> None:
    broken = parties.trained(tmp_path / "broken")
    (broken / "records.bin").write_bytes(bytes(76))
    assert "EncodingError" in command.error("dispute", honest, broken, code=2)
    # Its heads are true: what else lies in its folder is not asked for.
    assert dispute(broken, honest, code=NOTHING_TO_DISPUTE) == f"nothing to dispute: head 3 has the root of {honest}\n"
