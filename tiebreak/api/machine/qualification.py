"""Checks that this machine computes what the specification says, on every path that it has."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tiebreak.api.machine.environment import KernelStatus, describe, describe_cuda
from tiebreak.api.machine.interpreters import usable_device
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import integer_products, launches
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class PathVerdict:
    """The outcome of the conformance vectors on one path. problem: empty if the path is exact."""

    device: str
    path: str
    """`compiled`: with the accelerators that this machine has; `pure`: torch alone."""
    cases: int
    seconds: float
    problem: str

    @property
    def exact(self) -> bool:
        """Whether the bits of every case equal those of the integer reference."""
        return not self.problem


def verdicts(device: str | None, kernels: tuple[KernelStatus, ...], *, pure: bool = False) -> Iterator[PathVerdict]:
    """Qualifies one device or all of them, with compiled kernels and without.

    pure: also runs torch alone on CUDA devices where kernels compute. Raises `ConfigurationError` if the device does
    not exist.
    """
    compiled = any(kernel.compiled for kernel in kernels if kernel.name != "hasher")
    for name in [device] if device is not None else ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]:
        if accelerated := compiled if name == "cpu" else launches(usable_device(name)):
            yield examine(name, "compiled")
        if pure or name == "cpu" or not accelerated:
            yield examine(name, "pure")


def examine(device: str, path: str) -> PathVerdict:
    """Qualifies one path. Raises `ConfigurationError` if the device does not exist."""
    found = usable_device(device)
    try:
        report = qualify(Arithmetic(device=found, compiled=path != "pure"))
    except ConfigurationError as error:
        return PathVerdict(device=device, path=path, cases=0, seconds=0.0, problem=str(error))
    return PathVerdict(device=device, path=path, cases=report.cases, seconds=report.seconds, problem="")


def lines(found: tuple[KernelStatus, ...]) -> list[tuple[str, str]]:
    """Name and value of everything that decides how this machine computes."""
    kernels = [(f"kernel {one.name}", one.detail if one.compiled else f"none: {one.detail}") for one in found]
    return [*describe(), *describe_cuda(), *kernels, *integer_products()]


def document(kernels: tuple[KernelStatus, ...], found: list[PathVerdict]) -> dict[str, Any]:
    """The whole report as JSON data."""
    return {
        "environment": dict((*describe(), *describe_cuda())),
        "kernels": [asdict(kernel) for kernel in kernels],
        "qualification": [asdict(verdict) | {"exact": verdict.exact} for verdict in found],
        "exact": all(verdict.exact for verdict in found),
    }
