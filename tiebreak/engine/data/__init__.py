"""Datasets that stay on disk: array files that are opened without being read, mapped tensors, ids computed in one pass.

    tokens = open_array("corpus/tokens.npy").tensor()     # int64, on the mapped file
    Task(data={"tokens": tokens}, ...)

A job commits to float32, int64 and bool; `tiebreak data import` converts everything else once.
"""

from tiebreak.engine.data.elements import Element
from tiebreak.engine.data.facts import Facts, FactsCache, data_identities, examine, not_finite
from tiebreak.engine.data.files import ArrayFile, check_unchanged, source_of
from tiebreak.engine.data.formats import open_array, open_npy, open_raw, open_safetensors

__all__ = [
    "ArrayFile",
    "Element",
    "Facts",
    "FactsCache",
    "check_unchanged",
    "data_identities",
    "examine",
    "not_finite",
    "open_array",
    "open_npy",
    "open_raw",
    "open_safetensors",
    "source_of",
]
