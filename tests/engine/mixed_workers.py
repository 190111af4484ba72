"""Every family of instruction that workers share, for workers whose back-ends differ (no tests in here).

A sum is written as `einsum` writes it. Its terms lie along `t`, which the workers hold in shards.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import product
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from tests.engine.lowering_bench import make_task
from tests.engine.together import train_alone, train_together
from tests.protocol.instructions import committed, mapped, reduced, source
from tiebreak import Adam
from tiebreak.engine.arithmetic.plain.backend import TorchBackend
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.distributed import partition
from tiebreak.engine.distributed.partition import AllGather, Partition, SharedSum
from tiebreak.protocol.program.isa import Access, DType, MapFunction, Opcode, ReduceFunction, SourceKind, row_major
from tiebreak.protocol.program.program import Program

SUMS = [
    "tr,tc->rc", "tr,tc->cr", "tr,ct->rc",  # products, whose columns either operand has
    "tbr,tbc->brc", "tbr,tbc->bcr", "tbr,tbc->rbc", "tbr,tbc->rcb", "tbr,tbc->cbr",  # in batches, anywhere
    "tqr,tc->qcr", "tqr,tc->rcq", "tqr,tcs->sqcr",  # rows and columns of several dims, among each other
    "tr,t->r", "t,tc->c", "t,t->", "tr,tr->r", "tqr,tqr->rq",  # vectors, and one sum for each element
    "tr,tc->rcf", "tr,tc->fcr", "tr,tc->cfr",  # a dim of the result that nothing reads
    "trx,tc->rc", "tr,tcx->cr", "tr,tc->cr|u",  # terms that one operand reads, or none
    "tr->r", "t->", "tqr->rq", "tr->fr",
]  # fmt: skip
"""Rows and columns as long as each other first: exchanged bounds have one length whichever comes first."""
SIZES: list[dict[str, int]] = [
    {"t": 37, "r": 6, "c": 6, "b": 3, "q": 2, "s": 2, "f": 2, "x": 3, "u": 2},
    {"t": 13, "r": 9, "c": 2, "b": 2, "q": 4, "s": 3, "f": 3, "x": 2, "u": 3},
]
STEPS = 21
WAYS = ["in shards", "rounded by all", "gathered"]


def sum_of(spec: str, sizes: dict[str, int], dtype: DType, function: ReduceFunction) -> Program:
    """A sum, or an extreme, of state that the workers hold in shards; operands and result are committed."""
    read, result = spec.partition("->")[::2]
    result, _, unread = result.partition("|")
    operands = read.split(",")
    terms = [*dict.fromkeys(letter for one in operands for letter in one if letter not in result), *unread]
    shape, body = tuple(sizes[d] for d in result), []
    for n, one in enumerate(operands):
        body.append(source(SourceKind.STATE, "ab"[n], dtype, *(sizes[d] for d in one), slot=n))
    strides = [dict(zip(one, row_major(body[n].shape), strict=True)) for n, one in enumerate(operands)]
    reads = [Access(n, 0, tuple(own.get(d, 0) for d in (*result, *terms))) for n, own in enumerate(strides)]
    body.append(reduced(dtype, shape, tuple(sizes[d] for d in terms), *reads, function=function))
    names = [*"ab"[: len(operands)], "sum"]
    commits = [committed(name, dtype, body[n].shape, n, slot=n) for n, name in enumerate(names)]
    loss = source(SourceKind.STATE, "loss", DType.F32, slot=len(operands))
    commits.append(committed("loss", DType.F32, (), len(body), slot=len(commits)))
    copied = mapped(MapFunction.COPY, DType.F32, (), Access(len(body), 0, ()))
    return Program((*body, loss, copied), tuple(commits))


def values(program: Program, generator: torch.Generator, kind: str) -> dict[str, Tensor]:
    """Numbers whose sizes differ most along rows and columns, so that one's bounds are none for the other; or ties."""
    found = {}
    for n, (name, (dtype, shape)) in enumerate(program.state_spec().items()):
        x = torch.randn(shape, generator=generator)
        if kind == "ties" and name != "loss":
            x = torch.full(shape, 2.0**-24) if n == 0 else torch.ones(shape)
            x.view(-1)[:: 2 if n == 0 else 1] = 1.0
        elif name != "loss" and x.ndim:
            far = torch.arange(x.numel()).view(x.shape) % 13
            x *= 2.0 ** (5 * far if n == 0 else -3 * far).float()
        found[name] = (x * 1000).to(torch.int64) if dtype == DType.I64 else x
    return found


def cases() -> Iterator[tuple[str, Captured]]:
    """Programs with a name each."""
    generator = torch.Generator().manual_seed(11)
    for n, spec in enumerate(SUMS):
        for kind, sizes in zip(("far", "ties"), SIZES, strict=True):
            function = (ReduceFunction.SUM, ReduceFunction.SUM_BF16)[n % 3 == 2]
            program = sum_of(spec, sizes, DType.F32, function)
            yield f"{spec} {kind}", Captured(program, values(program, generator, kind), {})
    for dtype, function in ((DType.I64, ReduceFunction.SUM), (DType.F32, ReduceFunction.MAX)):
        program = sum_of("tr->r", SIZES[0], dtype, function)
        yield f"{function.name} of {dtype.name}", Captured(program, values(program, generator, "far"), {})


def agree(
    backends: Sequence[type[TorchBackend]], workers: int, turn: Any = nullcontext(), every: int = 1,  # noqa: B008
) -> int:  # fmt: skip
    """Asserts that such workers make what one makes; returns the number of sums that were shared.

    every: each case in that many is taken.
    """
    shared, families = 0, set[str]()
    for way, (name, given) in list(product(WAYS, cases()))[::every]:
        (result,) = (i.numel for i in given.program.body if i.opcode == Opcode.REDUCE)
        least = 1 if way == "in shards" else (result + 1) * workers**2
        everywhere = mock.patch.object(Partition, "everywhere", lambda *_, way=way: way == "rounded by all")
        with everywhere, mock.patch.object(partition, "LEAST", least):
            body = Partition(given.program, workers).local(0).body
            assert any(isinstance(i, SharedSum | AllGather) for i in body), name
            sums = [i for i in body if isinstance(i, SharedSum)]
            assert {(i.split is not None, i.everywhere) for i in sums} <= {
                (way == WAYS[0], way == WAYS[1]),
                (False,) * 2,
            }
            expected, _ = train_alone(given, 1, check_finite=False)
            records, _ = train_together(
                given, workers, 1, check_finite=False, backends=backends, turn=turn, permute=shared % 2 or None
            )
        assert records == expected, (name, way, backends)
        shared += len(sums)
        families |= {name} if sums else set()
    assert len(families) == len(SIZES) * len(SUMS) or every > 1
    return shared


def perceptron() -> Captured:
    """The weights between hidden layers are square, so their bounds have one length whichever operand comes first."""
    torch.manual_seed(4)
    layers = nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    x = torch.randn(256, 8)
    data = {"x": x, "y": x.square().sum(1, keepdim=True)}

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (model(x) - y).square().mean()

    return capture_task(make_task(nn.Sequential(*layers), data, 32, loss=loss, optimizer=Adam(lr=1e-2), steps=STEPS))
