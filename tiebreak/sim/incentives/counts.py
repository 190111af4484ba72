"""The counts on which a step's costs depend, obtained without running anything.

`counts_of` counts any captured program. `transformer_counts` gives the same numbers in closed form for GPT-2 of any
size, which is how a number of parameters becomes a training job. Tests compare it with captured programs.
"""

from dataclasses import dataclass
from math import prod

from tiebreak.engine.run.cost import cost_of
from tiebreak.protocol.program.isa import Opcode, ReduceFunction
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.trees import depth_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of one step of a program. Bytes are those of tensors as they are committed."""

    instructions: int
    entries: int
    """Tensors of the state."""
    products: int
    """Floating-point operations of all sums of products."""
    terms: int
    """Terms of all other reductions."""
    elements: int
    """Elements of all values that the step computes, not of those that it reads."""
    state_bytes: int
    data_bytes: int
    live_bytes: int
    """The largest number of bytes that the values of a step occupy at once."""
    longest: int
    """Terms of the longest reduction."""
    largest: int
    """Elements of the largest value."""

    @property
    def half_depth(self) -> int:
        """D of SPEC section 4: the depth of each half of the value tree."""
        return max(depth_of(self.instructions), depth_of(self.entries))


def counts_of(program: Program) -> Counts:
    """The counts of one step of a validated program."""
    products = terms = elements = 0
    for i in program.body:
        if i.opcode == Opcode.SOURCE:
            continue
        elements += i.numel
        if i.opcode == Opcode.REDUCE and i.function == ReduceFunction.SUM and len(i.operands) == 2:
            products += 2 * prod(i.index_space)
        elif i.opcode == Opcode.REDUCE:
            terms += prod(i.index_space)
        elif i.opcode == Opcode.SCATTER_SUM:
            terms += prod(i.reduction)
    cost = cost_of(program)
    return Counts(
        instructions=len(program.body),
        entries=len(program.commits),
        products=products,
        terms=terms,
        elements=elements,
        state_bytes=cost.state_bytes,
        data_bytes=cost.data_bytes,
        live_bytes=cost.live_bytes,
        longest=max(i.terms for i in program.body),
        largest=max(i.numel for i in program.body),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A GPT-2 of any size (tied embeddings, dropout), trained with AdamW. `context`: number of positions.

    A step takes `batch` sequences of `sequence` tokens out of 4 * `batch` in the job's data.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    sequence: int
    batch: int

    @property
    def parameters(self) -> int:
        d = self.width
        return (self.vocabulary + self.context + 2) * d + self.layers * d * (12 * d + 13)

    @property
    def tokens(self) -> int:
        return self.sequence * self.batch


VOCABULARY = 50257
"""GPT-2's vocabulary size."""


def transformer_of(width: int, *, sequence: int, batch: int) -> Transformer:
    """The family that stands for "a model of P parameters": the proportions of GPT-2 and GPT-3, from one layer up.

    The ratio of width to layers is 64 up to GPT-2's 768 to 12, and grows to 128 at GPT-3's 12288 to 96. Heads are 64
    wide. The vocabulary is GPT-2's; for narrower models it shrinks in proportion to the width.
    """
    layers = max(1, round(width / 64)) if width <= 768 else 12 + round((width - 768) / 137)
    return Transformer(
        layers=layers,
        width=width,
        heads=width // 64 if width >= 256 else 2,
        vocabulary=min(VOCABULARY, 66 * width),
        context=sequence,
        sequence=sequence,
        batch=batch,
    )


def transformer_near(parameters: int, *, sequence: int, batch: int) -> Transformer:
    """The member of the family with the nearest number of parameters."""
    low, high = 1, 2
    while _sized(high, sequence, batch).parameters < parameters:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if _sized(middle, sequence, batch).parameters < parameters:
            low = middle
        else:
            high = middle
    made = (_sized(low, sequence, batch), _sized(high, sequence, batch))
    return min(made, key=lambda model: abs(model.parameters - parameters))


def _sized(number: int, sequence: int, batch: int) -> Transformer:
    """The family's member number `number` by size: the widths are 16, 32 ... 240, 256, 320, 384 ..."""
    width = 16 * number if number <= 16 else 64 * (number - 12)
    return transformer_of(width, sequence=sequence, batch=batch)


def transformer_counts(model: Transformer, *, steps: int, interval: int) -> Counts:
    """What `counts_of` finds in the captured step of a job; live_bytes agrees within a few per cent.

    The job's data hold a learning rate for each step, and its state holds the losses since the last checkpoint.

    Valid for two or more heads. With one head some constants of the program coincide, and it has a few instructions
    less.
    """
    layers, d, h, vocabulary, n = model.layers, model.width, model.heads, model.vocabulary, model.tokens
    t, c, b, p = model.sequence, model.context, model.batch, model.parameters
    scores = b * h * t * t
    elements = layers * (171 * n * d + 168 * d * d + 182 * d + 20 * n + 19 * scores + 6 * b * h * t)
    elements += 21 * n * d + 11 * n * vocabulary + 16 * vocabulary * d + 14 * c * d + 2 * t * d
    return Counts(
        instructions=189 + 338 * layers,
        entries=15 + 36 * layers,
        products=layers * (72 * n * d * d + 12 * n * t * d + 4 * n * d) + 6 * n * vocabulary * d + 2 * n * d,
        terms=layers * (19 * n * d + 4 * scores) + 6 * n * d + 2 * n + 3 * n * vocabulary + n + t,
        elements=elements + 28 * d + 25 * n + t + 5 * b + 49,
        state_bytes=12 * p + 8 + 4 * interval,
        data_bytes=64 * n + 8 + 4 * t * t + 4 * steps,
        live_bytes=4
        * max(3 * p + 8 * d * d, layers * (30 * n * d + 3 * scores) + 13 * n * vocabulary // 4 + 3 * n * d),
        longest=max(vocabulary, 4 * d, n),
        largest=max(n * vocabulary, vocabulary * d, scores, 4 * n * d),
    )
