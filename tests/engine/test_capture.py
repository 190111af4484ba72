"""Capture and lowering against autograd: the program's exact step and torch's FP64 step must tell the same story.

The programs run on the integer reference, so this tests what the program *says*, not how torch computes it.
"""

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.protocol.whole_steps import execute, new_state
from tiebreak.engine.capture.compile import compile_task
from tiebreak.engine.capture.task import SGD, AdamW, Batch, Rows, Task, Windows
from tiebreak.engine.data.tensors import from_bytes, tensor_bytes
from tiebreak.engine.lowering.builder import Builder
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.philox import shuffle
from tiebreak.protocol.program.isa import DType, MapFunction, Opcode
from tiebreak.protocol.program.program import Program


def loss_of(model: nn.Module, *batch: Tensor) -> Tensor:
    return model(*batch)


def make_task(model: nn.Module, data: Mapping[str, Tensor], **changes: object) -> Task:
    settings: dict[str, object] = {
        "name": "test",
        "model": model,
        "loss": loss_of,
        "optimizer": SGD(lr=0.1),
        "data": data,
        "batch": Batch(size=2, examples=Rows(names=tuple(data))),
        "steps": 3,
        "checkpoint_interval": 1,
        "seed": 11,
    }
    return Task(**(settings | changes))  # type: ignore[arg-type]


def run_reference(
    program: Program, state: Mapping[str, Tensor], data: Mapping[str, Tensor], step: int
) -> dict[str, Tensor]:
    as_bytes = [{name: bytes(tensor_bytes(t)) for name, t in part.items()} for part in (state, data)]
    values = execute(program, as_bytes[0], as_bytes[1], step)
    spec = program.state_spec()
    new = {name: from_bytes(raw, *spec[name]) for name, raw in new_state(program, values).items()}
    return new | {"loss": from_bytes(values[-1], DType.F32, ())}


