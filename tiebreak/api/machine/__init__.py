"""The machine that computes: its settings, its description, and its qualification by the specification."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tiebreak.protocol.arguments import FLAG, NONE, PATH, Expectation, instance, require_fields, whole

if TYPE_CHECKING:
    from tiebreak.engine.distributed.exchange import Exchange
    from tiebreak.engine.logged.policy import LoggedPolicy


MAX_THREADS: Final = 1 << 16
MAX_SEED: Final = (1 << 63) - 1
DEVICE: Final = instance("the name of a torch device, such as cuda:0", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The settings by which a machine computes. None of them changes a bit of a result.

    Raises `ConfigurationError` for a setting that no machine can have.
    """

    device: str = "cpu"
    """The torch device. It is qualified by the conformance vectors first. For a worker that torchrun has started,
    `cuda` is the GPU of its number on this machine, `cuda:LOCAL_RANK`."""
    threads: int | None = None
    """Threads that torch may use, in the whole process; None: torch's choice."""
    permute: int | None = None
    """The seed of a random order in which every reduction takes its terms; None: their own order."""
    graphs: bool = True
    """Whether steps are replayed as CUDA graphs on CUDA devices. A warning names what prevents that."""
    uncompiled: bool = True
    """Whether torch alone may compute where there are no compiled kernels; with a warning. That is a little slower,
    but adversarial data make it hundreds of times slower, so a party that commits to results sets False."""
    policy: "LoggedPolicy | str | Path | None" = None
    """The thresholds of policy `logged`, which say how far this machine's own sums may be from the exact ones, or the
    file that holds them; None: those in the folder that is trained into, or else the proven bounds."""
    exchange: "Exchange | None" = None
    """The workers that compute each step together (policy `exact` only); None: this process does it alone."""

    def __post_init__(self) -> None:
        policy = Expectation("a policy of tiebreak.calibrate", lambda x: hasattr(x, "thresholds"))
        exchange = Expectation("the workers of tiebreak.api.training.distributed.joined", lambda x: hasattr(x, "meet"))
        require_fields(
            self, device=DEVICE, threads=whole(1, MAX_THREADS) | NONE, permute=whole(0, MAX_SEED) | NONE,
            graphs=FLAG, uncompiled=FLAG, policy=PATH | policy | NONE, exchange=exchange | NONE,
        )  # fmt: skip
        if self.device == "cuda" and "TORCHELASTIC_RUN_ID" in os.environ:  # as in torch's is_torchelastic_launched
            object.__setattr__(self, "device", f"cuda:{int(os.environ['LOCAL_RANK'])}")


MACHINE: Final = instance("a tiebreak.Machine", Machine)
