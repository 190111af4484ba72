"""Tiny models, a tokenizer and data for trainers of transformers and TRL, without a network."""

import random
from pathlib import Path
from typing import Any, Final

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer
from transformers.trainer_callback import TrainerCallback

VOCABULARY: Final = 300
_WORDS: Final = [
    "the", "a", "model", "data", "loss", "step", "train", "token", "batch", "graph", "proof", "chain", "run",
]  # fmt: skip
_TEMPLATE: Final = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ARGUMENTS: Final[dict[str, Any]] = {
    "use_cpu": True, "max_steps": 20, "per_device_train_batch_size": 4, "logging_steps": 1, "report_to": "none",
    "save_strategy": "no", "learning_rate": 1e-3, "seed": 5, "disable_tqdm": True, "adam_epsilon": 1e-6,
}  # fmt: skip


def texts(count: int = 40, seed: int = 7, longest: int = 20) -> list[str]:
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(_WORDS, k=drawn.randint(4, longest))).capitalize() + "." for _ in range(count)]


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE(unk_token=None))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tokens = ["<pad>", "<eos>", "<|user|>", "<|assistant|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts(), trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, special_tokens=tokens)
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", chat_template=_TEMPLATE)


def llama(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, pad_token_id=0, eos_token_id=1, bos_token_id=None,
        tie_word_embeddings=False, loss_type="ForCausalLMLoss",
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype)


def gpt2(dropout: float = 0.0) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_layer=1, n_embd=16, n_head=2, bos_token_id=1, eos_token_id=1,
        pad_token_id=0, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, loss_type="ForCausalLMLoss",
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def encoded(count: int = 40, longest: int = 20) -> Dataset:
    made = tokenizer()
    return Dataset.from_dict({"input_ids": [made(text).input_ids for text in texts(count, longest=longest)]})


def preferences(count: int = 24) -> Dataset:
    given = {"prompt": texts(count, 1, 6), "chosen": texts(count, 2), "rejected": texts(count, 3)}
    return Dataset.from_dict({n: [(" " if n != "prompt" else "") + t for t in rows] for n, rows in given.items()})


class Interrupts(TrainerCallback):
    """Ends the process, as Ctrl-C would, after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


def arguments(kind: Any, folder: Path, **more: Any) -> Any:
    return kind(output_dir=str(folder), **{**ARGUMENTS, **more})


def losses(trainer: Trainer, name: str = "loss") -> torch.Tensor:
    return torch.tensor([line[name] for line in trainer.state.log_history if name in line], dtype=torch.float64)
