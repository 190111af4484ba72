"""Trainers in one or several processes: `torchrun ... launched.py [KIND, WHOSE, FOLDER, BATCH, MORE]`, in JSON.

MORE are arguments of the trainer; and `check`: that of the capture; `dies`: the rank that is killed, and the event and
step in which; `stops`: the rank whose callback ends the training, and the step, after which the run is evaluated;
`lacks`: the rank whose data lack the last example.
Without a launcher, the JSON is a list of those, each with the number of processes before it.
"""

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import tests.tiebreak.absent_libraries  # isort: skip  # noqa: F401  # before what would load them

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import Trainer, TrainerCallback, set_seed

import tiebreak
from tests.tiebreak.hf_cases import arguments, encoded, llama, preferences, texts, tokenizer
from tests.tiebreak.hf_scripts import classified, plain
from tests.waiting import free_port
from tiebreak.engine.distributed import partition


def _llama() -> Any:
    """With one of its layers."""
    made = llama()
    del made.model.layers[1:]
    made.config.num_hidden_layers = 1
    return made


def _sft(folder: Path, **more: Any) -> Trainer:
    args = arguments(trl.SFTConfig, folder, bf16=False, max_length=32, **more)
    return trl.SFTTrainer(
        model=_llama(), args=args, train_dataset=Dataset.from_dict({"text": texts(48)}), processing_class=tokenizer(),
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
    )  # fmt: skip


def _dpo(folder: Path, **more: Any) -> Trainer:
    args = arguments(trl.DPOConfig, folder, bf16=False, max_length=40, beta=0.3, **more)
    return trl.DPOTrainer(
        model=_llama(), args=args, train_dataset=preferences(), processing_class=tokenizer(),
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
    )  # fmt: skip


def _classification(folder: Path, **more: Any) -> Trainer:
    """With evaluation on a last batch that is short, saving and the best model."""

    def right(found: Any) -> dict[str, float]:
        return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}

    rows = encoded(10).add_column("labels", [i % 3 for i in range(10)])
    made = classified(
        folder, eval_dataset=rows, eval_strategy="steps", eval_steps=5, save_strategy="steps", save_steps=5,
        load_best_model_at_end=True, metric_for_best_model="eval_loss", **more,
    )  # fmt: skip
    made.compute_metrics = right
    made.model_accepts_loss_kwargs = False  # or Trainer multiplies the loss, a mean anyway, by the number of processes
    return made


def _accumulation(folder: Path, **more: Any) -> Trainer:
    settings = {"gradient_accumulation_steps": 3, "max_grad_norm": 0.1, "num_train_epochs": 2, "max_steps": -1}
    return plain(folder, **{**settings, **more})


def _uneven(folder: Path, **more: Any) -> Trainer:
    saves = {"save_strategy": "steps", "save_steps": 5, "eval_strategy": "steps", "eval_steps": 5}
    return plain(folder, train_dataset=encoded(38), eval_dataset=encoded(6), **saves, **more)


MADE: Final[dict[str, Callable[..., Trainer]]] = {
    "sft": _sft, "dpo": _dpo, "classification": _classification, "accumulation": _accumulation, "uneven": _uneven,
}  # fmt: skip


class _Dies(TrainerCallback):
    """Kills one process at an event of a step."""

    def __init__(self, rank: int, event: str, step: int) -> None:
        setattr(self, event, lambda args, state, control, **_: self._at(args.process_index == rank, state, step))

    def _at(self, mine: bool, state: Any, step: int) -> None:
        if mine and state.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)


class _Stops(TrainerCallback):
    """Ends the training in one process after a step; only the first one logs at each."""

    def __init__(self, trainer: Trainer, rank: int, step: int) -> None:
        self.trainer, self.rank, self.step = trainer, rank, step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not args.process_index:
            self.trainer.log({"note": 1.0})
        control.should_training_stop = args.process_index == self.rank and state.global_step == self.step


def run(kind: str, whose: str, folder: str, batch: int, more: dict[str, Any]) -> None:
    """Trains in this process, one of those that the environment names, and writes its log."""
    torch.set_num_threads(1)
    vars(partition)["LEAST"] = 1  # held in shards however small: the tiny job's values would all be whole
    given = dict(more)
    check, dies, stops, lacks = (given.pop(name, None) for name in ("check", "dies", "stops", "lacks"))
    set_seed(5)
    trainer = MADE[kind](Path(folder), per_device_train_batch_size=batch, **given)
    for callback in [_Dies(*dies)] if dies else [_Stops(trainer, *stops)] if stops else []:
        trainer.add_callback(callback)
    if lacks == trainer.args.process_index:
        trainer.train_dataset = encoded(39)
    collate, drawn = trainer.data_collator, cast("Any", [])
    trainer.data_collator = lambda rows: drawn.append(len(rows)) or collate(rows)
    set_seed(5)
    if whose == "ours":
        tiebreak.hf.train(trainer, check=check or "full")
    else:
        trainer.train()
    if stops:
        tiebreak.hf.evaluate(trainer)
    for name, found in {"log": trainer.state.log_history, "drawn": [len(drawn), torch.rand(()).item()]}.items():
        Path(folder, f"{name}-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found), encoding="utf-8")


def _forked(rank: int, count: int, port: int, given: list[Any]) -> None:
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    if count > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in places.items()}}
    run(*given)


def main() -> None:
    """Under a launcher, one training; else each of a list, in processes that share imports."""
    given = json.loads(sys.argv[1])
    if "RANK" in os.environ:
        run(*given)
        return
    _ = tiebreak.hf.train, trl.SFTTrainer, trl.DPOTrainer  # which are imported when they are first named
    fork, codes = multiprocessing.get_context("fork"), []
    for count, *rest in given:
        port = free_port()
        begun = [fork.Process(target=_forked, args=(rank, count, port, rest)) for rank in range(count)]
        for process in begun:
            process.start()
        for process in begun:
            process.join()
        codes.append([process.exitcode for process in begun])
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
