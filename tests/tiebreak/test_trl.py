"""`tiebreak.hf.train` with TRL's trainers and PEFT's adapters, beside the original."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import EarlyStoppingCallback, LlamaForCausalLM, Trainer, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

import tiebreak
from tests.tiebreak.hf_cases import Interrupts, arguments, llama, losses, preferences, tokenizer
from tests.tiebreak.hf_scripts import dpo, lora, saved, sft, text
from tests.tiebreak.parties import Commands
from tiebreak import ConfigurationError
from tiebreak.api.certification.certificates import verify_lineage
from tiebreak.api.certification.issuance import certify
from tiebreak.engine.run.directory import RunDirectory

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_trl_training_matches_the_original_across_an_interruption(tmp_path: Path, kind: str) -> None:
    """Epochs with a short last step, evaluation, the best model, early stopping, and an interruption."""

    def made(folder: Path, *callbacks: TrainerCallback) -> Trainer:
        settings = {
            "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3, "bf16": False,
            "load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "max_steps": -1,
            "num_train_epochs": 2, "gradient_accumulation_steps": 2, "save_total_limit": 2,
            "per_device_train_batch_size": 2,
        }  # fmt: skip
        if kind == "sft":
            args = arguments(SFTConfig, folder, packing=True, max_length=64, **settings)
            found, model, data = SFTTrainer, llama(), text()
        else:
            found, model, data = DPOTrainer, saved(tmp_path), preferences()
            args = arguments(DPOConfig, folder, **settings)
        trainer: Trainer = found(
            model, args=args, train_dataset=data, eval_dataset=data.select(range(6)), processing_class=tokenizer(),
            peft_config=lora(), callbacks=[EarlyStoppingCallback(2), *callbacks],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        set_seed(5)
        return trainer

    theirs = made(tmp_path / "theirs")
    theirs.train()
    with pytest.raises(KeyboardInterrupt):
        tiebreak.hf.train(made(tmp_path / "ours", Interrupts(5)))
    ours = made(tmp_path / "ours")
    tiebreak.hf.train(ours)
    run = tiebreak.open_run(tmp_path / "ours" / "run")
    assert run.check == "full"
    assert run.audit(sample=1, seed="1").agrees
    for name in ("loss", "eval_loss", "num_tokens"):  # also of the steps before the interruption
        assert len(losses(ours, name)) == len(losses(theirs, name)) > 1
        torch.testing.assert_close(losses(ours, name), losses(theirs, name), rtol=1e-5, atol=0)
    assert ours.state.best_global_step == theirs.state.best_global_step
    files = [{str(p.relative_to(t)) for p in t.rglob("*.[jms]*")} for t in (tmp_path / "theirs", tmp_path / "ours")]
    assert files[0] == {name for name in files[1] if not name.startswith(("run/", "batches.json"))}


def test_the_reference_model_of_dpo_is_part_of_the_state(tmp_path: Path) -> None:
    made = dpo(tmp_path, max_steps=2)
    tiebreak.hf.train(made)
    run = tiebreak.open_run(tmp_path / "run")
    before, after = run.state_dict(0), run.state_dict()
    names = [name for name in after if name.startswith("reference.")]
    assert len(names) == len(made.ref_model.state_dict())  # type: ignore[attr-defined]
    assert all(before[name].equal(after[name]) for name in names)
    assert not any("reference" in name for name, _ in made.model.named_modules())


def test_padding_that_changes_only_gradients_is_detected(tmp_path: Path) -> None:
    """DPO's loss is ln 2 in each batch before the first step; of a short batch, padding shifts the halves."""
    made = dpo(tmp_path, per_device_train_batch_size=7)
    with pytest.raises(ConfigurationError, match="a loss that padding does not change"):
        tiebreak.hf.train(made)


def test_dpo_goes_on_with_an_adapter_of_sft_as_their_certificates_show(tmp_path: Path, command: Commands) -> None:
    """Three links, each trained by another key; an auditor signs the second one."""

    def stage(name: str, trainer: Trainer) -> None:
        key = tiebreak.new_key()
        tiebreak.hf.train(trainer, key=key)
        trainer.save_model(str(tmp_path / name / "out"))
        certify(RunDirectory.open(tmp_path / name / "run"), tmp_path / name / "out", tmp_path / f"{name}.json", key)

    def base() -> LlamaForCausalLM:
        return LlamaForCausalLM.from_pretrained(tmp_path / "base" / "out", dtype=torch.float32)

    stage("base", sft(tmp_path / "base"))
    stage("sft", sft(tmp_path / "sft", model=base, peft=lora()))
    command("audit", tmp_path / "sft" / "run", "--output", tmp_path / "replay", "--threads", 1)
    certify(RunDirectory.open(tmp_path / "replay"), tmp_path / "sft" / "out", tmp_path / "sft.json", tiebreak.new_key())
    args = arguments(DPOConfig, tmp_path / "dpo", precompute_ref_log_probs=True, bf16=False)
    model = PeftModel.from_pretrained(base(), tmp_path / "sft" / "out", is_trainable=True)
    trainer = DPOTrainer(model, args=args, train_dataset=preferences(), processing_class=tokenizer())
    trainer.model.delete_adapter("ref")  # TRL's copy of the adapter, which the base does not have
    stage("dpo", trainer)
    bases, certificates = [tmp_path / name / "out" for name in ("sft", "base")], ("sft.json", "base.json")
    links = verify_lineage(tmp_path / "dpo/out", tmp_path / "dpo.json", bases, [tmp_path / c for c in certificates])
    assert links[0].origins == {"start": links[1], "base": links[2]}
    assert links[1].origins == {"base": links[2]}
    assert [len(link.signed.signers) for link in links if link.signed] == [1, 2, 1]
