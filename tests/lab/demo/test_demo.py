"""The demo at a few steps a job: the same path, the same cheats, the same settlement, the same report."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from tests.tiebreak.parties import Commands
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.lab.demo.results import DemoResult, Loser
from tiebreak.lab.demo.run import MARKER, digits_cheats, run_demo
from tiebreak.protocol.program.isa import Opcode

pytestmark = pytest.mark.slow
STEPS = 16
"""The last checkpoint but one is of step 12."""
Played = tuple[DemoResult, Path, str]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    torch.set_num_threads(1)
    folder, text = tmp_path_factory.mktemp("demo") / "out", io.StringIO()
    return run_demo(folder, Console(file=text, width=150), steps=STEPS), folder, text.getvalue()


def test_the_demo_succeeds_and_both_jobs_learn(played: Played) -> None:
    result, _, text = played
    assert result.succeeded
    assert [job.name for job in result.jobs] == ["digits", "text"]
    for job in result.jobs:
        assert job.steps == len(job.losses) == STEPS
        assert sum(job.losses[-3:]) < 0.95 * sum(job.losses[:3])
        assert sum(row.elements for row in job.rounding) > 1_000_000
    for number, word in enumerate(("Agree", "Train", "Audit", "Cheat", "Show"), start=1):
        assert f"\n{number}. {word}" in text
    assert "ANOTHER RUN ROOT" not in text
    words = " ".join(text.split())  # lines are broken at the console's width
    assert words.count("trainer loses (referee), trainer loses (contract)") == 4
    assert words.count("challenger loses (referee), challenger loses (contract)") == 1


def test_every_cheat_is_convicted_at_the_number_it_changed(played: Played) -> None:
    result, folder, _ = played
    run_directory = RunDirectory.open(folder / "runs" / "digits")
    cheats = digits_cheats(SimpleNamespace(run=run_directory))  # type: ignore[arg-type]
    assert len(cheats) == 4
    for (tampered, cheat), found in zip(cheats, result.disputes[:4], strict=True):
        assert (found.title, found.tampered) == (cheat.name, tampered)
        assert (found.step, found.instruction) == (cheat.step, cheat.leaf)
        is_commit = cheat.leaf >= 1 << run_directory.program.half_depth
        assert found.element == (None if is_commit else cheat.element)
        assert found.committed != found.correct
        assert not found.honest_trainer
        assert found.python is found.contract is Loser.TRAINER
        assert (found.trainer_delta, found.challenger_delta) == (-(10**18), 10**18 // 2)
        assert found.just
        assert found.gas is not None
        assert found.gas > 0 < found.bytes
        assert found.walk[0].tree == "run"
    trees = [found.walk[-1].tree for found in result.disputes[:4]]
    assert trees[2:] == ["values", "terms"], "a commit ends at its id, a long sum at its terms"
    operations = [found.operation.split()[0] for found in result.disputes[:4]]
    assert operations == ["gather", "gather", "commit", "reduce"]
    assert run_directory.program.body[result.disputes[3].instruction or 0].opcode == Opcode.REDUCE


def test_the_false_challenge_pays_the_trainer(played: Played) -> None:
    false = played[0].disputes[4]
    assert len(played[0].disputes) == 5
    assert false.honest_trainer
    assert false.python is false.contract is Loser.CHALLENGER
    assert (false.trainer_delta, false.challenger_delta) == (10**17 // 2, -(10**17)), "half burns"


def test_the_demo_writes_its_report_in_three_files(played: Played) -> None:
    result, folder, text = played
    assert json.loads((folder / "result.json").read_text()) == json.loads(result.to_json())
    for name in ("report.html", "report.md", "result.json"):
        assert (folder / name).stat().st_size > 2000
        assert str(folder / name) in text.replace("\n", "")
    page = (folder / "report.html").read_text()
    assert result.jobs[0].run_root[:8] in page
    assert not re.search(r"(src|href)=[\"']https?:", page), "the page stands alone"


def test_the_demo_refuses_to_empty_another_folder(played: Played, tmp_path: Path, command: Commands) -> None:
    assert (played[1] / MARKER).exists()
    (tmp_path / "thesis.tex").write_text("years")
    error = command.error("demo", "--output", tmp_path)
    assert error.startswith("ConfigurationError: expected a new or empty folder")
    assert (tmp_path / "thesis.tex").read_text() == "years"


def test_the_exit_code_tells_whether_the_demo_succeeded(
    played: Played, monkeypatch: pytest.MonkeyPatch, command: Commands
) -> None:
    right = played[0]
    lost = replace(right.disputes[0], contract=Loser.CHALLENGER)
    wrong = replace(right, disputes=(lost, *right.disputes[1:]))
    message = "DemoFailure: an audit disagreed or a game was decided for the wrong side; see the report\n"
    for result, code, said in ((right, 0, ""), (wrong, 2, message)):
        monkeypatch.setattr("tiebreak.lab.demo.run.run_demo", lambda *_, result=result, **_options: result)
        assert command.printed("demo", code=code)[1] == said
