"""Builds programs: views cost nothing, equal instructions are emitted once, and unused ones are dropped.

`Builder` turns operations on refs into instructions (SPEC section 4).
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from typing import Final

from tiebreak.engine.lowering.refs import Ref, Scalar, broadcast, view_strides, walked
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.isa import Access, DType, Instruction, MapFunction, Opcode, ReduceFunction, SourceKind
from tiebreak.protocol.program.program import Program

__all__ = ["Builder", "Ref", "Scalar", "broadcast"]


def scalar_bits(value: Scalar, dtype: DType) -> int:
    """The bits of a constant. A float is rounded once, to nearest, from FP64 to FP32."""
    if dtype == DType.BOOL:
        return int(bool(value))
    if dtype == DType.I64:
        return int(value) & 0xFFFFFFFFFFFFFFFF
    try:
        bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        bits = 0xFF800000 if value < 0 else 0x7F800000
    return 0x7FC00000 if value != value else bits


def _mapped(function: MapFunction, dtype: DType | None = None) -> "Callable[[Builder, Ref, Ref], Ref]":
    """A builder's method for a function of two operands."""
    return lambda builder, x, y: builder.map(function, x, y, dtype=dtype)


class Builder:
    """Collects instructions. `origin` (a module path, for messages) is attached to the instructions emitted next."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.origin = ""
        self._known: dict[Instruction, int] = {}
        self._bf16: set[int] = set()
        """The values whose elements are all numbers of bfloat16."""
        self.streams = 0
        """The number of streams of random numbers so far."""
        self.draws: list[int | None] = []
        """The value from which each draw of the traced step is made, in order; None for one that nothing reads."""
        self.traced = 0
        """The number of instructions before the update."""
        self.indices: dict[int, int] = {}
        """The index in the finished program of each value that is still in it."""
        self._data: dict[str, Ref] = {}
        self._late: dict[str, Ref] = {}
        self._state: dict[str, Ref] = {}

    def emit(
        self, opcode: Opcode, dtype: DType, shape: Sequence[int] = (), *operands: Access, function: int = 0,
        reduction: Sequence[int] = (), params: isa.Params = None, again: bool = False,
    ) -> Ref:  # fmt: skip
        """The value of an instruction, which is emitted only if there is no equal one yet, or `again`.

        Empty tensors and sums of no terms take no instruction. Raises `NotImplementedError` for what has no form.
        """
        instruction = Instruction(
            opcode=opcode, function=function, dtype=dtype, shape=tuple(shape), reduction=tuple(reduction),
            operands=operands, params=params,
        )  # fmt: skip
        if 0 in instruction.index_space:
            if 0 not in instruction.shape and instruction.function != ReduceFunction.SUM:
                raise NotImplementedError("an extreme of no elements; leave out dims of size 0")
            return self.full(instruction.shape, 0, instruction.dtype)
        number = None if again else self._known.get(instruction)
        if number is None:
            self._check(instruction)
            number = len(self.instructions)
            self.instructions.append(replace(instruction, origin=self.origin))
            self._known[instruction] = number
            if self._stays_bf16(instruction):
                self._bf16.add(number)
        return Ref(number, instruction.dtype, instruction.shape, isa.row_major(instruction.shape))

    def _check(self, instruction: Instruction) -> None:
        types = tuple(self.instructions[operand.value].dtype for operand in instruction.operands)
        accepted = isa.signatures(instruction)
        if accepted is not None and (types, instruction.dtype) not in accepted:
            names = [t.name for t in types]
            raise NotImplementedError(f"this function of {names}; cast to float32, int64 or bool before it")
        if len(instruction.shape) > isa.MAX_RANK or len(instruction.reduction) > isa.MAX_RANK:
            raise NotImplementedError(f"more than {isa.MAX_RANK} dims at once; merge some with `reshape` or `flatten`")

    def _stays_bf16(self, i: Instruction) -> bool:
        """Whether a result is of bfloat16's numbers, because it is rounded to them or selects among them."""
        if isinstance(i.params, isa.SourceConst):
            return i.params.bits & 0xFFFF == 0
        if i.is_bf16_sum or (i.opcode, i.function) == (Opcode.MAP, MapFunction.BF16):
            return True
        selected = _SELECTED.get((i.opcode, i.function), slice(0))
        filled = isinstance(i.params, isa.WindowParams) and i.params.fill & 0xFFFF
        read = i.operands[selected]
        return bool(read) and not filled and all(operand.value in self._bf16 for operand in read)

    # sources

    def const(self, value: Scalar, dtype: DType = DType.F32) -> Ref:
        """A constant of rank 0."""
        params = isa.SourceConst(bits=scalar_bits(value, dtype))
        return self.emit(Opcode.SOURCE, dtype, function=SourceKind.CONST, params=params)

    def i64(self, value: int) -> Ref:
        return self.const(value, DType.I64)

    def full(self, shape: Sequence[int], value: Scalar, dtype: DType = DType.F32) -> Ref:
        """A constant read at every coordinate of `shape`, which takes no memory."""
        return self.const(value, dtype).expand(tuple(shape))

    def constant_value(self, ref: Ref) -> int | None:
        """The bits of a ref that reads one constant everywhere; otherwise None."""
        params = self.instructions[ref.value].params
        return params.bits if isinstance(params, isa.SourceConst) else None

    def affine(self, ref: Ref) -> tuple[int, tuple[int, ...]] | None:
        """Offset and strides of the i64 values that a ref reads, if they are an affine function of the coordinates.

        This is known for refs of a constant or an `iota`; None for others.
        """
        instruction = self.instructions[ref.value]
        match instruction.params:
            case isa.SourceConst(bits=bits) if ref.dtype == DType.I64:
                return bits - (bits >> 63 << 64), (0,) * ref.rank
            case isa.IotaParams(offset=offset, strides=strides):
                walk = walked(ref.shape, ref.strides, ref.offset, instruction.shape)
                if walk is not None:
                    start, moves = walk
                    found = [0 if move is None else strides[move[0]] * move[1] for move in moves]
                    return offset + sum(c * s for c, s in zip(start, strides, strict=True)), tuple(found)
        return None

    def step(self) -> Ref:
        """The number of the step, counted from 0; i64 of rank 0."""
        return self.emit(Opcode.SOURCE, DType.I64, function=SourceKind.STEP)

    def state(self, name: str, dtype: DType, shape: Sequence[int], *, bf16: bool = False) -> Ref:
        """A tensor of the state before the step, with numbers of bfloat16 or any. `finish` sets its slot."""
        ref = self._named(self._state, SourceKind.STATE, name, dtype, shape)
        if bf16:
            self._bf16.add(ref.value)
        return ref

    def data(self, name: str, dtype: DType, shape: Sequence[int]) -> Ref:
        """A tensor of the job's data."""
        return self._named(self._data, SourceKind.DATA, name, dtype, shape)

    def late(self, name: str, dtype: DType, shape: Sequence[int]) -> Ref:
        """A tensor that comes with the step."""
        return self._named(self._late, SourceKind.LATE, name, dtype, shape)

    def _named(self, known: dict[str, Ref], kind: SourceKind, name: str, dtype: DType, shape: Sequence[int]) -> Ref:
        if name not in known:
            if 0 in shape:
                raise ConfigurationError(f"expected elements in {name}, got shape {tuple(shape)}; remove it")
            self.origin = name
            known[name] = self.emit(Opcode.SOURCE, dtype, shape, function=kind, params=isa.Slot(slot=0, name=name))
        ref = known[name]
        if (ref.dtype, ref.shape) != (dtype, tuple(shape)):
            raise ValueError(f"{name}: expected {ref.dtype.name} {ref.shape}, got {dtype.name} {tuple(shape)}")
        return ref

    # elementwise

    def map(self, function: MapFunction, *operands: Ref, dtype: DType | None = None) -> Ref:
        """An elementwise function of broadcast operands. The result's dtype defaults to that of the last operand."""
        shape = broadcast(*(operand.shape for operand in operands))
        accesses = (operand.expand(shape).access() for operand in operands)
        dtype = operands[-1].dtype if dtype is None else dtype
        return self.emit(Opcode.MAP, dtype, shape, *accesses, function=function)

    add = _mapped(MapFunction.ADD)
    sub = _mapped(MapFunction.SUB)
    mul = _mapped(MapFunction.MUL)
    div = _mapped(MapFunction.DIV)
    lt = _mapped(MapFunction.LT, DType.BOOL)
    le = _mapped(MapFunction.LE, DType.BOOL)
    eq = _mapped(MapFunction.EQ, DType.BOOL)
    ne = _mapped(MapFunction.NE, DType.BOOL)
    both = _mapped(MapFunction.AND)
    either = _mapped(MapFunction.OR)

    def scale(self, x: Ref, factor: Scalar) -> Ref:
        """x times a constant of x's dtype."""
        return self.mul(x, self.const(factor, x.dtype))

    def compare(self, function: MapFunction, x: Ref, y: Ref) -> Ref:
        """lt, le, eq or ne: a bool."""
        return self.map(function, x, y, dtype=DType.BOOL)

    def abs(self, x: Ref) -> Ref:
        return self.map(MapFunction.ABS, x)

    def neg(self, x: Ref) -> Ref:
        return self.map(MapFunction.NEG, x)

    def signed(self, size: Ref, x: Ref) -> Ref:
        """-size where x < 0, size elsewhere (also where x is -0 or NaN)."""
        return self.where(self.lt(x, self.const(0.0)), self.neg(size), size)

    def clamp(self, x: Ref, low: Scalar, high: Scalar) -> Ref:
        """min(max(x, low), high), with constants of x's dtype."""
        raised = self.map(MapFunction.MAX, x, self.const(low, x.dtype))
        return self.map(MapFunction.MIN, raised, self.const(high, x.dtype))

    def polynomial(self, x: Ref, factors: Sequence[float]) -> Ref:
        """factors[0] + factors[1] x + ... by Horner's rule; a factor of 0 takes no sum."""
        total = self.const(factors[-1])
        for factor in reversed(factors[:-1]):
            total = self.mul(total, x)
            total = self.add(total, self.const(factor)) if factor else total
        return total

    def where(self, condition: Ref, x: Ref, y: Ref) -> Ref:
        """x where the condition holds, otherwise y."""
        return self.map(MapFunction.WHERE, condition, x, y)

    def cast(self, x: Ref, dtype: DType) -> Ref:
        """x in another dtype; x itself if it already has that dtype."""
        return x if x.dtype == dtype else self.map(MapFunction.CAST, x, dtype=dtype)

    def bf16(self, x: Ref) -> Ref:
        """x rounded to bfloat16, from its exact value if it is a sum; x itself if it has such numbers."""
        if x.dtype != DType.F32 or x.value in self._bf16:
            return x
        made = self.instructions[x.value]
        if made.is_f32_sum:
            scatters = made.opcode == Opcode.SCATTER_SUM
            function = isa.ScatterFunction.SUM_BF16 if scatters else ReduceFunction.SUM_BF16
            narrow = self.emit(
                made.opcode, made.dtype, made.shape, *made.operands, function=function, reduction=made.reduction,
                params=made.params,
            )  # fmt: skip
            return replace(x, value=narrow.value)
        shape = tuple(1 if stride == 0 else n for n, stride in zip(x.shape, x.strides, strict=True))
        return self.map(MapFunction.BF16, replace(x, shape=shape)).expand(x.shape)

    def copy(self, x: Ref) -> Ref:
        """x laid out whole in row-major order; x itself if it is a whole value already."""
        whole = replace(x, strides=isa.row_major(x.shape), offset=0)
        is_whole = self.instructions[x.value].shape == x.shape and x.access() == whole.access()
        return whole if is_whole else self.map(MapFunction.COPY, x)

    def again(self, x: Ref) -> Ref:
        """A copy of x that no other instruction shares, so that what is computed from it is computed anew."""
        return self.emit(Opcode.MAP, x.dtype, x.shape, x.access(), function=MapFunction.COPY, again=True)

    def reshape(self, x: Ref, shape: Sequence[int]) -> Ref:
        """The same elements in row-major order with another shape (one dim may be -1).

        Copies only if no view can do it.
        """
        sizes = list(shape)
        if -1 in sizes:
            sizes[sizes.index(-1)] = prod(x.shape) // max(1, -prod(sizes))
        if prod(sizes) != prod(x.shape):
            raise ValueError(f"cannot reshape {x.shape} to {tuple(shape)}")
        if 0 in sizes:
            return self.full(sizes, 0, x.dtype)
        strides = view_strides(x.shape, x.strides, tuple(sizes))
        if strides is None:
            x = self.copy(x)
            strides = isa.row_major(tuple(sizes))
        return replace(x, shape=tuple(sizes), strides=strides)

    # reductions

    def reduce(
        self, function: ReduceFunction, shape: Sequence[int], reduction: Sequence[int], *operands: Access,
        dtype: DType = DType.F32,
    ) -> Ref:  # fmt: skip
        """A reduction given by its index space and access maps."""
        return self.emit(Opcode.REDUCE, dtype, shape, *operands, function=function, reduction=reduction)

    def reduce_dims(self, function: ReduceFunction, dims: Sequence[int], *operands: Ref, keepdim: bool = False) -> Ref:
        """Reduces `dims` (empty: all) of one ref, or of the product of two refs of the same shape."""
        x = operands[0]
        if not x.rank:
            return self.const(0, DType.I64) if function == ReduceFunction.ARGMAX else reduce(self.mul, operands)
        chosen = sorted({x.dim(d) for d in dims}) if dims else list(range(x.rank))
        kept = [d for d in range(x.rank) if d not in chosen]
        moved = [operand.expand(x.shape).permute([*kept, *chosen]) for operand in operands]
        shape = tuple(x.shape[d] for d in kept)
        dtype = DType.I64 if function == ReduceFunction.ARGMAX else x.dtype
        result = self.reduce(
            function, shape, tuple(x.shape[d] for d in chosen), *(m.access() for m in moved), dtype=dtype
        )
        return self.reshape(result, [1 if d in chosen else x.shape[d] for d in range(x.rank)]) if keepdim else result

    def sum(self, x: Ref, dims: Sequence[int] = (), *, keepdim: bool = False) -> Ref:
        """The exact sum over `dims` (empty: all)."""
        return self.reduce_dims(ReduceFunction.SUM, dims, x, keepdim=keepdim)

    def dot(self, x: Ref, y: Ref, dims: Sequence[int] = (), *, keepdim: bool = False) -> Ref:
        """The exact sum of x * y over `dims` (empty: all)."""
        return self.reduce_dims(ReduceFunction.SUM, dims, x, y, keepdim=keepdim)

    def max(self, x: Ref, dims: Sequence[int] = (), *, keepdim: bool = False) -> Ref:
        """The maximum over `dims` (empty: all)."""
        return self.reduce_dims(ReduceFunction.MAX, dims, x, keepdim=keepdim)

    def mean(self, x: Ref, dims: Sequence[int] = (), *, keepdim: bool = False) -> Ref:
        """The sum over `dims` (empty: all), divided by the number of terms."""
        total = self.sum(x, dims, keepdim=keepdim)
        return self.div(total, self.const(float(prod(x.shape) // max(1, prod(total.shape)))))

    def matmul(self, a: Ref, b: Ref) -> Ref:
        """(..., m, k) times (..., k, n); leading dims are broadcast."""
        lead = broadcast(a.shape[:-2], b.shape[:-2])
        dims = "abcdef"[: len(lead)]
        a, b = a.expand((*lead, *a.shape[-2:])), b.expand((*lead, *b.shape[-2:]))
        return self.einsum(f"{dims}mk,{dims}kn->{dims}mn|k", a, b)

    def einsum(self, spec: str, x: Ref, y: Ref) -> Ref:
        """The exact sums of products x * y, as "mk,kn->mn|k": a letter for each dim, with the reduced ones last.

        A dim that is named in neither place has size 1.
        """
        terms, result = spec.split("->")
        dims, reduced = result.split("|")
        named = list(zip(terms.split(","), (x, y), strict=True))
        sizes = {letter: n for letters, ref in named for letter, n in zip(letters, ref.shape, strict=True)}
        whole = [sizes[letter] for letter in dims + reduced]
        accesses = []
        for letters, ref in named:
            if ref.shape != tuple(sizes[letter] for letter in letters):
                raise ValueError(f"cannot multiply {x.shape} by {y.shape} as {spec}")
            strides = dict(zip(letters, ref.strides, strict=True))
            accesses.append(ref.access_over(whole, [strides.get(letter, 0) for letter in dims + reduced]))
        return self.reduce(ReduceFunction.SUM, whole[: len(dims)], whole[len(dims) :], *accesses)

    # indexed

    def gather(self, table: Ref, index: Ref, dim_stride: int, bound: int, table_strides: Sequence[int]) -> Ref:
        """`table` at its map (strides over index's coordinates) + index * dim_stride, 0 <= index < bound."""
        read = table.access_over(index.shape, table_strides)
        params = isa.GatherParams(index_stride=dim_stride, bound=bound)
        return self.emit(Opcode.GATHER, table.dtype, index.shape, read, index.access(), params=params)

    def rows(self, table: Ref, index: Ref) -> Ref:
        """table[index]: rows along the first dim of `table`, for an index of any shape."""
        row = table.shape[1:]
        spread = index.append_dims(len(row)).expand((*index.shape, *row))
        strides = (0,) * index.rank + table.strides[1:]
        return self.gather(table, spread, table.strides[0], table.shape[0], strides)

    def scatter_rows(self, source: Ref, index: Ref, rows: int) -> Ref:
        """Exact sums in `rows` rows: out[v] is the sum of source[i...] over all i with index[i...] = v."""
        row = source.shape[index.rank :]
        source = source.permute([*range(index.rank, source.rank), *range(index.rank)])
        return self.put(source, index.expand((*row, *index.shape)), (rows, *row), [0])

    def put(self, source: Ref, index: Ref, shape: Sequence[int], dims: Sequence[int]) -> Ref:
        """The exact sum, at each place of `shape`, of the sources whose index is its row-major place in `dims`.

        source and index have the dims of `shape` that are not in `dims`, in that order, and then any others.
        """
        lead = len(shape) - len(dims)
        whole = (*shape, *source.shape[lead:])

        def over(ref: Ref) -> Access:
            own = iter(ref.strides)
            return ref.access_over(whole, [*(0 if d in dims else next(own) for d in range(len(shape))), *own])

        places = iter(isa.row_major(tuple(shape[d] for d in dims)))
        match = tuple(next(places) if d in dims else 0 for d in range(len(shape)))
        return self.emit(
            Opcode.SCATTER_SUM, DType.F32, shape, over(source), over(index),
            reduction=source.shape[lead:], params=isa.ScatterParams(match=match),
        )  # fmt: skip

    def iota(self, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Ref:
        """offset + sum(c * stride), i64."""
        return self.emit(Opcode.IOTA, DType.I64, shape, params=isa.IotaParams(offset=offset, strides=tuple(strides)))

    # windows

    def window(
        self, shape: Sequence[int], inside: Ref, lo: Sequence[int], *, step: Sequence[int] | None = None,
        fill: Scalar = 0, outside: Ref | None = None,
    ) -> Ref:  # fmt: skip
        """`inside` from `lo` on, at every `step`-th element, in a tensor of `shape`; `fill` or `outside` around it."""
        if 0 in inside.shape:
            return self.full(shape, fill, inside.dtype) if outside is None else outside.expand(tuple(shape))
        steps = tuple(step) if step is not None else (1,) * len(lo)
        hi = tuple(a + (n - 1) * s + 1 for a, n, s in zip(lo, inside.shape, steps, strict=True))
        if outside is None:
            function, operands, bits = isa.WindowFunction.FILL, [inside.access()], scalar_bits(fill, inside.dtype)
        else:
            function, operands, bits = isa.WindowFunction.ELSE, [inside.access(), outside.expand(shape).access()], 0
        params = isa.WindowParams(lo=tuple(lo), hi=hi, step=steps, fill=bits)
        return self.emit(Opcode.WINDOW, inside.dtype, shape, *operands, function=function, params=params)

    def cat(self, parts: Sequence[Ref], d: int) -> Ref:
        """The parts one after the other along dim d."""
        d = parts[0].dim(d)
        total = sum(part.shape[d] for part in parts)
        shape = (*parts[0].shape[:d], total, *parts[0].shape[d + 1 :])
        result: Ref | None = None
        start = 0
        for part in parts:
            lo = tuple(start if e == d else 0 for e in range(part.rank))
            result = self.window(shape, part, lo, outside=result)
            start += part.shape[d]
        assert result is not None  # there are parts
        return result

    # randomness

    def random(self, shape: Sequence[int]) -> Ref:
        """Uniform f32 in [0, 1), drawn anew in every step; the key is the job's seed."""
        seed, step = (scalar.expand(shape).access() for scalar in (self.seed(), self.step()))
        params = isa.RandomParams(stream=self._next_stream())
        return self.emit(Opcode.RANDOM, DType.F32, shape, seed, step, params=params)

    def shuffle(self, index: Ref, epoch: Ref, n: int) -> Ref:
        """The job's permutation of 0 ... n-1 in the given epoch, at each index."""
        seed, epochs = (scalar.expand(index.shape).access() for scalar in (self.seed(), epoch))
        params = isa.ShuffleParams(n=n, stream=self._next_stream())
        return self.emit(Opcode.SHUFFLE, DType.I64, index.shape, index.access(), seed, epochs, params=params)

    def seed(self) -> Ref:
        """The job's seed: data entry `seed`, i64 of rank 0."""
        return self.data("seed", DType.I64, ())

    def _next_stream(self) -> int:
        self.streams += 1
        return self.streams - 1

    def finish(self, state: dict[str, Ref], loss: Ref) -> Program:
        """The program whose new state is `state`. Drops unused instructions and fixes slots and value numbers.

        The whole new state is committed, and the loss is the last value of the body.
        """
        whole = {name: self.copy(state[name]) for name in sorted(state)}
        live = self._live([ref.value for ref in whole.values()] + [loss.value])
        renumber = self.indices = {old: new for new, old in enumerate(live)}
        read, late = (
            [name for name in sorted(known) if known[name].value in renumber] for known in (self._data, self._late)
        )
        slots = {
            kind: {name: slot for slot, name in enumerate(names)}
            for kind, names in ((SourceKind.STATE, [*whole]), (SourceKind.DATA, read), (SourceKind.LATE, late))
        }
        body = [_renumbered(self.instructions[old], renumber, slots) for old in live]
        last = (replace(loss, value=renumber[loss.value]).access(),)
        copy = Instruction(opcode=Opcode.MAP, function=MapFunction.COPY, dtype=DType.F32, operands=last, origin="loss")
        body.append(copy)
        commits = []
        for slot, (name, ref) in enumerate(whole.items()):
            held, params = Access(renumber[ref.value], 0, isa.row_major(ref.shape)), isa.Slot(slot=slot, name=name)
            commits.append(Instruction(
                opcode=Opcode.COMMIT, dtype=ref.dtype, shape=ref.shape, operands=(held,), params=params, origin=name
            ))  # fmt: skip
        program = Program(tuple(body), tuple(commits))
        program.validate()
        return program

    def _live(self, roots: Sequence[int]) -> list[int]:
        needed, stack = set(roots), list(roots)
        while stack:
            for operand in self.instructions[stack.pop()].operands:
                if operand.value not in needed:
                    needed.add(operand.value)
                    stack.append(operand.value)
        return sorted(needed)


def _renumbered(
    instruction: Instruction, renumber: dict[int, int], slots: dict[SourceKind, dict[str, int]]
) -> Instruction:
    operands = tuple(replace(operand, value=renumber[operand.value]) for operand in instruction.operands)
    params = instruction.params
    if isinstance(params, isa.Slot):
        params = replace(params, slot=slots[SourceKind(instruction.function)][params.name])
    return replace(instruction, operands=operands, params=params)


_SELECTED: Final[dict[tuple[Opcode, int], slice]] = {
    **dict.fromkeys(
        [(Opcode.MAP, f) for f in (MapFunction.COPY, MapFunction.NEG, MapFunction.ABS)]
        + [(Opcode.REDUCE, ReduceFunction.MAX), (Opcode.GATHER, 0)],
        slice(1),
    ),
    **dict.fromkeys([(Opcode.MAP, f) for f in (MapFunction.MAX, MapFunction.MIN)], slice(2)),
    **{(Opcode.WINDOW, function): slice(2) for function in isa.WindowFunction},
    (Opcode.MAP, MapFunction.WHERE): slice(1, 3),
}
"""The operands among whose elements an instruction selects."""
