"""Deviating trainers: how honest values are replaced while a step is interpreted, and the evidence that fits the lie.

A replaced value is used by everything after it: in the step, in later steps and in the evidence. So a `Cheat`, which
replaces one value of one step, is the strongest form of a local cheat: its trees, records and openings all agree with
each other, its sums and log words are bent to fit what was committed, and only recomputing the one changed number can
convict it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.data.tensors import identity
from tiebreak.engine.logged.journal import Supply
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.interpreter import Interpreter, Observer, State, StepResult
from tiebreak.lab.sim.world.work import MemoryEvidence, MemoryRun, Values, Work, own_tree
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.commitments.accumulator_tree import AccumulatorTree
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import WORD_ELEMENTS, LogTree, code_in, depth_of_value, word_leaf
from tiebreak.protocol.commitments.records import identify
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.program.accumulator import BLOCK_LEAVES, decode_for, encode, finish
from tiebreak.protocol.program.isa import DType, Instruction, Opcode, Slot, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, StepLog, element_rounding, sum_kind
from tiebreak.protocol.tags import EMPTY, Digest
from tiebreak.protocol.trees import Tree

T = TypeVar("T")
Change = Callable[[Tensor], Tensor]
"""Maps an honest value to its replacement, without writing to the honest tensor."""
Tamper = Callable[[int], Observer | None]
"""Maps a step to the observer with which a cheat replaces honest values (None: nothing is replaced)."""
Redone = Mapping[int, Mapping[int, Tensor]]
"""Maps an instruction to replacements of its operands, by the value that it reads."""
Bend = Callable[[int], int]
"""Maps the number of accumulators of a sum to the first one to bend."""
Raw = Mapping[tuple[int, int], Callable[[bytes], bytes]]
"""Maps (step, index of an instruction) to a change of its result's bytes wherever they are committed or shown."""
Words = Mapping[int, Mapping[tuple[int, int], bytes]]
"""Words of log trees: maps step to (value, chunk) to the word."""


class Tampered(Interpreter):
    """An honest interpreter whose values are replaced on the way: a cheat computes with it."""

    def __init__(self, honest: Interpreter, tamper: Tamper) -> None:
        vars(self).update(vars(honest))  # plan and kernels, which take long to make, are shared
        self._tamper = tamper

    def step(
        self, number: int, state: State, data: State, observe: Observer | None = None, **options: Any
    ) -> StepResult:
        found = [observer for observer in (self._tamper(number), observe) if observer is not None]
        return super().step(number, state, data, together(*found) if found else None, **options)


def during(steps: Collection[int], observer: Callable[[int], Observer]) -> Tamper:
    """Deviates in these steps only; `observer` makes the observer of a step."""
    return lambda step: observer(step) if step in steps else None


def putting(changes: Mapping[int, Change]) -> Observer:
    """Changes the values at these leaves of the value tree."""
    return lambda leaf, tensor: changes[leaf](tensor) if leaf in changes else tensor


def together(*observers: Observer) -> Observer:
    """Applies several observers, one after the other."""

    def observe(leaf: int, tensor: Tensor) -> Tensor:
        for each in observers:
            tensor = each(leaf, tensor)
        return tensor

    return observe


def redoing(program: Program, arithmetic: Arithmetic, step: int, redone: Redone) -> Observer:
    """Executes some instructions with other operands, such as another seed, learning rate or step."""
    wanted = {operand.value for index in redone for operand in program.body[index].operands}
    held: dict[int, Tensor] = {}

    def observe(leaf: int, tensor: Tensor) -> Tensor:
        if leaf in redone:
            instruction = program.body[leaf]
            read = [redone[leaf].get(operand.value, held.get(operand.value)) for operand in instruction.operands]
            tensor = arithmetic.execute(instruction, [x for x in read if x is not None], step - 1)
        if leaf in wanted:
            held[leaf] = tensor
        return tensor

    return observe


