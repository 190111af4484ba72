"""Single elements of a logged sum: their bits, and the neighbour on the other side of a middle."""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tiebreak.protocol.numbers.float32 import MAX_PRECISION, SIGN
from tiebreak.protocol.program.rounding import Integers, Mask

Bits = NDArray[np.uint32]
Doubles = NDArray[np.float64]
_SIGN: Final = np.uint32(SIGN)


def bits_of(result: Tensor, elements: Integers) -> Bits:
    """The bits of some elements (row-major numbers) of a contiguous f32 tensor, on any device."""
    return result.view(-1)[_index(result, elements)].cpu().numpy().view(np.uint32)


def put_bits(result: Tensor, elements: Integers, bits: Bits) -> None:
    """The inverse of `bits_of`: writes into the tensor."""
    if len(elements):
        values = torch.from_numpy(bits.view(np.float32).copy()).to(result.device)
        result.view(-1)[_index(result, elements)] = values


def went_up(bits: Bits, values: Doubles) -> Mask:
    """A mask of the FP64 values that were rounded up, away from zero. None may be a number of the precision itself."""
    rounded = np.abs(bits.view(np.float32).astype(np.float64))
    went: Mask = rounded > np.abs(values)
    return went


def toward(bits: Bits, values: Doubles, up: Mask, precision: int) -> Bits:
    """The neighbour of each value in the direction of `up`; `bits` is one of its two neighbours. A zero is +0."""
    step = np.uint32(1 << (MAX_PRECISION - precision))
    own = went_up(bits, values)
    magnitude = bits & ~_SIGN
    magnitude = np.where(own & ~up, magnitude - step, magnitude)
    magnitude = np.where(~own & up, magnitude + step, magnitude).astype(np.uint32)
    sign = np.where(values < 0, _SIGN, np.uint32(0))
    return np.where(magnitude == 0, magnitude, magnitude | sign).astype(np.uint32)


def _index(result: Tensor, elements: Integers) -> Tensor:
    return torch.from_numpy(elements).to(result.device)
