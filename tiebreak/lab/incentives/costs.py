"""The cost of a job of a given size, and the limit that it meets first when it grows.

Sizes are counted without running anything: `counts_of` counts any captured program, and `transformer_counts` gives the
same numbers in closed form for GPT-2 of any size, which is how a number of parameters becomes a training job. Times,
memory and gas follow from this repository's measurements (`measured`). All seconds are CPU seconds of one core, unless
the user gives the seconds of a step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from math import ceil, prod
from typing import Any, Final

from tiebreak.engine.run.cost import cost_of
from tiebreak.engine.run.retention import ALL, Keep
from tiebreak.lab.incentives.measured import FIGURES, WORST, cost, dispute, first_writes
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.program.isa import MAX_INSTRUCTIONS, MAX_OPERANDS, MAX_TERMS, TERMS_PER_LEAF, DType, Opcode
from tiebreak.protocol.program.program import Program, ProgramLimits
from tiebreak.protocol.trees import depth_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Counts of one step of a program. Bytes are those of tensors as they are committed."""

    instructions: int
    entries: int
    """Tensors of the state: parameters, moments, buffers and counters."""
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


def counts_of(program: Program) -> StepCounts:
    """The counts of one step of a validated program."""
    products = terms = elements = 0
    for i in program.body:
        if i.opcode == Opcode.SOURCE:
            continue
        elements += i.numel
        if i.opcode == Opcode.REDUCE and len(i.operands) == 2:
            products += 2 * prod(i.index_space)
        elif i.opcode == Opcode.REDUCE:
            terms += prod(i.index_space)
        elif i.opcode == Opcode.SCATTER_SUM:
            terms += prod(i.reduction)
    cost = cost_of(program)
    return StepCounts(
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


def transformer_counts(model: Transformer, *, steps: int, interval: int) -> StepCounts:
    """The counts that `counts_of` finds in the captured step of a job; live_bytes agrees within a few per cent.

    The job's data hold a learning rate for each step, and its state holds the losses since the last checkpoint.

    Valid for two or more heads. With one head some constants of the program coincide, and it has a few instructions
    less.
    """
    layers, d, h, vocabulary, n = model.layers, model.width, model.heads, model.vocabulary, model.tokens
    t, c, b, p = model.sequence, model.context, model.batch, model.parameters
    scores = b * h * t * t
    elements = layers * (171 * n * d + 168 * d * d + 182 * d + 20 * n + 19 * scores + 6 * b * h * t)
    elements += 21 * n * d + 11 * n * vocabulary + 16 * vocabulary * d + 14 * c * d + 2 * t * d
    return StepCounts(
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


RECORD_BYTES: Final = 76
MAX_RECORDS_BYTES: Final = 1 << 30
MAX_METRICS_BYTES: Final = 1 << 30
"""The same as in `tiebreak.engine.run.directory`, which needs torch. A test compares them."""
ENTRY_BYTES: Final = 110
"""Approximate bytes of a state file's header for each tensor (name, dtype, shape and place as JSON)."""
DAY: Final = 86_400
MOST: Final = {"parameters": 10**15, "steps": 10**12, "jobs": 10**12}
"""The value up to which each direction of growth is followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs of one kind.

    keep: which checkpoints stay on disk. window: seconds within which a trainer posts its next head. disputed: share of
    jobs with a dispute. step_seconds: seconds of a step in plain FP32 PyTorch on the user's device; all times are then
    this number multiplied by the measured ratio to plain PyTorch.
    """

    counts: StepCounts
    steps: int
    interval: int
    jobs: int = 1
    levels: int = 5
    keep: Keep = ALL
    window: int = DAY
    disputed: float = 0.01
    step_seconds: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.interval <= self.steps:
            raise ConfigurationError(f"expected a checkpoint every 1 to {self.steps} steps, got {self.interval}")
        if self.jobs < 1 or not 0 <= self.disputed <= 1:
            raise ConfigurationError(
                f"expected at least one job and a share between 0 and 1, got {self.jobs} and {self.disputed}"
            )
        if self.step_seconds is not None and not 0 < self.step_seconds < float("inf"):
            raise ConfigurationError(f"expected seconds of a step above zero, got {self.step_seconds}")

    @property
    def checkpoints(self) -> int:
        return -(-self.steps // self.interval)

    @property
    def kept(self) -> int:
        """States on disk at the end: the initial one, the kept ones, and the newest."""
        return 1 + -(-self.checkpoints // self.keep.every) if self.keep.every else 2

    @property
    def gap(self) -> int:
        """The largest number of steps from a kept state to the beginning of a disputed segment."""
        before = (self.checkpoints - 1) * self.interval
        return min(before, (self.keep.every - 1) * self.interval) if self.keep.every else before


def _estimate(what: str, unit: str) -> Any:
    return field(metadata={"what": what, "unit": unit})


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """The costs of the work. `WHAT` has the meaning and the unit of each field."""

    plain_step: float = _estimate("a step in plain FP32 PyTorch", "s")
    trainer_step: float = _estimate("a step of the trainer, policy exact", "s")
    worst_step: float = _estimate("the same step on the worst data that were found", "s")
    checkpoint: float = _estimate("hashing and writing a checkpoint", "s")
    training: float = _estimate("training, and auditing, one whole job", "s")
    replay_move: float = _estimate("the slowest move of a dispute: replaying a segment", "s")
    dispute_time: float = _estimate("all that a party computes in a dispute", "s")
    memory: float = _estimate("a trainer's peak memory", "bytes")
    state_bytes: float = _estimate("one checkpoint", "bytes")
    run_bytes: float = _estimate("a run directory", "bytes")
    transactions: float = _estimate("transactions of a dispute, at most", "")
    dispute_gas: float = _estimate("gas of a dispute, at most", "gas")
    heads: float = _estimate("heads posted in a job", "")
    job_gas: float = _estimate("gas of a job without a dispute", "gas")
    all_auditing: float = _estimate("auditing all jobs", "s")
    all_bytes: float = _estimate("run directories of all jobs", "bytes")
    all_gas: float = _estimate("gas of all jobs and disputes", "gas")

    def named(self) -> dict[str, float]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


WHAT: Final[dict[str, tuple[str, str]]] = {f.name: (f.metadata["what"], f.metadata["unit"]) for f in fields(Estimates)}


def costs(work: Workload) -> Estimates:
    counts, board = work.counts, FIGURES["board"]
    features = {name: getattr(counts, name) for name in ("instructions", "products", "terms", "elements")}
    plain, step, hashed = (cost("seconds", f"{kind} step", features) for kind in ("plain", "trainer", "hashed"))
    if work.step_seconds is not None:
        # Hashing runs on the CPU wherever the step runs.
        plain, step, hashed = work.step_seconds, work.step_seconds * step / plain, hashed - step
        hashed = step + max(0.0, hashed)
    tensors = {"tensors": counts.entries, "bytes": counts.state_bytes}
    checkpoint = cost("seconds", "hash state", tensors) + cost("seconds", "write state", tensors)
    training = step * work.steps + checkpoint * work.checkpoints
    # From the kept state to the disputed step, whose values are hashed; then once more for each value that is opened.
    ids = (work.interval - 1) * step + hashed
    tree = cost("seconds", "accumulator tree", {"trees": 1, "terms": counts.longest})
    held = {"process": 1, "state": counts.state_bytes + counts.data_bytes, "live": counts.live_bytes}
    files = {"metrics": work.steps, "head": work.checkpoints, "program": counts.instructions}
    states = (counts.state_bytes + ENTRY_BYTES * counts.entries) * work.kept
    run_bytes = states + counts.data_bytes + RECORD_BYTES * work.checkpoints + cost("bytes", "files", files)
    heads = max(1, min(work.checkpoints, ceil(training / work.window)))
    transactions, game = dispute_of(work)
    posted = board["create"] + board["accept"] + heads * board["head"]
    life = posted + board["settle"] + board["withdraw"]
    return Estimates(
        plain_step=plain,
        trainer_step=step,
        worst_step=step * float(WORST),
        checkpoint=checkpoint,
        training=training,
        replay_move=max(step * (work.gap + work.interval), ids),
        dispute_time=step * (work.gap + work.interval) + ids + (1 + MAX_OPERANDS) * step + tree,
        memory=cost("bytes", "memory", held),
        state_bytes=counts.state_bytes,
        run_bytes=run_bytes,
        transactions=transactions,
        dispute_gas=game,
        heads=heads,
        job_gas=life,
        all_auditing=training * work.jobs,
        all_bytes=run_bytes * work.jobs,
        all_gas=(life + work.disputed * game) * work.jobs,
    )


def dispute_of(work: Workload) -> tuple[int, float]:
    """The largest (transactions, gas) of a dispute: over the longest sum, with the most expensive proof."""
    c = work.counts
    chunks = depth_of(-(-c.largest * DType.F32.size // CHUNK_BYTES))
    terms = depth_of(-(-c.longest // TERMS_PER_LEAF))
    run, steps = depth_of(work.checkpoints), depth_of(min(work.interval, work.steps))
    return walk(work.levels, run=run, steps=steps, values=c.half_depth + 1, chunks=chunks, terms=terms)


def walk(levels: int, *, run: int, steps: int, values: int, chunks: int, terms: int) -> tuple[int, float]:
    """(transactions, gas) of a walk down trees of these depths, where a move shows `levels` levels of a tree.

    In each tree a descent and a selection take turns. Each tree but the run tree begins with an opening, which already
    shows the first nodes.
    """
    game = dispute(levels)
    rounds = [-(-depth // levels) for depth in (run, steps, values, chunks, terms)]
    opened = [kind for kind, depth in zip(("steps", "values", "tensor", "terms"), (steps, values, chunks, terms),
                                          strict=True) if depth]  # fmt: skip
    moves = {"challenge": 1, "descend": sum(rounds) - len(opened), "select": sum(rounds), "open_chunk": 1,
             "select_element": 1, "prove": 1, **{f"open_{kind}": 1 for kind in opened}}  # fmt: skip
    counted = sum(game[kind] * number for kind, number in moves.items())
    dearer = max(0, FIGURES["dearest proof"] - game["prove"])
    return sum(moves.values()), counted * float(first_writes(game)) + dearer


# ---------------------------------------------------------------- what gives way first


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """The means of a user.

    days: to train one job, and to audit all. chain_share: share of the chain's gas in that time.
    """

    memory_bytes: float = 128e9
    disk_bytes: float = 4e12
    days: float = 30
    auditor_cores: float = 1
    replay_time: float = 3600
    block_gas: float = 30e6
    block_seconds: float = 12
    chain_share: float = 0.01

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigurationError(f"expected {name} above zero, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class CostLimit:
    """A limit on one cost, how much of it the work needs, and what would lift it."""

    name: str
    needed: float
    limit: float
    unit: str
    lift: str

    @property
    def share(self) -> float:
        """The needed share of the limit. Above 1 it is exceeded."""
        return self.needed / self.limit


def loads(work: Workload, m: Equipment) -> list[CostLimit]:
    """Every limit, whether of the user's means or of this version, sorted by share with the highest first."""
    c, n, own = costs(work), work.counts, ProgramLimits()
    time, gas = m.days * DAY, m.block_gas / m.block_seconds * m.chain_share * m.days * DAY
    raised = "raise `ProgramLimits` in tiebreak.protocol.program.program, which each machine sets for itself"
    found = [
        CostLimit("memory of a machine", c.memory, m.memory_bytes, "bytes",
             "share each step among workers (--workers)"),
        CostLimit("time to train one job", c.training, time, "s", "use a faster device (--step-seconds)"),
        CostLimit("time to audit all jobs", c.all_auditing, time * m.auditor_cores, "s",
             "add auditors, which can replay different segments, or audit a sample"),
        CostLimit("replay time of one move, on the worst data", c.replay_move * float(WORST), m.replay_time, "s",
             "shorten the checkpoint interval, keep every checkpoint, or agree on a longer replay time"),
        CostLimit("disk for all runs", c.all_bytes, m.disk_bytes * m.auditor_cores, "bytes",
             "keep fewer checkpoints (--keep), lengthen the interval, or delete the states of settled jobs"),
        CostLimit("gas of the chain", c.all_gas, gas, "gas", "use a cheaper chain"),
        CostLimit("elements of a step", n.elements, own.total_elements, "", raised),
        CostLimit("terms of a step", n.products / 2 + n.terms, own.total_terms, "", raised),
        CostLimit("elements of a value", n.largest, own.value_elements, "", raised),
        CostLimit("instructions of a program", n.instructions, MAX_INSTRUCTIONS, "", "needs a change of the protocol"),
        CostLimit("terms of a sum", n.longest, MAX_TERMS, "", "needs a change of the protocol"),
        CostLimit("bytes of records", RECORD_BYTES * work.checkpoints, MAX_RECORDS_BYTES, "bytes",
             "lengthen the interval"),
        CostLimit("bytes of metrics", FIGURES["bytes"]["files"]["metrics"] * work.steps, MAX_METRICS_BYTES, "bytes",
             "raise `MAX_METRICS_BYTES` in tiebreak.engine.run.directory"),
    ]  # fmt: skip
    return sorted(found, key=lambda load: -load.share)


def transformer_work(work: Workload, parameters: int, *, sequence: int, batch: int) -> Workload:
    """The same work on a GPT-2 with about this many parameters."""
    model = transformer_near(parameters, sequence=sequence, batch=batch)
    return replace(work, counts=transformer_counts(model, steps=work.steps, interval=work.interval))


def first_limit(
    grown: Callable[[int], Workload], start: int, most: int, means: Equipment
) -> tuple[int | None, CostLimit | None]:
    """The extent to which work can grow, and the limit that it then meets.

    (None, limit): the limit is exceeded already. (most, None): no limit is met up to `most`.
    """

    def worst(size: int) -> CostLimit:
        return loads(grown(size), means)[0]

    if worst(start).share > 1:
        return None, worst(start)
    low, high = start, start
    while high < most and worst(high).share <= 1:
        low, high = high, min(most, high * 4)
    if worst(high).share <= 1:
        return most, None
    while high > low + 1 and high > low * 1.001:
        middle = min(high - 1, max(low + 1, round((low * high) ** 0.5)))
        low, high = (middle, high) if worst(middle).share <= 1 else (low, middle)
    return low, worst(high)
