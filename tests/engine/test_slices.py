"""Large models that are checked on a slice of their layers: what passes, and what is refused because layers differ."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from tests.conftest import CaseCounter
from tests.engine.lowering_bench import make_task
from tests.parts import slow_except
from tiebreak import AdamW, Clip, Group, Task
from tiebreak.api.training import tasks
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.capture.slices import LEAST, Slice
from tiebreak.engine.lowering import RULES
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.program import Program

step = tasks.exact_step
DATA = {"x": torch.sin(torch.arange(32.0)).reshape(8, 4), "y": torch.cos(torch.arange(32.0) * 3).reshape(8, 4)}
COUNT = 6


def task(model: nn.Module, **changes: Any) -> Task:
    settings = {"data": DATA, "batch": 4, "rate": 0.1, "loss": lambda model, x, y: F.mse_loss(model(x), y)}
    return make_task(model, **(settings | changes))


class Block(nn.Module):
    """A layer with weights, dropout and a buffer that it writes to, which knows its number."""

    def __init__(self, number: int, act: Callable[[Tensor, int], Tensor] = lambda x, _: torch.tanh(x)) -> None:
        super().__init__()
        self.number, self.act, self.drop = number, act, nn.Dropout(0.2)
        self.inner = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.copy_(0.9 * self.seen + x.detach().mean(0))
        return x + self.drop(self.act(self.inner(x), self.number))


class Stack(nn.Module):
    """A first and a last layer, and equal ones in between."""

    def __init__(self, layers: Any, run: Callable[[Any, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.first, self.layers, self.last, self.run = nn.Linear(4, 4), layers, nn.Linear(4, 4), run

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.run is not None:
            return self.last(self.run(self, x))
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def plain(act: Any = None, run: Any = None, count: int = COUNT) -> Stack:
    make = Block if act is None else partial(Block, act=act)
    return Stack(nn.ModuleList(make(number) for number in range(count)), run)


def two_runs() -> nn.Module:
    inner = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(5)), nn.Linear(4, 4))
    return nn.Sequential(plain(), inner)


def recorded() -> Task:
    model = plain()
    groups = [{"params": [*model.first.parameters()], "betas": (0.8, 0.9)}, {"params": [*model.layers.parameters()]}]
    return task(model, optimizer=torch.optim.NAdam(groups, lr=0.1))


def grouped(match: str) -> Task:
    groups = (Group(match=("*.bias",), weight_decay=0.0), Group(match=(match,), lr_factor=0.5))
    return task(plain(), optimizer=AdamW(lr=0.1, weight_decay=0.1, groups=groups))


RIGHT: dict[str, Callable[[], Task]] = {
    "plain": lambda: task(plain()),
    "everything": lambda: task(
        plain(), accumulation=2, clip=Clip(norm=0.01), average=0.9, norm=True, optimizer=AdamW(lr=0.1)
    ),
    "groups": lambda: grouped("layers.[05].*"),
    "two runs": lambda: task(two_runs()),
    "bfloat16": lambda: task(plain().bfloat16(), loss=lambda m, x, y: F.mse_loss(m(x.bfloat16()).float(), y)),
    "recorded": recorded,
    "by index": lambda: task(plain(run=lambda m, x: [x := m.layers[n](x) for n in range(len(m.layers))][-1])),
    "first kept": lambda: task(
        plain(run=lambda m, x: [y := m.layers[0](x), *(y := layer(y) + x for layer in m.layers)][-1])
    ),
}


@pytest.mark.parametrize("name", slow_except(RIGHT, "plain"))
def test_models_of_equal_layers_are_checked_on_a_slice(name: str) -> None:
    torch.manual_seed(0)
    made = RIGHT[name]()
    before = {path: dict(vars(module)) for path, module in made.model.named_modules()}
    found = tasks.capture(made, check="slice")
    assert found.check == "slice"
    assert found.program.root == capture_task(made).program.root
    assert all(torch.equal(found.state[f"model.{n}"], p.float()) for n, p in made.model.named_parameters())
    after = {path: vars(module) for path, module in made.model.named_modules()}
    assert before.keys() == after.keys()
    for path, held in before.items():
        assert held.keys() == after[path].keys()
        assert all(held[key] is after[path][key] for key in held), path
    kept = Slice.of(made).task.model
    assert sum(p.numel() for p in kept.parameters()) < sum(p.numel() for p in made.model.parameters())


def tied() -> nn.Module:
    block = Block(0)
    return Stack(nn.ModuleList(block for _ in range(COUNT)))


def rates() -> nn.Module:
    model = plain()
    for number, layer in enumerate(model.layers):
        layer.drop.p = 0.1 * number
    return model


def ahead(m: Any, x: Tensor, place: Callable[[int], int]) -> Tensor:
    """The last layer also reads what an earlier one gave."""
    given = [x]
    for layer in m.layers:
        given.append(layer(given[-1]))
    return given[-1] + given[place(len(m.layers))]


def once(m: Any, x: Tensor) -> Tensor:
    for number, layer in enumerate(m.layers):
        x = layer(x) + (x if number == 3 else 0)
    return x


def fixed(m: Any, x: Tensor) -> Tensor:
    for number in range(COUNT):
        x = m.layers[number](x)
    return x


def all_of_them(m: Any, x: Tensor) -> Tensor:
    given = [x := layer(x) for layer in m.layers]
    return torch.stack(given).mean(0)


NONE, FEWER, OTHER = "equal layers in a row", "a model that runs with fewer of its layers", "layers that do the same"
WRONG: dict[str, tuple[Callable[[], Task], str]] = {
    "too few": (lambda: task(plain(count=4)), NONE),
    "tied": (lambda: task(tied()), NONE),
    "rates by layer": (lambda: task(rates()), NONE),
    "a number of layers": (lambda: task(plain(run=fixed)), FEWER),
    "scaled by its number": (lambda: task(plain(lambda x, n: torch.tanh(x) * (n + 1))), OTHER),
    "one other function": (lambda: task(plain(lambda x, n: torch.sin(x) if n == 3 else torch.tanh(x))), OTHER),
    "one other last": (lambda: task(plain(lambda x, n: torch.sin(x) if n == 4 else torch.tanh(x))), OTHER),
    "scaled by their count": (lambda: task(plain(run=lambda m, x: all_of_them(m, x) / len(m.layers))), OTHER),
    "one other way": (lambda: task(plain(run=once)), OTHER),
    "the middle": (lambda: task(plain(run=partial(ahead, place=lambda n: n // 2))), OTHER),
    "all of them": (lambda: task(plain(run=all_of_them)), OTHER),
    "a group of one": (lambda: grouped("layers.3.*"), OTHER),
}
LIKE_OTHERS = ("rates by layer", "scaled by its number", "one other last", "scaled by their count", "the middle")


@pytest.mark.parametrize("name", slow_except(WRONG, nightly=LIKE_OTHERS))
def test_models_of_differing_layers_are_checked_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything of the slice is computed."""
    computed = list[Program]()
    monkeypatch.setattr(
        tasks, "exact_step", lambda program, *given: (computed.append(program), step(program, *given))[1]
    )
    make, words = WRONG[name]
    with pytest.warns(UserWarning, match=rf"the whole model is checked, since a slice does not tell: .*{words}"):
        found = tasks.capture(make(), check="slice")
    assert found.check == "full"
    assert {program.body for program in computed} == {found.program.body}


