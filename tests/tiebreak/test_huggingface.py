"""`tiebreak.hf.train` against `transformers.Trainer` itself, in its own order of examples; and what it refuses."""

import importlib.metadata
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import importlib_metadata
import peft
import pytest
import torch
from datasets import IterableDataset
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

import tiebreak
from tests.parts import slow_except
from tests.source_tree import ROOT
from tests.tiebreak.hf_cases import Interrupts, encoded, gpt2, llama, losses
from tests.tiebreak.hf_scripts import SCRIPTS, Made, measure, pictures, plain, table
from tiebreak import ConfigurationError
from tiebreak.api import huggingface
from tiebreak.api.certification.certificates import verify
from tiebreak.api.certification.issuance import certify
from tiebreak.api.training.tasks import adapter_names
from tiebreak.engine.run.directory import RunDirectory


def both(folder: Path, made: Made, **more: Any) -> tuple[Trainer, Trainer]:
    ours, theirs = made(folder / "ours", **more), made(folder / "theirs", **more)
    set_seed(5)
    theirs.train()
    set_seed(5)
    tiebreak.hf.train(ours)
    assert len(losses(ours)) == len(losses(theirs)) > 0
    torch.testing.assert_close(losses(ours), losses(theirs), rtol=5e-6, atol=0)
    torch.testing.assert_close(losses(ours, "grad_norm"), losses(theirs, "grad_norm"), rtol=2e-5, atol=0)
    assert losses(ours, "learning_rate").equal(losses(theirs, "learning_rate"))
    ours.model.to(torch.float32)
    for name, tensor in theirs.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], tensor, rtol=1e-3, atol=2e-4)
    return ours, theirs


class Events(TrainerCallback):
    """Notes every event, with the step."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        return lambda args, state, control, **_: self.seen.append((name, state.global_step))


def test_training_matches_trainer_in_steps_events_and_logs(tmp_path: Path) -> None:
    """With a short last batch and step, evaluation, saving, the best model and accumulation over unequal labels."""
    events = {name: Events() for name in ("ours", "theirs")}

    def made(folder: Path) -> Trainer:
        return plain(
            folder, callbacks=[events[folder.name]], eval_dataset=encoded(6), per_device_train_batch_size=3,
            gradient_accumulation_steps=2, max_steps=20, eval_strategy="steps", eval_steps=5, save_strategy="steps",
            save_steps=5, save_total_limit=2, load_best_model_at_end=True, lr_scheduler_type="cosine", warmup_steps=3,
            weight_decay=0.1,
        )  # fmt: skip

    ours, theirs = both(tmp_path, made)
    assert [e for e in events["ours"].seen if e[0] != "on_init_end"] == events["theirs"].seen[1:]
    torch.testing.assert_close(losses(ours, "eval_loss"), losses(theirs, "eval_loss"), rtol=1e-5, atol=0)
    assert ours.state.best_global_step == theirs.state.best_global_step
    names = [sorted(p.name for p in t.glob("checkpoint-*")) for t in (tmp_path / "ours", tmp_path / "theirs")]
    assert names[0] == names[1] != []
    run = tiebreak.open_run(tmp_path / "ours" / "run")
    assert (run.step, run.job.checkpoint_interval, run.check) == (20, 5, "full")
    assert run.audit(sample=2, seed="1").agrees


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tensorboard", "mlflow", *(["wandb"] if find_spec("wandb") else [])])
def test_logging_integrations_and_evaluation_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """W&B runs where it is installed; its offline file and MLflow's folder hold what Trainer logs."""
    settings = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "MLFLOW_ALLOW_FILE_STORE": "true"}
    for name, value in {**settings, "MLFLOW_TRACKING_URI": f"file:{tmp_path}/ml"}.items():
        monkeypatch.setenv(name, value)
    bare = plain(tmp_path / "bare", max_steps=6)
    watched = plain(
        tmp_path / "watched", max_steps=6, callbacks=[Events()], eval_dataset=encoded(6), eval_strategy="steps",
        eval_steps=2, save_strategy="steps", save_steps=6, logging_steps=3, report_to=kind,
    )  # fmt: skip
    for trainer in (bare, watched):
        tiebreak.hf.train(trainer)
    if kind == "mlflow":
        metrics = next(tmp_path.glob("ml/*/*/metrics"))
        for name in ("loss", "grad_norm", "learning_rate", "epoch", "eval_loss"):
            lines = [line.split() for line in (metrics / name).read_text().splitlines()]
            told = [(line["step"], line[name]) for line in watched.state.log_history if name in line]
            written = [(int(step), float(value)) for _, value, step in lines]
            assert sorted(written) == sorted(told)  # a thread of MLflow's writes them
        sys.modules["mlflow"].end_run()
    else:
        found = {"tensorboard": "watched/**/events.out.tfevents*", "wandb": "wandb/offline-run-*/*.wandb"}[kind]
        folder = Path(sys.modules["wandb"].run.settings.root_dir) if kind == "wandb" else tmp_path
        assert [*folder.glob(found)] != []
    states = [tiebreak.open_run(tmp_path / name / "run").state_dict() for name in ("bare", "watched")]
    assert all(states[0][name].equal(states[1][name]) for name in states[0])


