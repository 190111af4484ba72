"""Games over late data: a trainer that computes with others than it publishes, and an honest one."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from torch import Tensor

import tiebreak
from tests.engine.test_late_data import CLIENT, TRAINER, supply, task
from tests.parts import slow_except
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training.runs import open_run
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.logged.journal import LogsInProgress
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.train import Worker
from tiebreak.lab.sim.adversaries.tampering import Cheat, ForgedEvidence, Tampered
from tiebreak.lab.sim.games.disputes import play as play_match
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.game.match import Match
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.sides import Oracle
from tiebreak.protocol.program.isa import Opcode, SourceKind


@pytest.fixture
def run(tmp_path: Path) -> tiebreak.Run:
    given = {"supply": supply, "trainer": TRAINER, "client": CLIENT, "progress": False, "check": "none"}
    return tiebreak.train(task(), tmp_path / "run", **given)  # type: ignore[arg-type]


def fight(run: RunDirectory, defender: Oracle, challenger: Oracle) -> Match:
    job = run.job
    head = Head(job_id=job.id, count=job.checkpoints, run_root=defender.run_tree(job.checkpoints).root)
    signed = SignedHead.sign(head, run.agreement.domain, TRAINER)
    return play_match(run.agreement, signed, defender, challenger, secret=bytes(32))


def cheated(run: tiebreak.Run, folder: Path, leaf: int, step: int = 5) -> tuple[RunDirectory, Tampered]:
    """A trainer that computes with another late value than it publishes, and signs that."""
    honest = RunDirectory.open(run.directory)
    names = {name: f"model.{name}" for name in ("0.bias",)}
    cheat = Cheat(step=step, leaf=leaf, element=3, change=lambda value: 1 - value)
    made = RunDirectory.create(folder, honest.agreement, honest.program, honest.state(0), honest.data())
    machine = Tampered(make_interpreter(honest.program, Machine(), honest.job), cheat.tamper)

    def of_state(number: int, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return supply(number, {name: state[entry] for name, entry in names.items()})

    logs = LogsInProgress.of(made, supply=of_state)
    Worker(made, machine, key=TRAINER, logs=logs).work()
    return made, machine


@pytest.mark.parametrize("name", slow_except(["x", "y"], "x"))
def test_a_trainer_that_computes_with_other_late_data_than_it_publishes_is_convicted(
    run: tiebreak.Run, tmp_path: Path, name: str
) -> None:
    program = RunDirectory.open(run.directory).program
    leaf = next(n for n in program.sources(SourceKind.LATE) if program.body[n].params.name == name)  # type: ignore[union-attr]
    cheating, machine = cheated(run, tmp_path / "cheat", leaf)
    report = open_run(cheating.path).audit()
    assert not report.agrees
    own = RunDirectory.create(tmp_path / "own", cheating.agreement, program, cheating.state(0), cheating.data())
    interpreter = make_interpreter(program, Machine(), own.job)
    theirs = CommittedLogs(LogFiles(cheating), cheating.record_at)
    Worker(own, interpreter, logs=LogsInProgress.of(own, theirs.step_log)).work()
    defender = ForgedEvidence(cheating, machine, CommittedLogs.of(cheating))
    challenger = Evidence(own, interpreter, CommittedLogs.of(own))
    match = fight(cheating, defender, challenger)
    assert match.loser is Side.DEFENDER
    assert (match.final.step, match.final.leaf) == (5, leaf)
    assert program.body[match.final.leaf].opcode == Opcode.SOURCE


def test_an_honest_trainer_wins_against_whoever_challenges_its_late_data(run: tiebreak.Run, tmp_path: Path) -> None:
    honest = RunDirectory.open(run.directory)
    leaf = honest.program.sources(SourceKind.LATE)[0]
    cheating, machine = cheated(run, tmp_path / "cheat", leaf)
    defender = Evidence(honest, make_interpreter(honest.program, Machine(), honest.job), CommittedLogs.of(honest))
    challenger = ForgedEvidence(cheating, machine, CommittedLogs.of(cheating))
    match = fight(honest, defender, challenger)
    assert match.loser is Side.CHALLENGER
