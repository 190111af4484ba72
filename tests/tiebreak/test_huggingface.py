"""`TiebreakTrainer` against `transformers.Trainer`, given the same examples in the same order; and what it refuses."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import IterableDataset
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import tiebreak
from tiebreak import ConfigurationError, StateError, TiebreakTrainer
from tiebreak.api.certification.certificates import verify
from tiebreak.api.certification.certifying import certify
from tiebreak.api.training.huggingface import _ASIDE as ASIDE
from tiebreak.api.training.huggingface import _TAKEN as TAKEN
from tiebreak.api.training.huggingface import check_arguments
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.numbers.philox import shuffle

EXAMPLES, LENGTH, SEED = 48, 8, 7


def gpt2(dropout: float = 0.0) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=32, n_positions=LENGTH, n_layer=1, n_embd=16, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, loss_type="ForCausalLMLoss",
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def rows(count: int = EXAMPLES, ignored: bool = False) -> list[dict[str, Tensor]]:
    drawn = torch.randint(0, 32, (count, LENGTH), generator=torch.Generator().manual_seed(1))
    found = [{"input_ids": row, "labels": row.clone()} for row in drawn]
    if ignored:
        for i, row in enumerate(found):
            row["labels"][: i % 4] = -100
    return found


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    given = {"max_steps": 24, "per_device_train_batch_size": 6, "learning_rate": 1e-2, "seed": SEED}
    given |= {"logging_steps": 5, "adam_epsilon": 1e-6}  # the gradient of a key's bias is noise about 0
    return TrainingArguments(output_dir=str(folder), use_cpu=True, disable_tqdm=True, **given | more)


class InOrder:
    """A sampler of the job's order: another epoch each time."""

    def __init__(self) -> None:
        self.epoch = -1

    def __len__(self) -> int:
        return EXAMPLES

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter([shuffle(i, SEED, self.epoch, EXAMPLES, 0) for i in range(EXAMPLES)])


