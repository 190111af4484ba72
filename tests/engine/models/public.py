"""Published training scripts, small: self-supervision, generative models, physics, graphs, sequences, ranks.

Each case makes a model, its loss, an optimizer and the data of 16 examples; all of them are one batch.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.optim import Optimizer

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


def images() -> dict[str, Tensor]:
    return {"x": torch.randn(N, 1, 8, 8), "y": torch.arange(N) % 3}


def mlp(inputs: int = 5, outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def next_token(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


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


class Tokens(nn.Module):
    """Embeddings, a core over (batch, time, 8), and a head."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.embedding, self.core, self.head = nn.Embedding(11, 8), core, nn.Linear(8, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(self.embedding(x)))


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


@case
def target_network_every_fourth_step() -> Case:
    q = nn.Linear(5, 3)
    model = Parts(q=q, target=q.weight.detach().clone(), count=torch.zeros((), dtype=torch.long))

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        model.count += 1
        model.target.copy_(torch.where(model.count % 4 == 0, model.q.weight.detach(), model.target))
        best = F.linear(x, model.target).max(1).values
        return F.smooth_l1_loss(model.q(x).gather(1, y[:, None]).squeeze(1), 0.9 * best)

    return made(model, loss, labelled())


# Gradients of gradients, hooks, and functions of torch.func.


@case
def gradient_penalty() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        between = (0.3 * x).requires_grad_()
        (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
        return model(x).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    return made(mlp(outputs=1), loss, measured())


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


@case
def adversary_with_frozen_critic() -> Case:
    model = Parts(maker=mlp(2, 5), critic=mlp(5, 1))

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        fake = model.maker(x[:, :2])
        told = F.softplus(-model.critic(x)).mean() + F.softplus(model.critic(fake.detach())).mean()
        frozen = {name: p.detach() for name, p in model.critic.named_parameters()}
        return told + F.softplus(-torch.func.functional_call(model.critic, frozen, (fake,))).mean()

    return made(model, loss, labelled())


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


# Sequences.


class Scan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decay, self.width = nn.Parameter(torch.rand(8)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h, found = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            width = F.softplus(self.width(x[:, t]))
            h = torch.exp(-width * self.decay) * h + width * x[:, t]
            found.append(h)
        return torch.stack(found, 1)


class LongConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(8, 6) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        product = torch.fft.rfft(x.transpose(1, 2), 12) * torch.fft.rfft(self.kernel, 12)
        return torch.fft.irfft(product, 12)[..., :6].transpose(1, 2)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.weights = nn.Linear(8, 4), nn.Parameter(torch.randn(4, 8, 8) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        share, which = self.gate(x).softmax(-1).topk(2, -1)
        each = torch.einsum("btd,edf->btef", x, self.weights)
        chosen = each.gather(2, which[..., None].expand(*which.shape, 8))
        return (chosen * (share / share.sum(-1, keepdim=True))[..., None]).sum(2)


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def turned(self, t: Tensor) -> Tensor:
        angles = torch.arange(t.shape[-2]).float()[:, None] * 10000 ** (-torch.arange(0, 4, 2).float() / 4)
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        return t * cos + torch.cat([-t[..., 2:], t[..., :2]], -1) * sin

    def forward(self, x: Tensor) -> Tensor:
        heads = [f(x).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.q, self.k, self.v)]
        q, k, v = self.turned(heads[0]), self.turned(heads[1]), heads[2]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).flatten(2)


for core in (Scan, LongConvolution, Experts, Rotary):
    CASES[core.__name__] = lambda core=core: made(Tokens(core()), next_token, texts())


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
def sinkhorn_transport() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        cost = torch.cdist(model(x), x[:, :3]).square()
        kernel, f, g = -cost / 0.5, torch.zeros(len(x)), torch.zeros(len(x))
        for _ in range(5):
            f = -torch.logsumexp(kernel + g, 1)
            g = -torch.logsumexp(kernel + f[:, None], 0)
        return ((kernel + f[:, None] + g).exp() * cost).sum()

    return made(mlp(), loss, labelled())


@case
def mixture_density() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits, means, widths = model(x).chunk(3, 1)
        of = torch.distributions.Normal(means, F.softplus(widths) + 0.01)
        mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=logits), of)
        return -mixture.log_prob(y.squeeze(1)).mean()

    return made(mlp(outputs=9), loss, measured())


@case
def angular_margin() -> Case:
    model = Parts(features=mlp(outputs=4), classes=nn.Parameter(torch.randn(3, 4)))

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        cos = F.linear(F.normalize(model.features(x)), F.normalize(model.classes)).clamp(-1 + 1e-6, 1 - 1e-6)
        return F.cross_entropy(torch.where(F.one_hot(y, 3).bool(), torch.cos(cos.acos() + 0.3), cos) * 8, y)

    return made(model, loss, labelled())


# Images and graphs.


class SmallUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, 2, 1)
        self.norm, self.head = nn.InstanceNorm2d(4, affine=True), nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = F.silu(self.fine(x))
        wide = F.interpolate(self.norm(self.coarse(fine)), scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(torch.cat([fine, wide], 1))


@case
def small_u_net() -> Case:
    return made(SmallUNet(), lambda model, x, y: F.l1_loss(model(x), x), images())


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
