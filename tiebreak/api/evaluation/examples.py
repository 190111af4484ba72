"""Reads rows as examples of an evaluation.

prompt, choices, answer  texts that may follow a text, and the number of the right one, from 0: the log-likelihood of
                         each, and whether the likeliest is right, by the sum, by token and by byte
text, label              for a classifier of transformers: the class, from 0
prompt_tokens, answer_tokens  answers of `tiebreak generate`: whether each token is the sampled one (`generation`)
any form of `rows`       for a causal model: the loss by token of what `tiebreak finetune` would learn
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoTokenizer

from tiebreak.api.evaluation import generation
from tiebreak.api.training import rows
from tiebreak.api.training.finetuning import IGNORED, learnt_from, predicted, surprise
from tiebreak.api.training.scoring import ScoredExamples
from tiebreak.api.training.settings import FineTuning
from tiebreak.api.training.templates import loaded, located
from tiebreak.protocol.errors import ConfigurationError

CHOICES: Final = ("prompt", "choices", "answer")
LABELLED: Final = ("text", "label")
MOST_CLASSES: Final = 1 << 31
LEAST: Final = -1e30
"""The log-likelihood of a choice that a row lacks and another has."""


def read(tokenizer: Path, data: Path, length: int) -> ScoredExamples:
    """Reads a file of rows, all of one form. Raises `ConfigurationError` that names the first row of another."""
    found = list(rows.rows_of(data))
    forms = (
        (CHOICES, _choices),
        (LABELLED, _labelled),
        (generation.ANSWERED, lambda _, found, most: generation.read(found, most)),
    )
    for form, make in forms:
        if found and isinstance(found[0][1], dict) and set(form) <= found[0][1].keys():
            for where, row in found:
                if not isinstance(row, dict) or not set(form) <= row.keys():
                    raise ConfigurationError(f"{where}: expected {', '.join(form)}, as in the first row, got others")
            return make(loaded(AutoTokenizer, tokenizer), found, length)
    settings = FineTuning(model=tokenizer, data=data, length=length)
    return learnt_from(settings, rows.read(data)).examples


def of_choices(
    tokens: Sequence[Sequence[tuple[list[int], list[bool]]]], answers: Sequence[int], sizes: Sequence[Sequence[int]]
) -> ScoredExamples:
    """Choices as tokens, some of them to be told from those before.

    answers: the number of the right choice of each example. sizes: the bytes of each choice.
    """
    count, most = len(tokens), max(map(len, tokens))
    width = max(2, *(len(ids) for choices in tokens for ids, _ in choices))
    ids, labels = torch.zeros(count, most, width, dtype=torch.int64), torch.full((count, most, width), IGNORED)
    lengths = torch.zeros(count, most, 2)
    for n, choices in enumerate(tokens):
        for c, (own, wanted) in enumerate(choices):
            ids[n, c, : len(own)] = torch.tensor(own)
            labels[n, c, : len(own)] = torch.tensor(own).masked_fill(~torch.tensor(wanted), IGNORED)
            lengths[n, c] = torch.tensor([sum(wanted), sizes[n][c]])
    accuracies = ("acc", "acc_by_token", "acc_by_byte")
    columns = [*accuracies, *(f"{what}_{c}" for what in ("loglikelihood", "greedy") for c in range(most))]
    return ScoredExamples(
        data={"input_ids": ids, "labels": labels, "lengths": lengths, "answer": torch.tensor(answers)},
        score=_choice_score, columns=tuple(columns), metrics=accuracies, metric=lambda scores: scores[:, :3].mean(0),
        lines=[f"{count:,} questions with up to {most} choices, filled to {width:,} tokens"],
    )  # fmt: skip


def _choice_score(model: Any, input_ids: Tensor, labels: Tensor, lengths: Tensor, answer: Tensor) -> Tensor:
    logits, wanted = predicted(model, input_ids.flatten(0, 1), labels.flatten(0, 1))
    found = -surprise(logits, wanted).reshape(answer.shape[0], -1)
    greedy = ((logits.argmax(1) == wanted) | (wanted == IGNORED)).all(1).reshape(found.shape)
    has = lengths[..., 1] > 0
    by = [found, *(found / lengths.clamp(min=1).unbind(-1)[i] for i in range(2))]
    right = [(torch.where(has, one, LEAST).argmax(1) == answer).float() for one in by]
    return torch.cat([torch.stack(right, 1), found, greedy.float()], 1)


def _choices(tokenizer: Any, found: Sequence[tuple[str, Any]], length: int) -> ScoredExamples:
    tokens, sizes = list[list[tuple[list[int], list[bool]]]](), list[list[int]]()
    for where, row in found:
        prompt, choices, answer = (row[name] for name in CHOICES)
        texts = [prompt, *choices] if isinstance(choices, list) else [None]
        if not all(isinstance(one, str) for one in texts) or not all(texts[1:]) or not choices:
            raise ConfigurationError(f"{where}: expected a prompt, and choices that are texts, got {str(row)[:200]}")
        if type(answer) is not int or not 0 <= answer < len(choices):
            raise ConfigurationError(f"{where}: expected the number of the right choice, from 0, got {answer!r}")
        made = [located(tokenizer, prompt + one, [(len(prompt), len(prompt + one))]) for one in choices]
        tokens.append([(ids[-length:], wanted[-length:]) for ids, wanted in made])
        if not all(any(wanted[1:]) and not wanted[0] for _, wanted in tokens[-1]):
            raise ConfigurationError(
                f"{where}: expected choices of at most {length - 1} tokens after a token that they follow, got others; "
                "take a larger length, or give a prompt"
            )
        sizes.append([len(one.encode()) for one in choices])
    return of_choices(tokens, [row["answer"] for _, row in found], sizes)


def _labelled(tokenizer: Any, found: Sequence[tuple[str, Any]], length: int) -> ScoredExamples:
    for where, row in found:
        if not isinstance(row["text"], str) or type(row["label"]) is not int or not 0 <= row["label"] < MOST_CLASSES:
            raise ConfigurationError(f"{where}: expected a text and the number of its class, got {str(row)[:200]}")
    try:
        texts = [row["text"] for _, row in found]
        # On the right, where no position depends on the longest text.
        made = tokenizer(
            texts, padding=True, padding_side="right", truncation=True, max_length=length, return_tensors="pt"
        )
    except ValueError as error:  # a tokenizer without a token to fill with
        raise ConfigurationError(f"expected a tokenizer that fills texts up to one length, got: {error}") from error
    seen = made.get("attention_mask", torch.ones(len(found), 1)).any(1)
    if not seen.all():
        raise ConfigurationError(f"{found[int(seen.int().argmin())][0]}: expected a text with tokens, got none")
    return ScoredExamples(
        data={**made, "answer": torch.tensor([row["label"] for _, row in found])}, score=_class_score,
        columns=("accuracy", "loss"), metrics=("accuracy", "loss"),
        lines=[f"{len(found):,} texts, filled to {made['input_ids'].shape[1]:,} tokens"],
    )  # fmt: skip


def _class_score(model: Any, answer: Tensor, **given: Tensor) -> Tensor:
    logits = model(**given).logits.float()
    return torch.stack([(logits.argmax(1) == answer).float(), F.cross_entropy(logits, answer, reduction="none")], 1)
