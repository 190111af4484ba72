"""The cost of one step of a program, counted from its instructions alone; nothing is run.

The counts follow the definition of the program and not an implementation: a multiplication and an addition are two
operations, however they are computed, and a value lives from the instruction that makes it to the last one that reads
it, in the program's order.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

from tiebreak.engine.arithmetic.plan.chains import Unit
from tiebreak.engine.system import memory_bytes
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType, Instruction, Opcode, SourceKind
from tiebreak.protocol.program.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one step; bytes are those of tensors as committed, unless `cost_of` was told more.

    flops: f32 additions, multiplications and elementwise functions. changed_bytes: those of the state entries of which
    a step makes new ones. live_bytes: the largest total size of the step's values (without state and data) at any time.
    passing_bytes: the same, if what goes into the new state took no memory after its last use. kinds: the number of
    body instructions per opcode, most frequent first.
    """

    flops: int
    state_bytes: int
    changed_bytes: int
    data_bytes: int
    live_bytes: int
    passing_bytes: int
    kinds: dict[str, int]

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory for training: the state before and after a step, the data and the live values.

        What no step changes counts once.
        """
        return self.state_bytes + self.changed_bytes + self.data_bytes + self.live_bytes


def cost_of(program: Program, planned: Sequence[Unit] | None = None, held: int | None = None) -> Cost:
    """The cost of one step of a program, which must be validated.

    planned: the order of execution [default: the program's own]. held: the bytes that the state before a step takes
    [default: all in f32].
    """
    state, changed = _state_bytes(program)
    kinds = Counter(instruction.opcode.name.lower() for instruction in program.body)
    return Cost(
        flops=sum(_flops(instruction) for instruction in program.body),
        state_bytes=state if held is None else held,
        changed_bytes=changed,
        data_bytes=sum(_bytes(dtype, shape) for dtype, shape in program.data_spec().values()),
        live_bytes=(_peak(program) if planned is None else planned_peak(program, planned))[0],
        passing_bytes=_peak(program, held=False)[0],
        kinds=dict(kinds.most_common()),
    )


def _bytes(dtype: DType, shape: tuple[int, ...]) -> int:
    return prod(shape) * dtype.size


def _state_bytes(program: Program) -> tuple[int, int]:
    """The bytes of all state entries, and of those that steps change."""
    sizes = {name: _bytes(*entry) for name, entry in program.state_spec().items()}
    return sum(sizes.values()), sum(size for name, size in sizes.items() if name not in program.frozen)


def _flops(i: Instruction) -> int:
    """K multiplications and K - 1 additions per element of a sum; one operation per element of any other f32 result."""
    if i.dtype != DType.F32:
        return 0
    match i.opcode:
        case Opcode.MAP:
            return i.numel
        case Opcode.REDUCE:
            each = i.terms * len(i.operands) - 1
            return i.numel * max(0, each)
        case Opcode.SCATTER_SUM:
            return prod(i.reduction)
    return 0


def require_memory(
    program: Program, available: int | None = None, *, peak: tuple[int, int] | None = None, held: int | None = None
) -> None:
    """Raises `ConfigurationError`, with the largest value and its module, if a step needs more memory than there is.

    available: in bytes [default: of this machine or its container]. peak: `planned_peak` of the order of execution
    [default: the program's own]. held: see `cost_of`. A step needs the state before and after it, its live values, and
    while a sum or maximum is computed in the program's own order, about its operands once more in FP64. Data can stay
    on disk.
    """
    if available is None:
        available = memory_bytes()
    before, changed = _state_bytes(program)
    needed, index = _peak(program) if peak is None else peak
    needed += changed + (before if held is None else held)
    if peak is None:
        scratch = (8 * sum(program.body[a.value].numel for a in i.operands) for i in program.body if i.is_reduction)
        needed += max(scratch, default=0)
    if needed > available:
        i = program.body[index]
        raise ConfigurationError(
            f"expected a step that fits into the {available / 2**30:.3g} GiB of memory here, got one that needs about "
            f"{needed / 2**30:.3g} GiB; the largest value is that of instruction {index}, {i.opcode.name.lower()} "
            f"{i.dtype.name.lower()}{list(i.shape)} at {i.origin}. Take smaller batches (`accumulation` adds up their "
            "gradients), a smaller model, or a smaller window"
        )


def _peak(program: Program, *, held: bool = True) -> tuple[int, int]:
    """The most bytes of live values after any instruction, and the index of the largest value among them.

    held: whether committed values live to the end.
    """
    sizes = [_value_bytes(i) for i in program.body]
    last = list(range(len(sizes)))
    for index, instruction in enumerate(program.body):
        for operand in instruction.operands:
            last[operand.value] = index
    for commit in program.commits if held else ():
        last[commit.operands[0].value] = len(sizes) - 1
    dying = Counter[int]()
    for value, index in enumerate(last):
        dying[index] += sizes[value]
    alive = peak = at = 0
    for index, size in enumerate(sizes):
        alive += size
        peak, at = max((peak, at), (alive, index), key=lambda found: found[0])
        alive -= dying[index]
    return peak, max((n for n in range(at + 1) if last[n] >= at), key=sizes.__getitem__)


def planned_peak(program: Program, planned: Sequence[Unit]) -> tuple[int, int]:
    """The most bytes of values during any unit, as the units hold them, and the index of the largest among them."""
    totals = [total for total, _ in _held(program, planned)]
    at = totals.index(peak := max(totals))
    held = next(held for _, held in islice(_held(program, planned), at, None))
    return peak, max(held, key=held.__getitem__, default=0)


def _held(program: Program, planned: Sequence[Unit]) -> Iterator[tuple[int, dict[int, int]]]:
    """The bytes of values during each unit, in all and by index; elementwise results replace what dies with them."""
    held, total = dict[int, int](), 0
    for unit in planned:
        dying = dict.fromkeys(n for part in unit.dying for n in part)
        made = {n: _value_bytes(program.body[n]) for n in (*unit.widened, *unit.outputs)}
        after = {n: _value_bytes(program.body[n]) // 2 for n in unit.narrowed}
        if program.body[unit.members[0]].opcode == Opcode.MAP:
            total -= sum(held.pop(n, 0) for n in dying)
        total += sum(made.values()) - sum(held.pop(n, 0) for n in made)
        held |= made
        yield total, held
        total += sum(after.values()) - sum(held.pop(n, 0) for n in (*dying, *after))
        held |= after


def _value_bytes(i: Instruction) -> int:
    """The bytes of a result. A tensor of the state or data takes none, since it is not copied."""
    is_input = i.opcode == Opcode.SOURCE and i.function in (SourceKind.STATE, SourceKind.DATA, SourceKind.LATE)
    return 0 if is_input else i.numel * i.dtype.size
