"""Benchmarks write results where the user says, and the tables in docs/ are those of the committed results."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks import board, table
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.roots import COMPUTED, JOBS, STEPS, Job, made, records_of
from benchmarks.gpu.slices import SLICES
from benchmarks.gpu.workloads import FULL
from benchmarks.pages import BLOCK, DOCS, PAGES, filled
from benchmarks.table import RESULTS, Row, publish, read, show, write
from scripts import lines
from tests.parts import slow_except
from tests.waiting import until
from tiebreak.engine.arithmetic import Arithmetic


def row(case: str, value: float, metric: str = "a step") -> Row:
    return Row(metric=metric, case=case, value=value, unit="s")


def test_only_the_commit_flag_writes_results_and_keeps_other_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    publish("board", [row("one", 1.0), row("two", 2.0), row("two", 7.0, "bytes")], folder=results)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(board, "measure", lambda: {"settle": 5})
    monkeypatch.setattr(table, "RESULTS", results)
    publish("board", [row("three", 3.0), row("two", 20.0)], folder=results)
    expected = [row("one", 1.0), row("two", 20.0), row("two", 7.0, "bytes"), row("three", 3.0)]
    assert read(results / "board.json") == expected
    for arguments, cases in (([], []), (["--commit"], ["board"])):
        done = CliRunner().invoke(board.main, arguments)
        assert done.exit_code == 0, done.output
        assert [r.case for r in read(results / "board.json")] == [*(r.case for r in expected), *cases]
    assert [r.case for r in read(tmp_path / table.OUTPUT.name / "board.json")] == ["board"]


@pytest.mark.parametrize(
    "name", [path.stem for path in sorted(RESULTS.glob("*.json")) if path.stem not in ("simulate", "rough")]
)
def test_committed_results_have_one_value_per_metric_and_case(name: str) -> None:
    rows = read(RESULTS / f"{name}.json")
    assert len({(r.metric, r.case) for r in rows}) == len(rows) > 0


@pytest.mark.parametrize("name", slow_except(PAGES, *(name for name in PAGES if name != "economics.md")))
def test_the_tables_of_a_page_are_up_to_date(name: str) -> None:
    text = (DOCS / name).read_text("utf-8")
    assert BLOCK.search(text)
    assert filled(text) == text, "run python -m benchmarks.pages"


@pytest.mark.parametrize(("budget", "said"), [(3, "3 of       3 lines"), (2, "3 of       2 lines of code  over")])
def test_lines_of_code_over_the_budget_of_an_area_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], budget: int, said: str
) -> None:
    """Comments, docstrings and blank lines are free; only files that git tracks count, each in its own area."""
    source = '"""Docs\n\nmore."""\n\n# why\nx = [\n    1,  # one\n]\n"""A string that says what x is."""\n'
    names = {"tiebreak/lab/a.py": source, "tiebreak/b.py": "", "tiebreak/d.c": "x\n" * 4, "benchmarks/e.py": "f'{1}'\n"}
    names |= {
        "tests/f.py": "\n" * 50,
        "checker/g.js": "/** Why.\n * And. */\nx();\n// y\n",
        "checker/vendor/h.js": "x();\n",
    }
    for name, text in names.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "tiebreak" / "untracked.py").write_text("x\n" * 1000)
    assert lines.count(tmp_path) == ({"core": 0, "lab": 3, "benchmarks": 1, "tests": 0, "page": 1}, 4)
    monkeypatch.setitem(lines.BUDGETS, "lab", budget)
    assert lines.main(tmp_path) == (budget < 3)
    assert said in capsys.readouterr().out


def test_gpu_slices_resume_with_untried_ones(tmp_path: Path) -> None:
    """Then come those that failed, then those measured from other sources. An interrupted slice counts as not tried."""
    files: dict[str, tuple[str, dict[str, object]]] = {
        "done": ("now", {"finished": True}),
        "older": ("before", {"finished": True}),
        "broken": ("now", {"finished": False, "problem": "exit code 1"}),
        "killed": ("now", {"finished": False}),
    }
    for name, (digest, more) in files.items():
        write(name, [], "", environment={"sources": digest}, folder=tmp_path, **more)
    states = {name: gpu.state_of(tmp_path, name, "now") for name in (*files, "new")}
    assert list(states.values()) == ["done", "of other sources", "failed", "interrupted", "not tried"]
    assert gpu.in_order(states) == ["killed", "new", "broken", "older"]
    assert set(states.values()) == set(gpu.STATES)


def test_gpu_predictions_are_shown_beside_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    show("gpt2", [row("gpt2", 3.25), row("gpt2", 7.5, "peak")], predicted={"gpt2: a step": 2.75})
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [each for each in cells if each] == [
        ["a step", "gpt2", "3.25", "2.75", "s", ""], ["peak", "gpt2", "7.5", "", "s", ""],
    ]  # fmt: skip


def test_slices_of_a_gpu_name_functions_and_workloads_that_exist() -> None:
    assert len({each.name for each in SLICES}) == len(SLICES) > 10
    for each in SLICES:
        module, _, function = each.function.partition(":")
        assert callable(getattr(import_module(f"benchmarks.gpu.{module}"), function))
        assert each.workload in {"", *FULL}


def test_random_job_data_is_the_same_on_every_machine() -> None:
    """Philox's raw integers, by NumPy; the values were computed once and are pinned."""
    uniform = made({"uniform": 0.5, "bits": 24}, torch.float32, (3,), 7)
    whole = made({"below": 10}, torch.int64, (2, 2), 7)
    assert uniform.tolist() == [0.3720734119415283, -0.2046346664428711, -0.07990235090255737]
    assert whole.tolist() == [[2, 5], [0, 2]]
    short = made({"uniform": 2.0**-5, "bits": 8}, torch.float32, (1000,), 1)
    assert torch.equal(short, short.bfloat16().float())
    assert made({"filled": 1.0}, torch.float32, (), 0) == 1


