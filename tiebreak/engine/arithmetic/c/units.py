"""Series of units that one call of C executes (units.c), and what moves elements without computing.

To call C from Python takes longer than a small unit computes. So units that follow each other and are small enough for
one thread are written into a table: for each one its kernel, its plan and the memory that it touches. What only they
read lies in one piece of memory, which is kept. C checks the table before it follows it.
"""

import ctypes
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tiebreak.engine.arithmetic.c import chains, scatter, sums
from tiebreak.engine.arithmetic.c.chains import CompiledChain
from tiebreak.engine.arithmetic.c.scatter import TabledScatter
from tiebreak.engine.arithmetic.c.sums import TabledSum
from tiebreak.engine.arithmetic.c.threads import ZivProgress, sharing, together
from tiebreak.engine.arithmetic.plan.chains import NewTensor
from tiebreak.engine.arithmetic.plan.options import Operands, Options, Stats
from tiebreak.engine.arithmetic.plan.sums import kind_of
from tiebreak.engine.arithmetic.plan.views import check_reach, coalesce
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.engine.native import Build, load
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.program.isa import (
    MAX_RANK,
    Access,
    DType,
    GatherParams,
    Instruction,
    ReduceFunction,
    WindowFunction,
    WindowParams,
    row_major,
)

CHAIN, MATRIX, SUMS, GREATEST, SCATTER, MOVE = range(6)
"""Kinds of units, as in units.c."""
LONGEST: Final = 1 << 27
"""The most work in one call, in multiplications: some milliseconds, after which Python sees signals."""
MOVED: Final = 4
"""The number of multiplications that take as long as moving an element."""
TASK: Final = 1 << 16
"""The number of elements that a thread moves at a time."""
FILL: Final = -1
"""What a window writes outside its box, among values."""
NO_MEMORY: Final = 1
"""As in units.c."""
_ALIGNED: Final = 64
_FUNCTIONS: Final = ("chain_run", "contract", "add_up", "find_greatest", "scatter_sum")
_ARRAYS: Final = ("table", "plans", "memory", "bytes", "counters", "totals")


class _Move(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("size", "rank", "rows", "block")),
        *((name, ctypes.c_int64 * MAX_RANK) for name in ("sizes", "out_steps", "from_steps", "index_steps")),
        *((name, ctypes.c_int64) for name in ("out_first", "from_first", "index_first", "bound", "stride")),
        ("fill", ctypes.c_uint64),
        *((name, ctypes.c_void_p) for name in ("index", "source", "out")),
    ]


class _Table(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (*_FUNCTIONS, "exact")),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
        *((f"{name}_count", ctypes.c_int64) for name in _ARRAYS),
    ]


def build() -> Build:
    """The compiled kernel, or the reason why there is none."""
    pointer = ctypes.c_void_p
    return load(__file__, move_all=(ctypes.c_int, pointer, pointer), run_units=(ctypes.c_int64, pointer))


class Touch(NamedTuple):
    """A value that a kernel reads or writes: its first byte there, and the end."""

    value: int
    first: int
    end: int

    @classmethod
    def of(cls, value: int, reach: tuple[int, int], size: int) -> "Touch":
        """From the least place to the greatest, of elements of `size` bytes."""
        return cls(value, reach[0] * size, (reach[1] + 1) * size)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One unit, or one copy of a window, as the table has it."""

    kind: int
    plan: Callable[[], tuple[Any, object]]
    """The kernel's plan for the next call, a structure or an array, and what must outlive it."""
    touches: tuple[Touch, ...]
    """What it reads, then what it writes."""
    work: int
    """In multiplications."""
    number: int = 0
    """As NUMBER in units.c."""
    counted: str = ""
    """The kind under which a sum is counted, if it is one."""
    chain: CompiledChain | None = None
    varies: bool = False
    """Whether each call has another plan."""
    fill: "npt.NDArray[np.uint64] | None" = None
    """What the value FILL stands for."""


