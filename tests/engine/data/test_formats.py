"""Array files are opened as what they are, and refused, by name and without reading them, as anything else."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tiebreak.engine.data import Element, map_array, open_array, open_npy, open_safetensors
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError
from tiebreak.protocol.program.isa import DType

from .support import described, npy_bytes, saved

KINDS = {"f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8",
         "u8": "U64", "u4": "U32", "u2": "U16", "u1": "U8", "b1": "BOOL"}  # fmt: skip
TORCH = {"f8": torch.float64, "f4": torch.float32, "f2": torch.float16, "i8": torch.int64, "i4": torch.int32,
         "i2": torch.int16, "i1": torch.int8, "u1": torch.uint8, "b1": torch.bool}  # fmt: skip


def whole(path: Path) -> np.ndarray:
    """The array by its blocks, as stored."""
    array = open_array(path)
    data = b"".join(bytes(block) for block in array.blocks())
    return array.element.read(data, big_endian=array.big_endian).reshape(array.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_npy_files_of_every_dtype_and_byte_order_are_read(tmp_path: Path, kind: str, cases: Callable[[], None]) -> None:
    for order in "<>":
        for shape in ((), (1,), (5,), (2, 3), (2, 1, 3, 1)):
            made = np.asarray(np.random.default_rng(1).integers(0, 2, shape)).astype(order + kind)
            array = open_npy(saved(tmp_path / "a.npy", made))
            assert (array.element, array.shape) == (KINDS[kind], shape)
            assert array.big_endian == (order == ">" and array.element.size > 1)
            assert np.array_equal(whole(tmp_path / "a.npy"), made)
            cases()


@pytest.mark.parametrize("kind", TORCH)
def test_dtype_conversion_equals_numpys(kind: str) -> None:
    raw = np.random.default_rng(2).integers(0, 256, 4096, dtype=np.uint8)
    stored = (raw & 1 if kind == "b1" else raw).view(kind)
    element = Element(KINDS[kind])
    with np.errstate(all="ignore"):
        expected = stored.astype("<f4" if kind[0] == "f" else "<i8")
    found = element.convert(element.read(raw & 1 if kind == "b1" else raw))
    assert np.array_equal(found, expected, equal_nan=kind[0] == "f")
    assert element.converted == (DType.F32 if kind[0] == "f" else DType.I64)


def test_bfloat16_converts_to_the_same_float32() -> None:
    values = torch.randn(100, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    stored = values.view(torch.int16).numpy().tobytes()
    assert np.array_equal(Element.BF16.convert(Element.BF16.read(stored)), values.to(torch.float32).numpy())


def test_values_that_int64_or_bool_cannot_hold_are_refused() -> None:
    with pytest.raises(EncodingError, match=r"below 2\^63"):
        Element.U64.convert(np.array([1, 1 << 63], dtype="<u8"))
    with pytest.raises(EncodingError, match="0 and 1, got 2"):
        Element.BOOL.convert(np.array([1, 2], dtype="u1"))


@pytest.mark.parametrize("kind", TORCH)
def test_safetensors_of_every_dtype_are_read(tmp_path: Path, kind: str) -> None:
    tensors = {name: torch.ones(shape, dtype=TORCH[kind]) for name, shape in {"a": (3, 2), "b": (), "c": (7,)}.items()}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"made by": "a test"})
    found = open_safetensors(tmp_path / "x.safetensors")
    assert {name: (array.element, array.shape) for name, array in found.items()} == {
        name: (KINDS[kind], tuple(tensor.shape)) for name, tensor in tensors.items()
    }
    for name, tensor in tensors.items():
        data = b"".join(bytes(block) for block in open_array(tmp_path / "x.safetensors", name=name).blocks())
        assert np.array_equal(found[name].element.read(data), tensor.numpy().reshape(-1))


def test_raw_files_need_a_dtype_and_the_exact_size(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(b"head" + np.arange(6, dtype="<u2").tobytes())
    assert open_array(path, dtype="<u2", offset=4).shape == (6,)
    assert open_array(path, dtype="<u2", shape=(2, 2), offset=4).nbytes == 8
    with pytest.raises(EncodingError, match="whole elements of 4 bytes, got 2 bytes more"):
        open_array(path, dtype="<f4", offset=2)
    with pytest.raises(EncodingError, match="expected 16 bytes from byte 4 on, got a file of 16"):
        open_array(path, dtype="<u2", shape=(8,), offset=4)
    with pytest.raises(EncodingError, match="from byte -4"):
        open_array(path, dtype="<u2", shape=(2,), offset=-4)
    with pytest.raises(EncodingError, match="dims >= 1"):
        open_array(path, dtype="<u2", offset=16)
    with pytest.raises(EncodingError, match="one of b1, f2"):
        open_array(path, dtype="|O")
    with pytest.raises(ConfigurationError, match="or a dtype for raw bytes"):
        open_array(path)


def test_opening_safetensors_requires_an_existing_entry_name(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(1), "b": torch.ones(1)}, path)
    for name in (None, "c"):
        with pytest.raises(ConfigurationError, match=r"one of \['a', 'b'\]"):
            open_array(path, name=name)


HEADERS = {
    "objects": (described("|O"), "one of b1, f2"),
    "strings": (described("<U4"), "one of b1, f2"),
    "complex numbers": (described("<c8"), "one of b1, f2"),
    "structures": (described([("a", "<f4")]), "plain elements"),
    "no byte order": (described("|f4"), "one of b1, f2"),
    "nothing": (described(""), "one of b1, f2"),
    "fortran": (described("<f2", order=True, shape=(1, 2, 1, 2)), "Fortran order"),
    "neither order": (described(order=1), "True or False"),
    "negative": (described(shape=(-2, -1)), "dims >= 1"),
    "empty": (described(shape=(0, 2)), "dims >= 1"),
    "a bool for a dim": (described(shape=(True, 2)), "shape of integers"),
    "a list for a shape": (described(shape=[2]), "shape of integers"),
    "huge": (described(shape=(1 << 40,)), "expected 4398046511104 bytes from byte"),
    "endless": (described(shape=(1 << 62, 1 << 62)), "2.40 elements"),
    "of rank 9": (described(shape=(1,) * 9), "rank <= 8"),
    "too long": (described(shape=(3,)), "expected 12 bytes from byte"),
    "too short": (described(shape=(1,)), "bytes, got"),
    "another key": (described().replace("}", "'x': 1}"), "descr, fortran_order and shape"),
    "no dict": ("('<f4',)", "descr, fortran_order and shape"),
    "code": ("__import__('os').system('true')", "header of a .npy file"),
    "deep": ("(" * 900, "header of a .npy file"),
    "deeper": ("-" * 900 + "1", "descr, fortran_order and shape|header of a .npy file"),
    "no key a dict has": ("{[]: 1}", "header of a .npy file"),
    "long": (described() + " " * 2000, "at most 1024 bytes"),
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_hostile_npy_header_is_refused(tmp_path: Path, what: str) -> None:
    header, message = HEADERS[what]
    path = tmp_path / "a.npy"
    for version in ((1, 0), (2, 0)):
        path.write_bytes(npy_bytes(header, bytes(8), version))
        with pytest.raises(EncodingError, match=message):
            open_npy(path)


def test_huge_header_lengths_are_refused_before_reading(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x02\x00" + b"\xff" * 4)
    with pytest.raises(EncodingError, match="at most 1024 bytes, got 4294967295"):
        open_npy(tmp_path / "a.npy")
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 8)
    with pytest.raises(EncodingError, match="header of at most"):
        open_safetensors(tmp_path / "a.safetensors")


def test_truncated_or_extended_array_files_are_refused(tmp_path: Path, cases: Callable[[], None]) -> None:
    save_file({"a": torch.ones(3), "b": torch.ones(2, dtype=torch.int64)}, tmp_path / "a.safetensors")
    saved(tmp_path / "a.npy", np.ones(3, dtype="<f4"))
    for name in ("a.npy", "a.safetensors"):
        path = tmp_path / name
        content = path.read_bytes()
        for length in range(len(content)):
            path.write_bytes(content[:length])
            with pytest.raises(EncodingError):
                open_array(path, name="a")
            cases()
        path.write_bytes(content + b"\0")
        with pytest.raises(EncodingError, match="bytes, got"):
            open_array(path, name="a")


def safetensors_bytes(header: object, data: bytes = bytes(8)) -> bytes:
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: object = "F32", shape: object = (2,), places: object = (0, 8), **more: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": places} | more


SAFETENSORS = {
    "another kind": ({"a": entry("F8_E5M2")}, "expected one of F64"),
    "a number for a kind": ({"a": entry(7)}, "expected one of F64"),
    "negative": ({"a": entry(shape=[-2])}, "integers of 0 to"),
    "fractions": ({"a": entry(shape=[2.0])}, "integers of 0 to"),
    "long numbers": ({"a": entry(shape=[1 << 63])}, "integers of 0 to"),
    "many numbers, whose product takes for ever": ({"a": entry(shape=[(1 << 63) - 1] * 65)}, "integers of 0 to"),
    "empty": ({"a": entry(shape=[0], places=[0, 0]), "b": entry()}, "dims >= 1"),
    "three places": ({"a": entry(places=[0, 8, 8])}, "to fill its place"),
    "a place too small": ({"a": entry(places=[0, 4])}, "to fill its place"),
    "outside": ({"a": entry(places=[8, 16])}, "from byte"),
    "a gap": ({"a": entry(shape=[1], places=[4, 8])}, "expected to begin at byte"),
    "an overlap": ({"a": entry(), "b": entry(shape=[1], places=[4, 8])}, "expected to begin at byte"),
    "a rest": ({"a": entry(shape=[1], places=[0, 4])}, "bytes, got"),
    "a field more": ({"a": entry(x=1)}, "a: expected no other fields, got 'x'"),
    "no entry": ({"a": 1}, "a: expected an object, got int"),
    "a list": ([], "entries by name"),
    "deep": ("[" * 100_000, "not a readable safetensors header"),
    "deep, beside names": ('{"[": ' + "[" * 100_000, "not a readable safetensors header"),
    "not UTF-8": ('{"a": 1}'.encode("utf-16").decode("latin-1"), "not a readable safetensors header"),
    "no JSON": ("{", "not a readable safetensors header"),
    "twice": (f'{{"a": {json.dumps(entry())}, "a": {json.dumps(entry())}}}', "appears twice"),
}


@pytest.mark.parametrize("what", SAFETENSORS)
def test_a_hostile_safetensors_header_is_refused(tmp_path: Path, what: str) -> None:
    header, message = SAFETENSORS[what]
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes(header))
    with pytest.raises(EncodingError, match=message):
        open_safetensors(path)


def test_safetensors_entry_names_may_contain_any_characters(tmp_path: Path) -> None:
    path, name = tmp_path / "a.safetensors", '[[[[{{{{"\\'
    path.write_bytes(safetensors_bytes({name: entry(), "__metadata__": {"x": "y"}}))
    assert open_safetensors(path)[name].shape == (2,)


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_random_bytes_parse_as_an_array_or_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    for name, start in (("any.npy", b"\x93NUMPY\x01\x00"), ("any.safetensors", b"")):
        (folder / name).write_bytes(start + data)
        try:
            array = open_array(folder / name, name="a")
        except (EncodingError, ConfigurationError):
            continue
        assert array.nbytes < len(data)


@pytest.mark.parametrize("name", ["a.npy", "a.safetensors", "a.bin"])
def test_fifos_devices_and_folders_are_refused_without_blocking(tmp_path: Path, name: str) -> None:
    path, dtype = tmp_path / name, "<f4" if name == "a.bin" else None
    with pytest.raises(EncodingError, match="cannot be read"):
        open_array(path, dtype=dtype)
    os.mkfifo(path)
    with pytest.raises(EncodingError, match="plain file"):
        open_array(path, dtype=dtype)
    path.unlink()
    for target in ("/dev/zero", tmp_path):
        path.symlink_to(target)
        with pytest.raises(EncodingError, match="plain file"):
            open_array(path, dtype=dtype)
        path.unlink()
    path.symlink_to(path)
    with pytest.raises(EncodingError, match="cannot be read"):
        open_array(path, dtype=dtype)


def test_a_symlink_to_a_plain_file_is_followed(tmp_path: Path) -> None:
    made = saved(tmp_path / "a.npy", np.arange(3))
    (tmp_path / "b.npy").symlink_to(made)
    assert map_array(open_array(tmp_path / "b.npy")).tolist() == [0, 1, 2]


def test_a_file_changed_after_opening_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npy", np.arange(3))
    array = open_array(path)
    os.utime(path, ns=(1, 1))
    for use in (lambda: map_array(array), lambda: list(array.blocks())):
        with pytest.raises(StateError, match="expected the file as it was"):
            use()
    array = open_array(path)
    blocks = array.blocks()
    next(blocks)
    os.utime(path, ns=(2, 2))
    with pytest.raises(StateError, match="expected the file as it was"):
        next(blocks)
    array = open_array(path)
    (tmp_path / "again.npy").hardlink_to(path)
    assert map_array(array).tolist() == [0, 1, 2]  # another name changes no byte
