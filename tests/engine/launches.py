"""Compiles the Triton kernels as launches on an H100 would, with every form of arguments, where there is none.

`python -m tests.engine.launches` prints how many kernels there were. In a process of its own, because it tells Triton
of a driver that does not exist.
"""

import re
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from tests.engine.arithmetic_cases import extreme_of, forced_integers, sum_over
from tests.engine.random_programs import Writer
from tiebreak.engine.arithmetic import Arithmetic, backend
from tiebreak.engine.arithmetic.gpu import chains, indices, integers, launching, operands, sums
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
    (sum_over((64, 32), (32,), Access(0, 0, (64, 0, 2)), Access(1, 0, (0, 1, 32))), (4096, 1024)),  # by tables
    (sum_over((128, 64), (48,), Access(0, 3, (51, 0, 1)), Access(1, 0, (0, 1, 64))), (6531, 3072)),  # not in fours
    (
        sum_over(
            (4, 8, 9, 9), (8, 3, 3), Access(0, 0, (968, 0, 11, 1, 121, 11, 1)), Access(1, 8, (0, 9, 0, 0, 72, -3, -1))
        ),
        (3872, 576),
    ),  # images and weights, which are copied
    (sum_over((100,), (30,), Access(0, 0, (30, 1))), (3000,)),
    (extreme_of(ReduceFunction.MAX, (100,), (30,), (30, 1)), (3000,)),
    (extreme_of(ReduceFunction.ARGMAX, (100,), (30,), (30, 1)), (3000,)),
    (extreme_of(ReduceFunction.MAX, (100,), (LONG,), (LONG, 1)), (100 * LONG,)),  # in parts
    (sum_over((), (8 * LONG,), Access(0, 0, (1,)), Access(1, 0, (1,))), (8 * LONG, 8 * LONG)),
]


