"""Chains of elementwise instructions.

With the argument `every`, it tries the transcendental functions of every f32, in some minutes: what FP64 might
leave open at some precision is run and compared with integers (docs/decisions/gpu-kernels.md). It needs a C compiler.
"""

import random
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import mpmath
import numpy as np
import torch
import triton
import triton.language as tl

from tests.engine.arithmetic_cases import STYLES, Maker, check, elements_of, map_of, tensor_of
from tests.engine.interpreted import Mutants, Suite, killed, main, tried
from tests.engine.random_programs import SIGNATURES, check_program
from tests.hardest.search import _pieces, _run, compile_filter
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import launches
from tiebreak.engine.arithmetic.gpu import backend, chains
from tiebreak.engine.arithmetic.gpu.kernels import chains as kernels
from tiebreak.engine.arithmetic.gpu.kernels import rounding
from tiebreak.engine.arithmetic.plan.chains import RandomFrom
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run import qualify
from tiebreak.engine.run.interpreter import Interpreter, NotFiniteError, State
from tiebreak.engine.run.schedule import is_elementwise
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.program.isa import TRANSCENDENTALS, Access, DType, Instruction, MapFunction, Opcode
from tiebreak.protocol.program.reference import TRANSCENDENTAL_FUNCTIONS

PRECISIONS = range(MIN_PRECISION, MAX_PRECISION + 1)
EXP, LOG, TANH, ERF, SIN, COS = sorted(TRANSCENDENTALS)
HARD = {
    EXP: [0x33FFFFFF, 0x347FFFFE, 0xB4800001, 0x34FFFFFC, 0xB5000002, 0x35BFFFF7, 0x33800000, 0xB3000000],
    LOG: [
        0x65D890D3, 0x4C5D65A5, 0x1E88452D, 0x7A17F30A, 0x41178FEB, 0x500FFB03, 0x3F800001, 0x3F7FFFFF, 1, 0x80000001,
    ],
    TANH: [0x4058E0A3, 0x3A7A8D33, 0x3AC37DE2, 0x4011C7E6, 0x405715FF, 0x3CB7D5F3, 0x3F800000, 0x3B7FFFFF],
    ERF: [0x3940EAD6, 0x3F659229, 0xB9C0057D, 0x33A7F929, 0x36AEA466, 0x40104F1B, 0x407FFFFF, 1, 0x80000003],
    SIN: [0x6F79BE45, 0x50A3E87F, 0xC37CE5F1, 0x4AFDECE4, 0x73243F06, 0x3FA7832A, 0x61A40B40, 0x7F7FFFFF, 0xC0490FDB],
    COS: [0x6FF9BE45, 0x5123E87F, 0xE115CB11, 0x5F18B878, 0x55325019, 0x491A2430, 0x5AA4542C, 0x7F7FFFFF, 0x40C90FDB],
}  # fmt: skip
"""Arguments whose results are nearest to a middle at some precision (tests/hardest), and others at an edge."""
LARGE = 2.0**127
USUAL = {
    EXP: (-104, 89), LOG: (2**-126, LARGE), TANH: (2**-24, 10), ERF: (2**-126, 4), SIN: (2**-24, LARGE),
    COS: (0, LARGE),
}  # fmt: skip
"""The range of numbers for which the proof about pairs holds."""
TIES = [0x3F808000, 0x3F818000, 0x00008000, 0x80018000, 0x3F807FFF, 0x3F808001, 0x7F7F8000, 0xFF800000]
"""Numbers half-way between two of bfloat16, or nearly."""


def of_all(arithmetic: Arithmetic, function: MapFunction, bits: Sequence[int]) -> int:
    """Compares a function of f32 by their bits; returns how many FP64 left open."""
    x = tensor_of(DType.F32, list(bits))
    check(arithmetic, map_of(function, DType.F32, (len(bits),), Access(0, 0, (1,))), [x])
    return len(bits)


# ---- checks ----


@cache
def vectors(precision: int) -> list[tuple[Any, tuple[int, ...]]]:
    """Qualification's cases for chains, with the right answers."""
    return [
        (case, qualify._right(case, precision))
        for case in qualify._cases()
        if is_elementwise(case.instruction, MapFunction)
    ]


