"""What the tests of rounding logs lie with: surveys of sums, cheats that steer one sum, and words that no log has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.ziv import NearTies
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.logged.recording import Recorder
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Source
from tiebreak.engine.run.interpreter import Interpreter, Sums
from tiebreak.engine.run.loop import steps
from tiebreak.protocol.commitments.job import Job, SignedJob
from tiebreak.protocol.commitments.log_tree import LogTree, logs_tree
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.step_log import StepLog
from tiebreak.protocol.tags import Digest
from tiebreak.sim.adversaries.forgery import ForgedEvidence, ForgedLogTree, Words
from tiebreak.sim.adversaries.logs import (
    Course,
    ExactSum,
    LogCheat,
    Nudge,
    exact_sum,
    greater,
    if_near,
    steer,
    wrong_way,
)
from tiebreak.sim.adversaries.tampering import Tampered
from tiebreak.sim.games.disputes import fork

Maker = Callable[[Source, Interpreter, Course], LogCheat]
bad_entry: Maker = partial(steer, choose=wrong_way, entry=True)
"""Rounds sums the wrong way and logs it."""
silent_rounding: Maker = partial(steer, choose=wrong_way, entry=False)
"""Rounds sums the wrong way without a log entry."""
drift: Maker = partial(steer, choose=greater, entry=True)
"""Rounds a gradient to the greater neighbour in every step, each time with an entry."""
tie_breaking: Maker = partial(steer, choose=if_near(greater), entry=True)
"""Rounds near ties to the greater neighbour and logs it. This is what a log is for, and no cheat."""


def course_of(exact: ExactSum, *numbers: int) -> Course:
    """A course for one element, in these steps."""
    return Course(leaf=exact.leaf, elements=(exact.element,), steps=numbers)


def is_lawful(nudge: Nudge) -> bool:
    """Whether this is the right result under the log as it is (SPEC section 5.1)."""
    return nudge.way == nudge.exact.nearest or (nudge.logged and nudge.exact.near)


def first_lie(cheat: LogCheat) -> Nudge:
    """The nudge at which the trainer will be caught: the first unlawful one."""
    return next(nudge for nudge in cheat.nudges if not is_lawful(nudge))


class Survey:
    """Runs as a trainer and collects the exact sums of all elements of all logged sums. Only for small programs."""

    def __init__(self, job: Job, arithmetic: Arithmetic) -> None:
        self._job, self._arithmetic = job, arithmetic
        self.sums: list[ExactSum] = []

    def settle(
        self, value: int, instruction: Instruction, operands: Sequence[Tensor], result: Tensor, near: NearTies
    ) -> None:
        """Collect the exact sums; nothing is changed."""
        del result, near
        for element in range(instruction.numel):
            found = exact_sum(self._job, self._arithmetic, value, instruction, operands, element)
            if found is not None:
                self.sums.append(found)


def survey(run: Source, interpreter: Interpreter, step: int) -> list[ExactSum]:
    """The exact sums of one step of an honest run, computed from the kept state before it."""
    found = Survey(run.job, interpreter.arithmetic)
    before = run.kept_before(step - 1)
    state, data = interpreter.to_device(run.state(before)), interpreter.place_data(run.data())

    def sums(number: int, _arithmetic: Arithmetic) -> Sums:
        return found if number == step else Recorder()

    for _ in steps(interpreter, state, data, range(before + 1, step + 1), sums=sums):
        pass
    return found.sums


# ---------------------------------------------------------------- words that no log has


class ForgedLogs(CommittedLogs):
    """Logs whose trees have forged words: by step, then by (value, chunk)."""

    def __init__(self, run: RunDirectory, logs: Mapping[int, StepLog], words: Words) -> None:
        super().__init__(LogFiles(run), run.record_at)
        self._job, self._program, self._logs, self._words = run.job, run.program, logs, words

    def step_log(self, step: int) -> StepLog:
        return self._logs[step]

    def log_tree(self, step: int) -> LogTree:
        return ForgedLogTree(self._program, self.step_log(step), self._words.get(step, {}))

    def log_root(self, checkpoint: int) -> Digest:
        steps = range(self._job.first_step(checkpoint), self._job.last_step(checkpoint) + 1)
        return logs_tree([self.log_tree(step).root for step in steps]).root


class ForgedWords(ForgedEvidence):
    """Evidence of a run whose log trees have forged words."""

    def __init__(self, run: RunDirectory, interpreter: Interpreter, cheat: LogCheat, words: Words) -> None:
        machine = Tampered(interpreter, cheat.tamper)
        super().__init__(run, machine, ForgedLogs(run, _all_logs(run), words))


def _all_logs(run: RunDirectory) -> dict[int, StepLog]:
    files = LogFiles(run)
    return {step: files.step_log(step) for step in range(1, run.job.steps + 1)}


def with_words(source: RunDirectory, path: Path, agreement: SignedJob, words: Words) -> RunDirectory:
    """The same run with records that commit to forged log words. Its files hold the logs without them."""
    run = fork(source, path, agreement, upto=0)
    job = agreement.job
    own, files = _all_logs(source), LogFiles(run)
    logs = ForgedLogs(run, own, words)
    for checkpoint, record in enumerate(source.records()):
        for step in range(job.first_step(checkpoint), record.step + 1):
            files.write(step, own[step])
        run.write_state(record.step, source.state(record.step))
        run.append_record(replace(record, log_root=logs.log_root(checkpoint)))
    return run
