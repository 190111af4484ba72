"""`tiebreak audit`: an honest run passes, another fails with what was signed and what is true."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from math import comb
from pathlib import Path

import pytest

from tests.tiebreak.parties import PASSPHRASE, STEPS, Parties, doubled_weight
from tests.tiebreak.test_commands_train import one_line, root_of
from tiebreak.cli.audit import COULD_NOT_CHECK, AuditFailure
from tiebreak.cli.key import PASSPHRASE_VARIABLE
from tiebreak.cli.main import run, tiebreak
from tiebreak.engine.run.audit import compare, detection_probability, draw_segments, kept_steps
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.tags import Digest

TAMPERED_STEP = 5


@pytest.fixture(autouse=True)
def unqualified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests run the conformance vectors on this machine; here they would be most of the time."""
    monkeypatch.setattr("tiebreak.api.running.qualify", lambda _: None)


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
    replayed, unchecked, agrees = capsys.readouterr().out.splitlines()
    first, last = map(int, steps.split(" to "))
    assert replayed.startswith(f"replayed   {last - first + 1} steps, ")
    assert replayed.endswith(f" a second, from the states after steps {first - 1}")
    assert (unchecked, agrees) == ("unchecked  2 of 3 signed segments", f"agrees: steps {steps}")
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
    own, their = RunDirectory.open(replay).records()[1], RunDirectory.open(cheating).records()[1]
    assert printed.err.strip().splitlines()[-4:] == [
        "AuditFailure: the run leaves the program first in checkpoint 2 of 3, steps 4 to 6, where the state differs; "
        f"`tiebreak dispute {cheating} {replay}` names the step, module and instruction",
        f"  run root   expected {comparison.replayed.hex()}, got {comparison.committed.hex()}",
        f"  record     expected {own.digest.hex()}, got {their.digest.hex()}",
        f"  signed by  0x{RunDirectory.open(cheating).job.trainer.hex()}",
    ]
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
        assert "AuditFailure: the run leaves the program first in checkpoint 2 of 3, steps 4 to 6, " in printed.err
        assert records[1].digest.hex() in printed.err
    else:
        assert printed.out.splitlines()[-1].startswith("agrees: steps ")


