"""Fine-tuning scripts, each trained by its trainer and as a run: `python -m tests.tiebreak.hf_scripts`.

This measures how far logs and weights are apart, and writes the table of benchmarks/results/huggingface.md. Fast tests
hold it to the list of scripts here, and slow ones measure each again.
"""

import random
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import peft
import torch
import transformers
import trl  # its trainers are imported where they are made: with them comes wandb, a second and a half
from datasets import Dataset, IterableDataset
from peft import LoraConfig
from torch import Tensor, nn
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForMultipleChoice,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    DefaultDataCollator,
    EarlyStoppingCallback,
    LlamaForSequenceClassification,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import PrinterCallback

import tiebreak
from tests.source_tree import ROOT
from tests.tiebreak.hf_cases import arguments, encoded, gpt2, llama, preferences, texts, tokenizer

Made = Callable[..., Trainer]
PAGE: Final = ROOT / "benchmarks/results/huggingface.md"
HEAD: Final = "| script | steps | losses | other logs | weights |\n|---|---|---|---|---|\n"
_TIMED: Final = ("runtime", "per_second", "preparation_time", "total_flos")
_EVALUATES: Final = {"eval_strategy": "steps", "eval_steps": 5}


def plain(
    folder: Path, kind: Any = Trainer, model: Any = gpt2, callbacks: Any = None, settings: Any = TrainingArguments,
    **more: Any,
) -> Trainer:  # fmt: skip
    given = {"data_collator": DataCollatorForLanguageModeling(tokenizer(), mlm=False), "processing_class": tokenizer()}
    names = "train_dataset", "eval_dataset", "data_collator", "processing_class", "compute_loss_func", "optimizers"
    given |= {name: more.pop(name) for name in names if name in more}
    args = arguments(settings, folder, **more)
    made = kind(model=model(), args=args, callbacks=callbacks, **{"train_dataset": encoded(), **given})
    made.remove_callback(PrinterCallback)
    return made


class Own(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        found = model(**inputs)
        weight = torch.ones(found.logits.shape[-1])
        weight[:10] = 2.0
        logits = found.logits[:, :-1].flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), weight, ignore_index=-100)
        accuracy = (logits.argmax(-1) == labels[:, 1:].flatten()).float().mean().item()
        self.log({"accuracy": min(0.5, accuracy)})
        return (loss, found) if return_outputs else loss


def focal(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """A loss that a script gives to Trainer, over a mean of labels."""
    logits, wanted = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    found = nn.functional.cross_entropy(logits, wanted, ignore_index=-100, reduction="none")
    return (found * (1 - (-found).exp()) ** 2).sum() / num_items_in_batch


def classified(folder: Path, **more: Any) -> Trainer:
    rows = encoded().add_column("labels", [i % 3 for i in range(40)])
    config = llama().config
    config.num_labels = 3
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(config)
    return plain(
        folder, model=lambda: model.__class__.from_pretrained(None, config=config, state_dict=model.state_dict()),
        train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer()), **more,
    )  # fmt: skip


def bert(kind: str, **more: Any) -> Callable[[], Any]:
    def model() -> Any:
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=320, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0, **more,
        )  # fmt: skip
        return getattr(transformers, kind)(config)

    return model


def masked(folder: Path, **more: Any) -> Trainer:
    made = tokenizer()
    made.mask_token = "<eos>"
    collator = DataCollatorForLanguageModeling(made, mlm=True)
    return plain(folder, model=bert("BertForMaskedLM"), data_collator=collator, **more)


def labelled(folder: Path, kind: str, **more: Any) -> Trainer:
    """BERT for sentences, tokens, spans or choices. Its last batch is short."""
    drawn, rows = random.Random(3), encoded(38, longest=12)
    ids = rows["input_ids"]
    collators: dict[str, Any] = {
        "TokenClassification": DataCollatorForTokenClassification(tokenizer()),
        "MultipleChoice": DataCollatorForMultipleChoice(tokenizer()),
        "QuestionAnswering": DataCollatorWithPadding(tokenizer(), padding="max_length", max_length=40),
    }
    match kind:
        case "TokenClassification":
            columns = {"input_ids": ids, "labels": [[drawn.randrange(3) for _ in row] for row in ids]}
        case "MultipleChoice":
            columns = {"input_ids": [[row, row[::-1]] for row in ids], "labels": [i % 2 for i in range(38)]}
        case "QuestionAnswering":
            columns = {
                "input_ids": ids,
                "start_positions": [1] * 38,
                "end_positions": [drawn.randint(1, 4) for _ in ids],
            }
        case _:
            columns = {"input_ids": ids, "labels": [i % 3 for i in range(38)]}
    data = Dataset.from_dict(columns)
    return plain(
        folder, model=bert(f"BertFor{kind}", num_labels=3 if kind != "QuestionAnswering" else 2), train_dataset=data,
        data_collator=collators.get(kind, DataCollatorWithPadding(tokenizer())), eval_dataset=data.select(range(6)),
        **_EVALUATES, **more,
    )  # fmt: skip


