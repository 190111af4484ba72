"""The second implementation, `recheck/`: written in C from SPEC.md alone, it must agree with all that is checked in.

Built here with sanitizers: an access outside an object or an undefined operation ends it with another status.
"""

import gzip
import json
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import pytest

from conformance.run import lines, opened
from tests.golden.bundle import FOLDER, TINY, load
from tests.protocol.logged import entries, plain, plain_step
from tests.protocol.programs import reads_late
from tests.vectors import late
from tiebreak.api.corpus import programs
from tiebreak.engine.logged.encoding import decode_sparse
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.program.program import Program, ProgramLimits
from tiebreak.protocol.program.rounding import Direction, StepLog, sum_kind

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = 300
RANGES = ProgramLimits(value_elements=1 << 40, total_elements=1 << 60, total_terms=1 << 92)
"""Those of the specification, without what this machine could run."""
CAN_BUILD = shutil.which("cc") and shutil.which("make")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_BUILD, reason="needs a C compiler")]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `recheck`, `vectors` and `fuzz`, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("recheck")
    targets = [f"BUILD={folder}", *(str(folder / name) for name in ("recheck", "vectors", "fuzz"))]
    subprocess.run(["make", "-s", "-C", "recheck", *targets], cwd=ROOT, check=True)
    return folder


def _run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _inputs(name: str, build: Path) -> tuple[Path, Path, Path]:
    program = build / f"{name}.tbp"
    program.write_bytes(gzip.decompress((FOLDER / name / "program.gz").read_bytes()))
    return program, FOLDER / name / "state.safetensors", FOLDER / name / "data.safetensors"


def _roots(output: str) -> tuple[dict[str, str], dict[int, tuple[str, int]]]:
    """The roots by name, and (state root, loss bits) by step, of what `recheck run` prints."""
    lines = [line.split() for line in output.splitlines()]
    steps = {int(line[1]): (line[5], int(line[3], 16)) for line in lines if line[0] == "step"}
    return {line[0]: line[1] for line in lines if line[0] != "step"}, steps


