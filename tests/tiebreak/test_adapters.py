"""PEFT adapters alone: named as PEFT names them, certified with their base, verified, and loaded by PEFT."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import tiebreak
from tests.engine.tiny import CLIENT, TRAINER
from tests.tiebreak.parties import Commands, Once
from tiebreak import Run, StateError, VerificationError
from tiebreak.api.certification.certificates import read_weights, verify
from tiebreak.api.certification.issuance import base_names, certify
from tiebreak.api.chain.weights import write_weights
from tiebreak.api.training.runs import names_of
from tiebreak.api.training.tasks import adapter_names, state_names
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.certificate import Weights
from tiebreak.protocol.commitments.records import state_tree
from tiebreak.protocol.tags import Digest


def llama(tied: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, attention_bias=True, tie_word_embeddings=tied,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def lora(**more: Any) -> LoraConfig:
    given = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    return LoraConfig(**given | more)


def key_of(entries: dict[str, str], entry: str) -> str:
    return next(key for key, found in entries.items() if found == entry)


KINDS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "rsLoRA": {"use_rslora": True},
    "DoRA": {"use_dora": True},
    "all layers": {"target_modules": "all-linear"},
    "a head of its own": {"modules_to_save": ["lm_head"]},
    "embeddings of its own": {"modules_to_save": ["embed_tokens"]},
    "some tokens": {"trainable_token_indices": [1, 2]},
    "all biases": {"bias": "all"},
    "biases of its layers": {"bias": "lora_only"},
    "adapted embeddings": {"target_modules": ["embed_tokens", "q_proj"]},
    "some layers": {"layers_to_transform": [1]},
}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", KINDS)
def test_adapter_names_match_the_file_that_peft_writes(tmp_path: Path, kind: str, tied: bool) -> None:
    llama(tied).save_pretrained(tmp_path / "base")
    base = LlamaForCausalLM.from_pretrained(tmp_path / "base")
    model = get_peft_model(base, lora(task_type="CAUSAL_LM", **KINDS[kind]))
    model.save_pretrained(tmp_path / "adapter")
    written, state = load_file(tmp_path / "adapter" / "adapter_model.safetensors"), model.state_dict()
    named = {name: key for key, name in adapter_names(model).items()}
    assert named.keys() == written.keys()
    assert all(torch.equal(written[name], state[key]) for name, key in named.items())
    entries = state_names(model)
    trained = {f"model.{name}" for name, p in model.named_parameters() if p.requires_grad}
    assert trained <= {entries[key] for key in named.values()}
    ids = {entry: Digest(bytes([n]) * 32) for n, entry in enumerate(sorted(set(entries.values())))}
    weights = Weights.of(state_tree(ids), sorted(ids), {name: entries[key] for name, key in named.items()}, "model.")
    assert weights.root(len(ids), {name: ids[entries[key]] for name, key in named.items()}) == state_tree(ids).root
    assert len(weights.suffixes) <= 4
    assert not weights.names, "rules say all"
    plain = load_file(tmp_path / "base" / "model.safetensors")
    names, own = base_names(entries), weights.entries({name: ids[entries[key]] for name, key in named.items()})
    assert names.keys() >= plain.keys()
    assert all(names[name] in own or torch.equal(plain[name], state[key_of(entries, names[name])]) for name in plain)
    under = Weights.of(state_tree(ids), sorted(ids), names, "model.base_model.model.", own)
    assert under.root(len(ids), {name: ids[names[name]] for name in plain}, own) == state_tree(ids).root


def test_adapter_names_match_the_file_that_transformers_writes(tmp_path: Path) -> None:
    model = llama()
    model.add_adapter(lora(), "mine")
    model.save_pretrained(tmp_path)
    written, state = load_file(tmp_path / "adapter_model.safetensors"), model.state_dict()
    named = {name: key for key, name in adapter_names(model).items()}
    assert named.keys() == written.keys()
    assert all(torch.equal(written[name], state[key]) for name, key in named.items())
    assert adapter_names(llama()) == adapter_names(nn.Linear(2, 2)) == {}


# ---------------------------------------------------------------- certificates


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


KEYS: dict[str, Any] = {"client": CLIENT, "trainer": TRAINER, "progress": False}


def regression(model: nn.Module) -> tiebreak.Task:
    generator = torch.Generator().manual_seed(1)
    data = {"x": torch.randn(20, 6, generator=generator), "y": torch.randn(20, 3, generator=generator)}
    return tiebreak.Task(model, F.mse_loss, data=data, optimizer=tiebreak.SGD(lr=0.1), batch=4, steps=4)


class Adapted:
    """A finished run over an adapter, the folder that PEFT writes of it, its base in BF16, and a certificate."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, RunDirectory.open(folder / "run")
        self.adapter, self.base = folder / "adapter", folder / "base"
        self.weights, self.certificate = self.adapter / "adapter_model.safetensors", folder / "certificate.json"

    def change(self, change: Callable[[dict[str, Tensor]], object], path: Path | None = None) -> None:
        tensors = load_file(path or self.weights)
        change(tensors)
        save_file(tensors, path or self.weights)


