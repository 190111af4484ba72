"""Rewards that TRL calls and that a step computes too: their definitions, and advantages beside TRL's own."""

import random
import re
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import LlamaConfig, LlamaForSequenceClassification
from trl import GRPOTrainer, RLOOTrainer

import tiebreak
from tests.parts import slow_except
from tests.tiebreak.hf_cases import VOCABULARY, Interrupts, llama, losses, texts, tokenizer
from tests.tiebreak.hf_scripts import lora
from tests.tiebreak.test_grpo import low
from tests.tiebreak.test_sampled_rollouts import trainer
from tiebreak import ConfigurationError
from tiebreak.api.huggingface import trainer_loop
from tiebreak.api.huggingface.objective import value
from tiebreak.api.huggingface.rewards import filled
from tiebreak.api.huggingface.rollouts import Rollouts
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training.reading import late_words
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.capture.step_run import replaced
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.logged.log_replay import late_tensors
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.hf import ExactMatch, Length, NumberMatch, RewardModel, reward_kinds
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.numbers.philox import shuffle

TOKENS: Final = tokenizer()


def data() -> Dataset:
    """Answers are single tokens, so that a completion is one sometimes."""
    columns = {"answer": [TOKENS.decode([10 + n]) for n in range(24)], "number": [str(n % 4) for n in range(24)]}
    return Dataset.from_dict({"prompt": texts(24, 1, 6), **columns})


def classifier(**more: Any) -> LlamaForSequenceClassification:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, eos_token_id=1, bos_token_id=None, num_labels=1,
        initializer_range=1.0, **{"pad_token_id": 0, **more},
    )  # fmt: skip
    return LlamaForSequenceClassification(config)


def number_of(ids: list[int]) -> int | None:
    """The last number in a completion, by the text of its tokens."""
    pieces = ["\n" if token in TOKENS.all_special_ids else TOKENS.decode([token]) for token in ids]
    runs = re.findall(r"[0-9]+", "".join(p if re.fullmatch(" ?[0-9]+", p) else "\n" for p in pieces))
    return int(runs[-1]) if runs and len(runs[-1]) <= 18 else None


def completions(count: int, longest: int = 9) -> list[list[int]]:
    """Token lists with many digits, some of which end."""
    drawn = random.Random(4)
    some = TOKENS.convert_tokens_to_ids([*"0123456789", "Ġ", "a", "."])
    rows = [drawn.choices(some, k=drawn.randint(1, longest - 1)) for _ in range(count)]
    return [row + [1] * drawn.randint(0, 1) for row in rows]


def rewards_of(reward: Any, rows: list[list[int]], **columns: Any) -> list[float]:
    """What TRL gets, which is what a step computes with more padding, whatever that holds."""
    found: list[float] = reward(prompts=["a"] * len(rows), completion_ids=rows, trainer_state=None, **columns)
    width = max(map(len, rows)) + 3
    mask = filled([[1] * len(row) for row in rows], width)
    ids = torch.where(mask == 1, filled(rows, width), torch.randint(VOCABULARY, mask.shape))
    own = reward.read(columns[reward.column], width) if reward.column else torch.zeros(0)
    given = {"completion_ids": ids, "completion_mask": mask}
    assert reward.column is None or reward.scores(given, own).tolist() == found
    return found


def test_a_number_is_the_last_run_of_digits_in_a_completion(cases: Callable[[], None]) -> None:
    rows = completions(400)
    wanted = [number_of(row) for row in rows]
    asked = [str(n if n is not None and place % 2 else 7) for place, n in enumerate(wanted)]
    found = rewards_of(NumberMatch("number", TOKENS), rows, number=asked)
    for own, is_right, number in zip(wanted, found, asked, strict=True):
        assert is_right == float(own == int(number))
        cases()
    assert 100 < sum(found) < 300


