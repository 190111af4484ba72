"""Uploads to a hub: nothing that somebody holds open, sends wrong or sends slowly keeps anybody else's blob out."""

import http.client
import json
import os
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.tiebreak.node.hubs import OFFER, Running, ask, library, running, settings, upload
from tests.waiting import until
from tiebreak.node.hub import app as app_module
from tiebreak.node.hub import service as service_module
from tiebreak.node.hub.blobs import Blobs, UploadMemory
from tiebreak.node.hub.limits import HubLimits
from tiebreak.protocol.commitments.blobs import PIECE_BYTES, blob_root, piece_digest
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.tags import Digest

PIECES = 5
DATA = random.Random(7).randbytes(PIECES * PIECE_BYTES - 1000)
SIZE = len(DATA)
LIST = [piece_digest(DATA[at : at + PIECE_BYTES]) for at in range(0, SIZE, PIECE_BYTES)]
DIGESTS, ROOT = b"".join(LIST), blob_root(SIZE, LIST)
WHERE = f"/blobs/{ROOT.hex()}"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Running]:
    """A hub that knows the blob's name and its pieces."""
    with running(settings(tmp_path / "hub")) as found:
        name_it(found, ROOT, DIGESTS, SIZE)
        yield found


def name_it(hub: Running, root: Digest, digests: bytes, size: int, number: int = 0) -> None:
    hub.connect().post(OFFER)
    hub.connect().post(library([("a.bin", root, size)], number))
    assert ask(hub, "PUT", f"/blobs/{root.hex()}/pieces?size={size}", digests)[0] == 200


def begin(
    hub: Running, root: Digest, data: bytes, *, offset: int = 0, size: int = SIZE, address: str = "127.0.0.1"
) -> socket.socket:
    """An upload of which these bytes come, and then nothing for as long as the socket stays open."""
    line = socket.create_connection(("127.0.0.1", urlsplit(hub.url).port), timeout=30, source_address=(address, 0))
    head = f"PUT /blobs/{root.hex()}?offset={offset} HTTP/1.1\r\nHost: hub\r\nContent-Length: {size - offset}\r\n\r\n"
    line.sendall(head.encode() + data)
    return line


def held(hub: Running) -> int:
    return int(ask(hub, "GET", f"{WHERE}/pieces")[1]["x-tiebreak-held"])


