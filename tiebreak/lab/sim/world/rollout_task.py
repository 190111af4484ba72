"""The computation of games about late data: a tiny language model that learns from its own answers, for ten steps.

Each step continues prompts by tokens that the trainer samples from the weights of the moment and supplies as late data,
with the mask that says where each answer ends, and with advantages, which it declares. The program computes a reward
itself, from the tokens, and compares the model with a frozen reference. It also samples: the token at a position is the
first of the greatest logits + Gumbel noise, by the step's own draws, as in `tiebreak.api.evaluation.generation`. From
the first step on whose tokens or lengths are others, the recorded loss is NaN; gradient and update stay those of the
loss. It stays NaN so that the record of a checkpoint tells of all steps before it.

Whoever samples drafts in plain PyTorch, in any type and in batches of any size, and asks the program which of the
drafted tokens are right (`RolloutSampler`). Its bytes are the same on any machine, as those of `small_task`.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.capture.task import Task
from tiebreak.engine.optimizers.settings import AdamW
from tiebreak.engine.run.interpreter import Interpreter, State
from tiebreak.lab.sim.world.small_task import BETAS, INTERVAL, SCHEDULE, STEPS, STREAM, WEIGHT_DECAY, drawn
from tiebreak.protocol.program.isa import Opcode

VOCABULARY: Final = 8
END: Final = 0
"""The token that ends an answer. The places after it hold it, too."""
WIDTH: Final = 8
PROMPTS, PROMPT_TOKENS = 12, 2
ROWS: Final = 4
"""Answers of a step."""
LENGTH: Final = 4
"""The most tokens of an answer."""
TOKENS, MASK, ADVANTAGES = "tokens", "mask", "advantages"
"""The late data: i64 (ROWS, LENGTH), i64 (ROWS, LENGTH), 1 up to the end of the answer and 0 after it, f32 (ROWS)."""
PRICE: Final = 0.125
"""The price of a token, which its answer's reward is less."""
DIVERGENCE: Final = 0.25
"""The factor of the divergence from the reference model in the loss."""
PRAISED: Final = 3
"""The token that the declared advantages praise."""
POLICY, REFERENCE = "policy.", "reference."
PARAMETERS: Final = ("embedding.weight", "hidden.weight", "hidden.bias", "head.weight")


