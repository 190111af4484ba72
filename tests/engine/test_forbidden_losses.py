"""Jobs that demand finite losses: what trainers, auditors and verifiers make of a record that has none."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import tiebreak
from tests.engine.test_late_data import CLIENT, TRAINER, supply, task, trained
from tests.engine.tiny import make_tiny_task
from tests.parts import slow_except
from tiebreak.api.certification.issuance import certify
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training.reading import policy_words
from tiebreak.api.training.runs import continue_run, names_of, open_run
from tiebreak.cli.main import run as cli
from tiebreak.cli.main import tiebreak as commands
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.logged.journal import LogsInProgress
from tiebreak.engine.logged.policy import LoggedPolicy
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import NotFiniteError
from tiebreak.engine.run.segments import signed_records
from tiebreak.engine.run.train import Worker
from tiebreak.node.tasks import Answer, Compute, WorkerSettings
from tiebreak.node.worker_tasks import WorkerTasks
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.job import FINITE_LOSSES
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError, ForbiddenLoss, VerificationError
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.packing import unpack
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.transactions import ReportLoss
from tiebreak.protocol.program.rounding import SumKind

Make = Callable[[str, Callable[[Path], object]], Path]
DEMANDING = Terms(finite_losses=True)


def false_at(step: int) -> Callable[[int, Mapping[str, Tensor]], dict[str, Tensor]]:
    """Late data that the program answers with NaN in this step."""
    wrong = {"y": torch.full((6,), 2)}
    return lambda now, weights: supply(now, weights) | (wrong if now == step else {})


def cheated(folder: Path, step: int, terms: Terms = DEMANDING) -> RunDirectory:
    """A run whose trainer goes on where its job forbids that, and signs what comes."""
    tiebreak.agree(task(), folder, client=CLIENT, trainer=TRAINER, terms=terms, check="none")
    run = RunDirectory.open(folder)
    names, wrong = names_of(run), false_at(step)
    logs = LogsInProgress.of(run, supply=lambda now, state: wrong(now, {key: state[n] for key, n in names.items()}))
    interpreter = make_interpreter(run.program, job=run.job)
    worker = Worker(run, interpreter, key=TRAINER, stop_if_not_finite=False, logs=logs)
    worker._demands_finite = False
    worker.work()
    return run


@pytest.fixture
def false(once: Make, tmp_path: Path) -> RunDirectory:
    """NaN in step 6, whose record is the second checkpoint's; the third has a finite loss again."""
    made = once("forbidden loss", lambda folder: cheated(folder / "run", 6))
    return RunDirectory.open(shutil.copytree(made / "run", tmp_path / "run"))


