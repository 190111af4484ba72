"""Fine-tunes a model of Hugging Face by LoRA on rows of conversations or texts, as a run that anyone can check.

The tokens of all rows (`rows`) stand one after the other and are cut into windows of one length, whose end is left
away. Of a conversation only what the assistant says is learnt: what the chat template marks (`{% generation %}`), or
else what an answer adds to the rendering before it. Of prompt and completion, the completion; of a text, all of it.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiebreak.api.machine import Machine
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training.rows import digest, examples
from tiebreak.api.training.runs import Run, agree
from tiebreak.api.training.settings import TUNING, FineTuning, remember
from tiebreak.api.training.templates import ChatTemplate, Tokens, loaded, located
from tiebreak.api.training.trainer import Step
from tiebreak.engine.capture.task import AdamW, Clip
from tiebreak.engine.optimizers.rates import constant, cosine, linear
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError

IGNORED: Final = -100  # as torch's losses ignore by default
LOSS: Final = "evaluation loss"
LOSSES: Final = "evaluation.jsonl"
"""The file, in the run's folder, of losses on rows that are not learnt. Nobody signs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The windows of a source in which something is learnt. ids, labels: int64 [windows, length].

    cut: tokens at the end that fill no window. empty: windows left out, for nothing in them is learnt. silent: rows of
    which nothing is learnt. missed: answers that could not be found. unused: columns without a part.
    """

    ids: Tensor
    labels: Tensor
    rows: int
    tokens: int
    cut: int
    empty: int
    silent: int
    missed: int
    is_marked: bool
    unused: list[str]

    def lines(self) -> list[str]:
        """Sentences that say what is learnt, and what is not."""
        count, learnt = self.ids.numel(), int((self.labels[:, 1:] != IGNORED).sum())
        found = [
            f"{self.rows:,} rows of {self.tokens:,} tokens; {len(self.ids):,} windows, of whose {count:,} tokens "
            f"{learnt:,} are learnt ({100 * learnt / count:.3g}%)",
            f"not used: {self.cut:,} tokens at the end, {self.empty:,} windows and {self.silent:,} rows without "
            "anything to learn",
        ]
        if not self.is_marked:
            found.append(
                "the chat template marks no answers ({% generation %}): they are what it adds to the messages before "
                f"them; {self.missed:,} answers that cannot be found like this are not learnt"
            )
        return [*found, *([f"columns not used: {', '.join(self.unused)}"] if self.unused else [])]


def finetune(
    settings: FineTuning, directory: Path, *, key: PrivateKey, machine: Machine = Machine(), progress: bool = True,
    keep: str = "last", tell: Callable[[str], None] = lambda _: None,
) -> tuple[Run, Any, list[str]]:  # fmt: skip
    """Trains into a run directory, or continues the run there. Returns it, the PEFT model, and lines on the data.

    key: the trainer's; a throwaway key is the client's. Nothing is fetched, and no code of the model's folder is run
    but its chat template, in a sandbox with limits (`templates`). For progress and keep see `Run.resume`. tell: called
    with lines on the data and with each evaluation.
    """
    found = windows(settings, settings.data)
    each = settings.batch * settings.accumulation
    steps = settings.steps or max(1, int((settings.epochs or 1) * len(found.ids)) // each)
    for line in found.lines():
        tell(line)
    evaluate = None if settings.evaluation is None else _evaluation(settings, machine.device, tell)

    def measured(step: Step) -> None:
        if step.metrics:
            tell(f"step {step.number}: {LOSS} {step.metrics[LOSS]:.4f}")
            with (directory / LOSSES).open("a") as file:
                file.write(json.dumps({"step": step.number, "loss": step.metrics[LOSS]}) + "\n")

    model = _adapted(settings)
    run = agree(
        model, _loss, optimizer=AdamW(lr=settings.rate), batch=settings.batch, steps=steps,
        accumulation=settings.accumulation, clip=Clip(norm=1.0), data={"input_ids": found.ids, "labels": found.labels},
        schedule=_schedule(settings, steps), seed=settings.seed, directory=directory, evaluate=evaluate,
        client=new_key(), trainer=key, machine=machine,
    )  # fmt: skip
    remember(directory / TUNING, settings.remembered())
    run.resume(key, progress=progress, keep=keep, callbacks=[measured])
    model.load_state_dict(run.state_dict())
    return run, model.eval(), found.lines()


def model_card(settings: FineTuning, run: Run, data: list[str]) -> str:
    """The beginning of the adapter's model card, in Markdown. data: the lines of `Windows`."""
    base, alpha = settings.model.resolve().name, settings.alpha or 2 * settings.lora
    warmup = "3% of the steps" if settings.warmup is None else f"{settings.warmup} steps"
    found = (
        f"---\nbase_model: {base}\nlibrary_name: peft\n---\n# LoRA adapters of {base}\n\n"
        f"Rank {settings.lora}, alpha {alpha} and dropout {settings.dropout:g} on {settings.targets}, trained in "
        f"{run.steps:,} steps of {settings.batch} x {settings.accumulation} windows of {settings.length:,} tokens of "
        f"`{settings.data.name}` (SHA-256 `{digest(settings.data)}`) at a rate of {settings.rate:g} "
        f"({settings.schedule} after a warm-up of {warmup}), with seed {settings.seed}. The last loss was {run.losses[-1]:.4f}.\n\n"
        + "".join(f"- {line}\n" for line in data)
    )
    if settings.evaluation is not None and (losses := evaluations(run)):
        rows = "".join(f"| {step} | {loss:.4f} |\n" for step, loss in losses.items())
        found += f"\nOn `{settings.evaluation.name}`, which was not learnt:\n\n| step | loss |\n| --- | --- |\n{rows}"
    return f"{found}\n{_EXAMPLE.format(base=base)}\n"


