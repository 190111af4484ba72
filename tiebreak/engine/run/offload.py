"""Computes a step in less memory than its values take: those that are needed last wait in a file.

The order of a step's units is known, so it is known when each value is read next. Whenever the values in memory would
exceed the budget, the one whose next use is farthest away leaves it (Belady's rule, which no other order of evictions
beats). Values never change, so one that was written once can leave again without being written. What will have to leave
soon is written while earlier units compute, and what is needed soon is read meanwhile, by two threads.

State entries are values like others: a moment of the optimizer is in memory for one update in each step. An entry that
is on disk when a step ends becomes a tensor that is mapped from the file, so whoever reads the state needs no memory
either. The file has no name, and nobody else can open it. Where a value waits changes no bit of any result.
"""

import itertools
import mmap
import os
import tempfile
import weakref
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.c import integers
from tiebreak.engine.data.disk import storing
from tiebreak.engine.data.formats import Empty
from tiebreak.engine.data.tensors import memory_of
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.engine.run.schedule import Unit, slot_name
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import SourceKind
from tiebreak.protocol.program.program import Program

SMALL: Final = 1 << 18
"""Values of fewer bytes stay in memory."""
AHEAD: Final = 1 / 6
"""The part of the budget that is read before it is needed, and the part that is written before it must leave."""
WINDOW: Final = 256
"""The number of reads ahead that are looked at."""
RESERVE: Final = 192 << 20
"""The bytes that a step needs in addition to its values: panels of kernels, pages of the allocator, small values."""

State = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory that a step may take."""

    room: int
    """The bytes of its values in memory."""
    folder: Path
    """The folder for the other values, on a disk that has room for them."""

    @classmethod
    def within(cls, memory: int, folder: Path) -> "Budget":
        """The budget in a process that may take `memory` bytes in all, as large as it is now."""
        residues = integers.RESIDUES if integers.kernel() is not None else 0
        return cls(memory - _resident() - RESERVE - residues, folder)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class _Extent:
    """A piece of the file. It can be used again when nothing refers to it."""

    def __init__(self, offset: int, size: int) -> None:
        self.offset, self.size = offset, size


class _Mapping(mmap.mmap):
    extent: _Extent


class _File:
    """A file without a name, in pieces that are used again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with storing(folder):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (it lives as long as this does)
        self._end = 0
        self._free: dict[int, list[int]] = {}

    def take(self, size: int) -> _Extent:
        size = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        free = self._free.setdefault(size, [])
        if free:
            offset = free.pop()
        else:
            offset, self._end = self._end, self._end + size
            with storing(self.folder):
                os.posix_fallocate(self._file.fileno(), offset, size)  # a full disk is found here, not in a mapping
        extent = _Extent(offset, size)
        weakref.finalize(extent, free.append, offset).atexit = False
        return extent

    def write(self, extent: _Extent, tensor: Tensor) -> None:
        memory, done = memory_of(tensor), 0
        with storing(self.folder):
            while done < len(memory):
                done += os.pwrite(self._file.fileno(), memory[done:], extent.offset + done)

    def read(self, extent: _Extent, tensor: Tensor) -> None:
        memory, done = memory_of(tensor), 0
        with storing(self.folder):
            while done < len(memory):
                done += os.preadv(self._file.fileno(), [memory[done:]], extent.offset + done)

    def mapped(self, extent: _Extent, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The piece as a tensor, without reading it. It stays taken as long as that lives."""
        found = _Mapping(self._file.fileno(), extent.size, offset=extent.offset)
        found.extent = extent
        return torch.frombuffer(found, dtype=dtype, count=prod(shape)).view(tuple(shape))


@dataclass(frozen=True, slots=True)
class Place:
    """The reads and results of a unit, known before it runs."""

    reads: tuple[int, ...]
    """The values of others that it reads."""
    makes: int
    """The bytes of its results, but for those that take an operand's place."""


class _Carried(NamedTuple):
    """A state entry that is in the file, and in memory too unless it is `mapped`."""

    tensor: Tensor
    extent: _Extent
    mapped: bool


class Offload:
    """Keeps the values of each step of one program within a budget."""

    def __init__(
        self, program: Program, units: Sequence[Unit], in_place: Mapping[int, int], together: Collection[int],
        budget: Budget, empty: Empty,
    ) -> None:  # fmt: skip
        """Plans when each value is needed.

        units: the order of execution. in_place: results that take the place of an operand. together: the positions of
        units whose inner results need no memory. empty: memory for values. Raises `ConfigurationError` if one
        instruction alone needs more than the budget.
        """
        self.room, self._empty = budget.room, empty
        self._body = program.body
        self._bytes = [i.numel * i.dtype.size for i in program.body]
        self._commits = [(slot_name(c), c.operands[0].value) for c in program.commits]
        self._committed = {value for _, value in self._commits}
        self.sources = {slot_name(program.body[n]): n for n in program.sources(SourceKind.STATE)}
        self._entries = frozenset(self.sources.values())
        given = {*program.sources(SourceKind.DATA), len(program.body) - 1}  # the last is the loss
        self._large = [size >= SMALL and n not in given for n, size in enumerate(self._bytes)]
        self._units, self._together = units, frozenset(together)
        self._places = [self._place(p, unit, in_place) for p, unit in enumerate(units)]
        self.least = max(map(self._least, range(len(self._places))))
        """The bytes that the largest unit needs."""
        self._check_room()
        self._uses: dict[int, list[int]] = {}
        self._events: list[tuple[int, int]] = []
        """(position of a unit, value that it reads), in order."""
        for position, place in enumerate(self._places):
            for value in place.reads:
                self._uses.setdefault(value, []).append(position)
                self._events.append((position, value))
        self._again = {
            value: len(units) + self._uses.get(self.sources[name], [len(units)])[0]
            for name, value in self._commits
            if name in self.sources
        }
        """The position at which a committed value is needed in the next step."""
        self._file = _File(budget.folder)
        self._writer, self._reader = (ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("write", "read"))
        self._loaded: dict[int, _Extent] = {}
        self._carried: dict[str, _Carried] = {}
        """Entries of the last state that are in the file."""
        self.bytes_written = self.bytes_read = 0

    def _place(self, position: int, unit: Unit, in_place: Mapping[int, int]) -> Place:
        members = set(unit.members)
        if unit.members[0] in self._entries:
            return Place((), 0)
        reads = {a.value for n in unit.members for a in self._body[n].operands} - members
        made = unit.outputs if position in self._together else unit.members
        return Place(
            tuple(v for v in sorted(reads) if self._large[v]),
            sum(self._bytes[n] for n in made if self._large[n] and n not in in_place),
        )

    def _least(self, position: int) -> int:
        place = self._places[position]
        return place.makes + sum(self._bytes[v] for v in place.reads)

    def _check_room(self) -> None:
        if self.least <= self.room:
            return
        worst = max(range(len(self._places)), key=self._least)
        number = self._units[worst].members[-1]
        instruction = self._body[number]
        kind = instruction.opcode.name.lower()
        origin = f" from {instruction.origin}" if instruction.origin else ""
        raise ConfigurationError(
            f"expected {(self.least - self.room >> 20) + 1:,} MiB more memory: instruction {number} of the step "
            f"({kind} to {list(instruction.shape)}{origin}) reads and makes {self.least >> 20:,} MiB, and "
            f"{max(self.room, 0) >> 20:,} MiB are left for values"
        )

    # ---- between steps ----

    def on_disk(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor of undefined contents, in the file if it is large, for a state that is read from elsewhere."""
        size = prod(shape) * dtype.itemsize
        if size < SMALL:
            return torch.empty(tuple(shape), dtype=dtype)
        extent = self._file.take(size)
        tensor = self._file.mapped(extent, shape, dtype)
        self._loaded[tensor.data_ptr()] = extent
        return tensor

    def adopt(self, state: State) -> None:
        """Notes the entries that `on_disk` made; whatever else it made is forgotten."""
        for name, tensor in state.items():
            if (extent := self._loaded.get(tensor.data_ptr())) is not None:
                self._carried[name] = _Carried(tensor, extent, mapped=True)
        self._loaded.clear()

    def all_on_disk(self, state: State) -> State:
        """The state with every large entry in the file and not in memory. Changes the given one alike."""
        for name, tensor in state.items():
            if tensor.nbytes < SMALL:
                continue
            known = self._carried.get(name)
            if known is None or known.tensor is not tensor:
                extent = self._file.take(tensor.nbytes)
                self._file.write(extent, tensor)
                self.bytes_written += tensor.nbytes
            elif known.mapped:
                continue
            else:
                extent = known.extent
            state[name] = self._file.mapped(extent, tensor.shape, tensor.dtype)
            self._carried[name] = _Carried(state[name], extent, mapped=True)
        return dict(state)

    # ---- during a step ----

    def begin(
        self, values: dict[int, Tensor], state: State, finalize: Callable[[int], Tensor], *, donated: bool
    ) -> None:  # fmt: skip
        """Begins a step. values: those in memory, which the caller fills and empties.

        finalize: makes a value committable. With `donated`, the entries of `state` are taken out of it, so that their
        memory can be used.
        """
        self._values, self._finalize = values, finalize
        self._held = self._read_to = 0
        self._now = -1
        self._order: list[tuple[int, int]] = []
        self._due: dict[int, int] = {}
        self._on_file: dict[int, _Extent] = {}
        self._writing: dict[int, tuple[Future[None], _Extent]] = {}
        self._reading: dict[int, tuple[Future[None], Tensor]] = {}
        for name, index in self.sources.items():
            known, tensor = self._carried.get(name), state[name]
            if known is not None and known.tensor is tensor:
                self._on_file[index] = known.extent
                if known.mapped:
                    continue
            values[index] = tensor
            self._add(index)
        self._carried.clear()
        if donated:
            state.clear()

    def positions(self) -> Iterator[int]:
        """The positions of the units to execute, each once its operands are in memory.

        Those of state entries are not among them: `begin` has put into `values` what is in memory.
        """
        for position, unit in enumerate(self._units):
            if unit.members[0] not in self._entries:
                self._before(position)
                yield position
                self._after(position)

    def _before(self, position: int) -> None:
        """Brings the operands of a unit into memory, and makes room for its results."""
        place = self._places[position]
        missing = [v for v in place.reads if v not in self._values and v not in self._reading]
        size = place.makes + sum(self._bytes[v] for v in missing)
        if self._held + size > self.room:
            for index in self._farthest(place.reads):
                self._evict(index)
                if self._held + size <= self.room:
                    break
        for v in missing:
            self._begin_read(v)
        for v in place.reads:
            if v in self._reading:
                self._end_read(v)

    def _after(self, position: int) -> None:
        """Takes note of a unit's results and of the values that died, and begins to write and to read ahead."""
        self._now, unit = position, self._units[position]
        for index in unit.outputs:
            if index in self._values:
                self._add(index)
        for dying in unit.dying:
            for index in dying:
                self._drop(index)
                self._on_file.pop(index, None)
                self._writing.pop(index, None)
        for index in self._places[position].reads:
            if index in self._due:
                self._drop(index)
                self._add(index)
        self._write_ahead()
        self._read_ahead()

    def committed(self, index: int) -> Tensor | None:
        """The tensor, mapped from the file, of a committed value that is no longer in memory; None for others."""
        if index in self._reading:
            self._end_read(index)
        if index in self._values:
            return None
        i = self._body[index]
        return self._file.mapped(self._on_file[index], i.shape, TORCH_DTYPES[i.dtype])

    def end(self, state: State) -> None:
        """Ends a step. state: the new one."""
        for name, value in self._commits:
            self._written(value)
            if value in self._on_file:
                self._carried[name] = _Carried(state[name], self._on_file[value], mapped=value not in self._values)

    # ---- memory ----

    def _add(self, index: int) -> None:
        """Counts a value that is in memory, or on its way there."""
        if self._large[index] and index not in self._due:
            self._due[index] = self._next(index)
            insort(self._order, (self._due[index], index))
            self._held += self._bytes[index]

    def _drop(self, index: int) -> None:
        if index in self._due:
            del self._order[bisect_left(self._order, (self._due.pop(index), index))]
            self._held -= self._bytes[index]

    def _next(self, index: int) -> int:
        """The position at which a value is read next; past the end, if in the next step."""
        uses = self._uses.get(index, [])
        at = bisect_right(uses, self._now)
        return uses[at] if at < len(uses) else self._again.get(index, 2 * len(self._units))

    def _farthest(self, needed: Collection[int] = ()) -> list[int]:
        """The values in memory, those first that are read last."""
        return [n for _, n in reversed(self._order) if n not in needed]

    def _evict(self, index: int) -> None:
        if index in self._reading:
            self._end_read(index)
        if index not in self._on_file:
            if index not in self._writing:
                self._begin_write(index)
            self._written(index)
        del self._values[index]
        self._drop(index)

    def _begin_write(self, index: int) -> None:
        if index in self._committed:
            self._values[index] = self._finalize(index)
        extent = self._file.take(self._bytes[index])
        self._writing[index] = self._writer.submit(self._file.write, extent, self._values[index]), extent
        self.bytes_written += self._bytes[index]

    def _written(self, index: int) -> None:
        """Waits until a value that is being written is in the file."""
        if index in self._writing:
            future, extent = self._writing.pop(index)
            future.result()
            self._on_file[index] = extent

    def _begin_read(self, index: int) -> None:
        i = self._body[index]
        tensor = self._empty(i.shape, TORCH_DTYPES[i.dtype])
        self._reading[index] = self._reader.submit(self._file.read, self._on_file[index], tensor), tensor
        self.bytes_read += self._bytes[index]
        self._add(index)

    def _end_read(self, index: int) -> None:
        future, self._values[index] = self._reading.pop(index)
        future.result()

    # ---- ahead ----

    def _write_ahead(self) -> None:
        """Begins to write what leaves next, so that nobody has to wait for it."""
        wanted = self._held - int(self.room * (1 - AHEAD))
        for _, index in reversed(self._order):
            if wanted <= 0:
                return
            if index not in self._on_file and index not in self._writing:
                self._begin_write(index)
            wanted -= self._bytes[index]

    def _read_ahead(self) -> None:
        """Begins to read what is needed next, as long as there is room, or what can leave is needed later."""
        ahead = int(self.room * AHEAD) - sum(self._bytes[n] for n in self._reading)
        self._read_to = max(self._read_to, bisect_right(self._events, (self._now, len(self._body))))
        most = 0
        for when, index in itertools.islice(self._events, self._read_to, self._read_to + WINDOW):
            most = max(most, self._places[when].makes)
            if index in self._on_file and index not in self._due:
                ahead -= self._bytes[index]
                if ahead < 0 or not self._clear(self._bytes[index] + most, when):
                    return
                self._begin_read(index)

    def _clear(self, size: int, when: int) -> bool:
        """Makes room at once, by dropping what is in the file and needed after `when`. Returns whether there is."""
        for due, index in reversed(self._order):
            if self._held + size <= self.room or due <= when:
                break
            if index in self._writing and self._writing[index][0].done():
                self._written(index)
            if index in self._on_file and index not in self._reading:
                self._evict(index)
        return self._held + size <= self.room
