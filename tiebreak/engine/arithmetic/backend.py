"""The one door to the back-ends: which of them computes on a device, and what else depends on where that is."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.c import chains, integers, scatter, sums
from tiebreak.engine.arithmetic.c.backend import CBackend
from tiebreak.engine.arithmetic.gpu import hashing
from tiebreak.engine.arithmetic.gpu import integers as gpu_integers
from tiebreak.engine.arithmetic.gpu.backend import GpuBackend
from tiebreak.engine.arithmetic.plain.backend import TorchBackend
from tiebreak.engine.arithmetic.plan.options import Options
from tiebreak.engine.arithmetic.plan.stats import Stats
from tiebreak.engine.data import tensors as on_host
from tiebreak.engine.native import Build, enabled, forced_integers, interprets
from tiebreak.engine.native import integers as integers_wanted
from tiebreak.protocol.tags import Digest


def choose(options: Options, stats: Stats) -> TorchBackend:
    """The fastest back-end of a device. Each computes every instruction."""
    if launches(options.device):
        return GpuBackend(options, stats)
    return (CBackend if is_host(options.device) and enabled() else TorchBackend)(options, stats)


def launches(device: torch.device) -> bool:
    """Whether Triton kernels run on a device."""
    runs = device.type == "cuda" or (is_host(device) and interprets())
    return runs and enabled() and find_spec("triton") is not None


def builds() -> dict[str, Build]:
    """The kernels in C, by what they compute, or the reasons why there are none."""
    return {"sums": sums.build(), "integers": integers.build(), "scatter": scatter.build(), "chains": chains.build()}


def integer_products() -> tuple[tuple[str, str], ...]:
    """The way in which each device computes products, by typical sizes on CPUs."""
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return *integers.describe(), *(gpu_integers.describe(device) for device in devices if launches(device))


def by_integers(device: torch.device) -> AbstractContextManager[bool]:
    """Prepares all matrix products inside it by integers, if a device would compute any so: says whether.

    If the environment forces integers or forbids them, nothing changes.
    """
    if integers_wanted():
        return nullcontext(False)
    computes = gpu_integers.rates_of(device) if launches(device) else is_host(device) and integers.kernel()
    return forced_integers() if computes else nullcontext(False)


def is_host(device: torch.device) -> bool:
    """Whether tensors on this device lie in the host's memory."""
    return device.type == "cpu"


def identities(tensors: Mapping[str, Tensor]) -> dict[str, Digest]:
    """The id of each tensor by name, hashed where it lies if its device has kernels for that, else on the host."""
    there: dict[torch.device, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if launches(tensor.device):
            there.setdefault(tensor.device, {})[name] = tensor
    found = {name: digest for each in there.values() for name, digest in hashing.identities(each).items()}
    others = {name: tensor for name, tensor in tensors.items() if name not in found}
    return found | on_host.identities(others) if others else found


def identity(tensor: Tensor) -> Digest:
    return identities({"": tensor})[""]


def free_memory(device: torch.device) -> int | None:
    """The bytes that are free on a device with memory of its own, or that torch keeps for later; None on others."""
    if device.type != "cuda":
        return None
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def new_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A new queue of a device for work that others need not wait for; None if it has none."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
