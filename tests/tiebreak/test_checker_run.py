"""The page that checks files, without its page: a run's folder under node, with the verdicts of `tiebreak audit`."""

import json
import os
import random
import re
import shutil
import struct
import subprocess
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from hashlib import sha256
from io import StringIO
from itertools import count, product
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
from tests.golden.train import Inputs, make_run
from tests.protocol.instructions import committed, const, counted, source
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
from tiebreak.protocol.program.isa import DType, Opcode, SourceKind
from tiebreak.protocol.program.program import Program

MODULE = ROOT / "recheck" / "build" / "recheck.wasm"
NODE = shutil.which("node")
NEEDED = "TIEBREAK_NEED_WASM" in os.environ
pytestmark = pytest.mark.skipif(
    not ((MODULE.exists() and NODE) or NEEDED), reason="needs recheck.wasm, which make wasm builds"
)
Answer = dict[str, Any]


def ask(*requests: Answer) -> list[Answer]:
    """The answers of the page's code, each of which must come within seconds."""
    lines = "".join(json.dumps(one) + "\n" for one in requests)
    command = [str(NODE), str(ROOT / "tests" / "tiebreak" / "checker_run.mjs"), str(MODULE)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=600)
    return [json.loads(line) for line in done.stdout.splitlines()]


def audit(folder: Path, *options: object) -> Answer:
    """`tiebreak audit` of all segments, or of those of some options, without what a module does not know."""
    chosen = ["audit", str(folder), "--threads", "1", *map(str, options or ("--from-step", 1))]
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = cli(tiebreak, chosen)
    said = err.getvalue().rstrip().splitlines()
    if code == 0:
        plain = re.sub(r", [0-9.e+]+ a second|; \d+ were needed here", "", out.getvalue()).splitlines()
        return {"verdict": "agrees", "lines": [line for line in said if "warning" in line] + plain}
    first, *details = [line for line in said if not line.startswith(("replaying", "warning"))]
    verdict = {1: "asked", 2: "fraud", 3: "could not check"}[code]
    return {"verdict": verdict, "reason": first.partition(": ")[2], "details": details}


@pytest.fixture
def runs(parties: Parties, once: Once, tmp_path: Path) -> dict[str, Path]:
    """Runs of policy exact, with logs, and with late data."""
    made = {
        "exact": parties.path("run"),
        "logged": once("checker-logged", lambda folder: train(new_run(folder, logged_job()))),
        "late": once("late data", lambda folder: late_data.trained(folder / "run")) / "run",
    }
    return {name: shutil.copytree(folder, tmp_path / name) for name, folder in made.items()}


