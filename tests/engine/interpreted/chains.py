"""Chains of elementwise instructions.

`every` in place of `fast` or `slow` settles exp and tanh of every f32, at all precisions, in some minutes: what the C
kernel's FP64 leaves open, the GPU kernel's pairs settle (decision 66). It needs a C compiler.
"""

import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import mpmath
import numpy as np
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.arithmetic_cases import STYLES, Maker, check, tensor_of
from tests.engine.interpreted import Mutants, changed, killed, patch_index
from tests.engine.random_programs import SIGNATURES, check_program
from tiebreak.engine.arithmetic import Arithmetic, elementwise_fused
from tiebreak.engine.arithmetic.kernels import elementwise as elementwise_kernels
from tiebreak.engine.arithmetic.random import RandomFrom
from tiebreak.engine.arithmetic.reduce import fused
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run import qualify
from tiebreak.engine.run.interpreter import Interpreter, NotFiniteError, State
from tiebreak.engine.run.schedule import CHAINED, is_elementwise
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.program.isa import (
    Access,
    DType,
    Instruction,
    MapFunction,
    Opcode,
)

CHAINED_SIGNATURES = [signature for signature in SIGNATURES if signature[0] in CHAINED]
PRECISIONS = range(MIN_PRECISION, MAX_PRECISION + 1)
EXP, TANH = MapFunction.EXP, MapFunction.TANH
HARD = {
    EXP: [0x33FFFFFF, 0x347FFFFE, 0xB4800001, 0x34FFFFFC, 0xB5000002, 0x35BFFFF7, 0x33800000, 0xB3000000],
    TANH: [0x4058E0A3, 0x3A7A8D33, 0x3AC37DE2, 0x4011C7E6, 0x405715FF, 0x3CB7D5F3, 0x3F800000, 0x3B7FFFFF],
}
"""Arguments whose results are nearest to a middle at some precision, within 2^-70 of it for the first (`every`)."""
TIES = [0x3F808000, 0x3F818000, 0x00008000, 0x80018000, 0x3F807FFF, 0x3F808001, 0x7F7F8000, 0xFF800000]
"""Between numbers of bfloat16, or nearly."""


def map_of(function: MapFunction, result: DType, shape: tuple[int, ...], *operands: Access) -> Instruction:
    return Instruction(opcode=Opcode.MAP, function=function, dtype=result, shape=shape, operands=operands)


def of_all(arithmetic: Arithmetic, function: MapFunction, bits: Sequence[int]) -> int:
    """Compares a function of f32 by their bits; returns how many FP64 left open."""
    x = tensor_of(DType.F32, list(bits))
    check(arithmetic, map_of(function, DType.F32, (len(bits),), Access(0, 0, (1,))), [x])
    return len(bits)


# ---- checks ----


@cache
def vectors(precision: int) -> list[tuple[Any, tuple[int, ...]]]:
    """Qualification's cases for chains, with the right answers."""
    return [(case, qualify._right(case, precision)) for case in qualify._cases() if is_elementwise(case.instruction)]


def conforms(*names: str, precision: int = 32) -> int:
    """Compares those whose names begin like one of these, or all; raises `ConfigurationError`."""
    arithmetic, ran = Arithmetic(precision=precision), 0
    for case, right in vectors(precision):
        if case.name.startswith(names or ("",)):
            ran += qualify._compare(arithmetic, case, right)
    return ran


def views(examples: int) -> int:
    """One instruction on any access maps and hostile values, at every precision, in blocks of 8, counted in 64 bits."""
    ran = []

    @settings(max_examples=examples, deadline=None, database=None)
    @given(st.integers(0, 2**32), st.integers(16, 32), st.booleans())
    def holds(seed: int, precision: int, wide: bool) -> None:
        make = Maker(random.Random(seed))
        function, types, result = make.random.choice(CHAINED_SIGNATURES)
        shape = make.dims(4, 4)
        made = [make.access(o, shape) for o in range(len(types))]
        style = make.random.choice(STYLES)
        operands = [make.tensor(t, size, style) for t, (_, size) in zip(types, made, strict=True)]
        i = map_of(function, result, shape, *(access for access, _ in made))
        with mock.patch.multiple(elementwise_fused, WIDE=1 if wide else 1 << 31, BLOCK=8 if i.numel < 40 else 64):
            ran.append(len(check(Arithmetic(precision=precision), i, operands)))

    holds()
    return sum(ran)


