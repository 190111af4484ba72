"""The walk of a game as a reader sees it: from the run down to four terms, each stage inside the one before.

A stage is one tree of the game. All that lies left of the place that was found is agreed; nothing right of it was
looked at. All of it is computed from moves, which the rules have accepted; names of instructions are display only.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import prod
from types import MappingProxyType
from typing import Final

from tiebreak.node.pages import words
from tiebreak.node.pages.words import Values
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Concede, Move, Prove, kind_name
from tiebreak.protocol.game.referee import Openings
from tiebreak.protocol.game.state import GameState, Level
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.numbers import float32
from tiebreak.protocol.program import accumulator, isa, reference
from tiebreak.protocol.program.accumulator import SUM_EXPONENT, Accumulator, Kind
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, DType, Instruction, Opcode, Slot
from tiebreak.protocol.program.program import Program

Range = tuple[int, int]
"""Half open: the first place, and the one behind the last."""
_ORIGIN: Final = re.compile(r"(?P<path>.*?)(?: \((?P<line>[^()]{1,200})\))?", re.DOTALL)
_FUNCTIONS: Final = {
    Opcode.MAP: isa.MapFunction, Opcode.REDUCE: isa.ReduceFunction, Opcode.SOURCE: isa.SourceKind,
    Opcode.WINDOW: isa.WindowFunction,
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
) -> Values:  # fmt: skip
    """The walk of a game that began with `start`, saw `line`, and stands at `end`.

    gas: of the transactions that made moves, by the number of moves there were then.
    """
    states = states_of(start, line, end)
    final = max(states, key=lambda state: (state.is_over, state.moves))
    naming = _Naming(program, origins)
    proof = next((move for move in reversed(line) if isinstance(move, Prove)), None)
    computation, correct = _computed(final, proof, naming) if proof else (None, None)
    plies: list[Values] = []
    for state, move in zip(states, line, strict=False):
        if state.is_over:
            break
        side = state.mover
        if isinstance(move, Concede) and states[-1].verdict is not None:
            side = states[-1].verdict.winner.other
        # A move without gas is known from a signed message alone.
        plies.append({"kind": kind_name(move).replace("_", " "), "side": side, "gas": gas.get(state.moves + 1, 0)})
    return {
        "stages": _stages(states, final, naming), "plies": plies, "computation": computation,
        "trainer": _trainer_claim(final), "challenger": _challenger_claim(final, correct),
    }  # fmt: skip


# ---------------------------------------------------------------- stages


class _Naming:
    """Names of values and instructions, where the program and its origins are known. Nobody signs them."""

    def __init__(self, program: Program | None, origins: Sequence[str]) -> None:
        self._body, self._commits = (program.body, program.commits) if program is not None else ((), ())
        self._origins = origins

    def origin(self, leaf: int) -> tuple[str, str]:
        """Module path and source line of a leaf of the value tree; empty if unknown."""
        text = ""
        if leaf < len(self._origins):
            text = self._origins[leaf]
        elif leaf < len(self._body):
            text = self._body[leaf].origin
        found = _ORIGIN.fullmatch(text)
        return (words.clipped(found["path"]), words.clipped(found["line"] or "")) if found else ("", "")

    def commit(self, entry: int) -> str:
        params = self._commits[entry].params if entry < len(self._commits) else None
        return words.clipped(params.name) if isinstance(params, Slot) else ""

    def value(self, index: int) -> str:
        params = self._body[index].params if index < len(self._body) else None
        return words.clipped(params.name) if isinstance(params, Slot) else self.origin(index)[0] or f"value {index}"


def _stage(
    name: str, question: str, noun: str, total: int, cuts: Sequence[Range], found: Range | None, title: str,
    *, detail: str = "", unit: str = "", origin: tuple[str, str] = ("", ""),
) -> Values:  # fmt: skip
    """One tree of the walk. `cuts` are the ranges that selections left, each inside the one before.

    title: of what was found. origin: module path and source line of the disputed instruction in the client's model.
    """
    if found is None:
        low, high = cuts[-1] if cuts else (0, total)
        title = f"{words.tally(max(0, high - low), noun)} left"
    return {
        "name": name, "question": question, "unit": unit or f"{noun}s", "total": total, "cuts": cuts, "found": found,
        "title": title, "detail": detail, "path": origin[0], "line": origin[1],
    }  # fmt: skip


def _stages(states: Sequence[GameState], final: GameState, naming: _Naming) -> list[Values]:
    made = [_run_stage(states, final)]
    if made[-1]["found"] is not None:
        made.append(_steps_stage(states, final))
        if made[-1]["found"] is not None:
            made.append(_values_stage(states, final, naming))
    if (operation := final.operation) is not None and operation.opcode is not Opcode.SOURCE:
        made.append(_elements_stage(states, final, operation))
        if final.accumulator_root:
            made.append(_terms_stage(states, final, operation))
    return made


def _cuts(states: Sequence[GameState], level: Level, scale: Callable[[int], int]) -> list[Range]:
    """The ranges left by each selection in a tree, on the scale of its stage."""
    seen: list[Range] = []
    for state in states:
        if state.level is level:
            low, high = (scale((state.position + k) << state.height) for k in (0, 1))
            if not seen or seen[-1] != (low, high):
                seen.append((low, high))
    return seen[1:]


def _run_stage(states: Sequence[GameState], final: GameState) -> Values:
    job, total = final.job, final.head.count
    cuts = _cuts(states, Level.RUN, lambda leaf: min(leaf, total))
    there = final.level is not Level.RUN or (final.height == 0 and final.position < total)
    at = final.checkpoint if final.level is not Level.RUN else final.position
    first, last = (job.first_step(at), job.last_step(at)) if there else (1, job.last_step(total - 1))
    return _stage(
        "Run", "Which checkpoint is the first that differs?", "checkpoint", total, cuts,
        (at, at + 1) if there else None, f"Checkpoint {at + 1} of {total}", detail=_span("step", first, last),
    )  # fmt: skip


def _steps_stage(states: Sequence[GameState], final: GameState) -> Values:
    total, first = final.job.segment_steps(final.checkpoint), final.job.first_step(final.checkpoint)
    at = final.step - first
    return _stage(
        "Checkpoint", "Which step?", "step", total, _cuts(states, Level.STEPS, lambda leaf: min(leaf, total)),
        (at, at + 1) if final.step > 0 else None, f"Step {final.step:,} of {final.job.steps:,}",
        detail=f"in the segment of {_span('step', first, first + total - 1)}",
    )  # fmt: skip


def _values_stage(states: Sequence[GameState], final: GameState, naming: _Naming) -> Values:
    job, half = final.job, 1 << final.job.half_depth

    def scale(leaf: int) -> int:
        return min(leaf, job.body_count) if leaf < half else job.body_count + min(leaf - half, job.state_count)

    leaf = final.leaf if final.level > Level.VALUES else final.position
    there = final.level > Level.VALUES or (final.level is Level.VALUES and final.height == 0)
    low, high = (scale(leaf), scale(leaf + 1)) if there else (0, 0)
    title, detail, origin = "", "", ("", "")
    if high > low and leaf >= half:
        title, detail = f"State entry {leaf - half:,} of {job.state_count:,}", naming.commit(leaf - half)
    elif high > low:
        title, origin = f"Instruction {leaf:,} of {job.body_count:,}", naming.origin(leaf)
        detail = operation_of(final.operation) if final.operation is not None else ""
    return _stage(
        "Step", "Which instruction?", "value", job.body_count + job.state_count, _cuts(states, Level.VALUES, scale),
        (low, high) if high > low else None, title, detail=detail, unit="instructions and state entries", origin=origin,
    )  # fmt: skip


def _elements_stage(states: Sequence[GameState], final: GameState, operation: Instruction) -> Values:
    each, total, at = CHUNK_BYTES // operation.dtype.size, operation.numel, final.element
    found, detail = None, ""
    if final.claimed:
        found, place = (at, at + 1), ", ".join(map(str, isa.unravel(at, operation.shape)))
        shape = f"{operation.dtype.name.lower()}{list(operation.shape)}"
        detail = f"at [{place}] of {shape}" if place else "a single number"
    return _stage(
        "Instruction", "Which element?", "element", total,
        _cuts(states, Level.CHUNKS, lambda leaf: min(leaf * each, total)), found, f"Element {at:,} of {total:,}",
        detail=detail,
    )  # fmt: skip


def _terms_stage(states: Sequence[GameState], final: GameState, operation: Instruction) -> Values:
    total, first = operation.terms, final.position * TERMS_PER_LEAF
    there = final.level is Level.TERMS and final.height == 0 and first < total
    end = min(first + TERMS_PER_LEAF, total)
    return _stage(
        "Element", "Which terms of its sum?", "term", total,
        _cuts(states, Level.TERMS, lambda leaf: min(leaf * TERMS_PER_LEAF, total)), (first, end) if there else None,
        f"{_span('Term', first, end - 1)} of {total:,}", detail="what a referee recomputes" if there else "",
    )  # fmt: skip


def _span(noun: str, first: int, last: int) -> str:
    return f"{noun} {first:,}" if first == last else f"{noun}s {first:,} to {last:,}"


def operation_of(instruction: Instruction) -> str:
    """An instruction's family, function and result: `reduce sum → f32[8, 16]`."""
    functions, text = _FUNCTIONS.get(instruction.opcode), instruction.opcode.name.lower().replace("_", " ")
    if functions is not None:
        text += f" {functions(instruction.function).name.lower()}"
    return f"{text} → {instruction.dtype.name.lower()}{list(instruction.shape) if instruction.shape else ''}"