class TinyLanguageModel(nn.Module):
    """Maps tokens [B, T] to the logits [B, T, 8] of the tokens after them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTC = self.embedding(ids_BT)
        before_TT = torch.ones(ids_BT.shape[1], ids_BT.shape[1], dtype=x_BTC.dtype).tril()
        h_BTC = torch.tanh(x_BTC + self.hidden(before_TT @ x_BTC))
        logits: Tensor = self.head(h_BTC)
        return logits


class RolloutModel(nn.Module):
    """The model that learns, its frozen reference, and whether all answers so far were its samples: 1 or 0."""

    rollouts_sampled: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.policy = TinyLanguageModel()
        self.reference = TinyLanguageModel().requires_grad_(requires_grad=False)
        self.register_buffer("rollouts_sampled", torch.ones(()))


def _loss(model: RolloutModel, prompts: Tensor, tokens: Tensor, mask: Tensor, advantages: Tensor) -> Tensor:
    asked, is_end = mask == 1, tokens == END
    ids = torch.cat([prompts, tokens], 1)[:, :-1]
    own, other = (each(ids)[:, PROMPT_TOKENS - 1 :] for each in (model.policy, model.reference))
    # the samples, and where each answer has to end
    found = (own - torch.log(-torch.log(torch.rand(ROWS, LENGTH, VOCABULARY)))).argmax(-1)
    follows, is_full = F.pad(asked[:, 1:], (0, 1)), torch.arange(LENGTH) == LENGTH - 1
    ends = torch.where(asked & ~follows, is_end | is_full, torch.where(asked, ~is_end, ~follows))
    right = (((found == tokens) | ~asked) & ends & (asked | (mask == 0))).all() & asked[:, 0].all()
    model.rollouts_sampled.copy_(torch.minimum(model.rollouts_sampled, right.float()))
    # the loss
    counted = asked.float()
    reward = (((tokens == prompts[:, :1]).float() - PRICE) * counted).sum(1)
    gain = reward - reward.mean() + advantages
    said, known = (-F.cross_entropy(each.transpose(1, 2), tokens, reduction="none") for each in (own, other))
    apart = torch.exp(known - said) - (known - said) - 1
    loss = -((said * gain[:, None] - DIVERGENCE * apart) * counted).sum() / counted.sum()
    return loss + torch.where(model.rollouts_sampled == 1, 0.0, float("nan"))


def rollout_task(stream: int = STREAM) -> Task:
    """The task. `stream` selects the initial weights, of which the reference is a copy."""
    model = RolloutModel()
    with torch.no_grad():
        for offset, (name, parameter) in enumerate(model.policy.named_parameters()):
            value = drawn(stream + 16 * offset, tuple(parameter.shape), 1.0)
            for one in (parameter, model.reference.get_parameter(name)):
                one.copy_(value)
    places, whole = torch.arange(PROMPTS), torch.ones(ROWS, LENGTH, dtype=torch.int64)
    return Task(
        model, _loss, name="rollouts", steps=STEPS, checkpoint_interval=INTERVAL, seed=11, batch=ROWS,
        schedule=SCHEDULE,
        data={"prompts": torch.stack([1 + places % (VOCABULARY - 1), 1 + 3 * places % (VOCABULARY - 1)], 1)},
        late={TOKENS: whole, MASK: whole, ADVANTAGES: torch.zeros(ROWS)},
        optimizer=AdamW(lr=0.125, betas=BETAS, weight_decay=WEIGHT_DECAY),
    )  # fmt: skip


# ---------------------------------------------------------------- the trainer's side


def as_late(tokens: Tensor) -> dict[str, Tensor]:
    """The late data of sampled tokens, i64 (ROWS, LENGTH). Those after an answer's end do not count."""
    mask = ((tokens == END).cumsum(1) - (tokens == END).long() == 0).long()
    own = tokens * mask
    return {TOKENS: own, MASK: mask, ADVANTAGES: 0.5 * ((own == PRAISED).sum(1).float() - 1)}