def pictures(folder: Path, kind: str = "ViT", augments: bool = False, **more: Any) -> Trainer:
    """Images of which the last batch has too few. A transform may turn and blur them at random."""
    torch.manual_seed(1)
    images, labels = torch.rand(38, 3, 16, 16), [i % 4 for i in range(38)]

    def turned(rows: Any) -> Any:
        drawn = [torch.tensor(image) + 0.1 * torch.randn(3, 16, 16) for image in rows["pixel_values"]]
        return {"pixel_values": [i.flip(-1) if random.random() < 0.5 else i for i in drawn], "labels": rows["labels"]}

    data = Dataset.from_dict({"pixel_values": images.tolist(), "labels": labels})
    held = data.select(range(6))
    for part in (data, held):
        if augments:
            part.set_transform(turned)

    def model() -> Any:
        torch.manual_seed(0)
        if kind == "ResNet":
            config = transformers.ResNetConfig(
                embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", num_labels=4
            )
            return transformers.ResNetForImageClassification(config)
        config = transformers.ViTConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16,
            patch_size=8, num_labels=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        return transformers.ViTForImageClassification(config)

    return plain(
        folder, model=model, train_dataset=data, eval_dataset=held, data_collator=DefaultDataCollator(),
        processing_class=None, remove_unused_columns=False, **{**_EVALUATES, **more},
    )  # fmt: skip


def sounds(folder: Path, **more: Any) -> Trainer:
    def model() -> Any:
        torch.manual_seed(0)
        config = transformers.Wav2Vec2Config(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, conv_dim=(8, 8),
            conv_stride=(5, 4), conv_kernel=(10, 8), num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
            hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0,
            mask_time_prob=0.0, num_labels=3, classifier_proj_size=8, num_feat_extract_layers=2,
        )  # fmt: skip
        return transformers.Wav2Vec2ForSequenceClassification(config)

    torch.manual_seed(1)
    data = Dataset.from_dict({"input_values": torch.randn(38, 400).tolist(), "labels": [i % 3 for i in range(38)]})
    return plain(
        folder, model=model, train_dataset=data, data_collator=DefaultDataCollator(), processing_class=None, **more
    )


def streamed(folder: Path, **more: Any) -> Trainer:
    rows = list(encoded())
    return plain(
        folder, train_dataset=IterableDataset.from_generator(lambda: (rows[i % 40] for i in range(10**6))), **more
    )


def translated(folder: Path, **more: Any) -> Trainer:
    """A model whose decoder is fed shifted labels, and that is evaluated by what it generates."""

    def model() -> T5ForConditionalGeneration:
        torch.manual_seed(0)
        config = T5Config(vocab_size=320, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0)
        config.decoder_start_token_id = 0
        return T5ForConditionalGeneration(config)

    ids = [[tokenizer()(line).input_ids for line in texts(40, seed)] for seed in (1, 2)]
    rows = Dataset.from_dict({"input_ids": ids[0], "labels": ids[1]})
    return plain(
        folder, Seq2SeqTrainer, model, settings=Seq2SeqTrainingArguments, train_dataset=rows,
        eval_dataset=rows.select(range(4)), data_collator=DataCollatorForSeq2Seq(tokenizer(), model=model()),
        predict_with_generate=True, generation_max_length=8, eval_strategy="steps", eval_steps=10, **more,
    )  # fmt: skip


def layered(folder: Path, **more: Any) -> Trainer:
    """An optimizer and a schedule of the script's own: a rate for each part."""
    model = gpt2()
    head, rest = ([p for name, p in model.named_parameters() if ("ln_f" in name) is last] for last in (True, False))
    optimizer = torch.optim.AdamW([{"params": head, "lr": 1e-2}, {"params": rest, "lr": 1e-3}], eps=1e-6)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-2, 1e-3], total_steps=21)
    return plain(folder, model=lambda: model, optimizers=(optimizer, schedule), **more)


def virtual(folder: Path, config: Any, **more: Any) -> Trainer:
    """Tokens without words before each example, that alone are learnt."""

    def model() -> Any:
        base = llama()
        return peft.get_peft_model(base, config)

    return plain(folder, model=model, **more)


def lora(**more: Any) -> LoraConfig:
    given = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"]}
    return LoraConfig(**given | {"task_type": "CAUSAL_LM"} | more)


