"""Keys, imported data, weights and a hub's blobs survive a power cut at any operation, whole, or are not there yet."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from tests.conftest import CaseCounter
from tests.durability import Check, Store, fails, power_cuts, survived
from tests.tiebreak.parties import Parties
from tiebreak.api.chain.weights import write_weights
from tiebreak.api.data.importing import import_files
from tiebreak.api.signing.keys import load_key, save_key
from tiebreak.node.hub.blobs import Blobs
from tiebreak.protocol.commitments.blobs import PIECE_BYTES, blob_root, piece_digest
from tiebreak.protocol.commitments.keys import PrivateKey

KEY = PrivateKey.from_int(0xC0FFEE)
ROWS = np.arange(12, dtype="<i8").reshape(4, 3)


def holds(store: Store, check: Check, needed: tuple[int, ...], tmp_path: Path, cases: CaseCounter) -> None:
    """Nothing is lost or broken; and without one of these syncs, something is."""
    (tmp_path / "whole").mkdir()
    power = power_cuts(tmp_path / "whole", store)
    cases(survived(power, tmp_path / "after", check))
    for number in needed:
        (tmp_path / f"{number}").mkdir()
        assert fails(power_cuts(tmp_path / f"{number}", store, number), tmp_path / "after", check), f"sync {number}"
    assert power.syncs == len(needed)


def test_a_saved_key_survives_a_power_cut(tmp_path: Path, cases: CaseCounter) -> None:
    """An account may be paid as soon as its address is shown."""

    def save(folder: Path, done: Callable[[], None]) -> None:
        save_key(KEY, folder / "key.pem", "of a test")
        done()

    def opens(folder: Path, acknowledged: int) -> None:
        if acknowledged or (folder / "key.pem").exists():
            (folder / "key.pem").chmod(0o600)  # an image has no modes
            assert load_key(folder / "key.pem", "of a test").address == KEY.address

    holds(save, opens, (0, 1), tmp_path, cases)


def test_imported_data_are_complete_or_absent_after_a_power_cut(tmp_path: Path, cases: CaseCounter) -> None:
    source = tmp_path / "rows.npy"
    np.save(source, ROWS)

    def bring(folder: Path, done: Callable[[], None]) -> None:
        import_files((source,), folder / "data.safetensors", dtype=None, offset=0, shape=None)
        done()

    def loads(folder: Path, acknowledged: int) -> None:
        path = folder / "data.safetensors"
        if acknowledged or path.exists():
            assert np.array_equal(load_file(path)["rows"].numpy(), ROWS)

    holds(bring, loads, (0, 1), tmp_path, cases)


def test_a_blob_acknowledged_by_a_hub_survives_a_power_cut(tmp_path: Path, cases: CaseCounter) -> None:
    data = bytes(range(256)) * 3
    assert len(data) < PIECE_BYTES
    root = blob_root(len(data), [piece_digest(data)])

    def upload(folder: Path, done: Callable[[], None]) -> None:
        blobs = Blobs(folder, free_bytes=0)
        blobs.begin(root, len(data), piece_digest(data))
        held = blobs.resume(root)
        assert blobs.append(root, held, memoryview(data)[held:], len(data)) == len(data)
        done()

    def is_whole(folder: Path, acknowledged: int) -> None:
        blobs = Blobs(folder, free_bytes=0)
        if acknowledged or blobs.size(root) is not None:
            assert blobs.path(root).read_bytes() == data
            return
        blobs.begin(root, len(data), piece_digest(data))  # as a client does that had no answer
        held = blobs.resume(root)
        assert blobs.append(root, held, memoryview(data)[held:], len(data)) == len(data)
        assert blobs.path(root).read_bytes() == data

    power = power_cuts(tmp_path, upload)
    cases(survived(power, tmp_path.with_name("after"), is_whole))


def test_written_weights_are_complete_or_absent_after_a_power_cut(
    tmp_path: Path, parties: Parties, cases: CaseCounter
) -> None:
    run = parties.path("run")

    def write(folder: Path, done: Callable[[], None]) -> None:
        write_weights(run, folder / "weights.safetensors", unsettled=True)
        done()

    def loads(folder: Path, acknowledged: int) -> None:
        path = folder / "weights.safetensors"
        if acknowledged or path.exists():
            assert load_file(path).keys() == expected

    expected = load_file(write_weights(run, tmp_path / "expected.safetensors", unsettled=True).path).keys()
    holds(write, loads, (0, 1), tmp_path, cases)