def conforms(*names: str, precision: int = 32) -> int:
    arithmetic, ran = Arithmetic(precision=precision), 0
    chosen = [(case, right) for case, right in vectors(precision) if case.name.startswith(names or ("",))]
    for case, right, result in qualify._chained(arithmetic, chosen):
        qualify._compare_result(arithmetic, case, right, result)
        ran += len(right)
    return ran


def views(examples: int) -> int:
    """One instruction on any access maps and hostile values, at every precision, in blocks of 8, counted in 64 bits."""

    def holds(seed: int, precision: int) -> int:
        make = Maker(random.Random(seed))
        function, types, result = make.random.choice(SIGNATURES)
        shape = make.dims(4, 4)
        made = [make.access(o, shape) for o in range(len(types))]
        style = make.random.choice(STYLES)
        operands = [make.tensor(t, size, style) for t, (_, size) in zip(types, made, strict=True)]
        i = map_of(function, result, shape, *(access for access, _ in made))
        wide = make.random.choice([1, 1 << 31])
        with mock.patch.multiple(chains, WIDE=wide, BLOCK=8 if i.numel < 40 else 64):
            return len(check(Arithmetic(precision=precision), i, operands))

    return tried(examples, holds)


def programs(seeds: range, length: int) -> int:
    """Whole random programs: chains of everything, observed or not, results in the memory of operands."""
    with mock.patch.object(backend, "plan_tables", return_value=None):  # sums are another module's matter
        return sum(sum(check_program(seed, length)) for seed in seeds)


def draws() -> int:
    """Elements from any number on, in blocks of Philox and across them."""
    arithmetic, ran = Arithmetic(), 0
    keys = [torch.tensor([0x123456789ABCDEF]), torch.tensor([-3])]
    for first in (0, 4, 5, (1 << 34) + 3):
        accesses = tuple(Access(o, 0, (0,)) for o in range(2))
        params = RandomFrom(stream=9, first=first)
        i = Instruction(opcode=Opcode.RANDOM, dtype=DType.F32, shape=(150,), operands=accesses, params=params)
        with mock.patch.object(chains, "BLOCK", 64):
            assert torch.equal(arithmetic.backend.run_once([i], keys)[0], arithmetic.execute(i, keys, 0))
        ran += i.numel
    return ran


def finalizers() -> int:
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
    try:
        machine.step(4, state, {})
    except NotFiniteError as error:
        return error.name
    return None


def hard() -> int:
    """Results next to a middle, at each precision; tanh and sin of what is one itself, however small."""
    ran = 0
    for precision in (MIN_PRECISION, 29, 31, 32):
        arithmetic = Arithmetic(precision=precision)
        half = 1 << 31 - precision if precision < 32 else 0
        small = [(exponent << 23) + n * half for exponent in (0, 1, 60, 102, 104, 116) for n in (1, 3)]
        ran += sum(of_all(arithmetic, function, bits) for function, bits in HARD.items())
        ran += sum(of_all(arithmetic, function, [*small, 1, 0x80000001, 0x807FFFFF]) for function in (TANH, SIN))
    return ran


def hard_at(precision: int, function: MapFunction) -> int:
    return of_all(Arithmetic(precision=precision), function, HARD[function])


