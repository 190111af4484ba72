"""`tiebreak.hf.train` with TRL's GRPO and RLOO, beside the original on the same rollouts; and what it refuses."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

import tiebreak
from tests.parts import slow_except
from tests.tiebreak.hf_cases import VOCABULARY, Interrupts, arguments, gpt2, llama, losses, texts, tokenizer
from tests.tiebreak.hf_scripts import lora
from tiebreak import ConfigurationError
from tiebreak.api.huggingface.rollouts import seeded
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.engine.capture.step_run import replaced
from tiebreak.engine.logged.encoding import encode_sparse
from tiebreak.engine.logged.files import LogFile, LogFiles, log_path
from tiebreak.engine.logged.journal import LogsInProgress
from tiebreak.engine.logged.log_replay import late_tensors
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.errors import CannotCheck

KEYS: Final = tiebreak.new_key(), tiebreak.new_key()
_REPORTS: Final = (
    "reward", "kl", "entropy", "clip_ratio/region_mean", "completions/mean_length", "num_tokens", "learning_rate",
)  # fmt: skip


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def variety(completions: list[Any], **_: Any) -> list[float]:
    said = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [float(len(set(text))) for text in said]


def low(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The share of tokens in a quarter of the vocabulary."""
    return [sum(token < VOCABULARY // 4 for token in ids) / len(ids) for ids in completion_ids]


async def awaited(completions: list[str], **_: Any) -> list[float]:
    return variety(completions)


def prompts() -> Dataset:
    return Dataset.from_dict({"prompt": texts(24, 1, 6)})


def chats() -> Dataset:
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in texts(24, 1, 6)]})


def trained_before(base: str) -> Any:
    """A model with an adapter that is not new: TRL keeps a copy of it as the reference."""
    import peft  # noqa: PLC0415

    torch.manual_seed(1)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), lora())
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def made(
    folder: Path, *, model: Any = llama, adapter: Any = None, data: Any = prompts, reward: Any = variety,
    kind: Any = GRPOTrainer, load: Any = str, callbacks: Any = None, **more: Any,
) -> Any:  # fmt: skip
    base, processing = folder.parent / f"base-{folder.name}", tokenizer()
    model().save_pretrained(base)
    processing.padding_side = "left"
    given = {
        "bf16": False, "num_generations": 4, "max_completion_length": 6, "learning_rate": 1e-2,
        "gradient_checkpointing": False, **more,
    }  # fmt: skip
    args = arguments(GRPOConfig if issubclass(kind, GRPOTrainer) else RLOOConfig, folder, **given)
    trainer = kind(
        load(str(base)), reward, args, train_dataset=data(), eval_dataset=data().select(range(4)),
        processing_class=processing, peft_config=adapter, callbacks=callbacks,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer


@contextmanager
def written(trainer: Any) -> Iterator[None]:
    """Completions that follow from the seed of their micro-batch alone, so that rounding changes none of them."""

    def generate(input_ids: Tensor, **_: Any) -> Tensor:
        drawn = torch.randint(VOCABULARY, (len(input_ids), trainer.max_completion_length))
        drawn[torch.rand(drawn.shape) < 0.1] = 1
        return torch.cat([input_ids, drawn], 1)

    with replaced(trainer.model, generate=generate):
        yield


def original(trainer: Any) -> Any:
    """Trains as TRL does, with the draws that a run has."""
    prepare = trainer._prepare_inputs

    def prepared(batch: Any) -> Any:
        with seeded(trainer):
            return prepare(batch)

    with replaced(trainer, _prepare_inputs=prepared):
        return trainer.train()


def both(folder: Path, **more: Any) -> tuple[Any, Any]:
    theirs, ours = made(folder / "theirs", **more), made(folder / "ours", **more)
    with written(theirs), written(ours):
        original(theirs)
        tiebreak.hf.train(ours)
    assert list(theirs._logs["completion"]) == list(ours._logs["completion"]) != []
    assert [line.keys() for line in theirs.state.log_history] == [line.keys() for line in ours.state.log_history]
    assert len(losses(ours)) == theirs.args.max_steps
    for name, rtol in (("loss", 2e-5), ("grad_norm", 2e-4), *((name, 1e-4) for name in _REPORTS)):
        torch.testing.assert_close(losses(ours, name), losses(theirs, name), rtol=rtol, atol=2e-5)
    for name, tensor in theirs.model.state_dict().items():  # which Adam has moved by up to 0.2
        torch.testing.assert_close(ours.model.state_dict()[name], tensor, rtol=0, atol=2e-3)
    return theirs, ours


_TWICE: Final = {"num_iterations": 2, "gradient_accumulation_steps": 2, "beta": 0.1}
CASES: Final[dict[str, dict[str, Any]]] = {
    "all weights, KL, two iterations": {
        "model": tiny, "loss_type": "grpo", "epsilon": 0.02, "num_iterations": 2, "beta": 0.1,
    },
    "all weights": {},
    "LoRA, KL": {"adapter": lora(), "beta": 0.1, "steps_per_generation": 2},
    "LoRA, checkpointing of activations, accumulation": {
        "adapter": lora(), "gradient_checkpointing": True, "gradient_accumulation_steps": 2,
    },
    "LoRA, an adapter trained before": {"load": trained_before, "beta": 0.1},
    "chats, several epochs": {"data": chats, "num_train_epochs": 2, "per_device_train_batch_size": 8},
    "a step of several generations": {"gradient_accumulation_steps": 4, "steps_per_generation": 2},
    "bnpo, two iterations": {"loss_type": "bnpo", **_TWICE},
    "dr_grpo": {"loss_type": "dr_grpo", **_TWICE},
    "luspo, by sequence": {"loss_type": "luspo", "importance_sampling_level": "sequence", **_TWICE},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0, "num_iterations": 2},
    "sapo": {"loss_type": "sapo", "num_iterations": 2},
    "vespo": {"loss_type": "vespo", "num_iterations": 2},
    "two-sided clipping, truncated ones masked": {
        "delta": 1.5, "mask_truncated_completions": True, "use_bias_correction_kl": True, **_TWICE,
    },
    "entropy bonus, mask off the policy": {
        "entropy_coef": 0.1, "off_policy_mask_threshold": 0.01, "num_iterations": 3,
    },
    "rewards that are awaited, two of them": {"reward": [awaited, low], "reward_weights": [1.0, 2.0]},
    "rewards normalised by batch, fixed length": {"scale_rewards": "batch", "pad_to_multiple_of": 4},
    "another temperature": {"temperature": 0.7, "top_k": 50, "num_iterations": 2},
    "RLOO": {"kind": RLOOTrainer, **_TWICE},
}  # fmt: skip
OTHERS: Final = {
    "LoRA, an adapter trained before", "a step of several generations", "dr_grpo", "luspo, by sequence", "sapo",
    "vespo", "rewards that are awaited, two of them", "rewards normalised by batch, fixed length",
    "another temperature",
}  # fmt: skip
"""Cases whose losses and settings TRL computes in the same places as those of the others."""


