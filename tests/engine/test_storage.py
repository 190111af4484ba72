"""The run directory under attack: everything truncated, flipped, oversized or out of place is refused by name."""

import os
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.engine.processes import file_size
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.data.disk import StorageError, write_file
from tiebreak.engine.data.tensors import check_spec, from_bytes, identity, tensor_bytes
from tiebreak.engine.run.directory import RECORD_BYTES, RunDirectory
from tiebreak.protocol.commitments.job import Head, SignedHead, SignedJob
from tiebreak.protocol.commitments.records import StepRecord, identify
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError, VerificationError
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.tags import Digest

from .tiny import AUDITOR, CLIENT, DOMAIN, TRAINER

NewRun = Callable[[str], RunDirectory]


def read_everything(path: Path) -> None:
    run = RunDirectory.open(path)
    run.data()
    run.state(0)


def record(step: int) -> StepRecord:
    return StepRecord(step=step, state_root=Digest(bytes([step]) * 32), loss_bits=0x3F800000)


def test_create_refuses_a_directory_in_use(new_run: NewRun) -> None:
    new_run("run")
    with pytest.raises(ConfigurationError, match="new or empty"):
        new_run("run")


def test_create_refuses_inputs_that_are_not_the_jobs(tiny: Captured, agreement: SignedJob, tmp_path: Path) -> None:
    state = dict(tiny.state)
    name = next(iter(state))
    state[name] = state[name] + 1
    with pytest.raises(VerificationError, match="initial state: expected root"):
        RunDirectory.create(tmp_path / "a", agreement, tiny.program, state, tiny.data)
    data = dict(tiny.data) | {"seed": torch.tensor(99)}
    with pytest.raises(VerificationError, match="data: expected root"):
        RunDirectory.create(tmp_path / "b", agreement, tiny.program, tiny.state, data)
    del data["seed"]
    with pytest.raises(EncodingError, match="seed"):
        RunDirectory.create(tmp_path / "c", agreement, tiny.program, tiny.state, data)


