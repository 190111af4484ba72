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
from safetensors.torch import save_file

from tests.tiebreak.parties import Commands
from tests.tiebreak.test_tasks import linear_task
from tiebreak.api.data import load_arrays
from tiebreak.api.data.folder import importing
from tiebreak.engine.capture.task import Batch, Rows
from tiebreak.engine.data import files, hugging_face, text
from tiebreak.engine.data.disk import StorageError
from tiebreak.engine.data.tensors import identity
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError
from tiebreak.protocol.program.isa import DType

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
    """Runs `tiebreak data import` into a folder `out`; what it prints."""
    return lambda *arguments: command("data", "import", *arguments, "-o", tmp_path / "out").splitlines()


@pytest.fixture
def failed(command: Commands, tmp_path: Path) -> Fails:
    """The error of an import that must fail in one line."""
    return lambda *arguments, code=1: command.error("data", "import", *arguments, "-o", tmp_path / "out", code=code)


def test_arrays_of_every_kind(tmp_path: Path, imported: Import) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (50, 4, 4), dtype=np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    np.save(tmp_path / "thirds.npy", np.arange(5) / 3)
    save_file(
        {"half": torch.arange(6.0).half(), "keep": torch.tensor([True, False]), "one": torch.tensor(3)},
        tmp_path / "more.safetensors",
    )
    lines = imported(*(tmp_path / name for name in ("pixels.npy", "thirds.npy", "more.safetensors")))
    found = load_arrays(tmp_path / "out")
    expected = {
        "pixels": torch.from_numpy(pixels.astype("i8")),
        "thirds": torch.arange(5, dtype=torch.float64).div(3).to(torch.float32),
        "half": torch.arange(6.0),
        "keep": torch.tensor([1, 0]),
        "one": torch.tensor([3]),
    }
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert dict(line.split()[:: len(line.split()) - 1] for line in lines) == {
        name: identity(tensor).hex() for name, tensor in expected.items()
    }


def test_raw_bytes_and_more_than_a_block_of_elements_that_grow(
    tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokens.bin").write_bytes(b"head" + np.arange(12, dtype=">u2").tobytes())
    raw = ["data", "import", tmp_path / "tokens.bin", "--dtype", ">u2", "--offset", 4]
    command(*raw, "-o", tmp_path / "a")
    assert load_arrays(tmp_path / "a")["tokens"].tolist() == list(range(12))
    command(*raw, "--shape", "3,4", "-o", tmp_path / "b")
    assert load_arrays(tmp_path / "b")["tokens"].tolist() == np.arange(12).reshape(3, 4).tolist()
    monkeypatch.setattr(files, "BLOCK_BYTES", 64)
    made = np.random.default_rng(4).integers(0, 1 << 16, (3 * 64 + 7,), dtype=np.uint16)
    made.tofile(tmp_path / "t.bin")
    command("data", "import", tmp_path / "t.bin", "--dtype", "<u2", "-o", tmp_path / "c")
    assert np.array_equal(load_arrays(tmp_path / "c")["t"].numpy(), made)


@given(st.lists(st.text(alphabet="ab \n", max_size=12), min_size=1, max_size=3))
@settings(max_examples=60)
def test_lines_are_those_of_a_naive_reading(tmp_path_factory: pytest.TempPathFactory, contents: list[str]) -> None:
    paths = [tmp_path_factory.getbasetemp() / f"lines{n}.txt" for n in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content.encode())
    assert [line for path in paths for line in text.lines(path)] == [
        line for content in contents for line in (content.removesuffix("\n").split("\n") if content else [])
    ]


def test_columns_of_a_dataset(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("ragged", "lists of one length, got 1 to 2"),
        ("hole", "a value in every row"),
        ("text", "one of b1, f2"),
        ("when", "one of b1, f2"),
    ],
)
def test_a_column_that_is_no_array_is_refused(saved: Path, column: str, message: str) -> None:
    with pytest.raises((ConfigurationError, EncodingError), match=message):
        hugging_face.arrays(datasets.load_from_disk(str(saved)), [column])


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