def text() -> Dataset:
    return Dataset.from_dict({"text": texts()})


def completions() -> Dataset:
    return Dataset.from_dict({"prompt": texts(40, 1, 6), "completion": [f" {line}" for line in texts(40, 2)]})


def chats() -> Dataset:
    rows = [[{"role": "user", "content": line[:20]}, {"role": "assistant", "content": line}] for line in texts(40, 2)]
    return Dataset.from_dict({"messages": rows})


def sft(folder: Path, model: Any = llama, data: Any = text, peft: Any = None, held: Any = None, **more: Any) -> Trainer:
    args = arguments(trl.SFTConfig, folder, **{"bf16": False, **more})
    return trl.SFTTrainer(
        model(), args, train_dataset=data(), eval_dataset=held and data().select(range(held)),
        processing_class=tokenizer(), peft_config=peft,
    )  # fmt: skip


def saved(folder: Path, model: Any = llama) -> str:
    model().save_pretrained(folder / "base")
    tokenizer().save_pretrained(folder / "base")
    return str(folder / "base")


def dpo(folder: Path, peft: Any = None, **more: Any) -> Trainer:
    args = arguments(trl.DPOConfig, folder, **{"bf16": False, "max_steps": 20, **more})
    return trl.DPOTrainer(
        saved(folder), args=args, train_dataset=preferences(), processing_class=tokenizer(), peft_config=peft
    )


def reward(folder: Path, **more: Any) -> Trainer:
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(saved(folder), num_labels=1)
    args = arguments(trl.RewardConfig, folder, **{"bf16": False, "max_steps": 20, **more})
    return trl.RewardTrainer(model, args, train_dataset=preferences(), processing_class=tokenizer())


