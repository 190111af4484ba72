"""The conformance package: it reports every result that differs, and needs no torch."""

import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from conformance import signed, vectors
from conformance.__main__ import PROGRAMS, VECTORS, check, compare
from tests.source_tree import ROOT, committed_files

CHECKS = vectors.CHECKS | signed.CHECKS
RESULTS: dict[str, tuple[str | int, ...]] = {
    "scalars": ("add_f32_f32", "cases"),
    "transcendentals": ("sin", "digests"),
    "hardest": ("log", "cases"),
    "accumulators": ("finish", "cases"),
    "rounding": ("cases",),
    "instructions": ("cases", 3, "result"),
    "philox": ("shuffle",),
    "trees": ("records", 1, "digest"),
    "logs": ("logRoot",),
    "late": ("runRoot",),
    "seats": ("cases", 0, "seed"),
    "receipts": ("cases", 2, "signature"),
    "snapshots": ("cases", 4, "id"),
    "posts": ("complete", "signature"),
}
"""Where in each file a result ends."""
PARTS = ("conformance", "tiebreak/protocol", "tests/vectors", "corpus", "docs/SPEC.md", "LICENSE")
SIGNATURES = ("coincurve", "cryptography", "_cffi_backend", "cffi", "Crypto", "eth_hash", "msgpack")


def test_conformance_check_passes_on_every_vector_file(
    capfd: pytest.CaptureFixture[str], cases: Callable[[int], None]
) -> None:
    assert {path.stem for path in VECTORS.glob("*.json")} == set(CHECKS) == set(RESULTS)
    assert check(VECTORS)
    lines = capfd.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == list(CHECKS)
    cases(sum(int(line.split(": ")[1]) for line in lines))


@pytest.mark.parametrize("name", CHECKS)
def test_conformance_check_reports_a_differing_result(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    content = json.loads((VECTORS / f"{name}.json").read_text())
    at: Any = content
    *way, last = RESULTS[name]
    for key in way:
        at = at[key]
    at[last] = at[last][:-1] + format(int(at[last][-1], 16) ^ 1, "x")
    assert not compare(name, CHECKS[name](content))
    assert ": expected " in capfd.readouterr().out


def test_malformed_vector_file_fails_the_check_without_a_crash(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(VECTORS, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name, text in (("philox", "{}"), ("trees", "["), ("rounding", '{"count": 1, "cases": "0x00"}')):
        (tmp_path / f"{name}.json").write_text(text)
    assert not check(tmp_path)
    assert capfd.readouterr().out.count("expected a file as README.md of the vectors describes it") == 3


def _link(site: Path, *names: str) -> None:
    """Gives an environment some packages of this one, and nothing else of it."""
    for name in names:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        found = origin.parent if origin.name == "__init__.py" else origin
        for path in (found, found.with_name(f"{name}.libs"), *found.parent.glob(f"{name}-*.dist-info")):
            if path.exists():
                (site / path.name).symlink_to(path)


@pytest.mark.slow
def test_conformance_wheel_needs_only_numpy(tmp_path: Path) -> None:
    """Built from the committed files, in an environment without torch; what is signed needs its own libraries."""
    for path in committed_files():
        place = path.relative_to(ROOT).as_posix()
        if place.startswith(PARTS):
            target = tmp_path / "source" / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*pip, *build, str(tmp_path / "source" / "conformance")], check=True, capture_output=True)
    shutil.rmtree(tmp_path / "source")
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 600_000
    venv.create(tmp_path / "environment", symlinks=True)
    python, site = (
        tmp_path / "environment/bin/python",
        next((tmp_path / "environment").glob("lib/python*/site-packages")),
    )
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True)
    _link(site, "numpy")

    def run(*arguments: str, code: int = 0) -> list[str]:
        command = [str(tmp_path / "environment/bin/tiebreak-reference"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout.splitlines()

    for absent in ("torch", "tiebreak"):
        assert subprocess.run([python, "-Ic", f"import {absent}"], capture_output=True, check=False).returncode == 1
    note, *lines = run("check")
    assert note == f"not checked without coincurve ([signatures]): {', '.join(signed.CHECKS)}"
    assert [line.split(": ")[0] for line in lines] == list(vectors.CHECKS)
    assert [line.split(": ")[0] for line in run("corpus")] == list(PROGRAMS)
    run("export", "exported")
    expected = json.loads((tmp_path / "exported/corpus/mlp/expected.json").read_text())
    files = [f"exported/corpus/mlp/{name}" for name in ("program.tbp", "state.safetensors", "data.safetensors")]
    assert run("run", *files, "25", "5")[-1] == f"run {expected['run_root']}"
    assert run("run", files[0], files[0], files[2], "1", code=2) == []
    _link(site, *SIGNATURES)
    assert [line.split(": ")[0] for line in run("check", "exported/vectors")] == list(
        chain(vectors.CHECKS, signed.CHECKS)
    )