# ---------------------------------------------------------------- claims, and the referee's computation


def _claim(hexadecimal: str, note: str = "", decimal: str = "", *, said: str = "It computes to") -> Values:
    """The content of the disputed place as a side claims it. said: what a challenger does to get it."""
    return {"said": said, "hexadecimal": hexadecimal, "decimal": decimal, "note": note}


def _element_claim(dtype: DType, bits: int, note: str = "") -> Values:
    return _claim(words.hexadecimal(dtype, bits), note, words.decimal(dtype, bits))


def _trainer_claim(final: GameState) -> Values | None:
    if final.claimed and final.operation is not None:
        dtype = final.operation.dtype
        return _element_claim(dtype, words.bits_of(dtype, final.claimed), f"as element {final.element:,}")
    if final.node:
        return _claim("0x" + final.node.hex(), "a digest: the walk is not at numbers yet")
    return None


def _challenger_claim(final: GameState, correct: Accumulator | None) -> Values | None:
    verdict, operation = final.verdict, final.operation
    if verdict is not None and verdict.correct and final.level is Level.CHUNKS and operation is not None:
        return _element_claim(operation.dtype, words.bits_of(operation.dtype, verdict.correct))
    if correct is not None and operation is not None and final.position == accumulator.leaf_count(operation.terms) - 1:
        bits = reference.to_raw(operation.dtype, accumulator.finish(correct, final.rounding))
        return _element_claim(operation.dtype, bits)
    if verdict is not None and verdict.correct and correct is not None:
        upto = min((final.position + 1) * TERMS_PER_LEAF, final.terms) - 1
        note = f"exactly: digest {words.short(verdict.correct)}, but {words.short(verdict.committed)} was committed"
        return _claim(_sum(correct), note, said=f"Its sum up to term {upto:,} is")
    if verdict is not None and verdict.correct:
        return _claim("0x" + verdict.correct.hex(), "a digest, too")
    if verdict is None and (final.seal or final.value_seal):
        return _claim("sealed", "opened by the proof, so that nobody can copy it", said="The challenger says")
    return None


