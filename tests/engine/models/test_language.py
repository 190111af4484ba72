"""Language and recurrent models, small, in train mode with their own dropout: captured, trained, audited, judged.

Those of `transformers` are as their library has them, with masks, padding, positions, tied weights, and losses that
ignore some labels; only sizes are reduced, and weights random.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from tests.engine.models.harness import check, randomised, task_of, tokens
from tests.parts import slow_except
from tiebreak.protocol.program.isa import Opcode

pytestmark = pytest.mark.slow
VOCABULARY, EXAMPLES, BATCH, LENGTH = 61, 6, 2, 8
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}


def padding() -> Tensor:
    mask = torch.ones(EXAMPLES, LENGTH, dtype=torch.int64)
    mask[::2, 5:] = 0
    return mask


def ids(seed: int = 1) -> Tensor:
    return tokens(seed, EXAMPLES, LENGTH, vocabulary=VOCABULARY)


def labels() -> Tensor:
    wanted = ids(2)
    wanted[:, torch.arange(LENGTH) % 3 != 0] = -100
    return wanted


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def bert() -> nn.Module:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(**SMALL, num_hidden_layers=1, max_position_embeddings=16)
    )


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        **SMALL | {"num_attention_heads": 4}, num_key_value_heads=2, num_hidden_layers=1, attention_dropout=0.1
    )
    return transformers.LlamaForCausalLM(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, relative_attention_num_buckets=8,
        relative_attention_max_distance=6, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def causal(model: nn.Module, x: Tensor) -> Tensor:
    return model(input_ids=x, labels=x).loss


def padded(model: nn.Module, x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
    return model(input_ids=x, attention_mask=mask, labels=y).loss


def padded_causal(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    return model(input_ids=x, attention_mask=mask, labels=x.masked_fill(mask == 0, -100)).loss


def smoothed(model: nn.Module, x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
    logits = model(input_ids=x, attention_mask=mask).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100, label_smoothing=0.1)


def padded_data() -> dict[str, Tensor]:
    return {"x": ids(), "mask": padding(), "y": labels()}


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor], Callable[[], dict[str, Tensor]], int]] = {
    "gpt2": (gpt2, causal, lambda: {"x": ids()}, 1),
    "bert-masked": (bert, smoothed, padded_data, 0),
    "llama": (llama, padded_causal, lambda: {"x": ids(), "mask": padding()}, 1),
    "t5": (t5, padded, padded_data, 4),
}  # fmt: skip
"""A model, its loss and its data, and how many constants are data of its program."""


@pytest.mark.parametrize("name", CASES)
def test_language_models_are_trained_audited_and_refereed(name: str, cases: Callable[..., None]) -> None:
    make, loss, data, expected = CASES[name]
    torch.manual_seed(0)
    trained = check(task_of(randomised(make()), loss, data()), cases)
    drawn = [i for i in trained.program.body if i.opcode == Opcode.RANDOM]
    assert drawn, "the model's own dropout is part of the program"
    constants = [name for name in trained.captured.data if name.startswith("constant.")]
    assert len(constants) == expected


MIXTURE = {
    "vocab_size": VOCABULARY, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16, "num_experts_per_tok": 2,
    "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "output_router_logits": True,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "experts"), [("Mixtral", "grouped_mm"), ("Qwen2Moe", "batched_mm")])
def test_mixture_of_experts_models_are_trained_audited_and_refereed(
    kind: str, experts: str, cases: Callable[..., None]
) -> None:
    config = getattr(transformers, f"{kind}Config")(**MIXTURE, num_local_experts=4, num_experts=4)
    config._experts_implementation = experts
    model = randomised(getattr(transformers, f"{kind}ForCausalLM")(config), seed=2, scale=0.2)
    trained = check(task_of(model, causal, {"x": ids()[:4, :6]}), cases)
    assert "REDUCE 2 F->I" in trained.kinds  # the best expert of each token
    assert "GATHER 0 FI->F" in trained.kinds


class Reader(nn.Module):
    def __init__(self, network: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6, padding_idx=0)
        self.network = network
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.network(self.embedding(ids))
        logits: Tensor = self.head(hidden)
        return logits


def next_token(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


NETWORKS = {
    "lstm": (lambda: nn.LSTM(6, 5, batch_first=True), 5),
    "lstm, two layers, both ways, dropout": (
        lambda: nn.LSTM(6, 4, num_layers=2, bidirectional=True, dropout=0.25, batch_first=True), 8,
    ),
    "gru": (lambda: nn.GRU(6, 5, batch_first=True), 5),
    "rnn": (lambda: nn.RNN(6, 5, batch_first=True), 5),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_except(NETWORKS, nightly=("gru", "rnn")))
def test_recurrent_models_are_trained_audited_and_refereed(name: str, cases: Callable[..., None]) -> None:
    make, width = NETWORKS[name]
    model = randomised(Reader(make(), width), seed=2, scale=0.2)
    check(task_of(model, next_token, {"ids": ids()[:, :5]}, 3), cases)