_EXAMPLE: Final = """```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base, adapter = "{base}", "adapter"  # the folders
tokenizer = AutoTokenizer.from_pretrained(adapter)
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype="auto"), adapter)
said = "Hello!"
if tokenizer.chat_template:
    said = tokenizer.apply_chat_template(
        [{{"role": "user", "content": said}}], tokenize=False, add_generation_prompt=True
    )
given = tokenizer(said, return_tensors="pt", add_special_tokens=not tokenizer.chat_template)
print(tokenizer.decode(model.generate(**given, max_new_tokens=64)[0]))
```
"""


def evaluations(run: Run) -> dict[int, float]:
    """The losses of a run on rows that are not learnt, by step."""
    path = run.directory / LOSSES
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return {line["step"]: line["loss"] for line in lines}


def save_tokenizer(settings: FineTuning, folder: Path) -> None:
    """Writes the model's tokenizer and chat template into another folder."""
    loaded(AutoTokenizer, settings.model).save_pretrained(folder)


def merge(settings: FineTuning, model: Any, folder: Path) -> None:
    """Writes a whole model with the adapters in its weights, which changes `model`. No certificate holds for it."""
    model.merge_and_unload().save_pretrained(folder)
    save_tokenizer(settings, folder)
    (folder / "README.md").write_text(
        f"# {settings.model.resolve().name} with its adapters merged\n\nThese weights are not certified: the sums of "
        "base and adapters were rounded here, outside the run. The certificate holds for the adapters alone.\n"
    )


def _schedule(settings: FineTuning, steps: int) -> tuple[float, ...]:
    warmup = 3 * steps // 100 if settings.warmup is None else settings.warmup
    if settings.schedule == "constant":
        return constant(steps, warmup)
    return {"linear": linear, "cosine": cosine}[settings.schedule](steps, warmup, 0.1)


