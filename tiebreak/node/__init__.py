"""The parties over real time: they follow a chain and a hub, keep a journal, compute, and show what goes on.

As in `tiebreak.api`, a module is imported on first use, so a command that does not need it does not wait for it.
"""

from typing import TYPE_CHECKING

import lazy_loader  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from tiebreak.node import exchange as exchange
    from tiebreak.node import library as library
    from tiebreak.node import parts as parts

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules={"exchange", "library", "parts"})
