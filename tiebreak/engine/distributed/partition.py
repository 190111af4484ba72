"""Finds, from a program's access maps alone, how several workers compute one step of it together.

Each instruction is computed in one of these ways, chosen in program order:

* *whole*: every worker computes all of it, from whole operands;
* *in shards*: one output coordinate is shared out, and each worker computes its positions. Operands that are held in
  shards along that coordinate are read where they are; all others are read whole;
* *in part*: one coordinate of the reduction is shared out. Each worker computes its terms in FP64, and one worker for
  each element adds them up and rounds (`tiebreak.engine.distributed.arithmetic`). Maxima and sums of integers are exact
  in any order: each worker computes its own result, and all combine these again.

An operand that is held in shards but must be read whole is gathered first. Shards begin at the batch, which is what the
first gather from the data yields; at state entries, of which each worker keeps and updates its leading share (ZeRO);
and after sums. A weight's gradient is summed in part, or its operands are gathered and each worker computes its own
share of it: whatever moves fewer bytes. A last pass makes a value in shards if that is how all its readers read it, as
with the random numbers of dropout.

The choice depends on the program and the number of workers only, so all workers make the same one. No result depends on
it: every instruction's result is what it is on one worker, bit for bit.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Final

from tiebreak.engine.arithmetic.plan.chains import RandomFrom
from tiebreak.engine.arithmetic.plan.views import Dim, coalesce
from tiebreak.engine.distributed.layout import Split, along, cut, leading, localized, share
from tiebreak.engine.distributed.wire import BOUND_BYTES, SUM_BYTES
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.isa import Access, DType, Instruction, MapFunction, Opcode, ReduceFunction, SourceKind
from tiebreak.protocol.program.isa import row_major as contiguous
from tiebreak.protocol.program.program import Program

LEAST: Final = 1 << 12
"""Results of fewer elements than this, divided by the square of the number of workers, are computed whole, unless an
operand is held in shards. Sending all to everyone costs as many times what shards cost as there are workers."""
SMALL: Final = 1 << 11
"""Results that all need are rounded by every worker, if it sends at most this many sums for that."""
TOLD: Final = 3
"""Sums that every worker rounds may take, in all, this part of DDP's bytes, divided by the square of the number of
workers. The smallest results are taken first."""
_RESULT: Final = 0
"""The strides of the result come before those of the operands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGather(Instruction):
    """Makes whole a value that is held in shards."""

    split: Split


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSum(Instruction):
    """An f32 sum whose terms are spread over the workers."""

    mine: Instruction
    """The sum over this worker's terms."""
    split: Split | None
    """The shards in which the result is held, always one after the other; None if it is held whole."""
    everywhere: bool
    """Whether every worker adds and rounds all of it; otherwise each element has one owner."""


@dataclass(frozen=True, slots=True)
class Way:
    """The way in which one instruction is computed."""

    dims: tuple[Dim, ...] = ()
    """The index space: the result's strides, then those of the operands. Cut where the shared dim begins or ends."""
    rank: int = 0
    """The number of dims, from the first on, that belong to the output; the others are summed."""
    shared: int | None = None
    """The position of the dim that is shared out."""
    in_place: tuple[bool, ...] = ()
    """Whether each operand is read in shards; the others are read whole."""
    boxes: tuple[tuple[int, int, int], ...] = ()
    """The box of a `window`, by dim."""


