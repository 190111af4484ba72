"""Trainers that change single numbers, or compute all sums in another way than the job says."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import ClassVar

import torch
from torch import Tensor

from tiebreak.engine.capture.compile import MODEL, OPTIMIZER, TELEMETRY
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, NAN_BITS
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, DType, Opcode
from tiebreak.protocol.program.program import Program
from tiebreak.sim.adversaries.base import Adversary
from tiebreak.sim.adversaries.cheats import Cheat, flip_bit, long_sums
from tiebreak.sim.adversaries.deviations import DeviatingTrainer, onward, step_of
from tiebreak.sim.adversaries.forged_runs import deviating, tampered
from tiebreak.sim.adversaries.observers import during
from tiebreak.sim.adversaries.sums import BFLOAT16, NATIVE, TF32, TOWARD_ZERO, Hardware, summing
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Workshop

FRACTION_BITS = 23


class _OneNumber(DeviatingTrainer):
    """One element of one tensor differs after one step, either where it is computed or only where it is committed."""

    entries: ClassVar[tuple[str, ...]]
    """Prefixes of the state entries in which the element may be."""

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Draw an entry, a step and an element."""
        program, step = workshop.program, step_of(job, rng)
        leaf = rng.choice(self.leaves(program))
        slot = leaf - (1 << program.half_depth)
        shaped = program.commits[slot].operands[0].value if slot >= 0 else leaf
        cheat = Cheat(
            name=self.name,
            gain=self.gain,
            step=step,
            leaf=leaf,
            element=rng.randrange(program.body[shaped].numel),
            change=self.change(rng),
        )
        return tampered(workshop, job, cheat, first_step=step)

    def leaves(self, program: Program) -> list[int]:
        """The leaves of the value tree to choose from: commits, and the values that they commit."""
        slots = [
            slot
            for slot, (name, (dtype, _)) in enumerate(program.state_spec().items())
            if name.startswith(self.entries) and dtype == DType.F32
        ]
        return [leaf for s in slots for leaf in (program.leaf_of_commit(s), program.commits[s].operands[0].value)]

    @abstractmethod
    def change(self, rng: Random) -> Callable[[Tensor], Tensor]:
        """How the number is changed."""


class _OneBit(_OneNumber):
    def change(self, rng: Random) -> Callable[[Tensor], Tensor]:
        """Flip a random bit."""
        bit = rng.randrange(32)
        return lambda number: flip_bit(number, bit)


class _OneUlp(_OneNumber):
    def change(self, rng: Random) -> Callable[[Tensor], Tensor]:
        """Replace the number by one of its two neighbours."""
        toward = torch.tensor(rng.choice((float("inf"), float("-inf"))))
        return lambda number: torch.nextafter(number, toward)


_WEIGHTS = tuple(f"{MODEL}{layer}" for layer in ("hidden.", "norm.weight", "norm.bias", "head."))
_MOMENTS = (f"{OPTIMIZER}exp_avg",)
_STATISTICS = (f"{MODEL}norm.running_",)
_LOSSES = (TELEMETRY,)


class BitOfAWeight(_OneBit):
    """One bit of one weight is flipped."""

    name: ClassVar[str] = "one bit of a weight"
    gain: ClassVar[str] = "plants a value of its choice in the model"
    entries: ClassVar[tuple[str, ...]] = _WEIGHTS


class UlpOfAWeight(_OneUlp):
    """One weight is replaced by a neighbouring number."""

    name: ClassVar[str] = "one ulp of a weight"
    gain: ClassVar[str] = "the smallest lie there is: another machine might have made it"
    entries: ClassVar[tuple[str, ...]] = _WEIGHTS


class BitOfAMoment(_OneBit):
    """One bit of one of the optimizer's moments is flipped."""

    name: ClassVar[str] = "one bit of a moment"
    gain: ClassVar[str] = "steers the weights of later steps by what nobody looks at"
    entries: ClassVar[tuple[str, ...]] = _MOMENTS


class UlpOfAMoment(_OneUlp):
    """One of the optimizer's moments is replaced by a neighbouring number."""

    name: ClassVar[str] = "one ulp of a moment"
    gain: ClassVar[str] = "hides a change where it takes steps to be seen"
    entries: ClassVar[tuple[str, ...]] = _MOMENTS


class BitOfAStatistic(_OneBit):
    """One bit of one of batch norm's running statistics is flipped."""

    name: ClassVar[str] = "one bit of a running statistic"
    gain: ClassVar[str] = "spoils the model where it is used, and not where it is trained"
    entries: ClassVar[tuple[str, ...]] = _STATISTICS


class UlpOfAStatistic(_OneUlp):
    """One of batch norm's running statistics is replaced by a neighbouring number."""

    name: ClassVar[str] = "one ulp of a running statistic"
    gain: ClassVar[str] = "a change that no training step reads"
    entries: ClassVar[tuple[str, ...]] = _STATISTICS


class _OfALoss(_OneNumber):
    entries: ClassVar[tuple[str, ...]] = _LOSSES

    def leaves(self, program: Program) -> list[int]:
        """The telemetry, the loss itself, and the loss of the record."""
        body = len(program.body)
        return [*super().leaves(program), program.body[body - 1].operands[0].value, body - 1]


class BitOfALoss(_OfALoss, _OneBit):
    """One bit of one reported loss is flipped."""

    name: ClassVar[str] = "one bit of a loss"
    gain: ClassVar[str] = "a training that looks as if it went well"


class UlpOfALoss(_OfALoss, _OneUlp):
    """One reported loss is replaced by a neighbouring number."""

    name: ClassVar[str] = "one ulp of a loss"
    gain: ClassVar[str] = "telemetry that binds nobody"


