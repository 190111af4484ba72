"""Published training scripts as programs, small: the losses of 24 steps are those of eager PyTorch.

Each case makes a model, its loss, an optimizer and the data of 16 examples; all of them are one batch.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.optim import Optimizer

import tiebreak

pytestmark = pytest.mark.slow
N = 16
Case = tuple[nn.Module, Callable[..., Tensor], Optimizer, Mapping[str, Tensor]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def labelled() -> dict[str, Tensor]:
    return {"x": torch.randn(N, 5), "y": torch.arange(N) % 3}


def measured() -> dict[str, Tensor]:
    x = torch.randn(N, 5)
    return {"x": x, "y": torch.sin(x.sum(1, keepdim=True))}


def texts() -> dict[str, Tensor]:
    return {"x": torch.randint(0, 11, (N, 6)), "y": torch.randint(0, 11, (N, 6))}


def mlp(inputs: int = 5, outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def adam(model: nn.Module, rate: float = 0.01) -> Optimizer:
    return torch.optim.Adam(model.parameters(), lr=rate)


def sgd(model: nn.Module, rate: float = 0.05) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate)


def made(model: nn.Module, loss: Callable[..., Tensor], data: Mapping[str, Tensor], optimizer: Any = adam) -> Case:
    return model, loss, optimizer(model), data


class Parts(nn.Module):
    """A model of named submodules, parameters and buffers."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)


# Self-supervision, with memory in buffers.


@case
def codebook_by_moving_averages() -> Case:
    model = Parts(
        encoder=nn.Linear(5, 4), decoder=nn.Linear(4, 5), code=torch.randn(6, 4), count=torch.ones(6),
        total=torch.randn(6, 4),
    )  # fmt: skip

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        z = model.encoder(x)
        nearest = torch.cdist(z, model.code).argmin(1)
        chosen, one_hot = model.code[nearest], F.one_hot(nearest, 6).float()
        with torch.no_grad():
            model.count.mul_(0.9).add_(one_hot.sum(0), alpha=0.1)
            model.total.mul_(0.9).add_(one_hot.T @ z, alpha=0.1)
            model.code.copy_(model.total / (model.count[:, None] + 1e-5))
        return F.mse_loss(model.decoder(z + (chosen - z).detach()), x) + 0.25 * F.mse_loss(z, chosen.detach())

    return made(model, loss, labelled(), sgd)


# Gradients of gradients, hooks, and functions of torch.func.


@case
def learning_to_learn() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        own = dict(model.named_parameters())
        inner = F.cross_entropy(torch.func.functional_call(model, own, (x[:8],)), y[:8])
        slopes = torch.autograd.grad(inner, list(own.values()), create_graph=True)
        fast = {name: p - 0.1 * slope for (name, p), slope in zip(own.items(), slopes, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, fast, (x,)), y)

    return made(mlp(), loss, labelled())


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -0.3 * gradient


@case
def domains_by_a_reversed_gradient() -> Case:
    model = Parts(features=nn.Linear(5, 8), classes=nn.Linear(8, 3), domains=nn.Linear(8, 2))

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        h = torch.tanh(model.features(x))
        return F.cross_entropy(model.classes(h), y) + F.cross_entropy(model.domains(Reverse.apply(h)), y % 2)

    return made(model, loss, labelled())


@case
def gradients_scaled_by_hooks() -> Case:
    inner = mlp()
    inner[0].register_full_backward_hook(lambda _, given, __: tuple(None if g is None else g * 0.5 for g in given))

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        h = model[0](x)
        h.register_hook(lambda gradient: gradient * 0.1)
        return F.cross_entropy(model[1](h), y)

    return made(nn.Sequential(nn.Linear(5, 5), inner), loss, labelled())


@case
def jacobian_penalty() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        each = torch.func.vmap(torch.func.jacrev(model))(x)
        return F.cross_entropy(model(x), y) + 0.1 * each.square().mean()

    return made(mlp(), loss, labelled())


@case
def sliced_score_matching() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        v = torch.ones_like(x)
        score, along = torch.func.jvp(model, (x,), (v,))
        return (0.5 * (v * score).sum(1).square() + (v * along).sum(1)).mean()

    return made(mlp(outputs=5), loss, labelled())


# Weights made of others.


@case
def spectral_norm() -> Case:
    model = mlp()
    parametrizations.spectral_norm(model[0])
    parametrizations.weight_norm(model[2])
    return made(model, classified, labelled())


@case
def pruned_weights() -> Case:
    model = mlp()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    return made(model, classified, labelled())


@case
def encoder_with_padding() -> Case:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model, data = Parts(embedding=nn.Embedding(11, 8, padding_idx=0), encoder=encoder, head=nn.Linear(8, 11)), texts()
    data["x"][:, 0] = 1

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        out = model.head(model.encoder(model.embedding(x), src_key_padding_mask=x == 0))
        return F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=0)

    return made(model, loss, data)


# Ranks, distributions, transport.


@case
def mixture_density() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits, means, widths = model(x).chunk(3, 1)
        of = torch.distributions.Normal(means, F.softplus(widths) + 0.01)
        mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=logits), of)
        return -mixture.log_prob(y.squeeze(1)).mean()

    return made(mlp(outputs=9), loss, measured())


# Images and graphs.


@case
def attention_over_a_graph() -> Case:
    edges = torch.randint(0, N, (2, 40))
    model = Parts(nodes=nn.Linear(5, 4), pairs=nn.Linear(8, 1), head=nn.Linear(4, 3), edges=edges)

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        (source, target), h = model.edges, model.nodes(x)
        score = F.leaky_relu(model.pairs(torch.cat([h[source], h[target]], 1))).squeeze(1)
        most = torch.full((len(x),), -torch.inf).scatter_reduce(0, target, score, "amax")
        share = (score - most[target]).exp()
        total = torch.zeros(len(x)).index_add(0, target, share)
        out = torch.zeros_like(h).index_add(0, target, (share / total[target])[:, None] * h[source])
        return F.cross_entropy(model.head(out), y)

    return made(model, loss, labelled())


STEPS = 24
TOLERANCE = 1e-4
"""Relative; rounding alone leads 24 steps of these apart by at most a tenth of it."""


@cache
def orders() -> list[Tensor]:
    """The numbers of the examples of each step, which a model without a use for them keeps."""
    model = nn.Linear(1, 1)
    model.register_buffer("seen", torch.zeros(N, dtype=torch.long))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        model.seen.copy_(x)
        return model(x[:, None].float()).sum()

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    task = tiebreak.Task(model, loss, optimizer=optimizer, data={"x": torch.arange(N)}, batch=N, steps=STEPS)
    trainer = tiebreak.reproducible(task, check="none")
    return [trainer.state_dict()["seen"].clone() for _ in trainer]


def eager(name: str) -> list[float]:
    torch.manual_seed(0)
    model, loss, optimizer, data = CASES[name]()
    losses = []
    for order in orders():
        optimizer.zero_grad()
        value = loss(model, **{key: array[order] for key, array in data.items()})
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


@pytest.mark.parametrize("name", CASES)
def test_published_scripts_have_the_losses_of_eager_pytorch(name: str) -> None:
    torch.manual_seed(0)
    model, loss, optimizer, data = CASES[name]()
    task = tiebreak.Task(model, loss, optimizer=optimizer, data=data, batch=N, steps=STEPS)
    trainer = tiebreak.reproducible(task)
    assert [step.loss for step in trainer] == pytest.approx(eager(name), rel=TOLERANCE, abs=TOLERANCE)