def committing(program: Program, choose: Callable[[str, Tensor, Tensor], Tensor]) -> Observer:
    """Replaces committed state. `choose` gets an entry's name, its new value and its old value."""
    sources = state_sources(program)
    commits = {program.leaf_of_commit(slot): name for slot, name in enumerate(program.state_spec())}
    old: dict[str, Tensor] = {}

    def observe(leaf: int, tensor: Tensor) -> Tensor:
        if leaf in sources:
            old[sources[leaf]] = tensor
        if leaf in commits:
            return choose(commits[leaf], tensor, old[commits[leaf]])
        return tensor

    return observe


def state_sources(program: Program) -> dict[int, str]:
    """The instructions that read the state, with the entries that they read."""
    return {
        index: i.params.name
        for index, i in enumerate(program.body)
        if i.opcode == Opcode.SOURCE and i.function == SourceKind.STATE and isinstance(i.params, Slot)
    }


def only(program: Program, opcode: Opcode, function: int = 0, name: str | None = None) -> int:
    """The only instruction with this opcode and function; of a source, the only one with this name if one is given.

    Raises `ConfigurationError` if there are none or several.
    """
    alike = [n for n, i in enumerate(program.body) if (i.opcode, i.function) == (opcode, function)]
    found = [n for n in alike if name is None or getattr(program.body[n].params, "name", None) == name]
    if len(found) != 1:
        raise ConfigurationError(f"expected one {opcode.name} of {name or 'any name'}, got {len(found)}")
    return found[0]


def clock(program: Program) -> int:
    """The source that is the number of the step."""
    return only(program, Opcode.SOURCE, SourceKind.STEP)


def stored(program: Program, name: str) -> int:
    """The source that is a data entry. Raises `ConfigurationError` if there is none."""
    return only(program, Opcode.SOURCE, SourceKind.DATA, name)


def drawn(program: Program, name: str) -> int:
    """The first instruction that gathers from a data entry, such as the batch of a step."""
    source = stored(program, name)
    return next(n for n, i in enumerate(program.body) if i.opcode == Opcode.GATHER and i.operands[0].value == source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheat:
    """Replaces element `element` of the value at `leaf` of the value tree in step `step`."""

    name: str = "one number"
    step: int
    leaf: int
    element: int
    change: Callable[[Tensor], Tensor]
    """Maps the old element (rank 0) to the new one."""

    def tamper(self, step: int) -> Observer | None:
        return self._observe if step == self.step else None

    def _observe(self, leaf: int, tensor: Tensor) -> Tensor:
        if leaf != self.leaf:
            return tensor
        changed = tensor.clone()
        flat = changed.view(-1)
        flat[self.element] = self.change(flat[self.element])
        if identity(changed) == identity(tensor):  # compared as bits: -0 differs from +0, and a NaN equals itself
            raise ConfigurationError(f"{self.name}: expected the change to change something")
        return changed


def poisoned_label(program: Program, *, labels: str, step: int, element: int, classes: int) -> Cheat:
    """One example of one batch gets the next class as its label."""
    change = lambda label: (label + 1) % classes  # noqa: E731
    return Cheat(name="poisoned label", step=step, leaf=drawn(program, labels), element=element, change=change)


def changed_learning_rate(program: Program, *, step: int, factor: float) -> Cheat:
    """One step uses another learning rate than the agreed schedule's."""
    leaf = drawn(program, "learning_rate")
    return Cheat(name="changed learning rate", step=step, leaf=leaf, element=0, change=lambda rate: rate * factor)


def flip_bit(value: Tensor, bit: int) -> Tensor:
    """A float32 of rank 0 with one bit of its pattern flipped."""
    mask = torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32, device=value.device)
    return (value.reshape(1).view(torch.int32) ^ mask).view(torch.float32).reshape(())


