"""A stranger's run directory as a weapon: files that block, have no end, lie about their place, or choke a parser."""

import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.protocol.runs import CLIENT, DOMAIN, TRAINER, job_over
from tiebreak.api.training.bundle import load_bundle
from tiebreak.engine import system
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import sign_job
from tiebreak.engine.data.disk import Folder, StorageError, read_file
from tiebreak.engine.data.formats import read_tensors
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.job import Head, Job, SignedHead
from tiebreak.protocol.commitments.records import data_tree
from tiebreak.protocol.errors import EncodingError, VerificationError
from tiebreak.protocol.program.isa import DType, MapFunction
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest

STATE = {"w": torch.tensor([1.0, 2.0])}
DATA = {"keep": torch.tensor([True, False])}


@pytest.fixture(params=["by descriptors", "by paths"])
def reached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How names in a folder are reached; by paths alone on Windows."""
    if request.param == "by paths":
        monkeypatch.setattr(system, "IS_RELATIVE", False)
        monkeypatch.setattr(system, "NOFOLLOW", 0)


def make_program() -> Program:
    b = Builder()
    w, keep = b.state("w", DType.F32, (2,)), b.data("keep", DType.BOOL, (2,))
    new = b.where(keep, w, b.const(0.0, DType.F32))
    loss = b.sum(new, (0,))
    return b.finish({"w": new}, b.map(MapFunction.COPY, loss))


def make_job(program: Program, *, steps: int = 8, interval: int = 2) -> Job:
    return job_over(program, identities(STATE), identities(DATA), steps=steps, interval=interval)


def make_run(path: Path, **terms: int) -> RunDirectory:
    program = make_program()
    agreement = sign_job(make_job(program, **terms), DOMAIN, client=CLIENT, trainer=TRAINER)
    return RunDirectory.create(path, agreement, program, STATE, DATA)


def head_of(run: RunDirectory, count: int, tag: int) -> SignedHead:
    return SignedHead.sign(Head(job_id=run.job.id, count=count, run_root=Digest(bytes([tag]) * 32)), DOMAIN, TRAINER)


@pytest.mark.usefixtures("reached")
def test_pipes_and_devices_in_a_run_directory_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    job = run.path / "job.bin"
    job.unlink()
    os.mkfifo(job)
    with pytest.raises(EncodingError, match="plain file"):
        RunDirectory.open(run.path)
    job.unlink()
    job.symlink_to("/dev/zero")
    with pytest.raises(EncodingError, match="plain file"):
        RunDirectory.open(run.path)
    data = run.path / "data.safetensors"
    data.unlink()
    os.mkfifo(data)
    with pytest.raises(EncodingError, match="plain file"):
        run.data()


def test_oversized_records_file_is_not_read_into_memory(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=(1 << 64) - 1, interval=1)
    with (run.path / "records.bin").open("rb+") as file:
        file.truncate(1 << 36)  # sparse: no block of it is on the disk
    with pytest.raises(EncodingError, match="at most 1073741824 bytes"):
        run.records()


def test_head_file_name_must_match_its_count(tmp_path: Path) -> None:
    """Else a cheat names its first, honest head last, and an audit of "the last head" agrees."""
    run = make_run(tmp_path / "run")
    for count in (1, 3, 2):
        run.write_head(head_of(run, count, count))
    assert [head.head.count for head in run.heads()] == [1, 2, 3]
    for name in ("zzz", "000000000000"):  # above its own and below
        path = run.path / "heads" / f"{name}.bin"
        path.write_bytes(head_of(run, 1, 1).encode())
        with pytest.raises(EncodingError, match="head of this file's count"):
            run.heads()
        path.unlink()


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 1e999}', b'{"step": NaN}', b"[" * 100_000, b'{"step": [1]}', b"\xff\xfe\x00",
        b'{"step": ' + b"9" * 5000 + b"}", b"[]", b"7",
    ],
)  # fmt: skip
def test_malformed_metrics_lines_are_skipped(tmp_path: Path, line: bytes) -> None:
    run = make_run(tmp_path / "run")
    good = {"step": 1, "loss": 0.5, "seconds": 1.0}
    (run.path / "metrics.jsonl").write_bytes(line + b"\n" + json.dumps(good).encode() + b"\n")
    assert run.metrics() == [good]


def test_bools_other_than_0_or_1_are_refused_despite_a_matching_hash(tmp_path: Path) -> None:
    """A proof may not open another byte: over such data an honest challenger could prove nothing."""
    forged = {"keep": torch.tensor([2, 0], dtype=torch.uint8).view(torch.bool)}
    path = tmp_path / "data.safetensors"
    save_file(forged, path)
    with Folder(tmp_path) as folder, pytest.raises(EncodingError, match="bools of 0 and 1"):
        read_tensors(folder, path.name, make_program().data_spec())
    program = make_program()
    job = replace(make_job(program), data_root=data_tree(identities(forged)).root)
    agreement = sign_job(job, DOMAIN, client=CLIENT, trainer=TRAINER)
    with pytest.raises(VerificationError):
        RunDirectory.create(tmp_path / "run", agreement, program, STATE, forged)


def test_read_file_takes_its_limit_exactly(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    assert read_file(path, 3) == b"abc"
    with pytest.raises(EncodingError, match="at most 2"):
        read_file(path, 2)


def test_a_nested_manifest_cannot_exhaust_the_stack(tmp_path: Path) -> None:
    folder = tmp_path / "captured"
    folder.mkdir()
    (folder / "bundle.json").write_bytes(b"[" * 60_000)
    with pytest.raises(EncodingError, match="at most 4096"):
        load_bundle(folder)
    (folder / "bundle.json").write_bytes(b"[" * 4096)
    with pytest.raises(EncodingError, match="expected JSON"):
        load_bundle(folder)


LATER = ("records.bin", "metrics.jsonl", ".lock", "checkpoints", "heads", "checkpoints/.000000000002.safetensors.part",
         "heads/.000000000001.bin.part", "checkpoints/000000000002.safetensors", "heads/000000000001.bin")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in LATER for kind in ("symbolic", "hard") if kind[0] == "s" or "." in name]
)
@pytest.mark.usefixtures("reached")
def test_link_created_after_opening_a_run_is_not_followed(tmp_path: Path, name: str, kind: str) -> None:
    """Somebody who may write into the folder exchanges a file between the check and the use."""
    run, outside = make_run(tmp_path / "run"), tmp_path / "outside"
    outside.mkdir()
    (outside / ".000000000099.safetensors.part").write_bytes(b"begun")
    path, target = run.path / name, outside / "precious"
    target.write_bytes(b"")
    if path.is_dir():
        shutil.rmtree(path)
        target = outside
    path.unlink(missing_ok=True)
    if kind == "symbolic":
        path.symlink_to(target)
    else:
        path.hardlink_to(target)
    worker = Worker(run, Interpreter(run.program, Arithmetic(device=torch.device("cpu"))), key=TRAINER)
    with suppress(VerificationError):  # a part that was left over is removed, and what is replaced is never written to
        worker.work()
    left = {found.name: found.read_bytes() for found in outside.iterdir()}
    assert left == {"precious": b"", ".000000000099.safetensors.part": b"begun"}


@pytest.mark.usefixtures("reached")
def test_a_folder_names_what_it_refuses(tmp_path: Path) -> None:
    inside = tmp_path / "folder" / "inside"
    inside.mkdir(parents=True)
    (tmp_path / "folder" / "link").symlink_to(inside)
    os.mkfifo(inside / "pipe")
    (inside / "link").symlink_to("/dev/null")
    (inside / "plain").write_bytes(b"1")
    for name, kind in (("pipe", "a pipe"), ("link", "a symbolic link"), ("plain", "a plain file")):
        with pytest.raises(EncodingError, match=f"{name}: expected a folder, got {kind}"):
            Folder(inside, name)
    with pytest.raises(EncodingError, match="cannot be read"):
        Folder(inside, "nothing")
    with pytest.raises(StorageError, match="nothing"):
        Folder(inside, "nothing", to_write=True)
    with pytest.raises(EncodingError, match="link: expected a folder, got a symbolic link"):
        Folder(tmp_path / "folder", "link")
    with Folder(tmp_path / "folder", "inside") as folder:
        for name, kind in (("pipe", "a pipe"), ("link", "a symbolic link")):
            for use in (folder.reading, folder.changing, folder.replacing):
                with pytest.raises(EncodingError, match=f"{name}: expected a plain file, got {kind}"), use(name):
                    pass
        with pytest.raises(EncodingError, match="expected a plain file, got a"):
            folder.check()
        with pytest.raises(StorageError, match="inside"):
            folder.add("plain")
        assert folder.names() == ["link", "pipe", "plain"]


@pytest.mark.usefixtures("reached")
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "secret").write_bytes(b"1")
    with Folder(tmp_path / "inside") as folder:
        for name in ("..", ".", "", "../secret", "/etc/passwd"):
            with pytest.raises(EncodingError, match="expected the name of a file in it"):
                folder.read(name, 10)


@pytest.mark.usefixtures("reached")
@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_exchanged_between_check_and_use_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder, other, real = tmp_path / "folder", tmp_path / "other", os.open
    folder.mkdir()
    other.write_bytes(b"secret")
    with Folder(folder) as opened:
        (folder / "a").write_bytes(b"right")
        assert opened.read("a", 10) == b"right"

        def late(name: str | Path, *given: int, **options: int | None) -> int:
            if Path(name).name == "a":
                (folder / "a").unlink()
                (folder / "a").symlink_to(other) if kind == "link" else (folder / "a").hardlink_to(other)
            return real(name, *given, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "open", late)
        if kind == "file" and system.IS_RELATIVE:
            assert opened.read("a", 10) == b"secret", "a plain file of the same folder is as good as the first"
        else:
            with pytest.raises(EncodingError, match=r"another in its place|cannot be read"):
                opened.read("a", 10)
