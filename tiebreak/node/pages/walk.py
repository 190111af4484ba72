"""The walk of a game as a reader sees it: from the run down to four terms, each stage inside the one before.

A stage is one tree of the game. All that lies left of the place that was found is agreed; nothing right of it was
looked at. All of it is computed from moves, which the rules have accepted; names of instructions are display only.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from tiebreak.node.pages import words
from tiebreak.node.pages.model import Claim, Computation, Factor, Ply, Range, Stage, Term, Walk
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Concede, Move, Prove, kind_name
from tiebreak.protocol.game.referee import Openings
from tiebreak.protocol.game.state import GameState, Level
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.numbers import float32
from tiebreak.protocol.program import accumulator, reference
from tiebreak.protocol.program.accumulator import SUM_EXPONENT, Accumulator, Kind
from tiebreak.protocol.program.isa import (
    TERMS_PER_LEAF,
    DType,
    Instruction,
    MapFunction,
    Opcode,
    ReduceFunction,
    Slot,
    SourceKind,
    WindowFunction,
    unravel,
)
from tiebreak.protocol.program.program import Program

_ORIGIN: Final = re.compile(r"(?P<path>.*?)(?: \((?P<line>[^()]{1,200})\))?", re.DOTALL)
_FUNCTIONS: Final = {
    Opcode.MAP: MapFunction, Opcode.REDUCE: ReduceFunction, Opcode.SOURCE: SourceKind, Opcode.WINDOW: WindowFunction,
}  # fmt: skip


def states_of(start: GameState, line: Sequence[Move], end: GameState) -> list[GameState]:
    """The states of a line of moves, at instants that cost nothing, and `end` in place of the last.

    A line from a chain's log lacks the siblings that the contract has checked, so what `apply` refuses, `follow` takes.
    """
    states = [start]
    for move in line:
        state = states[-1]
        now = max(state.earliest, state.last)
        try:
            after = rules.apply(state, move, now)
            if after.is_over and not end.is_over:
                after = rules.follow(state, move, now)
        except VerificationError:
            try:
                after = rules.follow(state, move, now)
            except VerificationError:
                break
        states.append(after)
    if states[-1].moves <= end.moves:
        states.append(end)
    return states


def walk_of(
    start: GameState, line: Sequence[Move], end: GameState, program: Program | None, origins: Sequence[str] = (),
    gas: Mapping[int, int] = MappingProxyType({}),
) -> Walk:  # fmt: skip
    """The walk of a game that began with `start`, saw `line`, and stands at `end`.

    gas: of the transactions that made moves, by the number of moves there were then.
    """
    states = states_of(start, line, end)
    final = max(states, key=lambda state: (state.is_over, state.moves))
    naming = _Naming(program, origins)
    proof = next((move for move in reversed(line) if isinstance(move, Prove)), None)
    computation, correct = _computed(final, proof, naming) if proof else (None, None)
    return Walk(
        stages=tuple(_stages(states, final, naming)),
        plies=tuple(_plies(states, line, gas)),
        trainer=_trainer_claim(final),
        challenger=_challenger_claim(final, correct),
        computation=computation,
    )


def _plies(states: Sequence[GameState], line: Sequence[Move], gas: Mapping[int, int]) -> list[Ply]:
    plies = []
    for state, move in zip(states, line, strict=False):
        if state.is_over:
            break
        side = state.mover
        if isinstance(move, Concede) and states[-1].verdict is not None:
            side = states[-1].verdict.winner.other
        plies.append(Ply(kind=kind_name(move).replace("_", " "), side=side, gas=gas.get(state.moves + 1, 0)))
    return plies


# ---------------------------------------------------------------- stages


class _Naming:
    """Names of values and instructions, where the program and its origins are known."""

    def __init__(self, program: Program | None, origins: Sequence[str]) -> None:
        self._program, self._origins = program, origins

    def origin(self, leaf: int) -> tuple[str, str]:
        """Module path and source line of a leaf of the value tree; empty if unknown."""
        text = ""
        if leaf < len(self._origins):
            text = self._origins[leaf]
        elif self._program is not None and leaf < len(self._program.body):
            text = self._program.body[leaf].origin
        found = _ORIGIN.fullmatch(text)
        return (words.clipped(found["path"]), words.clipped(found["line"] or "")) if found else ("", "")

    def commit(self, entry: int) -> str:
        if self._program is None or entry >= len(self._program.commits):
            return ""
        params = self._program.commits[entry].params
        return words.clipped(params.name) if isinstance(params, Slot) else ""

    def value(self, index: int) -> str:
        if self._program is not None and index < len(self._program.body):
            params = self._program.body[index].params
            if isinstance(params, Slot):
                return words.clipped(params.name)
        return self.origin(index)[0] or f"value {index}"


def _stages(states: Sequence[GameState], final: GameState, naming: _Naming) -> list[Stage]:
    made = [_run_stage(states, final)]
    if made[-1].found is not None:
        made.append(_steps_stage(states, final))
        if made[-1].found is not None:
            made.append(_values_stage(states, final, naming))
    operation = final.operation
    if operation is not None and operation.opcode is not Opcode.SOURCE:
        made.append(_elements_stage(states, final, operation))
        if final.accumulator_root:
            made.append(_terms_stage(states, final, operation))
    return made


def _cuts(states: Sequence[GameState], level: Level, scale: Callable[[int], int]) -> tuple[Range, ...]:
    """The ranges left by each selection in a tree, on the scale of its stage."""
    seen: list[Range] = []
    for state in states:
        if state.level is level:
            low, high = (scale((state.position + k) << state.height) for k in (0, 1))
            if not seen or seen[-1] != (low, high):
                seen.append((low, high))
    return tuple(seen[1:])


def _run_stage(states: Sequence[GameState], final: GameState) -> Stage:
    job, total = final.job, final.head.count
    cuts = _cuts(states, Level.RUN, lambda leaf: min(leaf, total))
    there = final.level is not Level.RUN or (final.height == 0 and final.position < total)
    at = final.checkpoint if final.level is not Level.RUN else final.position
    title = f"Checkpoint {at + 1} of {total}" if there else _narrowed(cuts, total, "checkpoint")
    first, last = (job.first_step(at), job.last_step(at)) if there else (1, job.last_step(total - 1))
    return Stage(
        name="Run", question="Which checkpoint is the first that differs?", total=total, unit="checkpoints", cuts=cuts,
        found=(at, at + 1) if there else None, title=title, detail=_span("step", first, last),
    )  # fmt: skip


def _steps_stage(states: Sequence[GameState], final: GameState) -> Stage:
    job = final.job
    total, first = job.segment_steps(final.checkpoint), job.first_step(final.checkpoint)
    cuts = _cuts(states, Level.STEPS, lambda leaf: min(leaf, total))
    there, at = final.step > 0, final.step - first
    return Stage(
        name="Checkpoint", question="Which step?", total=total, unit="steps", cuts=cuts,
        found=(at, at + 1) if there else None,
        title=f"Step {final.step:,} of {job.steps:,}" if there else _narrowed(cuts, total, "step"),
        detail=f"in the segment of {_span('step', first, first + total - 1)}",
    )  # fmt: skip


def _values_stage(states: Sequence[GameState], final: GameState, naming: _Naming) -> Stage:
    job, half = final.job, 1 << final.job.half_depth
    total = job.body_count + job.state_count

    def scale(leaf: int) -> int:
        return min(leaf, job.body_count) if leaf < half else job.body_count + min(leaf - half, job.state_count)

    cuts = _cuts(states, Level.VALUES, scale)
    leaf = final.leaf if final.level > Level.VALUES else final.position
    there = final.level > Level.VALUES or (final.level is Level.VALUES and final.height == 0)
    low, high = (scale(leaf), scale(leaf + 1)) if there else (0, 0)
    title, detail, path, line = _narrowed(cuts, total, "value"), "", "", ""
    if high > low and leaf >= half:
        title = f"State entry {leaf - half:,} of {job.state_count:,}"
        detail = naming.commit(leaf - half)
    elif high > low:
        title = f"Instruction {leaf:,} of {job.body_count:,}"
        detail = operation_of(final.operation) if final.operation is not None else ""
        path, line = naming.origin(leaf)
    return Stage(
        name="Step", question="Which instruction?", total=total, unit="instructions and state entries", cuts=cuts,
        found=(low, high) if high > low else None, title=title, detail=detail, path=path, line=line,
    )  # fmt: skip


def _elements_stage(states: Sequence[GameState], final: GameState, operation: Instruction) -> Stage:
    each, total = CHUNK_BYTES // operation.dtype.size, operation.numel
    cuts = _cuts(states, Level.CHUNKS, lambda leaf: min(leaf * each, total))
    there = bool(final.claimed)
    title, detail = _narrowed(cuts, total, "element"), ""
    if there:
        title = f"Element {final.element:,} of {total:,}"
        place = ", ".join(map(str, unravel(final.element, operation.shape)))
        detail = (
            f"at [{place}] of {operation.dtype.name.lower()}{list(operation.shape)}" if place else "a single number"
        )
    return Stage(
        name="Instruction", question="Which element?", total=total, unit="elements", cuts=cuts,
        found=(final.element, final.element + 1) if there else None, title=title, detail=detail,
    )  # fmt: skip


def _terms_stage(states: Sequence[GameState], final: GameState, operation: Instruction) -> Stage:
    total = operation.terms
    cuts = _cuts(states, Level.TERMS, lambda leaf: min(leaf * TERMS_PER_LEAF, total))
    there = final.level is Level.TERMS and final.height == 0 and final.position * TERMS_PER_LEAF < total
    first = final.position * TERMS_PER_LEAF
    last = min(first + TERMS_PER_LEAF, total) - 1
    title = f"{_span('Term', first, last)} of {total:,}" if there else _narrowed(cuts, total, "term")
    return Stage(
        name="Element", question="Which terms of its sum?", total=total, unit="terms", cuts=cuts,
        found=(first, last + 1) if there else None, title=title, detail="what a referee recomputes" if there else "",
    )  # fmt: skip


def _narrowed(cuts: Sequence[Range], total: int, noun: str) -> str:
    low, high = cuts[-1] if cuts else (0, total)
    return f"{words.tally(max(0, high - low), noun)} left"


def _span(noun: str, first: int, last: int) -> str:
    return f"{noun} {first:,}" if first == last else f"{noun}s {first:,} to {last:,}"


def operation_of(instruction: Instruction) -> str:
    """An instruction's family, function and result: `reduce sum → f32[8, 16]`."""
    functions, text = _FUNCTIONS.get(instruction.opcode), instruction.opcode.name.lower().replace("_", " ")
    if functions is not None:
        text += f" {functions(instruction.function).name.lower()}"
    return f"{text} → {instruction.dtype.name.lower()}{list(instruction.shape) if instruction.shape else ''}"


