"""Fine-tunes a model of Hugging Face by LoRA on rows of conversations or texts, as a run that anyone can check.

The tokens of all rows (`rows`) stand one after the other and are cut into windows of one length, whose end is left
away. Of a conversation only what the assistant says is learnt: what the chat template marks (`{% generation %}`), or
else what an answer adds to the rendering before it. Of prompt and completion, the completion; of a text, all of it.

Of two completions the better one is learnt by direct preference optimization: Rafailov et al., NeurIPS 2023. The
reference is the model without its adapters, which is part of the program. Each pair is an example, cut and filled to
one length; what fills it stands behind all that is learnt, where no token sees it.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiebreak.api.machine import Machine
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training.rows import Example, ReadRows
from tiebreak.api.training.runs import Run, agree
from tiebreak.api.training.scoring import ScoredExamples, captured, plan
from tiebreak.api.training.settings import LOSSES, TUNING, FineTuning, Prepared, evaluations, remember
from tiebreak.api.training.templates import ChatTemplate, Tokens, loaded, located
from tiebreak.api.training.trainer import Step
from tiebreak.engine.capture import four_bit
from tiebreak.engine.capture.task import Task
from tiebreak.engine.optimizers.settings import AdamW, Clip, constant, cosine, linear
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError

IGNORED: Final = -100  # as torch's losses ignore by default
LOSS: Final = "evaluation loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWindows:
    """The windows in which something is learnt, int64 [windows, length] each, and sentences about the data.

    Of preferences int64 [pairs, 2, length]: the better answer first. loss: of a model, `input_ids` and `labels`.
    score: of the same, (rows, 2): the loss of each row, and the number of tokens (or the one pair) that it is a sum of.
    """

    ids: Tensor
    labels: Tensor
    lines: list[str]
    loss: Callable[..., Any]
    score: Callable[..., Tensor]

    @property
    def examples(self) -> ScoredExamples:
        """The same for an evaluation: the mean loss of the tokens, or of the pairs, and of tokens its power of e."""
        names = ("loss",) if self.ids.dim() == 3 else ("loss", "perplexity")

        def metric(scores: Tensor) -> Tensor:
            loss = scores[:, 0].sum() / scores[:, 1].sum()
            return torch.stack([loss, loss.exp()][: len(names)])

        return ScoredExamples(
            data={"input_ids": self.ids, "labels": self.labels}, score=self.score, columns=("loss", "tokens"),
            metrics=names, metric=metric, lines=self.lines,
        )  # fmt: skip


class FineTuned(NamedTuple):
    """A run that fine-tuned a model, the PEFT model with its result, and the rows that it did not learn, if any."""

    run: Run
    model: Any
    learnt: TokenWindows
    held: TokenWindows | None


def finetune(
    prepared: Prepared, directory: Path, *, key: PrivateKey, machine: Machine = Machine(), progress: bool = True,
    keep: str = "last", tell: Callable[[str], None] = lambda _: None,
) -> FineTuned:  # fmt: skip
    """Trains into a run directory, or continues the run there.

    key: the trainer's; a throwaway key is the client's. Nothing is fetched, and no code of the model's folder is run
    but its chat template, in a sandbox with limits (`templates`). For progress and keep see `Run.resume`. tell: gets
    these sentences and each evaluation as they come.
    """
    settings, found = prepared.settings, learnt_from(prepared.settings, prepared.training)
    for line in found.lines:
        tell(line)
    evaluate, held, terms = None, None, Terms()
    if prepared.evaluation is not None:
        held = learnt_from(settings, prepared.evaluation)
        tell(f"evaluation: {held.lines[0]}")
        evaluate = _evaluation(held, settings.batch, machine.device)

    def measured(step: Step) -> None:
        if step.metrics:
            tell(f"step {step.number}: {LOSS} {step.metrics[LOSS]:.4f}")
            with (directory / LOSSES).open("a") as file:
                file.write(json.dumps({"step": step.number, "loss": step.metrics[LOSS]}) + "\n")

    task = task_of(settings, found, evaluate)
    model = task.model
    if held is not None:  # the job names what will be measured of its result, and how
        bundle = captured(model, held.examples, settings.batch)
        planned = plan(held.examples, bundle.roots(), prepared.measured)
        terms = Terms(nonce=int.from_bytes(sha256(planned).digest()))
    run = agree(task, directory, client=new_key(), trainer=key, terms=terms, machine=machine)
    remember(directory / TUNING, prepared.remembered)
    run.resume(key, progress=progress, keep=keep, callbacks=[measured])
    model.load_state_dict(run.state_dict(), strict=not four_bit.layers(model))
    return FineTuned(run, model.eval(), found, held)


def task_of(
    settings: FineTuning, found: TokenWindows, evaluate: Callable[[nn.Module], dict[str, float]] | None = None
) -> Task:
    """The task of fine-tuning: the model with new adapters, over these windows."""
    each = settings.batch * settings.accumulation
    steps = settings.steps or max(1, int((settings.epochs or 1) * len(found.ids)) // each)
    interval = max(1, steps // settings.checkpoints)
    return Task(
        _adapted(settings), found.loss, data={"input_ids": found.ids, "labels": found.labels},
        optimizer=AdamW(lr=settings.rate), batch=settings.batch, steps=steps, accumulation=settings.accumulation,
        clip=Clip(norm=1.0), schedule=_schedule(settings, steps), seed=settings.seed, evaluate=evaluate,
        checkpoint_interval=interval,
        evaluate_every=None if evaluate is None else interval * max(1, settings.checkpoints // 10),
    )  # fmt: skip


def description(prepared: Prepared, run: Run, data: list[str]) -> str:
    """The adapter's model card without what is made from its certificate. data: sentences on the data."""
    settings, found = prepared.settings, prepared.remembered
    base, warmup = settings.model.resolve().name, "3% of the" if settings.warmup is None else settings.warmup
    measured = [f"{LOSS} after step {step}: {loss:.4f}" for step, loss in evaluations(run.directory).items()]
    unit = "pairs" if prepared.training.is_preference else f"windows of {settings.length:,} tokens"
    last, lines = f"{run.losses[-1]:.4f}", "".join(f"- {_prose(line)}\n" for line in [*data, *measured])
    return f"""# LoRA adapters of {_prose(base)}

Rank {settings.lora}, alpha {found["alpha"]} and dropout {settings.dropout:g} on {_prose(settings.targets)}, trained in
{run.steps:,} steps of {settings.batch} x {settings.accumulation} {unit} of
{_prose(settings.data.name)} (SHA-256 `{found["data (SHA-256)"]}`) at a rate of {settings.rate:g}
({settings.schedule}, after {warmup} steps of warm-up), with seed {settings.seed}. The last loss was {last}.

{lines}
{_EXAMPLE.replace('"BASE"', ascii(base))}"""


