"""Mixtures of experts, whose router takes the best k."""

import pytest
import transformers
from torch import Tensor, nn

from tests.conftest import CaseCounter
from tests.engine.models.harness import check, randomised, task_of, tokens

VOCABULARY, EXAMPLES, LENGTH = 31, 4, 6
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16, "num_experts_per_tok": 2,
    "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "output_router_logits": True,
}  # fmt: skip


def causal(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=x, labels=x).loss
    return loss


pytestmark = pytest.mark.slow

KINDS = [("Mixtral", "grouped_mm"), ("Qwen2Moe", "batched_mm")]


@pytest.mark.parametrize(("kind", "experts"), KINDS)
def test_mixture_of_experts_models_are_trained_audited_and_refereed(
    kind: str, experts: str, cases: CaseCounter
) -> None:
    config = getattr(transformers, f"{kind}Config")(**SIZES, num_local_experts=4, num_experts=4)
    config._experts_implementation = experts
    model = randomised(getattr(transformers, f"{kind}ForCausalLM")(config), seed=2, scale=0.2)
    trained = check(task_of(model, causal, {"x": tokens(1, EXAMPLES, LENGTH, vocabulary=VOCABULARY)}), cases)
    assert "REDUCE 2 F->I" in trained.kinds  # the best expert of each token
    assert "GATHER 0 FI->F" in trained.kinds