FURTHER = (
    "GPT-2, last batch dropped", "Llama, activation checkpointing", "BERT, masks, evaluation by steps",
    "BERT, sentences", "BERT, choices", "Prompt tuning", "P-tuning", "SFT, GPT-2", "SFT, evaluation",
    "SFT, packed, LoRA", "SFT, packed, wrapped", "SFT, chats", "DPO, LoRA, accumulation",
    "DPO, reference computed before",
)  # fmt: skip
"""Scripts each of whose features another one has, or a test of that feature."""


@pytest.mark.parametrize("script", slow_except(SCRIPTS, nightly=FURTHER))
def test_scripts_match_their_trainer_within_documented_differences(tmp_path: Path, script: str) -> None:
    """Beyond its row by one order of magnitude at most, since other processors round otherwise."""
    steps, *apart = measure(tmp_path, script)
    stated, *limits = table()[script]
    assert steps == stated >= 10
    assert all(found <= 10 * max(limit, 1e-7) for found, limit in zip(apart, limits, strict=True)), apart


def test_docs_have_a_row_for_each_script() -> None:
    """With all logs within 1e-5 of the original's."""
    rows = table()
    assert list(rows) == list(SCRIPTS)
    assert len(rows) >= 30
    assert [
        script for script, (_, losses, logs, weights) in rows.items() if max(losses, logs) > 1e-5 or weights > 1e-4
    ] == []


class Draws(TrainerCallback):
    """Draws as an evaluation does that prints samples."""

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        torch.rand(3)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
def test_a_callback_using_random_numbers_warns_if_examples_depend_on_it(
    tmp_path: Path, strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    tiebreak.hf.train(
        plain(tmp_path, callbacks=[Draws()], eval_dataset=encoded(4), eval_strategy="epoch",
              train_sampling_strategy=strategy)
    )  # fmt: skip
    told = "by more than the data loaders (a callback, or" in caplog.text
    assert told is (strategy == "group_by_length")


@pytest.mark.slow
def test_padding_examples_that_change_batch_statistics_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="a loss that padding does not change, got others for batch 9"):
        tiebreak.hf.train(pictures(tmp_path, "ResNet"))


@pytest.mark.slow
def test_checkpointing_of_activations_changes_no_byte(tmp_path: Path) -> None:
    """A run decides itself what it computes again, so the roots are the same. The model keeps its setting."""
    found = list[tuple[bytes, bytes]]()
    for name, checkpointing in (("plain", False), ("again", True)):
        trainer = plain(tmp_path / name, model=llama, gradient_checkpointing=checkpointing, max_steps=3)
        tiebreak.hf.train(trainer)
        assert trainer.model.model.gradient_checkpointing is checkpointing
        run = RunDirectory.open(tmp_path / name / "run")
        found.append((run.job.program_root, run.root(len(run.records()))))
    assert found[0] == found[1]


