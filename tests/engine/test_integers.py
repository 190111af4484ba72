"""Products by integers: every inequality of docs/kernels.md, the kernel against integers, and kernels with a fault."""

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from math import gcd, isqrt, prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from tests.engine import integer_reference as reference
from tests.engine.arithmetic_cases import kernel_with, matmul
from tests.parts import slow_except
from tiebreak.engine.arithmetic import Arithmetic, Logging
from tiebreak.engine.arithmetic.backend import has_integers, integer_products
from tiebreak.engine.arithmetic.c import integers
from tiebreak.engine.arithmetic.c.integers import IntegerSum, Shape, choose
from tiebreak.engine.arithmetic.c.threads import limited
from tiebreak.engine.arithmetic.gpu import integers as on_gpus
from tiebreak.engine.arithmetic.gpu.integers import Scales
from tiebreak.engine.arithmetic.plan import moduli
from tiebreak.engine.arithmetic.plan.moduli import MODULI, count_of
from tiebreak.engine.arithmetic.plan.sums import ReduceTables, plan_tables
from tiebreak.engine.native import FLAGS, Build, _compiler
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.rounding import SumKind

COMPILER = _compiler()
HAS_AMX = integers.kernel() is not None
EMULATED = (
    ("#include <unistd.h>", "#include <unistd.h>\n" + (Path(__file__).parent / "tiles.h").read_text()),
    (" && (defined(__AMX_INT8__) || defined(__AMXINT8__))", ""),
)
"""The changes by which the instructions of AMX are computed in C."""
BODY = () if HAS_AMX else EMULATED
needs_kernel = pytest.mark.usefixtures("kernel")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The kernel as it is with AMX, or with its instructions computed in C."""
    built = kernel_with(tmp_path_factory.mktemp("integers"), *BODY, name="integers") if COMPILER else None
    if built is None or built.library is None or not built.library.find_tiles():
        pytest.skip("needs AVX-512 with VNNI and IFMA, and a C compiler")
    return built


@pytest.fixture
def kernel(compiled: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products go by integers as on a machine with AMX."""
    monkeypatch.setattr(integers, "_has_amx", lambda: True)
    monkeypatch.setattr(integers, "build", lambda: compiled)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIEBREAK_INTEGERS", "1")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each product by integers said: whether integers computed it."""
    found: list[bool] = []
    run = IntegerSum.run
    monkeypatch.setattr(IntegerSum, "run", lambda self, *given: found.append(run(self, *given)) or found[-1])
    return found


def plan_for(k: int, precision: int = 32, m: int = 40, n: int = 40) -> Any:
    return integers._moduli(Shape(1, m, n, k), count_of(k, precision), precision)


def tables_of(*shape: int) -> ReduceTables:
    """The tables of a matrix product: m, k, n and batches."""
    tables = plan_tables(matmul(*shape))
    assert tables is not None
    return tables


def leaving(*shape: int, **changes: object) -> IntegerSum:
    """A product by integers that may be left to FP64."""
    made = choose(tables_of(*shape), 32)
    assert made is not None
    for name, value in {"stays": 0, **changes}.items():
        setattr(made.moduli, name, value)
    return made


# ---- the numbers ----


def test_moduli_are_coprime_and_their_tables_are_correct() -> None:
    assert all(gcd(x, y) == 1 for x, y in combinations(MODULI, 2))
    for k, precision in ((1, 16), (64, 32), (65, 32), (768, 32), (4001, 32), (768, 16), (5000, 20)):
        plan = plan_for(k, precision)
        moduli, whole = MODULI[: plan.count], prod(MODULI[: plan.count])
        assert plan.whole[0] | plan.whole[1] << 44 == whole < 1 << 95
        assert max(*plan.over, plan.whole[0]) < 1 << 44
        assert 2 * Fraction(plan.reach) ** 2 < whole * (1 - Fraction(1, 1 << 20))
        assert plan.reach < 2**47
        for t, m in enumerate(moduli):
            assert (plan.over[2 * t] | plan.over[2 * t + 1] << 44) * plan.weight[t] % whole % m == 1
            assert plan.v1[t] << 52 | plan.v2[t] == (plan.weight[t] << 104) // m
        for x in (0, 1, -1, 12345678912345, whole // 2, -(whole // 2) + 1):
            total = sum(Fraction(x % m * plan.weight[t], m) for t, m in enumerate(moduli)) % 1
            assert total == Fraction(x, whole) % 1


def test_moduli_that_are_not_coprime_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moduli, "MODULI", (256, 254, *MODULI[2:]))
    with pytest.raises(ValueError, match="not invertible"):
        plan_for(768)