# ---------------------------------------------------------------- claims, and the referee's computation


def _trainer_claim(final: GameState) -> Claim | None:
    said = "The trainer committed"
    if final.claimed and final.operation is not None:
        dtype = final.operation.dtype
        return _element_claim(said, dtype, words.bits_of(dtype, final.claimed), f"as element {final.element:,}")
    if final.node:
        return Claim(said=said, hexadecimal="0x" + final.node.hex(), note="a digest: the walk is not at numbers yet")
    return None


def _element_claim(said: str, dtype: DType, bits: int, note: str = "") -> Claim:
    return Claim(
        said=said, hexadecimal=words.hexadecimal(dtype, bits), decimal=words.decimal(dtype, bits), note=note
    )  # fmt: skip


def _challenger_claim(final: GameState, correct: Accumulator | None) -> Claim | None:
    verdict, operation, said = final.verdict, final.operation, "It computes to"
    if verdict is not None and verdict.correct and final.level is Level.CHUNKS and operation is not None:
        return _element_claim(said, operation.dtype, words.bits_of(operation.dtype, verdict.correct))
    if correct is not None and operation is not None and final.position == accumulator.leaf_count(operation.terms) - 1:
        bits = reference.to_raw(operation.dtype, accumulator.finish(correct, final.rounding))
        return _element_claim(said, operation.dtype, bits)
    if verdict is not None and verdict.correct and correct is not None:
        upto = min((final.position + 1) * TERMS_PER_LEAF, final.terms) - 1
        note = f"exactly: digest {words.short(verdict.correct)}, but {words.short(verdict.committed)} was committed"
        return Claim(said=f"Its sum up to term {upto:,} is", hexadecimal=_sum(correct), note=note)
    if verdict is not None and verdict.correct:
        return Claim(said=said, hexadecimal="0x" + verdict.correct.hex(), note="a digest, too")
    if verdict is None and (final.seal or final.value_seal):
        note = "opened by the proof, so that nobody can copy it"
        return Claim(said="The challenger says", hexadecimal="sealed", note=note)
    return None


