"""Rewards that TRL calls as it calls any function, and that a step of a run computes from the tokens it checks.

With `exact_sampling`, a trainer whose rewards are all of these publishes no advantages: its program computes them.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.errors import ConfigurationError

ADVANTAGES: Final = "advantages"
COUNT: Final = "num_items_in_batch"
"""The tokens of all completions of a step."""
NUMBER: Final = "number_in_step"
"""The column of the data with the number of a micro-batch in its step, from 0."""
ROLLOUTS: Final = "rollouts"
"""The name that `RolloutState` has in the model."""
_MEAN: Final = "mean_reward_"
"""Prefix of the state's entries with the mean of each reward in the last step, before a number and the name."""
_MOST_DIGITS: Final = 18
"""The digits of the greatest numbers, which i64 holds."""


class ComputedReward(ABC):
    """A reward function of TRL's that is also part of a step's program."""

    column: str | None = None
    """The column of the data set that it reads."""

    def __init__(self, name: str, module: nn.Module | None = None) -> None:
        """name: under which TRL logs it. module: frozen tensors that it reads, which become state of the program."""
        self.__name__, self.module = name, module or nn.Module()

    def __call__(self, *, prompts: Sequence[Any], completion_ids: Sequence[Sequence[int]], **rest: Any) -> list[float]:
        """The rewards of completions, as TRL asks for them, with the data set's columns by name."""
        tokens, width = self.tokens(prompts), max(map(len, completion_ids))
        given = {
            f"{name}_{kind}": filled([[1] * len(row) for row in rows] if kind == "mask" else rows, left=left)
            for name, rows, left in (("prompt", tokens, True), ("completion", completion_ids, False))
            for kind in ("ids", "mask")
        }
        own = self.read(values_of(rest, self.column), width) if self.column else torch.zeros(0)
        device = next((t.device for t in self.module.state_dict(keep_vars=True).values()), own.device)
        with torch.no_grad():
            scores = self.scores({name: tensor.to(device) for name, tensor in given.items()}, own.to(device))
        return list(scores.tolist())

    def tokens(self, prompts: Sequence[Any]) -> list[list[int]]:
        """The prompts' tokens, if it reads them."""
        return [[] for _ in prompts]

    def read(self, values: Sequence[Any], width: int) -> Tensor:
        """The part of its column's values that it reads, i64, examples along dim 0. width: of completions, in tokens."""
        raise NotImplementedError

    @abstractmethod
    def scores(self, given: Mapping[str, Tensor], own: Tensor) -> Tensor:
        """The rewards, f32 (rows,). given: TRL's tokens and masks, i64, padded. own: what it read of its column."""


def values_of(columns: Mapping[str, Any], name: str) -> Any:
    """A column of a data set, or of one of its rows. Raises `ConfigurationError` if there is none."""
    if name not in columns:
        raise ConfigurationError(f"expected a data set with a column {name!r}, which a reward reads, got none")
    return columns[name]


def filled(rows: Sequence[Sequence[int]], width: int = 0, padding: int = 0, *, left: bool = False) -> Tensor:
    """Rows of tokens as one array, i64. width: [default: that of the longest]."""
    width = width or max(map(len, rows))
    gaps = [[padding] * (width - len(row)) for row in rows]
    return torch.tensor([[*gap, *row] if left else [*row, *gap] for gap, row in zip(gaps, rows, strict=True)]).long()


class ExactMatch(ComputedReward):
    """1 if a completion is the text of a column, token for token, and else 0."""

    def __init__(self, column: str, tokenizer: Any) -> None:
        """column: of the data set, with texts. tokenizer: the trainer's; its special tokens at the end do not count."""
        super().__init__(f"ExactMatch({column})")
        self.column, self._tokenizer = column, tokenizer

    def read(self, values: Sequence[Any], width: int) -> Tensor:
        rows = [self._tokenizer(text, add_special_tokens=False)["input_ids"] for text in values]
        return filled([row if len(row) <= width else [-2] for row in rows], width, padding=-1)

    def scores(self, given: Mapping[str, Tensor], own: Tensor) -> Tensor:
        said = given["completion_ids"]
        return (torch.where(_said(given, self._tokenizer), said, -1) == own).all(1).float()