@pytest.mark.parametrize("file", ["job.bin", "program.tbp", "data.safetensors", "checkpoints/000000000000.safetensors"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "append", "remove", "empty"])
def test_damaged_run_files_are_refused_by_name(new_run: NewRun, file: str, damage: str) -> None:
    run = new_run("run")
    path = run.path / file
    raw = bytearray(path.read_bytes())
    match damage:
        case "truncate":
            path.write_bytes(raw[: len(raw) // 2])
        case "flip":
            raw[-5] ^= 4
            path.write_bytes(raw)
        case "append":
            path.write_bytes(raw + b"\0")
        case "remove":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
    gone = damage == "remove" and file == "job.bin"  # then the folder is no run at all
    error, named = (ConfigurationError, f"{run.path}, which has no job.bin") if gone else (VerificationError, str(path))
    with pytest.raises(error, match=re.escape(named)):
        read_everything(run.path)


def test_oversized_files_are_refused_before_they_are_read(new_run: NewRun) -> None:
    run = new_run("run")
    for file in ("job.bin", "data.safetensors"):
        path = run.path / file
        kept = path.read_bytes()
        os.truncate(path, 1 << 36)  # sparse
        with pytest.raises(EncodingError, match="expected"):
            RunDirectory.open(run.path).data()
        path.write_bytes(kept)
    RunDirectory.open(run.path).data()


def test_a_checkpoint_with_other_shapes_or_dtypes_is_refused(new_run: NewRun, tiny: Captured) -> None:
    run = new_run("run")
    name = next(iter(tiny.state))
    for change in (lambda t: t[:1].contiguous(), lambda t: t.double()):
        tensors = {n: change(t) if n == name else t.clone() for n, t in tiny.state.items()}
        save_file(tensors, run.state_path(0))
        with pytest.raises(EncodingError, match="expected"):
            run.state(0)


def test_records_round_trip_and_are_checked(new_run: NewRun) -> None:
    run = new_run("run")
    run.append_record(record(3))
    run.append_record(record(6))
    assert run.records() == [record(3), record(6)]
    assert StepRecord.decode(record(7).encode()) == record(7)
    with pytest.raises(EncodingError):
        StepRecord.decode(record(7).encode() + b"\0")
    path = run.path / "records.bin"
    path.write_bytes(path.read_bytes() + b"torn")
    assert run.records() == [record(3), record(6)]  # a torn append is as if it had not happened
    run.append_record(record(9))
    assert run.records()[2] == record(9)
    path.write_bytes(record(4).encode())
    with pytest.raises(EncodingError, match="record 0 is of step 4"):
        run.records()
    path.write_bytes(record(3).encode() * 6)
    with pytest.raises(EncodingError):
        run.records()


def test_heads_are_checked_and_never_contradicted(new_run: NewRun) -> None:
    run = new_run("run")
    head = Head(job_id=run.job.id, count=1, run_root=Digest(b"\1" * 32))
    run.write_head(SignedHead.sign(head, DOMAIN, TRAINER))
    run.write_head(SignedHead.sign(head, DOMAIN, TRAINER))  # the same again is fine
    assert [h.head for h in run.heads()] == [head]
    other = replace(head, run_root=Digest(b"\2" * 32))
    with pytest.raises(StateError, match="signed already"):
        run.write_head(SignedHead.sign(other, DOMAIN, TRAINER))
    run.write_head(SignedHead.sign(replace(head, count=2), DOMAIN, AUDITOR))
    with pytest.raises(VerificationError, match=r"heads/0*2\.bin"):
        run.heads()


def test_a_job_signed_by_the_wrong_key_is_refused(tiny: Captured, agreement: SignedJob, tmp_path: Path) -> None:
    digest = agreement.job.digest(DOMAIN)
    for wrong in (
        replace(agreement, trainer_signature=AUDITOR.sign(digest)),
        replace(agreement, client_signature=TRAINER.sign(digest)),
        replace(agreement, client_signature=CLIENT.sign(bytes(32))),
    ):
        with pytest.raises(VerificationError):
            RunDirectory.create(tmp_path / "run", wrong, tiny.program, tiny.state, tiny.data)


def test_only_one_process_can_lock_a_run(new_run: NewRun) -> None:
    run = new_run("run")
    with run.lock(), pytest.raises(StateError, match="another process"), RunDirectory.open(run.path).lock():
        pass


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    with file_size(4096), pytest.raises(StorageError, match="Nothing committed is lost"):
        write_file(path, b"x" * 10000)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]  # no part left behind


def test_a_disk_that_fills_up_mid_append_loses_no_record(new_run: NewRun) -> None:
    run = new_run("run")
    run.append_record(record(3))
    with file_size(RECORD_BYTES + 10), pytest.raises(StorageError, match=r"records\.bin"):
        run.append_record(record(6))
    assert (run.path / "records.bin").stat().st_size == RECORD_BYTES, "the torn record is cut off at once"
    assert run.records() == [record(3)]
    run.append_record(record(6))
    assert run.records() == [record(3), record(6)]


def test_metrics_continue_after_a_torn_line(new_run: NewRun) -> None:
    run = new_run("run")
    run.add_metric(1, 0.5, 0.1)
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "lo')  # by a process that was killed
    run.add_metric(2, 0.25, 0.1)
    run.add_metric(3, 0.125, 0.1)
    assert [(entry["step"], entry["loss"]) for entry in run.metrics()] == [(1, 0.5), (2, 0.25), (3, 0.125)]


def test_records_beyond_the_jobs_last_checkpoint_are_refused(new_run: NewRun) -> None:
    run = new_run("run")
    for step in (3, 6, 9, 12):
        run.append_record(record(step))
    path = run.path / "records.bin"
    path.write_bytes(path.read_bytes() + bytes(RECORD_BYTES - 1))
    assert run.recorded() == 4
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(EncodingError, match="expected at most"):
        run.recorded()
    path.write_bytes(record(12).encode() * 5)
    with pytest.raises(EncodingError, match="record 4 is of step 12"):  # the last one's, once more
        list(run._raw_records(5, 4))


def test_state_tensors_that_do_not_fit_the_program_are_refused(tiny: Captured) -> None:
    check_spec("state", tiny.state, tiny.program.state_spec())
    check_spec("data", tiny.data, tiny.program.data_spec())
    name = next(iter(tiny.state))
    for state in (
        {k: v for k, v in tiny.state.items() if k != name},
        tiny.state | {"other": torch.zeros(1)},
        tiny.state | {name: tiny.state[name].double()},
        tiny.state | {name: tiny.state[name].reshape(-1)},
    ):
        with pytest.raises(EncodingError, match="state"):
            check_spec("state", state, tiny.program.state_spec())


def test_tensor_bytes_are_canonical_and_strictly_read() -> None:
    noisy = torch.tensor([0x7FC00001, -0x3FFFFF, 0x3F800000], dtype=torch.int32).view(torch.float32)
    raw = bytes(tensor_bytes(noisy))
    assert raw == struct.pack("<III", 0x7FC00000, 0x7FC00000, 0x3F800000)
    assert identity(noisy) == identify(DType.F32, (3,), raw)
    with pytest.raises(EncodingError, match="NaN"):
        from_bytes(struct.pack("<I", 0x7FC00001), DType.F32, ())
    with pytest.raises(EncodingError, match="bools"):
        from_bytes(b"\2", DType.BOOL, (1,))
    with pytest.raises(EncodingError, match="4 bytes"):
        from_bytes(b"\0" * 5, DType.F32, ())
    for value in (torch.arange(6).reshape(2, 3), torch.tensor([True, False]), torch.tensor(-0.0)):
        dtype = {torch.int64: DType.I64, torch.bool: DType.BOOL, torch.float32: DType.F32}[value.dtype]
        back = from_bytes(bytes(tensor_bytes(value)), dtype, tuple(value.shape))
        assert torch.equal(back, value)
        assert bytes(tensor_bytes(back)) == bytes(tensor_bytes(value))
