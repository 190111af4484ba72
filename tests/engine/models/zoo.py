"""Model classes of `transformers`, tiny and with random weights: each passes capture's check or is refused with advice.

Settings are the library's defaults except for sizes, and for layerdrop, which is 0: capture refuses other values.

`python -m tests.engine.models.zoo [NAME...]` tries the classes whose names contain one of NAME, by default all. With
`--workers N...` it also compares three steps of so many workers with those of one machine.
"""

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from tests.engine.together import train_alone, train_together
from tiebreak.engine.capture.task import SGD, Batch, Rows, Task
from tiebreak.engine.distributed import partition
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


def tagged_text() -> Data:
    """One of two labels for each token."""
    return {"input_ids": tokens(EXAMPLES, LENGTH), "labels": tokens(EXAMPLES, LENGTH) % 2}


def choices() -> Data:
    """Two texts for each example, and which of them is right."""
    return {"input_ids": tokens(EXAMPLES, 2, LENGTH), "labels": halves()}


def answers() -> Data:
    """Texts with the place of an answer."""
    start = torch.arange(EXAMPLES)
    return {"input_ids": tokens(EXAMPLES, LENGTH), "start_positions": start, "end_positions": start + 2}


def replies() -> Data:
    """Texts, each with a reply."""
    reply = tokens(EXAMPLES, REPLY)
    return {"input_ids": tokens(EXAMPLES, LENGTH), "decoder_input_ids": reply, "labels": reply}


def pixels(side: int = PIXELS) -> Data:
    """Images alone."""
    return {"pixel_values": torch.randn(EXAMPLES, 3, side, side)}


def images() -> Data:
    """A label for each image."""
    return pixels() | {"labels": halves()}


def large_images() -> Data:
    """Images of twice the side."""
    return pixels(2 * PIXELS) | {"labels": halves()}


def segmented_images() -> Data:
    """A label for each pixel."""
    return pixels() | {"labels": torch.randint(0, 2, (EXAMPLES, PIXELS, PIXELS))}


def pixel_tokens() -> Data:
    """Images of 4 x 4 tokens, with a label for each image."""
    return {"input_ids": tokens(EXAMPLES, 16), "labels": halves()}


def captions() -> Data:
    """An image for each text."""
    return pixels() | {"input_ids": tokens(EXAMPLES, LENGTH)}


def illustrated_text() -> Data:
    """Texts in which four tokens stand for the parts of an image."""
    text = tokens(EXAMPLES, LENGTH).clamp(max=PART - 1)
    text[:, 2:6] = PART
    return pixels() | {"input_ids": text, "labels": text}


def illustrated_suffixes() -> Data:
    """Texts in which four tokens stand for the parts of an image, all to be learnt."""
    return illustrated_text() | {"token_type_ids": torch.ones(EXAMPLES, LENGTH, dtype=torch.int64)}


def waves() -> Data:
    """A label for each recording."""
    return {"input_values": torch.randn(EXAMPLES, 400), "labels": halves()}


def spectra() -> Data:
    """A label for each spectrogram, time first."""
    return {"input_values": torch.randn(EXAMPLES, 32, 16), "labels": halves()}


def speech(*shape: int) -> Callable[[], Data]:
    """A transcript for each spectrogram of this shape."""
    return lambda: {"input_features": torch.randn(EXAMPLES, *shape), "labels": tokens(EXAMPLES, REPLY)}


# Configurations