def test_the_demand_is_a_bit_of_the_job_and_changes_nothing_else(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", terms=DEMANDING)
    assert (run.job.tolerances, run.job.demands_finite_losses) == (FINITE_LOSSES, True)
    assert policy_words(run.job).endswith("no tolerance of a gap; losses must be finite")
    assert run.audit().agrees
    plain = trained(tmp_path / "plain")
    assert run.job.id != plain.job.id
    assert run.root == plain.root


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_the_term_is_true_or_false(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected finite_losses as True or False"):
        Terms(finite_losses=value)


def test_policy_exact_has_no_such_term() -> None:
    task = tiebreak.Task(
        torch.nn.Linear(5, 1), lambda net, a: net(a).mean(), data={"a": torch.ones(4, 5)}, batch=2, steps=2,
        optimizer=tiebreak.SGD(lr=0.1),
    )  # fmt: skip
    with pytest.raises(VerificationError, match="expected policy logged if finite losses are demanded"):
        tiebreak.train(task, "unused", terms=DEMANDING, progress=False)


@pytest.mark.parametrize("diverging", slow_except([False, True], True))
def test_a_trainer_stops_before_a_step_with_a_forbidden_loss(tmp_path: Path, *, diverging: bool) -> None:
    """Even one that goes on where its state is not finite. What was signed before stays, to be parted with."""
    folder = tmp_path / "run"
    with pytest.raises(NotFiniteError, match=r"step 6: .* no longer finite"):
        trained(folder, terms=DEMANDING, supply=false_at(6))
    run = open_run(folder)
    with pytest.raises(NotFiniteError, match=r"step 6: .* no longer finite"):
        continue_run(
            RunDirectory.open(folder), tiebreak.Machine(), key=TRAINER, until=None, keep="all",
            on_progress=lambda _: None, on_commit=lambda _: None, diverging=diverging,
            supply=run._supplied(false_at(6)),
        )  # fmt: skip
    opened = RunDirectory.open(folder)
    assert (run.step, opened.recorded(), [head.head.count for head in opened.heads()]) == (3, 1, [1])
    assert run.audit().agrees


def test_a_trainer_whose_key_is_elsewhere_stops_too_and_an_auditor_goes_on(false: RunDirectory, tmp_path: Path) -> None:
    """A replay that stopped there would never convict a cheat that shows a finite loss in its place."""
    logs = CommittedLogs(LogFiles(false), false.record_at)
    for trains, reached in ((True, 1), (False, 3)):
        folder = tmp_path / f"replay {trains}"
        inputs = (false.agreement, false.program, false.state(0), false.data())
        replay = RunDirectory.create(folder, *inputs)
        worker = Worker(
            replay, make_interpreter(false.program, job=false.job), logs=LogsInProgress(replay, logs.step_log),
            trains=trains,
        )  # fmt: skip
        if trains:
            with pytest.raises(NotFiniteError, match="step 6: the loss is no longer finite"):
                worker.work()
        else:
            assert worker.work() == false.root()
        assert replay.recorded() == reached


def test_an_audit_calls_a_forbidden_loss_fraud_without_a_replay(
    false: RunDirectory, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = r"step 6: expected a finite loss, as the job demands, got nan \(0x7fc00000\)"
    with pytest.raises(ForbiddenLoss, match=said):
        signed_records(false)
    with pytest.raises(ForbiddenLoss, match=said):
        open_run(false.path).audit()
    for how in (["--output", str(tmp_path / "own")], ["--segment", "0"], ["--sample", "1"]):
        assert cli(commands, ["audit", str(false.path), "--json", *how]) == 2
        found = json.loads(capsys.readouterr().out)
        assert found["verdict"] == "fraud"
        assert "step 6: expected a finite loss" in found["reason"]
    assert not (tmp_path / "own").exists()


@pytest.mark.slow
def test_the_same_run_is_right_where_no_job_forbids_it(tmp_path: Path) -> None:
    run = cheated(tmp_path / "run", 6, Terms())
    records, head = signed_records(run)
    assert records[1].loss_bits == NAN_BITS
    assert open_run(run.path).audit().agrees
    assert ReportLoss.of(run.job, head, records) is None


def test_no_certificate_is_made_of_a_run_with_a_forbidden_loss(false: RunDirectory, tmp_path: Path) -> None:
    """Also where only an earlier record has it, which the certificate would not show."""
    save_file(open_run(false.path).state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(ForbiddenLoss, match="step 6"):
        certify(false, tmp_path / "model.safetensors", tmp_path / "certificate.json", TRAINER)


# ------------------------------------------------------------------ a party's process


def bench(folder: Path, run: RunDirectory) -> WorkerTasks:
    shutil.copytree(run.path, folder / "jobs" / run.job.id.hex())
    alone = tiebreak.Machine(threads=1)
    made = WorkerSettings(folder=folder, domain=OFF_CHAIN, hub="http://127.0.0.1:1", machine=alone, secret=bytes(32))
    return WorkerTasks(made, lambda _: None)


@pytest.mark.parametrize("kind", [e.Replay, e.CheckLogs])
def test_a_process_that_has_the_records_opens_the_forbidden_one(
    false: RunDirectory, tmp_path: Path, kind: Any
) -> None:  # fmt: skip
    own, heads = bench(tmp_path / "party", false), false.heads()
    found: list[Any] = [
        own.do(Compute(work=kind(job_id=false.job.id, head=head, attempt=0), job=false.job)) for head in heads
    ]
    assert all(isinstance(one, Answer) for one in found)
    assert [bool(one.problem) for one in found] == [False, True, True], "the first head has no such record"
    assert [one.found for one in found] == [ReportLoss.of(false.job, head, false.records()) for head in heads]
    report = found[2].found
    assert (report.position, report.record(false.job)) == (1, false.record_at(1))
    assert "step 6: its record has a loss that the job forbids, nan (0x7fc00000)" in found[2].problem
    assert Answer.unpack("answer", unpack(found[2].encode(), 1 << 16)) == found[2]


def test_records_that_are_not_the_heads_are_found_by_the_replay(false: RunDirectory, tmp_path: Path) -> None:
    """A cheat publishes records with a finite loss, and logs that still lead to its root once they are followed."""
    own, head, records = bench(tmp_path / "party", false), false.heads()[1], false.records()
    shown = RunDirectory.open(tmp_path / "party" / "jobs" / false.job.id.hex())
    (shown.path / "records.bin").write_bytes(
        b"".join(replace(record, loss_bits=0).encode() for record in records)
    )  # fmt: skip
    answer = own.do(Compute(work=e.Replay(job_id=false.job.id, head=head, attempt=0), job=false.job))
    assert isinstance(answer, Answer)
    assert answer.found == ReportLoss.of(false.job, head, records)


def test_a_process_that_trains_ends_where_its_job_forbids_to_go_on(tmp_path: Path) -> None:
    """Not to be tried again: it says so, and its party parts."""
    plain = make_tiny_task(8, 3)
    diverging = replace(plain, optimizer=tiebreak.SGD(lr=1e38))
    policy = LoggedPolicy(precision=32, thresholds=dict.fromkeys(SumKind), tolerances=dict.fromkeys(SumKind, 20))
    for terms, ends in ((DEMANDING, True), (Terms(), False)):
        made = tiebreak.agree(diverging, tmp_path / f"{ends}", trainer=TRAINER, client=CLIENT, terms=terms,
                              policy=policy, check="none")  # fmt: skip
        own = bench(tmp_path / f"party {ends}", RunDirectory.open(made.directory))
        answer = own.do(Compute(work=e.Train(job_id=made.job.id, count=made.job.checkpoints), job=made.job))
        assert isinstance(answer, Answer)
        assert ("the loss is no longer finite" in answer.problem) == ends
        assert bool(answer.root) != ends