def _prose(text: str) -> str:
    """Text of others for a line of Markdown: its marks as they are, without line ends and control characters."""
    return re.sub(r"([\\`*_\[\]<>&|#~])", r"\\\1", "".join(c if c.isprintable() else " " for c in text))


_EXAMPLE: Final = """```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base, adapter, said = "BASE", "adapter", "Hello!"  # the folders, and a prompt
tokenizer = AutoTokenizer.from_pretrained(adapter)
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype="auto"), adapter)
if tokenizer.chat_template:
    messages = [{"role": "user", "content": said}]
    said = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
given = tokenizer(said, return_tensors="pt", add_special_tokens=not tokenizer.chat_template)
print(tokenizer.decode(model.generate(**given, max_new_tokens=64)[0]))
```
"""


def save(settings: FineTuning, model: Any, folder: Path) -> None:
    """Writes a model, or its adapter, with its tokenizer and chat template."""
    model.save_pretrained(folder)
    loaded(AutoTokenizer, settings.model).save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)  # PEFT's: ours names the certificate, which cannot sign for it


def _schedule(settings: FineTuning, steps: int) -> tuple[float, ...]:
    warmup = 3 * steps // 100 if settings.warmup is None else settings.warmup
    falling = {"linear": linear, "cosine": cosine}.get(settings.schedule)
    return constant(steps, warmup) if falling is None else falling(steps, warmup, 0.1)


