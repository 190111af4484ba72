"""The parties over real time: they follow a chain and a hub, keep a journal, compute, and show what goes on.

As in `tiebreak.api`, a module is imported on first use, so a command that does not need it does not wait for it.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiebreak.node import exchange as exchange
    from tiebreak.node import library as library
    from tiebreak.node import parts as parts


def __getattr__(name: str) -> Any:
    if find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module 'tiebreak.node' has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