@pytest.mark.parametrize(
    "case", slow_except((case for case in CASES if CASES[case].get("model") is not tiny), nightly=OTHERS)
)
def test_steps_are_those_of_trl_on_the_same_rollouts(tmp_path: Path, case: str) -> None:
    both(tmp_path, **CASES[case])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tiebreak.Run:
    """A signed run, whose losses are those of TRL."""
    folder = tmp_path_factory.mktemp("grpo")
    ours = made(folder / "ours", **CASES["all weights, KL, two iterations"])
    with written(ours), pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiebreak.api.machine.interpreters.qualify", lambda _: None)
        tiebreak.hf.train(ours, client=KEYS[0], key=KEYS[1], check="none")
    found = tiebreak.open_run(folder / "ours" / "run")
    vars(found)["trainer"] = ours
    return found


@pytest.mark.slow
def test_losses_are_those_of_trl_while_ratios_are_clipped(run: tiebreak.Run, tmp_path: Path) -> None:
    ours: Any = vars(run)["trainer"]
    theirs = made(tmp_path / "theirs", **CASES["all weights, KL, two iterations"])
    with written(theirs):
        original(theirs)
    assert list(theirs._logs["completion"]) == list(ours._logs["completion"]) != []
    assert max(losses(theirs, "clip_ratio/region_mean")) > 0.1
    for name in ("loss", *_REPORTS):
        assert len(losses(ours, name)) >= 10
        torch.testing.assert_close(losses(ours, name), losses(theirs, name), rtol=1e-4, atol=2e-6)
    assert run.late == ("advantages", "completion_ids", "completion_mask", "old_per_token_logps")
    for name, tensor in theirs.model.state_dict().items():
        torch.testing.assert_close(run.state_dict()[name], tensor, rtol=1e-3, atol=5e-4)