def _computed(final: GameState, proof: Prove, naming: _Naming) -> tuple[Computation | None, Accumulator | None]:
    """The referee's reads and result, from the openings of a proof. (None, None) where nothing was computed."""
    operation = final.operation
    if operation is None or not final.claimed:
        return None, None
    reads: list[tuple[int, int, int]] = []
    try:
        opened = Openings(
            body_root=final.body_root, half_depth=final.job.half_depth, tensors=proof.tensors, chunks=proof.chunks
        )
        types, read = opened.operand_dtypes(operation), opened.reader(operation)

        def recording(operand: int, where: int) -> int:
            bits = read(operand, where)
            reads.append((operand, where, bits))
            return bits

        if final.level is not Level.TERMS:
            element = reference.element(
                operation, final.element, recording, types, step=final.step, rounding=final.rounding
            )
            after = words.decimal(operation.dtype, reference.to_raw(operation.dtype, element))
            return _computation(final, naming, operation, types, reads, before="", after=after), None
        held = accumulator.decode(accumulator.kind_of(operation, types[0]), proof.previous) if final.position else None
        result = reference.accumulate_leaf(operation, final.element, final.position, held, recording, types)
    except VerificationError:
        return None, None
    before = _sum(held) if held is not None else ""
    return _computation(final, naming, operation, types, reads, before=before, after=_sum(result)), result


