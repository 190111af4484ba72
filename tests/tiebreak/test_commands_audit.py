"""`tiebreak audit`: an honest run passes, another fails with what was signed and what is true."""

import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from math import comb
from pathlib import Path

import pytest

from tests.parts import slow_except
from tests.tiebreak.parties import INTERVAL, STEPS, Commands, Parties, flip
from tests.tiebreak.test_commands_train import root_of
from tiebreak.api.auditing.audits import MARK, audit_whole
from tiebreak.api.machine import Machine
from tiebreak.cli.audit import COULD_NOT_CHECK, AuditFailure
from tiebreak.engine.run import segments
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.segments import compare, detection_probability, draw_segments
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.tags import Digest

LIE = "AuditFailure: the run leaves the program first in checkpoint 2 of 3, steps 4 to 6, "


@pytest.fixture
def cheating(parties: Parties, tmp_path: Path) -> Path:
    """A run that leaves the program in its second segment."""
    return parties.cheating(tmp_path / "cheating", 5)


@pytest.fixture
def honest(parties: Parties, tmp_path: Path) -> Path:
    return parties.trained(tmp_path / "honest")


class Audit:
    """The command, whose replay of a whole run goes to one folder."""

    def __init__(self, command: Commands, replay: Path) -> None:
        self.command, self.replay = command, replay

    def arguments(self, folder: Path, *options: str) -> list[object]:
        return ["audit", folder, "--output", self.replay, "--threads", 1, *options]

    def __call__(self, folder: Path, *options: str, code: int = 0) -> str:
        return self.command(*self.arguments(folder, *options), code=code)

    def last(self, folder: Path, *options: str) -> str:
        return self(folder, *options).splitlines()[-1]

    def error(self, folder: Path, *options: str, code: int = 1) -> str:
        return self.command.error(*self.arguments(folder, *options), code=code)


@pytest.fixture
def audit(command: Commands, tmp_path: Path) -> Audit:
    return Audit(command, tmp_path / "replay")


def test_an_honest_run_passes_its_audit(honest: Path, audit: Audit) -> None:
    audit.replay.mkdir()  # an empty folder may take the replay
    text = audit(honest, "--permute", "5")
    assert root_of(text) == RunDirectory.open(honest).heads()[-1].head.run_root.hex()
    assert text.splitlines()[-1] == f"agrees: 3 checkpoints, {STEPS} steps"
    own = RunDirectory.open(audit.replay)
    assert own.records() == RunDirectory.open(honest).records()
    assert own.heads() == [], "an auditor signs no heads"
    audit(honest)  # a replay that is there is used again


def test_a_run_under_way_is_audited_as_far_as_it_is_signed(parties: Parties, tmp_path: Path, audit: Audit) -> None:
    folder = parties.signed(tmp_path / "run")
    assert "expected at least one signed head, got none" in audit(folder, code=1)
    resumed = "agrees: 2 checkpoints, 6 steps, 3 of them replayed before"
    for until, line in (("4", "agrees: 1 checkpoints, 3 steps"), ("6", resumed)):
        assert parties.train(folder, "--until", until) == 0
        assert audit.last(folder) == line


def test_a_false_run_fails_its_audit(cheating: Path, honest: Path, audit: Audit) -> None:
    out, err = audit.command.printed(*audit.arguments(cheating), code=2)
    comparison = compare(RunDirectory.open(audit.replay), RunDirectory.open(cheating).heads()[-1])
    assert not comparison.agrees
    own, their = RunDirectory.open(audit.replay).records()[1], RunDirectory.open(cheating).records()[1]
    assert err.strip().splitlines()[-4:] == [
        f"{LIE}where the state differs; "
        f"`tiebreak dispute {cheating} {audit.replay}` names the step, module and instruction",
        f"  run root   expected {comparison.replayed.hex()}, got {comparison.committed.hex()}",
        f"  record     expected {own.digest.hex()}, got {their.digest.hex()}",
        f"  signed by  0x{RunDirectory.open(cheating).job.trainer.hex()}",
    ]
    assert "agrees" not in out
    assert comparison.replayed == RunDirectory.open(honest).heads()[-1].head.run_root != comparison.committed
    assert issubclass(AuditFailure, VerificationError)


