"""`tiebreak capture`: what it says, and when it takes a step from the cache."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.tiebreak.parties import TASK
from tiebreak.api.bundle import load_bundle
from tiebreak.cli.capture import _size, _waiting
from tiebreak.cli.main import run, tiebreak


def captured(folder: Path, name: str, *more: str) -> Path:
    output = folder / name
    assert run(tiebreak, ["capture", str(folder / "task.py"), "--output", str(output), *more]) == 0
    return output


def test_a_captured_job_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIEBREAK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "task.py").write_text(TASK)
    bundle = load_bundle(captured(tmp_path, "first"))
    printed = capsys.readouterr()
    assert printed.err == "capturing small ...\n"
    shown = {line[:20].strip(): line[20:] for line in printed.out.splitlines()}
    assert shown["job"] == "small"
    assert shown["program"] == f"{len(bundle.program.body)} instructions, {len(bundle.state)} state entries"
    kinds = shown["instructions"].split(", ")
    assert sum(int(kind.split()[0]) for kind in kinds) == len(bundle.program.body)
    numbers = 6 * 8 + 8 + 8 * 3 + 3
    # float32 weights and momenta and three losses; 20 examples of 6 numbers and a label, 7 rates, a seed
    assert shown["model"] == f"{numbers} numbers; state {numbers * 8 + 12} B, data {20 * (24 + 8) + 7 * 4 + 8} B"
    assert "operations, about " in shown["a step"]
    assert " s, kept as " in shown["capture"]
    assert shown["program root"] == bundle.program.root.hex()


def test_the_cache_and_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIEBREAK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "task.py").write_text(TASK)
    roots = []
    for name, options, words in (
        ("anew", ["--no-cache"], "captured anew"),
        ("first", [], "kept as "),
        ("second", [], "cached as "),
        ("longer", ["--steps", "9"], "cached as "),
    ):
        roots.append(load_bundle(captured(tmp_path, name, *options)).roots())
        assert words in capsys.readouterr().out
    assert roots[0] == roots[1] == roots[2] != roots[3]
    (tmp_path / "task.py").write_text(TASK.replace("nn.Dropout(0.2)", "nn.Dropout(0.3)"))
    changed = load_bundle(captured(tmp_path, "changed"))
    assert "kept as " in capsys.readouterr().out
    assert changed.roots()["program_root"] != roots[0]["program_root"]
    assert len(list((tmp_path / "cache" / "capture").iterdir())) == 2


def test_a_terminal_sees_that_something_happens() -> None:
    stream = io.StringIO()
    with _waiting(Console(file=stream, force_terminal=True, width=80), "capturing [name]"):
        pass
    assert "capturing [name]" in stream.getvalue()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (3 << 29, "1.5 GiB"), (1 << 50, "1.02e+03 TiB")],
)
def test_sizes(count: int, text: str) -> None:
    assert _size(count) == text
