"""Trainers of policy `logged` that lie in their rounding logs, beside them, or by withholding them.

Three of them are open weaknesses: no rule stops them today, as docs/security.md says under *Residual risks*. A party
that cannot read the committed logs cannot tell what the right run is, and the contract cannot see that they are
missing.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import WORD_ELEMENTS, LogTree
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, sum_kind
from tiebreak.protocol.program.step_log import StepLog
from tiebreak.sim.adversaries.base import OPEN, Catch
from tiebreak.sim.adversaries.deviations import Attempt, computes, onward, step_of
from tiebreak.sim.adversaries.forged_logs import (
    Choice,
    Course,
    ExactSum,
    LogCheat,
    greater,
    greater_if_near,
    steer,
    with_entry,
    wrong_way,
)
from tiebreak.sim.adversaries.forged_runs import deviating
from tiebreak.sim.adversaries.inputs import poisoned_label
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Workshop

SAMPLE: Final = 64
"""The largest number of elements of a sum that a cheat considers."""

# ---------------------------------------------------------------- what the cheats are made of


def _sums(program: Program) -> list[int]:
    """The numbers of the logged sums."""
    return [n for n, i in enumerate(program.body) if sum_kind(i) is not None]


def _course(program: Program, leaf: int, steps: range, rng: Random, count: int = SAMPLE) -> Course:
    """A random sample of the elements of a sum."""
    numel = program.body[leaf].numel
    return Course(leaf=leaf, elements=sorted(rng.sample(range(numel), min(numel, count))), steps=steps)


def _steered(workshop: Workshop, course: Course, choose: Choice, *, entry: bool) -> LogCheat | None:
    """A cheat that rounds sums as it chooses; None if there is nothing to choose."""
    try:
        return steer(workshop.run(), workshop.interpreter, course, choose=choose, entry=entry)
    except ConfigurationError:
        return None


def _once(workshop: Workshop, step: int, rng: Random, choose: Choice, *, entry: bool) -> LogCheat | None:
    """Rounds elements of a random sum in one step."""
    leaf = rng.choice(_sums(workshop.program))
    course = _course(workshop.program, leaf, range(step, step + 1), rng)
    return _steered(workshop, course, choose, entry=entry)


def _all_logs(workshop: Workshop, job: Job, changed: Mapping[int, StepLog]) -> dict[int, StepLog]:
    """The logs of all steps: these, and the honest ones."""
    return {step: workshop.run().step_log(step) for step in onward(job, 1)} | dict(changed)


def _with_logs(workshop: Workshop, job: Job, cheat: LogCheat, logs: Mapping[int, StepLog]) -> Work:
    """The run with the cheat's numbers and these logs."""
    followed = _all_logs(workshop, job, logs)
    others = [step for step, log in followed.items() if log != workshop.run().step_log(step)]
    first = job.first_step(job.checkpoint_of(min(cheat.step, *(others or [job.steps]))))
    return deviating(workshop, job, cheat.tamper, first_step=first, logs=followed)


def _unless_near(choose: Choice) -> Choice:
    return lambda exact: Direction.NONE if exact.near else choose(exact)


def _if_near(choose: Choice) -> Choice:
    return lambda exact: choose(exact) if exact.near else Direction.NONE


def _first_only(choose: Choice) -> Choice:
    """Decides the first element where `choose` has a choice, and leaves all others alone."""
    decided: list[ExactSum] = []

    def first(exact: ExactSum) -> Direction:
        way = Direction.NONE if decided else choose(exact)
        if way != Direction.NONE:
            decided.append(exact)
        return way

    return first


# ---------------------------------------------------------------- rounding, and logs that do not belong to it


def rounded(*choices: Choice, entry: bool, count: int, always: bool = False) -> Attempt:
    """Elements of a sum are rounded by one of these choices, with or without a log entry.

    `always`: in every step from a random one on; otherwise in one step.
    """

    def attempt(workshop: Workshop, job: Job, rng: Random) -> Work:
        while True:
            leaf, step = rng.choice(_sums(workshop.program)), step_of(job, rng)
            steps = onward(job, step) if always else range(step, step + 1)
            course = _course(workshop.program, leaf, steps, rng, count)
            choose = rng.choice(choices) if len(choices) > 1 else choices[0]
            cheat = _steered(workshop, course, choose, entry=entry)
            if cheat is not None:  # else none of these elements can be rounded in two ways
                return _with_logs(workshop, job, cheat, cheat.logs)

    return attempt


