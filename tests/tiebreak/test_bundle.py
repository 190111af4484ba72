"""A captured job as files: what capture writes is read back, and every way to damage it is named."""

import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tiebreak.api.bundle import DATA, MANIFEST, ORIGINS, PROGRAM, STATE, Bundle, load_bundle
from tiebreak.cli.main import run, tiebreak
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError, VerificationError

TASK = """
import torch
from torch import nn
from tiebreak.engine.capture.task import SGD, Batch, Rows, Task

def task(steps=4):
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.zero_()
    return Task(
        name="line", model=model, loss=lambda m, x, y: ((m(x) - y) ** 2).mean(), optimizer=SGD(lr=0.1, momentum=0.9),
        data={"x": torch.arange(12.0).reshape(6, 2), "y": torch.ones(6, 1)},
        batch=Batch(size=3, examples=Rows(names=("x", "y"))), steps=steps, checkpoint_interval=2)
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "line.py").write_text(TASK)
    assert run(tiebreak, ["capture", str(folder / "line.py"), "--output", str(folder / "out")]) == 0
    return folder / "out"


@pytest.fixture
def copy(captured: Path, tmp_path: Path) -> Path:
    for path in captured.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_round_trip(captured: Path) -> None:
    bundle = load_bundle(captured)
    assert (bundle.name, bundle.steps, bundle.checkpoint_interval) == ("line", 4, 2)
    assert set(bundle.data) == {"x", "y", "seed", "learning_rate"}
    assert torch.equal(bundle.data["x"], torch.arange(12.0).reshape(6, 2))
    assert bundle.roots().items() <= json.loads((captured / MANIFEST).read_text()).items()


def test_capture_is_reproducible(captured: Path, tmp_path: Path) -> None:
    (tmp_path / "line.py").write_text(TASK)
    assert run(tiebreak, ["capture", str(tmp_path / "line.py"), "-o", str(tmp_path / "again")]) == 0
    assert load_bundle(tmp_path / "again").roots() == load_bundle(captured).roots()


def test_capture_writes_into_no_folder_that_is_in_use(captured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {p.name: p.read_bytes() for p in captured.iterdir()}
    assert run(tiebreak, ["capture", str(captured.parent / "line.py"), "-o", str(captured)]) == 1
    assert "expected a new or empty folder" in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in captured.iterdir()} == before


@pytest.mark.parametrize("name", [PROGRAM, STATE, DATA, MANIFEST])
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(StateError if name == MANIFEST else EncodingError, match=name):
        load_bundle(copy)


@pytest.mark.parametrize("name", [PROGRAM, STATE, DATA, MANIFEST])
def test_truncated(copy: Path, name: str) -> None:
    content = (copy / name).read_bytes()
    for length in (0, 1, 7, len(content) // 2, len(content) - 2):
        (copy / name).write_bytes(content[:length])
        with pytest.raises(VerificationError):
            load_bundle(copy)


@pytest.mark.parametrize("name", [PROGRAM, STATE, DATA, MANIFEST])
def test_oversized(copy: Path, name: str) -> None:
    with (copy / name).open("ab") as file:
        file.truncate((copy / name).stat().st_size + (1 << 25))
    with pytest.raises(VerificationError, match=r"expected|trailing|bytes"):
        load_bundle(copy)


@given(st.sampled_from([PROGRAM, STATE, DATA]), st.integers(0, 1 << 30), st.integers(0, 7))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_is_refused_or_was_not_content(copy: Path, name: str, byte: int, bit: int) -> None:
    """Safetensors headers hold insignificant bytes; whatever loads must therefore be the same job."""
    expected = load_bundle(copy).roots()
    content = (copy / name).read_bytes()
    flipped = bytearray(content)
    flipped[byte % len(content)] ^= 1 << bit
    (copy / name).write_bytes(flipped)
    try:
        assert load_bundle(copy).roots() == expected
        assert name != PROGRAM
    except VerificationError:
        pass
    finally:
        (copy / name).write_bytes(content)


def test_other_tensors_than_the_program_names(copy: Path) -> None:
    state = load_file(copy / STATE)
    save_file(state | {"extra": torch.zeros(1)}, copy / STATE)
    with pytest.raises(EncodingError, match="extra"):
        load_bundle(copy)
    name = next(iter(state))
    save_file(state | {name: torch.zeros(9)}, copy / STATE)
    with pytest.raises(EncodingError, match="expected"):
        load_bundle(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format: expected an integer from 1 to 1, got '2'"),
        ({"steps": "4"}, "steps: expected an integer from 1 to"),
        ({"steps": True}, "steps: expected an integer from 1 to"),
        ({"steps": 0}, "steps: expected an integer from 1 to"),
        ({"steps": 1}, "1 <= checkpoint interval <= 1, got 2"),
        ({"name": 1}, "name: expected text"),
        ({"extra": 1}, "expected no other fields, got 'extra'"),
        ({"data_root": "00"}, "data_root: expected [0-9a-f]{64}, the root of .*data.safetensors, got '00'"),
        ({"data_root": 0}, "data_root: expected [0-9a-f]{64}, the root of .*data.safetensors, got '0'"),
        ({"program_root": "00"}, "program_root: expected"),
        ({"initial_state_root": "00"}, "initial_state_root: expected"),
    ],
)
def test_a_manifest_that_does_not_fit(copy: Path, change: dict[str, object], message: str) -> None:
    manifest = json.loads((copy / MANIFEST).read_text()) | change
    (copy / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(EncodingError, match=message):
        load_bundle(copy)


@pytest.mark.parametrize("content", [b"[]", b"null", b"[" * 50000, b"{" + b" " * 70000 + b"}", b"\xff\xfe"])
def test_a_manifest_that_is_none(copy: Path, content: bytes) -> None:
    (copy / MANIFEST).write_bytes(content)
    with pytest.raises(EncodingError):
        load_bundle(copy)


def test_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StateError, match="expected a captured job"):
        load_bundle(tmp_path / "file")


def test_an_operator_that_cannot_be_lowered_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.py").write_text(TASK.replace("(m(x) - y) ** 2", "torch.special.i0e(m(x) - y).mode(0).values"))
    assert run(tiebreak, ["capture", str(tmp_path / "bad.py"), "-o", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert "ConfigurationError:" in message
    assert "special_i0e" in message
    assert "mode" in message
    assert not (tmp_path / "out").exists()


def test_a_bundle_checks_itself(captured: Path) -> None:
    good = load_bundle(captured)
    with pytest.raises(EncodingError, match="interval"):
        Bundle(name="x", steps=1, checkpoint_interval=2, program=good.program, state=good.state, data=good.data)
    with pytest.raises(ConfigurationError):
        good.save(captured)


def test_origins_of_instructions_stand_beside_the_program(copy: Path) -> None:
    bundle = load_bundle(copy)
    names = json.loads(bundle.origins)
    assert len(names) == len(bundle.program.body)
    assert any(re.search(r"\(\S*line\.py:\d+\)$", name) for name in names)
    (copy / ORIGINS).unlink()
    without = load_bundle(copy)
    assert (without.origins, without.roots()) == (b"", bundle.roots())
