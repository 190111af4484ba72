"""Training on a base with 4-bit weights: beside the original, audited, certified and verified."""

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
from tests.engine.tiny import TRAINER
from tests.tampered import Tampered, one_element
from tests.tiebreak.hf_cases import VOCABULARY, arguments, losses, texts, tokenizer
from tests.tiebreak.hf_scripts import plain
from tests.tiebreak.parties import PASSPHRASE, Commands, Once
from tests.tiebreak.test_checker import MODULE, Both, Page
from tests.tiebreak.test_checker import pytestmark as needs_module
from tests.tiebreak.test_checker_run import ask, audit, check_fraud, check_same
from tests.tiebreak.test_checker_run import change as change_bit
from tiebreak import ConfigurationError, VerificationError
from tiebreak.api.certification.certificates import verify
from tiebreak.api.certification.folders import Found, doubtful
from tiebreak.api.certification.issuance import certify
from tiebreak.api.huggingface import refusals
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.cli.key import PASSPHRASE_VARIABLE
from tiebreak.engine.data.arrays import open_safetensors
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.program.isa import GatherParams
from tiebreak.protocol.tags import Digest

pytest.importorskip("bitsandbytes", reason="needs bitsandbytes")
KEPT: dict[str, Any] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
BASE = "model.layers.0.self_attn.q_proj.weight"
DESCRIBED = f"{BASE}.quant_state.bitsandbytes__nf4"


def base(
    folder: Path, dtype: torch.dtype = torch.bfloat16, kind: str = "nf4", nested: bool = True, layers: int = 2
) -> Any:
    """A tiny Llama in 4 bits, as it is loaded from a folder in which bitsandbytes has saved it."""
    if not folder.exists():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=layers,
            num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=None,
            tie_word_embeddings=False,
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
    (torch.float32, "fp4", False, 1e-6), (torch.bfloat16, "nf4", True, 1e-4), (torch.float16, "nf4", True, 1e-5),
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


# ---------------------------------------------------------------- without a trainer of transformers


TWO_THREADS = ("--from-step", 1, "--threads", 2)


def adapted(folder: Path) -> Any:
    model = base(folder, layers=1)
    torch.manual_seed(3)
    return get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))


def loss_of(model: Any, input_ids: Tensor) -> Any:
    return model(input_ids=input_ids, labels=input_ids, use_cache=False).loss


def task(model: Any) -> tiebreak.Task:
    """With torch's optimizer over all parameters, as scripts make it."""
    ids = torch.randint(4, VOCABULARY, (8, 8), generator=torch.Generator().manual_seed(1))
    return tiebreak.Task(
        model, loss_of, data={"input_ids": ids}, batch=2, steps=4, checkpoint_interval=2,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        evaluate=lambda held: {"loss": loss_of(held, ids).item()},
    )  # fmt: skip


def agreed(folder: Path) -> None:
    tiebreak.agree(task(adapted(folder / "base")), folder / "run", trainer=TRAINER)


@pytest.fixture
def run(once: Once, tmp_path: Path) -> Path:
    """The folder of a run of 4 steps in which nothing is computed yet; the base is beside it."""
    return shutil.copytree(once("4 bits", agreed), tmp_path / "agreed") / "run"


@pytest.mark.slow
def test_a_task_over_a_model_in_4_bits_trains_and_its_adapters_load(run: Path, command: Commands) -> None:
    found = tiebreak.open_run(run).resume(TRAINER, progress=False)
    assert found.check == "full"
    model = adapted(run.parent / "base")
    memory = tiebreak.reproducible(task(model), check="none").run(progress=False)
    assert memory.losses == found.losses
    assert found.losses[-1] != found.losses[0]
    assert all(torch.equal(found.state_dict()[name], tensor) for name, tensor in memory.state_dict().items())
    missing, others = model.load_state_dict(found.state_dict(), strict=False)
    assert not others
    assert {*missing} == {name for name, p in model.named_parameters() if p.dtype == torch.uint8}
    measured = loss_of(model, task(model).data["input_ids"]).item()
    assert memory.metrics[4]["loss"] == pytest.approx(measured, rel=1e-4) != pytest.approx(found.losses[0], rel=1e-4)
    assert "agrees" in command("audit", run, *TWO_THREADS)


