"""Plans when each instruction of a program is executed, and which ones together. Pure analysis without tensors.

Values are pure, so a program may be executed in any order that computes operands before their uses. The plan:

1. *Sources* come first. Instructions that are neither sources nor elementwise (sums, gathers, ...: *barriers*) keep the
   program's order. The time between two barriers is a *gap*; gap g ends with barrier g.
2. An elementwise instruction is executed in the last gap that is early enough for all its uses. But if executing it
   frees more memory than its result takes (as when gradients are added up), it is executed in the first gap that has
   its operands.
3. Within a gap, elementwise instructions that read each other's results element by element form a *chain*, which is
   executed in one pass; results that are used only inside the chain need no memory. Instructions that read a result in
   another way (broadcast, permuted) belong to a later *level* of the gap, so a chain never waits for itself.
4. Finally, units that free at least as much memory as they add, not counting committed values, move up to where their
   operands are ready. The optimizer thus updates a parameter as soon as its gradient is known, and frees the gradient.
5. Where memory is slow beside arithmetic (on GPUs), a chain computes *again* what it would read from an earlier one, if
   all that this takes is small or read by it anyway. A dropout mask is thus drawn twice, and never stored. It may read
   one large value for that which is stored in any case, if this frees as much memory as that takes: an activation and
   its powers are made again from the product before it. A transcendental is computed again only in place of a store.
6. There, too, a maximum or a plain sum has a chain as its *prologue*, which makes the elements while they are read. A
   value that such a reduction reads is computed by all its readers and never stored, if fewer bytes are read and
   written then. So is exp(x - max) of a softmax, once for its sum and once for the quotient.

Everything is linear in the program's size except sorting, because programs come from strangers. Rules 5 and 6 add at
most `MAX_MEMBERS` instructions to a unit.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from tiebreak.engine.arithmetic.plan.chains import CHAINED, Chained, Unit
from tiebreak.engine.arithmetic.plan.sums import reads_each_once
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.isa import Access, DType, Instruction, Opcode, ReduceFunction, SourceKind
from tiebreak.protocol.program.program import Program

MAX_MEMBERS: Final = 64
"""The most instructions in one chain."""
EAGER_BYTES: Final = 1 << 20
"""An instruction that frees this many bytes more than its result takes is executed early (rule 2)."""
FEW: Final = 16
"""A value with this many times fewer elements than a chain is small (rule 5)."""
NEAR: Final = 8
"""A value may be read this many units later in place of another without taking memory for much longer (rule 6)."""
ROUNDS: Final = 4
"""The most times that instructions are added to a chain (rule 5)."""
SMALL_BYTES: Final = 1 << 16
"""Results of up to this many bytes are made as early as possible (rule 4)."""


def is_elementwise(instruction: Instruction, chained: Chained = CHAINED) -> bool:
    """Whether an instruction may be part of a chain: element k of its result needs only element k of its operands."""
    if instruction.opcode == Opcode.MAP:
        return instruction.function in chained
    return instruction.opcode in (Opcode.IOTA, Opcode.RANDOM)


def reads_in_place(access: Access, instruction: Instruction, operand: Instruction) -> bool:
    """Whether element k of the instruction reads element k of the operand, for every element of the operand."""
    plain = zip(instruction.shape, access.strides, isa.row_major(instruction.shape), strict=True)
    return (
        access.offset == 0
        and instruction.numel == operand.numel
        and all(stride == want for size, stride, want in plain if size > 1)
    )


def in_order(program: Program, wanted: Collection[int] | None = None) -> tuple[Unit, ...]:
    """The program's own order, one instruction at a time. wanted: leaves out what none of these values follows from."""
    needed = set(range(len(program.body)) if wanted is None else wanted)
    for index in reversed(range(len(program.body))):
        if index in needed:
            needed |= {operand.value for operand in program.body[index].operands}
    return with_lifetimes(program, [(index,) for index in sorted(needed)])


def plan(
    program: Program, chained: Chained = CHAINED, *, again: bool = False, prologues: bool = False
) -> tuple[Unit, ...]:
    """The order that the module describes, where these functions of `map` may be part of a chain.

    again: whether rule 5 holds. prologues: whether rule 6 does, too.
    """
    units = _Planner(program, chained).units()
    if not again:
        return with_lifetimes(program, units)
    repeated = _Repeated(program, units, chained)
    return with_lifetimes(program, *repeated.units(prologues=prologues))


