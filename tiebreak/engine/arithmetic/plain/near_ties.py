"""Ziv's test in torch, on any device, and what settles the elements that it leaves open.

`tiebreak.engine.arithmetic.plan.ziv` has the bound and near ties, with their proofs.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plain import exact
from tiebreak.engine.arithmetic.plain.exact import LEAST, TermReader, add_elements, pieces
from tiebreak.engine.arithmetic.plan.rounding import Round
from tiebreak.engine.arithmetic.plan.stats import Counts
from tiebreak.engine.arithmetic.plan.ziv import Collector


def decide(c: Tensor, e: Tensor, rounded: Round) -> tuple[Tensor, Tensor]:
    """Ziv's test of FP64 values within +-e: (f32 results, contiguous; mask of the undecided). Any shape."""
    high = rounded(torch.add(c, e), torch.contiguous_format)
    undecided = rounded(torch.sub(c, e)).ne(high)  # true for NaN
    return high.add_(0.0), undecided  # -0 + 0 = +0


def settle(
    c: Tensor, e: Tensor, elements: Tensor, reader: TermReader, rounded: Round, counts: Counts, near: Collector | None,
    *, numbers: Tensor | None = None, exactly: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """The exact results of open elements, f32, or RN(c) of those that are reported to `near`; all tensors 1-d.

    Elements with an error that is not finite have a term that is not, and are NaN. `elements`: their numbers for the
    reader. `numbers`: those in the result, if they are others. `exactly` computes the exact results of some of them
    (their positions in `elements`) in place of the reader.
    """
    counts.undecided += len(c)
    plain = rounded(c).add_(0.0)
    values = torch.where(e.isfinite(), plain, float("nan"))
    open_ = e.isfinite()
    if near is not None:
        logged = (e <= rounded.gaps(c).mul_(near.limit)) & c.isfinite()  # false for NaN
        if near.grid:
            at = logged.nonzero().view(-1)
            logged[at[on_grid(reader, elements[at])]] = False
        places = (elements if numbers is None else numbers)[logged].cpu().numpy()
        near.add(places, c[logged].cpu().numpy(), e[logged].cpu().numpy())
        counts.logged += len(places)
        values, open_ = torch.where(logged, plain, values), open_ & ~logged
    at = open_.nonzero().view(-1)
    if len(at):
        found = exactly(at) if exactly is not None else _settled(elements[at], reader, rounded)
        counts.undecided_twice += len(at)
        counts.double_rounded += int(plain[at].ne(found).sum())
        values[at] = found
    return values


def _settled(elements: Tensor, reader: TermReader, rounded: Round) -> Tensor:
    chunks = torch.split(elements, max(1, exact.ROW_BUDGET // reader.terms))
    return torch.cat([add_elements(reader, chunk)[0].rounded(rounded) for chunk in chunks])


def on_grid(reader: TermReader, elements: Tensor) -> Tensor:
    """The elements whose terms add exactly in any order: all are multiples of a number that FP64 can count them in."""
    found = [torch.zeros(0, dtype=torch.bool, device=elements.device)]
    for chunk in torch.split(elements, max(1, exact.ROW_BUDGET // reader.terms)):
        # The least exponent E with |terms| < 2^E, and S = 1.5 * 2^(E + k) for 2^k terms by definition.
        peak = torch.stack([terms.abs().amax(1) for terms in pieces(reader, chunk)]).amax(0)
        above = (peak.clamp_min_(2.0**LEAST).view(torch.int64) >> 52) - 1022 + max(1, (reader.count - 1).bit_length())
        shift = ((above + 1023 << 52) | (1 << 51)).view(torch.float64)[:, None]
        fits = [(terms + shift).sub_(shift).eq(terms).all(1) for terms in pieces(reader, chunk)]
        found.append(torch.stack(fits).all(0))
    return torch.cat(found)