def programs(seeds: range, length: int) -> int:
    """Whole random programs: chains of everything, observed or not, results in the memory of operands."""
    with mock.patch.object(fused, "_kernels", return_value=None):  # sums are another module's matter
        return sum(sum(check_program(seed, length)) for seed in seeds)


def draws() -> int:
    """Elements from any number on, in blocks of Philox and across them."""
    arithmetic, ran = Arithmetic(), 0
    keys = [torch.tensor([0x123456789ABCDEF]), torch.tensor([-3])]
    for first in (0, 4, 5, (1 << 34) + 3):
        accesses = tuple(Access(o, 0, (0,)) for o in range(2))
        params = RandomFrom(stream=9, first=first)
        i = Instruction(opcode=Opcode.RANDOM, dtype=DType.F32, shape=(150,), operands=accesses, params=params)
        assert arithmetic.chains is not None
        with mock.patch.object(elementwise_fused, "BLOCK", 64):
            assert torch.equal(arithmetic.chains.alone(i, keys), arithmetic.execute(i, keys, 0))
        ran += i.numel
    return ran


def seals() -> int:
    """Committed results have the one NaN, and those that are not finite are named, once."""
    b = Builder()
    x, y = b.state("x", DType.F32, (70,)), b.state("y", DType.F32, (70,))
    program = b.finish({"x": b.map(MapFunction.NEG, x), "y": b.mul(y, y), "z": b.sub(x, y)}, b.max(x))
    machine = Interpreter(program, Arithmetic())
    for name, bad, bits, first in (("x", -0x1234, 0x7FC00000, "x"), ("y", 0x7F000000, 0x7F800000, "y")):
        state = {"x": torch.zeros(70), "y": torch.ones(70)}
        machine.step(1, state, {})
        state[name][69] = torch.tensor(bad, dtype=torch.int32).view(torch.float32)
        assert lost_by(machine, state) == first
        found = machine.step(4, state, {}, check_finite=False).state
        assert int(found[name].view(torch.int32)[69]) == bits
    return 2


def lost_by(machine: Interpreter, state: State) -> str | None:
    """The entry that a step names because it is no longer finite."""
    try:
        machine.step(4, state, {})
    except NotFiniteError as error:
        return error.name
    return None


def hard() -> int:
    """Results next to a middle, at each precision; tanh of what is one itself, however small."""
    ran = 0
    for precision in (MIN_PRECISION, 29, 31, 32):
        arithmetic = Arithmetic(precision=precision)
        half = 1 << 31 - precision if precision < 32 else 0
        small = [(exponent << 23) + n * half for exponent in (0, 1, 60, 102, 104, 116) for n in (1, 3)]
        ran += of_all(arithmetic, EXP, HARD[EXP])
        ran += of_all(arithmetic, TANH, [*HARD[TANH], *small, 1, 0x80000001, 0x807FFFFF])
    return ran


def hard_at(precision: int, function: MapFunction) -> int:
    return of_all(Arithmetic(precision=precision), function, HARD[function])