def test_only_the_false_segment_fails_its_audit(cheating: Path, audit: Audit) -> None:
    """What comes after a lie follows from it."""
    told = audit(cheating, "--segment", "1", code=2)
    assert LIE in told
    assert RunDirectory.open(cheating).records()[1].digest.hex() in told
    assert audit.last(cheating, "--segment", "2") == "agrees: steps 7 to 7"
    RunDirectory.open(cheating).drop_state(6)
    assert LIE in audit(cheating, "--segment", "2", code=2), "it is found on the way to a segment"


def test_an_audit_judges_signed_heads_not_the_records_beside_them(cheating: Path, honest: Path, audit: Audit) -> None:
    """Honest records and states beside heads that were signed over others: no segment says anything."""
    for path in (cheating / "heads").iterdir():
        (honest / "heads" / path.name).write_bytes(path.read_bytes())
    expected = f"`tiebreak dispute {honest} {audit.replay}` shows what it opens to\n  run root "
    failure = "AuditFailure: the signed root is not that of the program's 3 checkpoints; "
    assert failure + expected in audit(honest, code=2)
    out, err = audit.command.printed(*audit.arguments(honest, "--segment", "0", "--json"), code=COULD_NOT_CHECK)
    assert json.loads(out)["verdict"] == "could not check"
    assert err.startswith("CannotCheck: expected 3 records with the signed root ")
    records = honest / "records.bin"
    records.write_bytes(records.read_bytes()[:-1])
    audit(honest, "--sample", "1", code=COULD_NOT_CHECK)


def test_audit_skips_a_damaged_checkpoint_and_starts_from_an_earlier_one(honest: Path, audit: Audit) -> None:
    run = RunDirectory.open(honest)
    content = bytearray(run.state_path(3).read_bytes())
    content[-1] ^= 1
    run.state_path(3).write_bytes(content)
    out, err = audit.command.printed(*audit.arguments(honest, "--segment", "1"))
    assert "warning: the state after step 3 is not what was committed; not used" in err
    assert out.splitlines()[-1] == "agrees: steps 1 to 6", "from an earlier state"
    run.state_path(0).write_bytes(run.state_path(0).read_bytes()[:-1])
    expected = "CannotCheck: expected a state at or before step 3 that is what was committed, got none"
    assert audit(honest, "--segment", "1", code=COULD_NOT_CHECK).splitlines()[-1] == expected


def test_an_audit_cannot_agree_if_the_final_state_is_damaged(honest: Path, audit: Audit) -> None:
    """`tiebreak weights` refuses that file. A state in between is only not used."""
    flip(RunDirectory.open(honest).state_path(INTERVAL))
    assert audit.last(honest) == f"agrees: 3 checkpoints, {STEPS} steps"
    flip(RunDirectory.open(honest).state_path(STEPS))
    said = (
        f"CannotCheck: expected the state after step {STEPS} that the trainer committed to, which is right, got another"
    )
    for options in ((), ("--segment", "2"), ("--from-step", "1"), ("--sample", "3")):
        out, err = audit.command.printed(*audit.arguments(honest, *options, "--json"), code=COULD_NOT_CHECK)
        assert json.loads(out)["verdict"] == "could not check"
        assert err.splitlines()[-1].startswith(said)
    assert audit.last(honest, "--segment", "1") == "agrees: steps 1 to 6", "which says nothing of the last"
    unsettled = ["weights", honest, "-o", honest / "w.safetensors", "--unsettled"]
    assert "state after step 7: expected root" in audit.command.error(*unsettled, code=2)
    RunDirectory.open(honest).drop_state(STEPS)
    assert audit.last(honest, "--segment", "2") == "agrees: steps 7 to 7"


@pytest.mark.parametrize(
    ("options", "steps", "replayed", "start", "left"),
    [
        (("--segment", "2"), "7 to 7", 1, 6, 2),
        (("--from-step", "4"), "4 to 7", 4, 3, 1),
        (("--to-step", "3"), "1 to 3", 3, 0, 2),
        (("--from-step", "5", "--to-step", "6"), "4 to 6", 3, 3, 2),
        (("--from-step", "3", "--to-step", "4"), "1 to 6", 6, 0, 1),
    ],
)
def test_a_range_of_steps_is_checked_in_whole_segments(
    honest: Path, audit: Audit, options: tuple[str, ...], steps: str, replayed: int, start: int, left: int
) -> None:
    first, unchecked, last = audit(honest, *options).splitlines()
    assert first.startswith(f"replayed   {replayed} steps, ")
    assert f" a second, from the states after steps {start}" in first
    assert unchecked == f"unchecked  {left} of 3 signed segments"
    assert last == f"agrees: steps {steps}"
    assert not audit.replay.exists()


