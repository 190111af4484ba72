"""Forged runs and their evidence, consistent throughout: its sums and log words are bent to fit what was committed."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from fractions import Fraction

from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.interpreter import Interpreter, Observer
from tiebreak.lab.sim.adversaries.tampering import Cheat, Tamper, Tampered, during
from tiebreak.lab.sim.world.work import MemoryEvidence, MemoryRun, Values, Work, own_tree
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.commitments.accumulator_tree import AccumulatorTree
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import WORD_ELEMENTS, LogTree, code_in, depth_of_value, word_leaf
from tiebreak.protocol.commitments.records import identify
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.program.accumulator import BLOCK_LEAVES, decode_for, encode, finish
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, StepLog, element_rounding, sum_kind
from tiebreak.protocol.tags import EMPTY, Digest
from tiebreak.protocol.trees import Tree

Bend = Callable[[int], int]
"""Maps the number of accumulators of a sum to the first one to bend."""
Raw = Mapping[tuple[int, int], Callable[[bytes], bytes]]
"""Maps (step, index of an instruction) to a change of its result's bytes wherever they are committed or shown."""
Words = Mapping[int, Mapping[tuple[int, int], bytes]]
"""Words of log trees: maps step to (value, chunk) to the word."""

# ---------------------------------------------------------------- evidence


class ForgedEvidence(Evidence):
    """The `Evidence` of a run that was tampered with.

    Where a sum does not lead to the committed value, its accumulators are bent to fit it, from one of them on.
    """

    def bend(self, count: int) -> int:
        """The first accumulator to bend, of `count`."""
        return count // 2

    def accumulators(self, step: int, value: int, element: int) -> AccumulatorTree:
        true, instruction = super().accumulators(step, value, element), self.program.body[value]
        size, direction = instruction.dtype.size, self._direction(step, value, element)
        rounding = element_rounding(
            instruction, precision=self.job.precision, tolerances=self.job.tolerances, direction=direction
        )
        right = finish(decode_for(instruction, true.last), rounding) % (1 << 8 * size)
        claimed = int.from_bytes(self.tensor(step, value)[size * element : size * (element + 1)], "little")
        return true if right == claimed else bend_to(claimed, instruction, true, self.bend(true.count))

    def _direction(self, step: int, value: int, element: int) -> Direction:
        if not self.job.is_logged or sum_kind(self.program.body[value]) is None:
            return Direction.NONE
        chunk, place = divmod(element, WORD_ELEMENTS)
        return code_in(self.log_tree(step).word(value, chunk), place)


def exact_units(bits: int) -> int:
    """A finite float32, given by its bits, in the units of accumulators: 2^-298 (SPEC section 6)."""
    exponent, fraction = bits >> 23 & 0xFF, bits & 0x7FFFFF
    significand = fraction | (0x800000 if exponent else 0)
    value = Fraction(significand) * Fraction(2) ** (max(exponent, 1) - 150 + 298)
    return -int(value) if bits >> 31 else int(value)


def bend_to(claimed: int, instruction: Instruction, honest: AccumulatorTree, first: int) -> AccumulatorTree:
    """Accumulators that end in the claimed bits, and differ from accumulator number `first` on.

    Only finite float32 sums are bent, and never to -0, which no sum gives. In all other cases the honest ones are
    returned.
    """
    last = decode_for(instruction, honest.last)
    if not last.kind.is_f32_sum or claimed & 0x7FFFFFFF >= NAN_BITS & 0x7F800000:
        return honest
    bent = replace(last, value=exact_units(claimed))
    if finish(bent) != claimed:
        return honest
    missing = bent.value - last.value

    def block(number: int) -> bytes:
        found = honest.block(number)
        for place in range(max(0, first - number * BLOCK_LEAVES), len(found)):
            held = decode_for(instruction, found[place])
            found[place] = encode(replace(held, value=held.value + missing))
        return b"".join(found)

    return AccumulatorTree(honest.count, block)


class ForgedLogTree(LogTree):
    """A log tree with some words, by (value, chunk), that no log can have: code 3, or codes of padding."""

    def __init__(self, program: Program, log: StepLog, words: Mapping[tuple[int, int], bytes]) -> None:
        super().__init__(program, log)
        self._forged = dict(words)
        self._trees = {value: self._subtree(value) for value, _ in words}
        leaves = [
            self._trees[value].root if value in self._trees
            else EMPTY if sum_kind(instruction) is None
            else self._subtree(value).root
            for value, instruction in enumerate(program.body)
        ]  # fmt: skip
        self._forged_top = Tree(leaves, program.half_depth)

    @property
    def root(self) -> Digest:
        return self._forged_top.root

    def word(self, value: int, chunk: int) -> bytes:
        """The forged word, or else the log's own."""
        return self._forged.get((value, chunk)) or super().word(value, chunk)

    def proof(self, value: int, chunk: int) -> list[Digest]:
        """The siblings of the word's leaf."""
        tree = self._trees.get(value) or self._subtree(value)
        return tree.proof(chunk) + self._forged_top.proof(value)

    def _subtree(self, value: int) -> Tree:
        depth = depth_of_value(self._program, value)
        return Tree([word_leaf(self.word(value, chunk)) for chunk in range(1 << depth)], depth)


class ForgedMemory(ForgedEvidence, MemoryEvidence):
    """The evidence of a run in memory that may be changed in any way.

    raw: byte changes that no tensor of this process can hold, such as other NaN patterns.
    """

    def __init__(
        self, run: MemoryRun, interpreter: Interpreter, bend: Bend | None = None, raw: Raw | None = None
    ) -> None:
        super().__init__(run, interpreter)
        self._bend = super().bend if bend is None else bend
        self._raw = {} if raw is None else raw

    def bend(self, count: int) -> int:
        return self._bend(count)

    def _shown(self, step: int, data: dict[int, bytes], ids: dict[int, Digest]) -> Values:
        for (number, index), change in self._raw.items():
            if number == step:
                data[index] = change(data[index])
                instruction = self.program.body[index]
                ids[index] = identify(instruction.dtype, instruction.shape, data[index])
        return super()._shown(step, data, ids)


# ---------------------------------------------------------------- runs


def tampered(workshop: Workshop, job: Job, cheat: Cheat, *, bend: Bend | None = None, raw: Raw | None = None) -> Work:
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
    bend: Bend | None = None,
    raw: Raw | None = None,
    words: Words | None = None,
) -> Work:
    """The run of a party that is honest but for changed numbers, any number of them; see `tampered`.

    logs: under policy `logged`, the logs by step that this party follows; by default it makes its own. raw: see
    `ForgedMemory`. words: forged words of the committed log trees, which no log file can hold. The lie is then the one
    that an auditor would find who knew the words.
    """

    def trees(program: Program, step: int, log: StepLog) -> LogTree:
        return ForgedLogTree(program, log, (words or {}).get(step, {}))

    machine = Tampered(workshop.interpreter, tamper)
    run = workshop.compute(machine, first_step=first_step, logs=logs, trees=own_tree if words is None else trees)
    return workshop.work_of(job, ForgedMemory(run, machine, bend, raw), computed_steps=computed_steps)
