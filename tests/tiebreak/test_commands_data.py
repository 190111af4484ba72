"""`tiebreak data`: what is imported is what was there, in the shape a task takes; ids are those of the tensors."""

import json
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.tiebreak.parties import Commands
from tests.tiebreak.test_tasks import linear_task
from tiebreak import Batch, Rows
from tiebreak.engine.capture.examples import arrays
from tiebreak.engine.data import arrays as array_files
from tiebreak.engine.data import hugging_face, text
from tiebreak.engine.data.tensors import identity
from tiebreak.protocol.errors import ConfigurationError, EncodingError

datasets.disable_progress_bars()
Import = Callable[..., list[str]]
Fails = Callable[..., str]
BOOK = "\n\n".join(topics[name] for name in sorted(topics)[:12])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A dataset on disk, in several files, with columns of every sort."""
    columns: dict[str, tuple[Any, Callable[[int], object]]] = {
        "x": (datasets.Sequence(datasets.Value("float32"), length=2), lambda n: [n / 4, -n]),
        "image": (datasets.Array2D((2, 3), "uint8"), lambda n: np.full((2, 3), n, dtype="u1")),
        "label": (datasets.ClassLabel(names=["a", "b", "c"]), lambda n: n % 3),
        "half": (datasets.Value("float16"), lambda n: n / 2),
        "double": (datasets.Value("float64"), lambda n: n / 3),
        "yes": (datasets.Value("bool"), lambda n: n % 2 == 0),
        "text": (datasets.Value("string"), lambda n: "" if n == 3 else f"row {n} é" * (n % 4 + 1)),
        "ragged": (datasets.List(datasets.Value("int32")), lambda n: [1] * (n % 2 + 1)),
        "hole": (datasets.Value("int32"), lambda n: None if n == 7 else n),
        "when": (datasets.Value("timestamp[s]"), lambda n: 0),
    }
    features = datasets.Features({name: kind for name, (kind, _) in columns.items()})
    rows = {name: [value(n) for n in range(25)] for name, (_, value) in columns.items()}
    made = datasets.Dataset.from_dict(rows, features=features)
    made.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    return tmp_path / "saved"


@pytest.fixture
def imported(command: Commands, tmp_path: Path) -> Import:
    """Runs `tiebreak data import` into a file; what it prints."""
    return lambda *arguments: command("data", "import", *arguments, "-o", tmp_path / "out.safetensors").splitlines()


@pytest.fixture
def failed(command: Commands, tmp_path: Path) -> Fails:
    """The error of an import that must fail in one line."""
    return lambda *given, output="out.safetensors": command.error("data", "import", *given, "-o", tmp_path / output)


def test_data_import_converts_arrays_of_every_type(tmp_path: Path, imported: Import) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (50, 4, 4), dtype=np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    np.save(tmp_path / "thirds.npy", np.arange(5) / 3)
    save_file(
        {"half": torch.arange(6.0).half(), "keep": torch.tensor([True, False]), "one": torch.tensor(3)},
        tmp_path / "more.safetensors",
    )
    lines = imported(*(tmp_path / name for name in ("pixels.npy", "thirds.npy", "more.safetensors")))
    found = arrays(tmp_path / "out.safetensors", [])[0]
    expected = {"half": torch.arange(6.0), "keep": torch.tensor([1, 0]), "one": torch.tensor([3])}
    expected["pixels"] = torch.from_numpy(pixels.astype("i8"))
    expected["thirds"] = torch.arange(5, dtype=torch.float64).div(3).to(torch.float32)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert dict(line.split()[:: len(line.split()) - 1] for line in lines) == {
        name: identity(tensor).hex() for name, tensor in expected.items()
    }


def test_raw_binary_files_are_imported_with_offset_shape_and_in_blocks(
    tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokens.bin").write_bytes(b"head" + np.arange(12, dtype=">u2").tobytes())
    raw = ["data", "import", tmp_path / "tokens.bin", "--dtype", ">u2", "--offset", 4]
    command(*raw, "-o", tmp_path / "a.safetensors")
    assert load_file(tmp_path / "a.safetensors")["tokens"].tolist() == list(range(12))
    command(*raw, "--shape", "3,4", "-o", tmp_path / "b.safetensors")
    assert load_file(tmp_path / "b.safetensors")["tokens"].tolist() == np.arange(12).reshape(3, 4).tolist()
    monkeypatch.setattr(array_files, "BLOCK_BYTES", 64)
    made = np.random.default_rng(4).integers(0, 1 << 16, (3 * 64 + 7,), dtype=np.uint16)
    made.tofile(tmp_path / "t.bin")
    command("data", "import", tmp_path / "t.bin", "--dtype", "<u2", "-o", tmp_path / "c.safetensors")
    assert np.array_equal(load_file(tmp_path / "c.safetensors")["t"].numpy(), made)


@given(st.lists(st.text(alphabet="ab \n", max_size=12), min_size=1, max_size=3))
@settings(max_examples=60)
def test_text_lines_match_a_naive_reading(tmp_path_factory: pytest.TempPathFactory, contents: list[str]) -> None:
    paths = [tmp_path_factory.getbasetemp() / f"lines{n}.txt" for n in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content.encode())
    assert [line for path in paths for line in text.lines(path)] == [
        line for content in contents for line in (content.removesuffix("\n").split("\n") if content else [])
    ]


def test_dataset_columns_become_arrays(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hugging_face, "MAX_BATCH_ROWS", 4)
    columns = ("x", "image", "label", "half", "double", "yes")
    whole = datasets.load_from_disk(str(saved))
    found = hugging_face.arrays(whole, columns)
    assert found.keys() == set(columns)
    for name in columns:
        expected = np.asarray(whole.with_format(None)[name][:])
        kind = np.float32 if name in ("x", "half", "double") else np.int64
        assert np.array_equal(found[name], expected.astype(kind)), name
        assert found[name].dtype == kind
    batch, data = Batch(size=2, examples=Rows(names=("image", "label"))), {n: torch.from_numpy(found[n]) for n in found}
    assert linear_task(data=data, batch=batch, loss=lambda model, image, label: model(image)).examples == 25


def test_a_column_that_is_no_array_is_refused(saved: Path, cases: Callable[[], None]) -> None:
    refused = {"ragged": "lists of one length, got 1 to 2", "hole": "a value in every row"}
    for column, message in (refused | dict.fromkeys(("text", "when"), "one of b1, f2")).items():
        with pytest.raises((ConfigurationError, EncodingError), match=message):
            hugging_face.arrays(datasets.load_from_disk(str(saved)), [column])
        cases()


def test_a_text_file_that_cannot_be_read_is_refused_with_its_line(tmp_path: Path) -> None:
    bad, long = tmp_path / "bad.txt", tmp_path / "long.txt"
    bad.write_bytes(b"fine\n\xff\n")
    long.write_bytes(b"x" * (text.MAX_TEXT_BYTES + 1))
    with pytest.raises(EncodingError, match=r"bad\.txt, line 2: expected UTF-8"):
        list(text.lines(bad))
    with pytest.raises(ConfigurationError, match="line 1: expected texts of at most 4194304 bytes"):
        list(text.lines(long))
    with pytest.raises(EncodingError, match="cannot be read"):
        list(text.lines(tmp_path / "none.txt"))


def test_invalid_array_imports_are_refused_with_the_reason(tmp_path: Path, failed: Fails) -> None:
    (tmp_path / "other").mkdir()
    for name in ("a.npy", "other/a.npy"):
        np.save(tmp_path / name, np.arange(3))
    one = tmp_path / "a.npy"
    assert "each array once" in failed(one, tmp_path / "other" / "a.npy")
    assert "or --dtype" in failed(tmp_path / "a.bin")
    assert "expected --dtype" in failed(one, "--shape", "3")
    assert "a shape such as" in failed(one, "--dtype", "<i8", "--shape", "x")
    for output in ("a.npy", "out.npy"):
        assert "a new file that ends in .safetensors" in failed(one, output=output)
    np.save(one, np.array([1 << 63], dtype="u8"))
    assert "integers below 2^63" in failed(one)
    assert not (tmp_path / "out.safetensors").exists()
    assert "cannot write" in failed(one, output="a.npy/out.safetensors")


def test_data_root_caches_the_identities_of_unchanged_files(
    tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiebreak.engine.data.facts.SETTLED_NS", -(1 << 62))
    monkeypatch.setattr("tiebreak.engine.data.facts.cache_directory", lambda: tmp_path / "cache")
    numbers = torch.arange(8.0).reshape(2, 4)
    numbers[1, 3] = float("inf")
    np.save(tmp_path / "x.npy", numbers.numpy())
    save_file({"y": torch.tensor(7)}, tmp_path / "y.safetensors")
    root = ["data", "root", tmp_path / "x.npy", tmp_path / "y.safetensors"]
    first = command(*root).splitlines()
    told = command.tell(*root)
    assert [(one["name"], one["shape"], one["not_finite"]) for one in told] == [("x", [2, 4], 1), ("y", [], 0)]
    assert told[0]["id"] == identity(numbers).hex()
    assert first[0].split()[:5] == ["x", "F32", "2", "x", "4"]
    assert identity(numbers).hex() in first[0]
    assert first[0].endswith("1 not finite: no task takes it")
    assert first[1].split() == ["y", "I64", "one", identity(torch.tensor(7)).hex()]
    assert len(list((tmp_path / "cache" / "data").iterdir())) == 2
    for entry in (tmp_path / "cache" / "data").iterdir():
        told = json.loads(entry.read_text())
        entry.write_text(json.dumps(told | {"identity": "ab" * 32}))
    assert all("ab" * 32 in line for line in command(*root).splitlines())
    assert command(*root, "--no-cache").splitlines() == first