@pytest.mark.slow
def test_bfloat16_training_matches_autocast(tmp_path: Path) -> None:
    found = []
    for name, train, more in (("theirs", Trainer.train, {"bf16": True}), ("ours", tiebreak.hf.train, {"bf16": True})):
        found.append(plain(tmp_path / name, **more))
        set_seed(5)
        train(found[-1])
    exact = plain(tmp_path / "exact")
    tiebreak.hf.train(exact)
    torch.testing.assert_close(losses(found[1]), losses(found[0]), rtol=5e-3, atol=5e-3)
    assert not torch.allclose(losses(found[1]), losses(exact), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_run_goes_on_and_can_be_audited_and_certified(tmp_path: Path) -> None:
    client, trainer = tiebreak.new_key(), tiebreak.new_key()

    def made(*callbacks: Any) -> Any:
        return plain(
            tmp_path, Trainer, lambda: gpt2(0.1), list(callbacks), max_steps=20, save_strategy="steps", save_steps=4,
            eval_strategy="steps", eval_steps=4, eval_dataset=encoded(6), logging_steps=5,
        )  # fmt: skip

    signed = {"client": client, "key": trainer, "terms": tiebreak.Terms(reward=1, trainer_stake=2)}
    events = Events()
    with pytest.raises(KeyboardInterrupt) as held:  # with its frames, as a notebook holds them
        tiebreak.hf.train(made(Interrupts(11)), **signed)
    assert tiebreak.open_run(tmp_path / "run").step == 8

    second = made(events)
    out = tiebreak.hf.train(second, resume_from_checkpoint=True, **signed)
    run = tiebreak.open_run(tmp_path / "run")
    assert (out.global_step, run.signed) == (20, 5)
    assert out.training_loss == pytest.approx(sum(run.losses) / 20)
    logged = [(line["step"], "loss" in line) for line in second.state.log_history[:-1]]
    evaluated, told = [(step, False) for step in (4, 8, 12, 16, 20)], [(step, True) for step in (5, 10, 15, 20)]
    assert sorted(logged) == sorted(evaluated + told)
    assert held.traceback
    begun = [step for event, step in events.seen if event == "on_step_begin"]
    assert begun == list(range(8, 20))
    assert run.audit(sample=2, seed="1").agrees
    second.save_model(str(tmp_path / "saved"))
    certify(RunDirectory.open(run.directory), tmp_path / "saved", tmp_path / "certificate.json", trainer)
    seal, found = verify(tmp_path / "saved", tmp_path / "certificate.json")
    assert seal.signers == [trainer.address]
    assert "lm_head.weight" not in found.tensors, "tied weights are saved once"
    with pytest.raises(ConfigurationError, match=r"run was made with optimizer\.lr 0\.001, got 0\.0; .*start afresh"):
        tiebreak.hf.train(second, **signed)


@pytest.mark.slow
def test_a_callback_ends_a_run_at_a_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Stops(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop |= state.global_step == 5

    ended = plain(tmp_path, callbacks=[Stops()], max_steps=20, save_strategy="steps", save_steps=4)
    assert tiebreak.hf.train(ended).global_step == 8
    assert "it goes on to step 8, the next checkpoint" in caplog.text
    run = tiebreak.open_run(tmp_path / "run")
    assert run.step == 8
    assert all(ended.model.state_dict()[name].equal(tensor) for name, tensor in run.state_dict().items())


class Counts(Trainer):
    calls = 0

    def compute_loss(self, model: Any, inputs: Any, **more: Any) -> Any:
        self.calls += 1
        return self.calls * super().compute_loss(model, inputs, **more)


class Steps(Trainer):
    def training_step(self, *_: Any) -> Tensor:
        return torch.zeros(())


class Averages(Trainer):
    """A loss that padding changes."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        return model(inputs["input_ids"]).logits.float().square().mean()


class Clips(TrainerCallback):
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        raise AssertionError


class Writes(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        with torch.no_grad():
            next(model.parameters()).mul_(0.5)


def fast() -> Any:
    """A model whose forward Unsloth has replaced, as it does in transformers' own classes."""
    kind = type(gpt2())
    made = type("GPT2LMHeadModel", (kind,), {"__module__": kind.__module__, "forward": lambda *_, **__: None})
    made.forward.__module__ = "unsloth.models.llama"
    return made(gpt2().config)


READING = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch", "eval_dataset": encoded(4)}
LOADER = {name: DataLoader(encoded(4)) for name in ("train_dataset", "eval_dataset")}
SEVERAL = {"kind": Steps, "neftune_noise_alpha": 1.0, "torch_compile": True}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a counter": ({"kind": Counts}, "it changes an attribute of loss"),
    "a step of its own": ({"kind": Steps}, "got a training_step of your own, which a run never calls"),
    "padding that counts": ({"kind": Averages}, "a loss that padding does not change, got others for batch"),
    "noise on embeddings": ({"neftune_noise_alpha": 5.0}, "got neftune_noise_alpha=5.0: its noise depends on the padd"),
    "a schedule that reads": (READING, "'reduce_lr_on_plateau': it reads"),
    "loader": (LOADER, r"(?s)\* a DataLoader as train_dataset: give `loader.dataset`.*\* a DataLoader as eval_dataset"),
    "hooks on gradients": ({"callbacks": [Clips()]}, r"Clips.on_pre_optimizer_step: there are no gradients"),
    "a callback that writes": ({"callbacks": [Writes()]}, "leave the weights alone, got one that writes"),
    "Unsloth": ({"model": fast}, "got a model or a trainer of Unsloth, .* same LoRA with peft"),
    "several": (SEVERAL, r"(?s)\* torch_compile=True: .*\* neftune_noise_alpha=1.0: .*\* a training_step of your own"),
}


@pytest.mark.parametrize("what", slow_except(REFUSED, *(REFUSED.keys() - {"a counter", "a callback that writes"})))
def test_unsupported_trainer_features_are_refused_by_name(tmp_path: Path, what: str) -> None:
    given, message = REFUSED[what]
    with pytest.raises(ConfigurationError, match=message):
        tiebreak.hf.train(plain(tmp_path, max_steps=3, **given))


@dataclass
class Scale(TrainingArguments):
    used: float = 2.0
    left: float = 3.0
    unset: float = 4.0


class Scaled(Trainer):
    def compute_loss(self, model: Any, inputs: Any, **more: Any) -> Any:
        return self.args.used * super().compute_loss(model, inputs, **more)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_unread_training_arguments_are_reported(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="nobody has read left of Scale while"):
        tiebreak.hf.train(plain(tmp_path, Scaled, settings=Scale, max_steps=2, left=1.0))


def test_hyperparameter_searches_and_non_tensor_batches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected no trial of a search"):
        tiebreak.hf.train(plain(tmp_path), None, trial={"learning_rate": 1.0})
    made = plain(tmp_path, data_collator=lambda rows: [row["input_ids"] for row in rows])
    with pytest.raises(ConfigurationError, match="gives tensors by name, got list"):
        tiebreak.hf.train(made)


def given_as_argument(trainer: Trainer, start: Any) -> None:
    trainer.args.resume_from_checkpoint = start
    tiebreak.hf.train(trainer)


STARTS: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "tiebreak.hf.train": (Trainer, tiebreak.hf.train),
    "python -m tiebreak.hf": (Trainer, lambda trainer, start: trainer.train(resume_from_checkpoint=start)),
    "an argument": (Trainer, given_as_argument),
}