@pytest.mark.parametrize(("terms", "precision", "count"), [
    (64, 32, 10), (65, 32, 11), (4000, 32, 11), (4001, 32, 12), (64, 16, 7), (4000, 16, 7), (4001, 16, 8), (64, 24, 9),
])  # fmt: skip
def test_the_number_of_moduli_fits_terms_and_precision(terms: int, precision: int, count: int) -> None:
    assert count_of(terms, precision) == count <= len(MODULI)


def test_every_byte_sum_is_reduced_to_its_residue() -> None:
    """The quotient by one FP32 multiplication and addition, rounded once, for all sums that bytes can have."""
    plan = plan_for(5000)
    for t, m in enumerate(MODULI):
        powers = [
            byte - 256 if byte > 127 else byte
            for word, count in ((plan.low[t], 4), (plan.high_bytes[t], 3))
            for byte in (word & (1 << 32) - 1).to_bytes(4, "little")[:count]
        ]
        assert all((p - 256**i) % m == 0 for i, p in enumerate(powers))
        first = plan.first[t] - 0x4B000000 + 2**23
        x = np.arange(first + 255 * sum(min(p, 0) for p in powers), first + 255 * sum(max(p, 0) for p in powers) + 1)
        assert 2**23 < x[0] < x[-1] < 2**24
        assert first % m == -0x38 * 256**6 % m
        significand = int(Fraction(plan.inverse[t]) * 2**32)
        assert significand == Fraction(plan.inverse[t]) * 2**32
        exact = x * significand + (int(plan.add[t]) << 32)  # in units of 2^-32, below 2^56
        quotient = (exact + (1 << 31) - 1 + (exact >> 32 & 1)) >> 32  # to the nearest integer, ties to even
        assert 2**23 <= quotient.min() <= quotient.max() < 2**24
        low = (quotient - 2**23 & 0xFFFF).astype(np.int64)
        low = np.where(low > 32767, low - 65536, low)
        residue = (x - 2**23 + low * (-m)) & 255
        residue = np.where(residue > 127, residue - 256, residue)
        assert ((residue - x) % m == 0).all()


