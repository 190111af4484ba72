"""What a step of a program costs, counted from its instructions alone; nothing is run.

Counts are of the definition, not of an implementation: a product and an addition are two operations whatever computes
them, and a value lives from the instruction that makes it to the last that reads it, in the program's order.
"""

from collections import Counter
from dataclasses import dataclass
from math import prod

from tiebreak.protocol.program.isa import DType, Instruction, Opcode, ReduceFunction, SourceKind
from tiebreak.protocol.program.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """flops: f32 additions, products and elementwise functions of one step. Bytes are of tensors as they are committed.

    live_bytes: the most that values of one step (without state and data) take at once. kinds: instructions of the body
    by opcode, the most frequent first.
    """

    flops: int
    state_bytes: int
    data_bytes: int
    live_bytes: int
    kinds: dict[str, int]

    @property
    def memory_bytes(self) -> int:
        """An estimate of what training holds: the state before and after a step, the data, and the values alive."""
        return 2 * self.state_bytes + self.data_bytes + self.live_bytes


def cost_of(program: Program) -> Cost:
    """The cost of one step of a validated program."""
    kinds = Counter(instruction.opcode.name.lower() for instruction in program.body)
    return Cost(
        flops=sum(_flops(instruction) for instruction in program.body),
        state_bytes=sum(_bytes(dtype, shape) for dtype, shape in program.state_spec().values()),
        data_bytes=sum(_bytes(dtype, shape) for dtype, shape in program.data_spec().values()),
        live_bytes=_peak(program),
        kinds=dict(kinds.most_common()),
    )


def _bytes(dtype: DType, shape: tuple[int, ...]) -> int:
    return prod(shape) * dtype.size


def _flops(i: Instruction) -> int:
    """K products and K - 1 additions an element of a sum, one operation an element of anything else in f32."""
    if i.dtype != DType.F32:
        return 0
    match i.opcode:
        case Opcode.MAP:
            return i.numel
        case Opcode.REDUCE:
            each = i.terms * len(i.operands) - 1 if i.function == ReduceFunction.SUM else i.terms - 1
            return i.numel * max(0, each)
        case Opcode.SCATTER_SUM:
            return prod(i.reduction)
    return 0


def _peak(program: Program) -> int:
    """The most bytes of values alive after any instruction. State and data that are read are not copies."""
    held = [i.opcode == Opcode.SOURCE and i.function in (SourceKind.STATE, SourceKind.DATA) for i in program.body]
    sizes = [0 if is_input else i.numel * i.dtype.size for i, is_input in zip(program.body, held, strict=True)]
    last = list(range(len(sizes)))
    for index, instruction in enumerate(program.body):
        for operand in instruction.operands:
            last[operand.value] = index
    for commit in program.commits:
        last[commit.operands[0].value] = len(sizes) - 1
    dying = Counter[int]()
    for value, index in enumerate(last):
        dying[index] += sizes[value]
    alive = peak = 0
    for index, size in enumerate(sizes):
        alive += size
        peak = max(peak, alive)
        alive -= dying[index]
    return peak
