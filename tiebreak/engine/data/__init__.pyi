"""The names of the package and their homes. `lazy_loader` reads this file, as type checkers do."""

from .arrays import ArrayFile as ArrayFile
from .arrays import open_array as open_array
from .arrays import open_npy as open_npy
from .arrays import open_raw as open_raw
from .arrays import open_safetensors as open_safetensors
from .elements import Element as Element
from .facts import Facts as Facts
from .facts import FactsCache as FactsCache
from .facts import data_identities as data_identities
from .facts import examine as examine
from .facts import not_finite as not_finite
from .formats import map_tensors as map_tensors
from .formats import read_tensors as read_tensors
from .formats import write_tensors as write_tensors
from .mapped import check_unchanged as check_unchanged
from .mapped import map_array as map_array
from .tensors import check_spec as check_spec
from .tensors import identities as identities
