"""Instructions as tests write them: a function for each opcode. Operands are `Access`(value, offset, strides)."""

from tiebreak.protocol.program.isa import (
    Access,
    DType,
    GatherParams,
    Instruction,
    IotaParams,
    MapFunction,
    Opcode,
    RandomParams,
    ReduceFunction,
    ScatterFunction,
    ScatterParams,
    ShuffleParams,
    Slot,
    SourceConst,
    SourceKind,
    WindowFunction,
    WindowParams,
    row_major,
)

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
Shape = tuple[int, ...]
STEP_NUMBER = Instruction(opcode=Opcode.SOURCE, function=SourceKind.STEP, dtype=I64)


def whole(value: int, shape: Shape) -> Access:
    """A value read in its own order."""
    return Access(value, 0, row_major(shape))


def source(kind: SourceKind, name: str, dtype: DType, *shape: int, slot: int = 0) -> Instruction:
    return Instruction(opcode=Opcode.SOURCE, function=kind, dtype=dtype, shape=shape, params=Slot(slot=slot, name=name))


def const(bits: int, dtype: DType = F32) -> Instruction:
    return Instruction(opcode=Opcode.SOURCE, function=SourceKind.CONST, dtype=dtype, params=SourceConst(bits=bits))


def mapped(function: MapFunction, dtype: DType, shape: Shape, *operands: Access) -> Instruction:
    return Instruction(opcode=Opcode.MAP, function=function, dtype=dtype, shape=shape, operands=operands)


def reduced(
    dtype: DType, shape: Shape, terms: Shape, *operands: Access, function: ReduceFunction = ReduceFunction.SUM
) -> Instruction:
    return Instruction(
        opcode=Opcode.REDUCE, function=function, dtype=dtype, shape=shape, reduction=terms, operands=operands
    )


def gathered(dtype: DType, shape: Shape, table: Access, index: Access, *, stride: int, bound: int) -> Instruction:
    params = GatherParams(index_stride=stride, bound=bound)
    return Instruction(opcode=Opcode.GATHER, dtype=dtype, shape=shape, operands=(table, index), params=params)


def scattered(
    shape: Shape, terms: Shape, *operands: Access, match: Shape, function: ScatterFunction = ScatterFunction.SUM
) -> Instruction:
    return Instruction(
        opcode=Opcode.SCATTER_SUM, function=function, dtype=F32, shape=shape, reduction=terms, operands=operands,
        params=ScatterParams(match=match),
    )  # fmt: skip


def windowed(
    dtype: DType, shape: Shape, *operands: Access, lo: Shape, hi: Shape, step: Shape, fill: int = 0
) -> Instruction:
    """Outside of the box stands the second operand, or where there is none, the fill."""
    function = WindowFunction.ELSE if len(operands) == 2 else WindowFunction.FILL
    params = WindowParams(lo=lo, hi=hi, step=step, fill=fill)
    return Instruction(
        opcode=Opcode.WINDOW, function=function, dtype=dtype, shape=shape, operands=operands, params=params
    )


def counted(shape: Shape, *, offset: int, strides: Shape) -> Instruction:
    return Instruction(opcode=Opcode.IOTA, dtype=I64, shape=shape, params=IotaParams(offset=offset, strides=strides))


def drawn(shape: Shape, seed: Access, step: Access, *, stream: int) -> Instruction:
    params = RandomParams(stream=stream)
    return Instruction(opcode=Opcode.RANDOM, dtype=F32, shape=shape, operands=(seed, step), params=params)


def shuffled(shape: Shape, *operands: Access, n: int, stream: int) -> Instruction:
    params = ShuffleParams(n=n, stream=stream)
    return Instruction(opcode=Opcode.SHUFFLE, dtype=I64, shape=shape, operands=operands, params=params)


def committed(name: str, dtype: DType, shape: Shape, value: int, *, slot: int = 0) -> Instruction:
    operands, params = (whole(value, shape),), Slot(slot=slot, name=name)
    return Instruction(opcode=Opcode.COMMIT, dtype=dtype, shape=shape, operands=operands, params=params)