def _adapted(settings: FineTuning) -> Any:
    """The model with new adapters, the same ones for the same seed."""
    base = loaded(AutoModelForCausalLM, settings.model, dtype=settings.dtype, use_safetensors=True)
    torch.manual_seed(settings.seed)
    targets: str | list[str] = settings.targets.split(",") if settings.targets != "all-linear" else settings.targets
    alpha = 2 * settings.lora if settings.alpha is None else settings.alpha
    adapters = LoraConfig(
        r=settings.lora, lora_alpha=alpha, target_modules=targets, lora_dropout=settings.dropout, task_type="CAUSAL_LM"
    )
    try:
        return get_peft_model(base, adapters).train()
    except ValueError as error:
        raise ConfigurationError(
            f"expected targets among the model's modules, got {settings.targets}: {error}"
        ) from error


def _loss(model: Any, input_ids: Tensor, labels: Tensor) -> Any:
    return model(input_ids=input_ids, labels=labels, use_cache=False).loss


def _evaluation(
    settings: FineTuning, device: str, tell: Callable[[str], None]
) -> Callable[[nn.Module], dict[str, float]]:
    """The mean loss of all tokens to be learnt of the rows for evaluation, in plain PyTorch, without dropout."""
    assert settings.evaluation is not None
    found = windows(settings, settings.evaluation)
    tell(f"evaluation: {found.lines()[0]}")

    def evaluate(model: nn.Module) -> dict[str, float]:
        total = 0.0
        with torch.no_grad():
            for ids, labels in zip(found.ids.split(settings.batch), found.labels.split(settings.batch), strict=True):
                logits = model.to(device)(input_ids=ids.to(device), use_cache=False).logits[:, :-1].float()
                total += F.cross_entropy(
                    logits.flatten(0, 1), labels[:, 1:].flatten().to(device), reduction="sum"
                ).item()
        return {LOSS: total / int((found.labels[:, 1:] != IGNORED).sum())}

    return evaluate


def windows(settings: FineTuning, source: Path) -> Windows:
    """Reads the rows of a source into windows. Raises `ConfigurationError`."""
    tokens, wanted, length = list[int](), list[bool](), settings.length
    rows = silent = missed = 0
    is_marked, unused = True, set[str]()
    for found, names in _tokenized(settings, source):
        tokens += found.ids
        wanted += found.learnt
        rows, silent, missed = rows + 1, silent + (not any(found.learnt)), missed + found.missed
        is_marked &= found.is_marked
        unused |= names
    end = len(tokens) // length * length
    ids = torch.tensor(tokens[:end], dtype=torch.int64).reshape(-1, length)
    mask = torch.tensor(wanted[:end], dtype=torch.bool).reshape(-1, length)
    kept = mask[:, 1:].any(1)  # the first token of a window has nothing to be told from
    if not kept.any():
        raise ConfigurationError(
            f"{source}: expected at least {length} tokens, with some of the assistant's among them, got {len(tokens)}, "
            f"{sum(wanted)} of them the assistant's; take a smaller length or more data"
        )
    return Windows(
        ids=ids[kept], labels=ids.masked_fill(~mask, IGNORED)[kept], rows=rows, tokens=len(tokens),
        cut=len(tokens) - end, empty=int((~kept).sum()), silent=silent, missed=missed, is_marked=is_marked,
        unused=sorted(unused),
    )  # fmt: skip


def _tokenized(settings: FineTuning, source: Path) -> Iterator[tuple[Tokens, frozenset[str]]]:
    """The tokens of each row, and the columns that it does not use."""
    tokenizer = loaded(AutoTokenizer, settings.model)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    with ChatTemplate(settings.model) as template:
        for one in examples(source):
            if one.messages:
                try:
                    found = template.apply(one.messages, one.first, **one.more)
                except ConfigurationError as error:
                    raise ConfigurationError(
                        f"{one.where}: expected messages that the tokenizer's chat template takes, got: {error}"
                    ) from error
            elif one.given:
                ids, learnt = located(tokenizer, one.text, [(one.given, len(one.text))])
                found = Tokens([*ids, *end], [*learnt, *([True] * len(end))])
            else:
                ids = [*tokenizer(one.text).input_ids, *end]
                found = Tokens(ids, [True] * len(ids))
            yield found, one.unused
