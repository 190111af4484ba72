"""Training, resuming and auditing: one root whatever happens on the way."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.tampered import Tampered
from tiebreak.api.training.bundle import capture_bundle
from tiebreak.api.training.runs import agree_on
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.run.audit import compare
from tiebreak.engine.run.commit import Commit
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.interpreter import Interpreter, NotFiniteError
from tiebreak.engine.run.train import Progress, Worker
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.tags import Digest

from .tiny import CLIENT, DOMAIN, TRAINER, make_tiny_task

NewRun = Callable[[str], RunDirectory]
ROOT = Path(__file__).resolve().parents[2]


def interpreter(run: RunDirectory, permute: int | None = None) -> Interpreter:
    return Interpreter(run.program, Arithmetic(device=torch.device("cpu"), permute=permute))


def train(run: RunDirectory, **options: object) -> Digest:
    permute = options.pop("permute", None)
    computer = Tampered(interpreter(run, permute), options.pop("tamper", lambda _: None))  # type: ignore[arg-type]
    return Worker(run, computer, key=TRAINER, **options).work()  # type: ignore[arg-type]


def test_heads_are_signed_at_every_checkpoint(new_run: NewRun) -> None:
    run, seen, commits = new_run("run"), list[Progress](), list[Commit]()
    root = train(run, on_progress=seen.append, on_commit=commits.append)
    heads = run.heads()
    assert [h.head.count for h in heads] == [1, 2, 3, 4]
    assert heads[-1].head.run_root == root
    assert [p.step for p in seen] == list(range(1, 13))
    assert [c.record for c in commits] == run.records()
    assert [c.head for c in commits] == heads
    assert [(c.count, c.run_root) for c in commits] == [(h.head.count, h.head.run_root) for h in heads]
    assert [m["step"] for m in run.metrics()] == list(range(1, 13))
    assert seen[-1].loss < seen[0].loss + 1


def test_resuming_stops_if_the_machine_cannot_reproduce_its_records(new_run: NewRun) -> None:
    run = new_run("run")
    train(run)
    run.state_path(12).unlink()

    def nudge(step: int) -> Callable[[int, Tensor], Tensor] | None:
        return (
            (lambda leaf, tensor: tensor + 1 if leaf == run.program.leaf_of_commit(0) else tensor)
            if step == 11
            else None
        )

    with pytest.raises(StateError, match="no longer reproduces its own result"):
        train(run, tamper=nudge)
    assert len(run.records()) == 4


def test_a_run_that_diverges_stops_with_the_step_and_the_tensor(tmp_path: Path) -> None:
    bundle = capture_bundle(replace(make_tiny_task(), schedule=(1.0,) * 5 + (3e39,) * 7), check="none")
    run = agree_on(bundle, tmp_path / "run", client=CLIENT, trainer=TRAINER, terms=Terms(), domain=DOMAIN)
    with pytest.raises(NotFiniteError, match="no longer finite") as caught:
        train(run)
    assert 6 <= caught.value.step <= 12
    assert caught.value.name.startswith(("model.", "optimizer."))
    assert run.last_complete() in (3, 6, 9)
    assert len(run.heads()) == len(run.records())


def test_an_audit_agrees_with_honest_heads_and_not_with_a_false_one(new_run: NewRun) -> None:
    run, replay = new_run("run"), new_run("replay")
    train(run)
    with pytest.raises(StateError, match="replay to 4"):
        compare(replay, run.heads()[-1])
    Worker(replay, interpreter(replay, 5)).work()
    assert compare(replay, run.heads()[-1]).agrees
    assert compare(replay, run.heads()[1]).agrees
    lie = Head(job_id=run.job.id, count=4, run_root=Digest(b"\1" * 32))
    assert not compare(replay, SignedHead.sign(lie, DOMAIN, TRAINER)).agrees
    assert replay.heads() == []  # an auditor signs nothing


def test_evidence_requires_a_run_with_enough_checkpoints(new_run: NewRun) -> None:
    run = new_run("run")
    Worker(run, interpreter(run)).work(3)
    with pytest.raises(StateError, match="expected 2 checkpoints"):
        Evidence(run, interpreter(run)).run_tree(2)