class Moves:
    """A gather, or a window: one or two copies of boxes, which units.c makes."""

    def __init__(self, library: ctypes.CDLL, i: Instruction, size: int) -> None:
        """size: bytes of an element, of operands and of the result."""
        self._library, self._numel = library, i.numel
        self.fill = np.array([0], dtype=np.uint64)
        self.copies: list[tuple[_Move, tuple[int, ...], tuple[tuple[int, int], ...]]] = []
        """Each copy, the operands that it reads (FILL too), and the least and greatest place that it reads there."""
        whole, shape, params = Access(0, 0, row_major(i.shape)), i.shape, i.params
        if isinstance(params, GatherParams):
            table, index = i.operands
            fill = (NAN_BITS if i.dtype == DType.F32 else 0) >> (16 if size == 2 else 0)
            move = _move(size, shape, whole, table, index)
            move.bound, move.stride, move.fill = params.bound, params.index_stride, fill
            low, high = table.extent(shape)
            ends = (params.bound - 1) * params.index_stride
            self.copies.append((move, (0, 1), ((low + min(ends, 0), high + max(ends, 0)), index.extent(shape))))
            return
        assert isinstance(params, WindowParams)
        if i.function == WindowFunction.FILL:
            self.fill[0] = params.fill
            self.copies.append((_move(size, shape, whole, Access(0, 0, (0,) * len(shape))), (-1,), ((0, 0),)))
        else:
            self.copies.append((_move(size, shape, whole, i.operands[1]), (1,), (i.operands[1].extent(shape),)))
        steps = row_major(shape)
        first = sum(low * step for low, step in zip(params.lo, steps, strict=True))
        inside = Access(0, first, tuple(n * step for n, step in zip(params.step, steps, strict=True)))
        box = params.extents
        if prod(box):
            self.copies.append((_move(size, box, inside, i.operands[0]), (0,), (i.operands[0].extent(box),)))

    def entries(self, reads: Sequence[int], result: Touch) -> list[Entry]:
        """The copies as a series has them. reads: the values of the operands."""
        found = []
        for move, read, reaches in self.copies:
            touches = [
                Touch.of(FILL if operand < 0 else reads[operand], reach, size)
                for operand, reach, size in zip(read, reaches, (move.size, DType.I64.size), strict=False)
            ]
            fill, work = self.fill if -1 in read else None, MOVED * self._numel
            found.append(Entry(kind=MOVE, plan=partial(_fixed, move), touches=(*touches, result), work=work, fill=fill))
        return found

    def run(self, operands: Operands, out: Tensor) -> Tensor:
        """Writes the result into `out`."""
        for move, read, reaches in self.copies:
            sources = []
            for operand, reach in zip(read, reaches, strict=True):
                if operand >= 0:
                    check_reach(operands[operand], reach)
                sources.append(self.fill.ctypes.data if operand < 0 else operands[operand].data_ptr())
            move.source, move.index = sources[0], sources[1] if len(sources) > 1 else None
            move.out, progress = out.data_ptr(), ZivProgress()
            threads, move_all = sharing(MOVED * self._numel), self._library.move_all
            together(lambda: move_all(ctypes.byref(move), ctypes.byref(progress)), threads)  # noqa: B023
        return out


def _fixed(plan: object) -> tuple[Any, object]:
    return plan, None


