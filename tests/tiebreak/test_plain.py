"""Plain PyTorch learns the demo tasks, and forks when only the machine's settings change."""

from pathlib import Path

import pytest
import torch

from tiebreak.demo.plain_runs import PlainSettings, plain_run, plain_runs
from tiebreak.demo.tasks import plain
from tiebreak.demo.tasks.loader import load_task
from tiebreak.protocol.errors import ConfigurationError, StateError


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


@pytest.mark.slow
def test_a_process_of_its_own_with_another_instruction_set() -> None:
    """Same settings: same bytes. Another instruction set: other bytes, where the CPU has more than the default one."""
    native, other = PlainSettings(threads=1), PlainSettings(threads=1, capability="default")
    runs = plain_runs("digits", load_task("digits").initial_state(), (native, native, other), steps=20)
    assert runs[0] == runs[1]
    assert runs[2].settings == "1 thread, DEFAULT"
    if runs[0].settings != runs[2].settings:
        assert runs[0].state_sha256 != runs[2].state_sha256


@pytest.mark.slow
def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(StateError, match=r"exit code 1: .*ConfigurationError.*no\.py"):
        plain_run("no.py", Path(__file__), PlainSettings(threads=1))