SPECIAL: Settings = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1}
LAYERS: Settings = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TEXT: Settings = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, **LAYERS, **SPECIAL}
DECODER: Settings = {**TEXT, "num_key_value_heads": 1}
MIXTURE: Settings = {
    **DECODER, "num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
}  # fmt: skip
LATENT: Settings = {
    **MIXTURE, "num_key_value_heads": 2, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 2, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
GPT: Settings = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, **SPECIAL}
XLM: Settings = {
    "vocab_size": VOCABULARY, "emb_dim": 16, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 32, **SPECIAL,
}  # fmt: skip
T5: Settings = {
    "vocab_size": VOCABULARY, "d_model": 16, "d_ff": 24, "d_kv": 8, "num_layers": 2, "num_heads": 2,
    "decoder_start_token_id": 0,
}  # fmt: skip
SIDES: Settings = {
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
}  # fmt: skip
BART: Settings = {"vocab_size": VOCABULARY, "d_model": 16, "decoder_start_token_id": 0, **SIDES, **SPECIAL}
IMAGE: Settings = {"num_labels": 2, "image_size": PIXELS}
VIT: Settings = {**IMAGE, "patch_size": 8, **LAYERS}
SWIN: Settings = {**IMAGE, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}
STAGES: Settings = {"num_labels": 2, "hidden_sizes": [8, 16], "depths": [1, 1]}
PYRAMID: Settings = {**IMAGE, "hidden_sizes": [8] * 4, "depths": [1] * 4, "num_attention_heads": [1] * 4}
SEGFORMER: Settings = {
    **STAGES, "hidden_sizes": [8, 8], "sr_ratios": [2, 1], "num_attention_heads": [1, 1], "patch_sizes": [7, 3],
    "strides": [4, 2], "mlp_ratios": [2, 2], "num_encoder_blocks": 2, "decoder_hidden_size": 8,
}  # fmt: skip
POOLFORMER: Settings = {
    **STAGES, "hidden_sizes": [8, 8], "patch_sizes": [7, 3], "strides": [4, 2], "padding": [2, 1],
    "num_encoder_blocks": 2,
}  # fmt: skip
HIERA: Settings = {
    "num_labels": 2, "embed_dim": 8, "image_size": [PIXELS, PIXELS], "patch_size": [4, 4], "patch_stride": [4, 4],
    "patch_padding": [0, 0], "depths": [1, 1], "num_heads": [1, 2], "query_stride": [2, 2],
    "masked_unit_size": [4, 4], "num_query_pool": 1,
}  # fmt: skip
LEVIT: Settings = {
    **IMAGE, "hidden_sizes": [16] * 3, "num_attention_heads": [1] * 3, "depths": [1] * 3, "key_dim": [8] * 3,
}  # fmt: skip
CVT: Settings = {"num_labels": 2, "embed_dim": [8, 8, 16], "num_heads": [1, 1, 2], "depth": [1, 2, 3]}
FOCALNET: Settings = {**IMAGE, "embed_dim": 8, "depths": [1, 1], "focal_levels": [1, 1], "focal_windows": [3, 3]}
PARTS: Settings = {"image_token_id": PART, "image_token_index": PART, "projection_dim": 16}
CLIP: Settings = {"text_config": TEXT, "vision_config": VIT, "projection_dim": 8}
WAVES: Settings = {
    **LAYERS, "vocab_size": VOCABULARY, "conv_dim": (8, 8), "conv_stride": (4, 4), "conv_kernel": (8, 8),
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2,
    "classifier_proj_size": 8, "mask_time_prob": 0.0, "do_stable_layer_norm": False, "layerdrop": 0.0,
}  # fmt: skip
FUNNEL: Settings = {
    "vocab_size": VOCABULARY, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 16, "n_head": 2, "d_head": 8,
    "d_inner": 24,
}  # fmt: skip
PROPHETNET: Settings = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "max_position_embeddings": 32, "num_encoder_layers": 2,
    "num_decoder_layers": 2, "num_encoder_attention_heads": 2, "num_decoder_attention_heads": 2, "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
}  # fmt: skip
REFORMER: Settings = {
    **TEXT, "max_position_embeddings": LENGTH, "attention_head_size": 8, "feed_forward_size": 24,
    "attn_layers": ["local", "local"], "local_attn_chunk_length": 4, "axial_pos_shape": [2, 4],
    "axial_pos_embds_dim": [8, 8], "is_decoder": False,
}  # fmt: skip
PERCEIVER: Settings = {
    "vocab_size": VOCABULARY, "max_position_embeddings": 32, "d_latents": 16, "d_model": 16, "num_latents": 4,
    "num_self_attends_per_block": 1, "num_self_attention_heads": 2, "num_cross_attention_heads": 2,
    "qk_channels": 16, "v_channels": 16,
}  # fmt: skip


def _classes(
    ending: str, data: Callable[[], Data], shared: Settings, names: str = "", **own: Settings
) -> dict[str, Entry]:
    """Classes whose names end in `ending`. own: settings in addition to `shared`, by the rest of the name."""
    beginnings = dict.fromkeys(names.split(), Settings()) | own
    return {f"{name}{ending}": Entry(data, shared | changes) for name, changes in beginnings.items()}