@pytest.mark.parametrize(
    ("said", "number", "reward"),
    [
        ("12", "12", 1.0), ("1 2", "2", 1.0), ("1 2", "12", 0.0), ("007", "7", 1.0), ("3.14", "14", 1.0),
        ("1,234", "234", 1.0), ("so 42.", "42", 1.0), ("-5", "5", 1.0), ("none", "0", 0.0), ("9" * 18, "9" * 18, 1.0),
        ("9" * 19, "9" * 18, 0.0), ("0" * 19, "0", 0.0), ("5", 5, 1.0),
    ],
)  # fmt: skip
def test_numbers_are_read_to_the_letter(said: str, number: Any, reward: float) -> None:
    ids = TOKENS(said)["input_ids"]
    for row in (ids, [*ids, 1]):
        assert rewards_of(NumberMatch("number", TOKENS), [row, [5]], number=[number, 0]) == [reward, 0.0]


def test_spaces_within_tokens_begin_numbers(tmp_path: Path) -> None:
    """In a vocabulary whose tokens have several digits, and a space before them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    words = ["<pad>", "<eos>", "a", "12", "Ġ345", "000", "Ġ", "7"]
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="a"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Whitespace(), decoders.ByteLevel()
    reward = NumberMatch("number", PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>"))
    rows = [[3, 4], [4, 3], [4, 5, 1], [3, 6, 7], [99, 3], [4, 4]]
    columns = {"number": ["345", "34512", "345000", "7", "12", "345345"]}
    assert reward(prompts=["a"] * 6, completion_ids=rows, **columns) == [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]


def test_a_match_is_of_all_tokens_but_a_special_last_one() -> None:
    reward, text = ExactMatch("answer", TOKENS), "the model."
    own = TOKENS(text)["input_ids"]
    rows = [own, [*own, 1], [*own, 5], own[:-1], [*own, 1, 1], [1], [*own[:-1], 5], [1, *own]]
    assert rewards_of(reward, rows, answer=[text] * 8) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert rewards_of(reward, [[5], [1]], answer=[text, ""]) == [0.0, 1.0], "longer than a completion may be"


def test_lengths_count_the_token_that_ends() -> None:
    assert rewards_of(Length(4), [[5] * 4, [5, 1], [5] * 12]) == [1.0, 0.5, -1.0]


def test_a_reward_model_scores_tokens_as_they_are() -> None:
    model, said = classifier(), [[7, 8, 1], [9], [5, 6, 0, 7]]
    reward = RewardModel(model, TOKENS)
    prompts = ["the", "a model run", "loss."]
    alone = [
        float(model(torch.tensor([TOKENS(p)["input_ids"] + ids])).logits[0, 0])
        for p, ids in zip(prompts, said, strict=True)
    ]
    found = reward(prompts=prompts, completion_ids=said)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(alone), rtol=1e-4, atol=1e-5)
    chats = [[{"role": "user", "content": text}] for text in prompts]
    wanted = [TOKENS.apply_chat_template(c, add_generation_prompt=True)["input_ids"] for c in chats]
    assert reward.tokens(chats) == wanted


def watched(trainer: Any, patch: pytest.MonkeyPatch) -> tuple[list[Tensor], list[float]]:
    """TRL's own advantages, and its losses with them, of each micro-batch, in plain PyTorch."""
    seen, lost, late = list[Tensor](), list[float](), Rollouts.late

    def taken(self: Rollouts, batches: Any, first: int = -1) -> Any:
        for batch in batches if first >= 0 else ():
            seen.append(batch["advantages"].clone())
            with torch.no_grad():
                lost.append(float(value(trainer, trainer.model, batch, None)))
        return late(self, batches, first)

    patch.setattr(Rollouts, "late", taken)
    return seen, lost