def test_a_sampled_audit_reports_its_draw_and_detection_probability(honest: Path, audit: Audit) -> None:
    seeded = ("--sample", "2", "--seed", "coin")
    first, again, other = (json.loads(audit(honest, *more, "--json")) for more in (seeded, seeded, seeded[:2]))
    assert first["wanted"] == again["wanted"]
    assert first["checked"] == again["checked"]
    assert first["detection"] == [{"false": 1, "probability": pytest.approx(2 / 3)}]
    assert (first["verdict"], first["kind"], first["not_checked"]) == ("agrees", "sample", 1)
    assert first["head"]["run_root"] == RunDirectory.open(honest).heads()[-1].head.run_root.hex()
    assert len(bytes.fromhex(other["seed"])) == 16, "a new secret for each draw"
    sample, detection, *_ = audit(honest, *seeded).splitlines()
    assert sample == "sample     2 of 3 segments, drawn from the seed coin and the signed root"
    assert detection == "detection  one false segment: 66.7%"


def test_audit_verdicts_are_reported_as_json(cheating: Path, audit: Audit) -> None:
    whole, parts = (
        json.loads(audit.command.printed(*audit.arguments(cheating, *more, "--json"), code=2)[0])
        for more in ((), ("--from-step", "1"))
    )
    assert (whole["verdict"], whole["kind"], whole["head"]["count"]) == ("fraud", "whole", 3)
    assert whole["replayed_root"] != whole["head"]["run_root"]
    assert whole["first_difference"] == {"checkpoint": 1, "steps": [4, 6]}
    assert whole["reason"].startswith(LIE.removeprefix("AuditFailure: "))
    assert parts["checked"] == [[0, 1, 3], [1, 4, 6]], "it ends where the fraud is"
    assert (parts["verdict"], parts["not_checked"], parts["steps_replayed"]) == ("fraud", 1, 6)


def test_segment_draws_are_determined_by_root_and_seed() -> None:
    roots = Digest(bytes(32)), Digest(b"\1" + bytes(31))
    drawn = [draw_segments(1000, 10, seed, root) for seed in (b"seed", b"s") for root in roots]
    assert len(set(drawn)) == 4
    assert all(len({*one} & {*range(1000)}) == 10 and [*one] == sorted(one) for one in drawn)
    assert draw_segments(40, 40, b"seed", roots[0]) == (*range(40),)


def test_segment_draws_reject_words_that_would_cause_modulo_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three segments, 2^64 - 1 is the one word beyond the last whole round."""
    real = segments.sha256

    class Highest:
        def digest(self) -> bytes:
            return b"\xff" * 32

    monkeypatch.setattr(segments, "sha256", lambda data: Highest() if data[32:] == bytes(8) else real(data))
    root = Digest(bytes(32))
    drawn = {draw_segments(3, 1, seed.to_bytes(4, "big"), root) for seed in range(20)}
    assert drawn == {(0,), (1,), (2,)}, "not always that of the highest word, 0"


def test_detection_probability_is_that_of_drawing_without_replacement(cases: Callable[[], None]) -> None:
    for total in range(1, 12):
        for checked in range(1, total + 1):
            for false in range(1, total + 1):
                exact = 1 - Fraction(comb(total - false, checked), comb(total, checked))
                assert detection_probability(total, checked, false) == pytest.approx(float(exact), abs=1e-15)
                cases()
    assert detection_probability(10**7, 10**4, 10**5) == pytest.approx(1.0)
    assert detection_probability(10**7, 1, 1) == pytest.approx(1e-7, rel=1e-8)


def test_a_replay_of_another_job_is_not_resumed(parties: Parties, honest: Path, audit: Audit) -> None:
    other = ["agree", parties.path("captured"), *parties.keys, "--nonce", 5, "--output", audit.replay]
    audit.command(*other)
    assert "got another job's" in audit.error(honest)
    (audit.replay / "job.bin").unlink()
    assert "expected a new or empty directory" in audit.error(honest)


FOREIGN = "expected a replay that you began in this place, with the records that it came to, got one that anybody may"


def test_only_a_replay_begun_by_this_user_in_that_folder_is_resumed(
    cheating: Path, honest: Path, audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive may bring a replay that agrees with its lie, also with the mark of another place or user."""
    shutil.copytree(cheating, audit.replay)
    assert FOREIGN in audit.error(cheating)
    mine = tmp_path / "mine"
    own = Audit(audit.command, mine)
    assert own.last(honest) == f"agrees: 3 checkpoints, {STEPS} steps"
    assert own.last(honest) == f"agrees: 3 checkpoints, {STEPS} steps, {STEPS} of them replayed before"
    assert json.loads(own(honest, "--json"))["steps_resumed"] == STEPS
    shutil.copy(mine / MARK, audit.replay)
    assert FOREIGN in audit.error(cheating)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    assert FOREIGN in own.error(honest)
    key = tmp_path / "another user" / "tiebreak" / "own-work.key"
    assert key.stat().st_size == 32
    assert key.parent.stat().st_mode & 0o077 == 0