def torch_batch(task: Task, program: Program, step: int) -> tuple[Tensor, ...]:
    """The examples of a step, by SPEC 7 in plain integers."""
    n, size = task.examples, task.batch.size
    draws = [(step - 1) * size + j for j in range(size)]
    stream = next(i.params.stream for i in program.body if i.opcode == Opcode.SHUFFLE)
    chosen = [shuffle(g % n, task.seed, g // n, n, stream) for g in draws]
    return task.batch.examples.take(task.data, torch.tensor(chosen))


def torch_step(
    task: Task, program: Program, optimizer: Callable[..., torch.optim.Optimizer], steps: int = 1
) -> dict[str, Tensor]:
    """FP64 training with torch's own autograd and optimizer."""
    task.model.double().train()
    opt = optimizer(task.model.parameters())
    loss = torch.zeros(())
    for step in range(1, steps + 1):
        batch = [t.double() if t.dtype == torch.float32 else t for t in torch_batch(task, program, step)]
        opt.zero_grad()
        loss = task.loss(task.model, *batch)
        loss.backward()
        opt.step()
    named = [*task.model.named_parameters(), *task.model.named_buffers()]
    return {f"model.{name}": t.detach() for name, t in named} | {"loss": loss.detach()}


def check_against_torch(
    task: Task, optimizer: Callable[..., torch.optim.Optimizer], steps: int = 1, tol: float = 2e-6
) -> Program:
    compiled = compile_task(task)
    state: Mapping[str, Tensor] = compiled.state
    for step in range(1, steps + 1):
        new = run_reference(compiled.program, state, compiled.data, step)
        state = {name: new[name] for name in compiled.state}
    expected = torch_step(task, compiled.program, optimizer, steps)
    for name, tensor in expected.items():
        got = new[name].to(tensor.dtype)
        torch.testing.assert_close(got, tensor, rtol=tol, atol=tol, msg=lambda m, name=name: f"{name}: {m}")
    return compiled.program


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


class ConvNet(nn.Module):
    def __init__(self, stride: int = 1, padding: int = 1, groups: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, stride=stride, padding=padding, groups=groups, dilation=dilation)
        self.second = nn.Conv2d(4, 2, 2, stride=stride)
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sum(torch.tanh(self.norm(self.second(F.relu(self.conv(x))))) ** 2)


@pytest.mark.parametrize(
    "settings",
    [{}, {"stride": 2}, {"padding": 0}, {"groups": 2}, {"dilation": 2, "padding": 2}, {"padding": 3}],
    ids=str,
)
def test_convolution_and_batch_norm_with_statistics(settings: dict[str, int]) -> None:
    torch.manual_seed(0)
    task = make_task(ConvNet(**settings), {"x": torch.randn(4, 2, 7, 6)})
    check_against_torch(task, sgd, steps=1)


class TransposedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return (self.up(x) ** 2).mean()


def test_transposed_convolution() -> None:
    torch.manual_seed(1)
    check_against_torch(make_task(TransposedNet(), {"x": torch.randn(2, 2, 3, 4)}), sgd)


class PoolNet(nn.Module):
    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 2)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        return (self.pool(self.conv(x)) ** 2).sum()


@pytest.mark.parametrize(
    "pool",
    [nn.MaxPool2d(2), nn.MaxPool2d(3, stride=2, padding=1), nn.MaxPool2d(2, stride=1), nn.AvgPool2d(2)],
    ids=str,
)
def test_pooling(pool: nn.Module) -> None:
    torch.manual_seed(2)
    check_against_torch(make_task(PoolNet(pool), {"x": torch.randn(2, 1, 6, 6)}), sgd)


class Attention(nn.Module):
    """Embedding, layer norm, causal attention, GELU, tied output; the parts of a GPT."""

    def __init__(self, approximate: str = "tanh") -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.qkv = nn.Linear(4, 12)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.tokens.weight
        self.approximate = approximate

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.tokens(ids[:, :-1]))
        q, k, v = self.qkv(x).split(4, dim=-1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        logits = self.out(F.gelu(x, approximate=self.approximate))
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_attention_with_tied_embedding_on_windows_of_tokens(approximate: str) -> None:
    torch.manual_seed(3)
    tokens = torch.randint(0, 7, (40,))
    task = make_task(
        Attention(approximate),
        {"tokens": tokens},
        batch=Batch(size=2, examples=Windows(name="tokens", length=4, stride=3)),
    )
    program = check_against_torch(task, sgd)
    assert sum("tokens.weight" in name for name in program.state_spec()) == 1  # tied: once
    assert not any("out.weight" in name for name in program.state_spec())


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return (torch.sigmoid(self.layer(x)) ** 2).mean()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(lr=0.1, momentum=0.9, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
        (SGD(lr=0.1, momentum=0.9, nesterov=True), lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True)),
        (AdamW(lr=0.1, weight_decay=0.1), lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1)),
    ],
    ids=["sgd", "nesterov", "adamw"],
)
def test_optimizers_over_three_steps(ours: SGD | AdamW, theirs: Callable[..., torch.optim.Optimizer]) -> None:
    torch.manual_seed(4)
    check_against_torch(make_task(Linear(), {"x": torch.randn(5, 3)}, optimizer=ours), theirs, steps=3, tol=1e-5)


def test_the_schedule_is_data_and_scales_the_rate() -> None:
    torch.manual_seed(5)
    task = make_task(Linear(), {"x": torch.randn(5, 3)}, schedule=(0.0, 0.5, 1.0))
    compiled = compile_task(task)
    assert compiled.data["learning_rate"].tolist() == pytest.approx([0.0, 0.05, 0.1])
    frozen = run_reference(compiled.program, compiled.state, compiled.data, 1)
    moved = run_reference(compiled.program, compiled.state, compiled.data, 2)
    assert all(torch.equal(frozen[n], t) for n, t in compiled.state.items() if n.startswith("model."))
    assert not torch.equal(moved["model.layer.weight"], compiled.state["model.layer.weight"])


class Dropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x * self.scale, 0.25).sum()


