"""Audits of segments and evidence start from the right state, and replay no more than they need."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.engine import logged_cases
from tests.tampered import Tampered
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured, Terms, draft_job, sign_job
from tiebreak.engine.run.audit import SegmentAuditor
from tiebreak.engine.run.directory import ALL, Keep, RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.segments import compare, detection_probability, steps_to_replay
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.tags import Digest

from .tiny import CLIENT, DOMAIN, TRAINER

NewRun = Callable[[str], RunDirectory]


def machine(run: RunDirectory, permute: int | None = None) -> Interpreter:
    return Interpreter(run.program, Arithmetic(device=torch.device("cpu"), permute=permute))


def trained(run: RunDirectory, keep: Keep = ALL) -> RunDirectory:
    Worker(run, machine(run), key=TRAINER, keep=keep).work()
    return run


def test_each_segment_is_replayed_from_the_nearest_state(new_run: NewRun) -> None:
    run = trained(new_run("run"))
    audited = SegmentAuditor(run, machine(run), run.records()).audit([0, 1, 3])
    assert (audited.steps, audited.starts) == (9, [0, 9]), "the second goes on where the first ended"
    assert [report.checkpoint for report in audited.checked] == [0, 1, 3]
    assert steps_to_replay(run, [0, 1, 3]) == 9


def test_steps_shared_by_audited_segments_are_replayed_once(new_run: NewRun) -> None:
    run = trained(new_run("run"), Keep(0))
    assert steps_to_replay(run, [1, 3]) == 12
    audited = SegmentAuditor(run, machine(run), run.records()).audit([1, 3])
    assert audited.steps == 12
    assert [report.checkpoint for report in audited.checked] == [0, 1, 2, 3], "those on the way are checked, too"


def test_a_segment_of_one_step_is_replayed_from_the_state_before_it(tiny: Captured, tmp_path: Path) -> None:
    """Its own state proves nothing about it: it may be a lie."""
    terms = Terms(clock=1000)
    job = draft_job(
        tiny, steps=4, checkpoint_interval=1, client=CLIENT.address, trainer=TRAINER.address, terms=terms
    )  # fmt: skip
    run = logged_cases.new_run(tmp_path / "run", sign_job(job, DOMAIN, client=CLIENT, trainer=TRAINER), tiny)
    leaf = run.program.leaf_of_commit(0)

    def nudge(step: int) -> Callable[[int, torch.Tensor], torch.Tensor] | None:
        return (lambda at, tensor: tensor + 1 if at == leaf else tensor) if step == 3 else None

    Worker(run, Tampered(machine(run), nudge), key=TRAINER).work()  # type: ignore[arg-type]
    audited = SegmentAuditor(run, machine(run), run.records()).audit([2])
    assert (audited.steps, audited.starts) == (1, [2])
    assert audited.fraud is not None
    assert audited.fraud.checkpoint == 2


def test_evidence_gives_the_state_of_any_step_in_any_order(new_run: NewRun) -> None:
    """In any order: a dispute goes back and forth."""
    run = trained(new_run("run"))
    evidence = Evidence(run, machine(run))
    forwards = {step: evidence.state_leaves(step).root for step in range(13)}
    assert {step: evidence.state_leaves(step).root for step in reversed(range(13))} == forwards
    assert len(set(forwards.values())) == 13
    assert forwards[6] == run.record_of(6).state_root
    with pytest.raises(StateError, match="expected 5 checkpoints"):
        evidence.run_tree(5)


def test_comparing_a_head_requires_replay_to_its_last_checkpoint(new_run: NewRun) -> None:
    run, replay = trained(new_run("run")), new_run("replay")
    _, second, third, _ = run.heads()
    Worker(replay, machine(replay, 5)).work(6)
    with pytest.raises(StateError, match="the replay has 2 checkpoints; replay to 3"):
        compare(replay, third)
    Worker(replay, machine(replay, 5)).work(9)
    assert compare(replay, third).agrees
    assert compare(replay, second).agrees
    lie = Head(job_id=run.job.id, count=3, run_root=Digest(b"\1" * 32))
    assert not compare(replay, SignedHead.sign(lie, DOMAIN, TRAINER)).agrees
    assert replay.heads() == [], "an auditor signs nothing"


def test_detection_is_certain_when_a_sample_must_hit_a_false_segment() -> None:
    assert detection_probability(5, 3, 3) == 1.0
    assert detection_probability(5, 3, 2) == pytest.approx(1 - 1 / 10)
    assert detection_probability(5, 5, 1) == detection_probability(5, 1, 5) == 1.0
    assert detection_probability(5, 3, 0) == 0.0
