"""The one door to the back-ends: which of them computes on a device, and what else depends on where that is."""

from collections.abc import Mapping
from importlib.util import find_spec

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.c import chains, moves, scatter, sums, units
from tiebreak.engine.arithmetic.c.backend import CBackend
from tiebreak.engine.arithmetic.gpu import hashing, integers
from tiebreak.engine.arithmetic.gpu.backend import GpuBackend
from tiebreak.engine.arithmetic.plain.backend import TorchBackend
from tiebreak.engine.arithmetic.plan.options import Options, Stats
from tiebreak.engine.data import tensors as on_host
from tiebreak.engine.native import SWITCH, Build, enabled, interprets
from tiebreak.engine.native import integers as integers_wanted
from tiebreak.protocol.tags import Digest


def choose(options: Options, stats: Stats) -> TorchBackend:
    """The fastest back-end of a device. Each computes every instruction."""
    if options.compiled and launches(options.device):
        return GpuBackend(options, stats)
    return (CBackend if options.compiled and is_host(options.device) and enabled() else TorchBackend)(options, stats)


def launches(device: torch.device) -> bool:
    """Whether Triton kernels run on a device."""
    runs = device.type == "cuda" or (is_host(device) and interprets())
    return runs and enabled() and find_spec("triton") is not None


def why_plain(device: torch.device) -> str:
    """The reason why torch alone computes some or all sums and chains on a device; empty if kernels do."""
    if not enabled():
        return f"switched off by {SWITCH}=0"
    if launches(device):
        return ""
    if not is_host(device):
        return "Triton is not installed; it comes with the extra gpu"
    return next(
        (
            build.reason
            for build in (sums.build(), scatter.build(), chains.build(), units.build())
            if build.library is None
        ),
        "",
    )


def builds() -> dict[str, Build]:
    """The kernels in C, by what they compute, or the reasons why there are none."""
    kernels = {"sums": sums, "scatter": scatter, "chains": chains, "moves": moves, "units": units}
    return {name: kernel.build() for name, kernel in kernels.items()}


def integer_products() -> tuple[tuple[str, str], ...]:
    """The way in which each CUDA device with kernels computes large products."""
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return tuple(integers.describe(device) for device in devices if launches(device))


def has_integers(options: Options) -> bool:
    """Whether a GPU computes some matrix products by integers, and the environment does not say which."""
    if not options.compiled or integers_wanted() or not launches(options.device):
        return False
    return integers.rates_of(options.device) is not None


def is_host(device: torch.device) -> bool:
    """Whether tensors on this device lie in the host's memory."""
    return device.type == "cpu"


def identities(tensors: Mapping[str, Tensor], *, compiled: bool = True) -> dict[str, Digest]:
    """The id of each tensor by name, hashed where it lies if its device has kernels for that, else on the host.

    compiled: whether compiled kernels may hash.
    """
    there: dict[torch.device, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if compiled and launches(tensor.device):
            there.setdefault(tensor.device, {})[name] = tensor
    found = {name: digest for each in there.values() for name, digest in hashing.identities(each).items()}
    others = {name: tensor for name, tensor in tensors.items() if name not in found}
    return found | on_host.identities(others, compiled=compiled) if others else found


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
