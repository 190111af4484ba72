"""Proof of learning as it was published, and the attacks on it: a study of its own, for `benchmarks.ownership`.

Jia et al. (2021, arXiv 2103.05633): a prover logs weights every k steps, and with them the batches and rates of these
steps. A verifier takes, in each epoch, the `top` segments in which the weights moved furthest, replays them from the
logged weights, and accepts if what comes out is within delta of the next logged weights. The distance has to leave room
for what other hardware does to the same steps; it is measured in units of d_ref, the mean distance between the final
weights of independent trainings.

A thief has final weights, the data, and no training. `synthesised` is Zhang et al. (2022, arXiv 2108.09454): batches
are optimised, as adversarial examples are, until a step from one made-up state ends near the next. `infinitesimal` and
`post_hoc` are Fang et al. (2023, arXiv 2208.03567): a rate of nearly 0 with states closer together than delta, and a
path made up backwards from the end, behind as many larger true updates as the verifier looks at.

Weights are one vector: a perceptron with one hidden layer on images of P pixels, of C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

HIDDEN: Final = 32
BATCH: Final = 32
Batch = tuple[Tensor, Tensor]
"""Images [B, P] and labels [B]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The weights before the first and after each segment; the batches of each segment's steps, and their rate."""

    weights: Sequence[Tensor]
    batches: Sequence[Sequence[Batch]]
    rates: Sequence[float]
    gradients: int
    """The number of gradients of a batch that the prover computed: its cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """distance: the largest between a replayed segment and the logged weights. looked: the segments replayed."""

    accepted: bool
    distance: float
    looked: tuple[int, ...]


def new_weights(seed: int, pixels: int, classes: int) -> Tensor:
    """Initial weights, scaled by the number of inputs of each layer."""
    generator = torch.Generator().manual_seed(seed)
    parts = [(pixels, HIDDEN), (HIDDEN, classes)]
    drawn = [torch.randn(rows * columns, generator=generator) / rows**0.5 for rows, columns in parts]
    return torch.cat([drawn[0], torch.zeros(HIDDEN), drawn[1], torch.zeros(classes)])


def layers(weights: Tensor, pixels: int, classes: int) -> list[Tensor]:
    """The vector as weight [H, P], bias [H], weight [C, H], bias [C], as `torch.nn.Linear` has them."""
    sizes = [pixels * HIDDEN, HIDDEN, HIDDEN * classes, classes]
    first, bias, second, last = torch.split(weights, sizes)
    return [first.view(HIDDEN, pixels), bias, second.view(classes, HIDDEN), last]


def logits(weights: Tensor, images: Tensor) -> Tensor:
    pixels = images.shape[1]
    classes = (len(weights) - HIDDEN * (pixels + 1)) // (HIDDEN + 1)
    first, bias, second, last = layers(weights, pixels, classes)
    return F.linear(F.relu(F.linear(images, first, bias)), second, last)


def gradient(weights: Tensor, batch: Batch, *, differentiable: bool = False) -> Tensor:
    """The gradient of the mean cross entropy. differentiable: by the batch, too."""
    at = weights.detach().requires_grad_()
    loss = F.cross_entropy(logits(at, batch[0]), batch[1])
    return torch.autograd.grad(loss, at, create_graph=differentiable)[0]


def replay(weights: Tensor, batches: Sequence[Batch], rate: float, noise: torch.Generator | None = None) -> Tensor:
    """The weights after a segment. noise: takes the rows of each batch in another order, as other hardware may."""
    for images, labels in batches:
        order = torch.arange(len(labels)) if noise is None else torch.randperm(len(labels), generator=noise)
        weights = weights - rate * gradient(weights, (images[order], labels[order]))
    return weights


def drawn_batches(data: Batch, segments: int, every: int, seed: int) -> list[list[Batch]]:
    """`every` batches for each segment, in the random order of an epoch."""
    generator, rows = torch.Generator().manual_seed(seed), list[int]()
    while len(rows) < segments * every * BATCH:
        rows += torch.randperm(len(data[1]), generator=generator).tolist()
    found = [rows[start : start + BATCH] for start in range(0, segments * every * BATCH, BATCH)]
    made = [(data[0][index], data[1][index]) for index in found]
    return [made[start : start + every] for start in range(0, len(made), every)]


def honest(start: Tensor, batches: Sequence[Sequence[Batch]], rate: float) -> Proof:
    """The proof of a training from `start` that took each batch once, at one rate."""
    weights = [start]
    for segment in batches:
        weights.append(replay(weights[-1], segment, rate))
    steps = sum(map(len, batches))
    return Proof(weights=weights, batches=batches, rates=[rate] * len(batches), gradients=steps)


def verify(proof: Proof, *, epoch: int, top: int, delta: float, noise: torch.Generator) -> Verdict:
    """The published verification. epoch: segments in one. top: looked at in each. delta: of the distance."""
    moved = [float((after - before).norm()) for before, after in zip(proof.weights, proof.weights[1:], strict=False)]
    looked = list[int]()
    for first in range(0, len(moved), epoch):
        ranked = sorted(range(first, min(first + epoch, len(moved))), key=lambda place: -moved[place])
        looked += ranked[:top]
    far = [
        float((replay(proof.weights[n], proof.batches[n], proof.rates[n], noise) - proof.weights[n + 1]).norm())
        for n in sorted(looked)
    ]
    return Verdict(accepted=max(far) <= delta, distance=max(far), looked=tuple(sorted(looked)))


# ---------------------------------------------------------------- the attacks


def path(start: Tensor, end: Tensor, pieces: int) -> list[Tensor]:
    """States on the straight line, both ends included."""
    return [torch.lerp(start, end, place / pieces) for place in range(pieces)] + [end]


def infinitesimal(
    stolen: Tensor, start: Tensor, batches: Sequence[Sequence[Batch]], rate: float = 1e-12
) -> Proof:  # fmt: skip
    """True batches at a rate of nearly 0: a replay stays where it is, and the next state is within delta of that."""
    states = path(start, stolen, len(batches))
    return Proof(weights=states, batches=batches, rates=[rate] * len(batches), gradients=0)


def synthesised(
    stolen: Tensor, start: Tensor, batches: Sequence[Sequence[Batch]], rate: float, *, delta: float, tries: int
) -> Proof:
    """Images are optimised until one step from each state ends within 0.95 delta of the next; labels stay.

    One batch for each segment. tries: steps of Adam at most, for a segment.
    """
    states, made, cost = path(start, stolen, len(batches)), list[list[Batch]](), 0
    for before, after, segment in zip(states, states[1:], batches, strict=False):
        images, labels = segment[0]
        image = images.clone().requires_grad_()
        adam = torch.optim.Adam([image], lr=0.01)
        for _ in range(tries):
            cost += 2  # a gradient of a gradient
            miss = (before - rate * gradient(before, (image, labels), differentiable=True) - after).norm()
            if float(miss.detach()) <= 0.95 * delta:
                break
            adam.zero_grad()
            miss.backward()
            adam.step()
        made.append([(image.detach(), labels)])
    return Proof(weights=states, batches=made, rates=[rate] * len(made), gradients=cost)


def post_hoc(stolen: Tensor, start: Tensor, batches: Sequence[Sequence[Batch]], *, epoch: int, top: int) -> Proof:
    """Each epoch holds `top` true updates, at rates that make each longer than any piece of the made-up rest.

    With e epochs of p pieces in addition to the true updates, a piece is shorter than a true update of length m if
    m > |stolen - start| / (e (p - top)).
    """
    epochs, pieces = len(batches) // epoch, epoch - top
    length = 1.2 * float((stolen - start).norm()) / (epochs * (pieces - top))
    anchors, states, rates, cost = path(start, stolen, epochs), [start], list[float](), 0
    for number in range(epochs):
        for segment in batches[number * epoch : number * epoch + top]:
            rate, end = length / float(gradient(states[-1], segment[0]).norm()), states[-1]
            while float((end - states[-1]).norm()) < length:  # else a verifier would look at the pieces
                rate *= 1.5
                end, cost = replay(states[-1], segment, rate), cost + len(segment)
            rates.append(rate)
            states.append(end)
        states += path(states[-1], anchors[number + 1], pieces)[1:]
        rates += [rates[-1]] * pieces
    return Proof(weights=states, batches=batches, rates=rates, gradients=cost)