def _computed(final: GameState, proof: Prove, naming: _Naming) -> tuple[Values | None, Accumulator | None]:
    """The referee's reads and result, from the openings of a proof. (None, None) where nothing was computed."""
    if (operation := final.operation) is None or not final.claimed:
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

        before, result = "", None
        if final.level is not Level.TERMS:
            element = reference.element(
                operation, final.element, recording, types, step=final.step, rounding=final.rounding
            )
            after = words.decimal(operation.dtype, reference.to_raw(operation.dtype, element))
        else:
            kind = accumulator.kind_of(operation, types[0])
            held = accumulator.decode(kind, proof.previous) if final.position else None
            result = reference.accumulate_leaf(operation, final.element, final.position, held, recording, types)
            before, after = _sum(held) if held is not None else "", _sum(result)
    except VerificationError:
        return None, None
    terms = _terms(final, naming, operation, types, reads)
    return {"operation": operation_of(operation), "terms": terms, "before": before, "after": after}, result


def _sum(held: Accumulator) -> str:
    if held.kind.is_f32_sum:
        return "not a number" if held.invalid else words.rational(Fraction(held.value) * Fraction(2) ** SUM_EXPONENT)
    if held.kind in (Kind.F32_MAX, Kind.F32_ARGMAX):
        return words.decimal(DType.F32, held.value)
    return f"{held.value:,}"


def _terms(
    final: GameState, naming: _Naming, operation: Instruction, types: Sequence[DType],
    reads: Sequence[tuple[int, int, int]],
) -> list[Values]:  # fmt: skip
    """The lines of the referee's computation: each with the elements that it read, and their product."""
    is_reduce, terms = operation.opcode is Opcode.REDUCE, list[Values]()
    each = len(operation.operands) if is_reduce else max(1, len(reads))
    first = final.position * TERMS_PER_LEAF if final.level is Level.TERMS else 0
    for number, at in enumerate(range(0, len(reads), each)):
        factors, taken = [], reads[at : at + each]
        for operand, where, bits in taken:
            dtype = types[operand]
            raw, name = reference.to_raw(dtype, bits), naming.value(operation.operands[operand].value)
            factors.append({"name": name, "element": where, "hexadecimal": words.hexadecimal(dtype, raw),
                            "decimal": words.decimal(dtype, raw)})  # fmt: skip
        result = ""
        if is_reduce and len(taken) > 1 and all(types[k] == DType.F32 for k, _, _ in taken):
            result = "not a number"
            if all(float32.is_finite(bits) for _, _, bits in taken):
                numbers = [float32.decode(bits) for _, _, bits in taken]
                exact = prod((mantissa * Fraction(2) ** power for mantissa, power in numbers), start=Fraction(1))
                result = words.rational(exact)
        label = f"term {first + number:,}" if is_reduce else "reads"
        terms.append({"label": label, "factors": factors, "result": result})
    return terms
