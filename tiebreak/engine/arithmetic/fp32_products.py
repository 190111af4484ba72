"""Matrix products in FP32 for few bits (policy `logged`): a plain FP32 product, and how far it may be from exact.

As in `tiebreak.engine.arithmetic.ziv`, with u = 2^-24 and one rounding more on the way of each term, that of its
product. What
FP32 adds is that numbers below 2^-126 have a fixed spacing: of a product, or of a sum that a product is fused into,
up to 2^-150 may be lost, and of K terms with K sums, K 2^-149 (none where all terms are zero). Norms are FP64: squares
of f32 neither under- nor overflow there. FP32 sums may overflow where the exact one does not; they are then infinite
or NaN, and their error is made NaN, which no test takes for decided.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.near_ties import UNITS
from tiebreak.engine.arithmetic.views import Dim, View
from tiebreak.protocol.errors import ConfigurationError

BLOCK: Final = 128
"""Terms multiplied at once where the bound is the proven one, which grows with them; the results are added in FP64."""
LONG: Final = 4096
"""Terms multiplied at once where it is a calibrated one."""
COPIED: Final = 1 << 22
"""Elements of an operand copied at once, where no matrix product can read it as it lies: a convolution's image."""
UNIT: Final = UNITS[torch.float32]


def blocks(terms: int, proven: bool) -> int:
    """Terms multiplied at once."""
    return min(terms, BLOCK if proven else LONG)


def coefficient(roundings: int) -> float:
    """`ziv.coefficient` for FP32, with the product's rounding; infinite where the bound says nothing any more."""
    total = (roundings + 4) * UNIT
    return total / (1 - total) * (1 + 2.0**-16) if total < 0.5 else float("inf")


def least(terms: int) -> float:
    """What FP32's fixed spacing below 2^-126 may add to the error."""
    return terms * 2.0**-149


def errors(c: Tensor, left: Tensor, right: Tensor, terms: int) -> Tensor:
    """e of products c (Bt, M, N) from the outer product of the factors left (Bt, M) and right (Bt, N)."""
    e = left[:, :, None] * right[:, None, :]
    e += torch.where(e > 0, least(terms), 0.0)
    return e.add_(c - c)  # NaN where c is not finite


def check_plain() -> None:
    """Raise `ConfigurationError` where torch would compute FP32 products with less: the bound would not hold."""
    found = torch.get_float32_matmul_precision()
    if found != "highest":
        raise ConfigurationError(
            f"expected torch's float32 matmul precision to be 'highest', got '{found}': sums computed in FP32 have a "
            f"bound that TF32 and bfloat16 break"
        )


Steps = tuple[tuple[int, int], ...]
"""(size, stride) of some dims."""


@dataclass(frozen=True)
class Matrices:
    """An operand of a product as batches of matrices: (batch, rows or columns, terms)."""

    offset: int
    batch: Steps
    own: Steps
    terms: Steps

    @classmethod
    def of(
        cls, offset: int, operand: int, batch: Sequence[Dim], own: Sequence[Dim], terms: Sequence[Dim]
    ) -> "Matrices":
        """How an operand is read along the dims of each group."""
        steps = [tuple((d.size, d.strides[operand]) for d in dims) for dims in (batch, own, terms)]
        return cls(offset, steps[0], steps[1], steps[2])

    def pieces(self, base: Tensor, order: Tensor | None) -> Iterator[tuple[int, Tensor]]:
        """(first row, f32 (batch, rows, terms)) of each piece: views where that can be. `order`: of the terms."""
        whole = self._view(base, 0, self.own[0][0]) if self.own else self._view(base, 0, 1)
        shape = [prod(size for size, _ in steps) for steps in (self.batch, self.own, self.terms)]
        if order is None:
            try:
                yield 0, whole.view(shape)
                return
            except RuntimeError:  # torch's only way to say that this needs a copy
                pass
        inner = shape[1] // self.own[0][0] if self.own else 1
        step = max(1, self.own[0][0] // ceil(prod(shape) / COPIED)) if self.own else 1
        for first in range(0, self.own[0][0] if self.own else 1, step):
            size = min(step, self.own[0][0] - first) if self.own else 1
            copied = self._view(base, first, size).reshape(shape[0], size * inner, shape[2])
            yield first * inner, copied if order is None else copied.index_select(2, order)

    def _view(self, base: Tensor, first: int, size: int) -> Tensor:
        """Positions first ... first + size - 1 of the first own dim."""
        own = ((size, self.own[0][1]), *self.own[1:]) if self.own else ()
        offset = self.offset + (first * self.own[0][1] if self.own else 0)
        steps = (*self.batch, *own, *self.terms)
        return View.of(offset, [n for n, _ in steps], [stride for _, stride in steps]).on(base)


def product(
    left: tuple[Matrices, Tensor], right: tuple[Matrices, Tensor], shape: tuple[int, int, int], order: Tensor | None,
    block: int,
) -> Tensor:  # fmt: skip
    """FP32 products (Bt, M, N) of rows and columns, `block` terms at once."""
    check_plain()
    out = None
    for column, b in right[0].pieces(right[1], order):
        for row, a in left[0].pieces(left[1], order):
            found = _multiply(a, b, block)
            if found.shape == shape:
                return found.contiguous()
            out = torch.empty(shape) if out is None else out
            out[:, row : row + a.shape[1], column : column + b.shape[1]] = found
    assert out is not None  # an operand has elements
    return out


def _multiply(a: Tensor, b: Tensor, block: int) -> Tensor:
    found: Tensor | None = None
    for at in range(0, a.shape[2], block):
        x, y = a[:, :, at : at + block], b[:, :, at : at + block].transpose(1, 2)
        part = torch.mm(x[0], y[0])[None] if len(x) == 1 else torch.bmm(x, y)
        found = part if found is None else found.add_(part)
    assert found is not None  # a sum has terms
    return found