def _adapted(settings: FineTuning) -> Any:
    """The model with new adapters, the same ones for the same seed."""
    base = loaded(AutoModelForCausalLM, settings.model, dtype=settings.dtype, use_safetensors=True).cpu()
    four_bit.check(base)
    torch.manual_seed(settings.seed)
    targets = settings.targets if settings.targets == "all-linear" else settings.targets.split(",")
    adapters = LoraConfig(
        r=settings.lora, lora_alpha=settings.alpha or 2 * settings.lora, lora_dropout=settings.dropout,
        target_modules=targets, task_type="CAUSAL_LM",
    )  # fmt: skip
    try:
        made = get_peft_model(base, adapters).train()
    except ValueError as error:
        raise ConfigurationError(f"expected names of modules, got {settings.targets}: {error}") from error
    own: Any = made.peft_config["default"]
    own.target_modules = sorted(own.target_modules)  # PEFT's set has another order in each process
    return made


def learnt_from(settings: FineTuning, rows: ReadRows) -> TokenWindows:
    """Makes windows or pairs of rows, by their form. Raises `ConfigurationError`."""
    return pairs(settings, rows) if rows.is_preference else windows(settings, rows)


def _loss(model: Any, input_ids: Tensor, labels: Tensor) -> Any:
    return model(input_ids=input_ids, labels=labels, use_cache=False).loss


