"""The examples run as they stand, scripts at a reduced size; links in the docs lead somewhere."""

import ast
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient

import tiebreak as package
from tests.source_tree import ROOT
from tiebreak.api.training.bundle import load_bundle
from tiebreak.cli.main import run, tiebreak

EXAMPLES = ROOT / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reproducible_example_gives_one_digest_for_any_thread_count(capsys: pytest.CaptureFixture[str]) -> None:
    digests = [example("reproducible").main(["--steps", "10", "--threads", threads]) for threads in ("1", "2")]
    torch.set_num_threads(1)
    assert digests[0] == digests[1]
    assert capsys.readouterr().out.splitlines()[-1] == f"digest   {digests[0]}"


@pytest.mark.slow
def test_the_resnet_example_trains_and_reuses_a_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--directory", str(tmp_path / "run"), "--steps", "12", "--channels", "4", "--blocks", "1"]
    made = example("resnet_on_digits").main(arguments)
    assert made.finished
    assert made.losses[-1] < made.losses[0]
    assert f"run root {made.root}" in capsys.readouterr().out
    assert example("resnet_on_digits").main(arguments).root == made.root, "run again, it is there already"


def cells(name: str) -> list[Any]:
    """The code of a notebook, cell by cell, after the one that installs. Raises if it is not one that Jupyter opens."""
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code), f"{name}: strip its outputs"
    assert [cell.metadata.get("tags") == ["install"] for cell in code] == [True] + [False] * (len(code) - 1)
    assert re.fullmatch(r'%pip install -q "\.\.\[\w+\]"', code[0].source)
    return [cell.source for cell in code[1:]]


@pytest.mark.parametrize("name", ["check", "train"])
def test_a_notebook_uses_public_names_only_and_shows_its_pictures(name: str) -> None:
    code = "\n".join(cells(name))
    tree = ast.parse(code)
    imported = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    imported += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [found for found in imported if found.startswith("tiebreak")] == ["tiebreak"]
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in attributes if ast.unparse(node.value) == "tiebreak"}
    assert used
    assert used <= {*package.__all__, "hf"}
    assert "curve(run.losses)" in code
    assert name == "train" or "walked(dispute)" in code


def told_by(code: list[str], folder: Path) -> str:
    """What a notebook's code prints in a kernel of Jupyter, which stops at the first error."""
    folder.mkdir()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in code])
    NotebookClient(notebook, kernel_name="python3", timeout=600, resources={"metadata": {"path": folder}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    drawn = [cell for cell in notebook.cells for output in cell.outputs if "image/svg+xml" in output.get("data", {})]
    assert len(drawn) == sum("curve(run" in source or "walked(dispute)" in source for source in code)
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def diffs(name: str) -> list[tuple[list[str], list[str]]]:
    """The lines that each diff in a notebook takes away and puts in their place."""
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    blocks = re.findall(r"```diff\n(.*?)\n```", text, flags=re.DOTALL)
    return [tuple([x[1:] for x in block.split("\n") if x[0] == sign] for sign in "-+") for block in blocks]  # type: ignore[misc]


@pytest.mark.slow
def test_the_training_notebook_matches_the_original_trainer(tmp_path: Path) -> None:
    (taken, put), (_, of_lightning) = diffs("train")
    code = cells("train")
    before = "\n".join(code[:2])  # what its user had: the line of the diff, the other way round
    assert before.count(put[0] + "\n") == 1
    told = told_by([*code, before.replace(put[0], taken[0])], tmp_path / "train")
    ours, theirs = map(float, re.findall(r"TrainOutput\(global_step=64, training_loss=([\d.]+)", told))
    assert re.search(
        r"^32 of 64 steps computed again: equal$.*^loss .*, run root [0-9a-f]{64}$", told, re.MULTILINE | re.DOTALL
    )
    assert ours == pytest.approx(theirs, rel=0.01), "other masks of dropout, and the same training"
    assert len(put) == len(taken) == 1
    assert len(of_lightning) <= 5
    flat = re.sub(r"\s|,(?=\s*\))", "", code[-1])
    assert re.sub(r"\s|,(?=\s*\))", "", "".join(of_lightning)) in flat


@pytest.mark.slow
def test_the_check_notebook_finds_the_false_run_and_forged_weights(tmp_path: Path) -> None:
    told = told_by(cells("check"), tmp_path / "check")
    for line in (
        "18 of 60 steps computed again: equal", "the trainer loses", "its own replay of the run ended in this state",
        "forged.safetensors: weights: expected tensors under state root",
    ):  # fmt: skip
        assert line in told


def test_every_example_is_tested(cases: Callable[[], None]) -> None:
    tested = Path(__file__).read_text() + Path(__file__).with_name("test_signed_formats.py").read_text()
    for path in EXAMPLES.glob("*.*"):
        here = f'{"example" if path.suffix == ".py" else "cells"}("{path.stem}")'
        assert here in tested or f'"examples" / "{path.name}"' in tested
        cases()


def test_the_readme_example_can_be_captured(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "my_task.py").write_text(example)
    assert run(tiebreak, ["capture", str(tmp_path / "my_task.py"), "--output", str(tmp_path / "out")]) == 0
    assert load_bundle(tmp_path / "out").name == "regression"


def test_links_in_the_docs_resolve() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())]
    assert len(links) >= 6
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_each_page_of_decisions_is_listed_and_has_three_parts(cases: Callable[[], None]) -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^\| \[([a-z-]+\.md)\]\(\1\) \|", (folder / "README.md").read_text(), re.MULTILINE)
    pages = sorted(path for path in folder.iterdir() if path.name != "README.md")
    assert sorted(listed) == [page.name for page in pages]
    for page in pages:
        text = page.read_text()
        parts = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert parts == ["What holds now, and why", "What was rejected, and why", "Changes"], page.name
        changes = text.partition("## Changes\n\n")[2]
        dates = re.findall(r"^- (\d{4}-\d\d-\d\d): ", changes, re.MULTILINE)
        assert dates == sorted(dates) != [], page.name
        assert len(dates) == len(re.findall("^- ", changes, re.MULTILINE)), page.name
        cases()
