"""Trainers that change single numbers, or compute all sums in another way than the job says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tiebreak.engine.arithmetic.plan.views import View
from tiebreak.engine.capture.state import MODEL, OPTIMIZER, TELEMETRY
from tiebreak.engine.run.interpreter import Observer
from tiebreak.lab.sim.adversaries.base import computes, onward, step_of
from tiebreak.lab.sim.adversaries.tampering import Change, Cheat, altered, flip_bit, long_sums, tampered
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.workshop import CLASSIFIER, Deviation, Workshop
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, NAN_BITS
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, DType, Instruction, Opcode
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import sum_kind

# ---------------------------------------------------------------- sums as uncontrolled hardware computes them
# Terms are taken one after the other in numpy's elementwise IEEE operations, so that a cheat's bytes, too, are the same
# on any machine.

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
_NO_SIGNIFICAND = 8
"""Bits of a float32 outside its significand. The significand has 24 bits, including the implicit leading one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The way in which sums are computed: change of factors, type of partial sums, rounding of the last one."""

    factor: Callable[[Floats], Floats] = lambda x: x
    single: bool = False
    """Whether products and partial sums are rounded to FP32; otherwise they are FP64."""
    last: Callable[[Doubles], Doubles] = np.rint
    """Rounds a scaled significand to an integer."""

    def sum(self, factors: Sequence[Floats], precision: int) -> Floats:
        """The sums of an instruction, rounded to `precision` bits.

        Each factor is [elements, terms]; the result is [elements].
        """
        read = [self.factor(x) for x in factors] if len(factors) > 1 else list(factors)
        with np.errstate(all="ignore"):
            kind = np.float32 if self.single else np.float64  # in which the products of two factors are exact
            total = np.zeros(len(read[0]), dtype=kind)
            for k in range(read[0].shape[1]):
                term = read[0][:, k].astype(kind)
                for other in read[1:]:
                    term = np.multiply(term, other[:, k], dtype=kind)
                total = np.add(total, term, dtype=kind)
            bits = precision - _NO_SIGNIFICAND
            significand, exponent = np.frexp(total.astype(np.float64))
            rounded: Doubles = np.ldexp(self.last(np.ldexp(significand, bits)), exponent - bits)
            positive: Doubles = rounded + 0.0  # a zero sum is +0
            return positive.astype(np.float32)


def truncated(fraction: int) -> Callable[[Floats], Floats]:
    """Cuts factors off after `fraction` fraction bits."""
    mask = np.uint32(0xFFFFFFFF >> 23 - fraction << 23 - fraction)
    return lambda x: (np.ascontiguousarray(x).view(np.uint32) & mask).view(np.float32)


TOWARD_ZERO = Hardware(last=np.trunc)
TF32 = Hardware(factor=truncated(10))
BFLOAT16 = Hardware(factor=truncated(7))
NATIVE = Hardware(single=True)
"""FP32 sums without correction, as any kernel makes them."""


def is_f32_sum(instruction: Instruction) -> bool:
    """Whether the instruction is a sum of float32 values that this module can compute."""
    return instruction.opcode == Opcode.REDUCE and sum_kind(instruction) is not None


def summing(program: Program, hardware: Hardware, precision: int) -> Observer:
    """Computes every sum of a step as this hardware does."""
    sums = {n: i for n, i in enumerate(program.body) if is_f32_sum(i)}
    wanted = {operand.value for i in sums.values() for operand in i.operands}
    held: dict[int, Tensor] = {}

    def observe(leaf: int, tensor: Tensor) -> Tensor:
        if leaf in sums:
            i, factors = sums[leaf], []
            for operand in i.operands:
                view = View.of_access(operand, i.index_space).on(held[operand.value])
                factors.append(view.expand(i.index_space).reshape(i.numel, -1).numpy())
            tensor = torch.from_numpy(hardware.sum(factors, precision)).view(tensor.shape)
        if leaf in wanted:
            held[leaf] = tensor
        return tensor

    return observe


FRACTION_BITS: Final = 23

# ---------------------------------------------------------------- one number


WEIGHT: Final = tuple(MODEL + layer for layer in ("hidden.", "norm.weight", "norm.bias", "head.", "policy."))
MOMENT: Final = (f"{OPTIMIZER}exp_avg",)
STATISTIC: Final = (f"{MODEL}norm.running_",)
LOSS: Final = (TELEMETRY,)
"""The beginnings of the names of state entries in which a number is changed."""


def _leaves_of(program: Program, prefixes: tuple[str, ...]) -> list[int]:
    """The leaves for some state entries: the commits, and what they commit; also the loss itself and its record."""
    entries = enumerate(program.state_spec().items())
    slots = [n for n, (name, (dtype, _)) in entries if name.startswith(prefixes) and dtype == DType.F32]
    record = len(program.body) - 1
    more = [program.body[record].operands[0].value, record] if prefixes == LOSS else []
    return [*(leaf for slot in slots for leaf in _places_of(program, slot)), *more]


def _places_of(program: Program, slot: int) -> tuple[int, int]:
    """The leaves where a state entry can be changed: only where it is committed, or where it is computed."""
    return program.leaf_of_commit(slot), program.commits[slot].operands[0].value


def one_bit(rng: Random) -> Change:
    """Flips one of the 32 bits, the same for every number of an attempt."""
    bit = rng.randrange(32)
    return lambda number: flip_bit(number, bit)


def one_ulp(rng: Random) -> Change:
    """Replaces the number by one of its two neighbours."""
    toward = torch.tensor(rng.choice((float("inf"), float("-inf"))))
    return lambda number: torch.nextafter(number, toward)


def changed(prefixes: tuple[str, ...], how: Callable[[Random], Change]) -> Deviation:
    """One element of one tensor differs after one step, either where it is computed or only where it is committed."""

    def attempt(workshop: Workshop, job: Job, rng: Random) -> Work:
        program, step = workshop.program, step_of(job, rng)
        leaf = rng.choice(_leaves_of(program, prefixes))
        slot = leaf - (1 << program.half_depth)
        shaped = program.commits[slot].operands[0].value if slot >= 0 else leaf
        element = rng.randrange(program.body[shaped].numel)
        return tampered(workshop, job, Cheat(step=step, leaf=leaf, element=element, change=how(rng)))

    return attempt


def negative_zero(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A zero of the state, such as a moment of a weight that never had a gradient, is committed as -0, its equal."""
    program, step = workshop.program, step_of(job, rng)
    state = workshop.run.state(step)
    zeros = {
        name: (x == 0).flatten().nonzero().flatten().tolist() for name, x in state.items() if x.is_floating_point()
    }
    name = rng.choice(sorted(name for name, found in zeros.items() if found))
    leaf = rng.choice(_places_of(program, list(program.state_spec()).index(name)))
    return tampered(workshop, job, Cheat(step=step, leaf=leaf, element=rng.choice(zeros[name]), change=torch.neg))