def test_a_head_that_does_not_follow_from_the_records(
    cheating: Path, parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Honest records beside the signed heads of a lie: what is signed counts."""
    folder = parties.trained(tmp_path / "run")
    for path in (cheating / "heads").iterdir():
        (folder / "heads" / path.name).write_bytes(path.read_bytes())
    capsys.readouterr()
    assert parties.audit(folder, tmp_path / "replay") == 2
    assert (
        "AuditFailure: the signed root is not that of the program's 3 checkpoints; `tiebreak dispute "
        f"{folder} {tmp_path / 'replay'}` shows what it opens to\n  run root "
    ) in capsys.readouterr().err


def test_a_forged_signature_is_no_head(parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = parties.trained(tmp_path / "run")
    head = max((folder / "heads").iterdir())
    content = bytearray(head.read_bytes())
    content[-10] ^= 1
    head.write_bytes(content)
    capsys.readouterr()
    assert parties.audit(folder, tmp_path / "replay") == COULD_NOT_CHECK
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
    assert parties.audit(folder, tmp_path / "unused", "--segment", "1") == 0
    printed = capsys.readouterr()
    assert "warning: the state after step 3 is not what was committed; not used" in printed.err
    assert printed.out.splitlines()[-1] == "agrees: steps 1 to 6", "from an earlier state"
    initial = RunDirectory.open(folder).state_path(0)
    initial.write_bytes(initial.read_bytes()[:-1])
    assert parties.audit(folder, tmp_path / "unused", "--segment", "1") == COULD_NOT_CHECK
    expected = "CannotCheck: expected a state at or before step 3 that is what was committed, got none"
    assert capsys.readouterr().err.splitlines()[-1] == expected


def dropped(folder: Path, *steps: int) -> RunDirectory:
    """A run whose trainer kept not every state."""
    made = RunDirectory.open(folder)
    for step in steps:
        made.state_path(step).unlink()
    return made


@pytest.mark.parametrize(("segment", "start", "steps"), [("2", 0, "1 to 7"), ("1", 0, "1 to 6"), ("0", 0, "1 to 3")])
def test_dropped_checkpoints_cost_steps_and_nothing_else(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str], segment: str, start: int, steps: str
) -> None:
    folder = parties.trained(tmp_path / "run")
    made = dropped(folder, 3, 6, 7)
    assert kept_steps(made, 3) == [start]
    capsys.readouterr()
    assert parties.audit(folder, tmp_path / "unused", "--segment", segment) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"agrees: steps {steps}"


def test_a_trainer_that_keeps_only_the_last_checkpoint(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = parties.signed(tmp_path / "run")
    assert parties.train(folder, "--keep", "last") == 0
    assert kept_steps(RunDirectory.open(folder), 3) == [0, STEPS]
    capsys.readouterr()
    assert parties.audit(folder, tmp_path / "unused", "--segment", "2") == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0].startswith(f"replayed   {STEPS} steps, ")
    assert printed.err.splitlines()[-1].startswith(f"replaying: step {STEPS} of {STEPS}, loss ")
    assert printed.err.splitlines()[-1].endswith(" steps/s")


def test_a_lie_on_the_way_to_a_segment_is_found(
    cheating: Path, parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(cheating, folder)
    dropped(folder, 6)
    assert parties.audit(folder, tmp_path / "unused", "--segment", "2") == 2
    assert (
        "AuditFailure: the run leaves the program first in checkpoint 2 of 3, steps 4 to 6, " in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("options", "steps", "replayed"),
    [
        (("--from-step", "4"), "4 to 7", 4),
        (("--to-step", "3"), "1 to 3", 3),
        (("--from-step", "5", "--to-step", "6"), "4 to 6", 3),
        (("--from-step", "3", "--to-step", "4"), "1 to 6", 6),
    ],
)
def test_a_range_of_steps_is_checked_in_whole_segments(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], steps: str,
    replayed: int,
) -> None:  # fmt: skip
    folder = parties.trained(tmp_path / "run")
    capsys.readouterr()
    assert parties.audit(folder, tmp_path / "unused", *options) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"replayed   {replayed} steps, ")
    assert out[-1] == f"agrees: steps {steps}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--from-step", "8"), "expected steps within 1 to 7, which are signed, got 8 to 7"),
        (("--from-step", "5", "--to-step", "4"), "got 5 to 4"),
        (("--sample", "4"), "expected a sample of 1 to 3 segments, got 4"),
        (("--sample", "1", "--segment", "0"), "expected one of --segment"),
        (("--seed", "x"), "expected --seed together with --sample"),
    ],
)
def test_what_cannot_be_asked(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    folder = parties.trained(tmp_path / "run")
    capsys.readouterr()
    assert parties.audit(folder, tmp_path / "unused", *options) == 1
    assert words in one_line(capsys)


def test_a_sample_says_how_it_was_drawn_and_what_it_can_see(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = parties.trained(tmp_path / "run")
    capsys.readouterr()
    reports = []
    for options in (("--sample", "2", "--seed", "coin"), ("--sample", "2", "--seed", "coin"), ("--sample", "2")):
        assert parties.audit(folder, tmp_path / "unused", *options, "--json") == 0
        reports.append(json.loads(capsys.readouterr().out))
    first, again, other = reports
    assert first["wanted"] == again["wanted"]
    assert first["checked"] == again["checked"]
    assert first["detection"] == [{"false": 1, "probability": pytest.approx(2 / 3)}]
    assert (first["verdict"], first["kind"], first["not_checked"]) == ("agrees", "sample", 1)
    assert first["head"]["run_root"] == RunDirectory.open(folder).heads()[-1].head.run_root.hex()
    assert len(bytes.fromhex(other["seed"])) == 16, "a new secret for each draw"
    assert parties.audit(folder, tmp_path / "unused", "--sample", "2", "--seed", "coin") == 0
    sample, detection, *_ = capsys.readouterr().out.splitlines()
    assert sample == "sample     2 of 3 segments, drawn from the seed coin and the signed root"
    assert detection == "detection  one false segment: 66.7%"


def test_verdicts_as_json(cheating: Path, parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert parties.audit(cheating, tmp_path / "replay", "--json") == 2
    whole = json.loads(capsys.readouterr().out)
    assert (whole["verdict"], whole["kind"], whole["head"]["count"]) == ("fraud", "whole", 3)
    assert whole["replayed_root"] != whole["head"]["run_root"]
    assert whole["first_difference"] == {"checkpoint": 1, "steps": [4, 6]}
    assert whole["reason"].startswith("the run leaves the program first in checkpoint 2 of 3, steps 4 to 6, ")
    assert parties.audit(cheating, tmp_path / "unused", "--from-step", "1", "--json") == 2
    parts = json.loads(capsys.readouterr().out)
    assert parts["checked"] == [[0, 1, 3], [1, 4, 6]], "it ends where the fraud is"
    assert (parts["verdict"], parts["not_checked"], parts["steps_replayed"]) == ("fraud", 1, 6)


def test_records_that_are_not_signed_are_not_believed(
    cheating: Path, parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Honest records and states beside a head that was signed over others: no segment says anything."""
    folder = parties.trained(tmp_path / "run")
    for path in (cheating / "heads").iterdir():
        (folder / "heads" / path.name).write_bytes(path.read_bytes())
    capsys.readouterr()
    assert parties.audit(folder, tmp_path / "unused", "--segment", "0", "--json") == COULD_NOT_CHECK
    printed = capsys.readouterr()
    assert json.loads(printed.out)["verdict"] == "could not check"
    assert printed.err.startswith("CannotCheck: expected 3 records with the signed root ")
    records = folder / "records.bin"
    records.write_bytes(records.read_bytes()[:-1])
    assert parties.audit(folder, tmp_path / "unused", "--sample", "1") == COULD_NOT_CHECK


@pytest.mark.parametrize(("total", "sample"), [(1, 1), (7, 3), (40, 40), (1000, 10)])
def test_a_draw_is_a_sample_that_the_root_and_the_seed_fix(total: int, sample: int) -> None:
    root, other = Digest(bytes(32)), Digest(b"\1" + bytes(31))
    drawn = draw_segments(total, sample, b"seed", root)
    assert len(set(drawn)) == sample
    assert list(drawn) == sorted(drawn)
    assert set(drawn) <= set(range(total))
    assert draw_segments(total, sample, b"seed", root) == drawn
    if total == 1000:
        assert len({drawn, draw_segments(total, sample, b"seed", other), draw_segments(total, sample, b"s", root)}) == 3


def test_a_draw_is_fair() -> None:
    """Each of 5 segments in about 2/5 of 2,000 draws of 2: the counts of a fair draw lie in this range but for 1e-9."""
    counts = Counter(i for n in range(2000) for i in draw_segments(5, 2, n.to_bytes(4, "big"), Digest(bytes(32))))
    assert sorted(counts) == [0, 1, 2, 3, 4]
    assert all(abs(count - 800) < 135 for count in counts.values()), counts


def test_the_probability_is_that_of_drawing_without_replacement(cases: Callable[[], None]) -> None:
    for total in range(1, 12):
        for checked in range(1, total + 1):
            for false in range(1, total + 1):
                exact = 1 - Fraction(comb(total - false, checked), comb(total, checked))
                assert detection_probability(total, checked, false) == pytest.approx(float(exact), abs=1e-15)
                cases()
    assert detection_probability(10**7, 10**4, 10**5) == pytest.approx(1.0)
    assert detection_probability(10**7, 1, 1) == pytest.approx(1e-7, rel=1e-8)


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
