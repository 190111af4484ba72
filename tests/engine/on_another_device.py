"""A device that is not the CPU, on a machine that has only a CPU; and what trains and audits there.

The device is `privateuseone`, computed by torch on the CPU. Tensors there are wrappers: they say that they are on that
device, and nobody gets at their memory, as on a GPU. `numpy()`, `data_ptr()` for a kernel and mixing with CPU tensors
of more than one element are errors, and so is dividing by a number or a CPU scalar, which CUDA does by the reciprocal.
With `worse`, FP64 results are those of another device: products of matrices and sums take their terms backwards, and
transcendentals are a few ulp off.

`python -m tests.engine.on_another_device reach DIRECTORY STEPS NAME...`, or `follow RUN REPLAY WIDE NARROW`, prints one
line of JSON. A process of its own, because torch cannot forget a device that it was told of.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.engine.logged_cases import logging_of, published
from tests.golden.bundle import load
from tests.golden.train import inputs, make_run, train
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plain import sums
from tiebreak.engine.arithmetic.plain.sums import _matmul
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.logged.journal import LogsInProgress
from tiebreak.engine.run.audit import SegmentAuditor, compare, signed_records
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.placement import place
from tiebreak.engine.run.qualify import qualify
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.records import state_tree
from tiebreak.protocol.errors import ConfigurationError

DEVICE = torch.device("privateuseone", 0)
aten = torch.ops.aten
_DIVISIONS = ("aten::div", "aten::div_")
_BACKWARDS = {aten.mm.default: (1, 0), aten.bmm.default: (2, 1)}
"""The summed dims of both operands."""
_INEXACT = {aten.exp.default, aten.log.default, aten.tanh.default, aten.erf.default, aten.sin.default, aten.cos.default}


class Elsewhere(Tensor):
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Elsewhere":
        made = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=DEVICE,
        )  # fmt: skip
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {}, worse=False)

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {DEVICE.type} device type tensor to numpy")

    def tolist(self) -> Any:
        return self.inner.tolist()

    def data_ptr(self) -> int:
        raise RuntimeError("no address of memory that is elsewhere")


class Mode(TorchDispatchMode):
    """Makes tensors on that device, and counts the operations there by name."""

    def __init__(self, worse: bool) -> None:
        super().__init__()
        self._worse = worse
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func._schema.name] += any(isinstance(x, Elsewhere) for x in tree_leaves(args))
        return _dispatch(func, args, kwargs or {}, worse=self._worse)


class _Literals(TorchFunctionMode):
    """`torch.tensor` makes its tensor without asking any mode."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and (device := kwargs.pop("device", None)) is not None:
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


@contextmanager
def elsewhere(*, worse: bool = False) -> Iterator[Mode]:
    """While this is open, `privateuseone` is a device."""
    _setup_privateuseone_for_python_backend()
    with torch.inference_mode(), _Literals(), Mode(worse) as mode:
        yield mode


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any], *, worse: bool) -> Any:
    target = kwargs.get("device")
    there = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Elsewhere)]
    if target is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    on_device = torch.device(target).type == DEVICE.type if target is not None else bool(there)
    if there and func is not aten._to_copy.default and func is not aten.copy_.default:
        _check_same_device(func, args, kwargs)
    name = func._schema.name
    if name in _DIVISIONS and there and args[0].is_floating_point() and not isinstance(args[1], Elsewhere):
        raise AssertionError("a division by a number: CUDA multiplies by the reciprocal")
    plain_args, plain_kwargs = tree_map(_inner, args), tree_map(_inner, kwargs)
    run = _worse(func) if worse and there else func
    result = run(*plain_args, **plain_kwargs)
    known = {id(x.inner): x for x in there}
    return tree_map(lambda x: _outer(x, known) if on_device else x, result)


def _check_same_device(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    for x in tree_leaves((args, kwargs)):
        if isinstance(x, Tensor) and not isinstance(x, Elsewhere) and x.dim() > 0:
            raise RuntimeError(
                f"{func}: expected all tensors on {DEVICE}, got one of shape {tuple(x.shape)} on the cpu"
            )


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, Elsewhere) else x


