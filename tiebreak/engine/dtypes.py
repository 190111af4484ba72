"""The three dtypes of a program's values in torch; `tiebreak.engine.data.elements.Element` has the same names."""

from typing import Final

import torch

from tiebreak.protocol.program.isa import DType

TORCH_DTYPES: Final = {DType.F32: torch.float32, DType.I64: torch.int64, DType.BOOL: torch.bool}
FLOATS: Final = (torch.float32, torch.bfloat16)
"""The dtypes in which f32 values are held: bfloat16 where that is exact."""
PROTOCOL_DTYPES: Final = {torch_dtype: dtype for dtype, torch_dtype in TORCH_DTYPES.items()}