def reward_of(late: Mapping[str, Tensor], prompts: Tensor) -> float:
    """The rewards of all answers together, as the program computes them."""
    return float((((late[TOKENS] == prompts[:, :1]).float() - PRICE) * late[MASK]).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """A way of sampling, none of which changes a token."""

    rows: int = ROWS
    """Answers that are sampled at a time."""
    dtype: torch.dtype = torch.float32
    """The type in which tokens are drafted."""
    cached: bool = False
    """Whether a draft keeps what it knows of a text, and reads each token once."""
    wrong: float = 0.0
    """The share of drafted tokens that are replaced by random ones."""
    restart: int = 0
    """The step before which the trainer dies and starts again, with nothing but what is committed; 0: never."""


PLAIN: Final = Sampling()
"""All answers at once, drafted in FP32."""


class _Seen(Exception):
    """Ends a step where the program has chosen its tokens."""


class RolloutSampler:
    """Samples what the program checks, by draft and check: the `Supply` of an honest trainer.

    data: the job's; with another seed in it, the samples are those of that seed.
    """

    def __init__(self, interpreter: Interpreter, data: State, how: Sampling) -> None:
        self._interpreter, self._data, self._how = interpreter, interpreter.place_data(data), how
        kinds = {(i.opcode, i.numel): n for n, i in reversed([*enumerate(interpreter.program.body)])}
        self._draws = kinds[Opcode.RANDOM, ROWS * LENGTH * VOCABULARY]
        self._choice = kinds[Opcode.REDUCE, ROWS * LENGTH]
        self._prompts = kinds[Opcode.GATHER, ROWS * PROMPT_TOKENS]
        self._known = dict[int, tuple[Tensor, Tensor]]()
        self.corrected = 0
        """The number of drafted tokens that the program replaced."""

    def __call__(self, step: int, state: State) -> dict[str, Tensor]:
        """The late data of a step from the state before it."""
        tokens = torch.full((ROWS, LENGTH), END)
        for first in range(0, ROWS, self._how.rows):
            chosen, sure = slice(first, first + self._how.rows), torch.zeros(self._how.rows, 1, dtype=torch.int64)
            while sure.min() < LENGTH:
                drafted = self._drafted(step, state, tokens, sure, chosen)
                tokens[chosen] = drafted
                found = self._chosen(step, state, tokens)[self._choice].view(ROWS, LENGTH)[chosen]
                differs = (found != drafted).long()
                is_wrong = differs.any(1, keepdim=True)
                at = torch.where(is_wrong, differs.argmax(1, keepdim=True), LENGTH - 1)
                tokens[chosen], sure = drafted.scatter(1, at, found.gather(1, at)), at + 1
                self.corrected += int(is_wrong.sum())
        return as_late(tokens)

    def prompts(self, step: int, state: State) -> Tensor:
        """The prompts of a step, i64 (ROWS, PROMPT_TOKENS)."""
        return self._drawn(step, state)[0]

    def _drafted(self, step: int, state: State, tokens: Tensor, sure: Tensor, chosen: slice) -> Tensor:
        """The tokens of some rows, whose first `sure` ones are kept."""
        prompts, noise = (part[chosen] for part in self._drawn(step, state))
        rng, made = Random(f"{step} {chosen.start} {sure.tolist()}"), tokens[chosen].clone()  # noqa: S311
        table, hidden, bias, head = (state[f"{MODEL}{POLICY}{name}"].to(self._how.dtype) for name in PARAMETERS)
        seen = table[prompts[:, :-1]].sum(1)
        for at in range(LENGTH):
            read = table[torch.cat([prompts, made[:, :at]], 1)]
            seen = seen + read[:, -1] if self._how.cached else read.sum(1)
            logits = F.linear(torch.tanh(read[:, -1] + F.linear(seen, hidden, bias)), head)
            guess = (logits + noise[:, at]).argmax(-1)
            random = torch.tensor([rng.randrange(VOCABULARY) if rng.random() < self._how.wrong else -1 for _ in guess])
            made[:, at] = torch.where(at < sure[:, 0], made[:, at], torch.where(random < 0, guess, random))
        return made

    def _drawn(self, step: int, state: State) -> tuple[Tensor, Tensor]:
        """Prompts and noise of a step, which no weight changes."""
        if step not in self._known:
            seen = self._chosen(step, state, torch.full((ROWS, LENGTH), END))
            uniform = seen[self._draws].view(ROWS, LENGTH, VOCABULARY)
            self._known[step] = seen[self._prompts].view(ROWS, PROMPT_TOKENS), -torch.log(-torch.log(uniform))
        return self._known[step]

    def _chosen(self, step: int, state: State, tokens: Tensor) -> dict[int, Tensor]:
        """The program's own draws, prompts and choices after each token of these, by instruction."""
        seen, wanted = dict[int, Tensor](), {self._draws, self._choice, self._prompts}

        def observe(leaf: int, tensor: Tensor) -> Tensor:
            if leaf in wanted:
                seen[leaf] = tensor.clone()
                if len(seen) == len(wanted):
                    raise _Seen
            return tensor

        late = {TOKENS: tokens, MASK: torch.ones_like(tokens), ADVANTAGES: torch.zeros(ROWS)}
        with suppress(_Seen):
            self._interpreter.step(step, state, {**self._data, **late}, observe, check_finite=False)
        return seen
