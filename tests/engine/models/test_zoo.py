"""Model classes of `transformers` of all kinds, tiny and with random weights: each passes capture's check.

Settings are the library's defaults except for sizes, and for layerdrop, which is 0: capture refuses other values.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.engine.lowering_bench import make_task
from tests.engine.together import train_alone, train_together
from tests.parts import slow_except
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.distributed import partition

pytestmark = pytest.mark.slow

EXAMPLES, LENGTH, VOCABULARY, PIXELS = 4, 8, 31, 32
PART = VOCABULARY - 1
"""The token of a part of an image."""

Data = dict[str, Tensor]
Settings = dict[str, Any]


def tokens() -> Tensor:
    """Random tokens, none of them a special one."""
    return torch.randint(2, VOCABULARY, (EXAMPLES, LENGTH))


def text() -> Data:
    return {"input_ids": tokens(), "labels": tokens()}


def pixels() -> Data:
    return {"pixel_values": torch.randn(EXAMPLES, 3, PIXELS, PIXELS)}


def images() -> Data:
    return pixels() | {"labels": torch.arange(EXAMPLES) % 2}


def captions() -> Data:
    return pixels() | {"input_ids": tokens()}


def illustrated_text() -> Data:
    """Texts in which four tokens stand for the parts of an image."""
    text = tokens().clamp(max=PART - 1)
    text[:, 2:6] = PART
    return pixels() | {"input_ids": text, "labels": text}


def spectra() -> Data:
    return {"input_values": torch.randn(EXAMPLES, 32, 16), "labels": torch.arange(EXAMPLES) % 2}


LAYERS: Settings = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TEXT: Settings = {
    "vocab_size": VOCABULARY, "max_position_embeddings": 32, **LAYERS, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip
DECODER: Settings = {**TEXT, "num_key_value_heads": 1}
MIXTURE: Settings = {
    **DECODER, "num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
}  # fmt: skip
LATENT: Settings = {
    **MIXTURE, "num_key_value_heads": 2, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 2, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
IMAGE: Settings = {"num_labels": 2, "image_size": PIXELS}
VIT: Settings = {**IMAGE, "patch_size": 8, **LAYERS}
MASKED: Settings = {
    **LAYERS, "image_size": PIXELS, "patch_size": 8, "decoder_hidden_size": 8, "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2, "decoder_intermediate_size": 12,
}  # fmt: skip
SWIN: Settings = {**IMAGE, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}
RESNET: Settings = {
    "num_labels": 2, "hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8, "layer_type": "bottleneck",
}  # fmt: skip
LLAVA: Settings = {
    "text_config": {"model_type": "llama", **DECODER},
    "vision_config": {"model_type": "clip_vision_model", **VIT, "patch_size": 16},
    "image_token_id": PART, "image_token_index": PART, "projection_dim": 16,
}  # fmt: skip
ZOO: dict[str, tuple[Callable[[], Data], Settings]] = {
    "MambaForCausalLM": (text, {**DECODER, "state_size": 4}),
    "MixtralForCausalLM": (text, MIXTURE),
    "DeepseekV3ForCausalLM": (text, LATENT),
    "SwinForImageClassification": (images, SWIN),
    "ResNetForImageClassification": (images, RESNET),
    "ViTMAEForPreTraining": (pixels, MASKED),
    "CLIPModel": (captions, {"text_config": TEXT, "vision_config": VIT, "projection_dim": 8}),
    "LlavaForConditionalGeneration": (illustrated_text, LLAVA),
    "ASTForAudioClassification": (spectra, {**VIT, "max_length": 32, "num_mel_bins": 16}),
}
"""The classes by name: their data, and the settings of their configurations."""
COMBINED = ("CLIPModel", "LlavaForConditionalGeneration", "ASTForAudioClassification")
"""What has the parts of models that other tests capture."""
SHARED = {"MambaForCausalLM", "MixtralForCausalLM", "SwinForImageClassification", "ResNetForImageClassification"}
"""Three workers also make their runs."""


def loss(model: nn.Module, **batch: Tensor) -> Tensor:
    contrastive = {"return_loss": True} if "CLIP" in type(model).__name__ else {}
    return model(**batch, **contrastive).loss


@pytest.mark.parametrize("name", slow_except(ZOO, nightly=COMBINED))
def test_transformers_model_classes_pass_the_capture_check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "LEAST", 1)  # even the smallest values are held in shards
    torch.manual_seed(0)
    kind, (data, settings) = getattr(transformers, name), ZOO[name]
    model = kind(kind.config_class(**settings)).train()
    compiled = checked(make_task(model, data(), rate=0.1, loss=loss))
    if name in SHARED:
        assert train_together(compiled, 3, 3)[0] == train_alone(compiled, 3)[0]
