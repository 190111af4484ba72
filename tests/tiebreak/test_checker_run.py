"""The page that checks files, without its page: a run's folder under node, with the verdicts of `tiebreak audit`."""

import json
import lzma
import os
import random
import re
import shutil
import struct
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import zstandard

from tests.conftest import CaseCounter
from tests.engine import frozen_cases
from tests.engine import test_late_data as late_data
from tests.engine.logged_cases import log_of, logged_job, new_run, train
from tests.engine.test_forbidden_losses import cheated
from tests.engine.tiny import TRAINER
from tests.source_tree import ROOT
from tests.tampered import Tampered, one_element
from tests.tiebreak.parties import Once, Parties, flip, tiny_run
from tiebreak.api.corpus import programs
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training.reading import SAMPLED, late_words
from tiebreak.cli.main import run as cli
from tiebreak.cli.main import tiebreak
from tiebreak.engine.data.arrays import open_safetensors
from tiebreak.engine.logged.encoding import BLOCK
from tiebreak.engine.logged.files import LogFile, log_path
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.segments import draw_segments
from tiebreak.engine.run.train import Worker
from tiebreak.node.pages.walk import operation_of
from tiebreak.node.pages.words import decimal
from tiebreak.protocol import packing
from tiebreak.protocol.commitments.job import Job, SignedJob
from tiebreak.protocol.commitments.records import identify
from tiebreak.protocol.errors import EncodingError, VerificationError
from tiebreak.protocol.program.isa import DType, Opcode

MODULE = ROOT / "recheck" / "build" / "recheck.wasm"
NODE = shutil.which("node")
NEEDED = "TIEBREAK_NEED_WASM" in os.environ
pytestmark = pytest.mark.skipif(
    not ((MODULE.exists() and NODE) or NEEDED), reason="needs node, and recheck.wasm, which make wasm builds"
)
Answer = dict[str, Any]


def ask(*requests: Answer) -> list[Answer]:
    """The answers of the page's code, each of which must come within seconds."""
    lines = "".join(json.dumps(one) + "\n" for one in requests)
    command = [str(NODE), str(ROOT / "tests" / "tiebreak" / "checker_run.mjs"), str(MODULE)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=600)
    return [json.loads(line) for line in done.stdout.splitlines()]


