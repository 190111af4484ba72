"""Series of units that one call of C executes (units.c).

To call C from Python takes longer than a small unit computes, and to wake a thread longer still. So units that follow
each other are written into a table: for each one its kernel, its plan and the memory that it touches. What only they
read lies in one piece of memory, which is kept. C checks the table before it follows it. One thread leads, and others
help with the units that are worth it, without being waited for unless they are at work.
"""

import ctypes
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import get_ident
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tiebreak.engine.arithmetic.c import chains, moves, scatter, sums
from tiebreak.engine.arithmetic.c.chains import CompiledChain
from tiebreak.engine.arithmetic.c.table import CHAIN, FILL, TableEntry, Touch, fixed
from tiebreak.engine.arithmetic.c.threads import ZivProgress, available, together
from tiebreak.engine.arithmetic.plan.chains import NewTensor, Work
from tiebreak.engine.arithmetic.plan.options import Stats
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.engine.native import Build, load
from tiebreak.protocol.program.isa import Instruction

MOST: Final = 8
"""The most threads of a series: its units are small, and helpers wait between them."""
SHARED: Final = 1 << 19
"""The least work, in multiplications, that threads share: some 10 us."""
LONGEST: Final = 1 << 27
"""The most work in one call, in multiplications: some milliseconds, after which Python sees signals."""
RESULTS: Final = 512
"""A series ends when it has more results than this: to find room for many takes long, and strangers write programs."""
NO_MEMORY: Final = 1
"""The result by which units.c says so."""
_ALIGNED, _DONE = 64, 2
_ARRAYS: Final = ("table", "plans", "memory", "bytes", "counters", "totals", "crew")
_CREW: Final = 32
"""The words of what the threads of a series share, at most."""


class _Table(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in ("contract", "add_up", "find_greatest", "chain_run", "scatter_sum", "move_all", "exact")
        ),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
        *((f"{name}_count", ctypes.c_int64) for name in (*_ARRAYS, "counter")),
    ]


def build() -> Build:
    """The compiled kernel, or the reason why there is none."""
    pointer = ctypes.c_void_p
    return load(__file__, run_units=(ctypes.c_int64, pointer), help_units=(None, pointer, ctypes.c_int64))


def of_chain(chain: CompiledChain) -> TableEntry:
    """A chain as units.c runs it: it reads its inputs whole, and writes its results whole."""
    code = chain.code
    read = [Touch.of(value, (0, numel - 1), dtype.size) for value, (dtype, numel) in code.inputs.items()]
    made = [store.member for store in code.stores]
    written = [Touch.of(m.index, (0, code.numel - 1), m.instruction.dtype.size) for m in made]
    plan = partial(fixed, chain.words)
    return TableEntry(kind=CHAIN, plan=plan, touches=(*read, *written), work=chain.work, number=code.numel, chain=chain)


class Caller:
    """The kernels that series call, where they count, and what gives memory."""

    def __init__(self, empty: NewTensor, stats: Stats, finite: dict[int, bool], exact: Any) -> None:
        self.empty, self.stats, self.finite = empty, stats, finite
        added, called = sums.build().library, [chains.build().library, scatter.build().library, moves.build().library]
        own = build().library
        self.library: Any = None if None in (added, *called) else own
        functions = [getattr(added, name, exact) for name in ("contract", "add_up", "find_greatest")]
        for library, name in zip(called, ("chain_run", "scatter_sum", "move_all"), strict=True):
            functions.append(getattr(library, name, exact))
        self.functions = [ctypes.cast(function, ctypes.c_void_p).value for function in (*functions, exact)]


@dataclass(frozen=True)
class SeriesPart:
    """A unit of a series: its entries, what it computes and replaces with that, and what nothing reads afterwards."""

    entries: Sequence[TableEntry]
    made: Mapping[int, int | None]
    dying: Collection[int]

    @property
    def work(self) -> int:
        return sum(entry.work for entry in self.entries)


class SeriesMemory:
    """Memory for what is read inside a series alone; all series of a program share it."""

    def __init__(self) -> None:
        self._size, self._memory = 0, np.empty(0, dtype=np.uint8)

    def reserve(self, size: int) -> None:
        """Lets a series of the program use this many bytes, from its next run on."""
        self._size = max(self._size, size + _ALIGNED)

    def taken(self) -> npt.NDArray[np.uint8]:
        """The memory, of undefined contents."""
        if len(self._memory) < self._size:
            self._memory = np.empty(self._size, dtype=np.uint8)
        return self._memory