@triton.jit
def measure(x, y, h, low, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    """FP64 and the pairs themselves."""
    at, module = tl.arange(0, BLOCK), chains.kernels("chains")
    of_x = module.in_pairs(tl.load(x + at), FUNCTION)
    tl.store(y + at, module.in_fp64(tl.load(x + at), FUNCTION))
    tl.store(h + at, of_x[0])
    tl.store(low + at, of_x[1])


def arguments(function: MapFunction) -> np.ndarray[Any, Any]:
    least, most = USUAL[function]
    r = np.random.default_rng(1)
    spread = r.uniform(max(least, -(2.0**30)), min(most, 2.0**30), 300)
    small = 2.0 ** r.uniform(-24, 2, 300) * (r.choice([-1, 1], 300) if least < 0 else 1)
    large = 2.0 ** r.uniform(2, 127, 300)
    turns = np.arange(-150, 128) / 2 * (np.pi / 2 if function in (SIN, COS) else np.log(2))
    hard = np.array(HARD[function], dtype=np.uint32).view(np.float32)
    x = np.concatenate([hard, hard * 2, turns, small, large, spread]).astype(np.float32).astype(np.float64)
    x = x[(x >= least) & (x <= most)]
    return np.resize(x, 1024)


def pairs(function: MapFunction) -> int:
    """Pairs of FP64 err by less than 2^-97, FP64 by less than 23 ulp of 2^-52, as the module proves, everywhere."""
    x = arguments(function)
    y, h, low = (torch.empty(1024, dtype=torch.float64) for _ in range(3))
    measure[(1,)](torch.from_numpy(x), y, h, low, FUNCTION=int(function), BLOCK=1024)
    exactly = getattr(mpmath, function.name.lower())
    with mpmath.workprec(600):
        for n, (single, a, b) in enumerate(zip(y.tolist(), h.tolist(), low.tolist(), strict=True)):
            right = exactly(mpmath.mpf(x[n]))
            size = abs(right)
            assert abs(mpmath.mpf(a) + mpmath.mpf(b) - right) <= size * mpmath.mpf(2) ** -97, (function, x[n])
            assert abs(single - right) <= size * 23 * mpmath.mpf(2) ** -52, (function, x[n])
    return len(x)


def decided() -> int:
    """FP64 decides nearly all results, so that pairs are rare."""
    arithmetic = Arithmetic()
    x = torch.linspace(-20, 20, 4096)
    for function in HARD:
        arithmetic.backend.run_once([map_of(function, DType.F32, (4096,), Access(0, 0, (1,)))], [x])
        assert arithmetic.stats.of(f"map.{function.name.lower()}").undecided <= 4
    return len(HARD) * 4096


# ---- mutants ----

MUTANTS: Mutants = [
    ("negatives by subtraction", lambda: conforms("map neg"), "float_of(bits_of(x) ^ -0x80000000)", "0.0 - x"),
    ("extremes may be -0", lambda: conforms("map m"), ", chosen, x) + 0.0", ", chosen, x)"),
    ("NaN by comparison", lambda: conforms("map max", "map min"), "tl.where(x == x, chosen, x)", "chosen"),
    ("quotients toward zero", lambda: conforms("map floordiv"), "quotient - below,", "quotient,"),
    ("rests with the dividend's sign", lambda: conforms("map mod"), "rest + below * safe", "rest"),
    ("2^63 is converted", lambda: conforms("map cast"), "tl.abs(x) < 2.0**63", "tl.abs(x) <= 2.0**63"),
    ("bf16 away from even", lambda: of_all(Arithmetic(), MapFunction.BF16, TIES), "+ ((bits >> 16) & 1))", "+ 1)"),
    ("NaN keeps its payload", finalizers, "tl.where(x == x, bits_of(x), 0x7FC00000)", "bits_of(x)"),
    ("only infinities are noted", finalizers, "(bits_of(x) & 0x7F800000) ==", "(bits_of(x) & 0x7FFFFFFF) =="),
    ("nothing is open", lambda: hard_at(29, EXP), "RELATIVE = tl.constexpr(32 *", "RELATIVE = tl.constexpr(0 *"),
    ("middles twice to even", lambda: hard_at(29, EXP), "round_pair(h, low - h * OPEN,",
     "round_to(h + (low - h * OPEN),", "round_pair(h, low + h * OPEN,", "round_to(h + (low + h * OPEN),"),
    ("everything is open", decided, "undecided = inside & (result !=", "undecided = inside & (result <="),
    ("exp without what pairs add", lambda: pairs(EXP), "1.0, e * 0.0, e, e_low)", "1.0, e * 0.0, e, e * 0.0)"),
    ("ln 2 in two parts", lambda: pairs(EXP), "0x1.cc01f97b57a08p-87", "0x0p0"),
    ("fewer terms", lambda: pairs(EXP), "EXP, 22)", "EXP, 17)"),
    ("products without cross terms", lambda: pairs(EXP), "join(p, e + (a * b_low + a_low * b))", "join(p, e)"),
    ("pairs as rough as FP64", lambda: hard_at(32, LOG), "tl.constexpr(2.0**-90)", "tl.constexpr(2.0**-50)"),
    ("parts of 2 / pi too long", lambda: pairs(SIN), "PART = 29", "PART = 30"),
    ("two words of 2 / pi fewer", lambda: pairs(SIN), "static_range(9)", "static_range(7)"),
    ("whole numbers not counted", lambda: hard_at(32, COS), "k += n + m", "k += n"),
    ("logarithms of 0 finite", lambda: conforms("map log"), "tl.where(a == 0, float(\"-inf\"), y)", "y"),
    ("a coarse 2 / sqrt(pi)", lambda: pairs(ERF), "0x1.1ae3a914fed80p-56", "0x0p0"),
    ("fewer terms of erf", lambda: pairs(ERF), "ERF, 84)", "ERF, 74)"),
    ("fewer terms of erf in FP64", lambda: pairs(ERF), "GROWING, 60)", "GROWING, 54)"),
    ("fewer terms of log", lambda: pairs(LOG), "LOG, 20)", "LOG, 17)"),
    ("quotients left out", lambda: pairs(LOG), "t, low = over(t, low, d, d * 0.0)", "t, low = t / d, low / d"),
    ("fewer terms of cos", lambda: pairs(COS), "SIN, 14)", "SIN, 11)"),
    ("quotients of single numbers", lambda: pairs(TANH), "join(q, rest / b)", "(q, rest * 0.0)"),
    ("tiny numbers as all", hard, "tiny = x < 2.0**-24", "tiny = x < 0.0"),
    ("tanh without a sign", lambda: conforms("map tanh"), "^ (bits_of(x) & -0x80000000))", "^ 0)"),
    ("one word of Philox twice", lambda: conforms("random"), "tl.join(c1, c3)", "tl.join(c1, c2)"),
    ("words by the wrong element", draws, "place % 4 < 2", "place % 4 < 3"),
    ("strides in another order", lambda: views(40), "AT + 2 * RANK - 1 - back", "AT + RANK + back"),
]  # fmt: skip


def every() -> dict[str, list[int]]:
    """Counts, by function, the arguments whose values are near a boundary, and the results that FP64 leaves open.

    `search.c` finds arguments with values within 2^-43 of a boundary of any precision; the test of FP64 reaches 2^-46.
    """
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        program = compile_filter(Path(folder))
        for function in HARD:
            near = [x for piece in _pieces(function) for x in _run(program, function, piece)[0]]
            open_ = 0
            for precision in PRECISIONS:
                arithmetic = Arithmetic(precision=precision)
                i = map_of(function, DType.F32, (len(near),), Access(0, 0, (1,)))
                x = tensor_of(DType.F32, near)
                result = arithmetic.backend.run_once([i], [x])[0]
                assert elements_of(result) == [TRANSCENDENTAL_FUNCTIONS[function](bits, precision) for bits in near]
                open_ += arithmetic.stats.of(f"map.{function.name.lower()}").undecided
            found[function.name.lower()] = [len(near), open_]
            sys.stderr.write(f"{function.name} {found}\n")
    return found


SUITE = Suite(
    fast={
        "views": lambda: views(4), "programs": lambda: programs(range(1), 30), "finalizers": finalizers,
        "hard": lambda: hard_at(32, LOG),
    },
    slow={
        "vectors": conforms, "vectors, 16 bits": lambda: conforms(precision=16), "views": lambda: views(60),
        "programs": lambda: programs(range(2, 8), 60), "draws": draws, "hard": hard, "decided": decided,
        "pairs": lambda: sum(map(pairs, HARD)),
    },
    mutants=MUTANTS,
    killed=lambda: killed(MUTANTS, chains, rounding, kernels),
)  # fmt: skip

if __name__ == "__main__":
    assert launches(torch.device("cpu"))
    main(SUITE, every=every)
