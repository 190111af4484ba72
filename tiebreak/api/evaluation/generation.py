"""Sampling with one answer: which token comes next follows from the tokens before it, the weights and a seed alone.

It is the first of the greatest logits / temperature + noise. The noise is Gumbel's, -log(-log(u)), with u from the
program's own random numbers, by seed, prompt, answer, position and token (SPEC section 7); everything is rounded
correctly. So a batch, a cache, padding, a device or the sampler change nothing, and one forward pass over an answer
tells at each position whether its token is the one. At temperature 0 there is no noise. Top-k and top-p leave out
tokens, with ties by index (docs/generation.md).

A fast sampler drafts: `generate` of transformers, with the same noise. The program is run over the draft; where a token
is another one than the program says, that is put in its place, and drafting goes on from there. With random weights of
GPT-2's shape a draft in FP32 hardly ever differs, one in bfloat16 in a token out of fifty.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoTokenizer, LogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training import rows
from tiebreak.api.training.finetuning import predicted
from tiebreak.api.training.scoring import SCORES, ScoredExamples, captured
from tiebreak.api.training.templates import loaded
from tiebreak.engine.arithmetic.plain.random import random
from tiebreak.engine.arithmetic.plan.chains import RandomFrom
from tiebreak.engine.capture import four_bit
from tiebreak.engine.capture.state import MODEL
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Opcode

ANSWERED: Final = ("prompt_tokens", "answer_tokens", "temperature", "width", "length", "seed", "end")
"""Fields of a row with answers that were sampled."""
LEFT_OUT: Final[dict[str, Any]] = {"top_k": 0, "top_p": 1.0}
"""Further fields, which a row has where they are not these."""
MAX_VOCABULARY: Final = 1 << 24
"""The most tokens of a vocabulary: a score, which is f32, has one exactly."""
MOST: Final = 1 << 63
_LEAST: Final = torch.finfo(torch.float32).min
_UNITS: Final = (*(2.0 ** (max(1, e) - 150) for e in range(255)), 0.0)
"""The distance of the numbers in each binade of f32, by exponent field."""
_BINADES: Final = (0.0, *(2.0 ** (e - 127) for e in range(1, 255)), inf)
"""The first number of each."""
_ENDS: Final = (0.0, *(2.0 ** (e - 127) - _UNITS[e - 1] for e in range(1, 256)))
"""The last number before each."""


class SampledAnswers(NamedTuple):
    """The sampled tokens of each prompt and answer, and how many the program found otherwise than a draft."""

    tokens: list[list[list[int]]]
    drafted: int
    corrected: int


def sampled(logits: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """The token at each position, i64, of logits, f32 (..., vocabulary)."""
    noise = -torch.log(-torch.log(torch.rand(logits.shape))) if temperature else 0.0
    scaled = logits / (temperature or 1.0)
    drawn = scaled + noise
    if top_k or top_p < 1:
        drawn = torch.where(candidates(scaled, top_k, top_p), drawn.clamp(min=_LEAST), -inf)
    return drawn.argmax(-1)


def candidates(scaled: Tensor, top_k: int, top_p: float) -> Tensor:
    """Whether each token may be the sampled one, of logits / temperature, f32 (..., vocabulary)."""
    kept = ~scaled.isnan()
    if 0 < top_k < scaled.shape[-1]:
        kept = _before(scaled, torch.ones_like(scaled), float(top_k))
    if top_p < 1:
        kept = kept & _before(scaled, torch.where(kept, scaled, -inf).softmax(-1), top_p)
    return kept


def _before(x: Tensor, weights: Tensor, limit: float) -> Tensor:
    """Whether the elements before each one of a row weigh less than a limit, in the order greater first, then index.

    Bisection finds the last such element: the bits of its number, and its place among equal ones. Sums that are rounded
    correctly never fall when terms are added that are not negative, so there is one such element.
    """

    def reached(front: Tensor) -> Tensor:
        return torch.where(front, weights, 0.0).sum(-1, keepdim=True) >= limit

    binades, ends, units = (torch.tensor(table, dtype=torch.float32) for table in (_BINADES, _ENDS, _UNITS))
    is_positive = reached(x >= 0.0)
    exponent = torch.zeros(is_positive.shape, dtype=torch.int64)
    for bit in reversed(range(8)):
        later = exponent + (1 << bit)
        least = torch.where(is_positive, binades[later], -ends[later])
        exponent = torch.where(reached(x >= least) == is_positive, later, exponent)
    size, unit = binades[exponent], units[exponent]
    for bit in reversed(range(23)):
        greater = size + unit * (1 << bit)
        least = torch.where(is_positive, greater, unit - greater)
        size = torch.where(reached(x >= least) == is_positive, greater, size)
    last, place = torch.where(is_positive, size, -size), torch.arange(x.shape[-1])
    above, equal, kept = x > last, x == last, torch.zeros_like(exponent)
    for bit in reversed(range(x.shape[-1].bit_length())):
        later = kept + (1 << bit)
        kept = torch.where(reached(above | (equal & (place < later))), kept, later)
    return above | (equal & (place <= kept))


def answered(
    prompts: Sequence[list[int]], answers: Sequence[Sequence[list[int]]], width: int, temperature: float, seed: int,
    top_k: int = 0, top_p: float = 1.0,
) -> ScoredExamples:  # fmt: skip
    """Prompts with their answers in tokens, which are checked one by one. width: of a prompt with an answer, in tokens.

    The scores of a prompt are, for each answer, whether all of its tokens are the sampled ones, and its log-probability
    at temperature 1; then the sampled token at each position but the first, answer by answer.
    """
    count = len(answers[0])
    settings = temperature, top_k, top_p
    ids = torch.zeros(len(prompts), count, width, dtype=torch.int64)
    asked = torch.zeros_like(ids)
    for n, (prompt, own) in enumerate(zip(prompts, answers, strict=True)):
        for s, answer in enumerate(own):
            ids[n, s, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            asked[n, s, len(prompt) : len(prompt) + len(answer)] = 1
    names = [f"{what}_{s}" for what in ("sampled", "loglikelihood") for s in range(count)]
    places = [f"token_{s}_{at}" for s in range(count) for at in range(1, width)]
    return ScoredExamples(
        data={"input_ids": ids, "asked": asked}, score=partial(_score, settings), columns=(*names, *places),
        metrics=("sampled",), metric=lambda scores: scores[:, :count].mean()[None], batch=1, seed=seed,
        lines=[f"{len(prompts):,} prompts with {count:,} answers each, filled to {width:,} tokens"],
    )  # fmt: skip


def _score(settings: tuple[float, int, float], model: Any, input_ids: Tensor, asked: Tensor) -> Tensor:
    logits, wanted = predicted(model, input_ids.flatten(0, 1), input_ids.flatten(0, 1))
    found, is_asked = sampled(logits.transpose(1, 2), *settings), asked.flatten(0, 1)[:, 1:]
    right = ((found == wanted) | (is_asked == 0)).all(1).float()
    said = (-F.cross_entropy(logits, wanted, reduction="none") * is_asked).sum(1)
    return torch.cat([part.float().reshape(input_ids.shape[0], -1) for part in (right, said, found)], 1)


def read(data: Sequence[tuple[str, Any]], most: int) -> ScoredExamples:
    """Rows that `write` wrote. Raises `ConfigurationError`, also for an answer that ends before it has to.

    most: the most tokens of a prompt with an answer.
    """
    first, prompts, answers = data[0][1], list[list[int]](), list[list[list[int]]]()
    temperature, width, length, seed, end, top_k, top_p = settings = _settings_in(first)
    whole = all(type(one) is int and 0 <= one < MOST for one in (width, length, seed, top_k))
    numbers = whole and type(temperature) is type(top_p) is float
    if not numbers or not 0 <= temperature < MOST or not 0 < top_p <= 1 or not _are_tokens(end, least=0):
        raise ConfigurationError(f"{data[0][0]}: expected settings as `tiebreak generate` writes them, got {settings}")
    if width > most:
        raise ConfigurationError(f"{data[0][0]}: expected a width of at most {most:,} tokens (--length), got {width:,}")
    for where, row in data:
        prompt, own = (row[name] for name in ANSWERED[:2])
        lists = [prompt, *own] if isinstance(own, list) and own else [None]
        if not all(map(_are_tokens, lists)) or _settings_in(row) != settings:
            raise ConfigurationError(f"{where}: expected answers as `tiebreak generate` writes them, got others")
        ends = [(len(one) == length or one[-1] in end) and not {*one[:-1]} & {*end} for one in own]
        if not all(ends) or any(len(prompt) + len(one) > width for one in own) or len(own) != len(first[ANSWERED[1]]):
            raise ConfigurationError(f"{where}: expected whole answers, as many to each prompt, got others")
        prompts.append(prompt)
        answers.append(own)
    return answered(prompts, answers, width, temperature, seed, top_k, top_p)


def _settings_in(row: dict[str, Any]) -> list[Any]:
    return [row[name] for name in ANSWERED[2:]] + [row.get(name, plain) for name, plain in LEFT_OUT.items()]


def _are_tokens(given: Any, least: int = 1) -> bool:
    of_tokens = isinstance(given, list) and all(type(one) is int and 0 <= one < MAX_VOCABULARY for one in given)
    return of_tokens and len(given) >= least


def prompts_in(tokenizer: Path, data: Path) -> list[tuple[str, list[int]]]:
    """The prompts of a file, in text and tokens. Raises `ConfigurationError`."""
    kind, found = loaded(AutoTokenizer, tokenizer), list[tuple[str, list[int]]]()
    for where, row in rows.rows_of(data):
        text = row.get("prompt") if isinstance(row, dict) else None
        if not isinstance(text, str) or not (ids := kind(text)["input_ids"]):
            raise ConfigurationError(
                f"{where}: expected a prompt, which is a text of at least a token, got {str(row)[:200]}"
            )
        found.append((text, [*ids]))
    if not found:
        raise ConfigurationError(f"{data}: expected prompts, got none")
    return found


Noise = Callable[[int, int], Tensor | float]
"""noise(row, at) -> that on the logits of a row's token number `at` of those that are drafted, from 0."""