class UnitSeries:
    """Units that follow each other, executed by one call. Only one thread at a time may run it."""

    def __init__(
        self, parts: Sequence[SeriesPart], body: Sequence[Instruction], caller: Caller, arena: SeriesMemory
    ) -> None:
        self._caller, entries = caller, [entry for part in parts for entry in part.entries]
        inside = {n: old for part in parts for n, old in part.made.items()}
        gone = {n for part in parts for n in part.dying}
        self.reads = frozenset(t.value for entry in entries for t in entry.touches).difference(inside, {FILL})
        """The values that units outside the series compute, or sources."""
        self.dying = tuple(gone & self.reads)
        """The values among them that nothing reads afterwards."""
        sizes = {n: body[n].numel * body[n].dtype.size for n in (*self.reads, *inside)}
        self._slots = {n: slot for slot, n in enumerate(sizes)}
        self._read = [(self._slots[n], n, TORCH_DTYPES[body[n].dtype], body[n].numel) for n in self.reads]
        self._kept = [
            (self._slots[n], n, body[n].shape, TORCH_DTYPES[body[n].dtype], old)
            for n, old in inside.items()
            if n not in gone
        ]
        self._arena, (places, room) = arena, _places(parts, {n: sizes[n] for n in inside if n in gone})
        arena.reserve(room)
        self._in_arena = np.array([self._slots[n] for n in places], np.int64), np.array([*places.values()], np.uint64)
        fills = [entry.fill for entry in entries if entry.fill is not None]
        self._memory = np.array([*(0 for _ in sizes), *(fill.ctypes.data for fill in fills)], dtype=np.uint64)
        self._bytes = np.array([*sizes.values(), *(fill.nbytes for fill in fills)], dtype=np.int64)
        self._kinds = {kind: n for n, kind in enumerate({entry.counted for entry in entries} - {""})}
        self._counted = Counter[str]()
        self._finalized = list[tuple[int, int]]()
        self._resolved = defaultdict[str, list[tuple[int, int]]](list)
        self._workers = min(available(), MOST) if any(entry.work >= SHARED for entry in entries) else 1
        counters = self._encode(entries, len(sizes), body)
        self._counters = np.zeros((self._workers, counters + 1), np.int64)
        self._totals = np.zeros((len(self._kinds) + 1, 4), np.int64)
        held = [None if entry.varies else entry.plan(self._workers) for entry in entries]
        self._plans = np.array([0 if plan is None else _address(plan[0]) for plan in held], dtype=np.uint64)
        self._held = held, fills
        self._varying = [(n, entry.plan) for n, entry in enumerate(entries) if entry.varies]
        self._crew = np.zeros(_CREW, np.int64)
        arrays = self._words, self._plans, self._memory, self._bytes, self._counters, self._totals, self._crew
        addresses = (array.ctypes.data for array in arrays)
        self._table = _Table(*caller.functions, *addresses, *map(len, arrays), counters + 1)

    def _encode(self, entries: Sequence[TableEntry], fills: int, body: Sequence[Instruction]) -> int:
        """Writes the table; returns the number of counters. fills: the first slot of a fill."""
        words, counters = list[int](), 0
        for plan, entry in enumerate(entries):
            total = self._kinds.get(entry.counted, 0)
            shared = int(self._workers > 1 and entry.work >= SHARED)
            words += [entry.kind, plan, total, entry.number, counters, shared, len(entry.touches)]
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
            x = made[index] = self._caller.empty(shape, dtype) if taken is None else taken.view(shape)
            memory[slot] = x.data_ptr()
        start = int(self._arena.taken().ctypes.data)
        slots, places = self._in_arena
        memory[slots] = places + np.uint64(start + -start % _ALIGNED)
        drawn = [(n, plan(self._workers)) for n, plan in self._varying]
        for n, plan in drawn:
            self._plans[n] = _address(plan[0])
        if (failure := self._together()) == NO_MEMORY:
            raise MemoryError("no memory for a series of units")
        if failure:
            raise ValueError("expected a table of units, got one that C refuses")
        self._count()
        return made

    def _together(self) -> int:
        """Runs the table with as many threads as may help; returns what units.c says."""
        library, table, leader, helpers = self._caller.library, ctypes.byref(self._table), get_ident(), count(1)
        self._crew[:] = 0

        def work() -> int:
            if get_ident() != leader:
                library.help_units(table, next(helpers))
                return 0
            try:
                return int(library.run_units(table))
            finally:
                self._crew[_DONE] = 1  # whatever interrupts this thread

        return max(together(work, min(self._workers, available())))

    def _count(self) -> None:
        caller, counters, totals = self._caller, self._counters.sum(0).tolist(), self._totals.tolist()
        for index, at in self._finalized:
            caller.finite[index] = not counters[at]
        for kind, places in self._resolved.items():
            counts = caller.stats.of(kind)
            counts.elements += sum(numel for numel, _ in places)
            counts.undecided += sum(counters[at] for _, at in places)
            counts.double_rounded += sum(counters[at + 1] for _, at in places)
        for kind, n in self._kinds.items():
            counts = caller.stats.of(kind)
            counts.elements += self._counted[kind]
            ZivProgress(0, *totals[n]).add_to(counts, 1)


def _address(plan: Any) -> int:
    return int(plan.ctypes.data) if isinstance(plan, np.ndarray) else ctypes.addressof(plan)


def _places(parts: Sequence[SeriesPart], sizes: Mapping[int, int]) -> tuple[dict[int, int], int]:
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


def join(
    work: Sequence[Work], parts: Sequence[SeriesPart | None], body: Sequence[Instruction], caller: Caller
) -> list[tuple[Sequence[Work], UnitSeries | None]]:
    """Units in order, as series and single ones. parts: each unit as a series has it; None: executed on its own."""
    arena, found, series = SeriesMemory(), list[tuple[Sequence[Work], UnitSeries | None]](), list[SeriesPart]()
    begin = load = results = 0
    for end, following in enumerate([*parts[1:], None], 1):
        if (part := parts[end - 1]) is not None:
            series.append(part)
            load, results = load + part.work, results + len(part.made)
        if following is not None and series and load + following.work <= LONGEST and results <= RESULTS:
            continue
        found.append((work[begin:end], UnitSeries(series, body, caller, arena) if series else None))
        begin, load, results, series = end, 0, 0, []
    return found