def in_program(run: tiebreak.Run, wanted: list[Tensor], parts: int) -> list[float]:
    """How far values of the program, those nearest to TRL's advantages, are from them, by micro-batch."""
    opened, found = RunDirectory.open(run.directory), list[float]()
    machine = make_interpreter(opened.program, Machine(), opened.job)
    state, placed = machine.to_device(opened.state(0)), machine.place_data(opened.data())
    for number in range(1, run.steps + 1):
        kept = list[Tensor]()

        def keep(_: int, tensor: Tensor, kept: list[Tensor] = kept) -> Tensor:
            if tensor.numel() == wanted[0].numel() and tensor.dtype == torch.float32:
                kept.append(tensor.cpu().flatten().clone())
            return tensor

        late = late_tensors(opened.program, LogFiles(opened).step_log(number), machine.arithmetic)
        state = machine.step(number, state, {**placed, **late}, keep).state
        for own in wanted[(number - 1) * parts : number * parts]:
            found.append(min(float((tensor - own).abs().max()) for tensor in kept))
    return found


class AlwaysSame:
    """A tokenizer of its own."""

    def __call__(self, text: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[5, 6] for _ in text]}


ALL: Final = (ExactMatch("answer", TOKENS), NumberMatch("number", TOKENS), Length(4))
_WHOLE: Final = {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 8}
CASES: Final[dict[str, dict[str, Any]]] = {
    "by group": {"reward": [*ALL], "reward_weights": [1.0, 2.0, 0.5]},
    "by batch": {"reward": [*ALL], "scale_rewards": "batch", **_WHOLE},
    "not scaled, count read by the loss": {"reward": [*ALL], "scale_rewards": "none", "loss_type": "dapo"},
    "a reward model, KL, LoRA": {
        "reward": [RewardModel(classifier(), TOKENS), Length(3)], "beta": 0.1, "adapter": lora(), "model": llama,
    },
    "RLOO": {"kind": RLOOTrainer, "reward": [*ALL], "beta": 0.0},
    "RLOO, KL, clipped": {
        "kind": RLOOTrainer, "reward": [RewardModel(classifier(), TOKENS), Length(3)], "beta": 0.1,
        "reward_clip_range": (-0.5, 0.5),
    },
    "RLOO, normalised": {"kind": RLOOTrainer, "reward": [*ALL], "normalize_advantages": True, "beta": 0.1, **_WHOLE},
}  # fmt: skip


@pytest.mark.parametrize("case", slow_except(CASES, nightly=("by batch", "RLOO, normalised")))
def test_advantages_and_losses_are_those_of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    given: dict[str, Any] = {"data": data, "max_steps": 3, "temperature": 1.5, **CASES[case]}
    ours = trainer(tmp_path / "run", **given)
    with monkeypatch.context() as patch:
        theirs, lost = watched(ours, patch)
        tiebreak.hf.train(ours, exact_sampling=True, check="none" if case == "by group" else "full")
    run, parts = tiebreak.open_run(tmp_path / "run" / "run"), ours.args.gradient_accumulation_steps
    assert {*run.late} <= {"completion_ids", "completion_mask", "num_items_in_batch"}
    assert len(theirs) == 3 * parts
    assert any(bool(own.any()) for own in theirs)
    assert max(in_program(run, theirs, parts)) <= (1e-5 if "model" in case else 1e-6), "the model's own rounding"
    summed = torch.tensor(lost).view(3, parts).sum(1)
    scale = 1 if ours.loss_is_scaled_for_ga else 1 / parts
    torch.testing.assert_close(torch.tensor(run.losses), summed * scale, rtol=1e-4, atol=2e-6)
    state = RunDirectory.open(run.directory).state(3)
    assert state[MODEL + "rollouts_sampled"] == 1.0
    means = [float(tensor) for name, tensor in state.items() if ".mean_reward_" in name]
    logged = [losses(ours, f"rewards/{one.__name__}/mean")[-1] for one in ours.reward_funcs]
    torch.testing.assert_close(torch.tensor(means), torch.tensor(logged).float(), rtol=1e-5, atol=1e-6)
    assert reward_kinds(run.directory) == {one.__name__: "in the program" for one in ours.reward_funcs}
    words = late_words(RunDirectory.open(run.directory).program)
    assert (words["advantages"], words["rewards"].count(", ")) == ("by the program", len(ours.reward_funcs) - 1)
    assert tiebreak.hf.check_rewards(trainer(tmp_path / "run", **given)) == 3