def copied(first: int) -> set[str]:
    """The bytes that the copies of a product take at once whose operands begin at this element of their memory."""
    (i, sizes), made = FORMS[0], []

    def compiled(kernel: Any, _: int, *arguments: Any, **options: Any) -> None:
        made.append(kernel.warmup(*arguments, grid=(1,), **options))

    with mock.patch.object(sums, "launch", compiled):
        Arithmetic().execute(i, [torch.ones(size + first)[first:] for size in sizes], 0)
    code = next(one for one in made if one.metadata.name == "product").asm["ptx"]
    return set(re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (0x\w+)", code))


def chains_of(seed: int) -> list[Callable[[], object]]:
    """What runs each chain of a random program."""
    made: list[Callable[[], object]] = []
    for chain in Interpreter(Writer(seed).program(60), Arithmetic(precision=32 - seed)).chains.values():
        assert isinstance(chain, chains.LaunchedChain)
        read = chain.code.inputs.items()
        values = {value: torch.ones(numel, dtype=TORCH_DTYPES[dtype]) for value, (dtype, numel) in read}
        made.append(partial(chain.run, values))
    return made


class Driver:
    """A driver without a device, which keeps what it would launch."""

    launched: ClassVar[list[list[Any]]] = []
    utils = SimpleNamespace(
        get_device_properties=lambda _: {"max_shared_mem": 232_448}, load_binary=lambda *_: (1, 1, 0, 0, 1024)
    )

    @classmethod
    def launcher_cls(cls, _source: Any, metadata: Any) -> Any:
        def launch(*arguments: Any) -> None:
            hooks = slice(6, 9)  # Triton passes empty chains of hooks, and what it would tell them
            shown = [*map(kind, arguments[: hooks.start]), *map(kind, arguments[hooks.stop :])]
            cls.launched.append([metadata.name, metadata.hash, *shown])

        return launch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def kind(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.shape, argument.data_ptr() % 16
    return tuple(map(kind, argument)) if isinstance(argument, tuple) else argument


def check_kept() -> None:
    """What is launched without Triton's choice is what Triton launches; arguments of other kinds go through it."""
    made = chains_of(1)

    def hashes(begin: int) -> list[str]:
        Driver.launched.clear()
        for i, sizes in FORMS[:2]:
            Arithmetic().execute(i, [torch.ones(size + begin)[begin:] for size in sizes], 0)
        for run in made:
            run()
        return [launched[1] for launched in Driver.launched]

    first = hashes(0)
    launched = [*Driver.launched]
    with mock.patch("triton.runtime.jit.JITFunction.run", side_effect=AssertionError("expected no choice")):
        assert hashes(0) == first
    assert Driver.launched == launched
    assert hashes(1) != first
    assert hashes(4) == first


def work() -> None:
    for number, (i, sizes) in enumerate(FORMS):  # `benchmarks.kernels` compiles each kernel for both precisions
        Arithmetic(precision=(16, 32)[number % 2]).execute(i, [torch.ones(size) for size in sizes], 0)
        Arithmetic().execute(i, [torch.ones(size).bfloat16() for size in sizes], 0)  # as frozen weights may be held
    with forced_integers():
        for i, sizes in FORMS[:5]:
            Arithmetic().execute(i, [torch.ones(size) for size in sizes], 0)
            Arithmetic().execute(i, [torch.ones(sizes[0]), torch.ones(sizes[1]).bfloat16()], 0)
    for case in (*qualify._scatters(), *qualify._draws()):
        operands = [from_bytes(pack(t, x), t, (len(x),)) for t, x in case.operands]
        Arithmetic(precision=16).execute(case.instruction, operands, 0)
    backend.identities({"a": torch.ones(1), "b": torch.ones(1000)})
    for seed in range(2):
        with mock.patch.object(chains, "target", return_value=("cuda", 90 + 10 * seed)):
            for run in chains_of(seed):
                run()


class Asked:
    """A kernel that asks Triton's hook, here and in another thread, whether to leave out its compilation."""

    __name__ = cache_key = "asked"

    def __init__(self) -> None:
        self.answers: list[bool] = []

    def warmup(self, *_: object, **__: object) -> None:
        hook = knobs.runtime.jit_cache_hook
        with ThreadPoolExecutor(1) as other:
            self.answers = [hook(key=""), other.submit(hook, key="").result()]


def main() -> None:
    """Everything compiles, in other processes, and is found in the cache afterwards."""
    cached = []
    driver.set_active(Driver())
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(backend, "launches", return_value=True))
        for module in (indices, sums):
            stack.enter_context(mock.patch.object(module, "programs", return_value=4))
        stack.enter_context(mock.patch.object(integers, "programs", return_value=512))  # few rows, and parts
        for module in (chains, sums, integers):
            stack.enter_context(mock.patch.object(module, "target", return_value=("cuda", 90)))
        stack.enter_context(mock.patch.multiple(operands, LEAST=0, PAYS=1))
        knobs.cache.dir = stack.enter_context(tempfile.TemporaryDirectory())
        arithmetic = Arithmetic()
        qualified = launching.find(lambda: qualify._rehearse(arithmetic, [(case, ()) for case in qualify._cases()]))
        assert len(qualified) < 76  # every kernel costs the user time before the first step
        assert [copied(first) for first in (0, 1, 4)] == [{"0x10"}, {"0x4"}, {"0x10"}]
        kernel = Asked()

        def without_memory() -> None:
            launching.launch(kernel, 1, torch.ones(1))
            raise torch.OutOfMemoryError

        assert len(launching.find(without_memory)) == 1
        assert kernel.answers == [True, False]
        found = launching.find(work)
        arithmetic.backend.compile_ahead(work)
        knobs.compilation.listener = lambda *, metadata, cache_hit, **_: cached.append((metadata, cache_hit))
        for job in found.values():
            job()
        knobs.compilation.listener = None
        driver.set_active(Driver())
        check_kept()
    assert [hit for _, hit in cached] == [True] * len(found)
    assert {metadata["enable_fp_fusion"] for metadata, _ in cached} == {False}
    assert {metadata["name"] for metadata, _ in cached} == {
        "product", "norms", "contract_twice", "add_up", "add_parts", "settle", "find_greatest", "run",
        "measure", "find_residues", "multiply_residues", "join_fractions",
        "add_terms", "decide_sums", "add_open", "round_listed", "permute", "hash_chunks", "hash_nodes", "copy_lanes",
    }  # fmt: skip
    sys.stdout.write(f"{len(found)}\n")


if __name__ == "__main__":
    main()
