"""Runs tasks of `lm_eval` whose requests are log-likelihoods, each kind of request as one evaluation.

A task is a program of whoever wrote it: its YAML names Python functions (`!function`) that run in this process with all
that the user may do, and its Jinja templates run without a sandbox. So read the tasks of others before you run them.
Data files that a task names are looked for below the working directory, as `lm_eval` looks for them.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, Protocol
from unittest.mock import patch

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM, resolve_max_length
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, handle_non_serializable, make_disjoint_window
from transformers import AutoConfig, AutoTokenizer

from tiebreak.api.training.templates import loaded
from tiebreak.protocol.errors import ConfigurationError

_RESULTS: Final = ("results", "groups", "versions", "n-shot", "n-samples", "samples", "lm_eval_version")
_OFFLINE: Final = ("huggingface_hub.constants.HF_HUB", "datasets.config.HF_HUB", "evaluate.config.HF_EVALUATE")
"""Beginnings of the switches that libraries read whenever they are about to fetch something."""

Pair = tuple[list[int], list[int]]


class Continuations(Protocol):
    """Evaluates a model on pairs of tokens, a context and its continuation, into a new folder.

    A pair has at most length + 1 tokens, whose last one the model does not read. Returns, of each pair in this order,
    the sum of the log-probabilities of the continuation, and whether each token of it is the likeliest one.
    """

    def __call__(self, pairs: Sequence[Pair], output: Path, *, length: int) -> list[tuple[float, bool]]: ...


@register_model("tiebreak")
class LogLikelihoodModel(TemplateLM):  # type: ignore[misc]
    """The model in a folder, as `lm_eval` asks for it: with the tokens and windows of its own model `hf`.

    output: the folder with one evaluation for each kind of request. length: the tokens that the model reads at once; by
    default, all that it has positions for. Raises `ConfigurationError`.
    """

    # They read no more of a model than its tokenizer and these two settings.
    eot_token_id, prefix_token_id, tok_encode = HFLM.eot_token_id, HFLM.prefix_token_id, HFLM.tok_encode
    add_bos_token = custom_prefix_token_id = None

    def __init__(self, model: Path, output: Path, score: Continuations, length: int | None = None) -> None:
        super().__init__()
        self.tokenizer = loaded(AutoTokenizer, model)
        self.max_length = length or resolve_max_length(loaded(AutoConfig, model), self.tokenizer)
        self._output, self._score = output, score
        if self.prefix_token_id is None:
            raise ConfigurationError(f"{model}: expected a tokenizer with a token that begins or ends texts, got none")

    def loglikelihood(self, requests: Any, **given: Any) -> Any:
        """Scores continuations, cut on the left of their contexts if they are too long."""
        if any(not "".join(one.args) for one in requests):
            raise ConfigurationError("expected a text in each request, got an empty one")
        return super().loglikelihood(requests, **given)

    def _loglikelihood_tokens(self, requests: Any, **_: object) -> list[tuple[float, bool]]:
        return self._evaluate("loglikelihood", [(context, following) for _, context, following in requests])

    def loglikelihood_rolling(self, requests: Any, **_: object) -> list[float]:
        """Scores whole texts, in windows that do not overlap."""
        first, length = self.prefix_token_id, self.max_length
        texts = [self.tok_encode(text) for one in requests for text in one.args]
        windows = [[*map(make_disjoint_window, get_rolling_token_windows(text, first, length, 1))] for text in texts]
        scores = iter(self._evaluate("loglikelihood_rolling", [*chain.from_iterable(windows)]))
        return [sum(score for score, _ in islice(scores, len(own))) for own in windows]

    def generate_until(self, requests: Any, **_: object) -> list[str]:
        """Raises `ConfigurationError`: a task asks for text that the model is to write."""
        raise ConfigurationError(f"{requests[0].task_name}: expected a task of log-likelihoods, got one of generation")

    def _evaluate(self, kind: str, pairs: list[Pair]) -> list[tuple[float, bool]]:
        for context, following in pairs:
            if not context or not 0 < len(following) <= self.max_length:
                got = f"{len(following)} after {len(context)}"
                raise ConfigurationError(f"{kind}: expected 1 to {self.max_length} tokens after at least 1, got {got}")
        kept = [(context[len(following) - self.max_length - 1 :], following) for context, following in pairs]
        return self._score(kept, self._output / kind, length=self.max_length) if kept else []


class _LikelihoodTasks(TaskManager):  # type: ignore[misc]
    """Refuses, before anything is computed, what cannot be loaded from here or asks for more than log-likelihoods."""

    def load(self, task_list: Any) -> Any:
        try:
            found = super().load(task_list)
        except Exception as error:  # a task may raise anything
            raise ConfigurationError(f"expected tasks with local data, got {type(error).__name__}: {error}") from error
        for name, task in found["tasks"].items():
            if task.OUTPUT_TYPE not in ("loglikelihood", "multiple_choice", "loglikelihood_rolling"):
                raise ConfigurationError(f"{name}: expected a task of log-likelihoods, got {task.OUTPUT_TYPE}")
        return found


def run_tasks(
    model: Path, names: Sequence[str], folder: Path | None, output: Path, *, score: Continuations,
    length: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Runs tasks by name on the model in a folder. Returns what `lm_eval` makes of the scores, as JSON has it.

    That is the metrics of each task and group under `results` and `groups`, and each document with its requests, scores
    and metrics under `samples`. Standard errors are left out: `lm_eval` would resample in other processes. folder: of
    YAML files with tasks; without it, the tasks that `lm_eval` brings. Nothing is fetched from Hugging Face; the code
    of a task may fetch what it likes. For output, score and length see `LogLikelihoodModel`. Raises
    `ConfigurationError`.
    """
    tasks = _LikelihoodTasks(include_path=folder, include_defaults=folder is None)
    asked = LogLikelihoodModel(model, output, score, length)
    with ExitStack() as stack:
        for switch in _OFFLINE:
            stack.enter_context(patch(f"{switch}_OFFLINE", True))
        found = simple_evaluate(model=asked, tasks=[*names], task_manager=tasks, bootstrap_iters=0)
    kept = {name: found[name] for name in _RESULTS if name in found}
    return dict(json.loads(json.dumps(kept, default=handle_non_serializable)))
