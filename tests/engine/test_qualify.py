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
from tiebreak.engine.run import qualify as qualification
from tiebreak.engine.run.qualify import check_emulation, qualify
from tiebreak.protocol.commitments.records import identify
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Instruction, MapFunction
from tiebreak.protocol.program.rounding import SumKind
from tiebreak.protocol.tags import Digest

OPTIONS: list[dict[str, int]] = [{}, {"permute": 3, "fp64_elements": 100}, {"precision": 16}, {"precision": 31}]


@pytest.mark.parametrize("options", slow_except(OPTIONS, *OPTIONS[1:3]), ids=str)
def test_the_cpu_passes_qualification(options: dict[str, int]) -> None:
    report = qualify(Arithmetic(**options))
    assert report.cases > 15000
    assert len(report.operations) > 50
    assert report.device == "cpu"


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


def minus_zero(i: Instruction, x: Sequence[Tensor], extreme: Callable[..., Tensor] = indexing.extreme) -> Tensor:
    """A maximum that keeps -0."""
    return -extreme(i, [-x[0]]) if x[0].dtype == torch.float32 and i.dtype == 0 else extreme(i, x)


def with_any_nan(tensors: Mapping[str, Tensor], **_: bool) -> dict[str, Digest]:
    """Ids of tensors whose NaN are hashed as they are."""
    return {name: identify(PROTOCOL_DTYPES[x.dtype], x.shape, memory_of(x)) for name, x in tensors.items()}


FAULTS: dict[str, tuple[object, str, Callable[..., object], str]] = {
    "no exact fallback": (exact, "_settled", guess, r"does not compute reduce sum exactly: expected 0x.*operands 0x"),
    "sums rounded from FP64": (sums, "settle", lambda c, *_, **__: c.float(), "reduce sum"),
    "scatters rounded from FP64": (scatter, "settle", lambda c, *_, **__: c.float(), "scatter_sum"),
    "a bound that is too small": (sums, "coefficient", lambda _: 0.0, "reduce sum"),
    "products in FP32": (
        sums, "_matmul", lambda a, b: torch.matmul(a.float(), b.float()).double(), "reduce sum of products",
    ),
    "a maximum that keeps -0": (indexing, "extreme", minus_zero, "reduce max"),
    "results that are not contiguous": (
        indexing, "window", lambda i, _: torch.zeros(tuple(reversed(i.shape))).t(), "window: expected a contiguous",
    ),
    "NaN hashed as they are": (
        qualification, "identities", with_any_nan, r"cpu does not hash torch.float32 \(256,\) right: expected ",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("pure")
@pytest.mark.parametrize("fault", slow_except(FAULTS, *list(FAULTS)[::2]))
def test_qualification_refuses_faulty_arithmetic(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A bound of one addition shows in long sums with few undecided elements."""
    module, name, replacement, match = FAULTS[fault]
    monkeypatch.setattr(module, name, replacement)
    refused(match)


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
    ("function", "kernel"),
    [
        (MapFunction.DIV, lambda x, out: out.copy_(x[0] * x[1].reciprocal())),
        (MapFunction.SQRT, lambda x, out: out.copy_(x[0].rsqrt().reciprocal())),
        (MapFunction.MAX, lambda x, out: out.copy_(torch.where(x[0] > x[1], *x))),
        (MapFunction.MUL, lambda x, out: out.copy_(torch.where((x[0] * x[1]).abs() < 2.0**-126, 0.0, x[0] * x[1]))),
        (MapFunction.ADD, lambda x, out: torch.add(x[0], x[1].to(torch.bfloat16), out=out)),
    ],
)
def test_qualification_refuses_elementwise_shortcuts(
    monkeypatch: pytest.MonkeyPatch, function: MapFunction, kernel: Callable[[Sequence[Tensor], Tensor], object]
) -> None:
    right = maps._FUNCTIONS[function]

    def wrong(x: Sequence[Tensor], out: Tensor) -> None:
        kernel(x, out) if out.dtype == torch.float32 else right(x, out)

    monkeypatch.setitem(maps._FUNCTIONS, function, wrong)
    refused(f"map {function.name.lower()}")


@pytest.mark.parametrize("function", sorted(maps.FP64))
def test_qualification_refuses_functions_a_quarter_ulp_off(
    monkeypatch: pytest.MonkeyPatch, function: MapFunction
) -> None:
    right = maps.FP64[function]
    monkeypatch.setitem(maps.FP64, function, lambda x: right(x) * (1 + 2.0**-26))
    refused(f"map {function.name.lower()}")
