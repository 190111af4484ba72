"""Compiles the Triton kernels as launches on an H100 would, with every form of arguments, where there is none.

`python -m tests.engine.launches` prints how many launches there were. In a process of its own, because it tells Triton
of a driver that does not exist.
"""

import sys
from typing import Any
from unittest import mock

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from tests.engine.arithmetic_cases import extreme_of, sum_over
from tests.engine.random_programs import Writer
from tiebreak.engine.arithmetic import Arithmetic, elementwise_fused, hashing, scatter
from tiebreak.engine.arithmetic import random as draws
from tiebreak.engine.arithmetic.kernels import elementwise as elementwise_kernels
from tiebreak.engine.arithmetic.kernels import hashing as hash_kernels
from tiebreak.engine.arithmetic.kernels import random as draw_kernels
from tiebreak.engine.arithmetic.kernels import scatter as scatter_kernels
from tiebreak.engine.arithmetic.kernels import sums as kernels
from tiebreak.engine.arithmetic.reduce import fused
from tiebreak.engine.data.tensors import from_bytes
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.engine.run import qualify
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.program.isa import Access, ReduceFunction
from tiebreak.protocol.program.reference import pack

LONG = 1 << 13


FORMS = [
    (sum_over((64, 64), (32,), Access(0, 0, (32, 0, 1)), Access(1, 0, (0, 1, 64))), (2048, 2048)),
    (sum_over((4, 4), (LONG,), Access(0, 0, (LONG, 0, 1)), Access(1, 0, (0, 1, 4))), (4 * LONG, 4 * LONG)),  # in parts
    (sum_over((8, 8), (1,), Access(0, 0, (1, 0, 0)), Access(1, 0, (0, 1, 0))), (8, 8)),  # without an error
    (sum_over((100,), (30,), Access(0, 0, (30, 1))), (3000,)),
    (extreme_of(ReduceFunction.MAX, (100,), (30,), (30, 1)), (3000,)),
    (extreme_of(ReduceFunction.ARGMAX, (100,), (30,), (30, 1)), (3000,)),
    (extreme_of(ReduceFunction.MAX, (100,), (LONG,), (LONG, 1)), (100 * LONG,)),  # in parts
    (sum_over((), (8 * LONG,), Access(0, 0, (1,)), Access(1, 0, (1,))), (8 * LONG, 8 * LONG)),
]


def run_chains(seed: int) -> None:
    """Every chain of a random program."""
    arithmetic = Arithmetic()
    arithmetic.chains = elementwise_fused.FusedChains(arithmetic.device, 32 - seed, arithmetic.stats)
    for chain in Interpreter(Writer(seed).program(60), arithmetic)._chains.values():
        assert isinstance(chain, elementwise_fused.FusedChain)
        read = chain.code.inputs.items()
        chain.run({value: torch.ones(numel, dtype=TORCH_DTYPES[dtype]) for value, (dtype, numel) in read})


class Driver:
    """What Triton asks of a driver before it launches."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> None:
    """Compile and print."""
    made = []

    def compiled(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
        made.append(kernel.warmup(*arguments, grid=(programs,), **options))

    driver.set_active(Driver())
    with (
        mock.patch.multiple(fused, launch=compiled, _kernels=lambda _: kernels),
        mock.patch.object(fused, "target", return_value=("cuda", 90)),  # a name that `multiple` takes for its own
        mock.patch.multiple(scatter, launch=compiled, _kernels=lambda _: scatter_kernels),
        mock.patch.multiple(draws, launch=compiled, _kernels=lambda _: draw_kernels),
        mock.patch.multiple(hashing, launch=compiled, _kernels=lambda _: hash_kernels),
    ):
        for number, (i, sizes) in enumerate(FORMS):  # `benchmarks.kernels` compiles each kernel for both precisions
            Arithmetic(precision=(16, 32)[number % 2]).execute(i, [torch.ones(size) for size in sizes], 0)
        for case in (*qualify._scatters(), *qualify._draws()):
            operands = [from_bytes(pack(t, x), t, (len(x),)) for t, x in case.operands]
            Arithmetic(precision=16).execute(case.instruction, operands, 0)
        hashing.identities({"a": torch.ones(1), "b": torch.ones(1000)})
    assert [one.metadata.enable_fp_fusion for one in made] == [False] * len(made)
    assert {one.metadata.name for one in made} == {
        "contract", "contract_twice", "add_up", "add_parts", "settle", "find_greatest",
        "add_terms", "decide_sums", "add_open", "round_listed", "permute", "hash_chunks", "hash_nodes",
    }  # fmt: skip
    others = list(made)
    with mock.patch.multiple(elementwise_fused, launch=compiled, _kernels=lambda _: elementwise_kernels):
        for seed in range(2):
            with mock.patch.object(elementwise_fused, "target", return_value=("cuda", 90 + 10 * seed)):
                run_chains(seed)
    assert [one.metadata.name for one in made[len(others) :]] == ["run"] * (len(made) - len(others))
    assert {one.metadata.enable_fp_fusion for one in made} == {False}
    sys.stdout.write(f"{len(made)}\n")


if __name__ == "__main__":
    main()
