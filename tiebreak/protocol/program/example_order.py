"""The examples that each step of a program reads, from the program alone: the rows, the data entries and the order.

Programs made by the engine's capture draw `each` examples a step. In step s (counted from 0), place j of the step's
batches has draw g = s * each + j: example p(g mod n) of epoch g div n, where p is the keyed shuffle of that epoch, or
the identity. An example is read by gathers, whose index is this order. Any other program is refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers import philox
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.isa import Instruction, MapFunction, Opcode, SourceKind
from tiebreak.protocol.program.program import Program

MAX_EPOCHS: Final = 1 << 20
"""The most epochs that are looked at; each takes about a tenth of a millisecond."""

Elements = tuple[int, int, int]
"""(first, stride, count): example r has `count` elements of an entry, from `first + r * stride` on."""


class ExampleOrder(NamedTuple):
    """The order in which steps read examples.

    each: examples in a step. epoch: examples in an epoch. shuffle: None if examples are read in the order of the data.
    seed: the data entry with the seed of the shuffle.
    """

    each: int
    epoch: int
    shuffle: isa.ShuffleParams | None
    seed: str

    def reads(self, example: int, steps: int, seed: int) -> Iterator[tuple[int, int, int]]:
        """Every read of an example in the first `steps` steps, exactly: step and epoch, from 1, and place, from 0.

        The time grows with the number of epochs alone. Raises `ConfigurationError` above `MAX_EPOCHS`.
        """
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
    return _order(body, index.value) if whole else None, elements, range(index.offset, index.offset + i.shape[0])


_FORM: Final = {
    "": (Opcode.MAP, MapFunction.MOD), "0": (Opcode.MAP, MapFunction.ADD), "00": (Opcode.MAP, MapFunction.MUL),
    "000": (Opcode.SOURCE, SourceKind.STEP), "001": (Opcode.SOURCE, SourceKind.CONST), "01": (Opcode.IOTA, 0),
    "1": (Opcode.SOURCE, SourceKind.CONST),
}  # fmt: skip
"""The instructions that compute (step * each + place) mod n, by the numbers of the operands that lead to them."""


def _order(body: Sequence[Instruction], value: int) -> ExampleOrder | None:
    """The order in which a value numbers examples; None if it is no such value."""
    i, shuffle, seed, counted = body[value], None, "", list[isa.Access]()
    found = {"": i}
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