@pytest.mark.parametrize(
    "name", slow_except(sorted(path.name for path in JOBS.iterdir()), "gpt2-small", nightly=("resnet-50-224",))
)
def test_the_cpu_computes_the_committed_records(name: str) -> None:
    """Of the first step, or of three; the others, and ResNet-50 on larger images, take a CPU minutes."""
    job = Job.decode((JOBS / name).read_bytes())
    assert max(job.records) == COMPUTED.get(name, STEPS)
    last = 3 if name == "gpt2-small" else 1
    assert dict(records_of(job, Arithmetic(), last)) == {
        step: job.records[step] for step in job.records if step <= last
    }


@pytest.mark.slow
def test_killed_measurement_keeps_its_rows_and_is_queued_again(tmp_path: Path) -> None:
    """Its slice ends with it and keeps its rows; another slice is not touched by that."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--output", str(tmp_path)]
    folder = tmp_path / "gpu" / "trial-on-a-CPU"
    process = subprocess.Popen([*command, "gpt2-1024"], stdout=subprocess.DEVNULL)
    try:
        until(lambda: bool(gpu.held(folder, "gpt2-1024").get("rows")), 300)
    finally:
        process.kill()
        process.wait()
    until(lambda: not any(str(folder) in path.read_text() for path in Path("/proc").glob("[0-9]*/cmdline")))
    assert gpu.state_of(folder, "gpt2-1024", gpu.sources()) == "interrupted"
    document = gpu.held(folder, "gpt2-1024")
    assert document["predicted"]["gpt2-1024: exact by graphs: a step"] > 0
    assert document["rows"][0]["metric"] == "steps known of a CPU"
    done = subprocess.run([*command, "hostile"], capture_output=True, text=True, check=True)
    assert "hostile: done: 2 rows in " in done.stdout
    listed = CliRunner().invoke(gpu.main, ["--list", "--output", str(tmp_path)])
    assert listed.exit_code == 0, listed.output
    assert "next: products, gpt2-1024, resnet-50-224\n" in listed.output
    assert json.loads((folder / "hostile.json").read_text())["finished"]