class Partition:
    """The division of a program among workers. `layouts`: by body value; None for values that are whole everywhere."""

    def __init__(self, program: Program, workers: int) -> None:
        program = _as_read(program)
        self.program, self.workers = program, workers
        self._readers = _readers(program)
        self._least = LEAST // workers**2
        self.layouts: list[Split | None] = []
        self.ways: list[Way] = []
        self._tables = _gathers_from_data(program)
        self._batch: int | None = None
        self.batched: list[bool] = []
        """Whether a value depends on a step's examples, and has not been summed over them."""
        self._whole: set[int] = set()
        """The values that some instruction reads whole though they are held in shards."""
        for index, instruction in enumerate(program.body):
            self._choose(index, instruction)
        self._make_whole()
        self._share_what_is_read_in_shards()
        self.told = self._most_told()

    def state_layout(self, shape: Sequence[int]) -> Split | None:
        """The layout of a state entry between two steps."""
        return leading(shape, self.workers) if prod(shape) >= self._least else None

    @cached_property
    def ddp(self) -> int:
        """The bytes that a worker sends under FP32 DDP: each gradient is reduced to shares, and these are gathered.

        Gradients are counted by the entries of the model that a step changes, so running statistics are among them.
        """
        changed = 0
        for commit in self.program.commits:
            source = self.program.body[commit.operands[0].value]
            kept = source.opcode == Opcode.SOURCE and source.function == SourceKind.STATE
            named = isinstance(commit.params, isa.Slot) and commit.params.name.startswith("model.")
            changed += prod(commit.shape) if named and not kept and commit.dtype == DType.F32 else 0
        return 8 * changed * (self.workers - 1) // self.workers

    def everywhere(self, i: Instruction, split: Split | None) -> bool:
        """Whether every worker rounds all of a sum that is held in such shards."""
        return split is None and i.numel <= self.told

    def local(self, worker: int) -> Program:
        """The program that one worker executes on its shards: instructions as usual, with exchanges among them."""
        return _Local(self, worker).program()

    # ---- choosing ----

    def _choose(self, index: int, i: Instruction) -> None:
        self.batched.append(any(self.batched[a.value] for a in i.operands))
        if i.opcode == Opcode.SOURCE:
            if i.function == SourceKind.DATA and not self._tables:
                self._begin_batch(index)
            self._set(Way(), self.state_layout(i.shape) if i.function == SourceKind.STATE else None)
            return
        if index in self._tables:
            self._begin_batch(index)
        held = [o for o, a in enumerate(i.operands) if self.layouts[a.value] is not None]
        dims, rank, boxes = _space(i)
        for o in held:
            dims, rank, boxes = _cut(dims, rank, boxes, o + 1, self._layout(i, o))
        readable = {o: self._along(i, dims, boxes, o) for o in held}
        votes: dict[int, tuple[int, int]] = {}  # by dim: the elements read in shards along it, of the batch and others
        for o, at in readable.items():
            if at is not None:
                value, (batched, others) = i.operands[o].value, votes.get(at, (0, 0))
                count = self.program.body[value].numel
                votes[at] = (batched + count, others) if self.batched[value] else (batched, others + count)
        shared = max(votes, key=lambda at: votes[at], default=None)
        summed = shared is not None and shared >= rank
        if summed:
            self.batched[index] = False
        if shared is None or (summed and not self._worth_adding(i, held)):
            self._whole |= {i.operands[o].value for o in held}
            self._begin(i, leading(i.shape, self.workers) if summed else self._first(index, i))
            return
        in_place = tuple(readable.get(o) == shared for o in range(len(i.operands)))
        self._whole |= {i.operands[o].value for o in held if not in_place[o]}
        way = Way(tuple(dims), rank, shared, in_place, tuple(boxes))
        if shared < rank:
            sizes = [d.size for d in dims[:rank]]
            self._set(way, Split(prod(sizes[:shared]), sizes[shared], prod(sizes[shared + 1 :])))
        else:
            self._set(way, self.state_layout(i.shape) if i.is_f32_sum else None)

    def _begin_batch(self, index: int) -> None:
        """Takes note of a value that comes from data, and whose elements are not the same for every worker."""
        self.batched[index] = True
        if self._batch is None:
            self._batch = next((size for size in self.program.body[index].shape if size >= self.workers), None)

    def _set(self, way: Way, layout: Split | None) -> None:
        self.ways.append(way)
        self.layouts.append(layout)

    def _layout(self, i: Instruction, operand: int) -> Split:
        found = self.layouts[i.operands[operand].value]
        assert found is not None
        return found

    def _along(
        self, i: Instruction, dims: Sequence[Dim], boxes: Sequence[tuple[int, int, int]], operand: int
    ) -> int | None:
        """The dim that runs through an operand's shards; None if it is not read shard by shard."""
        split, access = self._layout(i, operand), i.operands[operand]
        read = list(dims)
        if boxes and operand == 0:
            read = [replace(d, size=-(-(hi - lo) // step)) for d, (lo, hi, step) in zip(dims, boxes, strict=True)]
        if isinstance(i.params, isa.GatherParams) and operand == 0:
            read.append(Dim(i.params.bound, (0, i.params.index_stride, *(0 for _ in i.operands[1:]))))
        found = along(read, operand + 1, access.offset, split)
        plain = found is not None and found < len(dims) and (not boxes or boxes[found] == (0, dims[found].size, 1))
        return found if plain else None

    def _worth_adding(self, i: Instruction, held: Sequence[int]) -> bool:
        """Whether a reduction along shards is computed in part; otherwise its operands are gathered."""
        if i.opcode != Opcode.REDUCE or i.function == ReduceFunction.ARGMAX:
            return False
        if not i.is_f32_sum or leading(i.shape, self.workers) is None or i.numel < self._least:
            return True
        added = i.numel * (SUM_BYTES if len(i.operands) == 2 else SUM_BYTES + BOUND_BYTES)
        return added <= self._bytes({i.operands[o].value for o in held} - self._whole)

    def _begin(self, i: Instruction, split: Split | None) -> None:
        """Plans an instruction that reads everything whole, and whose result is made in these shards."""
        if split is not None and i.numel >= self._least:
            dims, rank, boxes = _cut(*_space(i), _RESULT, split)
            shared = along(dims[:rank], _RESULT, 0, split)
            if shared is not None and (not boxes or boxes[shared] == (0, dims[shared].size, 1)):
                in_place = tuple(False for _ in i.operands)
                self._set(Way(tuple(dims), rank, shared, in_place, tuple(boxes)), split)
                return
        self._set(Way(), None)

    def _first(self, index: int, i: Instruction) -> Split | None:
        """The shards in which to make a result whose operands are whole; None if it is the same in every step."""
        if not self.batched[index]:
            return None
        if self._batch is not None and i.shape and i.shape[0] % self._batch == 0:
            return Split(1, self._batch, i.numel // self._batch)
        return leading(i.shape, self.workers)

    def _most_told(self) -> int:
        """The elements of the largest result that every worker rounds."""
        most, sent = 0, 0
        sums = zip(self.program.body, self.ways, self.layouts, strict=True)
        sizes = Counter(
            i.numel for i, way, split in sums
            if i.is_f32_sum and split is None and way.shared is not None
        )  # fmt: skip
        for size in sorted(sizes):
            sent += sizes[size] * size * (SUM_BYTES + BOUND_BYTES) * (self.workers - 1)
            if size * (self.workers - 1) > SMALL or sent > TOLD * self.ddp // self.workers**2:
                break
            most = size
        return most

    def _make_whole(self) -> None:
        """Makes values whole from the start that are read whole, if that takes fewer messages or bytes.

        A sum's owners tell it to all at once. What is only read whole is made by every worker, if it takes more bytes
        than what it is made of, or as many and is no part of the batch: a mean, for example.
        """
        in_place = Counter(a.value for n in range(len(self.program.body)) for a in self._read_in_shards(n))
        costs: list[int] = []
        """The bytes that it takes to make a value whole."""
        for index, i in enumerate(self.program.body):
            whole = self.layouts[index] is None or index in self._whole
            costs.append(0 if whole else self._bytes([index]))
            if i.opcode == Opcode.MAP and not self.batched[index]:
                costs[-1] = min(costs[-1], sum(costs[value] for value in {a.value for a in i.operands}))
        for index, i in reversed([*enumerate(self.program.body)]):
            way, batched = self.ways[index], self.batched[index]
            if index not in self._whole or way.shared is None:
                continue
            if not (i.is_f32_sum and way.shared >= way.rank):
                made_of = {a.value for a in i.operands if self.layouts[a.value] is not None} - self._whole
                less = self._bytes([index]) + (not batched) > sum(costs[value] for value in made_of)
                if i.opcode != Opcode.MAP or not less or (batched and in_place[index]):
                    continue
                in_place.subtract(a.value for a in self._read_in_shards(index))
                self._whole |= made_of
                self.ways[index] = Way()
            self.layouts[index] = None
            for reader in self._readers[index]:
                self._read(index, reader, in_place=False)

    def _read_in_shards(self, index: int) -> list[Access]:
        reads = zip(self.program.body[index].operands, self.ways[index].in_place, strict=False)
        return [access for access, in_place in reads if in_place]

    def _bytes(self, values: Iterable[int]) -> int:
        return sum(self.program.body[v].numel * self.program.body[v].dtype.size for v in values)

    def _share_what_is_read_in_shards(self) -> None:
        """Shares out values that are made whole from whole operands, but that all readers read in the same shards."""
        kept = {commit.operands[0].value for commit in self.program.commits} | {len(self.program.body) - 1}
        plain = (Opcode.MAP, Opcode.IOTA, Opcode.RANDOM, Opcode.GATHER)
        for index in range(len(self.program.body) - 1, -1, -1):
            i = self.program.body[index]
            if self.layouts[index] is not None or i.opcode not in plain or index in kept or i.numel < self.workers:
                continue
            if any(self.layouts[a.value] is not None for a in i.operands):
                continue
            found = {self._read_as(index, reader) for reader in self._readers[index]}
            split = found.pop() if len(found) == 1 else None
            if split is None or (i.opcode == Opcode.RANDOM and split.outer > 1):
                continue
            dims, rank, _ = _cut(*_space(i), _RESULT, split)
            if (shared := along(dims, _RESULT, 0, split)) is None:
                continue
            self.layouts[index] = split
            self.ways[index] = Way(tuple(dims), rank, shared, tuple(False for _ in i.operands))
            for reader in self._readers[index]:
                self._read(index, reader, in_place=True)

    def _read_as(self, value: int, reader: int) -> Split | None:
        """The shards in which a reader could read a value that it reads whole."""
        i, way = self.program.body[reader], self.ways[reader]
        found = set()
        for o, access in enumerate(i.operands):
            if access.value != value:
                continue
            stride = way.dims[way.shared].strides[o + 1] if way.shared is not None else 0
            if way.shared is None or stride <= 0 or (i.opcode == Opcode.GATHER and o == 0) or way.boxes:
                return None
            size, numel = way.dims[way.shared].size, self.program.body[value].numel
            if numel % (size * stride):
                return None
            split = Split(numel // (size * stride), size, stride)
            if along(way.dims, o + 1, access.offset, split) != way.shared:
                return None
            found.add(split)
        return found.pop() if len(found) == 1 else None

    def _read(self, value: int, reader: int, *, in_place: bool) -> None:
        i, way = self.program.body[reader], self.ways[reader]
        reads = zip(way.in_place, i.operands, strict=False)
        self.ways[reader] = replace(way, in_place=tuple(in_place if a.value == value else was for was, a in reads))


def _as_read(program: Program) -> Program:
    """The same program, but sums that are only read with their dims in another order are stored in that order.

    So the gradient of a weight that is used transposed is held in the same shards as the weight.
    """
    body, kept = [*program.body], {commit.operands[0].value for commit in program.commits} | {len(program.body) - 1}
    for index, readers in enumerate(_readers(program)):
        i = body[index]
        reads = [(reader, a) for reader in readers for a in body[reader].operands if a.value == index]
        if not (i.is_f32_sum and i.opcode == Opcode.REDUCE) or index in kept or not reads:
            continue
        dims, strides = [*zip(i.shape, contiguous(i.shape), strict=True)], reads[0][1].strides
        read = [*zip(body[readers[0]].shape, strides, strict=False)]
        if read == dims or sorted(read) != sorted(dims) or len({stride for _, stride in dims}) < len(dims):
            continue
        if any(a.strides != strides or a.offset or body[reader].opcode != Opcode.MAP for reader, a in reads):
            continue
        order = [dims.index(dim) for dim in read]
        shape, end = tuple(i.shape[at] for at in order), len(dims)
        operands = [replace(a, strides=(*(a.strides[at] for at in order), *a.strides[end:])) for a in i.operands]
        body[index] = replace(i, shape=shape, operands=tuple(operands))
        for reader in readers:
            own = contiguous(body[reader].shape)
            new = (replace(a, strides=own) if a.value == index else a for a in body[reader].operands)
            body[reader] = replace(body[reader], operands=tuple(new))
    return replace(program, body=tuple(body))


def _readers(program: Program) -> list[list[int]]:
    """The instructions that read each value."""
    found: list[list[int]] = [[] for _ in program.body]
    for index, i in enumerate(program.body):
        for value in {a.value for a in i.operands}:
            found[value].append(index)
    return found


def _gathers_from_data(program: Program) -> set[int]:
    """The instructions that gather from the job's data, or from what is computed from it alone."""
    data, found = set(), set()
    for index, i in enumerate(program.body):
        if i.opcode == Opcode.GATHER and i.operands[0].value in data:
            found.add(index)
        elif i.function == SourceKind.DATA if i.opcode == Opcode.SOURCE else any(a.value in data for a in i.operands):
            data.add(index)
    return found


def _space(i: Instruction) -> tuple[list[Dim], int, list[tuple[int, int, int]]]:
    """The index space of an instruction, its number of output dims, and the box of a `window`, by dim."""
    rank, own = len(i.shape), contiguous(i.shape)
    if isinstance(i.params, isa.WindowParams):
        strides = zip(own, *(a.strides for a in i.operands), strict=True)
        dims = [Dim(size, steps) for size, steps in zip(i.shape, strides, strict=True)]
        return dims, rank, list(zip(i.params.lo, i.params.hi, i.params.step, strict=True))
    extra = [i.params.strides] if isinstance(i.params, isa.IotaParams) else []
    extra += [i.params.match] if isinstance(i.params, isa.ScatterParams) else []
    outputs = coalesce(i.shape, [own, *(a.strides[:rank] for a in i.operands), *extra])
    none = (0,) * len(i.reduction)
    summed = coalesce(i.reduction, [none, *(a.strides[rank:] for a in i.operands), *(none for _ in extra)])
    return [*outputs, *summed], len(outputs), []


_Space = tuple[list[Dim], int, list[tuple[int, int, int]]]


def _cut(dims: list[Dim], rank: int, boxes: list[tuple[int, int, int]], operand: int, split: Split) -> _Space:
    """`cut` for a whole index space. A dim of a `window` is cut only if the box takes all of it."""
    if not boxes:
        outputs = cut(dims[:rank], operand, split)
        return [*outputs, *cut(dims[rank:], operand, split)], len(outputs), boxes
    found: list[Dim] = []
    inside: list[tuple[int, int, int]] = []
    for dim, box in zip(dims, boxes, strict=True):
        pieces = cut([dim], operand, split) if box == (0, dim.size, 1) else [dim]
        found += pieces
        inside += [box] if len(pieces) == 1 else [(0, piece.size, 1) for piece in pieces]
    return found, len(found), inside


class _Local:
    """Writes the program of one worker."""

    def __init__(self, partition: Partition, worker: int) -> None:
        self.partition, self.worker = partition, worker
        self.body: list[Instruction] = []
        self.held: list[int] = []
        """The local value of each value of the program."""
        self.gathered: dict[int, int] = {}

    def program(self) -> Program:
        given = self.partition.program
        for index, i in enumerate(given.body):
            self.held.append(self._write(index, i))
        commits = [self._commit(i) for i in given.commits]
        if (loss := self._whole(len(given.body) - 1)) != len(self.body) - 1:
            self._put(_map(MapFunction.COPY, DType.F32, (), Access(loss, 0, ())))
        return Program(tuple(self.body), tuple(commits))

    def _put(self, i: Instruction) -> int:
        self.body.append(i)
        return len(self.body) - 1

    def _share(self, size: int) -> tuple[int, int]:
        return share(size, self.worker, self.partition.workers)

    def _shape(self, split: Split) -> tuple[int, int, int]:
        begin, end = self._share(split.size)
        return split.outer, end - begin, split.inner

    def _whole(self, value: int) -> int:
        """The local value that holds all of a value."""
        split, held = self.partition.layouts[value], self.held[value]
        if split is None:
            return held
        if value not in self.gathered:
            i = self.partition.program.body[value]
            self.gathered[value] = self._put(_gather(i, held, i.shape, split))
        return self.gathered[value]

    def _write(self, index: int, i: Instruction) -> int:
        way, split = self.partition.ways[index], self.partition.layouts[index]
        if way.shared is None:
            if i.opcode == Opcode.SOURCE:
                return self._put(i if split is None else replace(i, shape=self._shape(split)))
            return self._put(replace(i, operands=tuple(replace(a, value=self._whole(a.value)) for a in i.operands)))
        begin, end = self._share(way.dims[way.shared].size)
        sizes = [end - begin if at == way.shared else d.size for at, d in enumerate(way.dims)]
        operands = tuple(self._access(i, o, way, begin) for o in range(len(i.operands)))
        shape, summed = tuple(sizes[: way.rank]), tuple(sizes[way.rank :])
        local = replace(i, shape=shape, reduction=summed, operands=operands, params=self._params(i, way, begin, sizes))
        if way.shared < way.rank:
            return self._put(local)
        if i.is_f32_sum:
            shape = local.shape if split is None else self._shape(split)
            everywhere = self.partition.everywhere(local, split)
            return self._put(
                SharedSum(opcode=Opcode.REDUCE, dtype=i.dtype, shape=shape, operands=operands, mine=local, split=split,
                          everywhere=everywhere)
            )  # fmt: skip
        # A maximum or a sum of integers: first each worker's own, then those of all.
        workers, count = self.partition.workers, local.numel
        every = self._put(_gather(local, self._put(local), (workers, count), Split(1, workers, count)))
        read = (Access(every, 0, (*contiguous(shape), count)),)
        return self._put(replace(local, reduction=(workers,), operands=read))

    def _access(self, i: Instruction, operand: int, way: Way, begin: int) -> Access:
        assert way.shared is not None
        access, strides = i.operands[operand], tuple(d.strides[operand + 1] for d in way.dims)
        if way.in_place[operand]:
            split = self.partition.layouts[access.value]
            assert split is not None
            offset, strides = localized(access.offset, strides, split, self._shape(split)[1])
            return Access(self.held[access.value], offset, strides)
        value = self._whole(access.value)
        if isinstance(i.params, isa.ScatterParams) and operand == 1 and (match := way.dims[way.shared].strides[-1]):
            value = self._moved(value, -begin * match)
        return Access(value, access.offset + begin * strides[way.shared], strides)

    def _moved(self, value: int, by: int) -> int:
        """A value of integers, each increased by the same number."""
        bits, count = isa.SourceConst(bits=by % 2**64), self.body[value].numel
        constant = Instruction(opcode=Opcode.SOURCE, function=SourceKind.CONST, dtype=DType.I64, params=bits)
        read = (Access(value, 0, (1,)), Access(self._put(constant), 0, (0,)))
        return self._put(_map(MapFunction.ADD, DType.I64, (count,), *read))

    def _params(self, i: Instruction, way: Way, begin: int, sizes: Sequence[int]) -> isa.Params:
        assert way.shared is not None
        match i.params:
            case isa.WindowParams():
                boxes = [(0, sizes[at], 1) if at == way.shared else box for at, box in enumerate(way.boxes)]
                lo, hi, step = zip(*boxes, strict=True)
                return replace(i.params, lo=lo, hi=hi, step=step)
            case isa.IotaParams():
                strides = tuple(d.strides[-1] for d in way.dims)
                return isa.IotaParams(offset=i.params.offset + begin * strides[way.shared], strides=strides)
            case isa.RandomParams(stream=stream):
                return RandomFrom(stream=stream, first=begin * way.dims[way.shared].strides[_RESULT])
            case isa.ScatterParams():
                return isa.ScatterParams(match=tuple(d.strides[-1] for d in way.dims[: way.rank]))
            case isa.GatherParams() if way.in_place[0]:
                split = self.partition.layouts[i.operands[0].value]
                assert split is not None
                _, (stride,) = localized(0, (i.params.index_stride,), split, self._shape(split)[1])
                return replace(i.params, index_stride=stride)
        return i.params

    def _commit(self, i: Instruction) -> Instruction:
        value = i.operands[0].value
        if (split := self.partition.state_layout(i.shape)) is None or self.partition.layouts[value] == split:
            held = self._whole(value) if split is None else self.held[value]
        else:
            begin, _ = self._share(split.size)
            read = Access(self._whole(value), begin * split.inner, (split.numel, split.inner, 1))
            held = self._put(_map(MapFunction.COPY, i.dtype, self._shape(split), read))
        shape = i.shape if split is None else self._shape(split)
        return replace(i, shape=shape, operands=(Access(held, 0, contiguous(shape)),))


def _map(function: MapFunction, dtype: DType, shape: tuple[int, ...], *read: Access) -> Instruction:
    return Instruction(opcode=Opcode.MAP, function=function, dtype=dtype, shape=shape, operands=read)


def _gather(i: Instruction, held: int, shape: tuple[int, ...], split: Split) -> AllGather:
    """Makes a value of an instruction's dtype whole."""
    read = (Access(held, 0, ()),)
    return AllGather(opcode=Opcode.GATHER, dtype=i.dtype, shape=shape, operands=read, split=split, origin=i.origin)