def make(folder: Path, model: nn.Module, **config: Any) -> Run:
    for parameter in model.parameters():  # as a base in BF16 that is trained in F32
        parameter.data = parameter.data.bfloat16().float()
    (folder / "base").mkdir(parents=True)
    save_file({k: t.bfloat16() for k, t in model.state_dict().items()}, folder / "base" / "model.safetensors")
    adapted = get_peft_model(model, lora(target_modules=["0"], modules_to_save=["2"], **config))
    run = tiebreak.train(regression(adapted), folder / "run", **KEYS)
    adapted.load_state_dict(run.state_dict())
    adapted.save_pretrained(folder / "adapter")
    certify(RunDirectory.open(folder / "run"), folder / "adapter", folder / "certificate.json", TRAINER)
    return run


@pytest.fixture
def adapted(once: Once, tmp_path: Path) -> Adapted:
    made = once("adapted", lambda folder: make(folder, perceptron()))
    return Adapted(shutil.copytree(made, tmp_path / "adapted"))


def test_an_adapter_is_certified_with_its_base(adapted: Adapted, command: Commands, tmp_path: Path) -> None:
    address = f"0x{TRAINER.address.hex()}"
    told = command("verify", adapted.adapter, adapted.certificate, "--require", address)
    assert ".lora_A.weight as .lora_A.default.weight" in told.replace("'", "")
    signed, found = verify(adapted.adapter, adapted.certificate, base=adapted.base)
    adapter = signed.certificate.adapter
    assert adapter is not None
    assert f"the signers name a base of root {adapter.root.hex()} (--base)" in told
    assert found.tensors.keys() == load_file(adapted.weights).keys()
    told = command("verify", adapted.adapter, adapted.certificate, "--base", adapted.base)
    assert f"{adapted.base} is the base that these adapters were trained on" in told
    assert "(--base)" not in told
    assert "scale, rank, places" in told
    assert "as the signers chose: 'README.md'." in told
    found_json = json.loads(command("verify", adapted.adapter, adapted.certificate, "--json"))
    assert found_json["base"] == adapter.root.hex()
    replay = tmp_path / "replay"
    command("audit", adapted.run.path, "--output", replay, "--threads", "1")
    certify(RunDirectory.open(replay), adapted.adapter, adapted.certificate, CLIENT)
    assert verify(adapted.adapter, adapted.certificate, require=[CLIENT.address])[0].signers[1] == CLIENT.address


def test_weights_written_like_an_adapter_equal_the_adapter(adapted: Adapted, command: Commands, tmp_path: Path) -> None:
    like, output = tmp_path / "like", tmp_path / "output"
    like.mkdir()
    shutil.copy(adapted.adapter / "adapter_config.json", like)
    found = write_weights(adapted.run.path, output, like=like)
    written = load_file(output / "adapter_model.safetensors")
    assert found.tensors == len(written) == 4
    assert all(torch.equal(written[name], tensor) for name, tensor in load_file(adapted.weights).items())
    verify(output, adapted.certificate, base=adapted.base)
    command("publish", adapted.run.path, "--output", tmp_path / "pack")
    command("weights", tmp_path / "pack", "--like", like, "--output", tmp_path / "client")
    assert [path.read_bytes() for path in sorted((tmp_path / "client").iterdir())] == [
        path.read_bytes() for path in sorted(output.iterdir())
    ]
    base, trained = perceptron(), get_peft_model(perceptron(), lora(target_modules=["0"], modules_to_save=["2"]))
    base.load_state_dict({n: t.float() for n, t in load_file(adapted.base / "model.safetensors").items()})
    trained.load_state_dict(tiebreak.open_run(adapted.run.path).state_dict())
    x = torch.randn(5, 6)
    assert torch.equal(PeftModel.from_pretrained(base, output)(x), trained.eval()(x))
    other = tiebreak.train(regression(perceptron()), tmp_path / "plain", **KEYS)
    with pytest.raises(StateError, match="expected the names of an adapter's tensors"):
        write_weights(other.directory, tmp_path / "none", like=like)