class Auditor:
    """`tiebreak audit` of all segments, or of those of some options."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, folder: Path, *options: object) -> Answer:
        """Its verdict, its reason, its lines without what a module does not know, and what it printed besides."""
        self._capsys.readouterr()
        chosen = options or ("--from-step", 1)
        code = cli(tiebreak, ["audit", str(folder), "--threads", "1", *map(str, chosen)])
        out, err = self._capsys.readouterr()
        if code == 0:
            return {"verdict": "agrees", "lines": [line for line in err.splitlines() if "warning" in line] + plain(out)}
        first, *details = [line for line in err.rstrip().splitlines() if not line.startswith(("replaying", "warning"))]
        name, _, reason = first.partition(": ")
        verdict = {1: "asked", 2: "fraud", 3: "could not check"}[code]
        return {"verdict": verdict, "reason": reason, "details": details, "error": name}


def plain(out: str) -> list[str]:
    return re.sub(r", [0-9.e+]+ a second|; \d+ were needed here", "", out).splitlines()


@pytest.fixture
def audit(capsys: pytest.CaptureFixture[str]) -> Auditor:
    return Auditor(capsys)


@pytest.fixture
def runs(parties: Parties, once: Once, tmp_path: Path) -> dict[str, Path]:
    """Runs of policy exact, with logs, and with late data."""

    def logged(folder: Path) -> None:
        train(new_run(folder, logged_job()))

    made = {
        "exact": parties.path("run"), "logged": once("checker-logged", logged),
        "late": once("late data", lambda folder: late_data.trained(folder / "run")) / "run",
    }  # fmt: skip
    return {name: shutil.copytree(folder, tmp_path / name) for name, folder in made.items()}


def change(path: Path, at: int, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    path.write_bytes(content)


def test_true_runs_get_the_lines_of_the_audit(runs: dict[str, Path], audit: Auditor, cases: CaseCounter) -> None:
    found = ask(*({"folder": str(folder), "budget": budget} for folder in runs.values() for budget in (1 << 40, 50)))
    for name, (one, other) in zip(runs, zip(found[::2], found[1::2], strict=True), strict=True):
        expected = audit(runs[name])
        assert one["verdict"] == other["verdict"] == expected["verdict"] == "agrees", one
        assert one["lines"] == other["lines"] == expected["lines"]
        assert other["told"] > one["told"], "pieces of a step are told"
        cases()
    run = RunDirectory.open(runs["logged"])
    assert sum(log_of(run, step).count for step in range(1, 25)) == found[2]["entries"] > 20


def last(folder: Path, inside: str) -> Path:
    return max((folder / inside).iterdir())


def of_first_segment(folder: Path, inside: str) -> Path:
    return sorted((folder / inside).iterdir())[inside == "checkpoints"]


def remove_heads(folder: Path) -> None:
    for path in (folder / "heads").iterdir():
        path.unlink()


def drop_states(folder: Path) -> None:
    for path in sorted((folder / "checkpoints").iterdir())[1:]:
        path.unlink()


def rename_head(folder: Path) -> None:
    last(folder, "heads").rename(folder / "heads" / "999999999999.bin")


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def grow(path: Path, more: bytes) -> None:
    path.write_bytes(path.read_bytes() + more)


def exchange_logs(folder: Path) -> None:
    """Writes the logs of two steps in each other's place, as a trainer could."""
    run = RunDirectory.open(folder)
    segment = range(1, run.job.last_step(0) + 1)
    first, second, *others = [log_of(run, step) for step in segment]
    file = LogFile(log_path(folder, segment[-1]), run.program, run.job.id, segment)
    file.create()
    for step, log in zip(segment, (second, first, *others), strict=True):
        file.append(step, log)


def relabel(path: Path) -> None:
    """Names another tensor in a header."""
    content = path.read_bytes()
    at = content.index(b'"', 9) + 1
    path.write_bytes(content[:at] + b"_" + content[at + 1 :])


FAULTS: dict[str, Callable[[Path], object]] = {
    "a state": lambda run: flip(of_first_segment(run, "checkpoints")),
    "the last state": lambda run: flip(last(run, "checkpoints")),
    "the last state's length": lambda run: cut(last(run, "checkpoints"), -1),
    "the last state's names": lambda run: relabel(last(run, "checkpoints")),
    "the initial state": lambda run: flip(run / "checkpoints" / "000000000000.safetensors"),
    "all states but the initial one": drop_states,
    "data": lambda run: flip(run / "data.safetensors"),
    "the data's header": lambda run: relabel(run / "data.safetensors"),
    "the length of data": lambda run: grow(run / "data.safetensors", b"0"),
    "a large header": lambda run: (run / "data.safetensors").write_bytes(b"\0\0\0\0\1\0\0\0"),
    "a record": lambda run: change(run / "records.bin", 10),
    "a loss": lambda run: change(run / "records.bin", 43),
    "a record's step": lambda run: change(run / "records.bin", 7),
    "a record too few": lambda run: cut(run / "records.bin", -76),
    "records too many": lambda run: grow(run / "records.bin", bytes(1000)),
    "half a record more": lambda run: grow(run / "records.bin", bytes(30)),
    "a head": lambda run: change(last(run, "heads"), 60),
    "a head's signature": lambda run: change(last(run, "heads"), -2),
    "a head's form": lambda run: change(last(run, "heads"), 0),
    "a head's version": lambda run: change(last(run, "heads"), 1, 3),
    "a head's name": rename_head,
    "no head": remove_heads,
    "the job": lambda run: change(run / "job.bin", 100),
    "the job's client": lambda run: change(run / "job.bin", 65),
    "the job's version": lambda run: change(run / "job.bin", 1, 3),
    "the job's trainer's signature": lambda run: change(run / "job.bin", -3),
    "the job's end": lambda run: grow(run / "job.bin", b"0"),
    "a long job": lambda run: grow(run / "job.bin", bytes(1 << 16)),
    "the program": lambda run: change(run / "program.tbp", 3),
    "another program": lambda run: (run / "program.tbp").write_bytes(programs.read("mlp").program.encode()),
    "no job": lambda run: (run / "job.bin").rename(run / "job.old"),
}
"""What is changed in the folder of an honest run."""
OF_LOGS: dict[str, Callable[[Path], object]] = {
    "a log": lambda run: flip(of_first_segment(run, "logs")),
    "a log's checksum": lambda run: change(of_first_segment(run, "logs"), 48 + 17),
    "a log's step": lambda run: change(of_first_segment(run, "logs"), 48 + 7),
    "a log's length": lambda run: change(of_first_segment(run, "logs"), 48 + 8),
    "a log file's name": lambda run: change(of_first_segment(run, "logs"), 3),
    "a log file's job": lambda run: change(of_first_segment(run, "logs"), 12),
    "a log file's segment": lambda run: change(of_first_segment(run, "logs"), 47),
    "a log too few": lambda run: cut(of_first_segment(run, "logs"), -3),
    "more logs": lambda run: grow(of_first_segment(run, "logs"), bytes(20)),
    "logs that were not committed": exchange_logs,
    "logs of another segment": lambda run: shutil.copy(last(run, "logs"), of_first_segment(run, "logs")),
}
OWN_WORDS = ("no secp256k1 key makes", "msgpack value", "program.tbp: ", "Zstandard frame", "cannot be read")
"""Where the module, a library or the system has its own words."""