def test_the_reconstruction_error_is_within_the_proved_slack() -> None:
    r = np.random.default_rng(4)
    for k, precision in ((64, 32), (768, 32), (3000, 16), (50257, 32), (1 << 22, 32)):
        plan = plan_for(k, precision)
        moduli, whole = MODULI[: plan.count], prod(MODULI[: plan.count])
        panels = -(-plan.tiles // plan.panel)
        for extreme in (False, True) if panels < 100 else (False,):
            spread = [
                [int(c) + (1 << 30) for c in (r.integers(-3, 3, plan.count) + (1 << 29) * (1 if extreme else 0))]
                for _ in range(panels)
            ]
            exact = sum(
                Fraction((c - (1 << 30)) * plan.weight[t], m)
                for s in spread
                for t, (c, m) in enumerate(zip(s, moduli, strict=True))
            )
            difference = (exact * 2**52 - (reference.fraction_of(plan, spread) - plan.added)) % 2**52
            assert difference < panels + 1 or difference > 2**52 - 1
            assert plan.slack > Fraction(whole, 1 << 52) * (Fraction(panels, 2) + 3)


@pytest.mark.parametrize("kind", reference.HOSTILE)
def test_norms_bound_sums_and_truncation_errors(kind: str) -> None:
    a, b = reference.factors(kind, 4, 70, 4)
    plan = plan_for(70)
    whole = prod(MODULI[: plan.count])
    for row, column in product(a, b.T):
        x, y = reference.Scaled(row, int(plan.reach)), reference.Scaled(column, int(plan.reach))
        total = sum(p * q for p, q in zip(x.integers, y.integers, strict=True))
        assert 2 * abs(total) < whole
        scale = Fraction(2) ** (x.exponent + y.exponent)
        exact = scale * sum(Fraction(float(p)) * Fraction(float(q)) for p, q in zip(row, column, strict=True))
        sizes, cuts = ([reference.squares(v) for v in pair] for pair in ((x.integers, y.integers), (x.cut, y.cut)))
        # (p + q + r)^2 <= 3 (p^2 + q^2 + r^2): without roots
        assert (exact - total) ** 2 <= 3 * (cuts[0] * sizes[1] + sizes[0] * cuts[1] + cuts[0] * cuts[1])


# ---- the kernel ----


@needs_kernel
def test_the_kernel_computes_every_residue_of_every_modulus() -> None:
    """Every residue of every modulus, small and large, of rows packed by the kernel."""
    k, library = 512, integers.build().library
    r = np.random.default_rng(7)
    a = np.concatenate([r.integers(-(1 << 24), 1 << 24, (20, k)), np.arange(-10 * k, 10 * k).reshape(20, k)])
    a = a.astype(np.float32)
    a[::2, 0] = 2.0**44  # the others are small beside it
    i = matmul(len(a), k, 40)
    plan = plan_for(k, m=len(a))
    by_kernel = IntegerSum(library, Shape(1, len(a), 40, k), plan.count, 32)
    packed: list[Any] = []
    memory = integers._memory
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integers, "_memory", lambda *given: packed.append(memory(*given)) or packed[-1])
        patch.setattr("tiebreak.engine.arithmetic.c.integers.choose", lambda *_, **__: by_kernel)
        Arithmetic().execute(i, [torch.from_numpy(a).view(-1), torch.ones(40 * k)], 0)
    residues, sizes = packed[0]
    scale = sizes.reshape(4, -1)[0]
    assert by_kernel.moduli.count == plan.count
    strips = -(-len(a) // 32)
    shape = (strips, plan.count, plan.tiles, 2, 16, 16, 4)  # strip, modulus, tile, half, row, lane, byte
    tiles = residues.view(np.uint8)[: prod(shape)].reshape(shape).transpose(0, 3, 4, 1, 2, 6, 5)
    found = tiles.reshape(32 * strips, plan.count, k)[: len(a)].astype(np.int64)
    whole = [[round(Fraction(float(x)) * Fraction(scale[row])) for x in line] for row, line in enumerate(a)]
    for t, m in enumerate(MODULI[: plan.count]):
        want = np.array([[x % m for x in line] for line in whole])
        assert (found[:, t] == want).all()
        assert set(want.ravel().tolist()) == set(range(m))


SIZES = [(40, 70, 33), (33, 800, 40), (5, 1, 3)]


@needs_kernel
@pytest.mark.parametrize("kind", slow_except(list(reference.HOSTILE), "gauss", "ties", "wide"))
@pytest.mark.parametrize("size", slow_except(SIZES, SIZES[0]))
def test_integer_products_of_hostile_factors_are_exact(
    kind: str, size: tuple[int, int, int], forced: None, runs: list[bool]
) -> None:
    a, b = reference.factors(kind, *size)
    for precision in (32, 20, 16):
        want = reference.exact_product(a, b, precision)
        for permute in (None, 3):
            assert np.array_equal(reference.multiply(a, b, precision, permute)[0], want), (precision, permute)
    assert runs == [True] * 6


SHAPES = [(1, 1, 700, 1), (97, 192, 25, 2), (2, 20011, 30, 1), (2100, 70, 3, 1), (300, 40, 300, 1), (2, 2, 2, 30)]


@needs_kernel
@pytest.mark.parametrize("shape", slow_except(SHAPES, SHAPES[1]))
def test_integer_products_equal_those_in_fp64(
    shape: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch, runs: list[bool], cases: Callable[[], None]
) -> None:
    m, k, n, batch = shape
    r = np.random.default_rng(m)
    left = np.concatenate(
        [reference.HOSTILE[kind](r, batch * m // 3 + 1, k) for kind in ("gauss", "ties", "lognormal")]
    )
    operands = [
        torch.from_numpy(left[: batch * m]).reshape(-1),
        torch.from_numpy(reference.HOSTILE["heavy tails"](r, batch * n, k)).view(-1),
    ]
    operands[0][5 % m * k] = torch.inf
    for transposed in product((False, True), (False, True)):
        instruction = matmul(m, k, n, batch, transposed=transposed)
        monkeypatch.setenv("TIEBREAK_INTEGERS", "0")
        right = Arithmetic().execute(instruction, operands, 0)
        monkeypatch.setenv("TIEBREAK_INTEGERS", "1")
        for threads, permute in ((1, None), (3, 5)):
            with limited(threads):
                found = Arithmetic(permute=permute).execute(replace(instruction), operands, 0)
            assert torch.equal(found.nan_to_num(7.0), right.nan_to_num(7.0))
            cases()
    assert runs == [True] * 8 * (k > 1 or n > 1)


@needs_kernel
def test_products_are_exact_when_residues_exceed_the_buffer(
    forced: None, runs: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = reference.factors("ties", 100, 70, 40)
    want = reference.exact_product(a, b, 32)
    monkeypatch.setattr(integers, "RESIDUES", 40 * 128 * 11)  # of 32 rows
    assert np.array_equal(reference.multiply(a, b)[0], want)
    monkeypatch.setattr(integers, "RESIDUES", 31 * 128 * 11)  # not even of these
    assert np.array_equal(reference.multiply(a, b)[0], want)
    assert runs == [True]


@needs_kernel
def test_non_finite_factors_make_only_their_own_results_nan(forced: None, runs: list[bool]) -> None:
    reference.check_non_finite(20, 100, 40)
    assert runs == [True]


def left_to_fp64(a: reference.Matrix, b: reference.Matrix, **changes: object) -> bool:
    """Whether a product, whose result must be right, is left to FP64 by a plan that may leave it."""
    made, found = leaving(len(a), a.shape[1], b.shape[1], **changes), list[bool]()
    run = made.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "run", lambda *given: found.append(run(*given)) or found[-1])
        patch.setattr(integers, "choose", lambda *_, **__: made)
        assert np.array_equal(reference.multiply(a, b)[0], reference.exact_product(a, b, 32))
    assert len(found) == 1
    return not found[0]


@needs_kernel
def test_products_with_many_undecided_results_are_left_to_fp64(forced: None) -> None:
    assert not left_to_fp64(*reference.factors("gauss", 64, 96, 64))
    ties, ones = reference.factors("ties", 64, 96, 64)
    ties[2::3] = ties[1]
    assert not left_to_fp64(ties, ones)
    cancelling, ones = reference.factors("cancelling", 64, 96, 64)
    assert not left_to_fp64(cancelling, ones)  # nothing is cut: ties by integers
    cancelling[:, 47], cancelling[:, 95] = 0, 1e-12 * cancelling[:, 0]  # of which the most is cut
    assert left_to_fp64(cancelling, ones)
    wide, other = reference.factors("wide", 64, 96, 64)
    assert left_to_fp64(wide, other, loose=2.0**40)
    assert left_to_fp64(wide, other)


def _reported(rules: Logging, a: reference.Matrix, b: reference.Matrix) -> tuple[Any, Any]:
    """Results, and c and e of the near ties by element."""
    i = matmul(len(a), a.shape[1], b.shape[1])
    operands = [torch.from_numpy(np.ascontiguousarray(x)).view(-1) for x in (a, b)]
    result, near = Arithmetic(logging=rules).execute_logged(i, operands, 0)
    assert len(set(near.elements.tolist())) == len(near)
    bits = result.view(torch.int32).numpy().view(np.uint32).reshape(-1)
    return bits, dict(zip(near.elements.tolist(), zip(near.values, near.errors, strict=True), strict=True))


@needs_kernel
@pytest.mark.parametrize(("kind", "threshold"), [("gauss", 2.0**19), ("ties", None), ("ties", 30.0)])
def test_integer_products_report_the_near_ties_of_fp64(
    kind: str, threshold: float | None, monkeypatch: pytest.MonkeyPatch, runs: list[bool]
) -> None:
    """The same but at the edge, where the values of two machines lie on both sides of the error."""
    a, b = reference.factors(kind, 60, 300, 60)
    rules = Logging({SumKind.PRODUCTS: threshold}, {SumKind.PRODUCTS: 2})
    exact = [
        Fraction(int(x), 1 << 2 * reference.UNIT)
        for x in reference.integers_of(a).dot(reference.integers_of(b)).ravel()
    ]
    monkeypatch.setenv("TIEBREAK_INTEGERS", "0")
    _, wanted = _reported(rules, a, b)
    assert runs == []
    monkeypatch.setenv("TIEBREAK_INTEGERS", "1")
    bits, found = _reported(rules, a, b)
    assert runs == [True]
    for n, (c, e) in found.items():
        assert abs(Fraction(c) - exact[n]) <= Fraction(e)
        assert wanted.get(n, (c, e))[1] <= e <= 1.01 * wanted.get(n, (c, e))[1]
    edge = wanted.keys() ^ found.keys()
    for n in edge:
        c, e = found[n] if n in found else wanted[n]
        gap = Fraction(float(np.spacing(np.abs(np.float32(c)))))
        assert abs(gap / 2 - abs(Fraction(float(np.float32(c))) - Fraction(c))) > Fraction(e) / 2
    assert len(edge) <= len(wanted) / 3
    others = np.setdiff1d(np.arange(len(bits)), list(found))
    assert np.array_equal(bits[others], reference.exact_product(a, b, 32).ravel()[others])


@needs_kernel
def test_falling_back_to_fp64_discards_near_ties_reported_before(
    monkeypatch: pytest.MonkeyPatch, runs: list[bool]
) -> None:
    cancelling, alike = reference.factors("cancelling", 128, 96, 64)
    cancelling[:, 47], cancelling[:, 95] = 0, 1e-12 * cancelling[:, 0]  # of which the most is cut
    a, (_, b) = np.ascontiguousarray(alike.T), reference.factors("gauss", 64, 96, 128)
    b = np.concatenate([b, cancelling.T], 1)  # two blocks
    rules = Logging({SumKind.PRODUCTS: 2.0**16}, {SumKind.PRODUCTS: 2})
    monkeypatch.setenv("TIEBREAK_INTEGERS", "0")
    bits, wanted = _reported(rules, a, b)
    monkeypatch.setenv("TIEBREAK_INTEGERS", "1")
    made = leaving(64, 96, 256)
    monkeypatch.setattr(integers, "choose", lambda *_, **__: made)
    found, again = _reported(rules, a, b)
    assert runs == [False]
    assert any(n % 256 < 128 for n in wanted)
    assert np.array_equal(found, bits)
    assert again == wanted


@needs_kernel
def test_calibration_does_not_use_integer_products(forced: None, runs: list[bool]) -> None:
    i, operands = matmul(8, 70, 8), [torch.ones(560), torch.ones(560)]
    arithmetic = Arithmetic(logging=Logging.reporting_all())
    arithmetic.execute_logged(i, operands, 0)
    assert runs == []
    arithmetic.execute(i, operands, 0)
    assert runs == [True]


# ---- which products ----


def test_integer_products_require_a_matrix_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, small = tables_of(512, 768, 3072), tables_of(64, 64, 64, 96)
    monkeypatch.setattr(integers, "_has_amx", lambda: True)
    for library in (None, SimpleNamespace(find_tiles=lambda: 0), SimpleNamespace(find_tiles=lambda: 1)):
        monkeypatch.setattr(integers, "build", lambda library=library: Build(library, ""))
        has_unit = library is not None and library.find_tiles() == 1
        for forced in ("", "0", "1"):
            monkeypatch.setenv("TIEBREAK_INTEGERS", forced)
            assert (choose(tables, 32) is not None) == (has_unit and forced != "0")
            assert (choose(small, 32) is not None) == (has_unit and forced == "1")


def test_nothing_is_compiled_where_there_is_no_matrix_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_of(512, 768, 3072)
    compiled: list[None] = []
    build = integers.build
    monkeypatch.setattr(integers, "build", lambda: compiled.append(None) or build())
    monkeypatch.setattr(integers, "_has_amx", lambda: False)
    for forced in ("", "1"):
        monkeypatch.setenv("TIEBREAK_INTEGERS", forced)
        assert choose(tables, 32) is None
        assert dict(integer_products())["products by integers"].startswith("none: no AMX")
        assert Arithmetic().by_integers() is None
    assert compiled == []


def test_the_report_says_which_products_use_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integers, "kernel", object)
    found = dict(integer_products())
    assert found["512 x 768 x 3072"].startswith("11 moduli")
    assert found["512 x 64 x 512"].startswith("FP64")
    assert found["bf16 512 x 768 x 3072"].startswith("7 moduli")


@needs_kernel
@pytest.mark.slow
def test_qualification_tests_integer_products_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(integers, "_has_amx", lambda: False)
        assert not any("by integers" in name for name in qualify(Arithmetic()).operations)
    assert Arithmetic().by_integers() is not None
    assert Arithmetic(compiled=False).by_integers() is None
    assert any("to bf16 by integers" in name for name in qualify(Arithmetic()).operations)


@needs_kernel
def test_amx_machine_code_keeps_the_inner_loop_in_tiles(tmp_path: Path) -> None:
    """Compiled for a matrix unit: eight tiles, no other memory in the loop, permission asked, tiles released."""
    assert COMPILER is not None
    source = Path(integers.__file__).with_suffix(".c")
    command = [*COMPILER, *FLAGS, "-march=native", "-mamx-tile", "-mamx-int8", "-S", str(source), "-o", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "mamx" in done.stderr:
        pytest.skip("the compiler does not know AMX")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.strip() and not line.startswith("#")]
    names = [line[0] for line in lines]
    assert {"ldtilecfg", "tilerelease"} <= set(names)
    first = names.index("tdpbusd")
    begin = max(at for at in range(first) if names[at].endswith(":"))
    end = next(at for at in range(first, len(names)) if names[at].startswith("j"))
    loop = names[begin:end]
    assert [loop.count(name) for name in ("tdpbusd", "tileloadd", "tilestored")] == [4, 4, 0]
    assert all(name in ("tdpbusd", "tileloadd", "leaq", "addq", "incq", "cmpq") for name in loop[1:] if "." not in name)
    shapes = [line[1] for line in lines if line[0] == "ldtilecfg"]
    assert all(re.match(r"shape\.\d+\(%rip\)", shape) for shape in shapes), "no stores, which gcc may leave out"


TILES = [
    ("_tile_loadd(5, a + TILE, 64);", "_tile_loadd(5, a, 64);"),  # the upper rows twice
    ("_tile_stored(2, c + 512, 64);", "_tile_stored(2, c + 768, 64);"),
    ("_tile_loadconfig(&shape);", ""),
    ("{16, 16, 16, 16, 16, 16, 16, 16}", "{16, 16, 16, 16, 16, 16, 16, 8}"),
]


@needs_kernel
@pytest.mark.skipif(HAS_AMX, reason="has the instructions")
@pytest.mark.parametrize("fault", slow_except([(), *((f,) for f in TILES)], ()))
def test_amx_code_is_exact_under_emulation_unless_faulty(
    fault: tuple[tuple[str, str], ...], forced: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built = kernel_with(tmp_path, *EMULATED, *fault, name="integers")
    monkeypatch.setattr(integers, "build", lambda: built)
    assert integers.kernel() is built.library
    right = [wrong(kind) == 0 for kind in ("gauss", "ties")]
    assert all(right) == (not fault)


# ---- on GPUs ----

TERMS = (1, 64, 768, 4001, 50257, 1 << 16, 1 << 22)


def test_gpu_constants_keep_the_bounds_of_the_proof() -> None:
    for k, precision in product(TERMS, (16, 24, 32)):
        s = Scales(k, precision)
        whole, (power, part) = s.moduli.product, s.reach
        assert part * 2.0**power <= s.moduli.reach - isqrt(k) / 2 - 1
        assert 0.5 < part * 2.0**power / s.moduli.reach <= 1
        assert whole < 1 << 62 + s.unit < 2 * whole  # |S| < P / 2 is below 2^61 units
        assert s.width >= k
        assert s.fold % s.tile["BLOCK_K"] == 0 == s.width % s.fold
        assert s.fold * 128 * 128 <= 1 << 29
        assert 2 * s.slack < 1 << s.grain
        crossed = Fraction(isqrt(k * whole) + 1) / Fraction(2) ** (s.unit + s.shift)  # what is cut, times norms
        assert crossed * 33 / 32 < 1 << 31
        assert s.most_loose > 0


def test_gpu_residues_fit_in_bytes() -> None:
    """The quotient by the high half of a product, short by one at most, for every sum that 16 bits thrice can have."""
    numbers = np.array(Scales(5000, 32).of_residues(), np.uint64).reshape(-1, 5)
    r = np.random.default_rng(1)
    for m, (middle, high, added, inverse, same) in zip(MODULI, numbers.tolist(), strict=True):
        most = 0xFFFF * (1 + middle + high) + added
        assert same == m
        assert most < 1 << 25
        multiples = np.arange(0, most + 1, m, dtype=np.uint64)
        y = np.concatenate([multiples + np.uint64(d) for d in (0, 1, 2, 3, m - 1)])  # where the quotient changes
        byte = (y - (y * np.uint64(inverse) >> np.uint64(32)) * np.uint64(m)).astype(np.int64) - 128
        assert -128 <= byte.min() <= byte.max() <= 127
        assert ((byte + 128 - y.astype(np.int64)) % m == 0).all()
        for integer in r.integers(-(1 << 47), 1 << 47, 200).tolist():
            shifted = integer + (1 << 47)
            total = (shifted & 0xFFFF) + (shifted >> 16 & 0xFFFF) * middle + (shifted >> 32) * high + added
            assert (total - 128 - integer) % m == 0


@pytest.mark.parametrize("k", TERMS)
def test_the_gpu_reconstruction_error_is_within_the_proved_slack(k: int) -> None:
    """Integers within P / 2, whose residues' sums are any that are congruent, come back within the slack."""
    r = np.random.default_rng(k)
    for precision in (16, 32):
        s = Scales(k, precision)
        (scale, off), digits = s.of_folds()[:2], np.array(s.of_folds()[2:], object).reshape(-1, 3)
        assert len(digits) == s.moduli.count * s.panels
        whole, top = s.moduli.product, 1 << 64
        for share in (0, 1, -1, 0.3, -0.4999, 0.4999, 1e-9):
            x = share if isinstance(share, int) else int(share * whole)
            f = 0
            for t, m in enumerate(s.moduli.numbers):
                sums = [int(v) for v in r.integers(0, 1 << 29, s.panels)]
                sums[0] += (x - sum(sums)) % m
                for c, (a, b, d) in zip(sums, digits[t * s.panels : (t + 1) * s.panels].tolist(), strict=True):
                    c += moduli.START
                    f += ((c * a % (1 << 32)) << 32) + c * b + (c * d >> 32)
            z = (f - off + top // 2) % top - top // 2
            size = (abs(z) * (scale % top) >> 64) >> 2
            assert abs(Fraction(x) / Fraction(2) ** s.unit - (size if z >= 0 else -size)) <= s.slack


def test_integer_products_are_chosen_on_the_right_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    device, large, small = torch.device("cpu"), tables_of(512, 768, 3072), tables_of(64, 64, 64)
    for (backend, arch), chosen in {("cuda", 80): 0, ("cuda", 90): 0, ("cuda", 100): 0, ("hip", 0): 0, ("cpu", 0): 0,
                                    ("cuda", 86): 1, ("cuda", 89): 1, ("cuda", 120): 1}.items():  # fmt: skip
        monkeypatch.setattr(on_gpus, "target", lambda _, found=(backend, arch): found)
        for forced, wanted in (("", chosen), ("0", 0), ("1", backend != "hip")):
            monkeypatch.setenv("TIEBREAK_INTEGERS", forced)
            assert (on_gpus.choose(large, 32, device) is not None) == bool(wanted)
        assert on_gpus.choose(small, 32, device) is not None or backend == "hip"
        monkeypatch.setenv("TIEBREAK_INTEGERS", "")
        assert on_gpus.choose(small, 32, device) is None
        assert on_gpus.describe(device)[1].startswith("11 moduli" if chosen else "FP64")
        monkeypatch.setattr("tiebreak.engine.arithmetic.backend.launches", lambda _: True)
        options = Arithmetic().options
        assert has_integers(options) == bool(chosen)
        assert not has_integers(replace(options, compiled=False))
        assert (on_gpus.choose(small, 32, device, forced=True) is not None) == (backend != "hip")


# ---- faults ----

REFUSED = pytest.raises(ConfigurationError, match="does not compute reduce sum of products by integers exactly")
CARRY = "g = _mm512_add_epi64(g, _mm512_srli_epi64(h, 52));"
FAULTS = [
    ("cut[h] = _mm512_fmadd_pd(rest, rest, cut[h]);", "", "wide"),  # the norm of what was cut
    (CARRY, "", "ties"),  # the carry of a panel
    ("_mm512_mask_add_epi8(all, _mm512_movepi8_mask(all), all, ", "_mm512_maskz_add_epi8(-1ull, all, ", "gauss"),
    ("add_odd((vec)_mm512_cvtepi64_pd(high) * 0x1p44,", "((vec)_mm512_cvtepi64_pd(high) * 0x1p44 +", "ties"),
    ("_mm512_cvtepi64_pd(high) * 0x1p44", "_mm512_cvtepu64_pd(high) * 0x1p44", "ties"),  # signs
    ("high = _mm512_add_epi64(high, _mm512_srai_epi64(low, 44));", "", "ties"),
    ("scale != 0 ? 1 / scale : 0;", "1 / scale;", "zeros"),
    ("held.tie + q * each, p->tiles,", "held.tie, p->tiles,", "ties"),  # one modulus for all
    ("held.f + strip * at->pairs * 1024;", "held.f;", "gauss"),
]  # fmt: skip


def case(kind: str) -> tuple[reference.Matrix, reference.Matrix]:
    a, b = reference.factors(kind, 40, 900, 40)
    return (a, -b) if kind == "ties" else (a, b)


def wrong(kind: str) -> int:
    a, b = case(kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIEBREAK_INTEGERS", "0")
        right, _ = reference.multiply(a, b)
    values, expected = (np.nan_to_num(bits.view(np.float32), nan=7) for bits in (reference.multiply(a, b)[0], right))
    return int((values.view(np.uint32) != expected.view(np.uint32)).sum())


@needs_kernel
@pytest.mark.parametrize(("old", "new", "kind"), slow_except(FAULTS, FAULTS[0], several=True))
def test_faulty_integer_kernels_are_caught(
    old: str, new: str, kind: str, forced: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert wrong(kind) == 0
    built = kernel_with(tmp_path, *BODY, (old, new), name="integers")
    monkeypatch.setattr(integers, "build", lambda: built)
    assert wrong(kind) > 0


@needs_kernel
def test_qualification_refuses_a_kernel_with_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built = kernel_with(tmp_path, *BODY, (CARRY, "g = f;"), name="integers")
    monkeypatch.setattr(integers, "build", lambda: built)
    with REFUSED:
        qualify(Arithmetic())


@needs_kernel
@pytest.mark.slow
def test_qualification_tests_all_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A thread without tiles computes zeros."""
    once = "static _Atomic int begun; if (!begun++) begin_tiles();"
    built = kernel_with(tmp_path, *BODY, ("    begin_tiles();", once), name="integers")
    monkeypatch.setattr(integers, "build", lambda: built)
    with limited(2), REFUSED:
        qualify(Arithmetic())


@needs_kernel
@pytest.mark.parametrize("where", slow_except(["Python", "C"], "Python"))
def test_integer_products_fall_back_to_fp64_without_memory(
    where: str, forced: None, runs: list[bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if where == "C":
        begin = "static int make_room(const moduli *p) {"
        built = kernel_with(tmp_path, *BODY, (begin, f"{begin} if (p) return 0;"), name="integers")
        monkeypatch.setattr(integers, "build", lambda: built)
    else:
        monkeypatch.setattr(integers, "_memory", mock.Mock(side_effect=MemoryError))
    a, b = case("gauss")
    assert np.array_equal(reference.multiply(a, b)[0], reference.exact_product(a, b, 32))
    assert runs == [False]


@needs_kernel
@pytest.mark.parametrize(("fault", "kind"), [("reach", "aligned"), ("added", "ties")])
def test_faulty_tables_make_integer_products_wrong(
    fault: str, kind: str, forced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms beyond what P allows; and an offset cut once for each modulus."""
    real = integers._moduli

    def faulty(shape: Shape, count: int, precision: int) -> Any:
        plan = real(shape, count, precision)
        if fault == "reach":
            plan.reach *= 4
        else:
            plan.added -= plan.count
            plan.ties = 0
        return plan

    a, b = reference.factors("positive", 40, 900, 40) if kind == "aligned" else case(kind)
    want = reference.exact_product(a, b, 32)
    assert np.array_equal(reference.multiply(a, b)[0], want)
    monkeypatch.setattr(integers, "_moduli", faulty)
    assert not np.array_equal(reference.multiply(a, b)[0], want)
