"""Evaluation measures the state it is given, and leaves the task alone."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import nn

import tiebreak
from tiebreak.api.builtin.loader import load_task
from tiebreak.api.training.trainer import evaluate_state
from tiebreak.engine.capture.captured import capture_task
from tiebreak.protocol.errors import ConfigurationError


def test_a_state_of_another_model_and_a_task_without_evaluation_are_refused() -> None:
    task = load_task("digits", steps=1)
    for state, message in (
        ({"model.weight": torch.ones(1)}, "expected a state of"),
        ({f"model.{name}": torch.ones(1) for name in task.initial_state()}, r"expected .* of shape"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            evaluate_state(task, state)
    with pytest.raises(ConfigurationError, match="to have an evaluation"):
        evaluate_state(dataclasses.replace(task, evaluate=None), {})


def measured(calls: list[float], **changes: Any) -> tiebreak.Task:
    """A regression whose evaluation draws from every global stream and leaves the model in another mode."""
    x = torch.sin(torch.arange(96.0)).reshape(24, 4)

    def evaluate(model: nn.Module) -> dict[str, float]:
        assert not model.training
        model.train()
        calls.append(model[0].weight.sum().item())
        return {"drawn": random.random() + np.random.rand() + torch.rand(1).item()}

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 1))
    given = {
        "model": model, "loss": lambda model, x, y: (model(x) - y).square().mean(), "optimizer": tiebreak.SGD(lr=0.1),
        "data": {"x": x, "y": x.sum(1, keepdim=True)}, "batch": 6, "steps": 7,
        "evaluate": evaluate, "evaluate_every": 3,
    }  # fmt: skip
    return tiebreak.Task(**(given | changes))


def test_evaluate_must_return_metrics_by_name() -> None:
    task = load_task("digits", steps=1)
    state = capture_task(task).state
    for found, words in ((0.5, "got 0.5"), ([1.0], r"got \[1.0\]"), ({1: 2.0}, "got a dict"), (None, "got None")):
        with pytest.raises(
            ConfigurationError, match=rf"evaluate\(model\) to return metrics by name, such as .* {words}"
        ):
            evaluate_state(dataclasses.replace(task, evaluate=lambda _, found=found: found), state)


def test_evaluation_during_training_changes_no_random_stream_or_result() -> None:
    calls, told = list[float](), list[Any]()
    made = tiebreak.reproducible(measured(calls), callbacks=[told.append])
    streams = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    trainer = made.run(progress=False)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == streams
    assert list(trainer.metrics) == [3, 6, 7]
    assert [step.number for step in told] == list(range(1, 8))
    assert [step.number for step in told if step.metrics] == [3, 6, 7]
    assert calls[-1] == trainer.state_dict()["0.weight"].sum().item()
    assert len(set(calls)) == 3
    plain = measured([], evaluate=None, evaluate_every=None)
    other = tiebreak.reproducible(plain, callbacks=told.append).run(progress=False)
    assert [step.number for step in told] == [*range(1, 8), *range(1, 8)]
    assert other.digest() == trainer.digest()


def test_a_run_on_disk_evaluates_its_checkpoints(tmp_path: Path) -> None:
    calls, told = list[float](), list[Any]()
    settings = {"checkpoint_interval": 2, "steps": 8}
    run = tiebreak.train(
        measured(calls, evaluate_every=4, **settings), tmp_path, progress=False, callbacks=[told.append]
    )
    assert list(run.metrics) == [4, 8]
    assert sorted(step.number for step in told if step.metrics is None) == list(range(1, 9))
    assert [step.number for step in told if step.metrics] == [4, 8]
    assert calls[-1] == run.state_dict()["0.weight"].sum().item()
    with pytest.raises(ConfigurationError, match="a multiple of checkpoint_interval, 2, got 3"):
        tiebreak.train(measured([], evaluate_every=3, **settings), tmp_path / "other")


@pytest.mark.parametrize("train", ["reproducible", "train"])
def test_a_callback_that_would_change_the_model_is_refused(train: str, tmp_path: Path) -> None:
    task = measured([], evaluate=None, evaluate_every=None)
    model = task.model

    def begin(**options: Any) -> Any:
        if train == "train":
            return tiebreak.train(task, tmp_path, **options)
        return tiebreak.reproducible(task, **options).run(progress=False)

    with pytest.raises(ConfigurationError, match=r"one that sets 1\.p: the program does not read it"):
        begin(callbacks=[lambda step: setattr(model[1], "p", 0.5 / step.number if step.number > 2 else 0.5)])


def test_evaluate_every_requires_an_evaluate_function() -> None:
    with pytest.raises(ConfigurationError, match="a function evaluate"):
        measured([], evaluate=None)


def test_a_hugging_face_dataset_is_accepted_as_data() -> None:
    rows = {"text": ["a"] * 6, "y": [[n / 4] for n in range(6)], "x": [[n, 1.0, 2.0, 3.0] for n in range(6)],
            "labels": list(range(6))}  # fmt: skip
    dataset = datasets.Dataset.from_dict(rows)
    made = measured([], data=dataset)
    assert set(made.data) == {"x", "y"}
    assert made.data["x"].dtype == torch.float32
    assert made.data["x"].tolist() == rows["x"]
    loss = lambda model, **batch: model(batch["x"]).mean()  # noqa: E731
    taken = measured([], data=dataset, loss=loss)
    assert set(taken.data) == {"x", "y", "labels"}
    assert taken.data["labels"].dtype == torch.int64
    with pytest.raises(ConfigurationError, match=r"one of \['train'\]"):
        measured([], data=datasets.DatasetDict(train=dataset))
