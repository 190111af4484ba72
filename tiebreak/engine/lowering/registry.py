"""The table from ATen operators to instructions. Each rule takes refs and plain Python values, as the operator does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
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
"""Narrow integer types, which are i64 in programs: the least value, and the number of bits after which they wrap."""


MAX_COMPARISONS: Final = 1 << 28
"""The most comparisons of one order, or of indices with places; they are held as i64, 2 GiB."""


def element_type(dtype: torch.dtype) -> DType | None:
    """The program dtype for a torch dtype; None if there is none. Numbers of bfloat16 are held as f32."""
    if dtype == torch.bfloat16:
        return DType.F32
    return DType.I64 if dtype in INTEGERS else PROTOCOL_DTYPES.get(dtype)


@dataclass(frozen=True)
class Context:
    """The context of a rule: the builder, and the traced result (a fake tensor or a tuple of them) and operands.

    table: makes data of the program from a tensor; None outside of a task's step. cuts: whether a sign of a complex
    zero may count in the step.
    """

    b: Builder
    result: Any
    operands: Sequence[Any] = ()
    table: Callable[[torch.Tensor], Ref] | None = None
    cuts: bool = False

    @property
    def _first(self) -> Any:
        results = self.result if isinstance(self.result, tuple | list) else [self.result]
        return next(result for result in results if result is not None)

    @property
    def dtype(self) -> DType:
        """The dtype of the (first) result that is wanted."""
        if (found := element_type(self._first.dtype)) is None:
            raise NotImplementedError(f"dtype {self._first.dtype}")
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the (first) result that is wanted."""
        return tuple(self._first.shape)

    def ref(self, value: Ref | Scalar, dtype: DType | None = None) -> Ref:
        """Turns a ref or a Python number into a ref of the result's dtype (or of `dtype`)."""
        wanted = self.dtype if dtype is None else dtype
        return self.b.cast(value, wanted) if isinstance(value, Ref) else self.b.const(value, wanted)


Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)
RULES: Final[dict[str, Rule]] = {}
"""Rules by overload name, such as `add.Tensor`."""
WHOLE: Final[set[str]] = set()
"""Operators that torch must not decompose because they have a rule."""


def lowers(*operators: str, whole: bool = False, **fixed: Any) -> Callable[[R], R]:
    """Registers a rule for ATen overloads.

    whole: the rule takes precedence over torch's own decomposition. fixed: keyword arguments that the rule gets for
    these operators, where one rule serves several.
    """

    def register(rule: R) -> R:
        entry = update_wrapper(partial(rule, **fixed), rule) if fixed else rule
        for operator in operators:
            if operator in RULES:
                raise ValueError(f"{operator} already has a lowering rule")
            RULES[operator] = entry
            if whole:
                WHOLE.add(operator)
        return rule

    return register