class _Planner:
    """The working state of one `plan`; its lists have an item for each instruction, by index."""

    def __init__(self, program: Program, chained: Chained) -> None:
        self.body = program.body
        self.committed = {commit.operands[0].value for commit in program.commits} | {len(program.body) - 1}
        self.renewed = _renewed(program)
        self.users: list[list[int]] = [[] for _ in self.body]
        for index, instruction in enumerate(self.body):
            for value in {operand.value for operand in instruction.operands}:
                self.users[value].append(index)
        self.source = [i.opcode == Opcode.SOURCE for i in self.body]
        self.elementwise = [is_elementwise(i, chained) for i in self.body]
        self.bytes = [0 if self.source[n] else i.numel * i.dtype.size for n, i in enumerate(self.body)]
        self.barriers = [n for n in range(len(self.body)) if not self.source[n] and not self.elementwise[n]]
        self.gap = [0] * len(self.body)
        self.level = [0] * len(self.body)

    def units(self) -> list[tuple[int, ...]]:
        """The members of each unit, in the order of execution."""
        self._place()
        units: list[tuple[int, ...]] = [(n,) for n, is_source in enumerate(self.source) if is_source]
        units += self._between_barriers()
        return self._move_up(units)

    def _place(self) -> None:
        """Rules 1 and 2: the gap and the level of every elementwise instruction."""
        first, eager = self._earliest()
        number = {n: b for b, n in enumerate(self.barriers)}
        for index in range(len(self.body) - 1, -1, -1):
            if index in number:
                self.gap[index] = number[index]
            elif self.elementwise[index]:
                last = min((self.gap[u] for u in self.users[index]), default=len(number))
                self.gap[index] = first[index] if index in eager else last
                for user in self.users[index]:
                    if self.elementwise[user] and self.gap[user] == self.gap[index]:
                        under = self.level[user] + (not self._joined(index, user))
                        self.level[index] = max(self.level[index], under)

    def _joined(self, index: int, user: int) -> bool:
        """Whether `user` reads the result of `index` only element by element."""
        reads = [a for a in self.body[user].operands if a.value == index]
        return all(reads_in_place(a, self.body[user], self.body[index]) for a in reads)

    def _earliest(self) -> tuple[list[int], set[int]]:
        """The first gap that has an instruction's operands, and the instructions that are placed there (rule 2)."""
        first, freed, eager = [0] * len(self.body), [0] * len(self.body), set()
        barriers = 0
        for index, instruction in enumerate(self.body):
            operands = {operand.value for operand in instruction.operands}
            if not self.elementwise[index]:
                barriers += not self.source[index]
                first[index] = 0 if self.source[index] else barriers
                continue
            first[index] = max((first[p] for p in operands), default=0)
            for p in operands:
                if self.users[p] == [index] and p not in self.committed:
                    lazy = self.elementwise[p] and p not in eager and self._joined(p, index)
                    freed[index] += freed[p] if lazy else self.bytes[p]
            if freed[index] >= self.bytes[index] + EAGER_BYTES:
                eager.add(index)
        return first, eager

    def _between_barriers(self) -> list[tuple[int, ...]]:
        """Rule 3: the chains of each gap, higher levels first, followed by the gap's barrier."""
        parent = list(range(len(self.body)))

        def root(index: int) -> int:
            while parent[index] != index:
                parent[index] = index = parent[parent[index]]
            return index

        members = [n for n, found in enumerate(self.elementwise) if found]
        for index in members:
            for user in self.users[index]:
                same = self.gap[index] == self.gap[user] and self.level[index] == self.level[user]
                if self.elementwise[user] and same and self._joined(index, user):
                    parent[root(index)] = root(user)
        chains: dict[int, list[int]] = {}
        for index in members:
            chains.setdefault(root(index), []).append(index)
        placed: list[tuple[tuple[int, int, int], tuple[int, ...]]] = []
        for chain in chains.values():
            # SAFETY: a chain is cut in program order, so no piece ever waits for a later one.
            for begin in range(0, len(chain), MAX_MEMBERS):
                piece = tuple(chain[begin : begin + MAX_MEMBERS])
                placed.append(((self.gap[piece[0]], -self.level[piece[0]], piece[0]), piece))
        placed += [((b, 1, n), (n,)) for b, n in enumerate(self.barriers)]
        return [unit for _, unit in sorted(placed)]

    def _move_up(self, units: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Rule 4. A unit that moves is placed directly after the last unit that it needs.

        It stays after all readers of the old value of a state entry that it renews, so that it can reuse that memory.
        """
        key = [(-1, -1)] * len(self.body)
        order = []
        placed: set[int] = set()
        for position, unit in enumerate(units):
            inside = set(unit)
            operands = {a.value for n in unit for a in self.body[n].operands} - inside
            frees = sum(self.bytes[p] for p in operands - self.committed if inside.issuperset(self.users[p]))
            adds = sum(self.bytes[n] for n in inside - self.committed if not inside.issuperset(self.users[n]))
            place = position
            if adds <= max(SMALL_BYTES, frees):
                old = {self.renewed[n] for n in unit if n in self.renewed}
                readers = {user for value in old for user in self.users[value]} - inside
                after = operands | readers if readers <= placed else operands
                place = max((key[n][0] for n in after), default=-1)
            for index in unit:
                key[index] = (place, position)
            placed |= inside
            order.append(((place, position), unit))
        return [unit for _, unit in sorted(order)]


Way = tuple[frozenset[int], frozenset[int]]
"""The members that a chain needs to compute a value, and the large values that it would have to read, too."""


class _Repeated:
    """The units of a plan while instructions are added that they compute again (rules 5 and 6)."""

    def __init__(self, program: Program, units: Sequence[tuple[int, ...]], chained: Chained) -> None:
        self.body = program.body
        self.kept = {commit.operands[0].value for commit in program.commits} | {len(self.body) - 1}
        self.entries = frozenset(program.sources(SourceKind.STATE))
        self.elementwise = [is_elementwise(i, chained) for i in self.body]
        self.inside = [set(unit) for unit in units]
        self.again: list[set[int]] = [set() for _ in units]
        self.readers: dict[int, set[int]] = {}
        """The units, by position, that read a value which they do not compute."""
        self.last: dict[int, int] = {}
        """The last unit that ever read a value."""
        for position, unit in enumerate(units):
            self._read(unit, position)

    def units(self, *, prologues: bool) -> tuple[list[tuple[int, ...]], list[set[int]]]:
        """The members of each unit, and those among them that it computes again."""
        chains = [p for p, inside in enumerate(self.inside) if self.elementwise[next(iter(inside))]]
        for position in reversed(chains):
            for _ in range(ROUNDS):
                if not self._repeat(position):
                    break
        for position in reversed(chains):  # what nobody reads any more is taken out
            self._forget(self.inside[position] - self._needed(position), position)
        if prologues:
            made_by = {n: p for p in chains for n in self.inside[p] - self.again[p]}
            for value in sorted(made_by, reverse=True):
                self._spread(value, made_by[value])
        found = [
            (tuple(sorted(inside)), again) for inside, again in zip(self.inside, self.again, strict=True) if inside
        ]
        return [unit for unit, _ in found], [again for _, again in found]

    def _operands(self, members: Iterable[int]) -> set[int]:
        return {a.value for n in members for a in self.body[n].operands}

    def _read(self, members: Iterable[int], position: int) -> None:
        for operand in self._operands(members) - self.inside[position]:
            self.readers.setdefault(operand, set()).add(position)
            self.last[operand] = max(position, self.last.get(operand, 0))

    def _repeat(self, position: int) -> bool:
        """Lets a chain compute some of what it reads, if that pays; returns whether it does."""
        ways, inside = dict[int, Way | None](), self.inside[position]
        by_large: dict[frozenset[int], list[int]] = {}
        for value in sorted(self._operands(inside) - inside):
            way = self._way(value, position, ways)
            if way is not None and len(way[1]) <= 1:
                by_large.setdefault(way[1], []).append(value)
        for large, values in by_large.items():
            gone = {value for value in values if self.readers[value] == {position}} - self.kept
            # A large value may be read if it lies in memory anyway, and nothing is written over it.
            held = [n for n in large if not self.elementwise[n] or n in self.kept or self.readers.get(n)]
            if len(held) < len(large) or any(self.body[n].opcode == Opcode.SOURCE for n in large):
                continue
            if any(self._bytes([n]) > self._bytes(gone) for n in large):
                continue
            found = [
                way[0] for value in values if (way := ways[value]) is not None and self._is_cheap(way[0], value in gone)
            ]
            wanted = frozenset[int]().union(*found)
            if wanted and len(inside) + len(wanted) <= MAX_MEMBERS and self._in_place(wanted | inside):
                self.again[position] |= wanted - inside
                inside |= wanted
                for value in wanted:
                    self.readers.get(value, set()).discard(position)
                self._read(wanted, position)
                return True
        return False

    def _way(self, value: int, position: int, ways: dict[int, Way | None]) -> Way | None:
        """The way in which a chain could compute a value; None if there is none. `ways` has those known already."""
        if value not in ways:
            ways[value] = None
            if self.elementwise[value] and len(ways) <= MAX_MEMBERS:
                wanted, large = {value}, set[int]()
                for operand in self._operands([value]) - self.inside[position]:
                    few = self.body[operand].numel
                    if few == 1 or few * FEW <= self.body[value].numel or position in self.readers.get(operand, ()):
                        continue
                    way = self._way(operand, position, ways)
                    if way is None or len(way[1]) > 1:
                        large.add(operand)
                    else:
                        wanted |= way[0]
                        large |= way[1]
                ways[value] = frozenset(wanted), frozenset(large)
        return ways[value]

    def _in_place(self, members: Collection[int]) -> bool:
        """Whether members read each other element by element."""
        reads = ((a, self.body[n]) for n in members for a in self.body[n].operands if a.value in members)
        return all(reads_in_place(access, i, self.body[access.value]) for access, i in reads)

    def _is_cheap(self, members: Iterable[int], gone: bool) -> bool:
        """Whether members take less than reading a result, or no more than storing it, too, which is `gone` then."""
        return gone or not any(self.body[n].function in isa.TRANSCENDENTALS for n in members)

    def _bytes(self, values: Iterable[int]) -> int:
        return sum(self.body[n].numel * self.body[n].dtype.size for n in values)

    def _bytes_read(self, members: set[int]) -> int:
        return self._bytes(self._operands(members) - members)

    def _needed(self, position: int, gone: int = -1) -> set[int]:
        """The members of a chain that somebody still reads if nobody outside it reads `gone`."""
        inside = self.inside[position].copy()
        used = Counter(operand for n in inside for operand in self._operands([n]))
        for index in sorted(inside, reverse=True):
            stored = index not in self.again[position] and index != gone and bool(self.readers.get(index))
            if not used[index] and not stored and index not in self.kept:
                inside.remove(index)
                used.subtract(self._operands([index]))
        return inside

    def _forget(self, members: set[int], position: int) -> None:
        """Takes members out of a unit, and it from the readers of what only they read."""
        inside = self.inside[position]
        inside -= members
        self.again[position] &= inside
        for operand in self._operands(members) - self._operands(inside):
            self.readers.get(operand, set()).discard(position)

    def _spread(self, value: int, maker: int) -> None:
        """Rule 6: lets all readers of a value compute it, if a reduction is among them and that pays."""
        readers, wanted, waiting = sorted(self.readers.get(value, ())), set[int](), [value]
        while waiting:  # the members of the chain by which it computes the value
            wanted.add(index := waiting.pop())
            waiting += (self._operands([index]) & self.inside[maker]) - wanted
        if value in self.kept or not any(self._takes_prologue(p, value) for p in readers):
            return
        left, units = self._needed(maker, value), [(p, self.inside[p] | wanted) for p in readers]
        again = len(readers) + (value in left) - 1
        if not self._is_cheap(wanted, again <= 1) or not all(self._may_hold(p, inside) for p, inside in units):
            return
        read = self._operands(wanted) - wanted
        longer = {n for n in read if self.last[n] < readers[-1] - NEAR}
        if any(n in self.entries and self.last[n] < readers[-1] for n in read):
            return  # their memory may be used again after their last reader
        moved = sum(self._bytes_read(i) - self._bytes_read(self.inside[p]) for p, i in [*units, (maker, left)])
        if max(moved + 1, self._bytes(longer)) > self._bytes([value]):
            return
        for position, inside in units:
            self.again[position] |= inside - self.inside[position]
            self.inside[position] |= inside
            self._read(inside, position)
        self._forget(self.inside[maker] - left, maker)
        self.readers[value] = set()

    def _takes_prologue(self, position: int, value: int) -> bool:
        """Whether a unit is a reduction that can have a prologue which computes a value."""
        i, dtype = self.body[max(self.inside[position])], self.body[value].dtype
        fits = dtype == DType.F32 or (dtype == DType.I64 and i.function == ReduceFunction.MAX)
        return fits and i.opcode == Opcode.REDUCE and reads_each_once(i, self.body[value].numel)

    def _may_hold(self, position: int, members: set[int]) -> bool:
        """Whether a unit can consist of these members: a prologue reads something."""
        chain = {n for n in members if self.elementwise[n]}
        if chain < members and (not self._operands(chain) - chain or not self._takes_prologue(position, max(chain))):
            return False
        return len(members) <= MAX_MEMBERS and self._in_place(chain)


def replacements(
    program: Program, units: Sequence[Unit], chained: Chained = CHAINED, *, values: bool = False, least: int = 0
) -> dict[int, int]:
    """Maps each result of a chain that can reuse the memory of an operand to that operand.

    Nothing after the chain may read the operand, and the chain itself may read it only in place. Either the operand is
    the old value of a state entry, and the result the new one; or, with `values`, it is any result of the same dtype,
    and the result has `least` bytes and is made once.
    """
    renewed, found = _renewed(program), dict[int, int]()
    made = Counter(n for unit in units for n in unit.outputs)
    for unit in units:
        if not is_elementwise(program.body[unit.members[-1]], chained):
            continue
        reads = ((program.body[n], a) for n in unit.members for a in program.body[n].operands)
        moved = {a.value for i, a in reads if not reads_in_place(a, i, program.body[a.value])}
        ends = {value for dying in unit.dying for value in dying} - moved
        found |= {n: renewed[n] for n in unit.outputs if renewed.get(n) in ends}
        if not values:
            continue
        free = sorted(n for n in ends - set(unit.members) if program.body[n].opcode != Opcode.SOURCE)
        for result in (n for n in unit.outputs if n not in found and made[n] == 1):
            dtype = program.body[result].dtype
            if program.body[result].numel * dtype.size < least:
                continue
            if (operand := next((n for n in free if program.body[n].dtype == dtype), None)) is not None:
                free.remove(operand)
                found[result] = operand
    return found


def _renewed(program: Program) -> dict[int, int]:
    """Maps each value committed once, as the new value of a state entry, to the source of the entry's old value."""
    old = {slot_name(program.body[n]): n for n in program.sources(SourceKind.STATE)}
    commits = Counter(commit.operands[0].value for commit in program.commits)
    return {
        commit.operands[0].value: old[slot_name(commit)]
        for commit in program.commits
        if slot_name(commit) in old and commits[commit.operands[0].value] == 1
    }


def slot_name(instruction: Instruction) -> str:
    """The name of the entry that a source reads, or that a commit writes."""
    assert isinstance(instruction.params, isa.Slot)  # the program was validated
    return instruction.params.name


def with_lifetimes(
    program: Program, units: Sequence[tuple[int, ...]], again: Sequence[Collection[int]] | None = None
) -> tuple[Unit, ...]:
    """The units with their outputs and the values that die after each member.

    Committed values and the loss never die. again: the members of each unit that another unit computes, too, and makes
    for all others. A value that two units make otherwise is not held from its last reader before the second to that.
    """
    live = {commit.operands[0].value for commit in program.commits} | {len(program.body) - 1}
    repeated: Sequence[Collection[int]] = [()] * len(units) if again is None else again
    found = []
    for unit, repeats in zip(reversed(units), reversed(repeated), strict=True):
        outputs = tuple(n for n in unit if n in live and n not in repeats)
        read, dying = {*live, *repeats}, []
        for index in reversed(unit):
            ends = dict.fromkeys(n for n in (*(a.value for a in program.body[index].operands), index) if n not in read)
            read.update(ends)
            dying.append(tuple(ends))
        live |= read.difference(unit, repeats)
        live.difference_update(outputs)
        found.append(Unit(unit, outputs, tuple(reversed(dying))))
    return tuple(reversed(found))
