"""Instructions by the integer reference, element by element: the definition itself as a back-end. For small programs.

It takes microseconds for each term, and shares no arithmetic with the other back-ends.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.execute import Arithmetic
from tiebreak.engine.arithmetic.plain.backend import TorchBackend
from tiebreak.engine.arithmetic.plan.options import Operands, Prepared
from tiebreak.engine.arithmetic.plan.ziv import Logging
from tiebreak.engine.data.tensors import from_bytes, tensor_bytes
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program.isa import Instruction, Opcode
from tiebreak.protocol.program.reference import element, pack, unpack
from tiebreak.protocol.program.rounding import element_rounding


class IntegerBackend(TorchBackend):
    """Computes with Python's integers only, on the CPU. Constants and the step number come as they do elsewhere."""

    name = "integers"

    def prepare(self, i: Instruction, dtypes: Sequence[torch.dtype]) -> Prepared:
        if i.opcode == Opcode.SOURCE:
            return super().prepare(i, dtypes)
        types = [PROTOCOL_DTYPES[dtype] for dtype in dtypes]
        rounding = element_rounding(i, precision=self.options.precision, tolerances=0)

        def run(operands: Operands, _step: int, _near: object) -> Tensor:
            values = [unpack(dtype, tensor_bytes(x)) for dtype, x in zip(types, operands, strict=True)]
            read = lambda operand, where: values[operand][where]  # noqa: E731
            words = [element(i, k, read, types, rounding=rounding) for k in range(i.numel)]
            return from_bytes(pack(i.dtype, words), i.dtype, i.shape)

        return run


class IntegerArithmetic(Arithmetic):
    """Executes instructions by `IntegerBackend`. Reports no near ties: every sum is rounded from its exact value."""

    def __init__(self, *, precision: int = MAX_PRECISION, logging: Logging | None = None) -> None:
        super().__init__(precision=precision, logging=logging)
        self.backend = IntegerBackend(self.options, self.stats)
        self.chains = None