@pytest.mark.slow
def test_kinds_of_rewards_are_those_of_the_program(tmp_path: Path) -> None:
    """One reward of another kind, or no exact sampling: whoever trains declares the advantages."""
    mixed = trainer(tmp_path / "mixed", data=data, reward=[Length(3), low], max_steps=1)
    tiebreak.hf.train(mixed, exact_sampling=True, check="none")
    assert reward_kinds(tmp_path / "mixed" / "run") == {"advantages": "declared"}
    late = tiebreak.open_run(tmp_path / "mixed" / "run").late
    assert {"advantages"} <= {*late} <= {"advantages", "completion_ids", "completion_mask", "num_items_in_batch"}


@pytest.mark.slow
def test_rewards_of_rollouts_that_no_step_checks_are_declared(tmp_path: Path) -> None:
    plain = trainer(tmp_path / "plain", data=data, reward=Length(3), max_steps=1)
    tiebreak.hf.train(plain, check="none")
    assert reward_kinds(tmp_path / "plain" / "run") == {"advantages": "declared"}


@pytest.mark.nightly
def test_an_interrupted_run_with_rewards_reaches_the_same_root(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "data": data, "reward": [NumberMatch("number", TOKENS), Length(3)], "max_steps": 6, "save_strategy": "steps",
        "save_steps": 2,
    }  # fmt: skip
    roots = []
    for name, callbacks in (("whole", []), ("parts", [Interrupts(3)])):
        stopping = trainer(tmp_path / name, callbacks=callbacks, **given)
        if callbacks:
            with pytest.raises(KeyboardInterrupt):
                tiebreak.hf.train(stopping, exact_sampling=True, check="none")
            assert tiebreak.open_run(tmp_path / name / "run").step == 2
            stopping = trainer(tmp_path / name, **given)
        tiebreak.hf.train(stopping, exact_sampling=True, check="none")
        run = tiebreak.open_run(tmp_path / name / "run")
        assert run.audit().agrees
        roots.append(run.root)
    assert roots[0] == roots[1]


Rows = Mapping[str, Tensor]


def fewer(late: Rows) -> None:
    late["num_items_in_batch"] -= 1


def more_in_one(late: Rows) -> None:
    """One micro-batch counts for less than the others."""
    late["num_items_in_batch"][1] *= 1000


def beyond_the_end(late: Rows) -> None:
    """What follows a completion counts, too, and against it."""
    late["completion_mask"][late["completion_mask"] == 0] = -5


@pytest.mark.slow
@pytest.mark.parametrize("lie", [fewer, more_in_one, beyond_the_end])
def test_counts_and_masks_that_are_others_make_the_loss_nan(tmp_path: Path, lie: Callable[[Rows], None]) -> None:
    class Lying(trainer_loop._Sampling):
        def _next(self, number: int) -> float:
            if number == 3:
                rows = self._rollouts.late(self._taken)
                assert (rows["completion_mask"] == 0).any()
                lie(rows)
                self._taken = [{name: rows[name][part] for name in rows} for part in range(2)]
            return super()._next(number)

    lying = trainer(tmp_path / "run", data=data, reward=Length(3), loss_type="dapo")
    words = "step 3: the loss is no longer finite"
    with replaced(trainer_loop, _Sampling=Lying), pytest.raises(StateError, match=words):
        tiebreak.hf.train(lying, exact_sampling=True, check="none")
    assert [isfinite(loss) for loss in tiebreak.open_run(tmp_path / "run" / "run").losses[:2]] == [True, True]


def of_groups(**more: Any) -> dict[str, Any]:
    return {"reward": Length(3), "data": data, "max_steps": 2, **more}


