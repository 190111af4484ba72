"""Instructions by the integer reference: the definition itself as a back-end, in some microseconds for each term."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.execute import Arithmetic
from tiebreak.engine.arithmetic.plain.backend import TorchBackend
from tiebreak.engine.arithmetic.plan.options import Operands, Prepared
from tiebreak.engine.arithmetic.plan.ziv import Logging
from tiebreak.engine.data.tensors import from_bytes, tensor_bytes, widened
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.protocol.program.isa import DType, Instruction, Opcode
from tiebreak.protocol.program.reference import element, pack, unpack
from tiebreak.protocol.program.rounding import element_rounding


class IntegerBackend(TorchBackend):
    """Computes with Python's integers only, on the CPU. Constants and the step number come as they do elsewhere."""

    name = "integers"

    def prepare(self, i: Instruction, dtypes: Sequence[torch.dtype]) -> Prepared:
        if i.opcode == Opcode.SOURCE:
            return super().prepare(i, dtypes)
        types = [PROTOCOL_DTYPES.get(dtype, DType.F32) for dtype in dtypes]  # a frozen entry may be held in bfloat16
        rounding = element_rounding(i, precision=self.options.precision, tolerances=0)

        def run(operands: Operands, _step: int, _near: object) -> Tensor:
            values = [unpack(dtype, tensor_bytes(widened(x))) for dtype, x in zip(types, operands, strict=True)]
            read = lambda operand, where: values[operand][where]  # noqa: E731
            words = [element(i, k, read, types, rounding=rounding) for k in range(i.numel)]
            return from_bytes(pack(i.dtype, words), i.dtype, i.shape)

        return run


def integer_arithmetic(precision: int, logging: Logging | None) -> Arithmetic:
    """Executes instructions by `IntegerBackend`; reports no near ties, as every sum is rounded from its exact value."""
    made = Arithmetic(precision=precision, logging=logging)
    made.backend, made.chains = IntegerBackend(made.options, made.stats), None
    return made
