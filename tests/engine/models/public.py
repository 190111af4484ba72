"""Published training scripts, small: self-supervision, generative models, physics, graphs, sequences, ranks.

Each case makes a model, its loss, an optimizer and the data of 16 examples; all of them are one batch.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
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
def moving_teacher() -> Case:
    model = Parts(student=mlp(), teacher=mlp().requires_grad_(False))

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            for slow, own in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
                slow.lerp_(own, 0.1)
            aim = model.teacher(x)
        return F.cross_entropy(model.student(x), y) + F.mse_loss(model.student(x), aim)

    return made(model, loss, labelled(), lambda m: adam(m.student))


@case
def contrast_with_a_queue() -> Case:
    queue = F.normalize(torch.randn(2 * N, 4), dim=1)
    model = Parts(query=nn.Linear(5, 4), queue=queue, place=torch.zeros(1, dtype=torch.long))

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        query = F.normalize(model.query(x), dim=1)
        key = query.detach().flip(0)
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ model.queue.clone().T], 1) / 0.2
        model.queue[(model.place + torch.arange(len(x))) % len(model.queue)] = key
        model.place[:] = (model.place + len(x)) % len(model.queue)
        return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))

    return made(model, loss, labelled(), sgd)


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
def barlow_twins() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        a, b = ((z - z.mean(0)) / z.std(0) for z in (model(x), model(x + 0.1)))
        c = a.T @ b / len(x)
        off = c.flatten()[:-1].view(2, 4)[:, 1:]
        return (torch.diagonal(c) - 1).square().sum() + 0.005 * off.square().sum()

    return made(mlp(), loss, labelled())


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


@case
def temperature_by_a_counter() -> Case:
    model = Parts(net=mlp(), count=torch.zeros((), dtype=torch.long))

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        model.count += 1
        return F.cross_entropy(model.net(x) * torch.clamp(1 - 0.02 * model.count, min=0.5), y)

    return made(model, loss, labelled())


@case
def buffers_that_change_places() -> Case:
    model = Parts(layer=nn.Linear(5, 3), a=torch.zeros(3), b=torch.ones(3))

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        model.a, model.b = model.b, model.a + 0.1
        return F.cross_entropy(model.layer(x) + model.a, y)

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
def physics_of_a_pendulum() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        t = x[:, :1].clone().requires_grad_()
        u = model(t)
        (first,) = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)
        (second,) = torch.autograd.grad(first, t, torch.ones_like(first), create_graph=True)
        return (second + u).square().mean() + (model(torch.zeros(1, 1)) - 1).square().mean()

    return made(mlp(inputs=1, outputs=1), loss, measured())


@case
def learning_to_learn() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        own = dict(model.named_parameters())
        inner = F.cross_entropy(torch.func.functional_call(model, own, (x[:8],)), y[:8])
        slopes = torch.autograd.grad(inner, list(own.values()), create_graph=True)
        fast = {name: p - 0.1 * slope for (name, p), slope in zip(own.items(), slopes, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, fast, (x,)), y)

    return made(mlp(), loss, labelled())


@case
def losses_balanced_by_their_gradients() -> Case:
    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        a, b = F.cross_entropy(model(x), y), model(x).square().mean()
        sizes = [torch.autograd.grad(v, model[2].weight, retain_graph=True)[0].norm() for v in (a, b)]
        return a + (sizes[0] / (sizes[1] + 1e-6)).detach() * b

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


class Standardised(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = (w - w.mean((1, 2), keepdim=True)) / (w.std((1, 2), keepdim=True) + 1e-5)
        return F.conv1d(x, w, self.bias, padding=1)


@case
def standardised_weights() -> Case:
    model = nn.Sequential(Standardised(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(20, 3))
    return made(model, lambda model, x, y: F.cross_entropy(model(x[:, None]), y), labelled())


# Optimizers that people write.


class Own(Optimizer):
    def __init__(self, parameters: Any, **settings: float) -> None:
        super().__init__(parameters, settings)

    def each(self) -> Iterator[tuple[dict[str, Any], Tensor, Tensor, dict[str, Any]]]:
        for group in self.param_groups:
            for p in group["params"]:
                yield group, p, p.grad, self.state[p]


class Lamb(Own):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group, p, gradient, state in self.each():
            if not state:
                state.update(m=torch.zeros_like(p), v=torch.zeros_like(p), t=0)
            state["t"] += 1
            state["m"].mul_(0.9).add_(gradient, alpha=0.1)
            state["v"].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            size = (state["v"] / (1 - 0.999 ** state["t"])).sqrt() + 1e-6
            move = state["m"] / (1 - 0.9 ** state["t"]) / size + 0.01 * p
            own, other = p.norm(), move.norm()
            trust = torch.where((own > 0) & (other > 0), own / other, torch.ones_like(own))
            p.add_(move * trust, alpha=-group["lr"])


class ScheduleFree(Own):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group, p, gradient, state in self.each():
            if not state:
                state.update(z=p.clone(), x=p.clone(), t=0)
            state["t"] += 1
            state["z"].sub_(gradient, alpha=group["lr"])
            state["x"].lerp_(state["z"], 1 / state["t"])
            p.copy_(state["x"] * 0.9 + state["z"] * 0.1)


class Lookahead(Own):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group, p, gradient, state in self.each():
            state["t"] = state.get("t", 0) + 1
            slow = state.setdefault("slow", p.clone())
            p.add_(gradient, alpha=-group["lr"] * min(1.0, state["t"] / 10))
            if state["t"] % 6 == 0:
                slow.lerp_(p, 0.5)
                p.copy_(slow)


class AdaBelief(Own):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group, p, gradient, state in self.each():
            if not state:
                state.update(m=torch.zeros_like(p), s=torch.zeros_like(p))
            state["m"].mul_(0.9).add_(gradient, alpha=0.1)
            surprise = gradient - state["m"]
            state["s"].mul_(0.99).addcmul_(surprise, surprise, value=0.01).add_(1e-8)
            p.addcdiv_(state["m"], state["s"].sqrt(), value=-group["lr"])


class RootOfSteps(Own):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group, p, gradient, _ in self.each():
            group["count"] = group.get("count", 0) + 1
            p.grad = gradient.sign() if gradient.ndim > 1 else gradient
            p.add_(p.grad, alpha=-group["lr"] / math.sqrt(group["count"]))


for kind, rate in {Lamb: 0.01, ScheduleFree: 0.1, Lookahead: 0.1, AdaBelief: 0.01, RootOfSteps: 0.02}.items():
    CASES[kind.__name__] = lambda kind=kind, rate=rate: made(
        mlp(), classified, labelled(), lambda m: kind(m.parameters(), lr=rate)
    )


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


@case
def conditional_random_field() -> Case:
    model = Parts(embedding=nn.Embedding(11, 4), moves=nn.Parameter(torch.randn(4, 4) * 0.1))

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        y, scores = y % 4, model.embedding(x)
        forward = scores[:, 0]
        for t in range(1, scores.shape[1]):
            forward = torch.logsumexp(forward[:, :, None] + model.moves, 1) + scores[:, t]
        gold = scores.gather(2, y[..., None]).squeeze(2).sum(1) + model.moves[y[:, :-1], y[:, 1:]].sum(1)
        return (torch.logsumexp(forward, 1) - gold).mean()

    return made(model, loss, texts())


@lru_cache
def triangle(size: int) -> Tensor:
    return torch.tril(torch.ones(size, size))


@case
def a_mask_kept_by_lru_cache() -> Case:
    return made(mlp(), lambda model, x, y: F.cross_entropy(triangle(len(x)) @ model(x) / len(x), y), labelled())


# Ranks, distributions, transport.


@case
def lovasz_hinge() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        positive = (y % 2).float()
        errors, order = torch.sort(1 - model(x).squeeze(1) * (2 * positive - 1), descending=True)
        sorted_ = positive[order]
        jaccard = 1 - (sorted_.sum() - sorted_.cumsum(0)) / (sorted_.sum() + (1 - sorted_).cumsum(0))
        return F.relu(errors) @ torch.cat([jaccard[:1], jaccard[1:] - jaccard[:-1]])

    return made(mlp(outputs=1), loss, labelled())


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
def evidence_of_a_dirichlet() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        alpha = F.softplus(model(x)) + 1
        total = alpha.sum(1, keepdim=True)
        fit = F.one_hot(y, 3).float() * (torch.digamma(total) - torch.digamma(alpha))
        return fit.sum(1).mean() + 0.01 * (torch.lgamma(total) - torch.lgamma(alpha).sum(1, keepdim=True)).mean()

    return made(mlp(), loss, labelled())


@case
def quantiles() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        error, q = y - model(x), torch.tensor([0.1, 0.5, 0.9])
        middle = F.huber_loss(model(x)[:, 1:2], y, delta=0.5)
        return torch.maximum(q * error, (q - 1) * error).mean() + middle + torch.quantile(error.abs(), 0.7)

    return made(mlp(), loss, measured())


@case
def hardest_half_of_the_examples() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none").topk(N // 2).values.mean()

    return made(mlp(), loss, labelled())


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
def upsampling_both_ways() -> Case:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.PixelShuffle(2), nn.ConvTranspose2d(1, 2, 4, 2, 1), nn.PReLU(),
        nn.AvgPool2d(2), nn.Conv2d(2, 1, 1),
    )  # fmt: skip
    return made(model, lambda model, x, y: F.smooth_l1_loss(model(x), x), images())


@case
def structural_similarity() -> Case:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out, window = model(x), torch.ones(1, 1, 3, 3) / 9
        a, b, ab, aa, bb = (F.conv2d(t, window) for t in (out, x, out * x, out * out, x * x))
        same = (2 * a * b + 0.01) * (2 * (ab - a * b) + 0.03)
        return 1 - (same / ((a**2 + b**2 + 0.01) * (aa - a**2 + bb - b**2 + 0.03))).mean()

    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GELU(), nn.Conv2d(4, 1, 3, padding=1))
    return made(model, loss, images())


@case
def squeezed_and_pooled() -> Case:
    squeeze = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 2, 1), nn.Hardswish(), nn.Conv2d(2, 6, 1), nn.Sigmoid()
    )
    first = nn.Conv2d(1, 6, 3, padding="same", padding_mode="reflect")
    model = Parts(first=first, squeeze=squeeze, power=nn.Parameter(torch.tensor(3.0)), head=nn.Linear(54, 3))

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        f = F.relu(model.first(x))
        pooled = F.adaptive_avg_pool2d((f * model.squeeze(f)).clamp(min=1e-6).pow(model.power), 3).pow(1 / model.power)
        return F.cross_entropy(model.head(pooled.flatten(1)), y)

    return made(model, loss, images())


@case
def images_of_bytes() -> Case:
    data = {"x": torch.randint(0, 256, (N, 1, 8, 8), dtype=torch.uint8), "y": (torch.arange(N) % 3).to(torch.int32)}
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    return made(model, lambda model, x, y: F.cross_entropy(model(x.float() / 255), y.long()), data)


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