def check_same(found: Answer, expected: Answer) -> None:
    """Requires the verdict and the words of the audit; of a sentence that has its own words, the beginning."""
    assert found["verdict"] == expected["verdict"], (found, expected)
    if found["verdict"] == "agrees":
        assert found["lines"] == expected["lines"]
    elif any(words in expected["reason"] for words in OWN_WORDS):
        assert found["reason"].partition(": ")[0] == expected["reason"].partition(": ")[0]
    else:
        assert found["reason"] == expected["reason"]
    assert "\n" not in found.get("reason", "")


def test_false_files_get_the_verdicts_of_the_audit(
    runs: dict[str, Path], audit: Auditor, tmp_path: Path, cases: CaseCounter
) -> None:
    false = dict[str, Path]()
    for name, folder in runs.items():
        for fault, change_ in (FAULTS if name == "exact" else OF_LOGS).items():
            changed = false[f"{name}: {fault}"] = shutil.copytree(folder, tmp_path / "false" / name / fault)
            change_(changed)
    answers = ask(*({"folder": str(folder)} for folder in false.values()))
    for folder, found in zip(false.values(), answers, strict=True):
        check_same(found, audit(folder))
        cases()


def check_fraud(folder: Path, audit: Auditor, *options: object, **request: object) -> Answer:
    """The answer on a false run, which must have the sentence and the lines of the audit."""
    (found,) = ask({"folder": str(folder), **request})
    expected = audit(folder, *options)
    assert expected["error"] == "AuditFailure"
    assert (
        (found["verdict"], found["reason"]) == ("fraud", expected["reason"]) == (expected["verdict"], found["reason"])
    )
    assert found["lines"][: len(expected["details"])] == expected["details"]
    return found


def test_a_false_step_is_fraud_in_the_words_of_the_audit(parties: Parties, audit: Auditor, tmp_path: Path) -> None:
    folder = parties.cheating(tmp_path / "cheating", 5)
    place = check_fraud(folder, audit)["lines"][2:]
    assert place[0].startswith("step 6, state entry ")
    assert place[1].endswith(place[0].split()[4].removesuffix(",")), "its origin, which the folder names"
    assert check_fraud(folder, audit, "--segment", 1, segments=[1])["lines"][2:] == place
    (true,) = ask({"folder": str(folder), "segments": [2]})
    assert true["lines"][-1] == "agrees: steps 7 to 7"
    RunDirectory.open(folder).drop_state(6)
    assert check_fraud(folder, audit)["lines"][2:] == [
        "the state after step 6 was not kept, so no number of it can be compared"
    ]


