"""The library interface, in the vocabulary of a PyTorch user. `tiebreak` re-exports its public names.

Its folders are named by what a user does. The command line calls their modules without the folder, as in
`api.runs.open_run(...)`. Each module is imported on first use, so a command that does not need torch does not wait
for it.
"""

import gc
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiebreak.api import data as data
    from tiebreak.api.agreeing import offers as offers
    from tiebreak.api.agreeing import readers as readers
    from tiebreak.api.agreeing import sealing as sealing
    from tiebreak.api.auditing import audits as audits
    from tiebreak.api.auditing import forward as forward
    from tiebreak.api.auditing import progress as progress
    from tiebreak.api.builtin import loader as loader
    from tiebreak.api.certification import attesting as attesting
    from tiebreak.api.certification import certificates as certificates
    from tiebreak.api.certification import certifying as certifying
    from tiebreak.api.certification import ownership as ownership
    from tiebreak.api.chain import boards as boards
    from tiebreak.api.chain import chains as chains
    from tiebreak.api.chain import endings as endings
    from tiebreak.api.chain import onchain as onchain
    from tiebreak.api.chain import weights as weights
    from tiebreak.api.corpus import computing as computing
    from tiebreak.api.data import importing as importing
    from tiebreak.api.disputing import disputes as disputes
    from tiebreak.api.disputing import judging as judging
    from tiebreak.api.machine import environment as environment
    from tiebreak.api.machine import qualification as qualification
    from tiebreak.api.machine import running as running
    from tiebreak.api.signing import keys as keys
    from tiebreak.api.training import bundle as bundle
    from tiebreak.api.training import calibrating as calibrating
    from tiebreak.api.training import distributed as distributed
    from tiebreak.api.training import finetuning as finetuning
    from tiebreak.api.training import reading as reading
    from tiebreak.api.training import runs as runs
    from tiebreak.api.watching import alarms as alarms
    from tiebreak.api.watching import monitoring as monitoring
    from tiebreak.api.watching import sampling as sampling


def __getattr__(name: str) -> Any:
    here = Path(__file__).parent
    folder = next((f"{path.parent.name}." for path in here.glob(f"*/{name}.py")), "")
    if not folder and not (here / name / "__init__.py").exists():
        raise AttributeError(f"module 'tiebreak.api' has no attribute {name!r}")
    # Most of what torch makes when it is imported stays; to look for garbage in it takes a sixth of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        found = globals()[name] = import_module(f"{__name__}.{folder}{name}")
    finally:
        if was_enabled:
            gc.enable()
    return found
