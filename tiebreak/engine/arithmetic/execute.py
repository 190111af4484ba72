"""Executes one instruction on one device, bit for bit as SPEC sections 4 to 7 say.

Near ties under policy `logged` are the exception: the caller can collect them. `integer_arithmetic` does so by the
integer reference: the definition itself as a back-end, in some microseconds for each term.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.backend import choose, has_integers, is_host
from tiebreak.engine.arithmetic.plain.backend import TorchBackend
from tiebreak.engine.arithmetic.plain.exact import Exact, exact_sums
from tiebreak.engine.arithmetic.plan.chains import Chains
from tiebreak.engine.arithmetic.plan.options import Operands, Options, Prepared, Stats
from tiebreak.engine.arithmetic.plan.views import Integers
from tiebreak.engine.arithmetic.plan.ziv import NOTHING_NEAR, Logging, NearTies
from tiebreak.engine.data.tensors import from_bytes, tensor_bytes, widened
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.native import interprets
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program.isa import DType, Instruction, Opcode
from tiebreak.protocol.program.reference import element, pack, unpack
from tiebreak.protocol.program.rounding import element_rounding, sum_kind

MAX_PLANS: Final = 1 << 20
FP64_ON_HOST, FP64_ON_DEVICE = 1 << 18, 1 << 26


class Arithmetic:
    """Executes instructions exactly on a device, except for near ties where the caller settles them.

    NaN in an f32 result may have any payload, because no result depends on it; make it canonical before hashing.
    Results are contiguous and, except for constants, new; neither operands nor constants are ever written to. Only one
    thread at a time may use an instance.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        permute: torch.Generator | int | None = None,
        stats: Stats | None = None,
        *,
        precision: int = MAX_PRECISION,
        logging: Logging | None = None,
        fp64_elements: int | None = None,
        compiled: bool = True,
        by_integers: bool = False,
    ) -> None:
        """permute: a source of random orders for the terms of sums, or its seed. stats: counts to add to.

        Which back-end computes is decided here, for good: torch alone unless `compiled`. fp64_elements, by_integers: as
        in `Options`.
        """
        device = torch.device(device)
        shuffled = torch.Generator().manual_seed(permute) if isinstance(permute, int) else permute
        at_once = fp64_elements or (FP64_ON_HOST if is_host(device) else FP64_ON_DEVICE)
        reads = is_host(device) and not interprets()
        self.device = device
        """The device of operands and results."""
        self.options = Options(device, shuffled, precision, logging, at_once, reads, compiled, by_integers)
        self.stats = Stats() if stats is None else stats
        self.backend = choose(self.options, self.stats)
        self.chains: Chains | None = self.backend.chains
        """Runs chains of elementwise instructions in one pass; None if they must run one by one."""
        self._prepared: dict[int, tuple[Instruction, Prepared]] = {}

    def by_integers(self) -> "Arithmetic | None":
        """One that computes all matrix products by integers that it can; None if the device computes none so.

        CPUs compute none. None too if the environment already forces integers or forbids them.
        """
        options = self.options
        if not has_integers(options):
            return None
        return Arithmetic(
            options.device, options.shuffled, self.stats, precision=options.precision, logging=options.logging,
            fp64_elements=options.fp64, by_integers=True,
        )  # fmt: skip

    def execute(self, instruction: Instruction, operands: Operands, step: int) -> Tensor:
        """The result of a validated instruction other than `source` state or data and `commit`.

        `operands`: for each operand the whole tensor that it reads, contiguous, on the device. `step` counts from 0: it
        is what `source` step yields (SPEC's s - 1). Returns a contiguous tensor of the instruction's shape and dtype.
        Plans are cached per instruction object.
        """
        return self._plan(instruction, operands)(operands, step, None)

    def execute_logged(self, instruction: Instruction, operands: Operands, step: int) -> tuple[Tensor, NearTies]:
        """Like `execute`, but near ties are left open and reported.

        With `logging`, open elements of a sum with a tolerance (`tiebreak.engine.arithmetic.plan.ziv`) hold RN(c);
        every other element is RN(exact) as usual.
        """
        logging, kind = self.options.logging, sum_kind(instruction)
        if logging is None or kind is None or not logging.logs(kind):
            return self.execute(instruction, operands, step), NOTHING_NEAR
        collector = logging.collector(kind)
        return self._plan(instruction, operands)(operands, step, collector), collector.found()

    def _plan(self, instruction: Instruction, operands: Operands) -> Prepared:
        if (found := self._prepared.get(id(instruction))) is None or found[0] is not instruction:
            if len(self._prepared) >= MAX_PLANS:
                self._prepared.clear()
            # Keeping the instruction alive keeps its id unique.
            prepared = self.backend.prepare(instruction, [operand.dtype for operand in operands])
            found = self._prepared[id(instruction)] = instruction, prepared
        return found[1]

    def plans(self) -> list[object]:
        """The objects that prepared instructions read on the device: a graph of their launches has to keep them."""
        return list(self._prepared.values())

    def exact_sums(
        self, instruction: Instruction, operands: Operands, elements: Sequence[int] | Integers
    ) -> list[Exact]:
        """(n, e) of the exact sum n * 2^e for some elements of a sum, by number; None for one that is not finite."""
        return exact_sums(instruction, operands, elements)


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
