"""The library interface, in the vocabulary of a PyTorch user. `tiebreak` re-exports its public names.

The command line calls these modules as `api.runs.open_run(...)`. Each module is imported on first use, so a command
that does not need torch does not wait for it.
"""

import gc
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiebreak.api import alarms as alarms
    from tiebreak.api import attesting as attesting
    from tiebreak.api import audits as audits
    from tiebreak.api import bundle as bundle
    from tiebreak.api import calibrating as calibrating
    from tiebreak.api import certificates as certificates
    from tiebreak.api import certifying as certifying
    from tiebreak.api import chains as chains
    from tiebreak.api import datasets as datasets
    from tiebreak.api import disputes as disputes
    from tiebreak.api import distributed as distributed
    from tiebreak.api import environment as environment
    from tiebreak.api import games as games
    from tiebreak.api import importing as importing
    from tiebreak.api import judging as judging
    from tiebreak.api import keys as keys
    from tiebreak.api import monitoring as monitoring
    from tiebreak.api import offers as offers
    from tiebreak.api import onchain as onchain
    from tiebreak.api import ownership as ownership
    from tiebreak.api import progress as progress
    from tiebreak.api import qualification as qualification
    from tiebreak.api import readers as readers
    from tiebreak.api import reading as reading
    from tiebreak.api import running as running
    from tiebreak.api import runs as runs
    from tiebreak.api import sampling as sampling
    from tiebreak.api import sealing as sealing
    from tiebreak.api import sinks as sinks
    from tiebreak.api import statements as statements
    from tiebreak.api import validating as validating
    from tiebreak.api import weights as weights


def __getattr__(name: str) -> Any:
    if find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module 'tiebreak.api' has no attribute {name!r}")
    # Most of what torch makes when it is imported stays; to look for garbage in it takes a sixth of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(f"{__name__}.{name}")
    finally:
        if was_enabled:
            gc.enable()