ZOO: Mapping[str, Entry] = {
    # Decoders
    **_classes(
        "ForCausalLM", text, DECODER,
        "Llama Mistral Qwen2 Phi Phi3 StableLm Starcoder2 Olmo Olmo2 Granite Cohere Cohere2 Nemotron Ernie4_5 Exaone4 "
        "Arcee SeedOss Apertus Persimmon JetMoe Falcon GPTNeoX BioGpt",
        DiffLlama={"num_key_value_heads": 2},
        OPT={"ffn_dim": 24, "word_embed_proj_dim": 16},
        GPTNeo={"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]},
        Bloom={"n_layer": 2, "n_head": 2},
        Mpt={"d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 32},
        XGLM={"d_model": 16, "ffn_dim": 24, "num_layers": 2, "attention_heads": 2},
    ),
    **_classes("ForCausalLM", text, {**DECODER, "head_dim": 8}, "Gemma Gemma2 Gemma3 Qwen3 Glm Helium SmolLM3"),
    **_classes("ForCausalLM", text, LATENT, "DeepseekV2 DeepseekV3"),
    **_classes("ForCausalLM", text, MIXTURE, "Mixtral Qwen2Moe Olmoe Phimoe MiniMax"),
    **_classes("ForCausalLM", text, GPT, "GPTBigCode", GPTJ={"rotary_dim": 4}, CodeGen={"n_head": 4, "rotary_dim": 4}),
    **_classes(
        "LMHeadModel", text, GPT, "GPT2 OpenAIGPT", CTRL={"dff": 24}, XLNet={"d_model": 16, "d_inner": 24}
    ),
    # State spaces
    **_classes(
        "ForCausalLM", text, DECODER,
        Mamba={"state_size": 4},
        Mamba2={"state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
        Rwkv={"attention_hidden_size": 16},
    ),
    # Encoders
    **_classes(
        "ForSequenceClassification", labelled_text, {**TEXT, "type_vocab_size": 2, "embedding_size": 16},
        "Bert Albert Electra Deberta DebertaV2 MPNet RoFormer ConvBert MegatronBert LayoutLM Ernie Nystromformer FNet "
        "Camembert XLMRoberta Roberta Data2VecText RobertaPreLayerNorm BigBird Esm IBert",
        SqueezeBert={f"{part}_groups": 2 for part in ("q", "k", "v", "intermediate", "output")},
        Lilt={"hidden_size": 24},
        MobileBert={"true_hidden_size": 16, "intra_bottleneck_size": 16},
        RemBert={"input_embedding_size": 16, "output_embedding_size": 16},
        Xmod={"default_language": "en_XX"},
        ModernBert={"sep_token_id": 1, "cls_token_id": 0},
        DistilBert={"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
        Longformer={"attention_window": 4},
        Canine={"max_position_embeddings": 64, "num_hash_buckets": 16, "local_transformer_stride": 4},
    ),
    **_classes("ForSequenceClassification", labelled_text, XLM, "XLM Flaubert"),
    **_classes("ForSequenceClassification", labelled_text, {}, Reformer=REFORMER, Perceiver=PERCEIVER, Funnel=FUNNEL),
    **_classes("ForMaskedLM", text, TEXT, "Bert"),
    **_classes("ForTokenClassification", tagged_text, TEXT, "Roberta"),
    **_classes("ForQuestionAnswering", answers, TEXT, "Bert"),
    **_classes("ForMultipleChoice", choices, TEXT, "Bert"),
    # Encoders with decoders
    **_classes(
        "ForConditionalGeneration", replies, T5,
        "T5 MT5", LongT5={"local_radius": 3}, SwitchTransformers={"num_experts": 2},
    ),
    **_classes(
        "ForConditionalGeneration", replies, {**BART, "max_position_embeddings": 32},
        "Bart MBart Pegasus BlenderbotSmall Blenderbot M2M100 PLBart Mvp BigBirdPegasus",
        LED={"attention_window": 4, "max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 32},
        NllbMoe={"num_experts": 2, "encoder_sparse_step": 2, "decoder_sparse_step": 2},
    ),
    **_classes("MTModel", replies, {**BART, "max_position_embeddings": 32}, "Marian"),
    **_classes("ForConditionalGeneration", replies, PROPHETNET, "ProphetNet"),
    # Vision transformers
    **_classes(
        "ForImageClassification", images, VIT,
        "ViT DeiT Beit Data2VecVision ViTMSN Dinov2 Dinov2WithRegisters IJepa",
    ),
    **_classes("ForImageClassification", images, SWIN, "Swin Swinv2"),
    **_classes("ForImageClassification", images, PYRAMID, "Pvt PvtV2"),
    **_classes(
        "ForImageClassification", images, {},
        Hiera=HIERA, Cvt=CVT, Levit=LEVIT, PoolFormer=POOLFORMER, Segformer=SEGFORMER,
        MobileViT={
            **IMAGE, "hidden_sizes": [8] * 3, "neck_hidden_sizes": [4, 4, 4, 4, 4, 4, 8], "num_attention_heads": 2,
        },
        SwiftFormer={**IMAGE, "depths": [1] * 4, "embed_dims": [8] * 4},
    ),
    **_classes(
        "ForImageClassification", large_images, {"num_labels": 2, "image_size": 2 * PIXELS},
        MobileViTV2={"width_multiplier": 0.125},
    ),
    **_classes("ForImageClassification", pixel_tokens, {**GPT, "n_positions": 16, "num_labels": 2}, "ImageGPT"),
    **_classes("ForSemanticSegmentation", segmented_images, SEGFORMER, "Segformer"),
    **_classes(
        "ForPreTraining", pixels, VIT,
        ViTMAE={
            "decoder_num_attention_heads": 2, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 1,
            "decoder_intermediate_size": 24,
        },
    ),
    # Convolutional
    **_classes(
        "ForImageClassification", images, STAGES,
        ConvNext={"num_stages": 2},
        ConvNextV2={"num_stages": 2},
        ResNet={"embedding_size": 8, "layer_type": "bottleneck"},
        RegNet={"embedding_size": 8, "groups_width": 8},
        Bit={"embedding_size": 8, "num_groups": 2},
        FocalNet=FOCALNET,
    ),
    **_classes(
        "ForImageClassification", images, {**IMAGE, "depth_multiplier": 0.25, "min_depth": 4}, "MobileNetV1 MobileNetV2"
    ),
    **_classes(
        "ForImageClassification", images, IMAGE,
        EfficientNet={"width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 128},
    ),
    # Texts with images
    **_classes(
        "ForConditionalGeneration", illustrated_text,
        {
            "text_config": {"model_type": "llama", **DECODER},
            "vision_config": {"model_type": "clip_vision_model", **VIT, "patch_size": 16}, **PARTS,
        },
        "Llava", VipLlava={"vision_feature_layers": [-1, -2]},
    ),
    **_classes(
        "ForConditionalGeneration", illustrated_suffixes,
        {
            "text_config": {"model_type": "gemma", **DECODER, "head_dim": 8},
            "vision_config": {"model_type": "siglip_vision_model", **VIT, "patch_size": 16}, **PARTS,
        },
        "PaliGemma",
    ),
    **_classes("Model", captions, CLIP, "CLIP AltCLIP ChineseCLIP"),
    # Audio
    **_classes(
        "ForSequenceClassification", waves, WAVES,
        "Wav2Vec2 Hubert WavLM UniSpeech UniSpeechSat Data2VecAudio Wav2Vec2Conformer", SEW={"squeeze_factor": 2},
    ),
    **_classes("ForAudioClassification", spectra, VIT, AST={"max_length": 32, "num_mel_bins": 16}),
    **_classes(
        "ForConditionalGeneration", speech(8, 16), BART,
        Whisper={"num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 16},
    ),
    **_classes(
        "ForConditionalGeneration", speech(16, 8), BART,
        Speech2Text={
            "input_feat_per_channel": 8, "conv_channels": 8, "max_source_positions": 32, "max_target_positions": 32,
        },
    ),
}  # fmt: skip
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
    task = Task(
        name=name, model=model, loss=loss, optimizer=SGD(lr=0.1), data=data, steps=3, checkpoint_interval=1,
        batch=Batch(size=2, examples=Rows(names=tuple(data))),
    )  # fmt: skip
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


def main() -> None:
    """Prints a line for each class, with its seconds, and the number of each kind of outcome."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.models.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of the classes to try")
    parser.add_argument("--workers", nargs="+", type=int, default=[], metavar="N", help="also on so many workers")
    given = parser.parse_args()
    wanted = given.names or [""]
    partition.LEAST = 1  # these models are tiny: otherwise nothing would be held in shards
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    tally: Counter[str] = Counter()
    for name in [name for name in ZOO if any(part in name for part in wanted)]:
        began = time.process_time()
        found = outcome(name, given.workers)
        tally[found.kind] += 1
        spent = time.process_time() - began
        print(f"{found.kind:7} {name} ({spent:.1f} s): {found.detail}".replace("\n", " / "), flush=True)
    print(dict(tally))


if __name__ == "__main__":
    main()
