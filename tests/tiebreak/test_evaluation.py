"""Evaluation measures the state it is given, and leaves the task alone."""

import dataclasses

import pytest
import torch

from tiebreak.api.evaluation import evaluate_state
from tiebreak.demo.tasks import plain
from tiebreak.demo.tasks.loader import load_task
from tiebreak.engine.capture.compile import compile_task
from tiebreak.protocol.errors import ConfigurationError


def test_it_measures_the_given_state() -> None:
    task = load_task("digits")
    initial = compile_task(task).state
    before = evaluate_state(task, initial)["test accuracy"]
    model, run = plain.train(task)
    trained = {"model." + n: t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()]}
    assert before < 0.3
    assert evaluate_state(task, trained | {"optimizer.x": torch.ones(1)}) == run.metrics
    assert evaluate_state(task, initial)["test accuracy"] == before
    assert task.model.training


def test_a_state_of_another_model_is_refused() -> None:
    task = load_task("digits")
    with pytest.raises(ConfigurationError, match="expected a state of"):
        evaluate_state(task, {"model.weight": torch.ones(1)})


def test_a_state_of_other_shapes_is_refused() -> None:
    task = load_task("digits")
    state = {f"model.{name}": torch.ones(1) for name in task.initial_state()}
    with pytest.raises(ConfigurationError, match=r"expected .* of shape"):
        evaluate_state(task, state)


def test_a_task_without_evaluation_says_so() -> None:
    task = dataclasses.replace(load_task("digits"), evaluate=None)
    with pytest.raises(ConfigurationError, match="to have an evaluation"):
        evaluate_state(task, {})