REFUSED: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "groups over micro-batches": (
        of_groups(per_device_train_batch_size=2), "expected a per_device_train_batch_size of whole groups of 4",
    ),
    "scale by batch": (
        of_groups(scale_rewards="batch"), r"gradient_accumulation_steps=1 with scale_rewards='batch'",
    ),
    "normalised by batch": (
        of_groups(kind=RLOOTrainer, normalize_advantages=True), "gradient_accumulation_steps=1 with .*normalize",
    ),
    "sums of normalised rewards": (
        of_groups(multi_objective_aggregation="normalize_then_sum"), "multi_objective_aggregation='sum_then_norm",
    ),
    "no column": (of_groups(reward=ExactMatch("solution", TOKENS)), "data set with a column 'solution'"),
    "no number": (of_groups(reward=NumberMatch("answer", TOKENS)), "whole numbers of at most 18 digits in column"),
    "other tokens": (
        of_groups(reward=RewardModel(classifier(), AlwaysSame())), "RewardModel.* with the trainer's tokenizer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", slow_except(REFUSED, "groups over micro-batches"))
def test_advantages_that_no_micro_batch_decides_are_refused_by_name(tmp_path: Path, what: str) -> None:
    given, words = REFUSED[what]
    with pytest.raises(ConfigurationError, match=words):
        tiebreak.hf.train(trainer(tmp_path / "run", **given), exact_sampling=True)


@pytest.mark.parametrize("target", [0, -1, 2.5, True])
def test_lengths_are_numbers_of_tokens(target: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected a number of tokens, at least 1, as target"):
        Length(target)


def test_a_reward_model_needs_a_token_that_fills() -> None:
    with pytest.raises(ConfigurationError, match="expected a reward model whose config has a pad_token_id"):
        RewardModel(classifier(pad_token_id=None), TOKENS)


@pytest.mark.slow
def test_trainers_that_make_rewards_of_their_own_declare_them(tmp_path: Path) -> None:
    class Doubling(GRPOTrainer):  # type: ignore[misc]
        def _calculate_rewards(self, *args: Any) -> Any:
            return 2 * super()._calculate_rewards(*args)

    tiebreak.hf.train(trainer(tmp_path / "run", kind=Doubling, **of_groups()), exact_sampling=True, check="none")
    assert reward_kinds(tmp_path / "run" / "run") == {"advantages": "declared"}


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"num_iterations": 2, "steps_per_generation": 4}])
def test_prompts_of_a_run_are_those_of_its_data_set(tmp_path: Path, more: dict[str, Any]) -> None:
    """Each micro-batch has in the data what its step read; other prompts from the trainer are refused."""
    read = list[Any]()

    class Reading(trainer_loop._Sampling):
        def _next(self, number: int) -> float:
            read.extend(batch["prompt_ids"] for batch in self._taken)
            return super()._next(number)

    made = trainer(tmp_path / "run", **more)
    with replaced(trainer_loop, _Sampling=Reading):
        tiebreak.hf.train(made, check="none")
    opened = RunDirectory.open(tmp_path / "run" / "run")
    assert "prompt_ids" not in opened.program.late_spec()
    rows = opened.data()["prompt_ids"].contiguous().view(torch.int32).view(6, 4, -1)
    for number, prompts in enumerate(read):
        own = rows[shuffle(number, int(opened.data()["seed"]), 0, 6, 0)]
        assert own[:, own.shape[1] - prompts.shape[1] :].equal(prompts.int())
        assert not own[:, : own.shape[1] - prompts.shape[1]].any()
    assert len(read) == 6
    other = trainer(tmp_path / "other", **more)

    class Swapping(trainer_loop._Sampling):
        def _next(self, number: int) -> float:
            self._taken[0]["prompt_ids"] = self._taken[0]["prompt_ids"].flip(1)
            return super()._next(number)

    with replaced(trainer_loop, _Sampling=Swapping), pytest.raises(ConfigurationError, match="expected prompt_ids in"):
        tiebreak.hf.train(other, check="none")
