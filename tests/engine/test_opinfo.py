"""Every operator of torch's OpInfo is right or refused with advice, never wrong and never a raw exception.

Each sample becomes a tiny model: float tensors are parameters, integers and bools are buffers. The results go into
further buffers, and the loss is their sum with fixed weights, so one step shows results and gradients. It must equal
eager FP64 within a bound that eager FP32 widens, or be refused with one `ConfigurationError` that says what to do.
"""

import copy
import sys
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tests.conftest import CaseCounter
from tests.engine.lowering_bench import loss_of, make_task, run_engine
from tests.engine.test_capture_pure import INTERNAL
from tests.parts import slow_except
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.capture.step import UNCOVERED
from tiebreak.engine.run.interpreter import NotFiniteError
from tiebreak.protocol.errors import ConfigurationError

pytestmark = pytest.mark.slow
FEW = ("exp", "max.reduction_with_dim", "unfold", "isinf", "cat")
SHARDS = 8
UNSET = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")
"""Operators whose results hold whatever was in memory."""
RELATIVE, ABSOLUTE, NOISE = 1e-4, 1e-5, 32.0
"""The bound: relative to the value, to the greatest value of its tensor, and to what FP32 itself loses."""


@cache
def operators() -> list[Any]:
    # torch imports this package for tests of its own that expect texts; nothing here uses it.
    sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415 (takes seconds)

    # That import forbids the process to set flags of backends, as the tests after this one do.
    torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

    return list(op_db)


class Sample(nn.Module):
    def __init__(self, op: Callable[..., Any], arguments: Any, trained: int) -> None:
        """trained: the number of float tensors that are parameters."""
        super().__init__()
        self.op = op
        self.leaves, self.spec = tree_flatten(arguments)
        self.anchor = nn.Parameter(torch.zeros(()))  # so that there is a gradient even where the operator has none
        for i, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor) and leaf.numel():  # nothing empty is state
                whole = leaf.detach().clone()
                if whole.dtype == torch.float32 and (trained := trained - 1) >= 0:
                    setattr(self, f"float{i}", nn.Parameter(whole))
                else:
                    self.register_buffer(f"other{i}", whole)

    def result(self) -> list[Tensor]:
        own = dict([*self.named_parameters(), *self.named_buffers()])
        leaves = [own.get(f"float{i}", own.get(f"other{i}", leaf)) for i, leaf in enumerate(self.leaves)]
        wide = any(t.dtype == torch.float64 for t in own.values())
        args, kwargs = tree_map(
            lambda v: torch.float64 if wide and v is torch.float32 else v, tree_unflatten(leaves, self.spec)
        )
        args = [a * 1 if isinstance(a, Tensor) and a.requires_grad else a for a in args]  # leaves cannot be written to
        found = [t for t in tree_flatten(self.op(*args, **kwargs))[0] if isinstance(t, Tensor)]
        return [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in found]

    def expect(self, results: list[Tensor]) -> None:
        for i, t in enumerate(results):
            if t.numel():
                self.register_buffer(f"result{i}", torch.zeros(t.shape, dtype=t.dtype))

    def forward(self) -> Tensor:
        total = self.anchor
        for i, y in enumerate(self.result()):
            if y.numel():
                getattr(self, f"result{i}").copy_(y.detach())
            weights = torch.cos(torch.arange(1.0, y.numel() + 1)).view(y.shape).to(y.dtype)
            if y.dtype.is_floating_point:
                total = total + torch.where(torch.isfinite(y), y * weights, 0.0).sum()
        return total


def _loss(model: nn.Module, x: Tensor) -> Tensor:
    return loss_of(model) + 0 * x.sum()


def _eager(model: nn.Module) -> dict[str, Tensor]:
    """The new buffers, and the parameters after one step of SGD with rate 1."""
    x = torch.zeros(1, dtype=torch.float32)
    _loss(model, x).backward()
    found = {n: (p - p.grad if p.grad is not None else p).detach() for n, p in model.named_parameters()}
    return found | dict(model.named_buffers())


def _reference(model: Sample, seed: int, *, double: bool) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    model = copy.deepcopy(model)
    return _eager(model.double() if double else model)


