"""Plain PyTorch learns the demo tasks, and forks when only the machine's settings change."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.task import Task
from protocol.errors import ConfigurationError
from tests.source_tree import ROOT
from tiebreak.tasks import plain
from tiebreak.tasks.loader import load_task


@pytest.mark.parametrize(
    ("name", "metric", "before", "after"),
    [("digits", "test accuracy", 0.3, 0.85), ("text", "validation perplexity", 200.0, 30.0)],
)
def test_it_learns(name: str, metric: str, before: float, after: float) -> None:
    task = load_task(name)
    assert task.evaluate is not None
    untrained = task.evaluate(task.model.eval())[metric]
    task.model.train()
    _, run = plain.train(task)
    sign = 1 if after > before else -1
    assert untrained * sign < before * sign < after * sign < run.metrics[metric] * sign
    assert len(run.losses) == task.steps


def test_training_leaves_the_task_and_the_random_stream_alone() -> None:
    task = load_task("digits", steps=3)
    before = task.initial_state()
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    seen = []
    plain.train(task, on_step=lambda step, loss: seen.append((step, loss)))
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(before[name], tensor) for name, tensor in task.initial_state().items())
    assert [step for step, _ in seen] == [1, 2, 3]


def test_double_precision_is_another_run_close_by() -> None:
    task = load_task("digits", steps=5)
    single, double = plain.train(task)[1], plain.train(task, dtype=torch.float64)[1]
    assert single.state_sha256 != double.state_sha256
    assert single.losses == pytest.approx(double.losses, rel=1e-4)


def test_each_epoch_is_a_permutation() -> None:
    task = load_task("digits", steps=1)
    draws = plain.batches(task)
    seen = torch.cat([next(draws)[0] for _ in range(45)])[: task.examples]
    key = seen.flatten(1).sort(0).values
    assert torch.equal(key, task.data["images"].flatten(1).sort(0).values)


def test_a_foreign_state_is_refused() -> None:
    task = load_task("digits", steps=1)
    with pytest.raises(ConfigurationError, match="expected a state of"):
        plain.train(task, {"x": torch.zeros(1)})


def run_apart(task: Task, folder: Path, **environment: str) -> dict[str, object]:
    state = folder / "initial.safetensors"
    save_file(task.initial_state(), state)
    command = [sys.executable, "-m", "tiebreak.tasks.plain", task.name, "--state", str(state), "--steps", "20"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, check=True, text=True)
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_a_process_of_its_own_with_another_instruction_set(tmp_path: Path) -> None:
    """Same settings: same bytes. Another instruction set: other bytes, where the CPU has more than the default one."""
    task = load_task("digits")
    native, again = run_apart(task, tmp_path), run_apart(task, tmp_path)
    default = run_apart(task, tmp_path, ATEN_CPU_CAPABILITY="default")
    assert native["state_sha256"] == again["state_sha256"]
    assert len(native["losses"]) == 20  # type: ignore[arg-type]
    assert default["capability"] == "DEFAULT"
    if native["capability"] != "DEFAULT":
        assert native["state_sha256"] != default["state_sha256"]
