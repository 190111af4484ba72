"""The library interface, in the vocabulary of a PyTorch user. `tiebreak` re-exports its public names.

Its folders are named by what a user does. The command line calls their modules without the folder, as in
`api.runs.open_run(...)`. Each module is imported on first use, so a command that does not need torch does not wait
for it.
"""

import gc
from importlib import import_module
from pathlib import Path
from typing import Any


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
