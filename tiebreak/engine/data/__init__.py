"""Datasets that stay on disk: array files that are opened without being read, mapped tensors, ids computed in one pass.

    tokens = map_array(open_array("corpus/tokens.npy"))     # int64, on the mapped file
    Task(data={"tokens": tokens}, ...)

A job commits to float32, int64 and bool; `tiebreak data import` converts everything else once. Torch comes with the
first name that needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tiebreak.engine.data.arrays import open_array, open_npy, open_raw, open_safetensors
    from tiebreak.engine.data.elements import Element
    from tiebreak.engine.data.facts import Facts, FactsCache, data_identities, examine, not_finite
    from tiebreak.engine.data.files import ArrayFile
    from tiebreak.engine.data.formats import Empty, fresh, map_tensors, read_tensors, write_tensors
    from tiebreak.engine.data.mapped import check_unchanged, map_array, source_of
    from tiebreak.engine.data.tensors import check_spec, identities

_MODULES: Final = {
    "arrays": "open_array open_npy open_raw open_safetensors",
    "elements": "Element",
    "facts": "Facts FactsCache data_identities examine not_finite",
    "files": "ArrayFile",
    "formats": "Empty fresh map_tensors read_tensors write_tensors",
    "mapped": "check_unchanged map_array source_of",
    "tensors": "check_spec identities",
}
_HOME: Final = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "ArrayFile", "Element", "Empty", "Facts", "FactsCache", "check_spec", "check_unchanged", "data_identities",
    "examine", "fresh", "identities", "map_array", "map_tensors", "not_finite", "open_array", "open_npy", "open_raw",
    "open_safetensors", "read_tensors", "source_of", "write_tensors",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tiebreak.engine.data' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