def predicted(model: Any, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The logits of a model, f32 (rows, vocabulary, length - 1), and the tokens that they should tell."""
    return model(input_ids=input_ids[:, :-1], use_cache=False).logits.float().transpose(1, 2), labels[:, 1:]


def surprise(logits: Tensor, wanted: Tensor) -> Tensor:
    """Minus the log-probability of what each row should tell, f32 (rows,). Takes what `predicted` gives."""
    return F.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="none").sum(1)


def _window_score(model: Any, input_ids: Tensor, labels: Tensor) -> Tensor:
    logits, wanted = predicted(model, input_ids, labels)
    return torch.stack([surprise(logits, wanted), (wanted != IGNORED).sum(1).float()], 1)


def _preference_score(beta: float, model: Any, input_ids: Tensor, labels: Tensor) -> Tensor:
    """The loss of direct preference optimization for each pair, and 1."""
    if not hasattr(model, "disable_adapter"):
        raise ConfigurationError("expected an adapter on its base for rows of preferences, got a model without one")
    given = input_ids.flatten(0, 1), labels.flatten(0, 1)
    own = surprise(*predicted(model, *given))
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    with torch.no_grad(), model.disable_adapter():
        reference = surprise(*predicted(model, *given))
    for parameter in frozen:  # as PEFT leaves them only in training
        parameter.requires_grad_(False)
    better, worse = (reference - own).reshape(-1, 2).unbind(1)
    lost = -F.logsigmoid(beta * (better - worse))
    return torch.stack([lost, torch.ones_like(lost)], 1)


def _preference_loss(beta: float, model: Any, input_ids: Tensor, labels: Tensor) -> Tensor:
    return _preference_score(beta, model, input_ids, labels)[:, 0].mean()


def _evaluation(found: TokenWindows, batch: int, device: str) -> Callable[[nn.Module], dict[str, float]]:
    """Computes the mean loss of all tokens to be learnt, or of all pairs, in plain PyTorch, without dropout."""

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        pairs = zip(*(torch.split(one, batch) for one in (found.ids, found.labels)), strict=True)
        scores = [
            found.score(model.to(device), ids.to(device), labels.to(device)).double().sum(0) for ids, labels in pairs
        ]
        total, count = torch.stack(scores).sum(0).tolist()
        return {LOSS: total / count}

    return evaluate


def pairs(settings: FineTuning, rows: ReadRows) -> TokenWindows:
    """Cuts the two answers of each row, with what is before them, to one length. Raises `ConfigurationError`."""
    answers = [one for row in rows.examples for one in (row, row.rejected) if one is not None]
    found, _ = zip(*_tokenized(settings, answers), strict=True)
    cut = [(one.ids[: settings.length], one.learnt[: settings.length]) for one in found]
    kept = [pair for pair in zip(cut[::2], cut[1::2], strict=True) if all(any(learnt[1:]) for _, learnt in pair)]
    if not kept:
        raise ConfigurationError(
            f"{rows.path}: expected a row both of whose answers begin within {settings.length} tokens, got none; take "
            "a larger length"
        )
    width = max(len(ids) for pair in kept for ids, _ in pair)
    ids = torch.zeros(len(kept), 2, width, dtype=torch.int64)
    labels = torch.full_like(ids, IGNORED)
    for row, pair in enumerate(kept):
        for side, (tokens, learnt) in enumerate(pair):
            ids[row, side, : len(tokens)] = torch.tensor(tokens)
            labels[row, side, : len(tokens)] = torch.tensor(tokens).masked_fill(~torch.tensor(learnt), IGNORED)
    total, cuts = sum(len(one.ids) for one in found), sum(len(one.ids) > settings.length for one in found)
    lines = [
        f"{len(rows.examples):,} pairs of answers, {total:,} tokens; {len(kept):,} are learnt, filled to {width:,}",
        f"{cuts:,} answers are cut; {len(rows.examples) - len(kept):,} pairs of which one would have nothing left",
    ]
    return TokenWindows(
        ids=ids, labels=labels, lines=lines, loss=partial(_preference_loss, settings.beta),
        score=partial(_preference_score, settings.beta),
    )  # fmt: skip


def windows(settings: FineTuning, rows: ReadRows) -> TokenWindows:
    """Cuts the tokens of rows into windows. Raises `ConfigurationError`."""
    tokens, wanted, length, unused = list[int](), list[bool](), settings.length, set[str]()
    count, silent, missed, is_marked = 0, 0, 0, True
    for found, names in _tokenized(settings, rows.examples):
        tokens += found.ids
        wanted += found.learnt
        count, silent, missed = count + 1, silent + (not any(found.learnt)), missed + found.missed
        is_marked &= found.is_marked
        unused |= names
    end = len(tokens) // length * length
    ids = torch.tensor(tokens[:end], dtype=torch.int64).reshape(-1, length)
    mask = torch.tensor(wanted[:end], dtype=torch.bool).reshape(-1, length)
    kept = mask[:, 1:].any(1)  # the first token of a window has nothing to be told from
    if not kept.any():
        raise ConfigurationError(
            f"{rows.path}: expected at least {length} tokens, with some of the assistant's among them, got "
            f"{len(tokens)}, {sum(wanted)} of them the assistant's; take a smaller length or more data"
        )
    learnt = int(mask[kept][:, 1:].sum())
    lines = [
        f"{count:,} rows of {len(tokens):,} tokens; {int(kept.sum()):,} windows, of whose {ids[kept].numel():,} tokens "
        f"{learnt:,} are learnt ({100 * learnt / ids[kept].numel():.3g}%)",
        f"not used: {len(tokens) - end:,} tokens at the end; {int((~kept).sum()):,} windows and {silent:,} rows "
        "without anything to learn",
        f"the chat template marks no answers ({{% generation %}}): they are what it adds to the messages before them; "
        f"{missed:,} answers that cannot be found like this are not learnt",
        f"columns not used: {', '.join(sorted(unused))}",
    ]
    lines = [*lines[:2], *([] if is_marked else lines[2:3]), *(lines[3:] if unused else [])]
    labels = ids.masked_fill(~mask, IGNORED)
    return TokenWindows(ids=ids[kept], labels=labels[kept], lines=lines, loss=_loss, score=_window_score)


def _tokenized(settings: FineTuning, examples: Sequence[Example]) -> Iterator[tuple[Tokens, set[str]]]:
    """The tokens of each row, and the columns that it does not use."""
    tokenizer = loaded(AutoTokenizer, settings.model)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    with ChatTemplate(settings.model) as template:
        for one in examples:
            if not one.messages:
                ids, learnt = located(tokenizer, one.text, [(one.given, len(one.text))])
                learnt = learnt if one.given else [True] * len(ids)
                yield Tokens([*ids, *end], [*learnt, *([True] * len(end))]), one.unused
                continue
            try:
                yield template.apply(one.messages, one.first, **one.more), one.unused
            except ConfigurationError as error:
                raise ConfigurationError(
                    f"{one.where}: expected messages that the tokenizer's chat template takes, got: {error}"
                ) from error
