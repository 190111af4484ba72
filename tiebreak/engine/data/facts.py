"""The facts that a job needs about an array: its id, and whether it is finite. Computed once, then cached.

This takes one pass over the file, in blocks. The cache key is everything that identifies the bytes: the file's real
path, device, inode, size, time of modification and time of change (which only the system can set), and the position,
type and shape of the array in it. A file that changed so recently that another write could leave these times the same
is not cached. Anyone who can write into the cache can forge an id, so the cache is a folder of this user alone.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine import system
from tiebreak.engine.data.arrays import ArrayFile, check_bools
from tiebreak.engine.data.disk import read_file
from tiebreak.engine.data.hashing import hasher
from tiebreak.engine.data.mapped import source_of
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.native import cache_directory
from tiebreak.protocol.commitments.records import TensorStream
from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.protocol.program.isa import MAX_NUMEL, DType
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.tags import Digest

SETTLED_NS: Final = 2_000_000_000
"""Two writes closer together than this may carry the same time: the coarsest file system counts in 2 s."""
MAX_ENTRY_BYTES: Final = 1024
"""An entry has about 200 bytes."""
MAX_ENTRIES: Final = 4096

OnBytes = Callable[[int], None]
"""Called with the number of bytes read since the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The result of one pass over an array. `not_finite` counts the floats that are infinite or NaN."""

    identity: Digest
    not_finite: int


class FactsCache:
    """Facts by file, kept in a folder. An entry that is damaged or belongs to another file is a miss."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_directory() / "data" if folder is None else folder

    def get(self, array: ArrayFile) -> Facts | None:
        """The facts about exactly these bytes, if they are cached."""
        key = _key(array)
        path = self._path(key)
        try:
            if not self._is_private():
                return None
            entry = JsonObject.parse(str(path), read_file(path, MAX_ENTRY_BYTES), 1)
            entry.same("key", key)
            identity = entry.text("identity", "[0-9a-f]{64}", "64 hex digits")
            not_finite = entry.integer("not_finite", 0, MAX_NUMEL)
            entry.finish()
        except (OSError, EncodingError):
            return None
        return Facts(identity=Digest(bytes.fromhex(identity)), not_finite=not_finite)

    def put(self, array: ArrayFile, facts: Facts, now: int) -> bool:
        """Caches facts, unless the file changed so shortly before `now` (nanoseconds) that its times prove nothing.

        Returns whether they are cached; a cache that cannot be written is ignored.
        """
        if now - max(array.stamp.modified, array.stamp.changed) < SETTLED_NS:
            return False
        key = _key(array)
        entry = {"key": key, "identity": facts.identity.hex(), "not_finite": facts.not_finite}
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_private():
                return False
            with tempfile.NamedTemporaryFile("w", dir=self.folder, suffix=".part", delete=False) as file:
                file.write(json.dumps(entry))
            Path(file.name).replace(self._path(key))
            entries = list(self.folder.glob("*.json"))
            if len(entries) > MAX_ENTRIES:
                for path in sorted(entries, key=lambda one: one.stat().st_mtime)[: MAX_ENTRIES // 2]:
                    path.unlink(missing_ok=True)
        except OSError:
            return False
        return True

    def _path(self, key: str) -> Path:
        return self.folder / f"{key[:40]}.json"

    def _is_private(self) -> bool:
        return system.is_private(self.folder.stat())


def _key(array: ArrayFile) -> str:
    """The digest of what the module's docstring lists."""
    place = array.offset, str(array.element), array.shape
    return sha256(repr((os.fspath(array.path.resolve()), astuple(array.stamp), place)).encode()).hexdigest()


def examine(array: ArrayFile, *, cache: FactsCache | None = None, on_bytes: OnBytes = lambda _: None) -> Facts:
    """The id of an array of f32, i64 or bool and whether it is finite; taken from the cache if it is there.

    Raises `EncodingError` for bools other than 0 and 1, `StateError` if the file changes meanwhile, and
    `ConfigurationError` for elements that have to be converted first.
    """
    if array.committed is None:
        raise ConfigurationError(
            f"{array}: expected little-endian F32, I64 or BOOL, got {'big-endian ' * array.big_endian}{array.element}; "
            "convert it with `tiebreak data import`"
        )
    if cache is not None and (known := cache.get(array)) is not None:
        on_bytes(array.nbytes)
        return known
    started = time.time_ns()
    stream, not_finite = TensorStream(array.committed, array.shape, hasher=hasher(torch.get_num_threads())), 0
    for block in array.blocks():
        stream.update(block)
        if array.committed == DType.F32:
            not_finite += _not_finite(np.frombuffer(block, "<f4"))
        elif array.committed == DType.BOOL:
            check_bools(array, block)
        on_bytes(len(block))
    facts = Facts(identity=stream.identity(), not_finite=not_finite)
    if cache is not None:
        cache.put(array, facts, started)
    return facts


def data_identities(tensors: Mapping[str, Tensor], *, cache: FactsCache | None = None) -> dict[str, Digest]:
    """Like `tensors.identities`, but mapped arrays are read from their files, or not at all if the cache knows them."""
    files = {name: array for name, tensor in tensors.items() if (array := source_of(tensor)) is not None}
    ids = identities({name: tensor for name, tensor in tensors.items() if name not in files})
    ids |= {name: examine(array, cache=cache).identity for name, array in files.items()}
    return {name: ids[name] for name in tensors}


def not_finite(tensor: Tensor) -> int:
    """The number of infinities and NaN in a float32 tensor on the CPU; for a mapped array, from the cache."""
    if (array := source_of(tensor)) is not None:
        return examine(array, cache=FactsCache()).not_finite
    return _not_finite(tensor.detach().reshape(-1).numpy())


def _not_finite(words: "np.ndarray[Any, np.dtype[np.float32]]") -> int:
    """Counts in pieces that fit into the cache of a core."""
    part = 1 << 16
    return sum(
        found.size - int(np.count_nonzero(np.isfinite(found)))
        for found in (words[start : start + part] for start in range(0, words.size, part))
    )
