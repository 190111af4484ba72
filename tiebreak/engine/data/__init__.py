"""Datasets that stay on disk: array files that are opened without being read, mapped tensors, ids computed in one pass.

    tokens = map_array(open_array("corpus/tokens.npy"))     # int64, on the mapped file
    Task(data={"tokens": tokens}, ...)

A job commits to float32, int64 and bool; `tiebreak data import` converts everything else once. Torch comes with the
first name that needs it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