@pytest.mark.slow
def test_an_audit_agrees_and_a_forged_advantage_or_token_is_refused(run: tiebreak.Run, tmp_path: Path) -> None:
    assert run.audit().agrees
    for name, dtype in (("advantages", torch.float32), ("completion_ids", torch.int64)):
        forged = RunDirectory.open(Path(shutil.copytree(run.directory, tmp_path / name)))
        steps = range(1, forged.job.last_step(0) + 1)
        logs = [LogFiles(forged).step_log(step) for step in steps]
        array = torch.frombuffer(bytearray(logs[0].late[name]), dtype=dtype)
        array[0] += 1
        logs[0] = replace(logs[0], late={**logs[0].late, name: array.numpy().tobytes()})
        file = LogFile(log_path(forged.path, steps[-1]), forged.program, forged.job.id, steps)
        file.create()
        for step, log in zip(steps, logs, strict=True):
            assert encode_sparse(log, forged.program, step)
            file.append(step, log)
        with pytest.raises(CannotCheck, match="expected log root"):
            tiebreak.open_run(forged.path).audit()


class Deceiving(LogsInProgress):
    """Publishes an advantage and computes with another."""

    def before(self, step: int, *rest: Any) -> Any:
        sums = super().before(step, *rest)
        sums.late = {**sums.late, "advantages": sums.late["advantages"] + (step == 1)}
        return sums


@pytest.mark.slow
def test_a_trainer_that_computes_with_another_advantage_than_it_publishes_is_convicted(
    run: tiebreak.Run, tmp_path: Path
) -> None:
    honest = RunDirectory.open(run.directory)
    found = []
    for kind in (LogsInProgress, Deceiving):
        made = RunDirectory.create(
            tmp_path / kind.__name__, honest.agreement, honest.program, honest.state(0), honest.data()
        )
        machine = make_interpreter(honest.program, Machine(), honest.job)

        def supply(step: int, _state: Mapping[str, Tensor], machine: Any = machine) -> dict[str, Tensor]:
            return late_tensors(honest.program, LogFiles(honest).step_log(step), machine.arithmetic)

        Worker(made, machine, key=KEYS[1], logs=kind(made, supply=supply)).work(2)
        assert LogFiles(made).step_log(1).late == LogFiles(honest).step_log(1).late
        found.append(tiebreak.open_run(made.path).audit())
    assert [report.agrees for report in found] == [True, False]
    assert found[1].fraud is not None


@pytest.mark.slow
def test_rewards_rise_as_they_do_in_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the trainer's own sampler, and the comparison of the program with eager PyTorch."""
    more = {"reward": low, "max_steps": 30, "per_device_train_batch_size": 16, "learning_rate": 0.1, "model": tiny}
    theirs, ours = made(tmp_path / "theirs", **more), made(tmp_path / "ours", **more)
    original(theirs)
    monkeypatch.undo()
    tiebreak.hf.train(ours)
    for trainer in (theirs, ours):
        rewards = losses(trainer, "reward")
        assert rewards[-5:].mean() > rewards[:5].mean() + 0.2
    assert losses(ours, "reward")[:5].equal(losses(theirs, "reward")[:5]), "the same samples"
    means = [losses(trainer, "reward").view(3, 10).mean(1) for trainer in (theirs, ours)]
    torch.testing.assert_close(*means, rtol=0, atol=0.15)


@pytest.mark.parametrize("stop", slow_except([3, 8], nightly=[8]))
def test_an_interrupted_run_reaches_the_same_root(tmp_path: Path, stop: int) -> None:
    """Stopped within a buffer of rollouts, with evaluation and saving; what is committed is not scored again."""
    scored: list[int] = []

    def reward(completions: list[str], **_: Any) -> list[float]:
        scored.append(len(completions))
        return variety(completions)

    def trainer(folder: Path, *callbacks: Any) -> Any:
        return made(
            folder, adapter=lora(), reward=reward, callbacks=list(callbacks), max_steps=12, save_strategy="steps",
            save_steps=2, steps_per_generation=3, gradient_accumulation_steps=1, num_iterations=1, beta=0.1,
        )  # fmt: skip

    whole = trainer(tmp_path / "whole")
    tiebreak.hf.train(whole)
    assert len(scored) == 4
    with pytest.raises(KeyboardInterrupt):
        tiebreak.hf.train(trainer(tmp_path / "parts", Interrupts(stop)))
    before = tiebreak.open_run(tmp_path / "parts" / "run").step
    assert before == stop // 3 * 3
    scored.clear()
    again = trainer(tmp_path / "parts")
    tiebreak.hf.train(again)
    assert len(scored) == 4 - before // 3
    runs = [tiebreak.open_run(tmp_path / name / "run") for name in ("whole", "parts")]
    assert runs[0].root == runs[1].root
    assert runs[1].audit().agrees
    assert losses(again, "num_tokens")[-1] == losses(whole, "num_tokens")[-1]
    assert tiebreak.hf.train(trainer(tmp_path / "parts")).global_step == 12, "nothing is left to be computed"
    assert len(scored) == 4 - before // 3