def answer(line: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status and the object with which the hub answers an upload."""
    response = http.client.HTTPResponse(line)
    response.begin()
    return response.status, json.loads(response.read())


@pytest.mark.slow
def test_open_uploads_of_strangers_do_not_block_a_blob(hub: Running, tmp_path: Path, cases: Callable[[], None]) -> None:
    """All tries succeed at once, on one root or many, however many uploads strangers hold open on them."""
    with ExitStack() as open_uploads:
        for number in range(71):
            data = number.to_bytes(4, "big") * 9000
            digest = piece_digest(data)
            root = blob_root(len(data), [digest])
            name_it(hub, root, digest, len(data), 1 + number)
            address = f"127.0.1.{1 + number % 5}"
            open_uploads.enter_context(begin(hub, root, data[:2], size=len(data), address=address))
            until(lambda number=number: hub.hub.uploading.held.total() == 1 + number)
            assert ask(hub, "PUT", f"/blobs/{root.hex()}", data)[0] == 200
            assert ask(hub, "GET", f"/blobs/{root.hex()}")[2] == data
            cases()
        for number in range(9):
            offset, address = held(hub), f"127.0.2.{1 + number}"
            open_uploads.enter_context(begin(hub, ROOT, DATA[offset:][:2], offset=offset, address=address))
            part = DATA[offset : offset + PIECE_BYTES + 7]
            assert ask(hub, "PUT", f"{WHERE}?offset={offset}", part)[0] == 200
        assert ask(hub, "GET", WHERE)[2] == DATA
        assert hub.hub.uploading.held.total() > 71, "the strangers are still there"


def test_the_first_complete_concurrent_upload_becomes_the_blob(hub: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slower upload is answered once its next block finds all bytes there; what it still sends is not read."""
    monkeypatch.setattr(app_module, "BLOCK_BYTES", PIECE_BYTES)  # else the blob is hardly more than one block
    with begin(hub, ROOT, DATA[: 2 * PIECE_BYTES]) as slow:
        until(lambda: hub.hub.uploading.held.total() == 1)
        assert json.loads(ask(hub, "PUT", WHERE, DATA)[2]) == {"held": SIZE, "size": SIZE}
        slow.sendall(DATA[2 * PIECE_BYTES : 4 * PIECE_BYTES])
        assert answer(slow) == (200, {"held": SIZE, "size": SIZE})
    assert ask(hub, "GET", WHERE)[2] == DATA


def test_upload_offsets_must_be_piece_boundaries_within_the_held_bytes(hub: Running) -> None:
    """At any, since another may have brought more since its client asked; never behind what is there."""
    assert ask(hub, "PUT", WHERE, DATA[: 2 * PIECE_BYTES])[0] == 200
    for offset in (1, PIECE_BYTES + 1, 3 * PIECE_BYTES, SIZE):
        status, headers, _ = ask(hub, "PUT", f"{WHERE}?offset={offset}", DATA[offset:])
        assert (status, headers["x-tiebreak-held"]) == (409, str(2 * PIECE_BYTES))
    assert json.loads(ask(hub, "PUT", f"{WHERE}?offset={PIECE_BYTES}", DATA[PIECE_BYTES:])[2])["held"] == SIZE
    assert ask(hub, "GET", WHERE)[2] == DATA


def test_memory_of_uploads_is_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound those are cut that wrote nothing for longest: strangers who stop, and never who goes on.

    UPLOAD_BYTES is small, since the test would send half a GiB otherwise.
    """
    monkeypatch.setattr(service_module, "UPLOAD_BYTES", 8 * PIECE_BYTES)
    with running(settings(tmp_path / "hub")) as hub, ExitStack() as open_uploads:
        name_it(hub, ROOT, DIGESTS, SIZE)
        memory = hub.hub.in_memory
        strangers = []
        for number in range(20):
            line = begin(hub, ROOT, DATA[: PIECE_BYTES - 1], address=f"127.0.4.{1 + number}")
            strangers.append(open_uploads.enter_context(line))
            until(lambda number=number: hub.hub.uploading.held[f"127.0.4.{1 + number}"] == 1)
            until(lambda: list(memory._held.values())[-1:] == [PIECE_BYTES - 1])
            until(lambda: sum(memory._held.values()) <= 8 * PIECE_BYTES)
        until(lambda: hub.hub.uploading.held.total() == 8)
        assert ask(hub, "PUT", WHERE, DATA)[0] == 200
        until(lambda: not hub.hub.uploading.held["127.0.0.1"])
        for line in strangers[:13]:
            with suppress(ConnectionError):
                assert line.recv(1 << 16) == b"", "cut, the oldest first"
    assert not memory._held, "what has ended is not counted"


def test_upload_memory_cuts_the_longest_idle_uploads_first() -> None:
    cut = list[str]()

    class Stub:
        def __init__(self, name: str) -> None:
            self.cut = lambda: cut.append(name)

    memory: Any = UploadMemory(10)
    slow, quick, new = Stub("slow"), Stub("quick"), Stub("new")
    memory.hold(slow, 4)
    memory.hold(quick, 5)
    memory.hold(slow, 5)
    assert cut == []
    memory.release(quick)  # a block is on the disk
    memory.hold(quick, 5)
    memory.hold(new, 1)
    assert cut == ["slow"]
    memory.release(slow)
    memory.hold(new, 6)
    assert cut == ["slow", "quick"]


# ---------------------------------------------------------------- files


def test_a_partial_blob_never_has_gaps_or_wrong_bytes(tmp_path: Path, cases: Callable[[], None]) -> None:
    """Blocks of several uploads in any order, right and wrong, and between any two a restart, perhaps with damage."""
    rng = random.Random(5)
    for number in range(12):
        blobs = Blobs(tmp_path / str(number), free_bytes=0)
        blobs.begin(ROOT, SIZE, DIGESTS)
        here = 0
        while blobs.size(ROOT) is None:
            if rng.random() < 0.2:
                blobs, part = Blobs(tmp_path / str(number), free_bytes=0), blobs.path(ROOT).with_suffix(".part")
                if here and rng.random() < 0.5:
                    damaged = rng.randrange(here)
                    with part.open("r+b", buffering=0) as file:
                        os.pwrite(file.fileno(), bytes([DATA[damaged] ^ 1]), damaged)
                    here = damaged // PIECE_BYTES * PIECE_BYTES
                assert blobs.resume(ROOT) == here
            first = rng.randrange(PIECES)
            offset, end = first * PIECE_BYTES, min(SIZE, rng.randrange(first + 1, PIECES + 1) * PIECE_BYTES)
            data, good = bytearray(DATA[offset:end]), end
            if rng.random() < 0.3:
                bad = rng.randrange(len(data))
                data[bad] ^= 1
                good = offset + bad // PIECE_BYTES * PIECE_BYTES
            assert blobs.check(ROOT, offset, memoryview(data)) == (good - offset, here)
            right = memoryview(data)[: good - offset]
            if offset > here:
                with pytest.raises(StateError, match=f"expected bytes from {here} on"):
                    blobs.append(ROOT, offset, right, SIZE)
            else:
                here = max(here, good)
                assert blobs.append(ROOT, offset, right, SIZE) == here
            assert blobs.held(ROOT) == here
            path = blobs.path(ROOT) if here == SIZE else blobs.path(ROOT).with_suffix(".part")
            assert (path.read_bytes() if path.exists() else b"") == DATA[:here]
            cases()
        assert blobs.append(ROOT, 0, memoryview(DATA), SIZE) == SIZE


def test_a_blob_has_its_name_once_its_bytes_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no power cut leaves a name without its bytes: the order of writes, syncs and renames is recorded."""
    record, blobs = list[tuple[str, str]](), Blobs(tmp_path, free_bytes=0)

    def recorded(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def change(*given: Any, **named: Any) -> Any:
            target = given[1] if name == "replace" else Path(f"/proc/self/fd/{given[0]}").readlink().name
            if record[-1:] != [(name, target)]:
                record.append((name, target))
            return call(*given, **named)

        return change

    for name in ("pwrite", "fsync", "replace"):
        monkeypatch.setattr(os, name, recorded(name))
    blobs.begin(ROOT, SIZE, DIGESTS)
    for offset in (0, 2 * PIECE_BYTES):
        blobs.append(ROOT, offset, memoryview(DATA)[offset:][: 2 * PIECE_BYTES if not offset else SIZE], SIZE)
    name, folder = ROOT.hex(), ROOT.hex()[:2]
    made = [("fsync", tmp_path.name)]
    pieces = [("fsync", f".{name}.pieces.part"), ("replace", f"{name}.pieces"), ("fsync", folder)]
    part = [("pwrite", f"{name}.part"), ("fsync", f"{name}.part"), ("replace", name), ("fsync", folder)]
    assert record == made + pieces + part


def test_limits_hold_for_uploads_of_each_address(tmp_path: Path) -> None:
    """One address does not take all of the memory; others have theirs."""
    most = HubLimits().uploads_per_address
    with running(settings(tmp_path / "hub")) as hub, ExitStack() as open_uploads:
        name_it(hub, ROOT, DIGESTS, SIZE)
        for number in range(most):
            open_uploads.enter_context(begin(hub, ROOT, b"", address="127.0.5.1"))
            until(lambda number=number: hub.hub.uploading.held["127.0.5.1"] == number + 1)
        with begin(hub, ROOT, b"", address="127.0.5.1") as one_more:
            assert answer(one_more)[0] == 429
        assert ask(hub, "PUT", WHERE, DATA)[0] == 200


def test_partial_uploads_of_strangers_are_continued(hub: Running, tmp_path: Path) -> None:
    """Right pieces count, whoever brought them; wrong ones end only the upload that has them."""
    (tmp_path / "up").write_bytes(DATA)
    wrong = DATA[: PIECE_BYTES + 9] + b"\xff" + DATA[PIECE_BYTES + 10 :]
    assert ask(hub, "PUT", WHERE, wrong)[0] == 400
    until(lambda: held(hub) == PIECE_BYTES)
    with begin(hub, ROOT, DATA[: PIECE_BYTES + 2]), begin(hub, ROOT, DATA[PIECE_BYTES:][:2], offset=PIECE_BYTES):
        for offset in (0, PIECE_BYTES):
            status, _, body = ask(hub, "PUT", f"{WHERE}?offset={offset}", b"\0" * (SIZE - offset))
            assert (status, b"piece" in body) == (400, True)
        assert upload(hub.connect(patience=5.0), tmp_path / "up") == ROOT
    assert ask(hub, "GET", WHERE)[2] == DATA
