"""The yard's computation as jobs of policy `logged` at 16 bits: its trainer logs widely, its auditor little."""

from dataclasses import replace
from pathlib import Path

from tests.sim.log_cheats import survey
from tests.sim.yard import Yard, assert_same_end, assert_slashed
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.ziv import Logging
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.logged.journal import Journal
from tiebreak.engine.run.audit import compare
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.logs import LogReport
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Policy, SumKind, pack_tolerances
from tiebreak.sim.adversaries.logs import ExactSum, LogCheat
from tiebreak.sim.games.disputes import Arena, ChainMatch, Fought, Published, challenge, fork, publish


def audit_logged(
    committed: Published, auditor: Interpreter, honest: RunDirectory, path: Path
) -> tuple[RunDirectory, LogReport]:
    """The auditor's replay, which follows the published logs from the last checkpoint shared with the honest run.

    Raises `CannotCheck` if the logs are missing or differ from the commitment.
    """
    theirs, same = committed.run.records(), 0
    for own, their in zip(honest.records(), theirs, strict=False):
        if own != their:
            break
        same = own.step
    replay = fork(honest, path, committed.agreement, upto=same)
    logs = Journal(replay, CommittedLogs(LogFiles(committed.run), committed.run.record_at).step_log)
    Worker(replay, auditor, logs=logs).work()
    return replay, logs.report


def fight_logged(arena: Arena, cheat: LogCheat, job: Job, name: str, auditor: Interpreter) -> Fought:
    """As `fight`, under policy `logged`: the auditor follows the cheat's logs as far as the rules allow."""
    committed = publish(arena, cheat, job, name)
    own, _ = audit_logged(committed, auditor, arena.run, arena.folder / f"audit-{name}")
    return challenge(arena.market, committed, own, auditor)


PRECISION = 16
TOLERANCE = 5
"""A log decides within 2^-5 of a gap around a middle: about one sum in sixteen."""
WIDE = 2.0**33
"""In units of FP64: about as far as FP32 sums are from exact, so that there are entries."""


class LoggedYard:
    """One honest run of policy `logged` on the yard's market, its trainer's interpreter and its auditor's."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        program = yard.program
        self.trainer = Interpreter(program, Arithmetic(precision=PRECISION, logging=_logging(WIDE)))
        self.auditor = Interpreter(program, Arithmetic(permute=77, precision=PRECISION, logging=_logging(None)))
        self._arena: Arena | None = None
        self._surveys: dict[int, list[ExactSum]] = {}

    @property
    def program(self) -> Program:
        return self.yard.program

    def job(self, levels: int = 2) -> Job:
        """A job of its own over the computation, on the list of those that the board is to answer for."""
        tolerances = pack_tolerances(dict.fromkeys(SumKind, TOLERANCE))
        plain = self.yard.job(levels=levels)
        job = replace(plain, policy=int(Policy.LOGGED), precision=PRECISION, tolerances=tolerances)
        self.yard.jobs.append(job.id)
        return job

    @property
    def arena(self) -> Arena:
        """The honest run, and the auditor's replay that follows its logs and agrees."""
        if self._arena is None:
            yard, c = self.yard, self.yard.compiled
            agreement = yard.market.sign(self.job())
            yard.market.open(agreement)
            run = RunDirectory.create(yard.fresh("honest-logged"), agreement, c.program, c.state, c.data)
            Worker(run, self.trainer, key=yard.market.parties.trainer, logs=Journal(run)).work()
            replay = RunDirectory.create(yard.fresh("replay-logged"), agreement, c.program, c.state, c.data)
            theirs = CommittedLogs(LogFiles(run), run.record_at)
            Worker(replay, self.auditor, logs=Journal(replay, theirs.step_log)).work()
            assert compare(replay, run.heads()[-1]).agrees
            self._arena = Arena(yard.market, run, replay, self.trainer, yard.folder)
        return self._arena

    def sums(self, step: int) -> list[ExactSum]:
        """The exact sums of an honest step."""
        if step not in self._surveys:
            self._surveys[step] = survey(self.arena.run, self.trainer, step)
        return self._surveys[step]

    def convict(self, cheat: LogCheat, levels: int = 2) -> ChainMatch:
        """The whole story: the cheat loses before both referees, and pays for it."""
        arena, job, before = self.arena, self.job(levels), self.yard.credits()
        match = fight_logged(arena, cheat, job, self.yard.fresh("fight").name, self.auditor).match
        assert_same_end(match)
        assert_slashed(self.yard, job, match, before)
        return match


def _logging(threshold: float | None) -> Logging:
    return Logging(dict.fromkeys(SumKind, threshold), dict.fromkeys(SumKind, TOLERANCE))
