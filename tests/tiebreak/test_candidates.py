"""Top-k and top-p as docs/generation.md defines them: the program against the definition in integers."""

from math import inf

import pytest
import torch
from torch import Tensor, nn
from transformers import TopKLogitsWarper, TopPLogitsWarper

from tests.conftest import CaseCounter
from tests.parts import slow_except
from tiebreak.api.evaluation import generation
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training.scoring import SCORES, ScoredExamples, captured
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.capture.step_run import replaced
from tiebreak.protocol.numbers import float32, transcendental
from tiebreak.protocol.numbers.philox import random_bits
from tiebreak.protocol.program.isa import Opcode

LEAST = float32.SIGN | (float32.INF - 1)
SEED = 11


def bits(number: float) -> int:
    return int(torch.tensor(number, dtype=torch.float32).view(torch.int32)) & 0xFFFFFFFF


def total(numbers: list[int]) -> int:
    """The sum of numbers that are not negative, rounded once."""
    return float32.round_f32(sum(map(float32.scaled, numbers)), float32.MIN_EXPONENT)


def definition(scaled: list[int], top_k: int, top_p: float) -> list[int]:
    """The candidates of a row, first to last. All numbers are patterns of f32."""
    order = sorted(range(len(scaled)), key=lambda at: (-float32.order(float32.plus_zero(scaled[at])), at))
    order = order[: top_k or None]
    if top_p == 1:
        return order
    greatest = scaled[order[0]]
    powers = [transcendental.exp(float32.subtract(scaled[at], greatest)) for at in order]
    chances = [float32.divide(power, total(powers)) for power in powers]
    count = next((n for n in range(1, len(order)) if float32.less_equal(bits(top_p), total(chances[:n]))), len(order))
    return order[:count]


def drawn(logits: list[int], noise: list[int], temperature: float, top_k: int, top_p: float) -> int:
    """The token of a row."""
    scaled = [float32.divide(logit, bits(temperature)) for logit in logits]
    sums = {at: float32.add(scaled[at], noise[at]) for at in definition(scaled, top_k, top_p)}
    return min(sums, key=lambda at: (-float32.order(float32.maximum(sums[at], LEAST)), at))


def in_program(logits: Tensor, temperature: float, top_k: int, top_p: float) -> tuple[list[list[int]], list[int]]:
    """The candidates of each row, and the tokens, as a program computes them."""
    plain = generation.candidates

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Parameter(logits.clamp(min=-3e38))  # a task takes finite weights alone

    def score(model: Table, ids: Tensor) -> Tensor:
        given = torch.where(model.rows == -3e38, -inf, model.rows)
        seen = list[Tensor]()
        with replaced(generation, candidates=lambda *of: seen.append(plain(*of)) or seen[0]):
            token = generation.sampled(given, temperature, top_k, top_p)
        return torch.cat([seen[0].float(), token.float()[:, None]], 1).reshape(1, -1) + 0.0 * ids

    columns = tuple(f"{row}_{at}" for row in range(len(logits)) for at in range(logits.shape[1] + 1))
    scored = ScoredExamples(
        data={"ids": torch.zeros(1, 1, dtype=torch.int64)}, score=score, columns=columns, metrics=("none",),
        metric=lambda scores: scores.mean()[None], batch=1, seed=SEED, lines=[],
    )  # fmt: skip
    bundle = captured(Table(), scored, 1)
    assert sum(i.opcode == Opcode.RANDOM for i in bundle.program.body) == bool(temperature)
    interpreter = make_interpreter(bundle.program, Machine(threads=1))
    state = interpreter.step(1, interpreter.to_device(bundle.state), interpreter.place_data(bundle.data)).state
    found = state[MODEL + SCORES][0].reshape(len(logits), -1).long()
    return [one.nonzero().flatten().tolist() for one in found[:, :-1].bool()], found[:, -1].tolist()