def test_c_recheck_agrees_with_all_test_vectors(build: Path) -> None:
    found = {
        name: int(count)
        for name, count in (line.split(": ") for line in _run(build / "vectors", "tests/vectors").splitlines())
    }
    scalars = json.loads((ROOT / "tests/vectors/scalars.json").read_text())
    bulk = json.loads((ROOT / "tests/vectors/transcendentals.json").read_text())
    assert found["scalars"] == sum(scalars[name]["count"] for name in scalars["names"])
    assert found["transcendentals"] == bulk["cases"] * len(bulk["names"])
    for name in ("rounding", "instructions", "snapshots", "seats", "receipts", "posts"):
        assert found[name] == json.loads((ROOT / f"tests/vectors/{name}.json").read_text())["count"]
    snapshots = json.loads((ROOT / "tests/vectors/snapshots.json").read_text())
    changes = [len(bytes.fromhex(game["changes"][2:])) // 12 + len(game["states"]) for game in snapshots["entered"]]
    assert found["entered snapshots"] == len(snapshots["refused"]) + sum(changes)
    late = json.loads((ROOT / "tests/vectors/late.json").read_text())
    cases = (late["programs"], late["openings"], late["refused"], late["game"]["proofs"])
    assert found["late"] == sum(map(len, cases)) > 50
    others = {"hardest", "accumulators", "refused accumulators", "philox", "trees", "logs", "blobs"}
    assert all(found[name] > 0 for name in others)


def _plain_logs(tolerances: int, steps: Sequence[Sequence[tuple[int, int, int]]]) -> bytes:
    """A plain log file of (value, element, code) in each step, whether or not they can be entries."""
    return struct.pack(">I", tolerances) + b"".join(map(plain_step, steps))


@pytest.mark.parametrize("name", programs.names())
def test_c_recheck_reproduces_the_corpus_roots(name: str, build: Path) -> None:
    """Each program reaches its roots and records; of policy `logged`, along its logs in their plain form."""
    bundle = load(name)
    expected = bundle.expected
    terms: list[object] = [expected.steps, expected.checkpoint_interval, expected.precision]
    if expected.tolerances:
        logs = [decode_sparse(log, bundle.program, step) for step, log in enumerate(bundle.logs(), 1)]
        terms.append(build / f"{name}.logs")
        (build / f"{name}.logs").write_bytes(plain(expected.tolerances, logs))
    roots, steps = _roots(_run(build / "recheck", "run", *_inputs(name, build), *terms))
    assert roots == {
        "program": expected.program_root,
        "state": expected.initial_state_root,
        "data": expected.data_root,
        "run": expected.run_root,
    }
    assert len(steps) == expected.steps
    for step, state_root, loss in expected.records:
        assert steps[step] == (state_root, loss)


@pytest.mark.parametrize("name", TINY)
def test_c_recheck_and_python_reference_print_the_same_lines(name: str, build: Path) -> None:
    """The roots of all values of each step, which no golden run holds."""
    files = _inputs(name, build)
    expected = _run(build / "recheck", "run", *files, 3, 2, 32)
    assert _run(sys.executable, "-m", "conformance", "run", *files, 3, 2, 32) == expected
    assert expected.count("values") == 3


def test_c_recheck_and_python_agree_on_logged_runs(build: Path) -> None:
    """Along drawn logs, with the widest tolerances; codes have an effect, so the states are not those without."""
    draw, program, precision = random.Random(17), load("mlp").program, 17
    sums = [(number, i.numel) for number, i in enumerate(program.body) if sum_kind(i) is not None]
    steps = [
        [(value, at, draw.choice((1, 2))) for value, numel in sums for at in range(numel) if draw.random() < 0.3]
        for _ in range(3)
    ]
    path = build / "logs"
    path.write_bytes(_plain_logs(0x020202, steps))
    files = (*_inputs("mlp", build), 3, 2, precision)
    found = _run(build / "recheck", "run", *files, path)
    assert _run(sys.executable, "-m", "conformance", "run", *files, path) == found
    logged, exact = (_roots(output)[1] for output in (found, _run(build / "recheck", "run", *files)))
    assert len(logged) == 3
    assert all(logged[step][0] != exact[step][0] for step in logged)


SUM = next(n for n, i in enumerate(load("mlp").program.body) if sum_kind(i) is not None)
OTHER = next(n for n, i in enumerate(load("mlp").program.body) if sum_kind(i) is None)
ENTRY = (SUM, 0, 1)
REFUSED_LOGS = {
    "a code of 3": (0, [[(SUM, 0, 3)], []]),
    "a code of 0": (0, [[(SUM, 0, 0)], []]),
    "no logged sum": (0, [[(OTHER, 0, 1)], []]),
    "no instruction": (0, [[(1 << 20, 0, 1)], []]),
    "an element beyond": (0, [[(SUM, load("mlp").program.body[SUM].numel, 1)], []]),
    "an element twice": (0, [[ENTRY, ENTRY], []]),
    "one step": (0, [[ENTRY]]),
    "three steps": (0, [[ENTRY], [], []]),
    "a tolerance of 1": (0x000100, [[], []]),
    "a tolerance of 65": (0x410000, [[], []]),
    "a fourth tolerance": (0x02000000, [[], []]),
}


@pytest.mark.parametrize("name", REFUSED_LOGS)
def test_c_recheck_and_python_refuse_the_same_logs(name: str, build: Path) -> None:
    tolerances, steps = REFUSED_LOGS[name]
    path = build / "logs"
    path.write_bytes(_plain_logs(tolerances, steps))
    for command in ([build / "recheck"], [sys.executable, "-m", "conformance"]):
        arguments = [*command, "run", *_inputs("mlp", build), 2, 2, 32, path]
        done = subprocess.run([str(part) for part in arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr[:9]) == (2, "refused: ")


def _instructions(program: bytes) -> list[bytearray]:
    place, found = 16, []
    while place < len(program):
        (length,) = struct.unpack_from(">I", program, place)
        found.append(bytearray(program[place + 4 : place + 4 + length]))
        place += 4 + length
    return found


def _join(head: bytes, instructions: list[bytearray]) -> bytes:
    return head + b"".join(struct.pack(">I", len(i)) + bytes(i) for i in instructions)


def _wide(draw: random.Random, i: bytearray) -> None:
    place = 6 + 8 * draw.randrange(max(1, (len(i) - 6) // 8))
    number = draw.choice([0, 1, -1, 2, 3, 2**40, 2**40 + 1, 2**32, -(2**63), 2**63 - 1, draw.randrange(-8, 8)])
    i[place : place + 8] = struct.pack(">q", number)


def _byte(draw: random.Random, i: bytearray) -> None:
    i[draw.randrange(len(i))] = draw.randrange(256)


def _field(draw: random.Random, i: bytearray) -> None:
    i[draw.randrange(6)] = draw.randrange(12)


def _step(draw: random.Random, i: bytearray) -> None:
    place = draw.randrange(len(i))
    i[place] = (i[place] + draw.choice([1, 255])) % 256


def _end(draw: random.Random, i: bytearray) -> None:
    i[-draw.randrange(1, 9) :] = bytes(draw.randrange(3) for _ in range(draw.randrange(9)))


CHANGES: tuple[Callable[[random.Random, bytearray], None], ...] = (_wide, _byte, _field, _step, _end)


def _mutant(draw: random.Random, program: bytes) -> bytes:
    instructions = _instructions(program)
    for _ in range(draw.choice([1, 1, 2])):
        k, j = draw.randrange(len(instructions)), draw.randrange(len(instructions))
        change = draw.randrange(len(CHANGES) + 1)
        if change == len(CHANGES):
            instructions[k] = bytearray(instructions[j])
        else:
            CHANGES[change](draw, instructions[k])
    return _join(program[:16], instructions)


def _root_or_none(encoded: bytes) -> str | None:
    try:
        return Program.decode(encoded, RANGES).root.hex()
    except VerificationError:
        return None


def test_c_recheck_and_python_accept_the_same_programs(build: Path) -> None:
    draw = random.Random(42)
    sources = [_inputs(name, build)[0].read_bytes() for name in ("mlp", "mixed", "resnet")]
    sources += [late.program().encode(), _reads_late(draw, load("mlp").program).encode()]
    mutants = [_mutant(draw, draw.choice(sources)) for _ in range(MUTANTS)]
    paths = [build / f"mutant-{number}" for number in range(MUTANTS)]
    for path, mutant in zip(paths, mutants, strict=True):
        path.write_bytes(mutant)
    expected = [_root_or_none(mutant) for mutant in mutants]
    found = _run(build / "recheck", "check", *paths).splitlines()
    assert [None if line.startswith("refused: ") else line for line in found] == expected
    assert MUTANTS // 50 < sum(root is not None for root in expected) < MUTANTS // 2


@pytest.mark.parametrize("precision", [16, 31])
def test_c_recheck_and_python_compute_the_same_steps(precision: int, build: Path) -> None:
    """Mutants that are accepted compute what nobody captured; here at other precisions than the golden runs."""
    draw, bundle = random.Random(precision), load("mlp")
    path, *tensors = _inputs("mlp", build)
    ran = 0
    while ran < 4:
        mutant = _mutant(draw, path.read_bytes()) if ran else path.read_bytes()
        if _root_or_none(mutant) is None:
            continue
        program = Program.decode(mutant, RANGES)
        if program.data_spec() != bundle.program.data_spec() or program.state_spec() != bundle.program.state_spec():
            continue
        (build / "mutant.tbp").write_bytes(mutant)
        files = (build / "mutant.tbp", *tensors)
        expected = list(lines(opened(*files, 1, precision), 1, 1))
        assert _run(build / "recheck", "run", *files, 1, 1, precision).splitlines() == expected
        ran += 1


def _reads_late(draw: random.Random, program: Program) -> Program:
    """The program with some of its data late."""
    names = list(program.data_spec())
    return reads_late(program, draw.sample(names, draw.randrange(1, len(names) + 1)))


def _written(path: Path, tensors: Mapping[str, bytes]) -> Path:
    """A safetensors file, as far as either implementation reads it."""
    ends = list(accumulate(map(len, tensors.values()), initial=0))
    header = {name: {"data_offsets": ends[k : k + 2]} for k, name in enumerate(tensors)}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))
    return path


@pytest.mark.parametrize("name", ["mlp", "every"])
def test_c_recheck_and_python_agree_on_programs_with_late_data(name: str, build: Path) -> None:
    """Programs and their mutants with some data late, along drawn logs."""
    draw, bundle, data, ran = random.Random(name), load(name), load(name).data(), 0
    _, state, _ = _inputs(name, build)
    while ran < 6:
        encoded = _reads_late(draw, bundle.program).encode()
        mutant = _mutant(draw, encoded) if ran % 2 else encoded
        if _root_or_none(mutant) is None:
            continue
        program, precision, steps = Program.decode(mutant, RANGES), draw.choice((16, 32)), 2
        known = bundle.program.data_spec()
        specs = (program.data_spec(), program.late_spec())
        if not specs[1] or any(known.get(name) != kind for spec in specs for name, kind in spec.items()):
            continue
        sums = [(n, i.numel) for n, i in enumerate(program.body) if sum_kind(i) is not None]
        logs = [
            StepLog(
                {n: entries({draw.randrange(numel): Direction.UP}) for n, numel in sums if draw.randrange(2)},
                {name: draw.choice((data[name], draw.randbytes(len(data[name])))) for name in specs[1]},
            )
            for _ in range(steps)
        ]
        paths = [build / f"late.{end}" for end in ("tbp", "logs")]
        for path, content in zip(paths, (mutant, plain(draw.choice((0, 0x020202)), logs)), strict=True):
            path.write_bytes(content)
        files = (paths[0], state, _written(build / "late.data", {name: data[name] for name in specs[0]}))
        expected = list(lines(opened(*files, steps, precision, paths[1]), steps, 1))
        assert _run(build / "recheck", "run", *files, steps, 1, precision, paths[1]).splitlines() == expected
        ran += 1
    for command in ([build / "recheck"], [sys.executable, "-m", "conformance"]):
        without = [str(part) for part in (*command, "run", *files, steps, 1, precision)]
        assert subprocess.run(without, cwd=ROOT, capture_output=True, check=False).returncode == 2


def test_c_recheck_survives_hostile_bytes(build: Path) -> None:
    """Mutated bytes are refused or taken; nothing is read or written outside its object."""
    vectors = [ROOT / f"tests/vectors/{name}.json" for name in ("posts", "snapshots", "late")]
    lines = _run(build / "fuzz", 6, 1, *_inputs("mlp", build), *vectors).splitlines()
    names = ["programs", "states", "data", "logs", "posts", "snapshots", "late data"]
    assert [line.split(":")[0] for line in lines] == names
    for line in lines:
        tried, taken = (int(part.split()[0]) for part in line.split(": ")[1].split(", "))
        assert tried > taken > 0, line
