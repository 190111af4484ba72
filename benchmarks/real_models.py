"""The models of real sizes trained on a GPU: GPT-2 124M, ResNet-50, Llamas of 60M and 1B. Dropout as they come."""

from importlib import import_module
from typing import Any, Final

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from tiebreak import SGD, AdamW, Batch, Rows, Task, Windows

REAL: Final = ("gpt2-124m", "resnet-50", "llama-60m")
BF16: Final = ("gpt2-124m-bf16", "llama-1b-lora", "llama-1b-lora-all")
FOUR_BIT: Final = ("llama-1b-4bit",)
"""Models in 4 bits, which need bitsandbytes."""
SMALL: Final = ("gpt2-small", "gpt2-small-bf16", "resnet-small", "llama-small-lora", "llama-small-lora-all")
"""Small models, to try on a CPU what is meant for a GPU: they take seconds, and nobody uses them otherwise."""


def next_token(model: nn.Module, window_BT: Tensor) -> Tensor:
    """Mean cross entropy of each token after the first; the causal mask is given, so no library decides it."""
    input_BT, T = window_BT[:, :-1], window_BT.shape[1] - 1
    mask = torch.ones(T, T, dtype=torch.bool, device=input_BT.device).tril()[None, None]
    logits = model(input_ids=input_BT, attention_mask=mask, use_cache=False).logits
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), window_BT[:, 1:].reshape(-1))


def next_token_bf16(model: nn.Module, window_BT: Tensor) -> Tensor:
    """The same, with the model under bfloat16 autocast."""
    with torch.autocast(window_BT.device.type, torch.bfloat16):
        return next_token(model, window_BT)


class LoRA(nn.Module):
    """A linear layer that stays as it is, plus a trained product of two thin matrices, zero at first.

    E. Hu et al., LoRA: low-rank adaptation of large language models (2021), with alpha = 2 * rank.
    """

    def __init__(self, base: nn.Linear, rank: int, *, in_four_bit: bool = False) -> None:
        super().__init__()
        self.base: Any = _in_four_bit(base) if in_four_bit else base
        self.down = nn.Linear(base.in_features, rank, bias=False, dtype=base.weight.dtype)
        self.up = nn.Linear(rank, base.out_features, bias=False, dtype=base.weight.dtype)
        nn.init.zeros_(self.up.weight)

    def forward(self, x_BTC: Tensor) -> Tensor:
        out: Tensor = self.base(x_BTC) + 2 * self.up(self.down(x_BTC))
        return out