def swapped(tensors: dict[str, Tensor]) -> None:
    name = "base_model.model.0.lora_A.weight"
    tensors[name] = tensors[name].flip(0).contiguous()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a.change(swapped), "another name, type, shape or value"),
        (lambda a: a.change(lambda t: t.update(more=torch.zeros(1))), "expected 4 tensors of the state, got 5"),
        (lambda a: a.change(lambda t: t.popitem()), "expected 4 tensors of the state, got 3"),
        (lambda a: a.weights.rename(a.adapter / "model.safetensors"), "got a model"),
        (lambda a: a.weights.rename(a.adapter / "other.safetensors"), "got a model"),
        (lambda a: (a.adapter / "adapter_config.json").unlink(), "got a model"),
        (lambda a: (a.adapter / "adapter_config.json").write_text("{}"), "adapter_config.json has SHA-256"),
        (lambda a: (a.adapter / "adapter_model.bin").touch(), "expected adapter_model.safetensors and no other"),
        (lambda a: (a.adapter / "code.py").touch(), "and no other weights or code, got 'code.py'"),
        (lambda a: a.change(lambda t: t.pop("0.bias"), a.base / "model.safetensors"), "of the state, got 7"),
        (lambda a: a.change(lambda t: t["0.weight"].neg_(), a.base / "model.safetensors"), "base: expected tensors"),
        (lambda a: (a.base / "pytorch_model.bin").touch(), "base: expected model.safetensors, or"),
    ],
)  # fmt: skip
def test_a_changed_adapter_fails_verification(adapted: Adapted, change: Callable[[Adapted], object], said: str) -> None:
    change(adapted)
    with pytest.raises(VerificationError, match=said):
        verify(adapted.adapter, adapted.certificate, base=adapted.base, resaved=True)


def test_merged_models_and_bare_weight_files_are_refused_as_adapters(adapted: Adapted, tmp_path: Path) -> None:
    merged = PeftModel.from_pretrained(perceptron(), adapted.adapter).merge_and_unload()
    save_file(merged.state_dict(), tmp_path / "merged.safetensors")
    for path in (tmp_path / "merged.safetensors", adapted.weights):
        with pytest.raises(VerificationError, match=r"the folder of its adapter as PEFT writes it.* by itself"):
            certify(adapted.run, path, tmp_path / "new.json", TRAINER)
        with pytest.raises(VerificationError, match=r"expected the folder of an adapter.*, got a model"):
            verify(path, adapted.certificate)


def test_the_full_model_of_an_adapter_run_has_its_own_certificate(adapted: Adapted, tmp_path: Path) -> None:
    path, certificate = tmp_path / "all.safetensors", tmp_path / "all.json"
    write_weights(adapted.run.path, path)
    certify(adapted.run, path, certificate, TRAINER)
    signed, _ = verify(path, certificate)
    assert signed.certificate.adapter is None
    with pytest.raises(VerificationError, match="expected a model, got the folder of an adapter"):
        verify(adapted.adapter, certificate)
    with pytest.raises(VerificationError, match=r"base: expected the base of .*, got others: weights: .* got 4"):
        verify(path, certificate, base=adapted.base)
    with pytest.raises(VerificationError, match="expected the adapter of the run"):
        certify(adapted.run, path, adapted.certificate, CLIENT)


def test_parameters_trained_outside_the_adapter_prevent_its_certificate(tmp_path: Path) -> None:
    model = get_peft_model(perceptron(), lora(target_modules=["0"]))
    model.base_model.model[2].bias.requires_grad_(True)
    run = tiebreak.train(regression(model), tmp_path / "run", **KEYS)
    model.load_state_dict(run.state_dict())
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(VerificationError, match=r"got model\.base_model\.model\.2\.bias outside, which PEFT does not"):
        certify(RunDirectory.open(tmp_path / "run"), tmp_path / "adapter", tmp_path / "c.json", TRAINER)


def test_malformed_adapter_names_in_a_run_are_refused(adapted: Adapted) -> None:
    path = adapted.run.path / "state_dict.tsv"
    right = path.read_text()
    assert set(names_of(adapted.run, adapter=True)) == set(load_file(adapted.weights))
    for bad in ("a\tmodel.nowhere\tb\n", right.replace("\n", "\tx\ty\n"), right + "\n"):
        path.write_text(bad)
        with pytest.raises(VerificationError, match="names in an adapter's file"):
            names_of(adapted.run, adapter=True)
    path.unlink()
    with pytest.raises(StateError, match="expected the names of an adapter's tensors"):
        certify(adapted.run, adapted.adapter, adapted.certificate, CLIENT)


def test_bfloat16_and_float16_weights_compare_by_exact_value(tmp_path: Path) -> None:
    values = torch.tensor([1.0, -0.0, 2.0**-14, float("inf"), 0.375, 2.0**-24])
    save_file({"x": values}, tmp_path / "wide.safetensors")
    wanted = read_weights(tmp_path / "wide.safetensors").tensors
    for dtype in (torch.bfloat16, torch.float16):
        save_file({"x": values.to(dtype)}, tmp_path / "narrow.safetensors")
        assert read_weights(tmp_path / "narrow.safetensors").tensors == wanted
    save_file({"x": (values + 2.0**-20).to(torch.bfloat16)}, tmp_path / "narrow.safetensors")
    save_file({"x": values + 2.0**-20}, tmp_path / "wide.safetensors")
    assert read_weights(tmp_path / "narrow.safetensors").tensors != read_weights(tmp_path / "wide.safetensors").tensors