@torch.no_grad()
def drafts(
    model: Any, rows: Sequence[list[int]], rooms: Sequence[int], noise: Noise, temperature: float, end: Sequence[int],
    top_k: int = 0, top_p: float = 1.0,
) -> list[list[int]]:  # fmt: skip
    """Rows of tokens, each continued by as many as it has room for, or to a token that ends it."""
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, own in enumerate(rows):
        ids[row, longest - len(own) :], mask[row, longest - len(own) :] = torch.tensor(own), 1

    warpers: list[LogitsProcessor] = [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []

    def process(seen: Tensor, logits: Tensor) -> Tensor:
        drawn = [noise(row, seen.shape[1] - longest) for row in range(len(rows))] if temperature else []
        added = torch.stack([one for one in drawn if isinstance(one, Tensor)]).to(logits.device) if drawn else 0.0
        logits = logits.float() / (temperature or 1.0)
        for warper in warpers:
            logits = warper(seen, logits)
        return logits + added

    device = next(model.parameters()).device
    with four_bit.as_state(model):  # which a plain evaluation on a CPU would round
        made = model.generate(
            input_ids=ids.to(device), attention_mask=mask.to(device), max_new_tokens=max(rooms), do_sample=False,
            num_beams=1, logits_processor=[_Processor(process)], eos_token_id=[*end] or None, pad_token_id=0,
        )  # fmt: skip
    found = list[list[int]]()
    for own, room, new in zip(rows, rooms, made[:, longest:].tolist(), strict=True):
        stop = next((at + 1 for at, token in enumerate(new[:room]) if token in end), room)
        found.append([*own, *new[:stop]])
    return found


class _Processor:
    """A function of tokens and logits as transformers takes it."""

    def __init__(self, process: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._process = process

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self._process(input_ids, scores)


def settled(
    prompts: Sequence[list[int]], length: int, end: Sequence[int],
    draft: Callable[[Sequence[int], Sequence[list[int]]], list[list[int]]],
    exact: Callable[[Sequence[list[int]]], list[list[int]]],
) -> tuple[list[list[int]], int]:  # fmt: skip
    """The answer to each prompt, and the number of tokens that were other than a draft's.

    draft: continues rows of these numbers. exact: the sampled token after each token of every row.
    """
    known, done, mended = [[*prompt] for prompt in prompts], set[int](), 0
    while left := [s for s in range(len(prompts)) if s not in done]:
        drafted = dict(zip(left, draft(left, [known[s] for s in left]), strict=True))
        right = exact([drafted.get(s, known[s]) for s in range(len(prompts))])
        for s, new in drafted.items():
            wrong = next((at for at in range(len(known[s]), len(new)) if right[s][at - 1] != new[at]), None)
            known[s] = new if wrong is None else [*new[:wrong], right[s][wrong - 1]]
            mended += wrong is not None
            if len(known[s]) - len(prompts[s]) == length or known[s][-1] in end:
                done.add(s)
    return [tokens[len(prompt) :] for tokens, prompt in zip(known, prompts, strict=True)], mended


def noise_of(drawing: Any, first: int, count: int, seed: int, number: int) -> Tensor:
    """The noise of elements of a program's draw, f32 (count,), nearly as the program computes it.

    drawing: the instruction. first: the number of the first element. number: of the step, from 0.
    """
    part = replace(drawing, shape=(count,), params=RandomFrom(stream=drawing.params.stream, first=first))
    return -torch.log(-torch.log(random(part, [torch.tensor([seed]), torch.tensor([number])])))


@dataclass(kw_only=True)
class ExactSampler:
    """Samples answers by drafting and checking. end: tokens that end an answer, and are its last one."""

    model: Any
    prompts: Sequence[list[int]]
    answers: int
    length: int
    """The most tokens of an answer."""
    temperature: float
    seed: int
    end: Sequence[int]
    top_k: int = 0
    """The number of greatest logits that are candidates; 0 for all."""
    top_p: float = 1.0
    """The probability that the candidates reach together."""
    machine: Machine = Machine()

    def __post_init__(self) -> None:
        self.width = max(map(len, self.prompts)) + self.length
        settings = self.width, self.temperature, self.seed, *self._left_out
        empty = answered(self.prompts, [[[]] * self.answers] * len(self.prompts), *settings)
        self.model.eval()
        self._bundle = captured(self.model, empty, 1)
        self._interpreter = make_interpreter(self._bundle.program, self.machine)
        self._state = self._interpreter.to_device(self._bundle.state)
        drawing = [i for i in self._bundle.program.body if i.opcode == Opcode.RANDOM]
        if len(drawing) != bool(self.temperature):
            raise ConfigurationError(f"expected a model that draws nothing in eval mode, got {len(drawing)} draws")
        self._drawing = drawing[0] if drawing else None

    @property
    def _left_out(self) -> tuple[int, float]:
        return self.top_k, self.top_p

    @cached_property
    def vocabulary(self) -> int:
        """The number of logits at a position."""
        return 0 if self._drawing is None else self._drawing.shape[-1]

    def run(self, tell: Callable[[int, float], None] = lambda _, __: None) -> SampledAnswers:
        """Samples all answers. tell: called after each prompt, with its number from 1 and the share of corrections."""
        found, drafted, corrected = list[list[list[int]]](), 0, 0
        for number, prompt in enumerate(self.prompts):
            own, mended = self._answers(number, prompt)
            found.append(own)
            drafted, corrected = drafted + sum(map(len, own)), corrected + mended
            tell(number + 1, corrected / max(1, drafted))
        return SampledAnswers(found, drafted, corrected)

    def _answers(self, number: int, prompt: list[int]) -> tuple[list[list[int]], int]:
        def draft(which: Sequence[int], tokens: Sequence[list[int]]) -> list[list[int]]:
            begun, own = [len(one) for one in tokens], partial(self.noise, number)
            rooms = [len(prompt) + self.length - one for one in begun]
            return drafts(
                self.model, tokens, rooms, lambda row, at: own(which[row], begun[row] + at - 1), self.temperature,
                self.end, *self._left_out,
            )  # fmt: skip

        return settled([prompt] * self.answers, self.length, self.end, draft, partial(self._exact, number))

    def _exact(self, number: int, tokens: Sequence[list[int]]) -> list[list[int]]:
        """The sampled token after each one of a prompt's answers so far."""
        data = dict(self._bundle.data)
        ids = torch.zeros_like(data["input_ids"])
        for s, own in enumerate(tokens):
            ids[number, s, : len(own)] = torch.tensor(own)
        data["input_ids"] = ids
        result = self._interpreter.step(number + 1, self._state, self._interpreter.place_data(data))
        row = result.state[MODEL + SCORES][number, 2 * self.answers :].cpu().long()
        return [*map(list, row.reshape(self.answers, -1).tolist())]

    def noise(self, number: int, answer: int, position: int) -> Tensor | float:
        """The noise on the logits at a position of an answer, f32 (vocabulary,)."""
        first = (answer * (self.width - 1) + position) * self.vocabulary
        return noise_of(self._drawing, first, self.vocabulary, self.seed, number) if self._drawing else 0.0


def ends_of(model: Any) -> list[int]:
    """The tokens that end an answer, by the configuration of a model."""
    found = model.generation_config.eos_token_id
    return [] if found is None else [found] if isinstance(found, int) else [*found]


def write(path: Path, tokenizer: Path, texts: Sequence[str], sampler: ExactSampler, found: SampledAnswers) -> None:
    """Writes prompts and answers as JSON lines, which `read` reads and an evaluation checks."""
    decode = loaded(AutoTokenizer, tokenizer).decode
    with path.open("w", encoding="utf-8") as file:
        for text, prompt, own in zip(texts, sampler.prompts, found.tokens, strict=True):
            settings = float(sampler.temperature), sampler.width, sampler.length, sampler.seed, [*sampler.end]
            row = dict(zip(ANSWERED, (prompt, own, *settings), strict=True))
            row |= {name: given for name, plain in LEFT_OUT.items() if (given := getattr(sampler, name)) != plain}
            said = {"prompt": text, "answers": [decode(one, skip_special_tokens=True) for one in own]}
            file.write(json.dumps(said | row, ensure_ascii=False) + "\n")
