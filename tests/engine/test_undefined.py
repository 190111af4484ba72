"""What no kernel writes is noticed: memory that is allocated without contents, or used again, holds no right result."""

import ast
import inspect
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conftest import CaseCounter
from tests.engine.arithmetic_cases import extreme_of, sum_over
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c import backend, sums
from tiebreak.engine.arithmetic.c.backend import SMALL, Buffers
from tiebreak.protocol.program.isa import Access, Instruction, ReduceFunction

from .undefined import BYTE, fill, modules

FORBIDDEN = {"new_empty", "empty_permuted", "new_empty_strided", "empty_quantized", "resize_", "ndarray"}
"""Other ways to memory without contents, which `undefined` does not see."""


def test_all_uninitialized_engine_memory_is_filled_with_a_pattern(cases: CaseCounter) -> None:
    for module in modules():
        assert not any(x is torch.empty or x is np.empty for x in vars(module).values()), module.__name__
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                nothing = [arg.value for arg in node.args if isinstance(arg, ast.Constant)] == [0]
                assert node.func.attr not in FORBIDDEN or nothing, f"{module.__name__}: line {node.lineno}"
                cases(node.func.attr in ("empty", "empty_like"))


def bytes_of(x: Any) -> set[int]:
    return set(bytes(x.view(torch.uint8).view(-1).tolist() if isinstance(x, Tensor) else x.tobytes()))


def test_reused_memory_is_filled_with_the_pattern_too() -> None:
    pool, addresses = Buffers(), []
    for shape in ((3,), (SMALL,), (SMALL,)):
        made = pool.empty(shape, torch.float32)
        assert bytes_of(made) == {BYTE}
        addresses.append(made.fill_(1.0).data_ptr())
        del made
    assert addresses[1] == addresses[2]
    assert bytes_of(vars(backend)["torch"].empty((5, 7), dtype=torch.bool)) == {BYTE}
    assert bytes_of(vars(sums)["np"].empty(9)) == {BYTE}
    assert bytes_of(fill(np.zeros(3))) == {BYTE}


CASES: dict[str, tuple[Instruction, list[int]]] = {
    "a sum": (sum_over((40,), (30,), Access(0, 0, (30, 1))), [1200]),
    "a product": (sum_over((8, 9), (30,), Access(0, 0, (30, 0, 1)), Access(1, 0, (0, 1, 9))), [240, 270]),
    "a position": (extreme_of(ReduceFunction.ARGMAX, (40,), (30,), (30, 1)), [1200]),
}


class Lucky(ModuleType):
    """A torch whose allocator gives memory that holds the right result, as after the same kernel a moment ago."""

    def __init__(self, right: Tensor) -> None:
        super().__init__("torch")
        self.empty = lambda *_, **__: right.clone()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.mark.skipif(sums.build().library is None, reason="needs a C compiler")
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_that_writes_no_result_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    i, sizes = CASES[name]
    generator = torch.Generator().manual_seed(2)
    operands = [torch.randn(size, generator=generator) for size in sizes]
    right = Arithmetic().execute(i, operands, 0)
    monkeypatch.setattr(sums, "together", lambda *_: [1])
    pool = mock.patch.object(Buffers, "empty", side_effect=lambda *_: right.clone())
    with mock.patch.multiple(backend, torch=Lucky(right)), pool:
        assert torch.equal(Arithmetic().execute(i, operands, 0), right), "the memory had the right result"
    found = Arithmetic().execute(i, operands, 0)
    assert bytes_of(found) == {BYTE}
    assert not torch.equal(found, right)