@pytest.mark.slow
@needs_module
def test_a_flipped_code_is_fraud_in_the_words_of_the_audit_and_of_recheck(run: Path, tmp_path: Path) -> None:
    """The page replays runs by the second implementation, in C."""
    for name in ("true", "a code", "its number"):
        shutil.copytree(run, tmp_path / name)
    tiebreak.open_run(tmp_path / "true").resume(TRAINER, progress=False)
    (found,) = ask({"folder": str(tmp_path / "true")})
    assert (found["verdict"], found["lines"]) == ("agrees", audit(tmp_path / "true", *TWO_THREADS)["lines"])
    program = RunDirectory.open(run).program
    entry, code = next(
        (i.params.name, i.operands[0].value)  # type: ignore[union-attr]
        for i in program.commits
        if i.params.name.endswith("q_proj.base_layer.weight")  # type: ignore[union-attr]
    )
    number = next(n for n, i in enumerate(program.body) if isinstance(i.params, GatherParams) and i.shape[1:] == (2,))
    lies = {"a code": one_element(3, code, 5, lambda word: word ^ 1 << 40),
            "its number": one_element(3, number, 11, lambda found: -found)}  # fmt: skip
    places = {"a code": "the state after step 4 is in the folder, but is not what was committed", "its number": "state"}
    for name, lie in lies.items():
        made = RunDirectory.open(tmp_path / name)
        Worker(made, Tampered(make_interpreter(program, Machine(threads=1)), lie), key=TRAINER).work()
        found = check_fraud(made.path)
        assert "in checkpoint 2 of 2, steps 3 to 4, where the state differs" in found["reason"]
        assert places[name] in str(found["place"])
        played = tiebreak.open_run(made.path).dispute(tmp_path / "true")
        assert played is not None
        assert played.loser == "trainer"
    first = RunDirectory.open(tmp_path / "true").state_path(0)
    change_bit(first, open_safetensors(first)[entry].offset + 5)
    (found,) = ask({"folder": str(tmp_path / "true")})
    check_same(found, audit(tmp_path / "true"))
    assert "expected a state at or before step 0 that is what was committed" in found["reason"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base in 4 bits as it is saved, with a tokenizer, beside rows and prompts."""
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    base(tmp_path / "base", layers=1)
    tokenizer().save_pretrained(tmp_path / "base")
    for name, rows in {"rows": texts(8), "held": texts(2, seed=8, longest=6)}.items():
        lines = [json.dumps({"text": row, "prompt": row}) for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return tmp_path / "base"


@pytest.mark.slow
def test_finetune_takes_a_folder_that_bitsandbytes_has_saved(folder: Path, command: Commands) -> None:
    given = ["finetune", "--model", folder, "--data", folder.with_name("rows.jsonl"), "--lora", 2, "--steps", 4]
    given += ["--length", 16, "--output", folder.with_name("out"), "--threads", 1]
    assert "expected --merge with a model that is not quantized" in command.error(*given, "--merge", folder / "merged")
    found = command.tell(*given, "--eval", folder.with_name("held.jsonl"))
    assert "base is the base that these adapters were trained on" in command(*found["verify"].split()[1:])
    model = PeftModel.from_pretrained(base(folder), found["adapter"])
    written = load_file(Path(found["adapter"]) / "adapter_model.safetensors")
    own, run = model.state_dict(), tiebreak.open_run(found["run"])
    assert all(torch.equal(own[name.replace(".weight", ".default.weight")], t) for name, t in written.items())
    assert found["evaluation"]["loss"] == pytest.approx(run.losses[-1], rel=0.05)


QUANTIZED: dict[str, tuple[dict[str, Any], str]] = {
    "another method": (
        {"quant_method": "gptq", "bits": 4},
        "expected a model that is not quantized, or in 4 bits by bits",
    ),
    "weights that are no codes yet": (KEPT, "q_proj: a Linear4bit that is not quantized yet"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", QUANTIZED)
def test_commands_refuse_folders_that_are_quantized_otherwise(folder: Path, command: Commands, case: str) -> None:
    settings, reason = QUANTIZED[case]
    path, rows = folder.with_name("whole"), folder.with_name("rows.jsonl")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    tokenizer().save_pretrained(path)
    for given in (
        ["finetune", "--model", path, "--data", rows, "--length", 16], ["evaluate", path, "--on", rows, "--length", 16],
        ["generate", path, rows],
    ):  # fmt: skip
        assert reason in command(*given, "--output", folder.with_name("out"), code=1).splitlines()[-1]


@pytest.mark.slow
def test_answers_of_a_base_in_4_bits_are_sampled_and_scored(folder: Path, command: Commands) -> None:
    """A plain evaluation would round its scales on some CPUs; the same model is captured after it has drafted."""
    output = folder.with_name("answers")
    found = command.tell("generate", folder, folder.with_name("held.jsonl"), "--length", 3, "--output", output)
    assert found["metrics"] == {"sampled": 1.0}
    assert command.tell(*found["check"].split()[1:])["holds"]
    other = shutil.copytree(folder, folder.with_name("other"))
    edited(other / "model.safetensors", TAMPERED["a code"])
    with pytest.raises(VerificationError, match="expected the base of"):
        verify(output / "scores", output / "scores" / "certificate.json", base=other)


# ---------------------------------------------------------------- configurations of such folders

LAYERS = {"model.layers.0.mlp.up_proj.weight", "lm_head.weight", "model.embed_tokens.weight"}
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
