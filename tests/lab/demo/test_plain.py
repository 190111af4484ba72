"""Plain PyTorch on a task leaves it alone, learns as the task's own evaluation says, and forks on other settings."""

from pathlib import Path

import pytest
import torch

from tiebreak.api.builtin.loader import load_task
from tiebreak.api.training.trainer import evaluate_state
from tiebreak.engine.capture.captured import capture_task
from tiebreak.lab.demo import plain
from tiebreak.lab.demo.plain import PlainSettings, plain_run, plain_runs
from tiebreak.protocol.errors import StateError


def test_evaluation_uses_the_given_state_and_leaves_the_task_unchanged() -> None:
    task = load_task("digits")
    initial = capture_task(task).state
    before = evaluate_state(task, initial)["test accuracy"]
    model, run = plain.train(task)
    trained = {"model." + n: t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()]}
    assert before < 0.3 < 0.85 < run.metrics["test accuracy"]
    assert evaluate_state(task, trained | {"optimizer.x": torch.ones(1)}) == run.metrics
    assert evaluate_state(task, initial)["test accuracy"] == before
    assert task.model.training


def test_plain_training_leaves_the_task_and_torchs_random_state_unchanged() -> None:
    task = load_task("digits", steps=3)
    before = task.initial_state()
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    _, run = plain.train(task)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(before[name], tensor) for name, tensor in task.initial_state().items())
    assert len(run.losses) == 3


@pytest.mark.slow
def test_plain_training_differs_between_instruction_sets() -> None:
    """Same settings: same bytes. Another instruction set: other bytes, where the CPU has more than the default one."""
    native, other = PlainSettings(threads=1), PlainSettings(threads=1, capability="default")
    runs = plain_runs("digits", load_task("digits").initial_state(), (native, native, other), steps=20)
    assert runs[0] == runs[1]
    assert runs[2].settings == "1 thread, DEFAULT"
    if runs[0].settings != runs[2].settings:
        assert runs[0].state_sha256 != runs[2].state_sha256


@pytest.mark.slow
def test_a_failed_training_process_reports_its_error() -> None:
    with pytest.raises(StateError, match=r"exit code 1: .*ConfigurationError.*no\.py"):
        plain_run("no.py", Path(__file__), PlainSettings(threads=1))
