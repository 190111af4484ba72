"""What every model family must pass: capture's check, training, audit, and a referee for each kind of instruction.

`check(task)` does all of it on one task:
(1) the captured steps' losses, gradients, updates and new buffers against eager PyTorch, as `check.checked` does;
(2) some steps of training by the engine, and an audit of them: a replay with every sum in a random order, another
    number of threads, and compiled chains switched off, whose every step record must be the same;
(3) for one random instruction of each kind, a random element of what the engine computed, judged by the referee in
    integers from openings alone.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from tests.engine.lowering_bench import make_task, stepped
from tiebreak import SGD, Task
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c.threads import limited
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.data.tensors import identities, tensor_bytes
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.interpreter import Interpreter, State
from tiebreak.protocol.commitments.records import identify, state_leaf
from tiebreak.protocol.game import proof, referee
from tiebreak.protocol.program.accumulator import encode
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, Instruction, Opcode, SourceKind
from tiebreak.protocol.program.program import Program, half_and_half
from tiebreak.protocol.program.reference import accumulators, unpack
from tiebreak.protocol.program.rounding import NEAREST
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree


def task_of(model: nn.Module, loss: Callable[..., Tensor], data: Mapping[str, Tensor], size: int = 2) -> Task:
    optimizer = SGD(lr=0.05, momentum=0.9)
    return make_task(model, data, size, loss=loss, optimizer=optimizer, steps=4, seed=5)


@dataclass(frozen=True)
class Trained:
    captured: Captured
    losses: list[float]
    kinds: set[str]
    """Names of the kinds of instructions that were refereed."""

    @property
    def program(self) -> Program:
        return self.captured.program


def check(task: Task, cases: Callable[..., None], steps: int = 3) -> Trained:
    """All of the module's plan; `cases` counts what was refereed."""
    captured = checked(task)
    losses, records, state = train(captured, Arithmetic(), steps)
    assert records == audit(captured, steps)
    return Trained(captured, losses, check_referee(captured, state, steps + 1, cases))


# (2) training and audit


def train(captured: Captured, arithmetic: Arithmetic, steps: int) -> tuple[list[float], list[Digest], State]:
    losses, records = [], []
    for step, result in enumerate(islice(stepped(captured, arithmetic), steps), 1):
        losses.append(result.loss)
        records.append(make_record(step, result.state, result.loss_bits).digest)
    return losses, records, result.state


def audit(captured: Captured, steps: int) -> list[Digest]:
    """Step records of a replay: permuted sums, two threads, no compiled chains."""
    arithmetic = Arithmetic(permute=9)
    arithmetic.chains = None
    with limited(2):
        return train(captured, arithmetic, steps)[1]


# (3) the referee


@dataclass(frozen=True)
class Traced:
    """Every value of one step, and the tree over them."""

    program: Program
    step: int
    values: dict[int, bytes]
    ids: list[Digest]
    tree: Tree

    def element(self, value: int, index: int) -> int:
        dtype = self.program.body[value].dtype
        return unpack(dtype, self.raw(value, index))[0]

    def raw(self, value: int, index: int) -> bytes:
        size = self.program.body[value].dtype.size
        return self.values[value][index * size : (index + 1) * size]

    def openings(self, instruction: Instruction, index: int, leaf: int | None) -> referee.Openings:
        """Verified openings of what the referee needs."""
        tensors, chunks = referee.build_openings(
            self.program, instruction, index, leaf, body_tree=self.tree, tensor_bytes=self.values.__getitem__
        )
        depth = self.program.half_depth
        root = self.tree.node(depth, 0)
        return referee.Openings(body_root=root, half_depth=depth, tensors=tensors, chunks=chunks)


def trace(captured: Captured, state: State, step: int) -> Traced:
    """Step `step` from the state before it, whole."""
    program = captured.program
    values: dict[int, bytes] = {}
    machine = Interpreter(program, Arithmetic())

    def observe(leaf: int, tensor: Tensor) -> Tensor:
        values[leaf] = bytes(tensor_bytes(tensor))
        return tensor

    result = machine.step(step, state, machine.to_device(captured.data), observe)
    ids = [identify(i.dtype, i.shape, values[number]) for number, i in enumerate(program.body)]
    commits = [state_leaf(name, digest) for name, digest in identities(result.state).items()]
    return Traced(program, step, values, ids, half_and_half(ids, commits, program.half_depth))


def kind(program: Program, i: Instruction) -> str:
    types = "".join(t.name[0] for t in program.operand_dtypes(i))
    function = {Opcode.SOURCE: SourceKind(i.function).name} if i.opcode == Opcode.SOURCE else {}
    return f"{i.opcode.name} {function.get(i.opcode, i.function)} {types}->{i.dtype.name[0]}"


def check_referee(captured: Captured, state: State, step: int, cases: Callable[..., None]) -> set[str]:
    """(3) One random element of one random instruction of each kind. Returns the kinds that were judged."""
    traced = trace(captured, state, step)
    rng = random.Random(traced.program.root)
    by_kind: defaultdict[str, list[int]] = defaultdict(list)
    for number, i in enumerate(traced.program.body):
        named = i.opcode == Opcode.SOURCE and i.function in (SourceKind.STATE, SourceKind.DATA)
        if not named:  # what those are is shown by a proof of membership, nothing is computed
            by_kind[kind(traced.program, i)].append(number)
    for name in sorted(by_kind):
        number = rng.choice(by_kind[name])
        _judge(traced, number, rng)
        cases()
    return set(by_kind)


def _judge(t: Traced, number: int, rng: random.Random) -> None:
    i = t.program.body[number]
    index = rng.randrange(i.numel)
    what = f"instruction {number} ({kind(t.program, i)}, {i.origin}), element {index}"
    if i.opcode == Opcode.SOURCE:
        assert referee.judge_scalar_source(i, t.step) == t.ids[number], what
    elif i.is_reduction and i.terms > TERMS_PER_LEAF:
        _judge_sum(t, i, index, t.raw(number, index), rng, what)
    else:
        bits = referee.judge_element(i, index, t.openings(i, index, None), step=t.step)
        assert bits.to_bytes(i.dtype.size, "little") == t.raw(number, index), what


def _judge_sum(t: Traced, i: Instruction, index: int, committed: bytes, rng: random.Random, what: str) -> None:
    """The whole sum in integers gives the committed element, and the referee finds the same leaf of partial sums."""

    def read(operand: int, where: int) -> int:
        return t.element(i.operands[operand].value, where)

    held = [encode(a) for a in accumulators(i, index, read, t.program.operand_dtypes(i))]
    assert proof.finish(i, held[-1], NEAREST)[1] == committed, what
    leaf = rng.randrange(len(held))
    before = held[leaf - 1] if leaf else b""
    assert referee.judge_leaf(i, index, leaf, before, t.openings(i, index, leaf)) == held[leaf], f"{what}, leaf {leaf}"


# Small data


def tokens(seed: int, *shape: int, vocabulary: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, vocabulary, shape))


def randomised(model: nn.Module, seed: int = 0, scale: float = 0.05) -> nn.Module:
    """The model with every parameter redrawn, ones and zeros jittered too, so that no gradient vanishes by symmetry."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.from_numpy(rng.standard_normal(tuple(parameter.shape), dtype=np.float32))
            parameter.copy_(parameter + scale * noise if parameter.ndim < 2 else 2 * scale * noise)
    return model.train()
