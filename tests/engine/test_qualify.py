"""Qualification passes here, and finds devices that compute almost right."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from tests.engine.test_arithmetic_sums import guess
from tests.parts import slow_except
from tiebreak.engine.arithmetic import Arithmetic, Logging, NearTies
from tiebreak.engine.arithmetic.plain import exact, indexing, maps, scatter, sums
from tiebreak.engine.data.tensors import memory_of
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.native import EMULATION
from tiebreak.engine.run.qualify import check_emulation, qualify
from tiebreak.protocol.commitments.records import identify
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Instruction, MapFunction
from tiebreak.protocol.program.rounding import SumKind
from tiebreak.protocol.tags import Digest


def test_the_cpu_passes_qualification() -> None:
    report = qualify(Arithmetic())
    assert report.cases > 15000
    assert len(report.operations) > 50
    assert report.device == "cpu"


def test_permuted_and_tiled_arithmetic_qualifies() -> None:
    assert qualify(Arithmetic(permute=3, fp64_elements=100)).cases > 15000


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_qualifies() -> None:
    assert qualify(Arithmetic("cuda")).cases > 15000


def test_emulated_fp64_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "0"):
        monkeypatch.setenv(EMULATION, value)
        check_emulation(torch.device("cuda"))
    monkeypatch.setenv(EMULATION, "1")
    check_emulation(torch.device("cpu"))
    with pytest.raises(ConfigurationError, match=f"expected {EMULATION} to be unset or 0 where cuda computes, got '1'"):
        qualify(cast("Arithmetic", SimpleNamespace(device=torch.device("cuda"))))


def refused(match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        qualify(Arithmetic())


@pytest.mark.usefixtures("pure")
def test_qualification_refuses_sums_without_the_exact_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_settled", guess)
    refused(r"cpu does not compute reduce sum exactly: expected 0x.*operands 0x")


@pytest.mark.usefixtures("pure")
@pytest.mark.parametrize(("module", "name"), [(sums, "reduce sum"), (scatter, "scatter_sum")])
def test_qualification_refuses_rounding_from_fp64(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
    monkeypatch.setattr(module, "settle", lambda c, *_, **__: c.float())
    refused(name)


@pytest.mark.usefixtures("pure")
def test_qualification_refuses_an_error_bound_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long sums with few undecided elements: the bound of one addition is not enough."""
    monkeypatch.setattr(sums, "coefficient", lambda _: 0.0)
    refused("reduce sum")


@pytest.mark.usefixtures("pure")
def test_qualification_refuses_matrix_products_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "_matmul", lambda a, b: torch.matmul(a.float(), b.float()).double())
    refused("reduce sum of products")


@pytest.mark.parametrize("precision", slow_except([16, 31], 16))
def test_arithmetic_of_fewer_bits_passes_qualification(precision: int) -> None:
    assert qualify(Arithmetic(precision=precision)).cases > 15000


ALL = dict.fromkeys(SumKind, 2)


@pytest.mark.parametrize(("precision", "kappa"), slow_except([(32, 8.0), (16, 2.0**33)], (32, 8.0), several=True))
def test_arithmetic_that_reports_near_ties_passes_qualification(precision: int, kappa: float) -> None:
    """Adversarial cancellation is within the claimed error; there are near ties among the vectors."""
    arithmetic = Arithmetic(precision=precision, logging=Logging(dict.fromkeys(SumKind, kappa), ALL))
    assert qualify(arithmetic).cases > 15000
    assert sum(counts.logged for counts in arithmetic.stats.kinds.values()) > 0


class Overconfident(Arithmetic):
    """Its sums are further from the exact ones than it says."""

    def execute_logged(
        self, instruction: Instruction, operands: Sequence[Tensor], step: int
    ) -> tuple[Tensor, NearTies]:
        result, ties = super().execute_logged(instruction, operands, step)
        return result, replace(ties, errors=ties.errors / 2**60, values=ties.values + ties.errors / 4)


def test_qualification_refuses_near_ties_with_understated_errors() -> None:
    with pytest.raises(ConfigurationError, match=r"expected a sum within .* of the exact .* near tie, got"):
        qualify(Overconfident(logging=Logging(dict.fromkeys(SumKind, 8.0), ALL)))


def test_qualification_refuses_results_of_another_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    arithmetic = Arithmetic(precision=25)
    arithmetic.options = replace(arithmetic.options, precision=26)
    with pytest.raises(ConfigurationError, match="does not compute"):
        qualify(arithmetic)


@pytest.mark.parametrize(
    ("function", "kernel", "name"),
    [
        (MapFunction.DIV, lambda x, out: out.copy_(x[0] * x[1].reciprocal()), "map div"),
        (MapFunction.SQRT, lambda x, out: out.copy_(x[0].rsqrt().reciprocal()), "map sqrt"),
        (MapFunction.MAX, lambda x, out: out.copy_(torch.where(x[0] > x[1], *x)), "map max"),
        (MapFunction.MUL, lambda x, out: out.copy_(_flushed(x[0] * x[1])), "map mul"),
        (MapFunction.ADD, lambda x, out: torch.add(x[0], x[1].to(torch.bfloat16), out=out), "map add"),
    ],
)
def test_qualification_refuses_elementwise_shortcuts(
    monkeypatch: pytest.MonkeyPatch,
    function: MapFunction,
    kernel: Callable[[Sequence[Tensor], Tensor], object],
    name: str,
) -> None:
    right = maps._FUNCTIONS[function]

    def wrong(x: Sequence[Tensor], out: Tensor) -> None:
        kernel(x, out) if out.dtype == torch.float32 else right(x, out)

    monkeypatch.setitem(maps._FUNCTIONS, function, wrong)
    refused(name)


def _flushed(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 2.0**-126, 0.0, x)


@pytest.mark.parametrize("function", sorted(maps.FP64))
def test_qualification_refuses_functions_a_quarter_ulp_off(
    monkeypatch: pytest.MonkeyPatch, function: MapFunction
) -> None:
    right = maps.FP64[function]
    monkeypatch.setitem(maps.FP64, function, lambda x: right(x) * (1 + 2.0**-26))
    refused(f"map {function.name.lower()}")


def test_qualification_refuses_a_maximum_that_keeps_minus_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    def extreme(i: Instruction, x: Sequence[Tensor]) -> Tensor:
        return -right(i, [-x[0]]) if x[0].dtype == torch.float32 and i.dtype == 0 else right(i, x)

    right = indexing.extreme
    monkeypatch.setattr(indexing, "extreme", extreme)
    refused("reduce max")


def test_qualification_refuses_non_contiguous_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "window", lambda i, _: torch.zeros(tuple(reversed(i.shape))).t())
    refused("window: expected a contiguous")


def test_qualification_refuses_hashing_without_canonical_nans(monkeypatch: pytest.MonkeyPatch) -> None:
    def identities(tensors: Mapping[str, Tensor], **_: bool) -> dict[str, Digest]:
        return {name: identify(PROTOCOL_DTYPES[x.dtype], x.shape, memory_of(x)) for name, x in tensors.items()}

    monkeypatch.setattr("tiebreak.engine.run.qualify.identities", identities)
    refused(r"cpu does not hash torch.float32 \(256,\) right: expected ")
