"""Lines of code are counted by folder, and a folder over its budget fails."""

import subprocess
from pathlib import Path

import pytest

from scripts import lines


def repository(folder: Path, **files: int) -> Path:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for name, count in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n" * count)
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    return folder


def test_each_line_counts_once_and_only_code_counts(tmp_path: Path) -> None:
    root = repository(tmp_path, tiebreak__sim__a_py=3, tiebreak__sim__b_c=4, tiebreak__sim__d_json=100,
                      tiebreak__cli__e_py=5, tests__f_py=50, benchmarks__g_py=7)  # fmt: skip
    (root / "tiebreak" / "sim" / "untracked.py").write_text("x\n" * 1000)
    found = lines.count(root)
    assert found == dict.fromkeys(lines.BUDGETS, 0) | {"tiebreak/sim/": 7, "tiebreak/": 5, "benchmarks/": 7}


def test_a_folder_over_its_budget_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = repository(tmp_path, benchmarks__g_py=7)
    monkeypatch.setitem(lines.BUDGETS, "benchmarks/", 7)
    assert lines.main(root) == 0
    assert "over" not in capsys.readouterr().out
    monkeypatch.setitem(lines.BUDGETS, "benchmarks/", 6)
    assert lines.main(root) == 1
    assert "7 of      6 lines  over its budget" in capsys.readouterr().out
