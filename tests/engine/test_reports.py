"""Steps that read values of tensors: captured if nothing but reports depends on them, refused otherwise."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tiebreak
from tiebreak import ConfigurationError

LINES: list[object] = []
Loss = Callable[[Any, Tensor, Tensor], Tensor]


def captured(loss: Loss) -> Any:
    torch.manual_seed(0)
    model, drawn = nn.Linear(4, 3), torch.Generator().manual_seed(1)
    data = {"x": torch.randn(20, 4, generator=drawn), "y": torch.randint(0, 3, (20,), generator=drawn)}
    settings: dict[str, Any] = {"optimizer": tiebreak.SGD(lr=0.1), "batch": 6, "steps": 3}
    return tiebreak.capture(tiebreak.make_task(model, loss, data=data, **settings))


def logs(model: Any, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    loss = F.cross_entropy(out, y)
    hits, count = (out.argmax(-1) == y).sum(), (y > 0).sum()
    share = (hits / count).item() if count > 0 else 0.0
    kept = out.detach()[y == 1].sum().item() / count.item() if count.item() > 0 else 0.0
    LINES[:] = [share, max(share, kept, 0.1), *y.tolist(), hits.item(), loss.item()]
    LINES.clear()
    return loss


def checks(model: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    if torch.isnan(loss):
        LINES[:] = ["no number"]
    return loss


def plain(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("loss", [logs, checks])
def test_what_only_reports_read_leaves_no_trace(loss: Loss) -> None:
    found = captured(loss)
    assert found.check == "full"
    assert found.program.root == captured(plain).program.root


def spikes(model: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = plain(model, x, y)
    return loss * 0.1 if loss.item() > 1e4 else loss


def divides(model: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = plain(model, x, y)
    return loss / loss.item()


def picks(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x)[y > 0], y[y > 0])


def is_one_number(model: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = plain(model, x, y)
    return 2 * loss if 2 * y.sum().item() + 1 == 7 else loss


def looks_up(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return plain(model, x, y) * {10**6: 0.5}.get(y.sum().item(), 1.0)


def makes_a_text(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return plain(model, x, y) * getattr(model, f"rate{y.sum().item()}", 1.0)


def converts(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return plain(model, x, y) * {1e6: 0.5}.get(float(y.sum()), 1.0)


def counts_truths(model: Any, x: Tensor, y: Tensor) -> Tensor:
    number = y.sum().item()
    return plain(model, x, y) * ((number > 1) + (number > 10**6))


def raises(model: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = plain(model, x, y)
    if not torch.isfinite(loss):
        raise ValueError
    return loss


def skips_a_gradient(model: Any, x: Tensor, y: Tensor) -> Tensor:
    """The same loss either way, but not the same gradient."""
    loss = plain(model, x, y)
    return loss if loss.item() < 1e4 else loss.detach() + 0 * loss


DEPENDING = [
    spikes, divides, picks, is_one_number, looks_up, makes_a_text, counts_truths, raises, converts, skips_a_gradient,
]  # fmt: skip


@pytest.mark.parametrize("loss", DEPENDING)
def test_a_step_that_depends_on_what_it_reads_is_refused(loss: Loss) -> None:
    with pytest.raises(ConfigurationError, match="it needs the values of tensors"):
        captured(loss)