def _sum(held: Accumulator) -> str:
    if held.kind.is_f32_sum:
        return "not a number" if held.invalid else words.rational(Fraction(held.value) * Fraction(2) ** SUM_EXPONENT)
    if held.kind in (Kind.F32_MAX, Kind.F32_ARGMAX):
        return words.decimal(DType.F32, held.value)
    return f"{held.value:,}"


def _computation(
    final: GameState, naming: _Naming, operation: Instruction, types: Sequence[DType],
    reads: Sequence[tuple[int, int, int]], *, before: str, after: str,
) -> Computation:  # fmt: skip
    each = len(operation.operands) if operation.opcode is Opcode.REDUCE else max(1, len(reads))
    first = final.position * TERMS_PER_LEAF if final.level is Level.TERMS else 0
    terms = []
    for number, at in enumerate(range(0, len(reads), each)):
        factors = []
        for operand, where, bits in reads[at : at + each]:
            raw, dtype = reference.to_raw(types[operand], bits), types[operand]
            name = naming.value(operation.operands[operand].value)
            factors.append(Factor(name=name, element=where, hexadecimal=words.hexadecimal(dtype, raw),
                                  decimal=words.decimal(dtype, raw)))  # fmt: skip
        label = f"term {first + number:,}" if operation.opcode is Opcode.REDUCE else "reads"
        taken = reads[at : at + each]
        terms.append(Term(label=label, factors=tuple(factors), result=_product(operation, types, taken)))
    return Computation(operation=operation_of(operation), terms=tuple(terms), before=before, after=after)


def _product(operation: Instruction, types: Sequence[DType], taken: Sequence[tuple[int, int, int]]) -> str:
    """The exact product of a term's factors, to nine digits; empty if it is no product of numbers."""
    if operation.opcode is not Opcode.REDUCE or len(taken) < 2 or any(types[k] != DType.F32 for k, _, _ in taken):
        return ""
    product = Fraction(1)
    for _, _, bits in taken:
        if not float32.is_finite(bits):
            return "not a number"
        number, exponent = float32.decode(bits)
        product *= Fraction(number) * Fraction(2) ** exponent
    return words.rational(product)