_STEPS: Final[dict[str, Any]] = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 3}
_PROMPT: Final[dict[str, Any]] = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 4}
SCRIPTS: Final[dict[str, tuple[Made, dict[str, Any]]]] = {
    "Llama": (plain, {"model": llama}),
    "GPT-2, evaluation of two data sets": (
        plain, {"eval_dataset": {"a": encoded(6), "b": encoded(5)}, "eval_on_start": True, **_EVALUATES}
    ),
    "GPT-2, accumulation, checkpoints, best model": (
        plain,
        {"eval_dataset": encoded(6), "save_strategy": "steps", "save_steps": 5, "load_best_model_at_end": True,
         "lr_scheduler_type": "cosine", "warmup_steps": 3, **_EVALUATES, **_STEPS},
    ),
    "GPT-2, early stopping": (
        plain,
        {"callbacks": [EarlyStoppingCallback(1, 10.0)], "eval_dataset": encoded(4), **_EVALUATES,
         "save_strategy": "steps", "save_steps": 5, "load_best_model_at_end": True},
    ),
    "GPT-2, 2.5 epochs": (plain, {"max_steps": -1, "num_train_epochs": 2.5}),
    "GPT-2, last batch dropped": (plain, {"dataloader_drop_last": True, "per_device_train_batch_size": 6}),
    "GPT-2, groups by length, evaluation": (
        plain, {"train_sampling_strategy": "group_by_length", "eval_dataset": encoded(6), **_EVALUATES}
    ),
    "GPT-2, label smoothing": (plain, {"label_smoothing_factor": 0.1}),
    "GPT-2, SGD without clipping": (plain, {"optim": "sgd", "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}),
    "GPT-2, own optimizer and schedule": (layered, {}),
    "GPT-2, `compute_loss_func`": (plain, {"compute_loss_func": focal, **_STEPS}),
    "GPT-2, streamed": (streamed, {}),
    "Llama, own `compute_loss` that logs": (plain, {"kind": Own, "model": llama}),
    "Llama, activation checkpointing": (plain, {"gradient_checkpointing": True, "model": llama}),
    "Llama, classification": (classified, {}),
    "T5, translation, evaluation generates": (translated, {}),
    "BERT, masks, evaluation by epoch": (
        masked, {"max_steps": -1, "num_train_epochs": 2, "eval_dataset": encoded(6), "eval_strategy": "epoch"}
    ),
    "BERT, masks, evaluation by steps": (masked, {"eval_dataset": encoded(6), **_EVALUATES, **_STEPS}),
    "BERT, sentences": (labelled, {"kind": "SequenceClassification"}),
    "BERT, tokens": (labelled, {"kind": "TokenClassification"}),
    "BERT, answers": (labelled, {"kind": "QuestionAnswering"}),
    "BERT, choices": (labelled, {"kind": "MultipleChoice"}),
    "ViT, short last batch": (pictures, {}),
    "ViT, random augmentation, evaluation": (pictures, {"augments": True, "dataloader_drop_last": True}),
    "ResNet": (pictures, {"kind": "ResNet", "dataloader_drop_last": True}),
    "Wav2Vec2, short last batch": (sounds, {}),
    "Prompt tuning": (virtual, {"config": peft.PromptTuningConfig(**_PROMPT)}),
    "Prefix tuning": (virtual, {"config": peft.PrefixTuningConfig(**_PROMPT)}),
    "P-tuning": (virtual, {"config": peft.PromptEncoderConfig(**_PROMPT, encoder_hidden_size=16)}),
    "SFT": (sft, {}),
    "SFT, GPT-2": (sft, {"model": gpt2}),
    "SFT, LoRA, accumulation": (sft, {"peft": lora(), "logging_steps": 3, **_STEPS}),
    "SFT, evaluation": (sft, {"held": 6, **_EVALUATES}),
    "SFT, packed": (sft, {"packing": True, "max_length": 32, "per_device_train_batch_size": 1}),
    "SFT, packed, LoRA": (sft, {"packing": True, "max_length": 32, "per_device_train_batch_size": 2, "peft": lora()}),
    "SFT, packed, wrapped": (sft, {"packing": True, "packing_strategy": "wrapped", "max_length": 32}),
    "SFT, without padding": (sft, {"padding_free": True, "max_length": None}),
    "SFT, completions": (sft, {"data": completions}),
    "SFT, chats": (sft, {"data": chats}),
    "SFT, DFT": (sft, {"loss_type": "dft"}),
    "SFT, DoRA": (sft, {"peft": lora(use_dora=True)}),
    "DPO": (dpo, {}),
    "DPO, LoRA, accumulation": (dpo, {"peft": lora(), "gradient_accumulation_steps": 2, "logging_steps": 3}),
    "DPO, reference computed before": (dpo, {"precompute_ref_log_probs": True}),
    "Reward": (reward, {"gradient_accumulation_steps": 2, "logging_steps": 3}),
}  # fmt: skip


def measure(folder: Path, script: str) -> tuple[int, float, float, float]:
    """Trains a script both ways; gives its steps, and how far losses, other logs and weights are apart at most.

    Losses and logs: relative to the original's if that is beyond 1. Both log the same things at the same steps.
    """
    make, more = SCRIPTS[script]
    found = []
    for name, train in (("theirs", Trainer.train), ("ours", tiebreak.hf.train)):
        trainer = make(folder / name, **more)
        trainer.remove_callback(PrinterCallback)
        set_seed(5)
        train(trainer)
        found.append(trainer)
    theirs, ours = found
    logs = [[_untimed(line) for line in trainer.state.log_history] for trainer in found]
    assert [line.keys() for line in logs[0]] == [line.keys() for line in logs[1]]
    assert (theirs.state.global_step, theirs.state.best_global_step) == (
        ours.state.global_step, ours.state.best_global_step
    )  # fmt: skip
    pairs = [(name, line[name], other[name]) for line, other in zip(*logs, strict=True) for name in line]
    apart = [(name, abs(a - b) / max(1.0, abs(a))) for name, a, b in pairs]
    state = ours.model.state_dict()
    weights = max(float((state[name] - tensor).abs().max()) for name, tensor in theirs.model.state_dict().items())
    return (
        theirs.state.global_step, max(d for name, d in apart if name == "loss"),
        max(d for name, d in apart if name != "loss"), weights,
    )  # fmt: skip


def _untimed(line: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in line.items() if not name.endswith(_TIMED)}


def table() -> dict[str, tuple[int, float, float, float]]:
    """The figures that benchmarks/results/huggingface.md states."""
    rows = re.findall(r"^\| (.+) \| (\d+) \| (\S+) \| (\S+) \| (\S+) \|$", PAGE.read_text(), re.MULTILINE)
    return {script: (int(steps), float(a), float(b), float(c)) for script, steps, a, b, c in rows}


def main() -> None:
    """Measures the scripts named, or all, and writes the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    known = table()
    for script in sys.argv[1:] or SCRIPTS:
        with tempfile.TemporaryDirectory() as folder:
            known[script] = measure(Path(folder), script)
        print(script, *known[script], flush=True)
    rows = [(script, known[script]) for script in SCRIPTS if script in known]
    lines = [
        f"| {script} | {steps} | " + " | ".join(f"{d:.0e}" for d in apart) + " |" for script, (steps, *apart) in rows
    ]
    before, _, rest = PAGE.read_text().partition(HEAD)
    after = rest[rest.index("\n\n") :]
    PAGE.write_text(before + HEAD + "\n".join(lines) + after)


if __name__ == "__main__":
    main()
