"""A script of a trainer, for one or several processes: `... launched.py KIND OURS|THEIRS FOLDER BATCH [MORE]`."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import Trainer, TrainerCallback, set_seed

import tiebreak
from tests.tiebreak.hf_cases import arguments, encoded, llama, preferences, texts, tokenizer
from tests.tiebreak.hf_scripts import classified


def _sft(folder: Path, **more: Any) -> Trainer:
    from trl import SFTConfig, SFTTrainer  # noqa: PLC0415 - with it comes wandb, a second and a half

    args = arguments(SFTConfig, folder, bf16=False, max_length=32, **more)
    set_seed(5)
    return SFTTrainer(
        model=llama(), args=args, train_dataset=Dataset.from_dict({"text": texts(48)}), processing_class=tokenizer(),
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
    )  # fmt: skip


def _classification(folder: Path, **more: Any) -> Trainer:
    """With a last batch that is short, evaluation, saving and the best model."""

    def right(found: Any) -> dict[str, float]:
        return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}

    rows = encoded(10).add_column("labels", [i % 3 for i in range(10)])
    made = classified(
        folder, eval_dataset=rows, eval_strategy="steps", eval_steps=5, save_strategy="steps", save_steps=5,
        load_best_model_at_end=True, metric_for_best_model="eval_loss", **more,
    )  # fmt: skip
    made.compute_metrics = right
    return made


def _accumulation(folder: Path, **more: Any) -> Trainer:
    from tests.tiebreak.hf_scripts import plain  # noqa: PLC0415

    return plain(folder, gradient_accumulation_steps=3, max_grad_norm=0.1, num_train_epochs=2, max_steps=-1, **more)


MADE: Final[dict[str, Callable[..., Trainer]]] = {
    "sft": _sft, "classification": _classification, "accumulation": _accumulation
}  # fmt: skip


def main() -> None:
    kind, whose, folder, batch, *more = sys.argv[1:]
    torch.set_num_threads(1)
    trainer = MADE[kind](Path(folder), per_device_train_batch_size=int(batch), **json.loads(more[0] if more else "{}"))
    set_seed(5)
    (tiebreak.hf.train if whose == "ours" else type(trainer).train)(trainer)
    log = json.dumps(trainer.state.log_history)
    Path(folder, f"log-{os.environ.get('RANK', '0')}.json").write_text(log, encoding="utf-8")


if __name__ == "__main__":
    main()
