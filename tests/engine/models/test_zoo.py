"""A dozen classes of the zoo, of all kinds: capture's check passes them, or says where and why not, and what to do."""

import re

import pytest

from tests.engine.models import zoo
from tests.engine.models.zoo import outcome
from tiebreak.engine.distributed import partition

pytestmark = pytest.mark.slow

PASS = (
    "MambaForCausalLM", "MixtralForCausalLM", "DeepseekV3ForCausalLM", "T5ForConditionalGeneration",
    "SwinForImageClassification", "ResNetForImageClassification", "CLIPModel", "LlavaForConditionalGeneration",
    "ASTForAudioClassification",
)  # fmt: skip
SHARED = {"MambaForCausalLM", "MixtralForCausalLM", "SwinForImageClassification", "ResNetForImageClassification"}
"""Three workers also make their runs."""
REFUSED = {
    "DeepseekV2ForCausalLM": r"polar.default \(at model\.rotary_emb: \S+/modeling_deepseek_v2\.py:\d+ .*"
    r"complex numbers have no form; write real and imaginary parts apart",
    "JetMoeForCausalLM": r"module model\.layers\.0\.self_attention\.experts\.router \(\S+/modeling_jetmoe\.py:\d+\).*"
    r"needs the values of tensors.*use `where` and masks",
    "FNetForSequenceClassification": r"\(at fnet\.encoder\.layer\.0\.fourier\.self: \S+/modeling_fnet\.py:\d+ .*"
    r"complex numbers have no form; write real and imaginary parts apart",
    "DebertaV2ForSequenceClassification": r"the model \(\S+/modeling_deberta_v2\.py:\d+\).*"
    r"needs the values of tensors.*use `where` and masks",
}


@pytest.mark.parametrize("name", PASS)
def test_a_class_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "LEAST", 1)  # even the smallest values are held in shards
    found = outcome(name, workers=(3,) if name in SHARED else ())
    assert found.kind == "passes", found.detail


@pytest.mark.parametrize("name", REFUSED)
def test_a_class_is_refused_with_place_and_advice(name: str) -> None:
    found = outcome(name)
    assert found.kind == "refused", found.detail
    assert re.search(REFUSED[name], found.detail), found.detail


def test_other_failures_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise IndexError("of no use to a user")

    monkeypatch.setattr(zoo, "checked", fail)
    assert outcome("BertForSequenceClassification") == zoo.Outcome("raw", "IndexError: of no use to a user")
    entry = zoo.Entry(zoo.labelled_text, zoo.TEXT | {"num_attention_heads": 3})
    monkeypatch.setattr(zoo, "ZOO", {"BertForSequenceClassification": entry})
    found = outcome("BertForSequenceClassification")
    assert found.kind == "broken"
    assert "attention heads" in found.detail
