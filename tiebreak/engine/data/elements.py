"""The element types of array files, and the type that each becomes in a job: f32 or i64 (bools may stay as they are).

Names are those of safetensors. Conversions are exact, except that an F64 is rounded to nearest, ties to even. A U64
beyond the range of i64 is refused.
"""

from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.isa import DType

Array = npt.NDArray[Any]


class Element(StrEnum):
    """The type of one element of a file."""

    F64 = "F64"
    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    I64 = "I64"
    I32 = "I32"
    I16 = "I16"
    I8 = "I8"
    U64 = "U64"
    U32 = "U32"
    U16 = "U16"
    U8 = "U8"
    BOOL = "BOOL"

    @property
    def size(self) -> int:
        """The size of one element in bytes."""
        return self.numpy.itemsize

    @property
    def numpy(self) -> np.dtype[Any]:
        """The little-endian numpy type in which an element is stored; u16 for a BF16 and u8 for a bool."""
        if self in (Element.BF16, Element.BOOL):
            return np.dtype("<u2" if self == Element.BF16 else "u1")
        return np.dtype(f"<{self[0].lower()}{int(self[1:]) // 8}")

    @property
    def committed(self) -> DType | None:
        """Its type in a job, if a job commits to these bytes as they are."""
        return DType.__members__.get(self)

    @property
    def mapped(self) -> bool:
        """Whether a task takes these elements from their file as they are: committed ones and narrow integers."""
        return self.committed is not None or self in (Element.U8, Element.I8, Element.I16, Element.I32)

    @property
    def converted(self) -> DType:
        """Its type after import: a task takes f32 and i64."""
        return DType.F32 if self in (Element.F64, Element.F32, Element.F16, Element.BF16) else DType.I64

    def read(self, data: bytes | memoryview, *, big_endian: bool = False) -> Array:
        """The elements as stored, 1-d; a BF16 as the u16 of its bits."""
        return np.frombuffer(data, dtype=self.numpy.newbyteorder(">") if big_endian else self.numpy)

    def convert(self, stored: Array) -> Array:
        """Converts what `read` returned to little-endian f32 or i64 of the same shape; bools become 0 and 1.

        Raises `EncodingError` for bools other than 0 and 1, and for integers beyond the range of i64.
        """
        if self == Element.BF16:
            return (stored.astype("<u4") << np.uint32(16)).view("<f4")
        if self == Element.BOOL and stored.size and stored.max() > 1:
            raise EncodingError(f"expected bools of 0 and 1, got {stored.max()}")
        if self == Element.U64 and stored.size and stored.max() >= 1 << 63:
            raise EncodingError(f"expected integers below 2^63, got {stored.max()}")
        with np.errstate(over="ignore", invalid="ignore"):  # an F64 may become infinite; a task refuses that
            return stored.astype("<f4" if self.converted == DType.F32 else "<i8")


_OF_NUMPY: Final = {
    f"{element.numpy.kind}{element.size}": element for element in Element if element not in (Element.BF16, Element.BOOL)
} | {"b1": Element.BOOL}


def of_numpy(description: str) -> tuple[Element, bool]:
    """The element of a numpy type string such as `<f4`, and whether it is big-endian. Raises `EncodingError`."""
    order, kind = description[:1], description[1:]
    if order not in ("<", ">", "|") or kind not in _OF_NUMPY or (order == "|" and _OF_NUMPY[kind].size > 1):
        known = ", ".join(sorted(_OF_NUMPY))
        raise EncodingError(f"expected elements of one of {known} with their byte order, got {description!r}")
    return _OF_NUMPY[kind], order == ">"