class NegativeZero(DeviatingTrainer):
    """A zero in the state is committed with the other sign. Only the bytes show it; as numbers they compare equal."""

    name: ClassVar[str] = "negative zero"
    gain: ClassVar[str] = "another state that every test of equality takes for the same"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Draw a zero of the state after a random step. Moments of weights that never had a gradient are zero."""
        program, step = workshop.program, step_of(job, rng)
        state = workshop.run().state(step)
        zeros = {name: _zeros(x) for name, x in state.items() if x.dtype == torch.float32 and _zeros(x)}
        name = rng.choice(sorted(zeros))
        slot = list(program.state_spec()).index(name)
        leaf = rng.choice((program.leaf_of_commit(slot), program.commits[slot].operands[0].value))
        cheat = Cheat(
            name=self.name, gain=self.gain, step=step, leaf=leaf, element=rng.choice(zeros[name]), change=torch.neg
        )
        return tampered(workshop, job, cheat, first_step=step)


def _zeros(tensor: Tensor) -> list[int]:
    found: list[int] = (tensor.reshape(-1) == 0).nonzero().reshape(-1).tolist()
    return found


class NotANumber(DeviatingTrainer):
    """A number is replaced by a NaN with a payload. The NaN spreads as an ordinary one does."""

    name: ClassVar[str] = "payload in a NaN"
    gain: ClassVar[str] = "bytes in the committed values that no arithmetic can see"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Change a value that is not committed itself, but whose consequences are."""
        program, step = workshop.program, step_of(job, rng)
        committed = {commit.operands[0].value for commit in program.commits}
        leaves = [n for n, i in enumerate(program.body) if _is_f32_map(program, n) and n not in committed and i.shape]
        leaf = rng.choice(leaves)
        element = rng.randrange(program.body[leaf].numel)
        bits = NAN_BITS | rng.randrange(1, 1 << 22) | rng.getrandbits(1) << 31

        def payload(data: bytes) -> bytes:
            return data[: 4 * element] + bits.to_bytes(4, "little") + data[4 * element + 4 :]

        def not_a_number(number: Tensor) -> Tensor:
            return torch.full_like(number, float("nan"))

        cheat = Cheat(name=self.name, gain=self.gain, step=step, leaf=leaf, element=element, change=not_a_number)
        return deviating(workshop, job, cheat.tamper, first_step=step, raw={(step, leaf): payload})


def _is_f32_map(program: Program, number: int) -> bool:
    return program.body[number].opcode == Opcode.MAP and program.body[number].dtype == DType.F32


class BentPartialSum(DeviatingTrainer):
    """One long sum is wrong, and one of its partial sums is bent to fit it."""

    name: ClassVar[str] = "bent partial sum"
    gain: ClassVar[str] = "a wrong sum of which all additions but one are right"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Draw a long sum, a fraction bit of it, and the place of the bent partial sum."""
        program, step = workshop.program, step_of(job, rng)
        leaf = rng.choice(long_sums(program, TERMS_PER_LEAF + 1))
        bit, share = rng.randrange(MAX_PRECISION - job.precision, FRACTION_BITS), rng.random()
        cheat = Cheat(
            name=self.name,
            gain=self.gain,
            step=step,
            leaf=leaf,
            element=rng.randrange(program.body[leaf].numel),
            change=lambda total: flip_bit(total, bit),
        )
        return tampered(workshop, job, cheat, first_step=step, bend=lambda count: int(share * count))


class _OtherSums(DeviatingTrainer):
    """Every sum is computed in another way, from a step on."""

    hardware: ClassVar[Hardware]

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Start at the first step or at a random one."""
        first = rng.choice((1, step_of(job, rng)))
        tamper = during(onward(job, first), lambda _: summing(workshop.program, self.hardware, precision=job.precision))
        return deviating(workshop, job, tamper, first_step=first)


class RoundedTowardZero(_OtherSums):
    """Sums are rounded toward zero instead of to nearest."""

    name: ClassVar[str] = "rounded toward zero"
    gain: ClassVar[str] = "hardware without the right rounding, passed off as exact"
    hardware: ClassVar[Hardware] = TOWARD_ZERO


class Tf32Products(_OtherSums):
    """Factors are truncated to TF32's ten fraction bits, as on a GPU that was allowed to use it."""

    name: ClassVar[str] = "products in TF32"
    gain: ClassVar[str] = "an eighth of the price of the agreed arithmetic"
    hardware: ClassVar[Hardware] = TF32


class Bfloat16Products(_OtherSums):
    """Factors are truncated to bfloat16's seven fraction bits."""

    name: ClassVar[str] = "products in bfloat16"
    gain: ClassVar[str] = "a sixteenth of the price of the agreed arithmetic"
    hardware: ClassVar[Hardware] = BFLOAT16


class NativeSums(_OtherSums):
    """Sums are plain FP32 sums without correction.

    Under policy `logged` a trainer may do this if it logs near ties, so this adversary plays only under policy `exact`.
    """

    name: ClassVar[str] = "uncorrected FP32 sums"
    gain: ClassVar[str] = "the price of correct rounding"
    needs: ClassVar[str | None] = "exact"
    hardware: ClassVar[Hardware] = NATIVE


ADVERSARIES: Sequence[type[Adversary]] = (
    BitOfAWeight,
    UlpOfAWeight,
    BitOfAMoment,
    UlpOfAMoment,
    BitOfAStatistic,
    UlpOfAStatistic,
    BitOfALoss,
    UlpOfALoss,
    NegativeZero,
    NotANumber,
    BentPartialSum,
    RoundedTowardZero,
    Tf32Products,
    Bfloat16Products,
    NativeSums,
)