@triton.jit
def measure(x, h, low, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    """The pairs themselves."""
    at = tl.arange(0, BLOCK)
    of_x = elementwise_fused._kernels(torch.device("cpu")).in_pairs(tl.load(x + at), FUNCTION)
    tl.store(h + at, of_x[0])
    tl.store(low + at, of_x[1])


def pairs(function: MapFunction) -> int:
    """Pairs of FP64 err by less than 2^-99, as the module proves, everywhere."""
    least, most = ("-104", "89") if function == EXP else ("0x1p-24", "10")
    r = np.random.default_rng(1)
    spread = r.uniform(float.fromhex(least), float.fromhex(most), 400)
    small = 2.0 ** r.uniform(-24, 2, 400) * (1 if function == TANH else r.choice([-1, 1], 400))
    middles = (np.arange(-150, 128) + 0.5) * np.log(2) if function == EXP else (np.arange(0, 28) + 0.5) * np.log(2) / 2
    inside = (middles > float.fromhex(least)) & (middles < float.fromhex(most))
    x = np.concatenate([spread, small, middles[inside]]).astype(np.float32).astype(np.float64)
    x = np.pad(x, (0, -len(x) % 1024), constant_values=1.0)[:1024]
    h, low = torch.empty(1024, dtype=torch.float64), torch.empty(1024, dtype=torch.float64)
    measure[(1,)](torch.from_numpy(x), h, low, FUNCTION=int(function), BLOCK=1024)
    exactly = mpmath.exp if function == EXP else mpmath.tanh
    with mpmath.workprec(400):
        for n, (a, b) in enumerate(zip(h.tolist(), low.tolist(), strict=True)):
            right = exactly(mpmath.mpf(x[n]))
            assert abs(mpmath.mpf(a) + mpmath.mpf(b) - right) < right * mpmath.mpf(2) ** -99, (function, x[n])
    return len(x)


def decided() -> int:
    """FP64 decides nearly all results, so that pairs are rare."""
    arithmetic = Arithmetic()
    x = torch.linspace(-20, 20, 4096)
    for function in (EXP, TANH):
        assert arithmetic.chains is not None
        arithmetic.chains.alone(map_of(function, DType.F32, (4096,), Access(0, 0, (1,))), [x])
        assert arithmetic.stats.of(f"map.{function.name.lower()}").undecided <= 2
    return 2 * 4096


# ---- mutants ----

MUTANTS: Mutants = {
    "negatives by subtraction": ((("float_of(bits_of(x) ^ -0x80000000)", "0.0 - x"),), lambda: conforms("map neg")),
    "extremes may be -0": (((", chosen, x) + 0.0", ", chosen, x)"),), lambda: conforms("map m")),
    "NaN by comparison": ((("tl.where(x == x, chosen, x)", "chosen"),), lambda: conforms("map max", "map min")),
    "quotients toward zero": ((("quotient - below,", "quotient,"),), lambda: conforms("map floordiv")),
    "rests with the dividend's sign": ((("rest + below * safe", "rest"),), lambda: conforms("map mod")),
    "2^63 is converted": ((("tl.abs(x) < 2.0**63", "tl.abs(x) <= 2.0**63"),), lambda: conforms("map cast")),
    "bf16 away from even": ((("+ ((bits >> 16) & 1))", "+ 1)"),), lambda: of_all(Arithmetic(), MapFunction.BF16, TIES)),
    "NaN keeps its payload": ((("tl.where(x == x, bits_of(x), 0x7FC00000)", "bits_of(x)"),), seals),
    "only infinities are noted": ((("(bits_of(x) & 0x7F800000) ==", "(bits_of(x) & 0x7FFFFFFF) =="),), seals),
    "nothing is open": ((("RELATIVE = tl.constexpr(17 *", "RELATIVE = tl.constexpr(0 *"),), lambda: hard_at(29, EXP)),
    "everything is open": ((("undecided = inside & (result !=", "undecided = inside & (result <="),), decided),
    "middles twice to even": ((
        ("round_pair(h, low - h * OPEN,", "round_to(h + (low - h * OPEN),"),
        ("round_pair(h, low + h * OPEN,", "round_to(h + (low + h * OPEN),"),
    ), lambda: hard_at(29, EXP)),
    "exp without what pairs add": ((("1.0, e * 0.0, e, e_low)", "1.0, e * 0.0, e, e * 0.0)"),), lambda: pairs(EXP)),
}  # fmt: skip
SLOW_MUTANTS: Mutants = {
    "no rest of coefficients": ((("Fraction(1, factorial(j + 1)) - Fraction", "0 * Fraction"),), lambda: pairs(EXP)),
    "ln 2 in two parts": ((("0x1.cc01f97b57a08p-87", "0x0p0"),), lambda: pairs(EXP)),
    "fewer terms": ((("PAIRS = tl.constexpr(22)", "PAIRS = tl.constexpr(19)"),), lambda: pairs(EXP)),
    "products without cross terms": ((("join(p, e + (a * b_low + a_low * b))", "join(p, e)"),), lambda: pairs(EXP)),
    "quotients of single numbers": ((("join(q, rest / b)", "(q, rest * 0.0)"),), lambda: pairs(TANH)),
    "tiny numbers as all": ((("tiny = x < 2.0**-24", "tiny = x < 0.0"),), hard),
    "tanh without a sign": ((("| sign) if FUNCTION == TANH", ") if FUNCTION == TANH"),), lambda: conforms("map tanh")),
    "one word of Philox twice": ((("tl.join(c1, c3)", "tl.join(c1, c2)"),), lambda: conforms("random")),
    "words by the wrong element": ((("place % 4 < 2", "place % 4 < 3"),), draws),
    "strides in another order": ((("AT + 2 * RANK - 1 - back", "AT + RANK + back"),), lambda: views(40)),
}  # fmt: skip


ALL_OPEN = "RELATIVE = tl.constexpr(17 *", "RELATIVE = tl.constexpr(2**12 *"
"""Pairs settle whatever C's FP64, which has FMAs, leaves open, and more."""


def every() -> dict[str, int]:
    """How many arguments the C kernel leaves open, by function and precision. Pairs have settled them all."""
    found, size = {}, 1 << 22
    for function, least, most in ((EXP, 127 - 40, 127 + 7), (TANH, 127 - 14, 127 + 4)):
        i = map_of(function, DType.F32, (size,), Access(0, 0, (1,)))
        for precision in PRECISIONS:
            seen = open_in_c(i, precision, range(least << 23, most << 23, size), both=function == EXP)
            if seen:
                of_all(Arithmetic(precision=precision), function, sorted(seen))
            found[f"{function.name.lower()}, {precision} bits"] = len(seen)
    return found


def open_in_c(i: Instruction, precision: int, starts: range, *, both: bool) -> set[int]:
    """The bits of arguments of i's function that the C kernel asks for. both: with either sign."""
    seen: set[int] = set()
    with mock.patch.object(elementwise_fused, "_kernels", return_value=None):
        arithmetic = Arithmetic(precision=precision)
    with mock.patch.object(arithmetic._transcendentals, "exact_bits", lambda _, bits: seen.add(bits) or 0):
        for begin in starts:
            x = torch.arange(begin, begin + i.numel, dtype=torch.int32).view(torch.float32)
            for each in (x, -x) if both else (x,):
                assert arithmetic.chains is not None
                arithmetic.chains.alone(i, [each])
    return seen


def main() -> None:
    """Run and print."""
    patch_index()
    torch.set_num_threads(1)
    np.seterr(all="ignore")  # infinities are among the values
    assert elementwise_fused.runs_on(torch.device("cpu"))
    if sys.argv[1] == "every":
        with tempfile.TemporaryDirectory() as folder:
            module = changed(elementwise_kernels, Path(folder), (ALL_OPEN,))
        with mock.patch.object(elementwise_fused, "_kernels", return_value=module):
            sys.stdout.write(json.dumps(every()) + "\n")
        return
    slow = sys.argv[1] == "slow"
    mutants = SLOW_MUTANTS if slow else MUTANTS
    checks: dict[str, Callable[[], int]] = {
        "vectors": conforms,
        "views": lambda: views(12),
        "programs": lambda: programs(range(2), 30),
        "draws": draws,
        "seals": seals,
        "hard": lambda: hard_at(29, EXP) + hard_at(30, TANH),
        "decided": decided,
        "pairs": lambda: pairs(EXP),
    }
    if slow:
        checks = {
            "vectors, 16 bits": lambda: conforms(precision=16),
            "views": lambda: views(100),
            "programs": lambda: programs(range(2, 22), 60),
            "hard": hard,
            "pairs": lambda: pairs(EXP) + pairs(TANH),
        }
    ran = {name: run() for name, run in checks.items()}
    dead = killed(mutants, elementwise_kernels, elementwise_fused)
    sys.stdout.write(json.dumps({"ran": ran, "dead": dead, "alive": sorted(set(mutants) - set(dead))}) + "\n")


if __name__ == "__main__":
    main()
