"""Bits of integers: every operator and width against eager PyTorch and the integers, at the ends of each type."""

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import CaseCounter
from tests.engine.lowering_bench import make_task, run_engine, run_integers, same_bits
from tests.parts import slow_except
from tiebreak.engine.capture.compile import compile_task

DTYPES = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def operands(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs, with the ends of the type among them, and distances to shift by, some of them out of range."""
    ends = torch.iinfo(dtype)
    drawn = torch.randint(ends.min, ends.max, (24,), dtype=dtype, generator=torch.Generator().manual_seed(1))
    x = torch.cat([torch.tensor([ends.min, ends.min + 1, 0, 1, ends.max - 1, ends.max], dtype=dtype), drawn])
    out_of_range = [ends.bits, ends.bits + 1, -1 if ends.min else 200]
    return x[:, None], x, torch.tensor([*range(ends.bits), *out_of_range], dtype=dtype)


class Bits(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.parameter = nn.Parameter(torch.zeros(1))
        for name, value in zip(("x", "y", "by"), operands(dtype), strict=True):
            self.register_buffer(name, value.long())  # a state holds no other integers
        for number, result in enumerate(self.results()):
            self.register_buffer(f"result_{number}", torch.zeros_like(result.long()))

    def results(self) -> list[Tensor]:
        x, y, by = (v.to(self.dtype) for v in (self.x, self.y, self.by))
        shifts = [x << by, x >> by, x << 3, x >> 2, 5 << by, 100 >> by]
        return [x & y, x | y, x ^ y, ~x, x & 7, x | 64, x ^ 85, 12 & x, *shifts]

    def forward(self, unused: Tensor) -> Tensor:
        for number, result in enumerate(self.results()):
            getattr(self, f"result_{number}").copy_(result)
        return (self.parameter * unused).sum()


@pytest.mark.parametrize("dtype", slow_except(DTYPES, torch.int64, torch.uint8), ids=str)
def test_bits(dtype: torch.dtype, cases: CaseCounter) -> None:
    model = Bits(dtype)
    compiled = compile_task(make_task(model, {"u": torch.ones(1, 1)}, batch=1))
    found = run_engine(compiled)
    for number, expected in enumerate(model.results()):
        assert found[f"model.result_{number}"].equal(expected.long()), f"result {number} of {dtype}"
        cases(expected.numel())
    assert same_bits(found, run_integers(compiled)) == []
