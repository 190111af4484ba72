"""Model classes of `transformers`, tiny and with random weights: each passes capture's check or is refused with advice.

Settings are the library's defaults except for sizes, and for layerdrop, which is 0: capture refuses other values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from tests.engine.lowering_bench import make_task
from tests.engine.together import train_alone, train_together
from tiebreak.engine.run.eager import checked
from tiebreak.protocol.errors import ConfigurationError

EXAMPLES, LENGTH, REPLY, VOCABULARY, PIXELS = 4, 8, 5, 31, 32
PART = VOCABULARY - 1
"""The token of a part of an image."""

Data = dict[str, Tensor]
Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """How to try one class: makes its data, and the settings of its configuration."""

    data: Callable[[], Data]
    settings: Settings


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a class: one word, and more about it.

    passes; refused (with the message); raw (an exception of another kind); broken (torch does not run it); differs
    (several workers do not make the run of one).
    """

    kind: str
    detail: str


# Data


def tokens(*shape: int) -> Tensor:
    """Random tokens, none of them a special one."""
    return torch.randint(2, VOCABULARY, shape)


def halves() -> Tensor:
    """A label of 0 or 1 for each example."""
    return torch.arange(EXAMPLES) % 2


def text() -> Data:
    """A label for each token."""
    return {"input_ids": tokens(EXAMPLES, LENGTH), "labels": tokens(EXAMPLES, LENGTH)}


def labelled_text() -> Data:
    """A label for each text."""
    return {"input_ids": tokens(EXAMPLES, LENGTH), "labels": halves()}


def replies() -> Data:
    """Texts, each with a reply."""
    reply = tokens(EXAMPLES, REPLY)
    return {"input_ids": tokens(EXAMPLES, LENGTH), "decoder_input_ids": reply, "labels": reply}


def pixels() -> Data:
    """Images alone."""
    return {"pixel_values": torch.randn(EXAMPLES, 3, PIXELS, PIXELS)}


def images() -> Data:
    """A label for each image."""
    return pixels() | {"labels": halves()}


def captions() -> Data:
    """An image for each text."""
    return pixels() | {"input_ids": tokens(EXAMPLES, LENGTH)}


def illustrated_text() -> Data:
    """Texts in which four tokens stand for the parts of an image."""
    text = tokens(EXAMPLES, LENGTH).clamp(max=PART - 1)
    text[:, 2:6] = PART
    return pixels() | {"input_ids": text, "labels": text}


def spectra() -> Data:
    """A label for each spectrogram, time first."""
    return {"input_values": torch.randn(EXAMPLES, 32, 16), "labels": halves()}


# Configurations

SPECIAL: Settings = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1}
LAYERS: Settings = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TEXT: Settings = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, **LAYERS, **SPECIAL}
DECODER: Settings = {**TEXT, "num_key_value_heads": 1}
MIXTURE: Settings = {
    **DECODER, "num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
}  # fmt: skip
LATENT: Settings = {
    **MIXTURE, "num_key_value_heads": 2, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 2, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
T5: Settings = {
    "vocab_size": VOCABULARY, "d_model": 16, "d_ff": 24, "d_kv": 8, "num_layers": 2, "num_heads": 2,
    "decoder_start_token_id": 0,
}  # fmt: skip
IMAGE: Settings = {"num_labels": 2, "image_size": PIXELS}
VIT: Settings = {**IMAGE, "patch_size": 8, **LAYERS}
SWIN: Settings = {**IMAGE, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}
RESNET: Settings = {
    "num_labels": 2, "hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8, "layer_type": "bottleneck",
}  # fmt: skip
LLAVA: Settings = {
    "text_config": {"model_type": "llama", **DECODER},
    "vision_config": {"model_type": "clip_vision_model", **VIT, "patch_size": 16},
    "image_token_id": PART, "image_token_index": PART, "projection_dim": 16,
}  # fmt: skip
ZOO: Mapping[str, Entry] = {
    "MambaForCausalLM": Entry(text, {**DECODER, "state_size": 4}),
    "MixtralForCausalLM": Entry(text, MIXTURE),
    "DeepseekV3ForCausalLM": Entry(text, LATENT),
    "T5ForConditionalGeneration": Entry(replies, T5),
    "SwinForImageClassification": Entry(images, SWIN),
    "ResNetForImageClassification": Entry(images, RESNET),
    "CLIPModel": Entry(captions, {"text_config": TEXT, "vision_config": VIT, "projection_dim": 8}),
    "LlavaForConditionalGeneration": Entry(illustrated_text, LLAVA),
    "ASTForAudioClassification": Entry(spectra, {**VIT, "max_length": 32, "num_mel_bins": 16}),
    "DeepseekV2ForCausalLM": Entry(text, LATENT),
    "JetMoeForCausalLM": Entry(text, DECODER),
    **{
        f"{name}ForSequenceClassification": Entry(labelled_text, {**TEXT, "type_vocab_size": 2, "embedding_size": 16})
        for name in ("Bert", "FNet", "DebertaV2")
    },
}
"""The classes by name."""


# Trying


def built(name: str) -> tuple[nn.Module, Data]:
    """The model, in train mode, and its data; the same each time."""
    torch.manual_seed(0)
    kind, entry = getattr(transformers, name), ZOO[name]
    return kind(kind.config_class(**entry.settings)).train(), entry.data()


def loss(model: nn.Module, **batch: Tensor) -> Tensor:
    """The model's own loss."""
    contrastive = {"return_loss": True} if "CLIP" in type(model).__name__ else {}
    found: Tensor = model(**batch, **contrastive).loss
    return found


def outcome(name: str, workers: Sequence[int] = ()) -> Outcome:
    """What becomes of one class, on one machine and on so many workers."""
    try:
        model, data = built(name)
        loss(model, **data).backward()
    except Exception as error:
        return Outcome("broken", f"{type(error).__name__}: {error}")
    model, data = built(name)
    task = make_task(model, data, rate=0.1, loss=loss)
    try:
        compiled = checked(task)
        expected = train_alone(compiled, 3)[0] if workers else []
        for count in workers:
            if train_together(compiled, count, 3)[0] != expected:
                return Outcome("differs", f"on {count} workers")
        return Outcome("passes", f"{len(compiled.program.body)} instructions")
    except ConfigurationError as error:
        return Outcome("refused", str(error))
    except Exception as error:
        return Outcome("raw", f"{type(error).__name__}: {error}")
