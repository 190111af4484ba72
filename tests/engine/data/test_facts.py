"""The id of an array file is that of its tensor, computed once: what the cache answers, and when it must not."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tiebreak.engine.data import FactsCache, arrays, data_identities, examine, map_array, not_finite, open_array
from tiebreak.engine.data.mapped import source_of
from tiebreak.engine.data.tensors import identities, identity
from tiebreak.protocol.errors import ConfigurationError, EncodingError

from .support import saved

LONG_AGO = 1_000_000_000


def aged(path: Path) -> Path:
    """A file last written long ago, as far as its times can be set."""
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FactsCache:
    """A cache of its own that does not wait for a file to settle."""
    monkeypatch.setattr("tiebreak.engine.data.facts.SETTLED_NS", -(1 << 62))
    return FactsCache(tmp_path / "cache")


def test_an_array_file_has_the_id_of_its_tensor(tmp_path: Path, cases: Callable[[], None]) -> None:
    generator = np.random.default_rng(3)
    for made in (
        generator.standard_normal((3, 700)).astype("<f4"),
        generator.integers(-(1 << 62), 1 << 62, (1025,)),
        np.array(7),
        generator.integers(0, 2, (1030,)).astype(bool),
    ):
        array = open_array(saved(tmp_path / "a.npy", made))
        tensor = map_array(array)
        assert torch.equal(tensor, torch.from_numpy(made.copy().reshape(made.shape)))
        assert tensor.dtype in (torch.float32, torch.int64, torch.bool)
        assert examine(array).identity == identity(torch.from_numpy(made)) == identity(tensor)
        assert source_of(tensor) is array
        assert source_of(tensor.clone()) is None
        cases()


@pytest.mark.parametrize("count", [(1 << 22) - 1, 1 << 22, (1 << 22) + 3])
def test_file_ids_are_right_around_block_boundaries(tmp_path: Path, count: int) -> None:
    made = np.arange(count, dtype="<f4")
    array = open_array(saved(tmp_path / "a.npy", made))
    assert arrays.BLOCK_BYTES == 4 << 22
    assert examine(array).identity == identity(torch.from_numpy(made))


def test_every_nan_payload_hashes_as_one_nan_and_is_counted(tmp_path: Path, cache: FactsCache) -> None:
    words = np.ones(70_000, dtype="<f4").view("<u4")
    words[[3, 69_999]] = 0xFFC00001, 0x7F800001
    words[5] = 0xFF800000
    array = open_array(saved(tmp_path / "a.npy", words.view("<f4")))
    words[[3, 69_999]] = 0x7FC00000
    facts = examine(array, cache=cache)
    assert facts.identity == identity(torch.from_numpy(words.view("<f4")))
    assert facts.not_finite == 3 == not_finite(torch.from_numpy(words.view("<f4")))
    assert cache.get(array) == facts


def test_bool_bytes_other_than_0_and_1_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"keep": torch.tensor([2, 0], dtype=torch.uint8).view(torch.bool)}, path)
    array = arrays.open_safetensors(path)["keep"]
    for use in (lambda: examine(array), lambda: map_array(array)):
        with pytest.raises(EncodingError, match="bools of 0 and 1, got 2"):
            use()


@pytest.mark.parametrize(("kind", "got"), [("<u2", "U16"), (">f4", "big-endian F32"), ("<f8", "F64")])
def test_unsupported_dtypes_are_refused_with_the_import_command(tmp_path: Path, kind: str, got: str) -> None:
    array = open_array(saved(tmp_path / "a.npy", np.ones(3, dtype=kind)))
    for use in (lambda: examine(array), lambda: map_array(array)):
        with pytest.raises(ConfigurationError, match=f"expected little-endian F32, .*BOOL, got {got}; convert it with"):
            use()


def test_unaligned_elements_are_hashed_but_not_memory_mapped(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(9))
    array = open_array(path, dtype="<i8", offset=1)
    assert examine(array).identity == identity(torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ConfigurationError, match="not aligned"):
        map_array(array)


def test_a_cached_id_is_answered_without_reading_the_file(tmp_path: Path, cache: FactsCache) -> None:
    array = open_array(saved(tmp_path / "a.npy", np.arange(9.0, dtype="<f4")))
    read: list[int] = []
    first = examine(array, cache=cache, on_bytes=read.append)
    array.path.unlink()  # so that reading would fail
    assert examine(array, cache=cache, on_bytes=read.append) == first
    assert read == [36, 36]
    assert data_identities({"a": torch.zeros(1)}, cache=cache) == identities({"a": torch.zeros(1)})


@pytest.mark.parametrize("field", ["device", "inode", "size", "modified", "changed"])
def test_any_changed_field_of_the_file_stamp_is_a_cache_miss(tmp_path: Path, cache: FactsCache, field: str) -> None:
    array = open_array(saved(tmp_path / "a.npy", np.arange(3)))
    assert cache.put(array, examine(array), time.time_ns())
    assert cache.get(array) is not None
    stamp = replace(array.stamp, **{field: getattr(array.stamp, field) + 1})
    assert cache.get(replace(array, stamp=stamp)) is None


def test_same_bytes_with_other_dtype_shape_or_path_are_a_cache_miss(tmp_path: Path, cache: FactsCache) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(64))
    array = open_array(path, dtype="<i8")
    cache.put(array, examine(array), time.time_ns())
    for other in (
        open_array(path, dtype="<f4", shape=(8,)),
        open_array(path, dtype="<i8", shape=(4, 2)),
        open_array(path, dtype="<i8", shape=(4,), offset=32),
    ):
        assert cache.get(other) is None
    os.link(path, tmp_path / "b.bin")
    assert cache.get(open_array(tmp_path / "b.bin", dtype="<i8")) is None


def test_a_rewritten_file_with_its_old_mtime_is_hashed_again(tmp_path: Path, cache: FactsCache) -> None:
    path = aged(saved(tmp_path / "a.npy", np.arange(3)))
    before = examine(open_array(path), cache=cache)
    inode = path.stat().st_ino
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    aged(path)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (inode, LONG_AGO)
    after = examine(open_array(path), cache=cache)
    assert after != before
    assert after == examine(open_array(path))


@pytest.mark.parametrize(("age", "kept"), [(1_999_999_999, False), (2_000_000_000, True)])
def test_a_just_modified_file_is_not_cached(tmp_path: Path, age: int, kept: bool) -> None:
    array = open_array(saved(tmp_path / "a.npy", np.arange(3)))
    cache = FactsCache(tmp_path / "cache")
    for newer in ("modified", "changed"):
        older = {"modified": LONG_AGO, "changed": LONG_AGO} | {newer: 3 * LONG_AGO}
        young = replace(array, stamp=replace(array.stamp, **older))
        assert cache.put(young, examine(array), 3 * LONG_AGO + age) is kept
        assert (cache.get(young) is not None) is kept


DAMAGES = [
    b"", b"{}", b"[]", b"[" * 9000, b"\xff", b'{"key": 1}', b" " * 20_000, {"identity": "00"}, {"identity": 5},
    {"not_finite": True}, {"key": "0" * 64}, {"key": {}},
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_entry_is_a_miss(tmp_path: Path, cache: FactsCache, damage: bytes | dict) -> None:
    array = open_array(saved(tmp_path / "a.npy", np.arange(3)))
    expected = examine(array, cache=cache)
    (entry,) = cache.folder.glob("*.json")
    whole = json.loads(entry.read_text())
    entry.write_bytes(damage if isinstance(damage, bytes) else json.dumps(whole | damage).encode())
    assert cache.get(array) is None
    assert examine(array, cache=cache) == expected == cache.get(array)


def test_a_world_writable_cache_folder_is_not_used(tmp_path: Path, cache: FactsCache) -> None:
    array = open_array(saved(tmp_path / "a.npy", np.arange(3)))
    facts = examine(array, cache=cache)
    cache.folder.chmod(0o777)
    assert cache.get(array) is None
    assert not cache.put(array, facts, time.time_ns())
    cache.folder.chmod(0o700)
    assert cache.get(array) == facts


def test_an_unwritable_cache_is_ignored(tmp_path: Path, cache: FactsCache) -> None:
    (tmp_path / "cache").write_bytes(b"")
    array = open_array(saved(tmp_path / "a.npy", np.arange(3)))
    assert not cache.put(array, examine(array, cache=cache), time.time_ns())


def test_a_full_cache_drops_old_entries(tmp_path: Path, cache: FactsCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiebreak.engine.data.facts.MAX_ENTRIES", 4)
    array = open_array(saved(tmp_path / "a.npy", np.arange(3)))
    facts = examine(array)
    for number in range(9):
        cache.put(replace(array, stamp=replace(array.stamp, inode=number)), facts, time.time_ns())
        assert len(list(cache.folder.iterdir())) <= 4
    assert cache.get(replace(array, stamp=replace(array.stamp, inode=8))) == facts