def test_a_false_step_with_logs_is_fraud(audit: Auditor, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", logged_job())
    leaf = next(n for n, i in enumerate(run.program.body) if i.opcode == Opcode.REDUCE)
    train(run, tamper=one_element(7, leaf, 1, lambda value: value * 2))
    found = check_fraud(run.path, audit)
    assert "in checkpoint 2 of 6, steps 5 to 8, where the state differs" in found["reason"]


def test_the_first_published_number_that_differs_is_named(audit: Auditor, tmp_path: Path) -> None:
    """In a segment of one step the lie itself, if it is a number of the state."""
    run = tiny_run(tmp_path / "run", 4, 1)
    name, (commit, *_) = next((i.params.name, i.operands) for i in run.program.commits if i.numel > 4)  # type: ignore[union-attr]
    made = run.program.body[commit.value]
    lie = one_element(3, commit.value, 2, lambda value: value + 1)
    Worker(run, Tampered(make_interpreter(run.program, Machine(threads=1)), lie), key=TRAINER).work()
    place = check_fraud(run.path, audit, "--segment", 2, segments=[2])["lines"][2:]
    assert place[0] == f"step 3, state entry {name}, element 2"
    assert place[1].startswith(f"made by instruction {commit.value} of {len(run.program.body)}: {operation_of(made)}")
    expected, got = (re.findall(r"(0x[0-9a-f]{8}) \((\S+)\)", line)[0] for line in place[-2:])
    element = run.state(3)[name].flatten()[2]
    assert int(got[0], 16) == element.view(torch.int32).item() % (1 << 32)
    assert [one[1] for one in (expected, got)] == [decimal(DType.F32, int(one[0], 16)) for one in (expected, got)]
    assert abs(float(got[1].replace("−", "-")) - float(expected[1].replace("−", "-")) - 1) < 1e-6


def test_a_loss_that_the_job_forbids_is_fraud(audit: Auditor, tmp_path: Path) -> None:
    for step, verdict in ((3, "fraud"), (4, "agrees")):  # the end of a segment, and a step within one
        folder = cheated(tmp_path / f"{step}", step).path
        (found,) = ask({"folder": str(folder)})
        check_same(found, audit(folder))
        assert found["verdict"] == verdict


def test_entries_that_no_step_changes_come_from_the_initial_state(audit: Auditor, tmp_path: Path) -> None:
    run = frozen_cases.new_run(tmp_path / "run")
    frozen_cases.work(run)
    found, checked = ask({"folder": str(run.path), "segments": [2]}, {"folder": str(run.path), "check": True})
    assert found["lines"] == audit(run.path, "--segment", 2)["lines"]
    assert all(holds for holds, _ in checked["lines"])
    change(run.state_path(0), open_safetensors(run.state_path(0))[frozen_cases.EMBEDDING].offset)
    (found,) = ask({"folder": str(run.path), "segments": [2]})
    check_same(found, audit(run.path, "--segment", 2))
    assert "expected a state at or before step 8" in found["reason"]


JOB_FIELDS = list(Job.kinds())
GOOD_VALUES: dict[str, Any] = {"policy": 1, "tolerances": 0x020202}
BAD_JOBS: list[dict[str, Any]] = [
    {"client": bytes(20)}, {"trainer": bytes(20)}, {"trainer": bytes(19)}, {"client": 5}, {"body_count": 0},
    {"body_count": (1 << 20) + 1}, {"state_count": 1 << 40}, {"data_count": 1 << 32}, {"steps": 0}, {"steps": b"1"},
    {"program_root": bytes(31)}, {"policy": 2}, {"precision": 15}, {"precision": 33}, {"tolerances": 1},
    {"tolerances": 0x410000}, {"tolerances": 1 << 25}, {"tolerances": 1 << 24, "policy": 0},
    {"tolerances": 2, "policy": 0}, {"tolerances": 0x100}, {"reward": bytes(31)}, {"reward": 7}, {"reward": 1 << 128},
    {"challenger_stake": 0}, {"challenger_stake": 1},
    {"challenge_window": 0}, {"clock": 1 << 25}, {"replay_time": 1 << 22}, {"deadline": (1 << 28) + 1}, {"seats": 17},
    {"seats": 1}, {"seats": 1, "policy": 0, "tolerances": 0}, {"seat_fee": 1}, {"seat_bond": 2}, {"descent_levels": 6},
    {"seats": 1, "policy": 0, "tolerances": 0, "seat_bond": 6}, {"checkpoint_interval": 1000},
    {"steps": 1 << 63, "checkpoint_interval": 1}, {"nonce": bytes(33)}, {"tolerances": 0x010203},
]  # fmt: skip


def test_jobs_that_break_a_rule_are_refused_in_its_words(
    runs: dict[str, Path], tmp_path: Path, cases: CaseCounter
) -> None:
    signed, made = RunDirectory.open(runs["logged"]).agreement, list[tuple[Path, bytes]]()
    for number, changes in enumerate(BAD_JOBS):
        top = packing.unpack(signed.encode(), 2048)
        for name, value in (GOOD_VALUES | changes).items():
            is_wide = isinstance(Job.kinds()[name], packing.Uint) and Job.kinds()[name].bits > 64  # type: ignore[attr-defined]
            as_bytes = is_wide and isinstance(value, int) and (name, value) != ("reward", 7)
            top[3][JOB_FIELDS.index(name)] = value.to_bytes(32, "big") if as_bytes else value
        folder = shutil.copytree(runs["logged"], tmp_path / "jobs" / str(number))
        (folder / "job.bin").write_bytes(packing.pack(top))
        made.append((folder, packing.pack(top)))
    for (folder, job), changes, found in zip(
        made, BAD_JOBS, ask(*({"folder": str(folder)} for folder, _ in made)), strict=True
    ):
        with pytest.raises(VerificationError) as error:
            SignedJob.decode(job)
        assert found["verdict"] == "could not check", changes
        expected = f"{folder}/job.bin: {error.value}".partition(", got")[0]
        assert found["reason"].partition(", got")[0] == re.sub(r", such as [^,]*", "", expected), changes
        cases()


def test_draws_are_those_of_the_audit(runs: dict[str, Path], audit: Auditor, cases: CaseCounter) -> None:
    folder, samples = runs["logged"], [(sample, f"seed {sample} \u00fc") for sample in (1, 2, 5, 6)]
    root = RunDirectory.open(folder).heads()[-1].head.run_root
    for (sample, seed), found in zip(
        samples,
        ask(*({"folder": str(folder), "sample": sample, "seed": seed} for sample, seed in samples)),
        strict=True,
    ):
        assert found["wanted"] == list(draw_segments(6, sample, seed.encode(), root))
        assert found["due"] == found["steps"] == 4 * sample
        assert found["lines"] == audit(folder, "--sample", sample, "--seed", seed)["lines"]
        cases()
    (found,) = ask({"folder": str(folder), "sample": 7, "seed": "x"})
    assert (found["verdict"], found["reason"]) == ("asked", "expected a sample of 1 to 6 segments, got 7")


def test_a_run_is_checked_without_a_replay(runs: dict[str, Path]) -> None:
    flip(of_first_segment(runs["late"], "checkpoints"))
    flip(runs["late"] / "data.safetensors")
    true, false = ask(*({"folder": str(runs[name]), "check": True} for name in ("logged", "late")))
    assert [(holds, line[:2]) for holds, line in true["lines"]] == [(True, f"{number}.") for number in range(1, 7)]
    refused = [line for holds, line in false["lines"] if not holds]
    assert [line[:2] for line in refused] == ["5.", "6."]
    assert "state after step 3: expected root" in refused[1]


def test_late_data_get_the_words_of_the_audit(cases: CaseCounter) -> None:
    samples = ["completion_ids", "completion_mask", "num_items_in_batch"]
    kinds = [[], ["x", "a\u202e<b>"], samples, [*samples, "advantages"], [*samples, "prompt_ids", "advantages"]]
    states = [["w"], [SAMPLED, "w"], [SAMPLED, "model.rollouts.mean_reward_0_f", "model.rollouts.mean_reward_10_g h"]]
    asked = [
        {"late": late, "state": state, "sampled": sampled if SAMPLED in state else None}
        for late, state, sampled in product(kinds, states, (None, True, False))
    ]
    for (late, state, sampled), found in zip(map(dict.values, asked), ask(*asked), strict=True):
        program = SimpleNamespace(late_spec=lambda late=late: late, state_spec=lambda state=state: state)
        ids = None if sampled is None else {SAMPLED: identify(DType.F32, (), struct.pack("<f", sampled))}
        del found["milliseconds"]
        assert found == late_words(program, ids)  # type: ignore[arg-type]
        cases()


def test_a_replay_stops_when_it_is_told_to(runs: dict[str, Path]) -> None:
    found = ask(*({"folder": str(runs["exact"]), "budget": 100, "stop": stop} for stop in (1, 20, 60)))
    assert [(one["verdict"], one["told"]) for one in found] == [("stopped", 1), ("stopped", 20), ("stopped", 60)]


def test_a_file_that_changes_while_it_is_read_is_no_fraud(runs: dict[str, Path], cases: CaseCounter) -> None:
    folder, log = runs["logged"], "logs/000000000004.log"
    paths = ("data.safetensors", "records.bin", "checkpoints/000000000000.safetensors", log)
    asked = [
        {"folder": str(folder), "segments": [0], "changes": [path, reads]}
        for path in paths
        for reads in range(0, 25, 3)
    ]
    found = ask(*asked)
    assert {one["verdict"] for one in found} == {"agrees", "could not check"}
    assert any(one["reason"].startswith(f"{folder}: log of step 1: expected what was committed") for one in found[-9:])
    cases(len(found))


def test_a_replay_needs_no_more_memory_than_is_said(runs: dict[str, Path], cases: CaseCounter) -> None:
    folders = [str(folder) for folder in runs.values()]
    said = [one["memory"] for one in ask(*({"folder": folder, "check": True} for folder in folders))]
    limits = [limit for memory in said for limit in (memory, 200_000)]
    found = ask(*({"folder": folders[n // 2], "limit": limit} for n, limit in enumerate(limits)))
    for enough, little in zip(found[::2], found[1::2], strict=True):
        assert enough["verdict"] == "agrees"
        assert little["verdict"] == "could not check"
        assert "expected work that fits into 200000 bytes, got more" in little["reason"]
        cases()


def mutated(draw: random.Random, content: bytes) -> bytes:
    """A byte, a wide number, or a piece in another place; or an end cut off."""
    found, kind = bytearray(content), draw.randrange(5)
    at = draw.randrange(min(len(found), draw.choice((64, 512, 1 << 20))))
    if kind == 4:
        return bytes(found[:at])
    number = draw.choice((0, 1, (1 << 64) - 1, 1 << 63, 1 << 40)).to_bytes(8, "big")
    change_ = [bytes([draw.randrange(256)]), number, number[::-1], bytes(found[draw.randrange(len(found)) :][:16])][
        kind
    ]
    change_ = change_[: len(found) - at]
    found[at : at + len(change_)] = change_
    return bytes(found)


FILES = ("job.bin", "program.tbp", "data.safetensors", "records.bin", "heads", "logs", "checkpoints", "origins.json")


@pytest.mark.parametrize("count", [16, pytest.param(400, marks=pytest.mark.slow)])
def test_hostile_bytes_get_one_sentence(
    count: int, runs: dict[str, Path], audit: Auditor, tmp_path: Path, cases: CaseCounter
) -> None:
    """Whatever bytes a file has: a verdict in one sentence, and that of the audit where it could not be checked."""
    draw, made = random.Random(64), []
    for number in range(count):
        folder = shutil.copytree(runs[draw.choice(("logged", "late"))], tmp_path / "hostile" / str(number))
        path = folder / FILES[number % len(FILES)]
        path = draw.choice(sorted(path.iterdir())) if path.is_dir() else path
        if path.exists():
            path.write_bytes(mutated(draw, path.read_bytes()))
            made.append(folder)
    for folder, found in zip(made, ask(*({"folder": str(one)} for one in made)), strict=True):
        assert found["verdict"] in ("agrees", "could not check", "fraud"), found
        assert found["milliseconds"] < 20_000
        assert "\n" not in found.get("reason", "")
        if count < 100:
            assert found["verdict"] == audit(folder)["verdict"], (folder, found)
        cases()


# ------------------------------------------------------------------ packed bytes


def read(reader: str, items: list[tuple[bytes, int]]) -> list[str]:
    packed = [(b64encode(data).decode(), size) for data, size in items]
    (answer,) = ask({"reader": reader, "items": packed})
    return list(answer["found"])


def texts(draw: random.Random) -> list[bytes]:
    """Bytes that compress in different ways, of sizes at which formats change theirs."""
    words, found = [draw.randbytes(draw.randrange(3, 20)) for _ in range(30)], list[bytes]()
    for size in (1, 2, 100, 255, 256, 1000, 5000, 65535, 65536):
        skewed = bytes(min(255, int(draw.expovariate(0.05))) for _ in range(size))
        spoken = b"".join(draw.choice(words) + bytes([draw.randrange(20)]) for _ in range(size // 5 + 1))[:size]
        found += [bytes(size), skewed, draw.randbytes(size), spoken]
    return found


def frame(plain: bytes, level: int) -> bytes:
    settings = zstandard.ZstdCompressionParameters.from_level(
        level, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=True
    )
    return zstandard.ZstdCompressor(compression_params=settings).compress(plain)


def test_frames_are_those_of_zstandard(cases: CaseCounter) -> None:
    draw = random.Random(8878)
    made = [(frame(plain, level), plain) for plain in texts(draw) for level in (1, 19)]
    for (_, plain), found in zip(made, read("frame", [(packed, len(plain)) for packed, plain in made]), strict=True):
        assert b64decode(found) == plain
        cases()
    hostile = [(mutated(draw, packed), len(plain)) for packed, plain in made[:64] for _ in range(6)]
    decompressor = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS, max_window_size=BLOCK)
    refused = 0
    for (packed, size), found in zip(hostile, read("frame", hostile), strict=True):
        try:
            stated = zstandard.get_frame_parameters(packed, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
            if stated.content_size != size or stated.window_size > BLOCK:
                raise zstandard.ZstdError
            plain = decompressor.decompress(packed, max_output_size=size, allow_extra_data=False)
        except zstandard.ZstdError:
            assert found.startswith("expected a ") or packed[0] & 4, "only a checksum is not looked at"
            refused += 1
        else:  # the library takes some streams of Huffman codes that do not end where they should
            assert found == "expected a Zstandard frame" or b64decode(found) == plain
        cases()
    assert refused > 100


def test_xz_files_are_those_of_lzma(cases: CaseCounter) -> None:
    draw, limit = random.Random(2009), 1 << 20
    shapes = [(3, 0, 2), (0, 0, 0), (1, 3, 4), (0, 4, 1)]
    made = []
    for number, plain in enumerate([*texts(draw)[:29], bytes(1 << 19), draw.randbytes(1 << 15) * 4]):
        lc, lp, pb = shapes[number % 4]
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": lc, "lp": lp, "pb": pb}]
        made.append((lzma.compress(plain, filters=filters), plain))
    for (_, plain), found in zip(made, read("xz", [(packed, limit) for packed, _ in made]), strict=True):
        assert b64decode(found) == plain
        cases()
    hostile = [(mutated(draw, packed), limit) for packed, _ in made[:28] for _ in range(6)]
    for found in read("xz", hostile):
        assert found.startswith("expected ") or b64encode(b64decode(found)).decode() == found, found
        cases()
    (bomb,) = read("xz", [(lzma.compress(bytes(1 << 22)), limit)])
    assert bomb == f"expected one whole file of at most {limit} bytes, got more or less"


def test_msgpack_is_read_as_python_reads_it(cases: CaseCounter) -> None:
    draw, made = random.Random(9), list[bytes]()
    numbers = (0, 1, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 64) - 1)

    def value(depth: int = 0) -> Any:
        kind = draw.randrange(4)
        if kind == 0 and depth < 4:
            return [value(depth + 1) for _ in range(draw.choice((0, 1, 3, 15, 16, 17)))]
        return draw.randbytes(draw.choice((0, 1, 20, 32, 255, 256, 300))) if kind == 1 else draw.choice(numbers)

    for _ in range(1500):
        packed = packing.pack(value())
        made += [packed, mutated(draw, packed) or packed]
    deep = b"\x91" * 12
    made += [deep + b"\0", b"\xff", b"\xc0", b"\xc3", b"\xa1a", b"\xa1\xff", b"\x80", b"\xca1234", b"\xd0\x80"]
    for packed, found in zip(made, read("msgpack", [(packed, 2048) for packed in made]), strict=True):
        try:
            packing.unpack(packed, 2048)
            expected = "taken"
        except EncodingError as error:
            expected = str(error)
        assert expected in (found, "taken") or found.startswith("expected one msgpack value"), packed.hex()
        assert (found == "taken") == (expected == "taken"), packed.hex()
        cases()


# ------------------------------------------------------------------ the corpus


def corpus_answer(*names: str, folder: Path = programs.CORPUS) -> Answer:
    (answer,) = ask({"corpus": str(folder), **({"programs": list(names)} if names else {})})
    return answer


def check_statement(answer: Answer, tmp_path: Path, folder: Path = programs.CORPUS) -> programs.CorpusStatement:
    """The statement as `tiebreak corpus check` reads it."""
    file = tmp_path / "statement.json"
    file.write_text(answer["text"])
    statement, signers = programs.check(file, folder)
    assert [signer.hex() for signer in signers] == [answer["address"]]
    assert dict(statement.environment) == {"system": "node", "cpu": "any"}
    return statement


def test_programs_of_the_corpus_reach_their_roots_and_are_stated(tmp_path: Path) -> None:
    answer = corpus_answer("mlp", "every", "late")
    assert answer["names"] == list(programs.names())
    statement = check_statement(answer, tmp_path)
    assert sorted(statement.programs) == ["every", "late", "mlp"]
    assert not statement.differing


def test_a_program_that_differs_is_stated(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    for name in ("mlp", "every", "narrow"):
        shutil.copytree(programs.CORPUS / name, corpus / name)
    flip(corpus / "mlp" / programs.STATE)
    expected = corpus / "every" / programs.EXPECTED
    expected.write_text(re.sub(r'("run_root": ")[^"]*', lambda found: found[1] + "00" * 32, expected.read_text()))
    differing = {run.program: run for run in check_statement(corpus_answer(folder=corpus), tmp_path, corpus).differing}
    assert list(differing) == ["every", "mlp"]
    assert differing["mlp"].root is None
    assert differing["mlp"].problem.startswith("VerificationError: mlp: state.safetensors: expected root ")
    assert differing["every"].root is not None


@pytest.mark.parametrize("file", [programs.PROGRAM, programs.STATE, programs.EXPECTED, programs.LOGS])
def test_hostile_files_of_a_corpus_get_one_sentence(file: str, tmp_path: Path, cases: CaseCounter) -> None:
    draw, asked = random.Random(file), list[Answer]()
    for number in range(12):
        folder = shutil.copytree(programs.CORPUS / "late", tmp_path / str(number) / "late")
        (folder / file).write_bytes(mutated(draw, (folder / file).read_bytes()))
        asked.append({"corpus": str(folder.parent)})
    for found in ask(*asked):
        assert found.get("verdict") == "could not check" or len(found["runs"]) == 1, found
        assert "\n" not in found.get("reason", "")
        cases()


@pytest.mark.slow
def test_the_whole_corpus_reaches_its_roots(tmp_path: Path) -> None:
    statement = check_statement(corpus_answer(), tmp_path)
    assert (len(statement.computed), statement.differing) == (len(programs.names()), [])