@pytest.mark.parametrize("how", STARTS)
def test_resume_refuses_a_checkpoint_of_another_training(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one in `output_dir` from before there was a run."""
    kind, train = STARTS[how]
    if how == "python -m tiebreak.hf":
        monkeypatch.setattr(Trainer, "train", Trainer.train)  # so that it is put back
        tiebreak.hf.install()
    (tmp_path / "checkpoint-2").mkdir()
    for start in (str(tmp_path / "other/checkpoint-2"), str(tmp_path / "checkpoint-2"), True):
        with pytest.raises(ConfigurationError, match=f"resume_from_checkpoint='?{start}'?, a checkpoint of another"):
            train(plain(tmp_path, kind, max_steps=2), start)


@pytest.mark.slow
def test_resume_accepts_any_checkpoint_of_the_same_run(tmp_path: Path) -> None:
    settings = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    first = tiebreak.hf.train(plain(tmp_path, **settings), True, None, ["past_key_values"])
    for start in (True, str(tmp_path / "checkpoint-1"), False, None):
        again = tiebreak.hf.train(plain(tmp_path, **settings), start)
        assert (again.global_step, again.training_loss) == (2, first.training_loss)


def test_adapter_names_include_virtual_tokens_that_peft_saves() -> None:
    """Those of P-tuning are what a network gives, so no tensor of the run is what PEFT saves."""
    names, given = {"prompt_encoder.default.embedding.weight": "prompt_embeddings"}, {"num_virtual_tokens": 4}
    for config in (peft.PromptTuningConfig, peft.PrefixTuningConfig):
        assert adapter_names(peft.get_peft_model(llama(), config(task_type="CAUSAL_LM", **given))) == names
    of_network = peft.PromptEncoderConfig(task_type="CAUSAL_LM", encoder_hidden_size=16, **given)
    assert adapter_names(peft.get_peft_model(llama(), of_network)) == {}


@pytest.mark.slow
def test_unsupported_transformers_and_trl_versions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.57.0")
    with pytest.raises(ConfigurationError, match=r"expected transformers 5, got 4.57.0"):
        runpy.run_path(str(huggingface.__file__))
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(__version__="0.24.0"))
    older = type("SFTTrainer", (Trainer,), {"__module__": "trl.trainer.sft_trainer"})
    with pytest.raises(ConfigurationError, match=r"a trainer of TRL 0.24.0, whose losses"):
        tiebreak.hf.train(plain(tmp_path, older))
    monkeypatch.delattr(Trainer, "loss_is_scaled_for_ga")  # as in transformers 5.6, with which LLaMA-Factory loads
    assert tiebreak.hf.train(plain(tmp_path, max_steps=2)).global_step == 2  # such a TRL, but not its trainers


@pytest.mark.slow
def test_the_share_of_padding_is_reported(tmp_path: Path) -> None:
    rows = [{"input_ids": [5] * (200 if i == 7 else 8)} for i in range(8)]
    with pytest.warns(
        UserWarning, match=r"1,344 of 1,600 elements of input_ids \(84% .*\) are padding to 200 a batch, since"
    ):
        tiebreak.hf.train(plain(tmp_path, model=llama, train_dataset=rows, max_steps=8, per_device_train_batch_size=1))


class Asks(Trainer):
    def compute_loss(self, *given: Any, **more: Any) -> Any:
        assert importlib_metadata.version("torch") == importlib.metadata.version("torch")  # as accelerate asks for PEFT
        return super().compute_loss(*given, **more)


@pytest.mark.slow
def test_a_step_may_ask_which_packages_there_are(tmp_path: Path) -> None:
    assert tiebreak.hf.train(plain(tmp_path, Asks, max_steps=1)).global_step == 1


@pytest.mark.slow
def test_a_stream_shorter_than_max_steps_is_repeated(tmp_path: Path) -> None:
    rows = list(encoded(12))
    ours, theirs = (
        plain(tmp_path / name, train_dataset=IterableDataset.from_generator(lambda: iter(rows)), max_steps=7)
        for name in ("ours", "theirs")
    )
    theirs.train()
    assert tiebreak.hf.train(ours).global_step == theirs.state.global_step == 7


@pytest.mark.slow
def test_an_unmodified_script_runs_under_tiebreak_hf(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys\nfrom pathlib import Path\nfrom tests.tiebreak.hf_scripts import plain\n"
        "print(plain(Path(sys.argv[1]), max_steps=2).train().global_step)\n"
    )
    for program in (["script.py"], ["-m", "script"]):
        ran = subprocess.run(
            [sys.executable, "-m", "tiebreak.hf", *program, f"out{len(program)}"], cwd=tmp_path, check=False,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}, capture_output=True, text=True,
        )  # fmt: skip
        assert ran.stdout.splitlines()[-1:] == ["2"], ran.stderr
        assert tiebreak.open_run(tmp_path / f"out{len(program)}" / "run").step == 2
