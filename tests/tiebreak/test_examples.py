"""The examples run as they stand, at a reduced size."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.source_tree import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def in_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No qualification: other tests run the vectors on this machine."""
    monkeypatch.setattr("tiebreak.api.running.qualify", lambda _: None)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reproducible(capsys: pytest.CaptureFixture[str]) -> None:
    digests = [example("reproducible").main(["--steps", "10", "--threads", threads]) for threads in ("1", "2")]
    torch.set_num_threads(1)
    assert digests[0] == digests[1]
    assert capsys.readouterr().out.splitlines()[-1] == f"digest   {digests[0]}"


def test_resnet_on_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--directory", str(tmp_path / "run"), "--steps", "12", "--channels", "4", "--blocks", "1"]
    run = example("resnet_on_digits").main(arguments)
    assert run.finished
    assert run.losses[-1] < run.losses[0]
    assert f"run root {run.root}" in capsys.readouterr().out
    assert example("resnet_on_digits").main(arguments).root == run.root, "run again, it is there already"


@pytest.mark.slow
def test_finetune_gpt2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--layers", "1", "--channels", "16", "--heads", "2", "--context", "8", "--batch", "2", "--steps", "3"]
    run = example("finetune_gpt2").main(["--directory", str(tmp_path / "run"), *small])
    assert run.finished
    assert f"loss {run.losses[0]:.3f} -> {run.losses[-1]:.3f}" in capsys.readouterr().out


def test_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = example("audit").main(["--directory", str(tmp_path / "run"), "--steps", "30", "--sample", "2"])
    assert audit.agrees
    assert (len(audit.checked), audit.total) == (2, 5)
    assert "12 steps computed again, 3 of 5 segments not checked" in capsys.readouterr().out


def test_every_example_is_tested(cases: Callable[[], None]) -> None:
    tested = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'example("{path.stem}").main(' in tested
        cases()
