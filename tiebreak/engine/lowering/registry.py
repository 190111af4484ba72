"""The table from ATen operator to instructions. Each rule takes refs and plain Python values as ATen does."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.lowering.builder import Builder, Ref, Scalar
from tiebreak.protocol.program.isa import DType

INTEGERS: Final[dict[torch.dtype, tuple[int, int]]] = {
    torch.int32: (-(1 << 31), 32),
    torch.int16: (-(1 << 15), 16),
    torch.int8: (-(1 << 7), 8),
    torch.uint8: (0, 8),
}
"""Narrower integers, which are i64 in programs: the least value, and the bits after which they wrap around."""


def element_type(dtype: torch.dtype) -> DType | None:
    """What a torch dtype is in programs; None if it is nothing."""
    return DType.I64 if dtype in INTEGERS else PROTOCOL_DTYPES.get(dtype)


def _known(dtype: torch.dtype) -> DType:
    if (found := element_type(dtype)) is None:
        raise NotImplementedError(f"dtype {dtype}")
    return found


@dataclass(frozen=True)
class Context:
    """What a rule may use: the builder and the traced result (a fake tensor, or a tuple of them)."""

    b: Builder
    result: Any

    @property
    def dtype(self) -> DType:
        """Dtype of the (first) result."""
        first = self.result[0] if isinstance(self.result, tuple | list) else self.result
        return _known(first.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the (first) result."""
        first = self.result[0] if isinstance(self.result, tuple | list) else self.result
        return tuple(first.shape)

    def ref(self, value: Ref | Scalar, dtype: DType | None = None) -> Ref:
        """A ref of the result's dtype (or of `dtype`) from a ref or a Python number."""
        wanted = self.dtype if dtype is None else dtype
        return self.b.cast(value, wanted) if isinstance(value, Ref) else self.b.const(value, wanted)


Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)
RULES: Final[dict[str, Rule]] = {}
"""`overload name -> rule`, for instance `add.Tensor`."""
WHOLE: Final[set[str]] = set()
"""Operators with a rule that torch must not take apart first."""


def lowers(*operators: str, whole: bool = False) -> Callable[[R], R]:
    """Registers a rule for ATen overloads. `whole`: the rule goes before torch's own decomposition."""

    def register(rule: R) -> R:
        for operator in operators:
            if operator in RULES:
                raise ValueError(f"{operator} already has a lowering rule")
            RULES[operator] = rule
            if whole:
                WHOLE.add(operator)
        return rule

    return register