def _move(size: int, sizes: Sequence[int], out: Access, source: Access, index: Access | None = None) -> _Move:
    """A copy of a box of elements of `size` bytes."""
    accesses = (out, source, index or Access(0, 0, (0,) * len(sizes)))
    dims = coalesce(sizes, [access.strides for access in accesses])
    shape = [dim.size for dim in dims] or [1]
    steps = list(zip(*(dim.strides for dim in dims), strict=True)) or [(0,)] * 3
    made = _Move(size=size, rank=len(shape), rows=prod(shape[:-1]), block=max(1, TASK // shape[-1]))
    for name, column in zip(("sizes", "out_steps", "from_steps", "index_steps"), (shape, *steps), strict=True):
        getattr(made, name)[: len(shape)] = column
    made.out_first, made.from_first, made.index_first = (access.offset for access in accesses)
    return made


def of_chain(chain: CompiledChain) -> Entry:
    """A chain as a series has it."""
    code = chain.code
    read = [Touch.of(value, (0, numel - 1), dtype.size) for value, (dtype, numel) in code.inputs.items()]
    made = [store.member for store in code.stores]
    written = [Touch.of(m.index, (0, code.numel - 1), m.instruction.dtype.size) for m in made]
    plan = partial(_fixed, chain.words)
    return Entry(kind=CHAIN, plan=plan, touches=(*read, *written), work=chain.work, number=code.numel, chain=chain)


def of_sum(planned: TabledSum, i: Instruction, reads: Sequence[int], out: Touch, options: Options) -> Entry:
    """A `reduce` as a series has it."""
    tables = planned.tables
    touches = *(Touch.of(reads[o.index], o.reach, DType.F32.size) for o in tables.operands), out
    if not i.is_f32_sum:
        place = int(i.function == ReduceFunction.ARGMAX)
        return Entry(kind=GREATEST, plan=planned.plan, touches=touches, work=tables.multiplications, number=place)
    return Entry(
        kind=MATRIX if tables.out else SUMS, plan=planned.plan, touches=touches, work=tables.multiplications,
        number=options.rounding(i).precision, counted=kind_of(i), varies=options.shuffled is not None,
    )  # fmt: skip


def of_scatter(planned: TabledScatter, i: Instruction, reads: Sequence[int], out: Touch, options: Options) -> Entry:
    """A `scatter_sum` as a series has it."""
    sizes = DType.F32.size, DType.I64.size
    touches = *(Touch.of(*of) for of in zip(reads, planned.tables.reach, sizes, strict=True)), out
    return Entry(
        kind=SCATTER, plan=planned.plan, touches=touches, work=planned.groups * planned.rows * planned.sources,
        number=options.rounding(i).precision, counted="scatter_sum", varies=options.shuffled is not None,
    )  # fmt: skip


class Host:
    """The back-end whose series these are: what they call, where they count, and the memory that they use."""

    def __init__(self, empty: NewTensor, stats: Stats, finite: dict[int, bool], exact: Any) -> None:
        self.empty, self.stats, self.finite = empty, stats, finite
        built = chains.build().library, *[sums.build().library] * 3, scatter.build().library
        called = [getattr(library, name, exact) for library, name in zip(built, _FUNCTIONS, strict=True)]
        self.functions = [ctypes.cast(function, ctypes.c_void_p).value for function in (*called, exact)]
        library = build().library
        self.run_units: Any = None if library is None or None in built else library.run_units


@dataclass(frozen=True)
class Part:
    """A unit of a series: its entries, what it computes and replaces with that, and what nothing reads afterwards."""

    entries: Sequence[Entry]
    made: Mapping[int, int | None]
    dying: Collection[int]

    @property
    def work(self) -> int:
        return sum(entry.work for entry in self.entries)


class Arena:
    """Memory for what is read inside a series alone; all series of a program share it."""

    def __init__(self, size: int) -> None:
        self._memory = np.empty(size + _ALIGNED, dtype=np.uint8)

    def taken(self) -> npt.NDArray[np.uint8]:
        """The memory, of undefined contents."""
        return self._memory


class Series:
    """Units that follow each other, executed by one call. Only one thread at a time may run it."""

    arena: Arena
    """Of `room` bytes or more."""

    def __init__(self, parts: Sequence[Part], body: Sequence[Instruction], host: Host) -> None:
        self._host, entries = host, [entry for part in parts for entry in part.entries]
        inside = {n: old for part in parts for n, old in part.made.items()}
        gone = {n for part in parts for n in part.dying}
        self.reads = frozenset(t.value for entry in entries for t in entry.touches).difference(inside, {FILL})
        """The values from outside."""
        self.dying = tuple(gone & self.reads)
        """Those that nothing reads afterwards."""
        sizes = {n: body[n].numel * body[n].dtype.size for n in (*self.reads, *inside)}
        self._slots = {n: slot for slot, n in enumerate(sizes)}
        self._read = [(self._slots[n], n, TORCH_DTYPES[body[n].dtype], body[n].numel) for n in self.reads]
        self._kept = [
            (self._slots[n], n, body[n].shape, TORCH_DTYPES[body[n].dtype], old)
            for n, old in inside.items()
            if n not in gone
        ]
        places, self.room = _arena(parts, {n: sizes[n] for n in inside if n in gone})
        self._in_arena = np.array([self._slots[n] for n in places], np.int64), np.array([*places.values()], np.uint64)
        fills = [entry.fill for entry in entries if entry.fill is not None]
        self._memory = np.array([*(0 for _ in sizes), *(fill.ctypes.data for fill in fills)], dtype=np.uint64)
        self._bytes = np.array([*sizes.values(), *(fill.nbytes for fill in fills)], dtype=np.int64)
        self._kinds = {kind: n for n, kind in enumerate({entry.counted for entry in entries} - {""})}
        self._counted = Counter[str]()
        self._finalized = list[tuple[int, int]]()
        self._resolved = defaultdict[str, list[tuple[int, int]]](list)
        counters = self._encode(entries, len(sizes), body)
        self._counters, self._totals = np.zeros(counters + 1, np.int64), np.zeros((len(self._kinds) + 1, 4), np.int64)
        held = [None if entry.varies else entry.plan() for entry in entries]
        self._plans = np.array([0 if plan is None else _address(plan[0]) for plan in held], dtype=np.uint64)
        self._held = held, fills
        self._varying = [(n, entry.plan) for n, entry in enumerate(entries) if entry.varies]
        arrays = self._words, self._plans, self._memory, self._bytes, self._counters, self._totals
        counts = (
            len(self._words),
            len(entries),
            len(self._bytes),
            len(self._bytes),
            len(self._counters),
            len(self._totals),
        )
        self._table = _Table(*host.functions, *(array.ctypes.data for array in arrays), *counts)

    def _encode(self, entries: Sequence[Entry], fills: int, body: Sequence[Instruction]) -> int:
        """Writes the table; returns the number of counters. fills: the first slot of a fill."""
        words, counters = list[int](), 0
        for plan, entry in enumerate(entries):
            total = self._kinds.get(entry.counted, 0)
            words += [entry.kind, plan, total, entry.number, counters, len(entry.touches)]
            for value, first, end in entry.touches:
                words += [fills if value == FILL else self._slots[value], first, end]
                fills += value == FILL
            if entry.counted:
                self._counted[entry.counted] += body[entry.touches[-1].value].numel
            if entry.chain is not None:
                self._finalized += [(index, counters + at) for index, at in entry.chain.finalized]
                for function, at in entry.chain.resolved:
                    self._resolved[f"map.{function.name.lower()}"].append((entry.number, counters + at))
                counters += entry.chain.counters
        self._words = np.array(words, dtype=np.int64)
        return counters

    def run(self, values: Mapping[int, Tensor], given: Collection[int]) -> dict[int, Tensor]:
        """Executes the units; returns the results that are used afterwards. They may overwrite values in `given`."""
        memory, made = self._memory, dict[int, Tensor]()
        for slot, index, dtype, numel in self._read:
            x = values[index]
            # SAFETY: kernels read a value's elements from the tensor's first on, and nothing else of it.
            if x.dtype != dtype or x.numel() != numel or not x.is_contiguous() or x.device.type != "cpu":
                raise ValueError(
                    f"value {index}: expected {numel} {dtype} in a row on the CPU, got {tuple(x.shape)} {x.dtype}"
                )
            memory[slot] = x.data_ptr()
        for slot, index, shape, dtype, old in self._kept:
            taken = values.get(old) if old is not None and old in given else None
            x = made[index] = self._host.empty(shape, dtype) if taken is None else taken.view(shape)
            memory[slot] = x.data_ptr()
        start = int(self.arena.taken().ctypes.data)
        slots, places = self._in_arena
        memory[slots] = places + np.uint64(start + -start % _ALIGNED)
        drawn = [(n, plan()) for n, plan in self._varying]
        for n, plan in drawn:
            self._plans[n] = _address(plan[0])
        failure = self._host.run_units(ctypes.byref(self._table))
        if failure == NO_MEMORY:
            raise MemoryError("no memory for a series of units")
        if failure:
            raise ValueError("expected a table of units, got one that C refuses")
        self._count()
        return made

    def _count(self) -> None:
        host, counters, totals = self._host, self._counters.tolist(), self._totals.tolist()
        for index, at in self._finalized:
            host.finite[index] = not counters[at]
        for kind, places in self._resolved.items():
            counts = host.stats.of(kind)
            counts.elements += sum(numel for numel, _ in places)
            counts.undecided += sum(counters[at] for _, at in places)
            counts.double_rounded += sum(counters[at + 1] for _, at in places)
        for kind, n in self._kinds.items():
            counts = host.stats.of(kind)
            counts.elements += self._counted[kind]
            ZivProgress(0, *totals[n]).add_to(counts, 1)


def _address(plan: Any) -> int:
    return int(plan.ctypes.data) if isinstance(plan, np.ndarray) else ctypes.addressof(plan)


def _arena(parts: Sequence[Part], sizes: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """The place of each value in shared memory while it is needed, and how many bytes that takes."""
    places, live, room = dict[int, int](), dict[int, tuple[int, int]](), 0
    for part in parts:
        for n in part.made:
            if n not in sizes:
                continue
            start, size = 0, -(-sizes[n] // _ALIGNED) * _ALIGNED
            for begin, end in sorted(live.values()):
                if start + size <= begin:
                    break
                start = end
            places[n], live[n], room = start, (start, start + size), max(room, start + size)
        for n in part.dying:
            live.pop(n, None)
    return places, room


def join(parts: Sequence[Part | None], body: Sequence[Instruction], host: Host) -> list[tuple[int, Series | None]]:
    """Units in order, as series and single ones: how many units each has. None among `parts`: executed on its own."""
    found, series = list[tuple[int, Series | None]](), list[Part]()
    for part in [*parts, None]:
        if series and (part is None or sum(each.work for each in series) + part.work > LONGEST):
            found.append((len(series), Series(series, body, host)))
            series = []
        if part is not None:
            series.append(part)
        else:
            found.append((1, None))
    made = [each for _, each in found if each is not None]
    arena = Arena(max((each.room for each in made), default=0))
    for each in made:
        each.arena = arena
    return found[:-1]
