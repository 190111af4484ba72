"""`tiebreak train` from the signed job to the last head: resumed, refused, interrupted."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from math import prod
from pathlib import Path

import pytest

from tests.source_tree import ROOT
from tests.tiebreak.parties import INTERVAL, PASSPHRASE, STEPS, Parties, doubled_weight
from tiebreak.cli.key import PASSPHRASE_VARIABLE
from tiebreak.cli.main import run, tiebreak
from tiebreak.engine.distributed import partition
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.retention import Keep


def root_of(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith("run root ")]
    root = line.removeprefix("run root ")
    assert len(bytes.fromhex(root)) == 32
    return root


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The error that was printed: one line, no traceback, nothing on stdout."""
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.strip().splitlines()
    assert "Traceback" not in line
    return line


def test_a_run_in_pieces_ends_where_a_run_in_one_does(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, pieces = parties.signed(tmp_path / "whole"), parties.signed(tmp_path / "pieces")
    assert parties.train(whole) == 0
    root = root_of(capsys.readouterr().out)
    seen = []
    # Not all at a checkpoint: what was computed after the last one is computed again.
    for until, count in (("1", 0), ("4", 1), ("4", 1), ("6", 2)):
        assert parties.train(pieces, "--until", until, "--permute", until) == 0
        assert len(RunDirectory.open(pieces).heads()) == count
        seen.append(root_of(capsys.readouterr().out))
    assert root not in seen
    with pytest.warns(UserWarning, match="not replayed as CUDA graphs: the kernels for GPUs do not run on cpu"):
        assert parties.train(pieces, "--graphs") == 0
    assert root_of(capsys.readouterr().out) == root
    first, second = RunDirectory.open(whole), RunDirectory.open(pieces)
    assert first.records() == second.records()
    assert [record.step for record in first.records()] == [INTERVAL, 2 * INTERVAL, STEPS]
    assert [head.head for head in first.heads()] == [head.head for head in second.heads()]
    assert first.heads()[-1].head.run_root.hex() == root
    assert [metric["loss"] for metric in first.metrics()] == [metric["loss"] for metric in second.metrics()]
    assert parties.train(pieces) == 0, "training a finished run says what it came to"
    assert root_of(capsys.readouterr().out) == root


def test_the_key_of_somebody_else_does_not_train(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = parties.signed(tmp_path / "run")
    assert parties.train(folder, key="stranger.pem") == 1
    assert one_line(capsys).startswith("ConfigurationError: expected the key of trainer 0x")
    assert RunDirectory.open(folder).records() == []


def test_a_wrong_passphrase(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = parties.signed(tmp_path / "run")
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "wrong horse battery")
    assert parties.train(folder) == 1
    assert "wrong passphrase" in one_line(capsys)


def test_more_steps_than_the_job_has(parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parties.train(parties.signed(tmp_path / "run"), "--until", str(STEPS + 1)) == 1
    assert "expected until of 1 to 7 steps, got 8" in one_line(capsys)


@pytest.mark.parametrize("device", ["abacus", "", "cuda:99", "meta", "mps"])
def test_a_device_that_is_not_there(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: str
) -> None:
    assert parties.train(parties.signed(tmp_path / "run"), "--device", device) == 1
    assert (
        f"ConfigurationError: expected a device that this torch computes FP64 on, such as cpu or cuda:0, got '{device}'"
        in (one_line(capsys))
    )


@pytest.mark.slow
def test_a_run_that_another_process_works_on(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = parties.signed(tmp_path / "run")
    code = "import sys, pathlib; from tiebreak.engine.run.directory import RunDirectory\n"
    code += "with RunDirectory.open(pathlib.Path(sys.argv[1])).lock():\n    print('locked', flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "locked\n"
    assert parties.train(folder) == 1
    assert "another process is working in this folder" in one_line(capsys)
    other.communicate("\n")
    assert parties.train(folder, "--until", "1") == 0


DAMAGE = {
    "job.bin": "EncodingError",
    "program.tbp": "Error",
    "data.safetensors": "EncodingError",
    "checkpoints/000000000000.safetensors": "EncodingError",
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("how", ["cut", "gone", "empty"])
def test_a_damaged_run_is_refused_in_one_line(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, how: str
) -> None:
    folder = parties.signed(tmp_path / "run")
    content = (folder / name).read_bytes()
    if how == "gone":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content[:-1] if how == "cut" else b"")
    assert parties.train(folder) == 2
    assert DAMAGE[name] in one_line(capsys)


def test_a_damaged_checkpoint_is_computed_again(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = parties.trained(tmp_path / "run")
    made = RunDirectory.open(folder)
    root = made.heads()[-1].head.run_root.hex()
    for step in (2 * INTERVAL, STEPS):
        content = bytearray(made.state_path(step).read_bytes())
        content[-1] ^= 1
        made.state_path(step).write_bytes(content)
    assert made.last_complete() == INTERVAL
    capsys.readouterr()
    assert parties.train(folder) == 0
    assert root_of(capsys.readouterr().out) == root
    assert made.last_complete() == STEPS


def test_a_folder_without_a_run(parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parties.train(tmp_path) == 2
    assert "job.bin" in one_line(capsys)
    assert parties.train(tmp_path / "nowhere") == 1
    assert "does not exist" in capsys.readouterr().err


def test_json_lines_tell_every_step_and_checkpoint(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = parties.signed(tmp_path / "run")
    capsys.readouterr()
    assert parties.train(folder, "--json", "--until", "4") == 0
    first = capsys.readouterr()
    assert parties.train(folder, "--json", "--keep", "last") == 0
    second = capsys.readouterr()
    assert (first.err, second.err) == ("", "")
    opened = RunDirectory.open(folder)
    begun, ended = ([json.loads(line) for line in text.splitlines()] for text in (first.out, second.out))
    assert [e["event"] for e in begun if e["event"] != "checkpoint"] == ["start", *["step"] * 4, "end"]
    assert begun[0] == {
        "event": "start", "job": opened.job.id.hex(), "step": 0, "steps": STEPS, "checkpoint_interval": INTERVAL,
        "keep": "all", "policy": "exact, 32 bits",
    }  # fmt: skip
    assert (ended[0]["step"], ended[0]["keep"]) == (INTERVAL, "last")
    steps = [e for e in ended if e["event"] == "step"]
    assert [e["step"] for e in steps] == list(range(INTERVAL + 1, STEPS + 1))
    for event in steps:
        assert struct.unpack(">f", bytes.fromhex(event["loss_bits"]))[0] == event["loss"]
        assert 0 <= event["resolving"] <= event["seconds"]
        assert event["waiting"] >= 0
    told = [e for e in begun + ended if e["event"] == "checkpoint"]
    records, heads = opened.records(), opened.heads()
    assert [e["step"] for e in told] == [record.step for record in records]
    assert [e["record"] for e in told] == [record.digest.hex() for record in records]
    assert [e["state_root"] for e in told] == [record.state_root.hex() for record in records]
    assert [(e["count"], e["run_root"]) for e in told] == [(h.head.count, h.head.run_root.hex()) for h in heads]
    assert all(e["signed"] and e["hashing"] > 0 and e["writing"] > 0 for e in told)
    end = ended[-1]
    assert (end["event"], end["step"], end["run_root"]) == ("end", STEPS, heads[-1].head.run_root.hex())
    assert set(end["share"]) == {"arithmetic", "resolving", "hashing", "writing"}
    assert 0 < end["share"]["arithmetic"] < 1
    assert opened.kept() == [0, STEPS]


def test_quiet_prints_nothing(parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = parties.signed(tmp_path / "run")
    capsys.readouterr()
    assert parties.train(folder, "--quiet", "--keep", "every:2") == 0
    assert capsys.readouterr() == ("", "")
    assert RunDirectory.open(folder).kept() == [0, 2 * INTERVAL, STEPS]
    assert parties.train(folder, "--quiet", "--until", "99") == 1
    assert "expected until of 1 to 7 steps" in one_line(capsys)


def test_options_that_make_no_sense(parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = parties.signed(tmp_path / "run")
    capsys.readouterr()
    assert parties.train(folder, "--quiet", "--json") == 1
    assert "expected one of --quiet and --json" in one_line(capsys)
    assert parties.train(folder, "--keep", "some") == 1
    assert "expected all, every:M or last, got 'some'" in one_line(capsys)


def test_what_was_dropped_does_not_hinder_an_audit_or_a_dispute(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cheat = doubled_weight(parties.trained(tmp_path / "honest"), 2)
    folder = parties.tampered(tmp_path / "cheating", cheat)
    cheating = RunDirectory.open(folder)
    Keep(0).prune(cheating, STEPS)
    assert cheating.kept() == [0, STEPS]
    capsys.readouterr()
    assert parties.audit(folder, tmp_path / "replay") == 2
    replay = RunDirectory.open(tmp_path / "replay")
    Keep(0).prune(replay, STEPS)
    assert run(tiebreak, ["dispute", str(folder), str(tmp_path / "replay"), "--threads", "1"]) == 0
    assert "trainer loses" in capsys.readouterr().out


LONG = 4000
"""More steps than a machine gets through before it is interrupted."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_interrupted_run_goes_on(parties: Parties, tmp_path: Path) -> None:
    """Ctrl-C in a run of thousands of steps: exit code 130, one word, and what was committed is whole."""
    captured, folder = tmp_path / "captured", tmp_path / "run"
    task = str(parties.path("task.py"))
    assert run(tiebreak, ["capture", task, "--steps", str(LONG), "--output", str(captured)]) == 0
    keys = ["--client-key", str(parties.path("client.pem")), "--trainer-key", str(parties.path("trainer.pem"))]
    assert run(tiebreak, ["agree", str(captured), *keys, "--output", str(folder)]) == 0
    command = [sys.executable, "-m", "tiebreak", "train", str(folder), "--key", str(parties.path("trainer.pem"))]
    training = subprocess.Popen(
        [*command, "--threads", "1"],
        cwd=ROOT,
        env=os.environ | {PASSPHRASE_VARIABLE: PASSPHRASE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    opened, deadline = RunDirectory.open(folder), time.monotonic() + 200
    while len(opened.records()) < 3 and training.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    training.send_signal(signal.SIGINT)
    out, err = training.communicate(timeout=200)
    assert (training.returncode, out) == (130, ""), err
    assert err.strip().splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    done = len(opened.records())
    assert 3 <= done < opened.job.checkpoints
    assert opened.last_complete() == done * INTERVAL
    assert parties.train(folder, "--until", str(INTERVAL * (done + 1))) == 0
    heads = opened.heads()
    assert [head.head.count for head in heads] == list(range(1, done + 2))


def test_a_plan_of_several_workers(
    parties: Parties, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "LEAST", 1)
    folder = str(parties.path("agreed"))
    assert run(tiebreak, ["plan", folder, "--workers", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    program = RunDirectory.open(parties.path("agreed")).program
    state = 4 * sum(prod(shape) for _, shape in program.state_spec().values())
    assert 2 * state / 4 <= found["memory"][0]["bytes"] < 2 * state
    assert found["bytes a checkpoint"] > 0
    assert found["bytes a step"] == sum(each["bytes"] for each in found["sent"]) > 0
    assert found["bytes of FP32 DDP"] == 6 * (6 * 8 + 8 + 8 * 3 + 3)
    assert sum(each["number"] for each in found["held"]) == len(program.body) - len(program.data_spec())
    assert run(tiebreak, ["plan", folder, "--workers", "4"]) == 0
    assert "FP64 sums with their bounds" in capsys.readouterr().out
