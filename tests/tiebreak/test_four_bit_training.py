"""`tiebreak.hf.train` on a base with 4-bit weights: beside the original, audited, certified and verified."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import tiebreak
from tests.tiebreak.hf_cases import VOCABULARY, arguments, losses
from tests.tiebreak.hf_scripts import plain
from tests.tiebreak.parties import Commands
from tests.tiebreak.test_checker import MODULE, Both, Page
from tests.tiebreak.test_checker import pytestmark as needs_module
from tiebreak import ConfigurationError, VerificationError
from tiebreak.api.certification.certificates import verify
from tiebreak.api.certification.folders import Found, doubtful
from tiebreak.api.certification.issuance import certify
from tiebreak.api.huggingface import refusals
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.tags import Digest

pytest.importorskip("bitsandbytes", reason="needs bitsandbytes")
BASE = "model.layers.0.self_attn.q_proj.weight"
DESCRIBED = f"{BASE}.quant_state.bitsandbytes__nf4"


def base(folder: Path, dtype: torch.dtype = torch.bfloat16, kind: str = "nf4", nested: bool = True) -> Any:
    """A tiny Llama in 4 bits, as it is loaded from a folder in which bitsandbytes has saved it."""
    if not folder.exists():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=None, tie_word_embeddings=False,
        )  # fmt: skip
        whole: Any = LlamaForCausalLM(config)
        whole.to(dtype).save_pretrained(folder.with_name("whole"))
        made: Any = BitsAndBytesConfig
        settings = made(
            load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=nested, bnb_4bit_compute_dtype=dtype
        )
        given: dict[str, Any] = {"quantization_config": settings, "device_map": {"": "cpu"}, "dtype": dtype}
        AutoModelForCausalLM.from_pretrained(folder.with_name("whole"), **given).save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map={"": "cpu"})


def trainer(folder: Path, of: Path, **more: Any) -> Trainer:
    prepare: Any = prepare_model_for_kbit_training
    model, config = base(of, **more), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    torch.manual_seed(3)
    model = get_peft_model(prepare(model), config)
    return plain(folder, model=lambda: model, max_steps=4)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "kind", "nested", "close"), [
    (torch.float32, "fp4", False, 1e-6), (torch.bfloat16, "nf4", True, 1e-4),
])  # fmt: skip
def test_losses_are_those_of_the_original_trainer(
    tmp_path: Path, dtype: torch.dtype, kind: str, nested: bool, close: float
) -> None:
    given: dict[str, Any] = {"of": tmp_path / "base", "dtype": dtype, "kind": kind, "nested": nested}
    theirs, ours = (trainer(tmp_path / name, **given) for name in ("theirs", "ours"))
    theirs.train()
    tiebreak.hf.train(ours)
    assert len(losses(ours)) == 4
    torch.testing.assert_close(losses(ours), losses(theirs), rtol=close, atol=0)
    assert tiebreak.open_run(tmp_path / "ours" / "run").check == "full"


def edited(path: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def described(tensors: dict[str, Tensor], **new: Any) -> None:
    """Other words in the description of a weight, of the same length in JSON."""
    said = json.loads(bytes(tensors[DESCRIBED].tolist()))
    tensors[DESCRIBED] = torch.tensor(list(json.dumps(said | new).encode()), dtype=torch.uint8)


def flip(name: str) -> Callable[[dict[str, Tensor]], object]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name].view(torch.uint8).flatten()[3] ^= 1

    return change


TAMPERED: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "a code": flip(BASE),
    "a scale": flip(f"{BASE}.absmax"),
    "a scale of scales": flip(f"{BASE}.nested_absmax"),
    "the map": flip(f"{BASE}.quant_map"),
    "the map of scales": flip(f"{BASE}.nested_quant_map"),
    "the size of blocks": lambda tensors: described(tensors, blocksize=32),
    "the offset": lambda tensors: described(tensors, nested_offset=0.05),
    "the shape": lambda tensors: described(tensors, shape=[32, 128]),
    "no description": lambda tensors: tensors.pop(DESCRIBED),
}


@pytest.mark.slow
def test_a_run_on_4_bit_weights_is_audited_certified_and_verified(tmp_path: Path, command: Commands) -> None:
    key, run = tiebreak.new_key(), tmp_path / "run"
    made = trainer(tmp_path, of=tmp_path / "base")
    tiebreak.hf.train(made, key=key)
    made.save_model(str(tmp_path / "adapter"))
    replay = command("audit", run, "--output", tmp_path / "replay", "--threads", 2)
    assert "agrees" in replay.lower() or "honest" in replay.lower()
    certificate = tmp_path / "certificate.json"
    certify(RunDirectory.open(run), tmp_path / "adapter", certificate, key)
    certify(RunDirectory.open(tmp_path / "replay"), tmp_path / "adapter", certificate, tiebreak.new_key())
    signed, _ = verify(tmp_path / "adapter", certificate, base=tmp_path / "base")
    assert len(signed.signers) == 2
    for what, change in TAMPERED.items():
        shutil.copytree(tmp_path / "base", tmp_path / what)
        edited(tmp_path / what / "model.safetensors", change)
        with pytest.raises(VerificationError, match="expected the base of"):
            verify(tmp_path / "adapter", certificate, base=tmp_path / what)
    with pytest.raises(VerificationError, match="expected the base of"):
        verify(tmp_path / "adapter", certificate, base=tmp_path / "whole")
    model = PeftModel.from_pretrained(base(tmp_path / "base"), tmp_path / "adapter")
    written = load_file(tmp_path / "adapter/adapter_model.safetensors")
    own = model.state_dict()
    assert all(torch.equal(own[name.replace(".weight", ".default.weight")], t) for name, t in written.items())
    assert not signed.certificate.weights.names
    assert signed.certificate.adapter is not None
    assert not signed.certificate.adapter.base.names, "rules say all"


@pytest.mark.slow
@needs_module
def test_the_page_says_the_same_of_such_a_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key, adapter, certificate, found = tiebreak.new_key(), tmp_path / "adapter", tmp_path / "c.json", tmp_path / "base"
    made = trainer(tmp_path, of=found)
    tiebreak.hf.train(made, key=key, check="none")
    made.save_model(str(adapter))
    certify(RunDirectory.open(tmp_path / "run"), adapter, certificate, key)
    monkeypatch.chdir(tmp_path)
    page = Page(MODULE)
    both = Both(page, tmp_path, capsys)
    assert both(adapter, certificate, [found]) == ""
    settings = json.loads((found / "config.json").read_text())
    settings["quantization_config"]["llm_int8_skip_modules"] = []
    (found / "config.json").write_text(json.dumps(settings))
    assert "config.json with quantization_config" in both(adapter, certificate, [found])
    edited(found / "model.safetensors", TAMPERED["a scale"])
    assert "base: expected" in both(adapter, certificate, [found], others=True)
    page.close()


# ---------------------------------------------------------------- configurations of such folders

LAYERS = {"model.layers.0.mlp.up_proj.weight", "lm_head.weight", "model.embed_tokens.weight"}
KEPT: dict[str, Any] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
MISLEADING: dict[str, tuple[Any, set[str]]] = {
    "weights that are no codes yet": (KEPT, {*LAYERS}),
    "another head": (KEPT | {"llm_int8_skip_modules": []}, {"model.embed_tokens.weight"}),
    "a head that is to be quantized": (KEPT | {"llm_int8_skip_modules": ["o_proj"]}, {"lm_head.weight"}),
    "another layer of that ending": (KEPT | {"llm_int8_skip_modules": ["lm_head", "p_proj"]}, LAYERS),
    "8 bits": (KEPT | {"load_in_8bit": True}, {"lm_head.weight"}),
    "another method": (KEPT | {"quant_method": "hqq"}, {"lm_head.weight"}),
}
FAITHFUL: list[tuple[Any, set[str]]] = [
    (KEPT, {"lm_head.weight", "model.embed_tokens.weight"}),
    (KEPT, set()),
    (KEPT | {"llm_int8_skip_modules": ["lm_head", "up_proj"]}, LAYERS),
    (KEPT | {"llm_int8_skip_modules": ["lm_head", "layers.0.mlp.up_proj"], "bnb_4bit_quant_type": "nf4"}, LAYERS),
]


def named(folder: Path, settings: Any, matrices: set[str], *, codes: bool = True) -> list[str]:
    folder.joinpath("config.json").write_text(json.dumps({"quantization_config": settings}))
    tensors = {name: Digest(bytes(32)) for name in {*matrices, *({BASE, DESCRIBED} if codes else ())}}
    found = Found(files={"model.safetensors": Digest(bytes(32))}, tensors=tensors, matrices=frozenset(matrices),
                  others=("config.json",))  # fmt: skip
    return doubtful(folder, found, is_listed=False)


@pytest.mark.parametrize("case", MISLEADING)
def test_a_configuration_that_makes_other_weights_is_named(tmp_path: Path, case: str) -> None:
    assert named(tmp_path, *MISLEADING[case]) == ["config.json with quantization_config"]


def test_a_configuration_that_takes_codes_as_they_are_is_not_named(tmp_path: Path) -> None:
    for settings, matrices in FAITHFUL:
        assert named(tmp_path, settings, matrices) == []
        assert named(tmp_path, settings, matrices, codes=False) == ["config.json with quantization_config"]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(("method", "said"), [("gptq", "gptq, whose"), ("bitsandbytes", "bitsandbytes in 8 bits")])
def test_other_quantized_models_are_refused_by_their_method(tmp_path: Path, method: str, said: str) -> None:
    model: Any = nn.Linear(2, 2)
    made = Trainer(model, arguments(TrainingArguments, tmp_path))
    model.hf_quantizer = SimpleNamespace(quantization_config=SimpleNamespace(quant_method=method))
    with pytest.raises(ConfigurationError, match=f"a model quantized by {said}.*BitsAndBytesConfig.load_in_4bit=True"):
        refusals.check_trainer(made)
