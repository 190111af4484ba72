"""Evidence of a run under policy `logged`: its trees are those of the run, with the log followed."""

import shutil
from pathlib import Path

from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.protocol.commitments.log_tree import logs_tree

from .logged_cases import (
    INTERVAL,
    STEPS,
    log_of,
    machine,
    replay,
)


def busiest(run: RunDirectory, steps: range) -> int:
    """The step with the most entries."""
    return max(steps, key=lambda step: log_of(run, step).count)


def test_evidence_is_tied_together_as_the_game_needs(trained: RunDirectory) -> None:
    evidence, job = Evidence(trained, machine(trained.job), CommittedLogs.of(trained)), trained.job
    assert evidence.run_tree(job.checkpoints).root == trained.heads()[-1].head.run_root
    for checkpoint, record in enumerate(trained.records()):
        assert evidence.steps_tree(checkpoint).node(0, INTERVAL - 1) == record.digest
        steps = range(job.first_step(checkpoint), job.last_step(checkpoint) + 1)
        tree = logs_tree([evidence.log_tree(step).root for step in steps])
        assert tree.root == record.log_root
        assert {evidence.record(step).log_root for step in steps} == {record.log_root}
    step = busiest(trained, range(1, STEPS + 1))
    tree = evidence.value_tree(step)
    record = evidence.record(step)
    assert tree.node(trained.program.state_depth, (1 << trained.program.half_depth) >> trained.program.state_depth) == (
        record.state_root
    )
    assert log_of(trained, step).count > 0


def test_a_challengers_logs_are_its_copies_of_the_trainers(trained: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory.open(Path(shutil.copytree(trained.path, tmp_path / "trainer")))
    own = replay(run, tmp_path / "audit", permute=1).run
    shutil.rmtree(run.path)
    theirs = Evidence(trained, machine(trained.job), CommittedLogs.of(trained))
    ours = Evidence(own, machine(own.job, threshold=None), CommittedLogs.of(own))
    for step in (1, 10, STEPS):
        assert ours.log_tree(step).root == theirs.log_tree(step).root
        assert ours.record(step) == theirs.record(step)
        assert ours.value_tree(step).root == theirs.value_tree(step).root
