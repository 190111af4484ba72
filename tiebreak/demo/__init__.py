"""The demo: the whole path on real data. Its modules are imported on first use: `demo.run`, `demo.loader`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tiebreak.demo import run as run
    from tiebreak.demo.tasks import loader as loader

_MODULES: Final = {"run": "tiebreak.demo.run", "loader": "tiebreak.demo.tasks.loader"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tiebreak.demo' has no attribute {name!r}")
    return import_module(_MODULES[name])