def entry_of_another_step(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A near tie is decided by an entry in the log of another step."""
    step, other = rng.sample(onward(job, 1), 2)
    cheat = _once(workshop, step, rng, _first_only(_if_near(wrong_way)), entry=False)
    if cheat is None:
        return workshop.honest(job)  # no near tie among them, so the caller draws again
    (nudge,) = cheat.nudges
    logs = dict(cheat.logs)
    filed = logs.get(other, workshop.run().step_log(other))
    logs[other] = with_entry(filed, nudge.exact.leaf, nudge.exact.element, nudge.way)
    return _with_logs(workshop, job, cheat, logs)


def swapped_logs(workshop: Workshop, job: Job, rng: Random) -> Work:
    """The logs of two steps are swapped, and the numbers follow them as they were before."""
    step, other = rng.sample(onward(job, 1), 2)
    cheat = _once(workshop, step, rng, _if_near(wrong_way), entry=True)
    if cheat is None:
        return workshop.honest(job)
    logs = _all_logs(workshop, job, cheat.logs)
    logs[step], logs[other] = logs[other], logs[step]
    return _with_logs(workshop, job, cheat, logs)


def is_another_right_run(workshop: Workshop, work: Work) -> bool:
    """Whether its states differ from the honest trainer's. They are equally right."""
    honest = workshop.run().records()
    return any(own.state_root != their.state_root for own, their in zip(work.records, honest, strict=True))


# ---------------------------------------------------------------- words that no file holds, files that are not there


def _with_code(word: bytes, place: int, code: int) -> bytes:
    raw = bytearray(word)
    shift = 2 * (place % 4)
    raw[place // 4] = raw[place // 4] & ~(3 << shift) | code << shift
    return bytes(raw)


def padding_words(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A log word names an element after the last one of a sum, which means nothing. The numbers are right.

    No log file can hold such words, so nobody can audit the run, and a client should not accept it. The computation
    itself harms nobody.
    """
    program, step = workshop.program, step_of(job, rng)
    leaf = rng.choice([n for n in _sums(program) if program.body[n].numel % WORD_ELEMENTS])
    last, inside = divmod(program.body[leaf].numel, WORD_ELEMENTS)
    word = LogTree(program, workshop.run().step_log(step)).word(leaf, last)
    code = rng.choice((Direction.DOWN, Direction.UP, 3))
    forged = _with_code(word, rng.randrange(inside, WORD_ELEMENTS), code)
    return deviating(workshop, job, _honest, first_step=job.steps + 1, words={step: {(leaf, last): forged}})


def _honest(_step: int) -> None:
    """Changes no number."""


def has_other_commitments(workshop: Workshop, work: Work) -> bool:
    """Whether its commitments differ from the honest trainer's."""
    return work.records != tuple(workshop.run().records())


def code_three(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A near tie is rounded the wrong way, with a code in its log word that means nothing.

    **Not stopped.** No log file can hold the word, so an auditor cannot check the segment. A challenger that knew the
    words would win, because the code excuses nothing.
    """
    step = step_of(job, rng)
    cheat = _once(workshop, step, rng, _first_only(_if_near(wrong_way)), entry=False)
    if cheat is None:
        return workshop.honest(job)
    leaf, (chunk, place) = cheat.nudges[0].exact.leaf, divmod(cheat.nudges[0].exact.element, WORD_ELEMENTS)
    forged = _with_code(LogTree(workshop.program, cheat.logs[step]).word(leaf, chunk), place, 3)
    logs, words = _all_logs(workshop, job, cheat.logs), {step: {(leaf, chunk): forged}}
    return deviating(workshop, job, cheat.tamper, first_step=step, logs=logs, words=words)


def withheld_logs(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A false run whose logs are not published.

    **Not stopped.** Without the logs nobody can say what the right run is, and an auditor that guesses loses its stake.
    The contract cannot see what was published. A client needs the logs before the window ends. If it does not get them,
    it has no move to make, and pays.
    """
    return replace(poisoned_label(workshop, job, rng), logs=None)


def other_logs(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A false run that is published with the logs of two steps exchanged.

    **Not stopped**, as `withheld_logs`: the published logs do not hash to the records, so they are not the run's logs.
    """
    work = poisoned_label(workshop, job, rng)
    assert work.logs is not None  # the workshop "logged" has logs
    if work.lie is None:
        return work
    # An auditor reads as far as it can, so the logs of the lie's own segment must not be readable.
    segment = job.checkpoint_of(work.lie.step)
    first = rng.randint(job.first_step(segment), job.last_step(segment))
    second = rng.choice([step for step in onward(job, 1) if step != first])
    if work.logs[first] == work.logs[second]:
        return workshop.honest(job)  # the caller draws again
    return replace(work, logs=dict(work.logs) | {first: work.logs[second], second: work.logs[first]})


_computes: Final = partial(computes, needs="logged")
# fmt: off
ADVERSARIES: Final = (
    _computes("log entry far from a tie", rounded(_unless_near(wrong_way), entry=True, count=4),
        "moves a number by its log, as if any sum were near a tie"),
    # wrong for every sum, or only where a log might have allowed it
    _computes("silent rounding", rounded(wrong_way, _if_near(wrong_way), entry=False, count=4),
        "moves a number and leaves no trace in the log"),
    _computes("drift by log entries", rounded(greater, entry=True, count=1, always=True),
        "steers a weight, a unit in the last place at a time"),
    # to the greater neighbour where the rules leave it open: what a log is for, and no cheat
    _computes("tie breaking", rounded(greater_if_near, entry=True, count=SAMPLE, always=True),
        "half a unit in the last place of what the rule leaves open", {Catch.HARMLESS},
        has_deviated=is_another_right_run),
    _computes("log entry of another step", entry_of_another_step,
        "entries made up after the fact, wherever there is room"),
    _computes("swapped logs", swapped_logs, "near ties decided first, and logs found for them later"),
    _computes("codes of padding in a log", padding_words, "a run that is right, and that nobody can check",
        {Catch.HARMLESS}, has_deviated=has_other_commitments),
    _computes("code 3 in a log", code_three, "a wrong number that nobody can check, for its log is unreadable", OPEN),
    _computes("logs withheld", withheld_logs, "the reward for anything at all, for nobody can check it", OPEN),
    _computes("other logs than committed", other_logs, "looks as if it published its logs", OPEN),
)
# fmt: on
