"""Runs in memory that differ from the job's, with evidence that is consistent throughout."""

from collections.abc import Callable, Collection, Mapping

from tiebreak.engine.run.interpreter import Interpreter, Observer
from tiebreak.protocol.commitments.accumulator_tree import AccumulatorTree
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import WORD_ELEMENTS, LogTree, code_in
from tiebreak.protocol.commitments.records import identify
from tiebreak.protocol.program.accumulator import decode_for, finish
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, element_rounding, sum_kind
from tiebreak.protocol.program.step_log import StepLog
from tiebreak.protocol.tags import Digest
from tiebreak.sim.adversaries.cheats import Cheat
from tiebreak.sim.adversaries.forged_logs import ForgedLogTree, Words
from tiebreak.sim.adversaries.forgery import Bend, bend_to, halfway
from tiebreak.sim.adversaries.observers import Tamper, Tampered, during
from tiebreak.sim.world.memory import MemoryEvidence, MemoryRun, Trees, Values, own_tree
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Workshop

Raw = Mapping[tuple[int, int], Callable[[bytes], bytes]]
"""Maps (step, body value) to a change of its bytes wherever they are committed or shown."""


class ForgedMemory(MemoryEvidence):
    """The evidence of a run in memory that may be changed in any way.

    Accumulators are bent where the value that they lead to is not the committed one. raw: byte changes that no tensor
    of this process can hold, such as other NaN patterns.
    """

    def __init__(self, run: MemoryRun, interpreter: Interpreter, bend: Bend = halfway, raw: Raw | None = None) -> None:
        super().__init__(run, interpreter)
        self._bend = bend
        self._raw = {} if raw is None else raw

    def _shown(self, step: int, data: dict[int, bytes], ids: dict[int, Digest]) -> Values:
        for (number, leaf), change in self._raw.items():
            if number == step:
                data[leaf] = change(data[leaf])
                instruction = self.program.body[leaf]
                ids[leaf] = identify(instruction.dtype, instruction.shape, data[leaf])
        return super()._shown(step, data, ids)

    def _make_accumulators(self, step: int, value: int, element: int) -> AccumulatorTree:
        true, instruction = super()._make_accumulators(step, value, element), self.program.body[value]
        size, direction = instruction.dtype.size, self._direction(step, value, element)
        rounding = element_rounding(
            instruction, precision=self.job.precision, tolerances=self.job.tolerances, direction=direction
        )
        right = finish(decode_for(instruction, true.last), rounding) % (1 << 8 * size)
        if right.to_bytes(size, "little") == self.tensor(step, value)[size * element : size * (element + 1)]:
            return true
        return bend_to(self.tensor(step, value), instruction, true, element, self._bend)

    def _direction(self, step: int, value: int, element: int) -> Direction:
        if not self.job.is_logged or sum_kind(self.program.body[value]) is None:
            return Direction.NONE
        chunk, place = divmod(element, WORD_ELEMENTS)
        return code_in(self.log_tree(step).word(value, chunk), place)


def with_forged_words(words: Words) -> Trees:
    """Log trees with these words, by step, in place of their own."""

    def tree(program: Program, step: int, log: StepLog) -> LogTree:
        return ForgedLogTree(program, log, words[step]) if step in words else LogTree(program, log)

    return tree


def tampered(workshop: Workshop, job: Job, cheat: Cheat, *, bend: Bend = halfway, raw: Raw | None = None) -> Work:
    """The run of a party that is honest but for one changed number.

    Its evidence is consistent throughout: where a sum differs from the commitment, its accumulators are bent, beginning
    with the one that `bend` selects. If nothing committed differs from the truth, `lie` is None.
    """
    return deviating(workshop, job, cheat.tamper, first_step=cheat.step, bend=bend, raw=raw)


def altered(
    workshop: Workshop,
    job: Job,
    steps: Collection[int],
    observer: Callable[[int], Observer],
    *,
    computed_steps: int | None = None,
) -> Work:
    """The run of a party that is honest except in these steps; `observer` makes the observer of a step.

    computed_steps: the steps that the party had to execute, if not all.
    """
    return deviating(workshop, job, during(steps, observer), first_step=min(steps), computed_steps=computed_steps)


def deviating(
    workshop: Workshop,
    job: Job,
    tamper: Tamper,
    *,
    first_step: int = 1,
    computed_steps: int | None = None,
    logs: Mapping[int, StepLog] | None = None,
    bend: Bend = halfway,
    raw: Raw | None = None,
    words: Words | None = None,
) -> Work:
    """As `tampered`, for more than one changed number.

    logs: under policy `logged`, the logs by step that this party follows; by default it makes its own. raw: see
    `ForgedMemory`. words: forged words of the committed log trees, which no log file can hold. The lie is then the one
    that an auditor would find who knew the words.
    """
    trees = own_tree if words is None else with_forged_words(words)
    machine = Tampered(workshop.interpreter, tamper)
    run = workshop.compute(machine, first_step=first_step, logs=logs, trees=trees)
    evidence = ForgedMemory(run, machine, bend, raw)
    return workshop.work_of(job, evidence, computed_steps=computed_steps)