def rows(width: int) -> Tensor:
    """Rows on which a careless definition or bisection goes wrong."""
    torch.manual_seed(width)
    place = torch.arange(width, dtype=torch.float32)
    tiny = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 2.8e-45, 1e-38, -1e-38])
    halves = -(place + 1).clamp(max=width - 1) * 0.6931472  # probabilities of 1/2, 1/4, ..., whose sums are exact
    return torch.stack([
        torch.zeros(width), place % 2, place // 3, -(place // 3), torch.randn(width).round(), torch.randn(width) * 9,
        tiny.repeat(width)[:width], halves, halves.flip(0), torch.where(place % 3 == 0, -inf, place),
        place * 5e36 - 9e37, torch.where(place == 2, 2e38, -2e38), 1 + place * 2.0**-23, 8 - place * 2.0**-21,
        torch.full((width,), -5.0), torch.where(place < width - 1, -inf, 0.0), torch.randn(width) * 1e-3,
    ])  # fmt: skip


MANY = [
    (1, 1.0, 0.7), (3, 1.0, 1.0), (40, 1.0, 1.0), (0, 0.75, 1.0), (0, 1e-30, 1.0), (0, 0.95, 0.7), (4, 0.5, 2.0),
    (5, 1 - 2.0**-24, 1.0), (2, 0.4999, 1.0),
]  # fmt: skip


@pytest.mark.parametrize("width", slow_except([5, 37], nightly=[5]))
def test_the_program_draws_among_the_candidates_of_the_definition(width: int, cases: CaseCounter) -> None:
    logits = rows(width)
    patterns = [[bits(one) for one in row] for row in logits.tolist()]
    numbers = [random_bits(SEED, 0, 0, n) for n in range(logits.numel())]
    negative = [float32.negate(transcendental.log(u)) for u in numbers]
    flat = [float32.negate(transcendental.log(one)) for one in negative]
    noise = [flat[n : n + width] for n in range(0, len(flat), width)]
    for top_k, top_p, temperature in MANY:
        found, tokens = in_program(logits, temperature, top_k, top_p)
        for row, own in enumerate(patterns):
            scaled = [float32.divide(logit, bits(temperature)) for logit in own]
            assert found[row] == sorted(definition(scaled, top_k, top_p)), (top_k, top_p, logits[row])
            assert tokens[row] == drawn(own, noise[row], temperature, top_k, top_p)
            cases()


def test_without_noise_the_first_of_the_greatest_is_drawn() -> None:
    logits = rows(7)
    for top_k, top_p, _ in MANY:
        assert generation.sampled(logits, 0.0, top_k, top_p).tolist() == logits.argmax(-1).tolist()


def test_transformers_keeps_the_same_candidates_where_none_are_equal() -> None:
    torch.manual_seed(3)
    logits = torch.randn(200, 60)
    for top_k, top_p in ((20, 1.0), (0, 0.9), (20, 0.95)):
        wanted = logits / 0.8
        wanted = TopKLogitsWarper(top_k)(logits, wanted) if top_k else wanted
        wanted = TopPLogitsWarper(top_p)(logits, wanted) if top_p < 1 else wanted
        found = generation.candidates(logits / 0.8, top_k, top_p)
        assert torch.equal(found, wanted.isfinite())
    flat = torch.zeros(1, 60)  # where all are equal, transformers keeps all of them
    assert generation.candidates(flat, 20, 1.0)[0].nonzero().flatten().tolist() == [*range(20)]


def test_a_single_candidate_is_drawn_whatever_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", torch.zeros)  # noise of -inf
    logits = torch.tensor([[0.0, 1.0, 5.0, 2.0]])
    assert generation.sampled(logits, 1.0, 1, 1.0).tolist() == [2]
    assert generation.sampled(logits, 1.0, 2, 1.0).tolist() == [2]


def test_tokens_are_drawn_as_often_as_the_candidates_probabilities_say() -> None:
    torch.manual_seed(1)
    logits = torch.tensor([2.0, 0.0, 1.0, -1.0, 0.5])
    for top_k, top_p, kept in ((3, 1.0, [0, 2, 4]), (0, 0.7, [0, 2]), (3, 0.9, [0, 2, 4]), (3, 0.8, [0, 2])):
        shares = torch.bincount(generation.sampled(logits.expand(40_000, 5), 1.0, top_k, top_p), minlength=5) / 40_000
        wanted = torch.zeros(5)
        wanted[kept] = logits[kept].softmax(0)
        torch.testing.assert_close(shares, wanted, atol=0.01, rtol=0)