@pytest.mark.slow
def test_a_wrong_rule_is_found_when_the_whole_model_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "tanh.default", RULES["cos.default"])
    with (
        pytest.warns(UserWarning, match="a slice"),
        pytest.raises(ConfigurationError, match="the program is not the model"),
    ):
        tasks.capture(WRONG["one other way"][0](), check="slice")


@pytest.mark.slow
def test_a_wrong_rule_is_found_in_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "tanh.default", RULES["sin.default"])
    with pytest.raises(ConfigurationError, match="the program is not the model"):
        tasks.capture(task(plain(count=LEAST)), check="slice")


TOKENS = {name: torch.arange(64).reshape(8, 8) * 7 % 61 for name in "xy"}
SIZES = {"vocab_size": 61, "num_hidden_layers": LEAST}


def llama() -> nn.Module:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **sizes)).bfloat16()
    model.gradient_checkpointing_enable()
    return model


def t5() -> nn.Module:
    """The first block of encoder and decoder has a bias of its own; five more are equal."""
    sizes = {"vocab_size": 61, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": LEAST + 1, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))


@pytest.mark.slow
@pytest.mark.parametrize(("make", "runs"), [(llama, 1), (t5, 2)])
def test_transformers_models_can_be_checked_on_slices(make: Callable[[], nn.Module], runs: int) -> None:
    model = make().train()
    made = task(model, data=TOKENS, batch=2, loss=lambda m, x, y: m(input_ids=x, labels=y, use_cache=False).loss)
    part = Slice.of(made)
    assert len(part.counts) == runs
    part.compare(capture_task(made), capture_task(part.task), model)


def unlike(x: Tensor, number: int) -> Tensor:
    """In eager PyTorch alone, one of the layers that a slice leaves out does another thing."""
    return torch.sin(x) if number == 3 and not torch.compiler.is_compiling() else torch.tanh(x)


@pytest.mark.slow
def test_a_slice_check_misses_eager_only_behaviour_of_left_out_layers() -> None:
    assert tasks.capture(task(plain(unlike)), check="slice").check == "slice"
    with pytest.raises(ConfigurationError, match="the program is not the model"):
        tasks.capture(task(plain(unlike)))


def swapped(found: Captured, number: int) -> Captured | None:
    """The program in which one instruction reads another value of the same size; None if there is none before it."""
    leaf, body = found.program.body[number], [*found.program.body]
    for place, operand in enumerate(leaf.operands):
        wanted = body[operand.value]
        for value in range(number - 1, -1, -1):
            other = body[value]
            if (
                value != operand.value
                and (other.dtype, other.shape) == (wanted.dtype, wanted.shape)
                and other != wanted
            ):
                operands = [*leaf.operands]
                operands[place] = replace(operand, value=value)
                body[number] = replace(leaf, operands=tuple(operands))
                return replace(found, program=replace(found.program, body=tuple(body)))
    return None


@pytest.mark.slow
def test_the_slice_comparison_detects_any_swapped_operand(cases: CaseCounter) -> None:
    made = task(plain(count=LEAST), optimizer=AdamW(lr=0.1), clip=Clip(norm=1.0))
    part, whole = Slice.of(made), capture_task(made)
    small = capture_task(part.task)
    part.compare(whole, small, made.model)
    passed = []
    for number in range(len(whole.program.body)):
        if (wrong := swapped(whole, number)) is not None:
            cases(1)
            try:
                part.compare(wrong, small, made.model)
            except ConfigurationError:
                continue
            passed.append(whole.program.body[number])
    assert all(leaf.origin == "clip" and not leaf.shape for leaf in passed), "sums over all layers, and no others"