@pytest.mark.slow
def test_evaluations_and_callbacks_that_draw_change_no_rollout(tmp_path: Path) -> None:
    roots = set()
    for name, more in (("plain", {}), ("evaluated", {"eval_strategy": "steps", "eval_steps": 2})):
        trainer = made(tmp_path / name, model=tiny, max_steps=4, save_strategy="steps", save_steps=2, **more)
        tiebreak.hf.train(trainer)
        assert len(losses(trainer, "eval_reward")) == 2 * bool(more)
        roots.add(tiebreak.open_run(tmp_path / name / "run").root)
    assert len(roots) == 1


@pytest.mark.slow
def test_bfloat16_rollouts_train_as_autocast_does(tmp_path: Path) -> None:
    theirs, ours = (made(tmp_path / name, bf16=True, max_steps=6) for name in ("theirs", "ours"))
    with written(theirs), written(ours):
        original(theirs)
        tiebreak.hf.train(ours)
    torch.testing.assert_close(losses(ours), losses(theirs), rtol=2e-2, atol=5e-3)


class Stepping(GRPOTrainer):  # type: ignore[misc]
    def training_step(self, *_: Any) -> Tensor:
        return torch.zeros(())


class Preparing(GRPOTrainer):  # type: ignore[misc]
    def _prepare_inputs(self, *_: Any) -> dict[str, Any]:
        return {}


def tool(x: int) -> int:
    """Gives a number back.

    Args:
        x: A number.
    """
    return x


REFUSED: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "top_entropy_quantile": ({"top_entropy_quantile": 0.5}, "top_entropy_quantile=0.5: a quantile of a number"),
    "use_adaptive_entropy": (
        {"use_adaptive_entropy": True, "entropy_target": 0.1}, "use_adaptive_entropy=True: its coefficient reads",
    ),
    "sync_ref_model": ({"sync_ref_model": True, "beta": 0.1}, "sync_ref_model=True: a reference model that moves"),
    "an own step": ({"kind": Stepping}, "(?s)got .*a training_step of your own"),
    "own inputs": ({"kind": Preparing}, "got Preparing, which prepares inputs with the model of the moment"),
    "absolute positions": ({"model": gpt2}, "padding does not change, got others for batch 0 .*positions are relative"),
    "unequal steps": (
        {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "max_steps": -1, "num_train_epochs": 1,
         "data": lambda: prompts().select(range(5))},
        "expected 2 micro-batches in each step, got a last step of an epoch with 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", slow_except(REFUSED, "own inputs", "top_entropy_quantile"))
def test_what_is_not_followed_is_refused_by_name(tmp_path: Path, what: str) -> None:
    given, words = REFUSED[what]
    with pytest.raises(ConfigurationError, match=words):
        tiebreak.hf.train(made(tmp_path / "run", **{"model": tiny, "max_steps": 3, **given}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("use_vllm", True), ("use_transformers_continuous_batching", True), ("rollout_func", tool), ("tools", [tool]),
     ("environment_factories", {None: tool}), ("_is_vlm", True), ("aux_loss_enabled", True)],
)  # fmt: skip
def test_samplers_and_data_of_another_kind_are_refused(tmp_path: Path, name: str, value: Any) -> None:
    """As attributes, since their own packages are not installed."""
    trainer = made(tmp_path / "run", model=tiny, max_steps=3)
    setattr(trainer.args if hasattr(trainer.args, name) else trainer, name, value)
    with pytest.raises(ConfigurationError, match=f"got {name.strip('_')}="):
        tiebreak.hf.train(trainer)


def test_evaluations_of_such_trainers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="got GRPOTrainer, which samples from its model"):
        tiebreak.hf.evaluate(made(tmp_path / "run", model=tiny))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("GKDTrainer", ", which prepares inputs with the model of the moment"),
        ("PPOTrainer", ": its loop .* GRPOTrainer"),
    ],
)
def test_other_trainers_that_generate_are_refused(tmp_path: Path, name: str, words: str) -> None:
    """By the module of their step, since TRL keeps changing which of them it has."""
    online = type(name, (Trainer,), {"training_step": lambda *_: None})
    online.training_step.__module__ = "trl.experimental.gkd.gkd_trainer"
    with pytest.raises(ConfigurationError, match=f"{name}{words}"):
        tiebreak.hf.train(online(tiny(), TrainingArguments(str(tmp_path), use_cpu=True), train_dataset=prompts()))


def test_online_dpo_is_refused_with_what_to_write_instead(tmp_path: Path) -> None:
    args = OnlineDPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False)
    found = OnlineDPOTrainer(tiny(), None, variety, args, train_dataset=prompts(), processing_class=tokenizer())
    with pytest.raises(ConfigurationError, match=r"OnlineDPOTrainer: its pairs .* GRPOTrainer with num_generations=2"):
        tiebreak.hf.train(found)