def _far(found: Tensor, expected: Tensor, noisy: Tensor) -> bool:
    """Whether a tensor differs from eager FP64 by more than the bound. noisy: the same in eager FP32."""
    if not expected.dtype.is_floating_point:
        return not torch.equal(found.to(torch.int64), expected.to(torch.int64))
    f, e, n = found.double(), expected.double(), noisy.double()
    stable = (e.isfinite() == n.isfinite()) & (e.isnan() == n.isnan())  # elsewhere FP32 itself overflows
    finite = stable & e.isfinite()
    if bool((stable & ~finite & ~((f == e) | (f.isnan() & e.isnan()))).any()):
        return True
    scale = e[finite].abs().max() if bool(finite.any()) else e.new_zeros(())
    noise = (n - e)[finite].abs().max() if bool(finite.any()) else scale
    bound = RELATIVE * e.abs() + ABSOLUTE * scale.clamp(max=1e30) + NOISE * noise + 1e-37
    return bool((finite & ~((f - e).abs() <= bound)).any())


def _differing(model: Sample, found: dict[str, Tensor]) -> list[str]:
    noisy = _reference(model, 1, double=False)
    try:
        expected = _reference(model, 1, double=True)
    except (RuntimeError, TypeError, ValueError):
        expected = noisy  # an operator that has no FP64 form for these arguments
    return [name for name, value in expected.items() if _far(found["model." + name], value, noisy[name])]


def try_sample(op: Any, sample: Any) -> tuple[str, str]:
    """Captures one sample, runs a step and compares. What becomes of it, and more about it.

    right, refused, wrong, raw (an exception of another kind), random, or eager (torch itself refuses).
    """
    for trained in (1 << 30, 1, 0):  # some operators have a gradient for the first argument only, or none
        model = Sample(op.op, ([sample.input, *sample.args], sample.kwargs), trained)
        try:
            torch.manual_seed(1)
            model.expect([t.detach() for t in copy.deepcopy(model).result()])
            first, second = (_reference(model, seed, double=False) for seed in (1, 2))
            break
        except Exception as error:  # whatever torch itself refuses is not ours
            refusal = "eager", f"{type(error).__name__}: {error}"
    else:
        return refusal
    drawn = op.name in UNSET or any(_far(second[name], first[name], first[name]) for name in first)
    try:
        captured = capture_task(make_task(model, {"x": torch.zeros(1, 1)}, batch=1, loss=_loss))
        found = run_engine(captured)
    except ConfigurationError as error:
        ours = UNCOVERED in str(error) or "fails in plain PyTorch already" in str(error)  # it has just run there
        ours = ours or INTERNAL.search(str(error)) is not None
        return "raw" if ours else "refused", str(error)
    except NotFiniteError as error:
        finite = all(bool(t.isfinite().all()) for t in first.values())
        return "wrong" if finite else "right", str(error)
    except Exception as error:  # this is what the sweep looks for
        return "raw", f"{type(error).__name__}: {error}"
    if drawn:
        return "random", ""
    far = _differing(model, found)
    return ("wrong", ", ".join(far)) if far else ("right", "")


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


@pytest.fixture(scope="module", autouse=True)
def _database() -> None:
    """Importing takes seconds, which are no test's own."""
    operators()


def check(ops: Iterable[Any], dtype: torch.dtype = torch.float32) -> Counter[str]:
    """Tries the first sample of each operator that takes the dtype."""
    counts, bad = Counter[str](), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ops:
            torch.manual_seed(0)
            for sample in islice(op.sample_inputs("cpu", dtype), 1) if dtype in op.dtypes else ():
                kind, detail = try_sample(op, sample)
                counts[kind] += 1
                bad += [f"{kind} {full_name(op)}, {dtype}: {detail}"] if kind in ("wrong", "raw") else []
    assert not bad, "\n".join(bad)
    return counts


@pytest.mark.parametrize(
    ("names", "dtype"),
    [(FEW, torch.float32), (("isinf", "nn.functional.max_pool2d"), torch.int64)],
    ids=str,
)
def test_selected_opinfo_operators_are_right(names: tuple[str, ...], dtype: torch.dtype, cases: CaseCounter) -> None:
    counts = check((op for op in operators() if full_name(op) in names), dtype)
    assert counts == {"right": len(names)}
    cases(counts.total())


@pytest.mark.parametrize("shard", slow_except(range(SHARDS), nightly=range(1, SHARDS)))
def test_every_opinfo_operator_is_right_or_refused(shard: int, cases: CaseCounter) -> None:
    counts = check(operators()[shard::SHARDS])
    assert counts["right"] > 30
    cases(counts.total())
