"""The accumulator tree of one element: time per term, memory, and the cost of each later move of a walk.

    python -m benchmarks.accumulate [LOG2_TERMS ...]

It runs on one thread. "One at a time" is the integer reference; the tree over its accumulators keeps every level.
"""

import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click
import numpy as np
import torch

from benchmarks.table import Row, interleaved, placed, publish
from tiebreak.protocol.commitments.accumulator_tree import AccumulatorTree
from tiebreak.protocol.program.accumulator import encode
from tiebreak.protocol.program.isa import Access, DType, Instruction, Opcode, ReduceFunction, ScatterParams
from tiebreak.protocol.program.reference import accumulators, unpack
from tiebreak.protocol.tags import Tag, tagged_hash
from tiebreak.protocol.trees import Tree

LENGTHS: Final = (20, 24)
KINDS_AT: Final = 20
REFERENCE_AT: Final = 14
Case = tuple[Instruction, list[bytes], tuple[DType, ...]]


def instruction(
    *dtypes: DType, dims: tuple[int, ...], function: int = ReduceFunction.SUM, opcode: Opcode = Opcode.REDUCE
) -> Instruction:
    """A reduction to one element, or to one bin of a `scatter_sum`.

    With several dims, the terms are read in another order than they are stored in.
    """
    strides, step = [], 1
    for dim in dims:
        strides.append(step)
        step *= dim
    scatter = opcode == Opcode.SCATTER_SUM
    return Instruction(
        opcode=opcode,
        function=function,
        dtype=DType.F32 if dtypes[0] == DType.F32 and function != ReduceFunction.ARGMAX else DType.I64,
        shape=(2,) if scatter else (),
        reduction=dims,
        operands=tuple(Access(k, 0, ((0,) if scatter else ()) + tuple(strides)) for k in range(len(dtypes))),
        params=ScatterParams(match=(1,)) if scatter else None,
    )


def data_of(dtype: DType, terms: int, seed: int) -> bytes:
    """Normal random numbers, or integers 0 and 1 (indices of the bins)."""
    random = np.random.default_rng(seed)
    if dtype == DType.F32:
        return random.standard_normal(terms, dtype=np.float32).astype("<f4").tobytes()
    return random.integers(0, 2, terms).astype("<i8").tobytes()


def cases(log2: int) -> Iterator[tuple[str, Case]]:
    """A reduction of 2^log2 terms of every kind, each with its name."""
    f32, i64, flat, cube = DType.F32, DType.I64, (1 << log2,), (1 << 5, 1 << log2 - 9, 1 << 4)
    made = {
        "sum of products": instruction(f32, f32, dims=flat),
        "sum of products, 3 dims": instruction(f32, f32, dims=cube),
        "sum": instruction(f32, dims=flat),
        "scatter_sum": instruction(f32, i64, dims=flat, opcode=Opcode.SCATTER_SUM),
        "i64 sum": instruction(i64, dims=flat),
        "max": instruction(f32, dims=flat, function=ReduceFunction.MAX),
        "i64 max": instruction(i64, dims=flat, function=ReduceFunction.MAX),
        "argmax": instruction(f32, dims=flat, function=ReduceFunction.ARGMAX),
    }
    for name, i in made.items():
        first = i64 if name.startswith("i64") else f32
        dtypes = (first, i64 if name == "scatter_sum" else f32)[: len(i.operands)]
        yield name, (i, [data_of(t, 1 << log2, k) for k, t in enumerate(dtypes)], dtypes)


def tree(case: Case) -> AccumulatorTree:
    """The tree as a party of a game makes it."""
    i, tensors, dtypes = case
    return AccumulatorTree.of(i, 0, tensors, dtypes)


def one_at_a_time(case: Case) -> Tree:
    """The tree by the integer reference."""
    i, tensors, dtypes = case
    elements = [unpack(dtype, data) for dtype, data in zip(dtypes, tensors, strict=True)]
    found = accumulators(i, 0, lambda operand, where: elements[operand][where], dtypes)
    return Tree([tagged_hash(Tag.ACCUMULATOR, encode(a)) for a in found])


def kind_rows() -> list[Row]:
    rows = []
    for name, case in cases(KINDS_AT):
        seconds = interleaved({name: lambda case=case: tree(case)}, repeats=3)[name]  # type: ignore[misc]
        unit, target = "ns/term", "<= 1,000" if name == "sum of products" else ""
        rows.append(Row(metric="tree", case=name, value=seconds / (1 << KINDS_AT) * 1e9, unit=unit, target=target))
    name, case = next(cases(REFERENCE_AT))
    assert tree(case).root == one_at_a_time(case).root
    seconds = interleaved({name: lambda: one_at_a_time(case)}, repeats=3)[name]
    rows.append(Row(metric="one at a time", case=name, value=seconds / (1 << REFERENCE_AT) * 1e9, unit="ns/term"))
    return rows


def length_rows(log2: int) -> list[Row]:
    """Rows for a sum of products: the tree, its memory besides the operands, and the recomputation of a block."""
    case = next(cases(log2))[1]
    started = time.perf_counter()
    made = tree(case)
    seconds = time.perf_counter() - started
    again = interleaved({"proof": lambda: proof(made, made.count // 3)}, repeats=5)["proof"]
    held = peak(lambda: tree(case))
    aims = {24: ("< 60", "< 500")}.get(log2, ("", ""))
    name = f"2^{log2} terms"
    return [
        Row(metric="tree", case=name, value=seconds, unit="s", target=aims[0]),
        Row(metric="memory beside the operands", case=name, value=held / 1e6, unit="MB", target=aims[1]),
        Row(metric="an accumulator and its siblings", case=name, value=again * 1e3, unit="ms"),
    ]


def peak(run: Callable[[], object]) -> int:
    """The most bytes that Python and numpy hold during a call, beyond what they held before it."""
    tracemalloc.start()
    run()
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def proof(of: AccumulatorTree, leaf: int) -> None:
    """Opens a leaf whose block, like its neighbour's, is no longer held."""
    of._block.cache_clear()
    of.at(leaf)
    of.proof(leaf)


@click.command()
@placed
@click.argument("lengths", nargs=-1, type=click.IntRange(REFERENCE_AT, 32))
def main(lengths: tuple[int, ...], folder: Path) -> None:
    """Measure sums of 2^LENGTHS terms (default: 20 and 24)."""
    torch.set_num_threads(1)
    rows = [row for log2 in lengths or LENGTHS for row in length_rows(log2)] + kind_rows()
    publish(
        "accumulate", rows, f"kinds at 2^{KINDS_AT} terms, the reference at 2^{REFERENCE_AT}; one thread", folder=folder
    )


if __name__ == "__main__":
    main()
