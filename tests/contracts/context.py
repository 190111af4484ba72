"""What a game has agreed on when it comes to PROVE, as the referee's contract is told it."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

ZERO: Final = bytes(32)


class Target(IntEnum):
    VALUE = 0
    ELEMENT = 1
    TERMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """`IReferee.Context`, field by field in its order; `rounding` is packed (`tests.contracts.roundings`)."""

    target: Target
    depth: int
    rounding: int = 32
    position: int = 0
    element: int = 0
    terms_leaf: int = 0
    step: int = 1
    state_count: int = 0
    data_count: int = 0
    instruction_leaf: bytes = ZERO
    program_root: bytes = ZERO
    body_root: bytes = ZERO
    data_root: bytes = ZERO
    record_root: bytes = ZERO
    record_depth: int = 0
    record_position: int = 0
    accumulator_root: bytes = ZERO

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(int(v) if isinstance(v, int) else v for v in (getattr(self, name) for name in self.__slots__))
