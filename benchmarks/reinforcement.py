"""The cost of a GRPO step as a run, with and without exact sampling, against TRL's own step in the same process.

A Llama as wide as GPT-2 small samples, and one processor computes: with one thread, what else runs on a machine hardly
changes the processor time of a step. All three train in turn; each step but a training's first is measured, and of
each part the least counts. Predicted before the first measurement: 1.9 times TRL's step for a run, 3.0 times with exact
sampling, of which 1.3 s for the exact pass and 0.5 s for the noise of drafts; none of the drafted tokens corrected.
"""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import click
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

import tiebreak
from benchmarks.table import Row, placed, publish, rows_of
from tiebreak.api.huggingface import hf_training, sampled_rollouts, trainer_loop
from tiebreak.api.huggingface.sampled_rollouts import SampledRollouts
from tiebreak.api.machine import Machine
from tiebreak.engine.run.interpreter import Interpreter

ORIGINAL: Final = "trainer.train()"
KINDS: Final[dict[str, Callable[[Any], Any]]] = {
    ORIGINAL: lambda trainer: trainer.train(),
    "a run": partial(tiebreak.hf.train, machine=Machine(threads=1), check="none"),
    "exact_sampling": partial(tiebreak.hf.train, machine=Machine(threads=1), check="none", exact_sampling=True),
}
PARTS: Final[dict[str, tuple[tuple[Any, str], ...]]] = {
    "drafting": ((LlamaForCausalLM, "generate"),),
    "noise of drafts": ((sampled_rollouts, "noise_of"),),
    "exact pass that checks": ((SampledRollouts, "_exact"),),
    "rewards": ((GRPOTrainer, "_calculate_rewards"),),
    "the engine's step": ((Interpreter, "step"),),
    "weights to and from the model": ((SampledRollouts, "_state"), (trainer_loop._Driven, "write")),
    "loss in PyTorch": ((GRPOTrainer, "compute_loss"),),
}
"""The functions that compute each part of a step. The time of one within another is not the other's."""
REST: Final = "everything else"
COMMITTING: Final = "checkpoint, in the background"
"""The work of other threads: they hash and store a checkpoint's state, while the next step is drafted."""


class Clock(TrainerCallback):
    """Processor seconds of each step, by part."""

    def __init__(self) -> None:
        self.steps, self._open, self._since = list[Counter[str]](), [REST], (0.0, 0.0)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.steps.append(Counter())
        self._since = time.thread_time(), time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._pass()

    def _pass(self) -> None:
        now = time.thread_time(), time.process_time()
        own, whole = (after - before for after, before in zip(now, self._since, strict=True))
        self.steps[-1] += Counter({self._open[-1]: own, COMMITTING: whole - own})
        self._since = now

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **given: Any) -> Any:
            if not self.steps:  # a capture
                return function(*args, **given)
            self._pass()
            self._open.append(name if self._open == [REST] or name != "the engine's step" else self._open[-1])
            try:
                return function(*args, **given)
            finally:
                self._pass()
                self._open.pop()

        return timed

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, places in PARTS.items():
                for holder, attribute in places:
                    timed = self.of(name, getattr(holder, attribute))
                    stack.enter_context(patch.object(holder, attribute, timed))
            yield


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of UTF-8 bytes, so that no file of a vocabulary is needed."""
    names = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({name: n for n, name in enumerate(names)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def make(
    folder: Path, clock: Clock, *, layers: int, vocabulary: int, length: int, rows: int, accumulation: int, steps: int
) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=768, intermediate_size=2048, num_hidden_layers=layers,
        num_attention_heads=12, max_position_embeddings=256, pad_token_id=0, eos_token_id=1, bos_token_id=None,
        tie_word_embeddings=True,
    )  # fmt: skip
    drawn = random.Random(5)
    prompts = ["".join(drawn.choices("abcdefgh ", k=drawn.randint(8, 16))) for _ in range(4 * rows)]
    args = GRPOConfig(
        str(folder), use_cpu=True, bf16=False, max_steps=steps, per_device_train_batch_size=rows, num_generations=4,
        gradient_accumulation_steps=accumulation,
        max_completion_length=length, save_strategy="no", report_to="none", disable_tqdm=True, logging_steps=1,
        gradient_checkpointing=False, seed=5,
    )  # fmt: skip
    trainer = GRPOTrainer(
        LlamaForCausalLM(config), lambda completion_ids, **_: [float(len(set(ids))) for ids in completion_ids], args,
        train_dataset=Dataset.from_dict({"prompt": prompts}), processing_class=tokenizer(), callbacks=[clock],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer


def measure(rounds: int, **sizes: int) -> tuple[dict[str, Counter[str]], list[SampledRollouts]]:
    """The least of each part, by kind; and what sampled with `exact_sampling`."""
    found: dict[str, list[Counter[str]]] = {kind: [] for kind in KINDS}
    samplers = list[SampledRollouts]()

    def sampling(*args: Any) -> SampledRollouts:
        samplers.append(SampledRollouts(*args))
        return samplers[-1]

    with patch.object(hf_training, "SampledRollouts", sampling):
        for _ in range(rounds):
            for kind, train in KINDS.items():
                clock = Clock()
                with tempfile.TemporaryDirectory() as folder:
                    trainer = make(Path(folder), clock, **sizes)
                    with clock.running():
                        train(trainer)
                found[kind] += clock.steps[-sizes["steps"] + 1 :]
    least = {
        kind: Counter({n: min(step[n] for step in steps) for n in (*PARTS, REST, COMMITTING)})
        for kind, steps in found.items()
    }
    return least, samplers


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True)
@click.option("--layers", type=click.IntRange(1), default=4, show_default=True)
@click.option("--vocabulary", type=click.IntRange(300), default=32_000, show_default=True)
@click.option("--length", type=click.IntRange(1), default=32, show_default=True, help="Tokens of a completion.")
@click.option("--rows", type=click.IntRange(4), default=8, show_default=True, help="Completions of a micro-batch.")
@click.option("--accumulation", type=click.IntRange(1), default=1, show_default=True, help="Micro-batches of a step.")
@click.option("--steps", type=click.IntRange(2), default=4, show_default=True)
@placed
def main(rounds: int, folder: Path, **sizes: int) -> None:
    torch.set_num_threads(1)
    found, samplers = measure(rounds, **sizes)
    case = "{layers} layers, {accumulation} x {rows} x {length} of {vocabulary:,} tokens".format_map(sizes)
    rows, base = list[Row](), found[ORIGINAL].total()
    for kind, parts in found.items():
        seconds = {"a step": parts.total(), **{name: parts[name] for name in (*PARTS, REST, COMMITTING) if parts[name]}}
        rows += rows_of(f"{case}: {kind}", "s", {name: round(value, 3) for name, value in seconds.items()})
        rows += rows_of(f"{case}: {kind}", "", {"against trainer.train()": round(parts.total() / base, 2)})
    drafted, corrected = (sum(getattr(one, name) for one in samplers) for name in ("drafted", "corrected"))
    counts = {"drafted": drafted, "corrected": corrected}
    rows += rows_of(f"{case}: exact_sampling", "tokens", counts)
    publish("reinforcement", rows, folder=folder)


if __name__ == "__main__":
    main()