def change(path: Path, at: int, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    path.write_bytes(content)


def test_true_runs_get_the_lines_of_the_audit(runs: dict[str, Path], cases: CaseCounter) -> None:
    found = ask(*({"folder": str(folder), "budget": budget} for folder in runs.values() for budget in (1 << 40, 50)))
    for folder, one, other in zip(runs.values(), found[::2], found[1::2], strict=True):
        expected = audit(folder)
        assert one["verdict"] == other["verdict"] == expected["verdict"] == "agrees", one
        assert one["lines"] == other["lines"] == expected["lines"]
        assert other["told"] > one["told"], "pieces of a step are told"
        cases()
    run = RunDirectory.open(runs["logged"])
    assert sum(log_of(run, step).count for step in range(1, 25)) == found[2]["entries"] > 20


# ------------------------------------------------------------------ false files


def mended(content: bytes) -> bytes:
    """A file of logs whose first has the right checksum, as its maker can write it."""
    size = int.from_bytes(content[56:64], "big")
    found = zlib.crc32(content[68 : 68 + size], zlib.crc32(content[48:64]))
    return content[:64] + found.to_bytes(4, "big") + content[68:]


JOB, PROGRAM, DATA, RECORDS, LOG = "job.bin", "program.tbp", "data.safetensors", "records.bin", "log"
INITIAL, FIRST, LAST = (f"checkpoints/{step:012d}.safetensors" for step in (0, 3, 7))
HEAD = "heads/000000000003.bin"
BITS = {
    JOB: (100, 65, -3), PROGRAM: (3,), RECORDS: (7, 10, 43), HEAD: (0, 60, -2),
    **dict.fromkeys((INITIAL, FIRST, LAST, DATA), (-1,)), LOG: (-1, 3, 12, 47, 55, 56, 65),
}  # fmt: skip
"""Places at which a bit of a file is another one; of logs, the first file."""
CHANGES: list[tuple[str, Callable[[bytes], bytes]]] = [
    *((name, lambda data: data[:1] + b"\2" + data[2:]) for name in (JOB, HEAD)),  # a later version
    *((name, lambda data: data[:10] + b"_" + data[11:]) for name in (DATA, LAST)),  # another name
    *((name, lambda data: data + bytes(20)) for name in (JOB, DATA, RECORDS, LOG)),
    (JOB, lambda data: data + bytes(1 << 16)), (RECORDS, lambda data: data + bytes(1000)),
    (RECORDS, lambda data: data[:-76]), (LAST, lambda data: data[:-1]), (LOG, lambda data: data[:-3]),
    (PROGRAM, lambda _: programs.read("mlp").program.encode()), (DATA, lambda _: b"\0\0\0\0\1\0\0\0"),
    *((LOG, lambda data, at=at: mended(data[:at] + bytes([data[at] ^ 32]) + data[at + 1 :])) for at in (82, 87, 89)),
]  # fmt: skip
"""Of a mended log: the number of its entries, the length of a part, the header of a frame."""
GONE = {"heads/*": HEAD, "checkpoints/*[1-9].safetensors": LAST, JOB: JOB, "logs/*": LOG}


def exchange_logs(folder: Path) -> None:
    """Writes the logs of two steps in each other's place, as a trainer could."""
    run = RunDirectory.open(folder)
    segment = range(1, run.job.last_step(0) + 1)
    first, second, *others = [log_of(run, step) for step in segment]
    file = LogFile(log_path(folder, segment[-1]), run.program, run.job.id, segment)
    file.create()
    for step, log in zip(segment, (second, first, *others), strict=True):
        file.append(step, log)


def false_runs(run: Path, into: Path) -> Iterator[Path]:
    """Copies of a run in which something is another: of one with logs, these."""
    logs = sorted(path.relative_to(run) for path in run.glob("logs/*"))
    numbers = count()

    def copied() -> Path:
        return shutil.copytree(run, into / run.name / str(next(numbers)))

    def is_due(name: str) -> bool:
        return bool(logs) == (name == LOG)

    for name, at in ((name, at) for name, places in BITS.items() for at in places if is_due(name)):
        change((folder := copied()) / (logs[0] if logs else name), at)
        yield folder
    for name, make in (one for one in CHANGES if is_due(one[0])):
        path = (folder := copied()) / (logs[0] if logs else name)
        path.write_bytes(make(path.read_bytes()))
        yield folder
    for pattern in (pattern for pattern, name in GONE.items() if is_due(name)):
        for path in (folder := copied()).glob(pattern):
            path.unlink()
        yield folder
    folder = copied()
    exchange_logs(folder) if logs else (folder / HEAD).rename(folder / "heads" / "999999999999.bin")
    yield folder


OWN_WORDS = re.compile(
    "none that can be read|cannot be read|no secp256k1|msgpack value|program.tbp: |, got [^,]*, which has no job"
)
"""Where in a sentence words begin that the module, the system or the page has of its own."""


def check_same(found: Answer, expected: Answer) -> None:
    """Requires the verdict and the words of the audit; of a sentence with words of its own, those before them."""
    assert found["verdict"] == expected["verdict"], (found, expected)
    assert "\n" not in found["reason"]
    if found["verdict"] == "agrees":
        assert found["lines"] == expected["lines"]
        return
    said, shown = (re.sub(r"log of step \d+", "log", one["reason"]) for one in (expected, found))
    own = OWN_WORDS.search(said)
    assert shown.startswith(said[: own.start()]) if own else shown == said


def test_false_files_get_the_verdicts_of_the_audit(runs: dict[str, Path], tmp_path: Path, cases: CaseCounter) -> None:
    false = [folder for run in runs.values() for folder in false_runs(run, tmp_path / "false")]
    for folder, found in zip(false, ask(*({"folder": str(folder)} for folder in false)), strict=True):
        check_same(found, audit(folder))
        cases()


def check_fraud(folder: Path, *options: object, **request: object) -> Answer:
    """The answer on a false run, which must have the sentence and the lines of the audit."""
    (found,) = ask({"folder": str(folder), **request})
    expected = audit(folder, *options)
    assert (found["verdict"], found["reason"]) == ("fraud", expected["reason"])
    assert expected["verdict"] == "fraud"
    assert found["lines"][: len(expected["details"])] == expected["details"]
    return found


def test_a_false_step_is_fraud_in_the_words_of_the_audit(parties: Parties, tmp_path: Path) -> None:
    folder = parties.cheating(tmp_path / "cheating", 5)
    place = check_fraud(folder)["place"]
    assert (place["step"], place["what"]) == (6, f"state entry {place['origin']}"), "its origin, which the folder names"
    assert check_fraud(folder, "--segment", 1, segments=[1])["place"] == place
    (true,) = ask({"folder": str(folder), "segments": [2]})
    assert true["lines"][-1] == "agrees: steps 7 to 7"
    RunDirectory.open(folder).drop_state(6)
    (place,) = check_fraud(folder)["lines"][2:]
    assert place == "the state after step 6 was not kept, so no number of it can be compared"


def test_a_false_step_with_logs_is_fraud(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", logged_job())
    leaf = next(n for n, i in enumerate(run.program.body) if i.opcode == Opcode.REDUCE)
    train(run, tamper=one_element(7, leaf, 1, lambda value: value * 2))
    assert "in checkpoint 2 of 6, steps 5 to 8, where the state differs" in check_fraud(run.path)["reason"]


def test_the_first_published_number_that_differs_is_named(tmp_path: Path) -> None:
    """In a segment of one step the lie itself, if it is a number of the state."""
    run = tiny_run(tmp_path / "run", 4, 1)
    name, (commit, *_) = next((i.params.name, i.operands) for i in run.program.commits if i.numel > 4)  # type: ignore[union-attr]
    made = run.program.body[commit.value]
    lie = one_element(3, commit.value, 2, lambda value: value + 1)
    Worker(run, Tampered(make_interpreter(run.program, Machine(threads=1)), lie), key=TRAINER).work()
    place = check_fraud(run.path, "--segment", 2, segments=[2])["place"]
    expected = {"step": 3, "what": f"state entry {name}", "element": 2, "instruction": commit.value}
    assert place.items() >= (expected | {"of": len(run.program.body), "operation": operation_of(made)}).items()
    true, got = (int(place[who]["bits"], 16) for who in ("expected", "got"))
    assert [place[who]["decimal"] for who in ("expected", "got")] == [decimal(DType.F32, bits) for bits in (true, got)]
    assert got == run.state(3)[name].flatten()[2].view(torch.int32).item() % (1 << 32) != true


def test_a_loss_that_the_job_forbids_is_fraud(tmp_path: Path) -> None:
    for step, verdict in ((3, "fraud"), (4, "agrees")):  # the end of a segment, and a step within one
        (found,) = ask({"folder": str(folder := cheated(tmp_path / f"{step}", step).path)})
        check_same(found, audit(folder))
        assert found["verdict"] == verdict


def test_entries_that_no_step_changes_come_from_the_initial_state(tmp_path: Path) -> None:
    run = frozen_cases.new_run(tmp_path / "run")
    frozen_cases.work(run)
    (found,) = ask({"folder": str(run.path), "segments": [2]})
    assert found["lines"] == audit(run.path, "--segment", 2)["lines"]
    change(run.state_path(0), open_safetensors(run.state_path(0))[frozen_cases.EMBEDDING].offset)
    (found,) = ask({"folder": str(run.path), "segments": [2]})
    check_same(found, audit(run.path, "--segment", 2))
    assert "expected a state at or before step 8" in found["reason"]


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
    folders = [shutil.copytree(runs["logged"], tmp_path / "jobs" / str(number)) for number in range(len(BAD_JOBS))]
    for folder, changes in zip(folders, BAD_JOBS, strict=True):
        top = packing.unpack((folder / JOB).read_bytes(), 2048)
        for number, (name, kind) in enumerate(Job.kinds().items()):
            value = ({"policy": 1, "tolerances": 0x020202} | changes).get(name, top[3][number])
            as_bytes = getattr(kind, "bits", 0) > 64 and isinstance(value, int) and value != 7
            top[3][number] = value.to_bytes(32, "big") if as_bytes else value
        (folder / JOB).write_bytes(packing.pack(top))
    for folder, found in zip(folders, ask(*({"folder": str(folder)} for folder in folders)), strict=True):
        with pytest.raises(VerificationError) as error:
            SignedJob.decode((folder / JOB).read_bytes())
        expected = f"{folder}/job.bin: {error.value}".partition(", got")[0]
        assert found["verdict"] == "could not check"
        assert found["reason"].partition(", got")[0] == re.sub(r", such as [^,]*", "", expected)
        cases()


def test_draws_are_those_of_the_audit(runs: dict[str, Path], cases: CaseCounter) -> None:
    folder, samples = runs["logged"], [(sample, f"seed {sample} \u00fc") for sample in (1, 2, 5, 6, 7)]
    root = RunDirectory.open(folder).heads()[-1].head.run_root
    answers = ask(*({"folder": str(folder), "sample": sample, "seed": seed} for sample, seed in samples))
    for (sample, seed), found in zip(samples[:-1], answers[:-1], strict=True):
        assert found["wanted"] == list(draw_segments(6, sample, seed.encode(), root))
        assert found["due"] == found["steps"] == 4 * sample
        assert found["lines"] == audit(folder, "--sample", sample, "--seed", seed)["lines"]
        cases()
    assert (answers[-1]["verdict"], answers[-1]["reason"]) == ("asked", "expected a sample of 1 to 6 segments, got 7")


def test_late_data_get_the_words_of_the_audit(cases: CaseCounter) -> None:
    samples = ["completion_ids", "completion_mask", "num_items_in_batch"]
    kinds = [[], ["x", "a\u202e<b>"], samples, [*samples, "advantages"], [*samples, "prompt_ids", "advantages"]]
    states = [["w"], [SAMPLED, "w"], [SAMPLED, "model.rollouts.mean_reward_0_f", "model.rollouts.mean_reward_10_g h"]]
    asked = [*product(kinds, states, (None, True, False))]
    asked = [one for one in asked if SAMPLED in one[1] or one[2] is None]
    answers = ask(*({"late": late, "state": state, "sampled": sampled} for late, state, sampled in asked))
    for (late, state, sampled), found in zip(asked, answers, strict=True):
        program = SimpleNamespace(late_spec=lambda late=late: late, state_spec=lambda state=state: state)
        ids = None if sampled is None else {SAMPLED: identify(DType.F32, (), struct.pack("<f", sampled))}
        assert found.items() - late_words(program, ids).items() == {("milliseconds", found["milliseconds"])}  # type: ignore[arg-type]
        cases()


def test_a_replay_stops_when_it_is_told_to(runs: dict[str, Path]) -> None:
    found = ask(*({"folder": str(runs["exact"]), "budget": 100, "stop": stop} for stop in (1, 20, 60)))
    assert [(one["verdict"], one["told"]) for one in found] == [("stopped", 1), ("stopped", 20), ("stopped", 60)]


def test_a_file_that_changes_while_it_is_read_is_no_fraud(runs: dict[str, Path], cases: CaseCounter) -> None:
    folder, paths = runs["logged"], (DATA, RECORDS, INITIAL, "logs/000000000004.log")
    changes = [(path, reads) for path in paths for reads in range(0, 25, 3)]
    found = ask(*({"folder": str(folder), "segments": [0], "changes": one} for one in changes))
    assert {one["verdict"] for one in found} == {"agrees", "could not check"}
    assert any(one["reason"].startswith(f"{folder}: log of step 1: expected what was committed") for one in found[-9:])
    cases(len(found))


def test_a_replay_needs_no_more_memory_than_is_said(runs: dict[str, Path], tmp_path: Path, cases: CaseCounter) -> None:
    folders = [str(folder) for folder in runs.values()]
    limits = [limit for one in ask(*({"folder": folder} for folder in folders)) for limit in (one["memory"], 200_000)]
    found = ask(*({"folder": folders[n // 2], "limit": limit} for n, limit in enumerate(limits)))
    for enough, little in zip(found[::2], found[1::2], strict=True):
        assert (enough["verdict"], little["verdict"]) == ("agrees", "could not check")
        assert "expected work that fits into 200000 bytes, got more" in little["reason"]
        cases()
    body = (source(SourceKind.STATE, "w", DType.F32), counted((1 << 30,), offset=0, strides=(1,)), const(0))
    large = Inputs(Program(body, (committed("w", DType.F32, (), 0),)), {"w": torch.zeros(())}, {})
    make_run(tmp_path / "large", large)
    (refused,) = ask({"folder": str(tmp_path / "large")})
    assert re.search(r"expected a replay in at most 4294901760 bytes of memory, got one in 8\d{9}$", refused["reason"])


def mutated(draw: random.Random, content: bytes, start: int = 0) -> bytes:
    """A byte, a wide number, or a piece in another place; or an end cut off. start: what comes before stays."""
    found, kind = bytearray(content), draw.randrange(5)
    at = start + draw.randrange(min(len(found) - start, draw.choice((64, 512, 1 << 20))))
    number = draw.choice((0, 1, (1 << 64) - 1, 1 << 63, 1 << 40)).to_bytes(8, "big")
    moved = bytes(found[draw.randrange(len(found)) :][:16])
    change_ = [bytes([draw.randrange(256)]), number, number[::-1], moved, b""][kind][: len(found) - at]
    found[at : at + len(change_)] = change_
    return bytes(found[:at] if kind == 4 else found)


FILES = (JOB, PROGRAM, DATA, RECORDS, "heads", "logs", "checkpoints", "origins.json")


@pytest.mark.parametrize("count", [16, pytest.param(400, marks=pytest.mark.slow)])
def test_hostile_bytes_get_one_sentence(count: int, runs: dict[str, Path], tmp_path: Path, cases: CaseCounter) -> None:
    """Whatever bytes a file has: a verdict in one sentence, and that of the audit where it could not be checked."""
    draw, made = random.Random(64), []
    for number in range(count):
        folder = shutil.copytree(runs[draw.choice(("logged", "late"))], tmp_path / "hostile" / str(number))
        path = folder / FILES[number % len(FILES)]
        path = draw.choice(sorted(path.iterdir())) if path.is_dir() else path
        if path.exists():
            is_log = path.parent.name == "logs"
            content = mutated(draw, path.read_bytes(), 68 if is_log else 0)
            path.write_bytes(mended(content) if is_log else content)
            made.append(folder)
    for folder, found in zip(made, ask(*({"folder": str(one)} for one in made)), strict=True):
        assert found["verdict"] in ("agrees", "could not check", "fraud"), found
        assert found["milliseconds"] < 20_000
        assert "\n" not in found["reason"]
        if count < 100:
            assert found["verdict"] == audit(folder)["verdict"], (folder, found)
        cases()


# ------------------------------------------------------------------ packed bytes


def read(reader: str, items: list[tuple[bytes, int]]) -> list[str]:
    """What a reader finds in bytes, each with a size or a limit."""
    (answer,) = ask({"reader": reader, "items": [(b64encode(data).decode(), size) for data, size in items]})
    return list(answer["found"])


def texts(draw: random.Random) -> Iterator[bytes]:
    """Bytes that compress in different ways, of sizes at which formats change theirs."""
    words = [draw.randbytes(draw.randrange(3, 20)) for _ in range(30)]
    for size in (1, 2, 100, 255, 256, 1000, 5000, 65535, 65536):
        yield bytes(size)
        yield bytes(min(255, int(draw.expovariate(0.05))) for _ in range(size))
        yield draw.randbytes(size)
        yield b"".join(draw.choice(words) + bytes([draw.randrange(20)]) for _ in range(size // 5 + 1))[:size]


SKIPPABLE, FRAME = b"\x50\x2a\x4d\x18\x04\0\0\0text", b"\x28\xb5\x2f\xfd\x20\x64"
ENDLESS = b"\x22\x83\x02\x04\xf0\x03\0\x80" + bytes(5) + b"\x80", b"\0\xff\xff\xff\x54\x23\0\x34\x01"
"""Blocks whose Huffman weights, and whose sequences, end nowhere."""


def test_frames_are_those_of_zstandard(cases: CaseCounter) -> None:
    draw = random.Random(8878)
    made = [(zstandard.compress(plain, level), plain) for plain in texts(draw) for level in (1, 19)]
    for (_, plain), found in zip(made, read("frame", [(packed, len(plain)) for packed, plain in made]), strict=True):
        assert b64decode(found) == plain
        cases()
    (packed, plain), short, bomb = made[-1], zstandard.compress(bytes(100)), zstandard.compress(bytes(1 << 26))
    hostile = [
        packed[:-1],
        packed + b"x",
        packed + SKIPPABLE,
        packed * 2,
        short,
        short * 2,
        bomb,
        packed[:4],
        packed[4:],
    ]
    hostile += [FRAME + (len(one) << 3 | 5).to_bytes(3, "little") + one for one in ENDLESS]
    for found in read(
        "frame", [*((one, 65536) for one in hostile), (hostile[-1], 100), (hostile[-2], 100), (packed, 9)]
    ):
        assert found.startswith(("Error: ", "RangeError: ")), found
    window = b"\x28\xb5\x2f\xfd\0\xf8" + (500 << 3 | 1).to_bytes(3, "little") + bytes(range(250)) * 2
    assert b64decode(read("frame", [(window, 500)])[0]) == window[9:], "no memory is taken for a window of 2^41"
    changed = [(mutated(draw, packed, 4), len(plain)) for packed, plain in made[:64] for _ in range(6)]
    assert sum("Error: " in one for one in read("frame", changed)) > 100


def test_the_library_is_the_one_that_is_named() -> None:
    """Without the lines that are marked, and with two words, it is the file of its package."""
    head, _, rest = (ROOT / "checker" / "vendor" / "fzstd.js").read_text().partition("*/\n")
    own = re.sub(r".*// tiebreak\n", "", rest).replace("\nvar ZstdErrorCode", "\nexport var ZstdErrorCode")
    assert sha256((own + "export { Decompress };\n").encode()).hexdigest() in head


def test_msgpack_is_read_as_python_reads_it(cases: CaseCounter) -> None:
    draw = random.Random(9)
    numbers = (0, 1, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 64) - 1)

    def value(depth: int = 0) -> Any:
        kind = draw.randrange(4)
        if kind == 0 and depth < 4:
            return [value(depth + 1) for _ in range(draw.choice((0, 1, 3, 15, 16, 17)))]
        return draw.randbytes(draw.choice((0, 1, 20, 32, 255, 256, 300))) if kind == 1 else draw.choice(numbers)

    made = [packing.pack(value()) for _ in range(1500)]
    made += [mutated(draw, packed) or packed for packed in made]
    made += [b"\x91" * 12 + b"\0", b"\xff", b"\xc0", b"\xc3", b"\xa1a", b"\xa1\xff", b"\x80", b"\xca1234", b"\xd0\x80"]
    for packed, found in zip(made, read("msgpack", [(packed, 2048) for packed in made]), strict=True):
        try:
            packing.unpack(packed, 2048)
        except EncodingError:
            assert "expected " in found, packed.hex()
        else:
            assert found == "taken", packed.hex()
        cases()


# ------------------------------------------------------------------ the corpus


def stated(folder: Path, tmp_path: Path, *names: str) -> programs.CorpusStatement:
    """The statement on a corpus, as `tiebreak corpus check` reads it."""
    (answer,) = ask({"corpus": str(folder), **({"programs": names} if names else {})})
    assert answer["names"] == list(programs.names(folder))
    (tmp_path / "statement.json").write_text(answer["text"])
    statement, signers = programs.check(tmp_path / "statement.json", folder)
    assert [signer.hex() for signer in signers] == [answer["address"]]
    assert dict(statement.environment) == {"system": "node", "cpu": "any"}
    return statement


def test_programs_of_the_corpus_reach_their_roots_and_are_stated(tmp_path: Path) -> None:
    statement = stated(programs.CORPUS, tmp_path, "mlp", "every", "late")
    assert (sorted(statement.programs), statement.differing) == (["every", "late", "mlp"], [])


def test_a_program_that_differs_is_stated(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    for name in ("mlp", "every", "narrow"):
        shutil.copytree(programs.CORPUS / name, corpus / name)
    flip(corpus / "mlp" / programs.STATE)
    expected = corpus / "every" / programs.EXPECTED
    expected.write_text(re.sub(r'("run_root": ")[^"]*', lambda found: found[1] + "00" * 32, expected.read_text()))
    every, mlp = stated(corpus, tmp_path).differing
    assert mlp.problem.startswith("VerificationError: mlp: state.safetensors: expected root ")
    assert (mlp.root, every.root is None) == (None, False)


def test_hostile_files_of_a_corpus_get_one_sentence(tmp_path: Path, cases: CaseCounter) -> None:
    draw, asked = random.Random(31), list[Answer]()
    for number, file in enumerate((programs.PROGRAM, programs.STATE, programs.EXPECTED, programs.LOGS) * 12):
        folder = shutil.copytree(programs.CORPUS / "late", tmp_path / str(number) / "late")
        (folder / file).write_bytes(mutated(draw, (folder / file).read_bytes()))
        asked.append({"corpus": str(folder.parent)})
    for found in ask(*asked):
        assert found.get("verdict") == "could not check" or len(found["runs"]) == 1, found
        assert "\n" not in found.get("reason", "")
        cases()


@pytest.mark.slow
def test_the_whole_corpus_reaches_its_roots(tmp_path: Path) -> None:
    statement = stated(programs.CORPUS, tmp_path)
    assert (len(statement.computed), statement.differing) == (len(programs.names()), [])
