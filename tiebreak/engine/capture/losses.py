"""Losses whose functions in torch read values of tensors, here in tensors of fixed shapes."""

from collections.abc import Sequence
from math import log, pi
from typing import Final

import torch
from torch import Tensor

_NEVER: Final = -1e30
"""The logarithm of what cannot happen: finite, so that no infinity cancels another in a gradient."""


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int], target_lengths: Tensor | Sequence[int],
    blank: int = 0, reduction: str = "mean", zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.ctc_loss`, in all its forms (Graves et al., ICML 2006).

    log_probs: (T, N, C) or (T, C); targets: (N, S), (S) or joined. Without an alignment the loss is infinite, or 0 if
    `zero_infinity` is set, and has no gradient. torch computes the lattice in one kernel; here it is unrolled over the
    time steps, in logarithms as there: some 55 operators for each, forward and backward.
    """
    batched = log_probs.dim() == 3
    log_probs = log_probs if batched else log_probs[:, None]
    times, count, _ = log_probs.shape
    steps, lengths = (torch.as_tensor(n).reshape(-1).expand(count) for n in (input_lengths, target_lengths))
    if batched and targets.dim() == 1:  # the targets of the batch, one behind the other
        widest = targets.numel() if isinstance(target_lengths, Tensor) else max(target_lengths, default=0)
        places = (lengths.cumsum(0) - lengths)[:, None] + torch.arange(widest)
        targets = targets[places.clamp(max=max(targets.numel() - 1, 0))] if widest else targets.reshape(count, 0)
    targets = targets.reshape(count, -1)

    # Blanks before, between and behind the labels; a label may follow another one at once, unless it is the same.
    blanks = torch.full((count, targets.shape[1] + 1), blank)
    labels = torch.stack([blanks[:, 1:], targets.long()], 2).flatten(1)
    labels = torch.cat([labels, blanks[:, :1]], 1)
    width = labels.shape[1]
    skips = torch.cat([torch.zeros(count, 2, dtype=torch.bool), labels[:, 2:] != labels[:, :-2]], 1)[:, :width]
    emitted = log_probs.gather(2, labels.expand(times, *labels.shape))
    never = torch.full((count, 2), _NEVER, dtype=log_probs.dtype)

    reached = torch.cat([emitted[0, :, :2], never[:, :1].expand(count, max(width - 2, 0))], 1)
    for time in range(1, times):
        before = torch.cat([never, reached], 1)
        jumped = torch.where(skips, before[:, :-2], _NEVER)
        following = torch.stack([reached, before[:, 1:-1], jumped]).logsumexp(0) + emitted[time]
        reached = torch.where((time < steps)[:, None], following, reached)
    ends = torch.stack([2 * lengths, (2 * lengths - 1).clamp(min=0)])
    final = reached.gather(1, ends.T).T
    found = -torch.stack([final[0], torch.where(lengths > 0, final[1], _NEVER)]).logsumexp(0)

    # torch's gradient is that of the numbers whose log_softmax this is, which adds exp(log_probs).
    inside = torch.arange(times)[:, None] < steps
    whole = (log_probs.exp().sum(2) * inside).sum(0)
    loss = torch.where(found < -_NEVER / 2, found + (whole - whole.detach()), 0.0 if zero_infinity else torch.inf)
    if reduction == "mean":
        return (loss / lengths.clamp(min=1)).mean()
    if reduction == "sum":
        return loss.sum()
    return loss if batched else loss[0]


def gaussian_nll_loss(
    input: Tensor,  # noqa: A002 (torch's name)
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """`torch.nn.functional.gaussian_nll_loss`, without its check that no variance is negative."""
    if not isinstance(var, Tensor):
        var = torch.full_like(input, var)
    if var.shape != input.shape and var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    var = var.clone()
    with torch.no_grad():
        var.clamp_(min=eps)  # the gradient goes on as if nothing had been clamped
    loss = 0.5 * (var.log() + (input - target).square() / var)
    if full:
        loss = loss + 0.5 * log(2 * pi)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss
