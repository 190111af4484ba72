"""What is trained: a program that was captured, or GPT-2 of any number of parameters, with its dearest dispute."""

from dataclasses import dataclass

from tiebreak.engine.capture.compile import MODEL
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Access, DType, Instruction, Opcode, ReduceFunction
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.trees import depth_of
from tiebreak.sim.scale.counts import Counts, Transformer, counts_of, transformer_counts, transformer_near
from tiebreak.sim.scale.walks import Operand, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A training step of some size. target: its longest sum, whose last element is disputed, and what that reads."""

    name: str
    parameters: int
    counts: Counts
    target: Instruction
    reads: tuple[Operand, ...]
    leaf: int

    def place(self, *, levels: int, steps: int, interval: int) -> Place:
        """The last element, summed up in the end, of the last step but one of a job's last segment."""
        checkpoints = -(-steps // interval)
        segment = steps - (checkpoints - 1) * interval
        return Place(
            levels=levels,
            checkpoints=checkpoints,
            segment=segment,
            half_depth=self.counts.half_depth,
            state_depth=depth_of(self.counts.entries),
            data_depth=depth_of(max(1, self.counts.data_entries)),
            target=self.target,
            reads=self.reads,
            step=max(1, steps - 1),
            interval=interval,
            leaf=self.leaf,
            element=self.target.numel - 1,
            term_leaf=max(0, -(-self.target.terms // 4) - 1),
        )


def program_subject(program: Program, name: str) -> Subject:
    """A captured program. Raises `ConfigurationError` if it sums nothing up: then nothing of it is a training step."""
    sums = [
        number
        for number, i in enumerate(program.body)
        if i.opcode == Opcode.REDUCE and i.function == ReduceFunction.SUM and i.dtype == DType.F32 and i.terms > 4
    ]
    if not sums:
        raise ConfigurationError(f"expected a program with sums of more than four terms, got {name}")
    leaf = max(sums, key=lambda n: (program.body[n].terms, program.body[n].numel))
    target = program.body[leaf]
    reads = tuple(
        Operand(value=o.value, dtype=program.body[o.value].dtype, shape=program.body[o.value].shape)
        for o in target.operands
    )
    spec = program.state_spec()
    parameters = sum(Operand(value=0, dtype=d, shape=s).numel for k, (d, s) in spec.items() if k.startswith(MODEL))
    return Subject(name=name, parameters=parameters, counts=counts_of(program), target=target, reads=reads, leaf=leaf)


def transformer_subject(parameters: int, *, sequence: int, batch: int, steps: int, interval: int) -> Subject:
    """GPT-2 with about this many parameters. Its longest sum: the gradient that the output layer hands down."""
    model = transformer_near(parameters, sequence=sequence, batch=batch)
    return of_transformer(model, transformer_counts(model, steps=steps, interval=interval))


def of_transformer(model: Transformer, counts: Counts) -> Subject:
    """A member of the family; counts: its step's."""
    tokens, width, vocabulary = model.tokens, model.width, model.vocabulary
    last = counts.instructions - 1
    target = Instruction(
        opcode=Opcode.REDUCE,
        function=ReduceFunction.SUM,
        dtype=DType.F32,
        shape=(tokens, width),
        reduction=(vocabulary,),
        operands=(Access(last // 2, 0, (vocabulary, 0, 1)), Access(0, 0, (0, 1, width))),
    )
    reads = (
        Operand(value=last // 2, dtype=DType.F32, shape=(tokens, vocabulary)),
        Operand(value=0, dtype=DType.F32, shape=(vocabulary, width)),
    )
    name = f"GPT-2 of {model.layers} layers, {model.width} wide"
    return Subject(
        name=name, parameters=model.parameters, counts=counts, target=target, reads=reads, leaf=last // 2 + 1
    )