def test_dropout_masks_are_fresh_in_each_step_and_fixed_by_the_seed() -> None:
    task = make_task(Dropout(), {"x": torch.ones(2, 64)})
    compiled = compile_task(task)
    gradients = []
    for step in (1, 1, 2):
        new = run_reference(compiled.program, compiled.state, compiled.data, step)
        gradients.append((1 - new["model.scale"]) / 0.1)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)
    assert not torch.equal(gradients[0], gradients[2])
    kept = (gradients[0] * 0.75).round()  # 0, 1 or 2 of the two examples kept this element
    torch.testing.assert_close(gradients[0], kept / 0.75, rtol=0, atol=1e-3)
    assert {0.0, 1.0, 2.0} >= set(kept.tolist())
    assert 0.6 < kept.mean() / 2 < 0.9


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(3, 3)
        self.head = nn.Linear(3, 1)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x)).square().mean()


def test_frozen_parameters_stay() -> None:
    task = make_task(Frozen(), {"x": torch.randn(3, 3)})
    compiled = compile_task(task)
    new = run_reference(compiled.program, compiled.state, compiled.data, 1)
    assert torch.equal(new["model.base.weight"], compiled.state["model.base.weight"])
    assert not torch.equal(new["model.head.weight"], compiled.state["model.head.weight"])


class Unsupported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.GLU(dim=-1) if False else nn.Identity())
        self.decay = Gamma()

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(self.decay(self.inner(x))).sum().detach() + self.inner(x).sum()


class Gamma(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.i0e(x)


def test_every_unsupported_operator_is_listed_with_its_module() -> None:
    with pytest.raises(ConfigurationError) as caught:
        compile_task(make_task(Unsupported(), {"x": torch.randn(3, 3)}))
    message = str(caught.value)
    assert "special_i0e" in message
    assert "decay" in message
    assert "bessel_j0" in message


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w).half().float().sum()


def test_other_dtypes_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="float16"):
        compile_task(make_task(Narrow(), {"x": torch.randn(3, 3)}))


def test_a_loss_that_is_not_a_scalar_is_refused() -> None:
    class Vector(Narrow):
        def forward(self, x: Tensor) -> Tensor:
            return x * self.w

    with pytest.raises((ConfigurationError, RuntimeError)):
        compile_task(make_task(Vector(), {"x": torch.randn(3, 3)}))


def test_capture_is_deterministic() -> None:
    torch.manual_seed(6)
    model = Attention()
    tokens = torch.arange(40) % 7
    batch = Batch(size=2, examples=Windows(name="tokens", length=4, stride=3))
    roots = {compile_task(make_task(model, {"tokens": tokens}, batch=batch)).program.root for _ in range(2)}
    assert len(roots) == 1


def test_builder_emits_equal_instructions_once_and_drops_dead_ones() -> None:
    b = Builder()
    x = b.state("x", DType.F32, (3,))
    first, second = b.add(x, b.const(1.0)), b.add(x, b.const(1.0))
    assert first.value == second.value
    b.map(MapFunction.EXP, x)  # dead
    program = b.finish({"x": first}, b.sum(first))
    assert [i.opcode for i in program.body] == [Opcode.SOURCE, Opcode.SOURCE, Opcode.MAP, Opcode.REDUCE, Opcode.MAP]


def test_every_loss_since_the_last_checkpoint_is_in_the_state() -> None:
    torch.manual_seed(7)
    task = make_task(Linear(), {"x": torch.randn(5, 3)}, steps=5, checkpoint_interval=2)
    compiled = compile_task(task)
    state: Mapping[str, Tensor] = compiled.state
    losses = []
    for step in range(1, 6):
        new = run_reference(compiled.program, state, compiled.data, step)
        losses.append(new["loss"].item())
        state = {name: new[name] for name in compiled.state}
    assert state["telemetry.loss"].tolist() == [losses[4], losses[3]]


def test_an_untested_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiebreak.engine.capture.tracing.TESTED_TORCH", ("1.0.0",))
    with pytest.warns(UserWarning, match=r"tested with torch 1\.0\.0"):
        compile_task(make_task(Linear(), {"x": torch.randn(5, 3)}))