def test_mistakes_of_arrays_are_named(tmp_path: Path, failed: Fails) -> None:
    (tmp_path / "other").mkdir()
    for name in ("a.npy", "my array.npy", "other/a.npy"):
        np.save(tmp_path / name, np.arange(3))
    one = tmp_path / "a.npy"
    assert "each array once" in failed(one, tmp_path / "other" / "a.npy")
    assert "got 'my array'" in failed(tmp_path / "my array.npy")
    assert "or --dtype" in failed(tmp_path / "a.bin")
    assert "expected --dtype" in failed(one, "--shape", "3")
    assert "a shape such as" in failed(one, "--dtype", "<i8", "--shape", "x")
    (tmp_path / "other").rename(tmp_path / "out")
    assert "new or empty folder" in failed(one)
    assert (tmp_path / "out" / "a.npy").exists()


def test_root_reads_once(tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
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


def made_folder(path: Path) -> Path:
    with importing(path, {}) as made:
        made.append("n", DType.I64, np.arange(3))
    return path


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda m: "[", "arrays.json: expected JSON"),
        (lambda m: "[" * 50_000, "arrays.json: expected JSON"),
        (lambda m: m | {"x": 1}, "no other fields, got 'x'"),
        (lambda m: m | {"format": 2}, "format: expected an integer from 1 to 1, got '2'"),
        (lambda m: m | {"arrays": {"n": 1}}, "arrays, n: expected an object"),
        (lambda m: m | {"arrays": {"../n": m["arrays"]["n"]}}, "expected a name like .*, got '../n'"),
        (lambda m: m | {"arrays": {"n": m["arrays"]["n"] | {"file": "../n.npy"}}}, "file: expected n.npy, got"),
        (
            lambda m: m | {"arrays": {"n": m["arrays"]["n"] | {"shape": [4]}}},
            r"expected \[3\], as in n.npy, got '\[4\]'",
        ),
        (
            lambda m: m | {"arrays": {"n": m["arrays"]["n"] | {"element": "F32"}}},
            "expected I64, as in n.npy, got 'F32'",
        ),
        (lambda m: m | {"arrays": {"n": m["arrays"]["n"] | {"x": 1}}}, "arrays, n: expected no other fields, got 'x'"),
        (lambda m: m | {"arrays": {"n": m["arrays"]["n"] | {"identity": "00"}}}, "expected id 00"),
    ],
)
def test_a_folder_that_is_not_as_its_manifest_says(tmp_path: Path, damage, message: str) -> None:
    folder = made_folder(tmp_path / "in")
    assert load_arrays(folder)["n"].tolist() == [0, 1, 2]
    changed = damage(json.loads((folder / "arrays.json").read_text()))
    (folder / "arrays.json").write_text(changed if isinstance(changed, str) else json.dumps(changed))
    with pytest.raises(EncodingError, match=message):
        load_arrays(folder)


def test_an_import_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with importing(tmp_path / "out", {}) as made:
            made.append("n", DType.I64, np.arange(3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list((tmp_path / "out").iterdir())
    made_folder(tmp_path / "out")


def test_a_folder_without_a_manifest_and_a_disk_that_refuses_are_told(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="see `tiebreak data import`"):
        load_arrays(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Nothing was imported"):
        made_folder(tmp_path / "file" / "below")


@pytest.mark.parametrize("values", [np.arange(3.0), np.arange(3, dtype="i4"), np.arange(4).reshape(2, 2)])
def test_rows_of_another_kind_are_refused(tmp_path: Path, values: np.ndarray) -> None:
    def extended() -> None:
        with importing(tmp_path / "out", {}) as made:
            made.append("n", DType.I64, np.arange(3))
            made.append("n", DType.I64, values)

    with pytest.raises(EncodingError, match="n: expected"):
        extended()


def test_what_numpy_reads_is_what_was_written(tmp_path: Path) -> None:
    for shape in ((3,), (3, 1), (2, 3, 4, 5), (1,) * 8):
        made = np.arange(np.prod(shape), dtype="<f4").reshape(shape)
        folder = tmp_path / str(len(shape))
        with importing(folder, {}) as one:
            one.append("x", DType.F32, made)
        assert np.array_equal(np.load(folder / "x.npy", allow_pickle=False), made)
        assert load_arrays(folder)["x"].data_ptr() % 64 == 0
