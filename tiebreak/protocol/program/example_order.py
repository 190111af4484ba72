"""The examples that each step of a program reads, from the program alone: the rows, the data entries and the order.

Programs made by the engine's capture draw `each` examples a step. In step s (counted from 0), place j of the step's
batches has draw g = s * each + j: example p(g mod n) of epoch g div n, where p is the keyed shuffle of that epoch, or
the identity. An example is read by gathers, whose index is this order. A program whose order is listed in an entry of
its data (`list_examples`) gathers row s of that entry instead. Any other program is refused.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Final, NamedTuple

from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers import philox
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.isa import Instruction, MapFunction, Opcode, SourceKind
from tiebreak.protocol.program.program import Program

MAX_EPOCHS: Final = 1 << 20
"""The most epochs that are looked at; each takes about a tenth of a millisecond."""
LIST: Final = "example_order"
"""The data entry with the list of a program that had none."""
_LIST_KINDS: Final = (SourceKind.DATA, Opcode.SOURCE, SourceKind.STEP)

Elements = tuple[int, int, int]
"""(first, stride, count): example r has `count` elements of an entry, from `first + r * stride` on."""


class ExampleOrder(NamedTuple):
    """The order in which steps read examples.

    each: examples in a step. epoch: examples in an epoch, or in the list. shuffle: None if examples are read in the
    order of the data or of a list. seed: the data entry with the seed of the shuffle. listed: that with the list.
    """

    each: int
    epoch: int
    shuffle: isa.ShuffleParams | None
    seed: str
    listed: str = ""

    def reads(self, example: int, steps: int, seed: int, rows: Iterable[int] = ()) -> Iterator[tuple[int, int, int]]:
        """Every read of an example in the first `steps` steps, exactly: step and epoch, from 1, and place, from 0.

        rows: the list, if there is one. The time grows with its length, or the number of epochs. Raises
        `ConfigurationError` above `MAX_EPOCHS`.
        """
        if self.listed:
            draws = (draw for draw, read in enumerate(rows) if read == example and draw < steps * self.each)
            yield from ((draw // self.each + 1, 1, draw % self.each) for draw in draws)
            return
        if (epochs := -(-steps * self.each // self.epoch)) > MAX_EPOCHS:
            raise ConfigurationError(f"expected at most {MAX_EPOCHS:,} epochs, got {epochs:,}")
        for epoch in range(epochs):
            at, shuffle = example, self.shuffle
            if shuffle is not None:
                at = philox.shuffle(example, seed, epoch, shuffle.n, shuffle.stream, inverse=True)
            step, place = divmod(epoch * self.epoch + at, self.each)
            if at < self.epoch and step < steps:
                yield step + 1, epoch + 1, place


def example_order(program: Program) -> tuple[ExampleOrder, dict[str, Elements]]:
    """The order, and an example's elements by data entry. Raises `ConfigurationError` for a program with another one.

    Each instruction that reads such an entry must be a gather of whole examples in this order, and all gathers of it
    together must read all examples of the step.
    """
    body, places = program.body, dict[tuple[str, ExampleOrder | None, Elements], set[int]]()
    for i in body:
        for number, operand in enumerate(i.operands):
            source = body[operand.value]
            if isinstance(source.params, isa.Slot) and source.function == SourceKind.DATA:
                order, elements, read = _read(body, i, number)
                places.setdefault((source.params.name, order, elements), set()).update(read)
    found = {name: elements for name, order, elements in places if order}
    orders = {order for _, order, _ in places if order}
    whole = all(len(read) == order.each for (_, order, _), read in places.items() if order)
    if len(orders) != 1 or not whole or sum(name in found for name, _, _ in places) != len(found):
        raise ConfigurationError("expected a program whose steps read whole examples in one order, got another")
    return orders.pop(), dict(sorted(found.items()))


def _read(body: Sequence[Instruction], i: Instruction, number: int) -> tuple[ExampleOrder | None, Elements, range]:
    """The order, elements and places of the examples that an instruction gathers; None for any other operand."""
    if number or not isinstance(i.params, isa.GatherParams) or not i.shape:
        return None, (0, 0, 0), range(0)
    (table, index), row = i.operands, isa.row_major(i.shape[1:])
    wanted = zip((0, *row), (1, *(0 for _ in row)), strict=True)
    strides = zip(i.shape, zip(table.strides, index.strides, strict=True), wanted, strict=True)
    whole = all(size == 1 or found == expected for size, found, expected in strides)
    elements = table.offset, i.params.index_stride, i.numel // i.shape[0]
    return order_of(body, index.value) if whole else None, elements, range(index.offset, index.offset + i.shape[0])


_FORM: Final = {
    "": (Opcode.MAP, MapFunction.MOD), "0": (Opcode.MAP, MapFunction.ADD), "00": (Opcode.MAP, MapFunction.MUL),
    "000": (Opcode.SOURCE, SourceKind.STEP), "001": (Opcode.SOURCE, SourceKind.CONST), "01": (Opcode.IOTA, 0),
    "1": (Opcode.SOURCE, SourceKind.CONST),
}  # fmt: skip
"""The instructions that compute (step * each + place) mod n, by the numbers of the operands that lead to them."""


def order_of(body: Sequence[Instruction], value: int) -> ExampleOrder | None:
    """The order in which a value numbers examples; None if it is no such value."""
    i, shuffle, seed, counted = body[value], None, "", list[isa.Access]()
    found = {"": i}
    if isinstance(i.params, isa.GatherParams):
        table, step = (body[operand.value] for operand in i.operands)
        is_list = (table.function, step.opcode, step.function) == _LIST_KINDS and len(table.shape) == 2
        if is_list and i == _row_of_list(i.operands[0].value, i.operands[1].value, table.shape):
            return ExampleOrder(i.numel, table.numel, None, "", getattr(table.params, "name", ""))
        return None
    if isinstance(i.params, isa.ShuffleParams):
        found[""], source, quotient = (body[operand.value] for operand in i.operands)
        same = quotient == replace(found[""], function=MapFunction.FLOORDIV)
        if not same or not isinstance(source.params, isa.Slot) or source.function != SourceKind.DATA or source.shape:
            return None
        shuffle, seed, counted = i.params, source.params.name, [i.operands[0], i.operands[2]]
    for way, kind in _FORM.items():
        found[way] = body[found[way[:-1]].operands[int(way[-1])].value] if way else found[way]
        if (found[way].opcode, found[way].function) != kind:
            return None
    counted += [found[""].operands[0], found["0"].operands[1]]
    match found["001"].params, found["1"].params, found["01"].params:
        case isa.SourceConst(bits=each), isa.SourceConst(bits=n), isa.IotaParams(offset=0, strides=(1,)):
            straight = all(one.offset == 0 and (one.strides == (1,) or each == 1) for one in counted)
            if straight and n > 0 and i.shape == found[""].shape == (each,):
                return ExampleOrder(each, n, shuffle, seed)
    return None


def _row_of_list(table: int, step: int, shape: tuple[int, ...]) -> Instruction:
    """The instruction that reads the example numbers of a step, a row of the list in a data entry of this shape."""
    reads, (steps, each) = (isa.Access(table, 0, (1,)), isa.Access(step, 0, (0,))), shape
    params = isa.GatherParams(index_stride=each, bound=steps)
    return Instruction(opcode=Opcode.GATHER, dtype=isa.DType.I64, shape=(each,), operands=reads, params=params)


def list_examples(program: Program, steps: int, rows: int) -> tuple[Program, str]:
    """The program over fewer rows that reads them in the order of a list, and the name of the data entry with the list.

    The list is int64 (steps, examples in a step). All else is as before; the instructions that computed the order stay,
    though nothing reads them. Raises `ConfigurationError` for a program whose examples are no rows of arrays.
    """
    (order, elements), spec, body = example_order(program), program.data_spec(), [*program.body]
    if any(part != (0, *[prod(spec[entry][1][1:])] * 2) for entry, part in elements.items()):
        raise ConfigurationError("expected examples that are rows of arrays, got windows of one long array")
    at = next(n for n in range(len(body)) if order_of(body, n) == order)
    name, shift = order.listed or LIST, not order.listed
    slots = {entry: slot for slot, entry in enumerate(sorted({*spec, name}))}

    def changed(i: Instruction) -> Instruction:
        shape, params = i.shape, i.params
        if isinstance(params, isa.Slot) and (i.opcode, i.function) == (Opcode.SOURCE, SourceKind.DATA):
            shape = (rows, *shape[1:]) if params.name in elements else shape
            params = replace(params, slot=slots[params.name])
        elif isinstance(params, isa.GatherParams) and order_of(program.body, i.operands[1].value) == order:
            params = replace(params, bound=rows)
        operands = tuple(replace(one, value=one.value + (shift and one.value >= at)) for one in i.operands)
        return replace(i, shape=shape, params=params, operands=operands)

    body, commits = [*map(changed, body)], [*map(changed, program.commits)]
    if shift:
        slot, shape = isa.Slot(slot=slots[name], name=name), (steps, order.each)
        step = program.sources(SourceKind.STEP)[0]
        table = replace(body[step], function=SourceKind.DATA, shape=shape, params=slot)
        body[at : at + 1] = table, _row_of_list(at, step, shape)
    found = Program(tuple(body), tuple(commits))
    found.validate()
    return found, name