def classify(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of an image classifier of `transformers`."""
    return F.cross_entropy(model(pixel_values=images).logits, labels)


def _gpt2(**sizes: int) -> nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def _llama() -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=32000, hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8,
            num_key_value_heads=4, max_position_embeddings=256, attention_dropout=0.1, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def _in_four_bit(linear: nn.Linear) -> nn.Module:
    """A linear layer as QLoRA has it: NF4 with double quantization, computed in the dtype of the given one."""
    bitsandbytes, given = import_module("bitsandbytes"), linear.weight.detach()
    codes, state = bitsandbytes.functional.quantize_4bit(given, quant_type="nf4", compress_statistics=True)
    out, of = given.shape
    layer: Any = bitsandbytes.nn.Linear4bit(of, out, bias=False, compute_dtype=given.dtype, device="meta")
    layer.weight = bitsandbytes.nn.Params4bit(codes, quant_state=state, quant_type="nf4", bnb_quantized=True)
    layer.quant_state = state
    return layer


def _with_lora(
    config: transformers.LlamaConfig, rank: int, *, everywhere: bool = False, in_four_bit: bool = False
) -> nn.Module:
    """A Llama in bfloat16; only LoRA of its queries and values is trained, which is the default of PEFT.

    everywhere: of all linear layers but the head. in_four_bit: holds these layers in 4 bits.
    """
    model = transformers.LlamaForCausalLM(config).bfloat16().requires_grad_(requires_grad=False)
    for part in [part for layer in model.model.layers for part in (layer.self_attn, layer.mlp)]:
        for name in [n for n, m in part.named_children() if isinstance(m, nn.Linear)]:
            if everywhere or name in ("q_proj", "v_proj"):
                setattr(part, name, LoRA(getattr(part, name), rank, in_four_bit=in_four_bit))
    return model


def _llama_1b(length: int) -> transformers.LlamaConfig:
    """The sizes of Llama 3.2 1B: 1.24 billion parameters."""
    return transformers.LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=length, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


def _text(
    name: str, model: nn.Module, vocabulary: int, batch: int, length: int, steps: int, *, mixed: bool = False
) -> Task:
    tokens = torch.randint(0, vocabulary, (steps * batch * length + 1,))
    return Task(
        name=name,
        model=model,
        loss=next_token_bf16 if mixed else next_token,
        optimizer=AdamW(lr=3e-4, weight_decay=0.01),
        data={"text": tokens},
        batch=Batch(size=batch, examples=Windows(name="text", length=length + 1, stride=length)),
        steps=steps,
        checkpoint_interval=steps,
    )


def _images(name: str, model: nn.Module, batch: int, size: int, steps: int) -> Task:
    count = 4 * batch
    return Task(
        name=name,
        model=model,
        loss=classify,
        optimizer=SGD(lr=0.05, momentum=0.9),
        data={"images": torch.randn(count, 3, size, size), "labels": torch.randint(0, 10, (count,))},
        batch=Batch(size=batch, examples=Rows(names=("images", "labels"))),
        steps=steps,
        checkpoint_interval=steps,
    )


def make_real_task(
    name: str, steps: int, *, size: int = 1, length: int = 64, pixels: int = 32, layers: int = 1
) -> Task:
    """A task with weights and data that torch draws here and now: within a process, one state.

    size: a factor of the batch. length: tokens of an example of GPT-2 and of the Llama of 1B, whose batch is one.
    pixels: the width of ResNet-50's images. layers: of the small GPT-2s, and of one as wide as a Llama of 7B.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        match name:
            case "gpt2-124m" | "gpt2-124m-bf16":
                return _text(name, _gpt2(), 50257, 8 * size, length, steps, mixed=name.endswith("bf16"))
            case "gpt2-wide":
                wide = _gpt2(n_embd=4096, n_head=32, n_layer=layers, n_positions=length)
                return _text(name, wide, 50257, size, length, steps)
            case "llama-1b-lora" | "llama-1b-lora-all" | "llama-1b-4bit":
                is_four_bit = name.endswith("4bit")
                everywhere = is_four_bit or name.endswith("all")
                llama_1b = _with_lora(_llama_1b(length), 16, everywhere=everywhere, in_four_bit=is_four_bit)
                return _text(name, llama_1b, 128256, size, length, steps)
            case "llama-60m":
                return _text(name, _llama(), 32000, 8 * size, 64, steps)
            case "resnet-50":
                model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=10))
                return _images(name, model, 16 * size, pixels, steps)
            case "gpt2-small" | "gpt2-small-bf16":
                model = _gpt2(vocab_size=97, n_positions=16, n_embd=16, n_layer=layers, n_head=2)
                return _text(name, model, 97, 2, 8, steps, mixed=name.endswith("bf16"))
            case "llama-small-lora" | "llama-small-lora-all":
                llama = transformers.LlamaConfig(
                    vocab_size=97, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                    num_key_value_heads=1, max_position_embeddings=16, bos_token_id=0, eos_token_id=0,
                )  # fmt: skip
                return _text(name, _with_lora(llama, 2, everywhere=name.endswith("all")), 97, 1, 8, steps)
            case "resnet-small":
                config = transformers.ResNetConfig(
                    embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=10
                )
                return _images(name, transformers.ResNetForImageClassification(config), 2, 16, steps)
    raise ValueError(f"expected one of {(*REAL, *BF16, *SMALL)}, got {name!r}")
