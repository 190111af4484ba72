"""What a dispute and an audit cost an honest party: memory of one state, and no run that it cannot follow."""

import gc
import weakref
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from tests.protocol.runs import CLIENT, DOMAIN, TRAINER, job_over
from tests.tampered import Tampered
from tiebreak.api.signing.keys import save_key
from tiebreak.cli.main import tiebreak
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import sign_job
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.interpreter import Interpreter, NotFiniteError, State, StepResult
from tiebreak.engine.run.segments import compare
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.match import by_rules, play
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.sides import Challenger, Defender
from tiebreak.protocol.program.isa import DType, MapFunction
from tiebreak.protocol.program.program import Program

STATE = {"w": torch.tensor([3.0e38, 1.0])}
STEPS, INTERVAL = 12, 6


def doubling() -> Program:
    """w doubles each step: its first element is infinite from step 1 on, and the loss with it."""
    b = Builder()
    w = b.state("w", DType.F32, (2,))
    new = b.map(MapFunction.ADD, w, w)
    return b.finish({"w": new}, b.map(MapFunction.COPY, b.sum(new, (0,))))


def make_run(path: Path) -> RunDirectory:
    program = doubling()
    job = job_over(program, identities(STATE), {}, steps=STEPS, interval=INTERVAL)
    return RunDirectory.create(path, sign_job(job, DOMAIN, client=CLIENT, trainer=TRAINER), program, STATE, {})


def fake(_step: int) -> Callable[[int, Tensor], Tensor]:
    """A cheat that hides the divergence: every value is clipped to a finite number."""
    return lambda _, tensor: tensor.clamp(-1e30, 1e30)


def test_a_cheat_cannot_hide_behind_a_run_that_diverges(tmp_path: Path) -> None:
    run, replayed = make_run(tmp_path / "run"), make_run(tmp_path / "replay")
    interpreter = Interpreter(run.program, Arithmetic())
    cheating = Tampered(interpreter, fake)
    Worker(run, cheating, key=TRAINER).work()
    Worker(replayed, interpreter).work()
    head = run.heads()[-1]
    assert not compare(replayed, head).agrees
    end = play(
        game.start(run.job, head.head, bytes(32), 0),
        defender=Defender(Evidence(run, cheating)),
        challenger=Challenger(Evidence(replayed, interpreter), bytes(32)),
        judge=by_rules(count(1).__next__),
    ).final
    assert end.verdict.winner is Side.CHALLENGER


def test_an_honest_trainer_may_finish_a_run_that_diverges(tmp_path: Path) -> None:
    """Else a client writes a program that diverges and takes the stake of the trainer that stopped."""
    run, replayed = make_run(tmp_path / "run"), make_run(tmp_path / "replay")
    interpreter = Interpreter(run.program, Arithmetic())
    with pytest.raises(NotFiniteError):
        Worker(run, interpreter, key=TRAINER).work()
    Worker(run, interpreter, key=TRAINER, stop_if_not_finite=False).work()
    Worker(replayed, interpreter).work()
    assert compare(replayed, run.heads()[-1]).agrees


class Watched(Interpreter):
    """Counts how many of the states that it made are still held."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, Arithmetic())
        self.made: list[weakref.ref[Tensor]] = []

    def step(self, number: int, state: State, *rest: object, **options: object) -> StepResult:
        result = super().step(number, state, *rest, **options)  # type: ignore[arg-type]
        self.made.append(weakref.ref(result.state["w"]))
        return result


def test_a_dispute_holds_one_state_however_long_the_segment(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    Worker(run, Interpreter(run.program, Arithmetic())).work()
    watched = Watched(run.program)
    evidence = Evidence(run, watched)
    first = [evidence.steps_tree(checkpoint).root for checkpoint in range(2)]
    trees = [evidence.value_tree(step).root for step in (6, 5, 2, 9)]
    again = Evidence(run, Watched(run.program))
    assert [again.value_tree(step).root for step in (6, 5, 2, 9)] == trees
    assert [again.steps_tree(checkpoint).root for checkpoint in range(2)] == first
    gc.collect()
    assert len(watched.made) >= STEPS
    assert sum(ref() is not None for ref in watched.made) <= 1


def test_train_command_continues_a_diverging_run_with_its_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, key = make_run(tmp_path / "run"), tmp_path / "key.pem"
    save_key(TRAINER, key, "a long passphrase")
    monkeypatch.setenv("TIEBREAK_PASSPHRASE", "a long passphrase")
    arguments = ["train", str(run.path), "--key", str(key), "--threads", "1"]
    stopped = CliRunner().invoke(tiebreak, arguments)
    assert isinstance(stopped.exception, NotFiniteError)
    assert run.records() == []
    finished = CliRunner().invoke(tiebreak, [*arguments, "--diverging"])
    assert finished.exception is None
    assert [record.step for record in run.records()] == [INTERVAL, STEPS]


def test_accumulators_are_computed_once_per_dispute(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    evidence = Evidence(run, Interpreter(run.program, Arithmetic()))
    value = next(n for n, i in enumerate(run.program.body) if i.is_reduction)
    assert evidence.accumulators(1, value, 0) is evidence.accumulators(1, value, 0)
