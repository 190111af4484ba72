"""`tiebreak capture`: what it says, and what it refuses."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.tiebreak.parties import TASK
from tiebreak.api.bundle import MANIFEST, load_bundle
from tiebreak.api.keys import new_key
from tiebreak.api.runs import agree_on, open_run
from tiebreak.cli.capture import _size, _waiting
from tiebreak.cli.main import run, tiebreak
from tiebreak.engine.run.agreement import Terms
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.errors import EncodingError


def captured(folder: Path, name: str, *more: str) -> Path:
    output = folder / name
    assert run(tiebreak, ["capture", str(folder / "task.py"), "--output", str(output), *more]) == 0
    return output


def test_a_captured_job_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert shown["capture"].endswith(" s")
    assert shown["program root"] == bundle.program.root.hex()


def test_steps_and_the_model_change_what_they_should(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    first, longer = (load_bundle(captured(tmp_path, f"{n}", *more)) for n, more in enumerate(([], ["--steps", "9"])))
    assert (first.steps, longer.steps) == (7, 9)
    assert first.roots()["initial_state_root"] == longer.roots()["initial_state_root"]
    (tmp_path / "task.py").write_text(TASK.replace("nn.Dropout(0.2)", "nn.Dropout(0.3)"))
    changed = load_bundle(captured(tmp_path, "changed"))
    assert changed.roots()["program_root"] != first.roots()["program_root"]


def test_a_job_that_was_not_checked_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "task.py").write_text(TASK)
    checked, unchecked = captured(tmp_path, "checked"), captured(tmp_path, "unchecked", "--unchecked")
    assert "never compared with eager PyTorch" in capsys.readouterr().out
    assert (load_bundle(checked).checked, load_bundle(unchecked).checked) == (True, False)
    assert load_bundle(checked).roots() == load_bundle(unchecked).roots()
    assert "unchecked" not in (checked / MANIFEST).read_text()
    keys = {name: new_key() for name in ("client", "trainer")}
    domain = OFF_CHAIN
    for folder in (checked, unchecked):
        run_folder = folder.parent / f"run-{folder.name}"
        agree_on(load_bundle(folder), run_folder, **keys, terms=Terms(), domain=domain)
        assert open_run(run_folder).checked == (folder == checked)
    (unchecked / MANIFEST).write_text((unchecked / MANIFEST).read_text().replace("true", "false"))
    with pytest.raises(EncodingError, match="unchecked: expected true, or no such field, got 'False'"):
        load_bundle(unchecked)


def test_an_output_that_is_there_is_refused_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "task.py").write_text("raise RuntimeError('this was run')")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert run(tiebreak, ["capture", str(tmp_path / "task.py"), "--output", str(tmp_path / "full")]) == 1
    expected = (
        f"ConfigurationError: expected a new or empty folder, got {tmp_path / 'full'}; choose another or empty it"
    )
    assert capsys.readouterr().err.strip() == expected


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