class NumberMatch(ComputedReward):
    """1 if the last number in a completion is that of a column, and else 0.

    Numbers are runs of tokens that are made of the digits 0 to 9 alone. A token that begins with a space begins a new
    number; any other character, such as a point or a comma, ends one. Zeros in front do not count, nor does a sign. A
    number of more than 18 digits is none.
    """

    def __init__(self, column: str, tokenizer: Any) -> None:
        """column: of the data set, with whole numbers, or texts of their digits. tokenizer: the trainer's."""
        super().__init__(f"NumberMatch({column})")
        self.column, self._tokenizer = column, tokenizer
        count = len(tokenizer)
        values = torch.zeros(count + 1, 3, dtype=torch.int64)  # of a token: value, digits, whether it begins; of others
        some = [n for n, text in enumerate(tokenizer.convert_ids_to_tokens([*range(count)])) if _has_digit(text)]
        front = tokenizer("a", add_special_tokens=False)["input_ids"]
        skipped = len(tokenizer.decode(front))
        for token, text in zip(some, tokenizer.batch_decode([[*front, n] for n in some]), strict=True):
            if found := re.fullmatch(r"( ?)([0-9]+)", text[skipped:]):
                digits = len(found[2])
                value = int(found[2]) if digits <= _MOST_DIGITS else 0
                values[token] = torch.tensor([value, digits, len(found[1])])
        self.module.register_buffer("digits", values)
        powers = torch.tensor([10**n for n in range(_MOST_DIGITS + 1)])
        self.module.register_buffer("powers", powers)

    def read(self, values: Sequence[Any], width: int) -> Tensor:  # noqa: ARG002
        if wrong := [one for one in values if not re.fullmatch(rf"[0-9]{{1,{_MOST_DIGITS}}}", str(one))]:
            raise ConfigurationError(
                f"expected whole numbers of at most {_MOST_DIGITS} digits in column {self.column!r}, got {wrong[0]!r}"
            )
        return torch.tensor([int(one) for one in values])

    def scores(self, given: Mapping[str, Tensor], own: Tensor) -> Tensor:
        held: Any = self.module
        value, digits, begins = held.digits[given["completion_ids"].clamp(max=len(held.digits) - 1)].unbind(-1)
        counts = _said(given, self._tokenizer) & (digits > 0)
        runs = (~counts | (begins == 1)).long().cumsum(1)
        last = counts & (runs == torch.where(counts, runs, -1).amax(1, keepdim=True))
        digits = torch.where(last, digits, 0)
        total = digits.sum(1, keepdim=True)
        fits = (total > 0) & (total <= _MOST_DIGITS)
        places = torch.where(last & fits, total - digits.cumsum(1), 0)
        found = torch.where(last & fits, value * held.powers[places], 0).sum(1)
        return ((found == own) & fits[:, 0]).float()


def _has_digit(text: str | None) -> bool:
    return text is not None and re.search("[0-9]", text) is not None


class Length(ComputedReward):
    """1 - |length - target| / target, for a completion's length in tokens, with the one that ends it."""

    def __init__(self, target: int) -> None:
        """target: the number of tokens, at least 1."""
        super().__init__(f"Length({target})")
        if type(target) is not int or target < 1:
            raise ConfigurationError(f"expected a number of tokens, at least 1, as target, got {target!r}")
        self._target = float(target)

    def scores(self, given: Mapping[str, Tensor], own: Tensor) -> Tensor:  # noqa: ARG002
        lengths = given["completion_mask"].sum(1).float()
        return 1 - (lengths - self._target).abs() / self._target


class RewardModel(ComputedReward):
    """The score that a classifier gives to prompt and completion: its first logit for their tokens, as they are.

    TRL makes a text of them for a reward model that it is given as such, with tokens of the model's own.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """model: an `AutoModelForSequenceClassification`, which is frozen. tokenizer: its own and the trainer's."""
        super().__init__(f"RewardModel({type(model).__name__})", model.eval().requires_grad_(False))
        self._tokenizer, self._padding = tokenizer, model.config.get_text_config().pad_token_id
        if self._padding is None:
            raise ConfigurationError("expected a reward model whose config has a pad_token_id, got none")

    def tokens(self, prompts: Sequence[Any]) -> list[list[int]]:
        if isinstance(prompts[0], str):
            return list(self._tokenizer(text=list(prompts))["input_ids"])
        options = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
        return list(self._tokenizer.apply_chat_template(conversation=list(prompts), **options)["input_ids"])

    def scores(self, given: Mapping[str, Tensor], own: Tensor) -> Tensor:  # noqa: ARG002
        model: Any = self.module
        ids, mask = (torch.cat([given[f"prompt_{n}"], given[f"completion_{n}"]], 1) for n in ("ids", "mask"))
        width = ids.shape[1]
        padding = (given["prompt_mask"] == 0).sum(1, keepdim=True)
        places = torch.arange(width, device=ids.device) + padding  # from the first token on
        inside, places = places < width, places.clamp(max=width - 1)
        mask = torch.where(inside, mask.gather(1, places), 0)
        ids = torch.where(mask == 1, ids.gather(1, places), self._padding)
        found: Tensor = model(input_ids=ids, attention_mask=mask).logits[:, 0].float()
        return found


def _said(given: Mapping[str, Tensor], tokenizer: Any) -> Tensor:
    """The mask of a completion's tokens, without a special one at its end."""
    ids, mask = given["completion_ids"], given["completion_mask"] == 1
    is_last = mask & ~torch.nn.functional.pad(mask[:, 1:], (0, 1))
    for token in tokenizer.all_special_ids:
        mask = mask & ~(is_last & (ids == token))
    return mask


