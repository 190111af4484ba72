"""The names of the package and their homes. `lazy_loader` reads this file, as type checkers do."""

from .arrays import ArrayFile, open_array, open_npy, open_raw, open_safetensors
from .elements import Element
from .facts import Facts, FactsCache, data_identities, examine, not_finite
from .formats import map_tensors, read_tensors, write_tensors
from .mapped import check_unchanged, map_array
from .tensors import check_spec, identities

__all__ = ["ArrayFile", "Element", "Facts", "FactsCache", "check_spec", "check_unchanged", "data_identities", "examine"]
__all__ += ["identities", "map_array", "map_tensors", "not_finite", "open_array", "open_npy", "open_raw"]
__all__ += ["open_safetensors", "read_tensors", "write_tensors"]