class Theirs(Trainer):
    """`transformers.Trainer` with the job's order of examples, that keeps the loss of each step."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return InOrder()


def both(folder: Path, data: list[dict[str, Tensor]], **more: Any) -> tuple[TiebreakTrainer, Theirs]:
    args = {"logging_steps": 1, "save_strategy": "no"} | more
    ours = TiebreakTrainer(model=gpt2(), args=arguments(folder / "ours", **args), train_dataset=data)
    theirs = Theirs(model=gpt2(), args=arguments(folder / "theirs", **args), train_dataset=data)
    for trainer in (ours, theirs):
        out = trainer.train()
        assert out.global_step == trainer.state.global_step == trainer.state.max_steps >= 20
    return ours, theirs


def losses(trainer: Trainer) -> Tensor:
    return torch.tensor([log["loss"] for log in trainer.state.log_history if "loss" in log], dtype=torch.float64)


CASES: dict[str, dict[str, Any]] = {
    "weight decay, warm-up, cosine": {
        "weight_decay": 0.1, "warmup_steps": 4, "lr_scheduler_type": "cosine", "adam_beta2": 0.95, "adam_epsilon": 1e-3,
        "max_grad_norm": 0.5,
    },
    "accumulation by epochs": {"gradient_accumulation_steps": 2, "max_steps": -1, "num_train_epochs": 5.5},
    "accumulation over unequally many labels": {"gradient_accumulation_steps": 2},
    "SGD, no clipping": {"optim": "sgd", "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "learning_rate": 0.3},
    "smoothed labels": {"label_smoothing_factor": 0.1},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_losses_and_weights_are_those_of_their_trainer(tmp_path: Path, case: str) -> None:
    ours, theirs = both(tmp_path, rows(ignored=case != "accumulation by epochs"), **CASES[case])
    assert len(losses(ours)) == len(losses(theirs)) == ours.run.steps
    torch.testing.assert_close(losses(ours), losses(theirs), rtol=2e-5, atol=2e-5)
    start = gpt2().state_dict()
    for name, weights in theirs.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], weights, rtol=2e-4, atol=2e-4)
    assert any(not torch.allclose(start[name], w, atol=1e-2) for name, w in theirs.model.state_dict().items())


@pytest.mark.slow
def test_bfloat16_is_their_autocast(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path, rows(), bf16=True)
    torch.testing.assert_close(losses(ours), losses(theirs), rtol=5e-3, atol=5e-3)
    args = arguments(tmp_path / "f32", logging_steps=1, save_strategy="no")
    exact = TiebreakTrainer(model=gpt2(), args=args, train_dataset=rows())
    exact.train()
    assert not torch.allclose(losses(ours), losses(exact), rtol=1e-5, atol=1e-5)


def test_a_run_goes_on_and_can_be_audited_and_certified(tmp_path: Path) -> None:
    client, trainer = tiebreak.new_key(), tiebreak.new_key()

    def made() -> TiebreakTrainer:
        args = arguments(tmp_path, save_steps=4, logging_first_step=True)
        return TiebreakTrainer(
            model=gpt2(dropout=0.1), args=args, train_dataset=rows(), client=client, trainer=trainer,
            terms=tiebreak.Terms(reward=1, trainer_stake=2), eval_dataset=rows(8),
        )  # fmt: skip

    first = made()
    with pytest.raises(StateError, match="a run that `train` has made, got none"):
        _ = first.run
    first._told = lambda step: (_ for _ in ()).throw(KeyboardInterrupt) if step.number == 11 else None  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        first.train()
    assert first.run.step == 8

    second = made()
    out = second.train(resume_from_checkpoint=True)
    assert (out.global_step, second.run.signed) == (24, 6)
    assert out.training_loss == out.metrics["train_loss"] == pytest.approx(sum(second.run.losses) / 24)
    assert [log["step"] for log in second.state.log_history] == [10, 15, 20, 24]
    assert second.run.audit(sample=2, seed="1").agrees
    assert second.model.training
    assert second.evaluate()["eval_loss"] < 3.5
    second.save_model(str(tmp_path / "saved"))
    certify(RunDirectory.open(second.run.directory), tmp_path / "saved", tmp_path / "certificate.json", trainer)
    signed, found = verify(tmp_path / "saved", tmp_path / "certificate.json")
    assert signed.signers == [trainer.address]
    assert "lm_head.weight" not in found.tensors, "tied weights are saved once"
    with pytest.raises(ConfigurationError, match="initial_state_root"):
        second.train()


class Draws(nn.Module):
    """A loss that is not divided by the number of labels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(LENGTH, 1)

    def forward(self, input_ids: Tensor, labels: Tensor, **_: Any) -> tuple[Tensor]:
        return ((self.linear(input_ids.float()) - labels.float()).square().mean(),)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from rows()