def not_a_number(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A number that is not committed itself becomes a NaN with a payload, which spreads as an ordinary NaN does."""
    program, step = workshop.program, step_of(job, rng)
    committed = {commit.operands[0].value for commit in program.commits}
    maps = [n for n, i in enumerate(program.body) if i.opcode == Opcode.MAP and i.dtype == DType.F32 and i.shape]
    index = rng.choice([n for n in maps if n not in committed])
    element = rng.randrange(program.body[index].numel)
    bits = NAN_BITS | rng.randrange(1, 1 << 22) | rng.getrandbits(1) << 31

    def payload(data: bytes) -> bytes:
        return data[: 4 * element] + bits.to_bytes(4, "little") + data[4 * element + 4 :]

    cheat = Cheat(step=step, leaf=index, element=element, change=lambda x: torch.full_like(x, float("nan")))
    return tampered(workshop, job, cheat, raw={(step, index): payload})


def bent_partial_sum(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A fraction bit of a long sum is flipped, and one of its partial sums is bent to fit it."""
    program, step = workshop.program, step_of(job, rng)
    index = rng.choice(long_sums(program, TERMS_PER_LEAF + 1))
    bit, share = rng.randrange(MAX_PRECISION - job.precision, FRACTION_BITS), rng.random()
    element = rng.randrange(program.body[index].numel)
    cheat = Cheat(step=step, leaf=index, element=element, change=lambda total: flip_bit(total, bit))
    return tampered(workshop, job, cheat, bend=lambda count: int(share * count))


# ---------------------------------------------------------------- all sums


def summed_on(hardware: Hardware) -> Deviation:
    """Every sum is computed as this hardware does, from the first step or a random one on."""

    def attempt(workshop: Workshop, job: Job, rng: Random) -> Work:
        first = rng.choice((1, step_of(job, rng)))
        sums = summing(workshop.program, hardware, precision=job.precision)
        return altered(workshop, job, onward(job, first), lambda _: sums)

    return attempt


# fmt: off
ADVERSARIES: Final = (
    computes("one bit of a weight", changed(WEIGHT, one_bit), "plants a value of its choice in the model"),
    computes("one ulp of a weight", changed(WEIGHT, one_ulp),
        "the smallest lie there is: another machine might have made it"),
    computes("one bit of a moment", changed(MOMENT, one_bit),
        "steers the weights of later steps by what nobody looks at"),
    computes("one ulp of a moment", changed(MOMENT, one_ulp), "hides a change where it takes steps to be seen"),
    computes("one bit of a running statistic", changed(STATISTIC, one_bit),
        "spoils the model where it is used, and not where it is trained", needs=CLASSIFIER),
    computes("one ulp of a running statistic", changed(STATISTIC, one_ulp), "a change that no training step reads",
        needs=CLASSIFIER),
    computes("one bit of a loss", changed(LOSS, one_bit), "a training that looks as if it went well"),
    computes("one ulp of a loss", changed(LOSS, one_ulp), "telemetry that binds nobody"),
    computes("negative zero", negative_zero, "another state that every test of equality takes for the same"),
    computes("payload in a NaN", not_a_number, "bytes in the committed values that no arithmetic can see"),
    computes("bent partial sum", bent_partial_sum, "a wrong sum of which all additions but one are right"),
    computes("rounded toward zero", summed_on(TOWARD_ZERO), "hardware without the right rounding, passed off as exact"),
    computes("products in TF32", summed_on(TF32), "an eighth of the price of the agreed arithmetic"),
    computes("products in bfloat16", summed_on(BFLOAT16), "a sixteenth of the price of the agreed arithmetic"),
    # Under policy `logged` a trainer may sum so if it logs near ties.
    computes("uncorrected FP32 sums", summed_on(NATIVE), "the price of correct rounding", needs=("exact", "rollouts")),
)
# fmt: on