def overlay(archive: Path, folder: Path, *names: str) -> None:
    """Unpacks an archive, or some of its files, over a folder, as `tar -x` does: what is not in it stays."""
    for file in archive.rglob("*"):
        if file.is_file() and (not names or str(file.relative_to(archive)) in names):
            (folder / file.relative_to(archive)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder / file.relative_to(archive))


def test_a_replay_overwritten_by_an_archive_hides_no_fraud(
    cheating: Path, audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: Callable[[], None]
) -> None:
    """Each file of the trainer's, all of them, and those of another auditor who was fooled.

    The audit finds the lie, or says that this replay is not resumed.
    """
    audit(cheating, code=2)
    mine = tmp_path / "mine"
    shutil.move(audit.replay, mine)
    other = Audit(audit.command, tmp_path / "other")
    with monkeypatch.context() as another:
        another.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
        other(cheating, code=2)
    overlay(cheating, other.replay, "records.bin")
    names = [str(file.relative_to(cheating)) for file in cheating.rglob("*") if file.is_file()]
    for archive, chosen in (*((cheating, (name,)) for name in names), (cheating, ()), (other.replay, ())):
        shutil.rmtree(audit.replay, ignore_errors=True)
        shutil.copytree(mine, audit.replay)
        overlay(archive, audit.replay, *chosen)
        records = RunDirectory.open(audit.replay).records() != RunDirectory.open(mine).records()
        is_marked = (audit.replay / MARK).read_bytes() == (mine / MARK).read_bytes()
        is_refused = records or not is_marked
        _, found = audit.command.printed(*audit.arguments(cheating), code=1 if is_refused else 2)
        assert (FOREIGN if is_refused else LIE) in found, chosen
        cases()


@pytest.mark.parametrize("is_before", [True, False])
def test_a_replay_goes_on_after_a_crash_at_any_record(
    is_before: bool, honest: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the second record is on disk, when its mark is, and after it. Nothing that was done is done again."""
    append = RunDirectory.append_record

    def crash(self: RunDirectory, record: StepRecord) -> None:
        if record.step == 6 and is_before:
            raise OSError("power cut")
        append(self, record)
        if record.step == 6:
            raise OSError("power cut")

    with monkeypatch.context() as crashing:
        crashing.setattr(RunDirectory, "append_record", crash)
        with pytest.raises(OSError, match="power cut"):
            audit_whole(RunDirectory.open(honest), audit.replay, Machine(threads=1), quiet=True)
    done = 3 if is_before else 6
    assert audit.last(honest) == f"agrees: 3 checkpoints, {STEPS} steps, {done} of them replayed before"


@pytest.mark.parametrize("options", slow_except([(), ("--jobs", 1)], ()))
def test_the_default_replay_folder_is_outside_the_audited_run(
    options: tuple[object, ...], honest: Path, command: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive of the run that brings a replay, or a ledger, is not asked."""
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.chdir(honest.parent)
    before = sorted(honest.parent.iterdir())
    command("audit", honest.name, "--threads", 1, *options)
    assert sorted(honest.parent.iterdir()) == sorted({*before, state})
    (made,) = (state / "tiebreak" / ("ledgers" if options else "replays")).iterdir()
    assert options or made.name == RunDirectory.open(honest).job.id.hex()
