"""A captured job as files: what capture writes is read back, and every way to damage it is named."""

import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.tiebreak.parties import Parties
from tiebreak.api.training.bundle import DATA, MANIFEST, PROGRAM, STATE, Bundle, load_bundle
from tiebreak.engine.run.directory import ORIGINS
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError, VerificationError


@pytest.fixture
def captured(parties: Parties) -> Path:
    return parties.path("captured")


@pytest.fixture
def copy(captured: Path, tmp_path: Path) -> Path:
    for path in captured.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("name", [PROGRAM, STATE, DATA, MANIFEST])
def test_missing_truncated_and_oversized_bundle_files_are_refused(copy: Path, name: str) -> None:
    content = (copy / name).read_bytes()
    for length in (0, 1, 7, len(content) // 2, len(content) - 2):
        (copy / name).write_bytes(content[:length])
        with pytest.raises(VerificationError, match=re.escape(str(copy / name))):
            load_bundle(copy)
    (copy / name).write_bytes(content)
    with (copy / name).open("ab") as file:
        file.truncate(len(content) + (1 << 25))
    with pytest.raises(VerificationError, match=r"expected|trailing|bytes"):
        load_bundle(copy)
    (copy / name).unlink()
    with pytest.raises(StateError if name == MANIFEST else EncodingError, match=name):
        load_bundle(copy)
    (copy / "file").write_text("x")
    with pytest.raises(StateError, match="expected a captured job"):
        load_bundle(copy / "file")


@given(st.sampled_from([PROGRAM, STATE, DATA]), st.integers(0, 1 << 30), st.integers(0, 7))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_is_refused_or_leaves_the_job_unchanged(copy: Path, name: str, byte: int, bit: int) -> None:
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


def test_unexpected_or_misshapen_tensors_in_a_bundle_are_refused(copy: Path) -> None:
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
        ({"format": 2}, "expected version 1, got 2; a later version of tiebreak wrote it"),
        ({"steps": "4"}, "steps: expected an integer from 1 to"),
        ({"steps": True}, "steps: expected an integer from 1 to"),
        ({"steps": 0}, "steps: expected an integer from 1 to"),
        ({"steps": 2}, "1 <= checkpoint interval <= 2, got 3"),
        ({"name": 1}, "name: expected text"),
        ({"extra": 1}, "expected no other fields, got 'extra'"),
        ({"data_root": "00"}, "data_root: expected [0-9a-f]{64}, the root of .*data.safetensors, got '00'"),
        ({"program_root": "00"}, "program_root: expected"),
        ({"initial_state_root": "00"}, "initial_state_root: expected"),
        *((content, "") for content in (b"[]", b"null", b"[" * 50000, b"{" + b" " * 70000 + b"}", b"\xff\xfe")),
    ],
)
def test_invalid_or_mismatched_manifests_are_refused(
    copy: Path, change: dict[str, object] | bytes, message: str
) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_bytes(change if isinstance(change, bytes) else json.dumps(manifest | change).encode())
    with pytest.raises(EncodingError, match=message):
        load_bundle(copy)


def test_bundle_refuses_an_inconsistent_interval_and_overwriting(captured: Path) -> None:
    good = load_bundle(captured)
    with pytest.raises(EncodingError, match="interval"):
        Bundle(name="x", steps=1, checkpoint_interval=2, program=good.program, state=good.state, data=good.data)
    with pytest.raises(ConfigurationError):
        good.save(captured)


def test_instruction_origins_are_optional_and_not_part_of_the_roots(copy: Path) -> None:
    bundle = load_bundle(copy)
    names = json.loads(bundle.origins)
    assert len(names) == len(bundle.program.body)
    assert any(re.search(r"\(\S*task\.py:\d+\)$", name) for name in names)
    (copy / ORIGINS).unlink()
    without = load_bundle(copy)
    assert (without.origins, without.roots()) == (b"", bundle.roots())
