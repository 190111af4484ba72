"""The page that checks files, without its page: a run's folder under node, with the verdicts of `tiebreak audit`."""

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CaseCounter
from tests.engine import test_late_data as late_data
from tests.engine.logged_cases import log_of, logged_job, new_run, train
from tests.source_tree import ROOT
from tests.tampered import one_element
from tests.tiebreak.parties import Once, Parties, flip
from tiebreak.cli.main import run as cli
from tiebreak.cli.main import tiebreak
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.segments import chances, draw_segments
from tiebreak.protocol.program.isa import Opcode

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
    command = [str(NODE), str(ROOT / "tests" / "tiebreak" / "checker.mjs"), str(MODULE)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=120)
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
        name, _, reason = err.strip().splitlines()[-1 if code != 2 else -3].partition(": ")
        verdict = {1: "asked", 2: "fraud", 3: "could not check"}[code]
        details = err.strip().splitlines()[-2:] if code == 2 else []
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


def rename_head(folder: Path) -> None:
    last(folder, "heads").rename(folder / "heads" / "999999999999.bin")


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def grow(path: Path, more: bytes) -> None:
    path.write_bytes(path.read_bytes() + more)


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
    "all states but the initial one": lambda run: [path.unlink() for path in sorted((run / "checkpoints").iterdir())[1:]],
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
    "no job": lambda run: (run / "job.bin").unlink(),
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
    "logs of another segment": lambda run: shutil.copy(last(run, "logs"), of_first_segment(run, "logs")),
}
OWN_WORDS = ("no secp256k1 key makes", "program.tbp: ", "got one by 0x")
"""Where the module refuses in its own words, or the signer of other bytes is found."""


def same_reason(found: str, expected: str) -> bool:
    """Whether two sentences are the same, but for the words of libraries and of the system."""
    if any(words in expected for words in OWN_WORDS) or "cannot be read" in expected:
        return found.partition(": ")[0] == expected.partition(": ")[0]
    return found == expected


def test_false_files_get_the_verdicts_of_the_audit(
    runs: dict[str, Path], audit: Auditor, tmp_path: Path, cases: CaseCounter
) -> None:
    false = dict[str, Path]()
    for name, folder in runs.items():
        for fault, change_ in (FAULTS | (OF_LOGS if name != "exact" else {})).items():
            if name == "late" and fault in FAULTS and not fault.startswith(("a state", "data", "the last state")):
                continue  # as for the others
            changed = false[f"{name}: {fault}"] = shutil.copytree(folder, tmp_path / "false" / name / fault)
            change_(changed)
    answers = ask(*({"folder": str(folder)} for folder in false.values()))
    for (fault, folder), found in zip(false.items(), answers, strict=True):
        expected = audit(folder)
        assert found["verdict"] == expected["verdict"], (fault, found, expected)
        if found["verdict"] == "agrees":
            assert found["lines"] == expected["lines"], fault
        else:
            assert same_reason(found["reason"], expected["reason"]), (fault, found["reason"], expected["reason"])
            assert "\n" not in found["reason"]
        cases()