def flipped_weight_bit(program: Program, *, state: str, step: int, element: int, bit: int = 0) -> Cheat:
    """One bit of one weight differs in the state after a step."""
    leaf = program.leaf_of_commit(list(program.state_spec()).index(state))
    change = lambda weight: flip_bit(weight, bit)  # noqa: E731
    return Cheat(name="flipped weight bit", step=step, leaf=leaf, element=element, change=change)


def long_sums(program: Program, terms: int) -> list[int]:
    """The indices of the float32 reductions with at least `terms` terms an element."""
    sums = ((n, i) for n, i in enumerate(program.body) if i.opcode == Opcode.REDUCE and i.function == 0)
    return [n for n, i in sums if i.dtype == DType.F32 and i.terms >= terms]


TF32_MASK = -(1 << 13)
"""Clears the fraction bits that TF32 lacks."""


def as_tf32(value: Tensor) -> Tensor:
    """A float32 of rank 0, truncated to TF32's 10 fraction bits."""
    return (value.reshape(1).view(torch.int32) & TF32_MASK).view(torch.float32).reshape(())


def low_precision_sum(*, step: int, index: int, element: int) -> Cheat:
    """One sum of products is truncated to TF32, as on a GPU that was allowed to use it."""
    return Cheat(name="sum in TF32", step=step, leaf=index, element=element, change=as_tf32)


# ---------------------------------------------------------------- bytes and openings


def flipped(data: bytes, rng: Random) -> bytes:
    """The same bytes with one bit flipped."""
    place = rng.randrange(8 * len(data))
    changed = bytearray(data)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def one_changed(items: tuple[T, ...], rng: Random, change: Callable[[T], T]) -> tuple[T, ...]:
    """The same items with a random one changed."""
    place = rng.randrange(len(items))
    return (*items[:place], change(items[place]), *items[place + 1 :])


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
        job, size, direction = self.job, instruction.dtype.size, Direction.NONE
        if job.is_logged and sum_kind(instruction) is not None:
            chunk, place = divmod(element, WORD_ELEMENTS)
            direction = code_in(self.log_tree(step).word(value, chunk), place)
        rounding = element_rounding(
            instruction, precision=job.precision, tolerances=job.tolerances, direction=direction
        )
        right = finish(decode_for(instruction, true.last), rounding) % (1 << 8 * size)
        claimed = int.from_bytes(self.tensor(step, value)[size * element : size * (element + 1)], "little")
        return true if right == claimed else bend_to(claimed, instruction, true, self.bend(true.count))


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
        are_sums = [sum_kind(instruction) is not None for instruction in program.body]
        leaves = [self._subtree(value).root if is_sum else EMPTY for value, is_sum in enumerate(are_sums)]
        self._forged_top = Tree(leaves, program.half_depth)

    @property
    def root(self) -> Digest:
        return self._forged_top.root

    def word(self, value: int, chunk: int) -> bytes:
        """The forged word, or else the log's own."""
        return self._forged.get((value, chunk)) or super().word(value, chunk)

    def proof(self, value: int, chunk: int) -> list[Digest]:
        """The siblings of the word's leaf."""
        return self._subtree(value).proof(chunk) + self._forged_top.proof(value)

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
        self._bend, self._raw = bend or super().bend, raw or {}

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
    supply: Supply | None = None,
) -> Work:
    """The run of a party that is honest but for changed numbers, any number of them; see `tampered`.

    logs: under policy `logged`, the logs by step that this party follows; by default it makes its own. raw: see
    `ForgedMemory`. words: forged words of the committed log trees, which no log file can hold. The lie is then the one
    that an auditor would find who knew the words. supply: makes the late data that it publishes and reads.
    """

    def trees(program: Program, step: int, log: StepLog) -> LogTree:
        return ForgedLogTree(program, log, (words or {}).get(step, {}))

    machine = Tampered(workshop.interpreter, tamper)
    run = workshop.compute(
        machine, first_step=first_step, logs=logs, trees=own_tree if words is None else trees, supply=supply
    )
    return workshop.work_of(job, ForgedMemory(run, machine, bend, raw), computed_steps=computed_steps)