def _outer(x: Any, known: dict[int, Elsewhere]) -> Any:
    if not isinstance(x, Tensor):
        return x
    return known[id(x)] if id(x) in known else Elsewhere(x)


def _worse(func: Any) -> Callable[..., Any]:
    """The operation as another device's library might do it, within the bounds that every one keeps."""

    def run(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        if not isinstance(first, Tensor) or first.dtype != torch.float64:
            return func(*args, **kwargs)
        if func in _BACKWARDS:
            along_a, along_b = _BACKWARDS[func]
            return func(first.flip(along_a), args[1].flip(along_b), **kwargs)
        if func is aten.sum.dim_IntList:
            dims = args[1] or list(range(first.dim()))
            return func(first.flip(dims), *args[1:], **kwargs)
        result = func(*args, **kwargs)
        if func in _INEXACT:
            sign = torch.where(result.view(torch.int64) & 4 == 0, 1.0, -1.0)
            result = result * (1.0 + sign * 5 * 2.0**-53)
        return result

    return run


def emulated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """FP64 products as from smaller formats: a few bits short, and only where they are large."""
    right = _matmul(a, b)
    large = a.numel() > 1 << 16
    return right * (1 + 2.0**-36) if large else right


def refusal_of_emulation() -> str:
    """What qualification says of a device that emulates FP64 in large products."""
    with mock.patch.object(sums, "_matmul", emulated):
        try:
            qualify(Arithmetic(DEVICE))
        except ConfigurationError as error:
            return str(error)
    return ""


def first_with_tables_elsewhere(name: str) -> str:
    """The state root after step 1, where the device has no room for the datasets: they stay on the CPU."""
    made, machine = inputs(name), Interpreter(load(name).program, Arithmetic(DEVICE))
    data = place(made.program, made.data, DEVICE, room=0)
    assert {tensor.device.type for tensor in data.values()} == {"cpu", DEVICE.type}
    return state_tree(identities(machine.step(1, machine.to_device(made.state), data).state)).root.hex()


def follow(path: str, own_path: str, wide: str, narrow: str) -> dict[str, object]:
    """Audits a run of policy `logged`: all of it with wide thresholds, and one segment with narrow ones."""
    run = RunDirectory.open(Path(path))
    own = RunDirectory.create(Path(own_path), run.agreement, run.program, run.state(0), run.data())

    def machine(threshold: str) -> Interpreter:
        logging = logging_of(run.job, float(threshold))
        return Interpreter(run.program, Arithmetic(DEVICE, precision=run.job.precision, logging=logging))

    with elsewhere(worse=True) as mode:
        logs = LogsInProgress(own, published(run).step_log)
        Worker(own, machine(wide), logs=logs).work()
        parts = SegmentAuditor(run, machine(narrow), signed_records(run)[0]).audit([2], logs=published(run))
    report = logs.report
    return {
        "agrees": [compare(own, run.heads()[-1]).agrees, parts.agrees],
        "counts": [report.entries, report.needed, report.elsewhere, report.missing, parts.log.needed],
        "calls": sum(mode.calls.values()),
    }


def reach(directory: str, count: str, *names: str) -> dict[str, object]:
    """Qualifies, and trains golden runs for some steps."""
    steps = int(count)
    with elsewhere(worse=True) as mode:
        cases = qualify(Arithmetic(DEVICE)).cases
        refused = refusal_of_emulation()
        runs = {name: make_run(Path(directory) / name, inputs(name)) for name in names}
        undecided = {}
        for name, run in runs.items():
            arithmetic = Arithmetic(DEVICE)
            train(run, arithmetic, steps)
            undecided[name] = sum(counts.undecided for counts in arithmetic.stats.kinds.values())
        firsts = {name: first_with_tables_elsewhere(name) for name in names}
    return {
        "cases": cases,
        "refused": refused,
        "calls": sum(mode.calls.values()),
        "undecided": undecided,
        "firsts": firsts,
        "records": {
            name: [(r.step, r.state_root.hex(), r.loss_bits) for r in run.records()] for name, run in runs.items()
        },
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps({"follow": follow, "reach": reach}[sys.argv[1]](*sys.argv[2:])) + "\n")