def padded(examples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Rows that depend on their neighbours."""
    longest = max(int((example["labels"] == -100).sum()) for example in examples)
    return {name: torch.stack([example[name] for example in examples])[:, longest:] for name in examples[0]}


def flattened(examples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([example[name] for example in examples]) for name in examples[0]}


def masked(examples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    found = {name: torch.stack([example[name] for example in examples]) for name in examples[0]}
    return found | {"labels": found["labels"].masked_fill(torch.rand(found["labels"].shape) < 0.2, -100)}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "data_seed": ({"data_seed": 1}, "no data_seed other than seed, got 1: a job has one seed"),
    "drop_last": ({"dataloader_drop_last": True}, "dataloader_drop_last .* got True: nothing is dropped"),
    "best": ({"save_strategy": "best", "metric_for_best_model": "loss"}, "by steps or epochs"),
    "kept": ({"save_total_limit": 3}, "save_total_limit=3"),
    "unknown": ({"torch_empty_cache_steps": 3}, "torch_empty_cache_steps .* a job does nothing by it"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_job_does_not_do_is_refused_by_name(tmp_path: Path, what: str) -> None:
    given, message = REFUSED[what]
    with pytest.raises(ConfigurationError, match=message):
        check_arguments(arguments(tmp_path, **given))


def test_every_argument_is_taken_or_refused_or_has_nothing_to_do_with_weights(
    tmp_path: Path, cases: Callable[[], None]
) -> None:
    """Whatever `transformers` adds is refused until somebody has looked at it."""
    for name in vars(arguments(tmp_path)):
        changed = arguments(tmp_path)
        if name in TrainingArguments.__dataclass_fields__ and name not in f"{TAKEN} {ASIDE}".split():
            setattr(changed, name, "something else")
            with pytest.raises(ConfigurationError, match=f"expected {name} "):
                check_arguments(changed)
            cases()


def test_the_environment_and_other_classes_choose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(ConfigurationError, match="bf16=True, or nothing, got bf16 from the environment"):
        check_arguments(arguments(tmp_path))
    with pytest.raises(ConfigurationError, match="got Seq2SeqTrainingArguments"):
        check_arguments(Seq2SeqTrainingArguments(output_dir=str(tmp_path), use_cpu=True))


MODEL = gpt2()
ADAM = torch.optim.Adam(MODEL.parameters())
TRAINED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a smaller last step": ({"train_dataset": rows(50)}, {}, "multiple of 6 .* got 50: .* leave 2 of them out"),
    "a loss that is not divided": ({"model": Draws()}, {"gradient_accumulation_steps": 2}, "divided by the number"),
    "no length": ({"train_dataset": Endless()}, {}, "a length and items by number, got Endless"),
    "random masks": ({"data_collator": masked}, {}, "the same row each time"),
    "padding by batch": ({"data_collator": padded, "train_dataset": rows(ignored=True)}, {}, "pad to a fixed length"),
    "joined rows": ({"data_collator": flattened}, {}, "a row for each example"),
    "text": ({"data_collator": lambda examples: {"input_ids": "text"}}, {}, "tensors by name"),
    "a schedule by losses": (
        {"model": MODEL, "optimizers": (ADAM, ReduceLROnPlateau(ADAM))}, {}, "got ReduceLROnPlateau"
    ),
    "another loss in bf16": ({}, {"bf16": True, "label_smoothing_factor": 0.1}, "own loss with bf16"),
    "another loss, accumulated": (
        {"compute_loss_func": lambda outputs, labels, num_items_in_batch: outputs["logits"].mean()},
        {"gradient_accumulation_steps": 2}, "own loss with gradient_accumulation_steps",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TRAINED)
def test_what_would_be_another_model_is_refused(tmp_path: Path, what: str) -> None:
    given, args, message = TRAINED[what]
    more = {"model": gpt2(), "train_dataset": rows()} | given
    with pytest.raises(ConfigurationError, match=message):
        TiebreakTrainer(args=arguments(tmp_path, **args), **more).train()
    assert not (tmp_path / "run").exists()


def test_parts_of_their_trainer_that_would_not_be_called_are_refused(tmp_path: Path) -> None:
    class Stepping(TiebreakTrainer):
        def training_step(self, *_: Any) -> Tensor:
            return torch.zeros(())

    class Own(TiebreakTrainer):
        def compute_loss(self, model: Any, inputs: Any, **more: Any) -> Any:
            return 2 * super().compute_loss(model, inputs, **more)

    given = {"model": gpt2(), "args": arguments(tmp_path, max_steps=2), "train_dataset": rows()}
    with pytest.raises(ConfigurationError, match="Trainer's own training_step, got another one"):
        Stepping(**given).train()
    patched = TiebreakTrainer(**given)
    patched.get_train_dataloader = lambda: iter(rows())  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="Trainer's own get_train_dataloader"):
        patched.train()
    with pytest.raises(ConfigurationError, match="no callbacks, got one"):
        TiebreakTrainer(**given, callbacks=[TrainerCallback()])
    with pytest.raises(ConfigurationError, match="a model, args=TrainingArguments"):
        TiebreakTrainer(model=gpt2(), train_dataset=rows())
    with pytest.raises(ConfigurationError, match="train without a path, a trial or keys"):
        TiebreakTrainer(**given).train(resume_from_checkpoint="checkpoint-500")
    doubled = Own(**given).train().training_loss
    given |= {"model": gpt2(), "args": arguments(tmp_path / "plain", max_steps=2)}
    plain = TiebreakTrainer(**given, data_collator=DataCollatorForLanguageModeling(FakeTokenizer(), mlm=False)).train()
    assert doubled == pytest.approx(2 * plain.training_loss, rel=0.05)


class FakeTokenizer:
    """The part of a tokenizer that their collator for causal models uses on rows of one length."""

    pad_token_id = None
    padding_side = "right"

    def pad(self, examples: list[dict[str, Tensor]], **_: Any) -> dict[str, Tensor]:
        return {"input_ids": torch.stack([example["input_ids"] for example in examples])}
