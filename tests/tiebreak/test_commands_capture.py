"""`tiebreak capture`: what it says, and what it refuses."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.tiebreak.parties import TASK, Commands, Parties
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training.bundle import MANIFEST, load_bundle
from tiebreak.api.training.reading import CHECKS
from tiebreak.api.training.runs import agree_on, open_run
from tiebreak.cli.capture import captured
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import EncodingError


@pytest.fixture
def task(tmp_path: Path) -> Path:
    (tmp_path / "task.py").write_text(TASK)
    return tmp_path / "task.py"


def test_capture_is_deterministic_and_prints_a_summary(
    task: Path, parties: Parties, tmp_path: Path, command: Commands
) -> None:
    out, err = command.printed("capture", task, "--output", tmp_path / "out")
    bundle = load_bundle(tmp_path / "out")
    assert bundle.roots() == load_bundle(parties.path("captured")).roots()
    assert err == "capturing small ...\n"
    shown = {line[:20].strip(): line[20:] for line in out.splitlines()}
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


def test_changing_the_model_changes_the_program_root_not_the_initial_state(
    task: Path, parties: Parties, tmp_path: Path, command: Commands
) -> None:
    first = load_bundle(parties.path("captured"))
    task.write_text(TASK.replace("nn.Dropout(0.2)", "nn.Dropout(0.3)"))
    told = command.tell("capture", task, "--steps", 9, "--output", tmp_path / "out")
    longer = load_bundle(tmp_path / "out")
    assert {name: told[name] for name in longer.roots()} == longer.roots()
    assert (told["steps"], told["instructions"]) == (9, len(longer.program.body))
    assert (first.steps, longer.steps) == (7, 9)
    assert first.roots()["initial_state_root"] == longer.roots()["initial_state_root"]
    assert first.roots()["program_root"] != longer.roots()["program_root"]


def test_an_operator_that_cannot_be_lowered_is_listed(task: Path, tmp_path: Path, command: Commands) -> None:
    task.write_text(TASK.replace("m(x), y)", "m(x) + torch.special.i0e(m(x)).mode(0).values, y)"))
    message = command("capture", task, "-o", tmp_path / "out", code=1)
    assert "ConfigurationError:" in message
    assert "special_i0e" in message
    assert "mode" in message
    assert not (tmp_path / "out").exists()


def test_a_captured_job_records_how_it_was_checked_against_pytorch(
    parties: Parties, tmp_path: Path, command: Commands
) -> None:
    checked, unchecked = parties.path("captured"), tmp_path / "unchecked"
    words = command("capture", parties.path("task.py"), "--check", "none", "--output", unchecked)
    assert "never compared with eager PyTorch" in words
    assert (load_bundle(checked).check, load_bundle(unchecked).check) == ("full", "none")
    assert load_bundle(checked).roots() == load_bundle(unchecked).roots()
    assert 'check"' not in (checked / MANIFEST).read_text()
    keys = {name: new_key() for name in ("client", "trainer")}
    sliced = tmp_path / "sliced"
    replace(load_bundle(checked), check="slice").save(sliced)
    for folder, kind in ((checked, "full"), (unchecked, "none"), (sliced, "slice")):
        run_folder = tmp_path / f"run-{folder.name}"
        agree_on(load_bundle(folder), run_folder, **keys, terms=Terms(), domain=OFF_CHAIN)
        assert open_run(run_folder).check == load_bundle(folder).check == kind
        assert CHECKS[kind] in command("show", "--long", run_folder)
    (unchecked / MANIFEST).write_text((unchecked / MANIFEST).read_text().replace('"none"', '"full"'))
    with pytest.raises(EncodingError, match="check: expected slice, none, or no such field, got 'full'"):
        load_bundle(unchecked)


def test_a_model_without_equal_layers_is_checked_whole(task: Path, tmp_path: Path, command: Commands) -> None:
    with pytest.warns(UserWarning, match="of at least 5 equal layers in a row"):
        command("capture", task, "--check", "slice", "--output", tmp_path / "out")
    assert load_bundle(tmp_path / "out").check == "full"


def test_capture_shows_its_status_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    terminal = Console(file=stream, force_terminal=True, width=80)
    monkeypatch.setattr("tiebreak.cli.capture.Console", lambda **_: terminal)
    monkeypatch.setattr("tiebreak.api.training.bundle.capture_bundle", lambda *_, **__: None)
    captured(SimpleNamespace(name="[name]"))  # type: ignore[arg-type]
    assert "capturing [name]" in stream.getvalue()