def computed_rewards(trainer: Any) -> tuple[ComputedReward, ...]:
    """The trainer's rewards if its steps can compute all of them; none if some are code of another kind.

    Raises `ConfigurationError` if they can, and the advantages that follow from them cannot.
    """
    found = tuple(one for one in trainer.reward_funcs if isinstance(one, ComputedReward))
    own = type(trainer)._calculate_rewards, type(trainer)._generate_and_score_completions
    if len(found) < len(trainer.reward_funcs) or not all(one.__module__.startswith("trl.") for one in own):
        return ()
    by_batch = getattr(trainer, "scale_rewards", "") == "batch" or getattr(trainer, "normalize_advantages", False)
    by_sum = getattr(trainer, "multi_objective_aggregation", "sum_then_normalize") == "sum_then_normalize"
    args, group = trainer.args, trainer.num_generations
    wanted = {
        f"a per_device_train_batch_size of whole groups of {group}": args.per_device_train_batch_size % group == 0,
        "multi_objective_aggregation='sum_then_normalize'": by_sum,
        "gradient_accumulation_steps=1 with scale_rewards='batch' or normalize_advantages=True": (
            args.gradient_accumulation_steps == 1 or not by_batch
        ),
    }
    if wrong := [what for what, holds in wanted.items() if not holds]:
        raise ConfigurationError(
            f"expected {' and '.join(wrong)}, so that a micro-batch has all that its advantages follow from, got others"
        )
    return found


class RolloutState(nn.Module):
    """The mean rewards and the counts of tokens that steps with exact sampling keep in the state."""

    tokens: Tensor
    """The tokens that the step is said to have, and those of its micro-batches so far, i64 (2,)."""

    def __init__(self, rewards: Sequence[ComputedReward], parts: int) -> None:
        """parts: the micro-batches of a step."""
        super().__init__()
        self.parts = parts
        self._means = [f"{_MEAN}{n}_{one.__name__.replace('.', '_')}" for n, one in enumerate(rewards)]
        for name in self._means:
            self.register_buffer(name, torch.zeros(()), persistent=False)
        if parts > 1:
            self.register_buffer("tokens", torch.zeros(2, dtype=torch.int64), persistent=False)
        for n, reward in enumerate(rewards):
            self.add_module(f"reward_{n}", reward.module)

    def counts(self, given: Mapping[str, Tensor]) -> Tensor:
        """Whether the number of the step's tokens may be what the trainer says, by its micro-batches up to this one."""
        said, number = given[COUNT], given[NUMBER]
        before = torch.where(number == 0, torch.stack([said, torch.zeros_like(said)]), self.tokens)
        now = torch.stack([before[0], before[1] + given["completion_mask"].sum()])
        self.tokens.copy_(now)
        return (said == now[0]) & ((number < self.parts - 1) | (said == now[1]))

    def note(self, given: Mapping[str, Tensor], scores: Tensor) -> None:
        """Adds a micro-batch to the means of the step. scores: rewards, f32 (rows, functions)."""
        for name, part in zip(self._means, scores.unbind(1), strict=True):
            mean = self.get_buffer(name)
            mean.copy_(torch.where(given[NUMBER] == 0, 0.0, mean) + part.mean() / self.parts)


def advantages(trainer: Any, rewards: Tensor, penalty: Tensor | None = None) -> Tensor:
    """The advantages of whole groups, f32 (rows,), as TRL defines them. rewards: f32 (rows, functions).

    penalty: what RLOO takes off the sum of rewards.
    """
    weights = trainer.reward_weights.tolist()
    total = torch.stack([weight * rewards[:, n] for n, weight in enumerate(weights)]).sum(0)
    if clip := getattr(trainer, "reward_clip_range", None):
        total = total.clamp(*clip)
    groups = (total if penalty is None else total - penalty).reshape(-1, trainer.num_generations)
    found: Tensor
    if hasattr(trainer, "scale_rewards"):
        found, scale = groups - groups.mean(1, keepdim=True), trainer.scale_rewards
        if scale != "none":
            found = found / (_deviation(groups if scale == "group" else groups.reshape(1, -1)) + 1e-4)
        return found.flatten()
    others = (groups.sum(1, keepdim=True) - groups) / (groups.shape[1] - 1)
    found = (groups - others).flatten()
    if trainer.normalize_advantages:
        found = (found - found.mean()) / (_deviation(found[None])[0] + 1e-4)
    return found


def _deviation(rows: Tensor) -> Tensor:
    count = rows.shape[1]
    found: Tensor = (((rows - rows.mean(1, keepdim=True)) ** 2).mean(1, keepdim=True) * (count / (count - 1))).sqrt()
    return found


def reward_kinds(directory: str | Path) -> dict[str, str]:
    """Each reward of a run by name, and whether it is "in the program" or "declared"; none of a run without rollouts.

    directory: the run's. Names are those that whoever made the program gave. Of rewards that are declared, advantages
    are all that a run has.
    """
    program = RunDirectory.open(Path(directory)).program
    if ADVANTAGES in program.late_spec():
        return {ADVANTAGES: "declared"}
    found = [re.fullmatch(rf"{MODEL}{ROLLOUTS}.{_MEAN}[0-9]+_(.*)", name) for name in program.state_spec()]
    return {one[1]: "in the program" for one in found if one}
