"""The machine that computes: its settings, its description, and its qualification by the specification."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from tiebreak.engine.distributed.exchange import Exchange
    from tiebreak.engine.logged.policy import LoggedPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The settings by which a machine computes. None of them changes a bit of a result.

    Raises `ConfigurationError` for a setting that no machine can have.
    """

    device: str = "cpu"
    """The torch device. It is qualified by the conformance vectors first."""
    threads: int | None = None
    """Threads that torch may use, in the whole process; None: torch's choice."""
    permute: int | None = None
    """The seed of a random order in which every reduction takes its terms; None: their own order."""
    memory: int | None = None
    """Bytes that the process may take; values beyond that wait in a file in TMPDIR or /var/tmp. None: no limit."""
    graphs: bool = True
    """Whether steps are replayed as CUDA graphs on CUDA devices. What prevents that is said in a warning."""
    policy: "LoggedPolicy | str | Path | None" = None
    """The thresholds of policy `logged`, which say how far this machine's own sums may be from the exact ones, or the
    file that holds them; None: those in the folder that is trained into, or else the proven bounds."""
    exchange: "Exchange | None" = None
    """The workers that compute each step together (policy `exact` only); None: this process does it alone."""
    check_every: int | None = None
    """Workers check each other once in this many steps (`tiebreak.engine.distributed.check`); None: never."""

    def __post_init__(self) -> None:
        if not isinstance(self.device, str):
            raise ConfigurationError(f"expected the name of a device, such as cuda:0, got {self.device!r}")
        for name, least in (("threads", 1), ("permute", 0), ("memory", 0), ("check_every", 1)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= least):
                raise ConfigurationError(f"expected {name} of at least {least}, or None, got {value!r}")
