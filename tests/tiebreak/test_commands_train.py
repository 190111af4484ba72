"""`tiebreak train` from the signed job to the last head: resumed, refused, interrupted."""

import json
import os
import signal
import struct
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.source_tree import ROOT
from tests.tiebreak.parties import INTERVAL, PASSPHRASE, STEPS, Commands, Parties
from tests.waiting import until
from tiebreak.cli.key import PASSPHRASE_VARIABLE
from tiebreak.engine.distributed import partition
from tiebreak.engine.run.directory import RunDirectory


def root_of(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith("run root ")]
    root = line.removeprefix("run root ")
    assert len(bytes.fromhex(root)) == 32
    return root


class Training:
    """The command about one run, with the trainer's key."""

    def __init__(self, command: Commands, parties: Parties, folder: Path) -> None:
        self.command, self.folder = command, folder
        self.key = parties.path("trainer.pem")

    def arguments(self, *options: str) -> list[object]:
        return ["train", self.folder, "--key", self.key, "--threads", 1, *options]

    def __call__(self, *options: str) -> str:
        return self.command(*self.arguments(*options))

    def error(self, *options: str, code: int = 1) -> str:
        return self.command.error(*self.arguments(*options), code=code)

    @property
    def run(self) -> RunDirectory:
        return RunDirectory.open(self.folder)


@pytest.fixture
def train(command: Commands, parties: Parties, tmp_path: Path) -> Training:
    """The command about a run that is signed and not begun."""
    return Training(command, parties, parties.signed(tmp_path / "run"))


def test_training_in_pieces_reaches_the_same_root_as_in_one(train: Training, parties: Parties) -> None:
    first = RunDirectory.open(parties.path("run"))
    root = first.heads()[-1].head.run_root.hex()
    # Not all at a checkpoint: what was computed after the last one is computed again.
    for until_step, count in (("1", 0), ("4", 1), ("4", 1), ("6", 2)):
        assert root_of(train("--until", until_step, "--permute", until_step)) != root
        assert len(train.run.heads()) == count
    assert root_of(train("--no-graphs")) == root
    second = train.run
    assert first.records() == second.records()
    assert [record.step for record in first.records()] == [INTERVAL, 2 * INTERVAL, STEPS]
    assert [head.head for head in first.heads()] == [head.head for head in second.heads()]
    assert [metric["loss"] for metric in first.metrics()] == [metric["loss"] for metric in second.metrics()]
    assert root_of(train()) == root, "training a finished run says what it came to"


def test_json_lines_tell_every_step_and_checkpoint(train: Training) -> None:
    first, second = (
        train.command.printed(*train.arguments("--json", *more)) for more in (("--until", "4"), ("--keep", "last"))
    )
    assert (first[1], second[1]) == ("", "")
    opened = train.run
    begun, ended = ([json.loads(line) for line in text.splitlines()] for text, _ in (first, second))
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


def test_quiet_training_prints_nothing(train: Training) -> None:
    assert train.command.printed(*train.arguments("--quiet", "--keep", "every:2")) == ("", "")
    assert train.run.kept() == [0, 2 * INTERVAL, STEPS]


LONG = 4000
"""More steps than a machine gets through before it is interrupted."""


@pytest.mark.slow
def test_an_interrupted_run_goes_on(train: Training, parties: Parties, tmp_path: Path) -> None:
    """Ctrl-C in a run of thousands of steps: exit code 130, one word, and what was committed is whole."""
    captured, train.folder = tmp_path / "captured", tmp_path / "long"
    train.command("capture", parties.path("task.py"), "--steps", LONG, "--output", captured)
    train.command("agree", captured, *parties.keys, "--output", train.folder)
    words, environment = [*map(str, train.arguments())], os.environ | {PASSPHRASE_VARIABLE: PASSPHRASE}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    training = subprocess.Popen([sys.executable, "-m", "tiebreak", *words], cwd=ROOT, env=environment, **pipes)
    opened = train.run
    until(lambda: len(opened.records()) >= 3 or training.poll() is not None, seconds=200)
    training.send_signal(signal.SIGINT)
    out, err = training.communicate(timeout=200)
    assert (training.returncode, out) == (130, ""), err
    assert err.strip().splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    done = len(opened.records())
    assert 3 <= done < opened.job.checkpoints
    assert opened.last_complete() == done * INTERVAL
    train("--until", str(INTERVAL * (done + 1)))
    assert [head.head.count for head in opened.heads()] == list(range(1, done + 2))


def test_show_plans_memory_and_traffic_of_several_workers(
    parties: Parties, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "LEAST", 1)
    plan = ["show", parties.path("agreed"), "--workers", 4]
    found = command.tell(*plan)
    program = RunDirectory.open(parties.path("agreed")).program
    state = 4 * sum(prod(shape) for _, shape in program.state_spec().values())
    assert 2 * state / 4 <= found["memory"][0]["bytes"] < 2 * state
    assert found["bytes a checkpoint"] > 0
    assert found["bytes a step"] == sum(each["bytes"] for each in found["sent"]) > 0
    assert found["bytes of FP32 DDP"] == 6 * (6 * 8 + 8 + 8 * 3 + 3)
    assert sum(each["number"] for each in found["held"]) == len(program.body) - len(program.data_spec())
    assert "FP64 sums with their bounds" in command(*plan)
    for one in (found, command.tell(*plan[:-1], 1)):
        assert sum(part["bytes"] for part in one["memory"]) == one["bytes of memory"] > 0
