"""Fine-tunes a model of Hugging Face by LoRA on a file of conversations, as a run that anyone can check.

The data are JSON lines. Each has `messages`, which the tokenizer's chat template turns into tokens, or `text`. The
tokens of all lines stand one after the other and are cut into windows of one length, whose end is left away. Where the
template marks what the assistant says (`{% generation %}`), only those tokens are learnt, else all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiebreak.api.data.text import lines
from tiebreak.api.machine import Machine
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training.runs import Run, train
from tiebreak.api.training.templates import ChatTemplate, loaded
from tiebreak.engine.capture.task import AdamW, Clip
from tiebreak.engine.optimizers.rates import cosine
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.strict_json import JsonObject

IGNORED: Final = -100  # as torch's losses ignore by default


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuning:
    """The settings of a job. The same ones on the same files give the same job.

    model: a local folder, as `save_pretrained` writes it. data: JSON lines. lora: the rank of the adapters, which are
    on all linear layers but the head; their scale is 2. length: tokens in a window. steps: None for one pass over the
    data. The rate rises over the first 3% of the steps, and falls along a cosine to a tenth.
    """

    model: Path
    data: Path
    lora: int = 16
    steps: int | None = None
    length: int = 1024
    batch: int = 1
    accumulation: int = 1
    rate: float = 2e-4
    seed: int = 0


def finetune(
    settings: FineTuning, directory: Path, *, key: PrivateKey, machine: Machine = Machine(), progress: bool = True,
    keep: str = "last",
) -> tuple[Run, Any]:  # fmt: skip
    """Trains into a run directory, or continues the run there, and returns it with the PEFT model of its weights.

    key: the trainer's; a throwaway key is the client's. Nothing is fetched, and no code of the model's folder is run
    but its chat template, in a sandbox with limits (`templates`). For progress and keep see `Run.resume`.
    """
    if not (settings.model / "config.json").is_file():
        raise ConfigurationError(
            f"expected a folder with a model's config.json, got {settings.model}; download the model first "
            "(`hf download NAME --local-dir FOLDER`)"
        )
    ids, labels = windows(settings)
    steps = settings.steps or max(1, len(ids) // (settings.batch * settings.accumulation))
    model = _adapted(settings)
    run = train(
        model, _loss, optimizer=AdamW(lr=settings.rate), batch=settings.batch, steps=steps,
        accumulation=settings.accumulation, clip=Clip(norm=1.0), data={"input_ids": ids, "labels": labels},
        schedule=cosine(steps, 3 * steps // 100, 0.1), seed=settings.seed, directory=directory,
        client=new_key(), trainer=key, machine=machine, progress=progress, keep=keep,
    )  # fmt: skip
    model.load_state_dict(run.state_dict())
    return run, model.eval()


def model_card(settings: FineTuning, run: Run) -> str:
    """The beginning of the adapter's model card, in Markdown."""
    base = settings.model.resolve().name
    with settings.data.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    return (
        f"---\nbase_model: {base}\nlibrary_name: peft\n---\n# LoRA adapters of {base}\n\n"
        f"Rank {settings.lora} on all linear layers, trained in {run.steps:,} steps of {settings.batch} x "
        f"{settings.accumulation} windows of {settings.length:,} tokens of `{settings.data.name}` (SHA-256 `{digest}`) "
        f"at a rate of {settings.rate:g}, with seed {settings.seed}. The last loss was {run.losses[-1]:.4f}.\n\n"
    )


def _adapted(settings: FineTuning) -> Any:
    """The model with new adapters, the same ones for the same seed."""
    base, rank = loaded(AutoModelForCausalLM, settings.model, dtype="auto", use_safetensors=True), settings.lora
    torch.manual_seed(settings.seed)
    adapters = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(base, adapters).train()


def _loss(model: Any, input_ids: Tensor, labels: Tensor) -> Any:
    return model(input_ids=input_ids, labels=labels, use_cache=False).loss


def windows(settings: FineTuning) -> tuple[Tensor, Tensor]:
    """The tokens and labels of all windows in which something is learnt, int64 [windows, length] each."""
    tokens, wanted = list[int](), list[bool]()
    for ids, learnt in _tokenized(settings):
        tokens += ids
        wanted += learnt
    end, length = len(tokens) // settings.length * settings.length, settings.length
    found = torch.tensor(tokens[:end], dtype=torch.int64).reshape(-1, length)
    mask = torch.tensor(wanted[:end], dtype=torch.bool).reshape(-1, length)
    kept = mask[:, 1:].any(1)  # the first token of a window has nothing to be told from
    if not kept.any():
        raise ConfigurationError(
            f"{settings.data}: expected at least {settings.length} tokens, with some of the assistant's among them, "
            f"got {len(tokens)}; take a smaller length or more data"
        )
    return found[kept], found.masked_fill(~mask, IGNORED)[kept]


def _tokenized(settings: FineTuning) -> Iterator[tuple[list[int], list[bool]]]:
    """The tokens of each line, and which of them are to be learnt."""
    tokenizer = loaded(AutoTokenizer, settings.model)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    with ChatTemplate(settings.model) as template:
        for number, line in enumerate(lines(settings.data), 1):
            if not line.strip():
                continue
            where = f"{settings.data}, line {number}"
            example = JsonObject.parse(where, line.encode(), depth=16)
            if "text" in example:
                ids = [*tokenizer(example.text("text")).input_ids, *end]
                yield ids, [True] * len(ids)
                continue
            messages = example.take("messages", "a list of messages, or a field 'text'", _are_messages)
            try:
                yield template.apply(messages)
            except ConfigurationError as error:
                raise ConfigurationError(
                    f"{where}: expected messages that the tokenizer's chat template takes, got: {error}"
                ) from error


def _are_messages(found: object) -> bool:
    return isinstance(found, list) and found != [] and all(isinstance(one, dict) and "role" in one for one in found)
