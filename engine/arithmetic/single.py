"""Matrix products in FP32 for few bits (policy `logged`): a plain FP32 product, and how far it may be from exact.

As in `engine.arithmetic.ziv`, with u = 2^-24 and one rounding more on the way of each term, that of its product. What
FP32 adds is that numbers below 2^-126 have a fixed spacing: of a product, or of a sum that a product is fused into,
up to 2^-150 may be lost, and of K terms with K sums, K 2^-149 (none where all terms are zero). Norms are FP64: squares
of f32 neither under- nor overflow there. FP32 sums may overflow where the exact one does not; they are then infinite
or NaN, and their error is made NaN, which no test takes for decided.
"""

from typing import Final

import torch
from torch import Tensor

from engine.arithmetic.near import UNITS
from protocol.errors import ConfigurationError

BLOCK: Final = 128
"""Terms multiplied at once where the bound is the proven one, which grows with them; the results are added in FP64."""
LONG: Final = 4096
"""Terms multiplied at once where it is a calibrated one."""
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
