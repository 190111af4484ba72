"""Losses: gradients and bits of each; those of which torch reads values, as compositions, against its functions."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conftest import CaseCounter
from tests.engine.lowering_bench import make_task, relative, run_engine, run_integers, run_torch, same_bits
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.capture.substitutes import ctc_loss
from tiebreak.engine.capture.task import Task
from tiebreak.protocol.errors import ConfigurationError

CLASSES = 4
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 1.5])

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""loss(logits (B, CLASSES), classes (B,) with some 0, targets (B, CLASSES) between 0 and 1)."""


def _weights(x: Tensor) -> Tensor:
    return WEIGHTS.to(x.dtype)


LOSSES: dict[str, Loss] = {
    "cross entropy": lambda x, y, t: F.cross_entropy(x, y),
    "cross entropy, sum": lambda x, y, t: F.cross_entropy(x, y, reduction="sum"),
    "cross entropy, smoothed": lambda x, y, t: F.cross_entropy(x, y, label_smoothing=0.1),
    "cross entropy, ignored": lambda x, y, t: F.cross_entropy(x, y, ignore_index=0),
    "cross entropy, weighted": lambda x, y, t: F.cross_entropy(x, y, weight=_weights(x)),
    "cross entropy, all": lambda x, y, t: F.cross_entropy(
        x, y, weight=_weights(x), ignore_index=0, label_smoothing=0.1
    ),
    "cross entropy, each": lambda x, y, t: F.cross_entropy(x, y, reduction="none").square().sum(),
    "cross entropy, probabilities": lambda x, y, t: F.cross_entropy(x, t / t.sum(1, keepdim=True)),
    "cross entropy, places": lambda x, y, t: F.cross_entropy(x[:, :, None].expand(-1, -1, 2), y[:, None].expand(-1, 2)),
    "nll": lambda x, y, t: F.nll_loss(x.log_softmax(1), y),
    "nll, weighted": lambda x, y, t: F.nll_loss(x.log_softmax(1), y, weight=_weights(x), ignore_index=0),
    "mse": lambda x, y, t: F.mse_loss(x, t),
    "mse, sum": lambda x, y, t: F.mse_loss(x, t, reduction="sum"),
    "l1": lambda x, y, t: F.l1_loss(x, t),
    "l1, sum": lambda x, y, t: F.l1_loss(x, t, reduction="sum"),
    "smooth l1": lambda x, y, t: F.smooth_l1_loss(x, t, beta=0.5),
    "huber": lambda x, y, t: F.huber_loss(x, t, delta=0.5, reduction="sum"),
    "bce": lambda x, y, t: F.binary_cross_entropy(x.sigmoid(), t),
    "bce with logits": lambda x, y, t: F.binary_cross_entropy_with_logits(x, t),
    "bce with logits, weighted": lambda x, y, t: F.binary_cross_entropy_with_logits(
        x, t, weight=_weights(x), pos_weight=2 * _weights(x), reduction="sum"
    ),
    "kl": lambda x, y, t: F.kl_div(x.log_softmax(1), t, reduction="batchmean"),
    "kl, log target": lambda x, y, t: F.kl_div(
        x.log_softmax(1), t.log_softmax(1), reduction="batchmean", log_target=True
    ),
    "ctc": lambda x, y, t: F.ctc_loss(x.log_softmax(1), torch.tensor([1, 2]), torch.tensor(len(x)), torch.tensor(2)),
    "gaussian": lambda x, y, t: F.gaussian_nll_loss(x, t, t.square() * 1.5, full=True, eps=0.1),
    "gaussian, one variance": lambda x, y, t: F.gaussian_nll_loss(x, t, 0.5 + x[:, 0].square(), reduction="sum"),
    "gaussian, a number": lambda x, y, t: F.gaussian_nll_loss(x, t, 0.5, reduction="none").sin().mean(),
    "cosine embedding": lambda x, y, t: F.cosine_embedding_loss(x, t, torch.where(y > 1, 1, -1)),
    "triplet": lambda x, y, t: F.triplet_margin_loss(x, t, t.flip(0)),
    "margin": lambda x, y, t: F.margin_ranking_loss(x[:, 0], x[:, 1], t[:, 0].sign(), margin=0.1),
    "soft margin": lambda x, y, t: F.soft_margin_loss(x, (t - 0.5).sign()),
    "multi-label": lambda x, y, t: F.multilabel_soft_margin_loss(x, (t > 0.5).to(x.dtype)),
    "poisson": lambda x, y, t: F.poisson_nll_loss(x, t),
    "hinge": lambda x, y, t: F.hinge_embedding_loss(x, (t - 0.5).sign()),
}


class Heads(nn.Module):
    """Logits for each loss: the input times a vector of its own."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.heads = nn.ParameterList(torch.randn(CLASSES) for _ in range(count))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [x * head for head in self.heads]


def everything(model: nn.Module, x: Tensor, y: Tensor, t: Tensor) -> Tensor:
    total = x.new_zeros(())
    for logits, loss in zip(model(x), LOSSES.values(), strict=True):
        total = total + loss(logits, y, t)
    return total


@pytest.mark.slow
def test_loss_functions_match_pytorch_and_the_integer_reference(cases: CaseCounter) -> None:
    torch.manual_seed(1)
    data = {"x": torch.randn(3, CLASSES), "y": torch.tensor([3, 0, 1]), "t": torch.rand(3, CLASSES) * 0.9 + 0.05}
    task = make_task(Heads(len(LOSSES)), data, batch=3, loss=everything)
    captured = capture_task(task)
    found, expected = run_engine(captured), run_torch(task, captured.program, 1.0)
    for place, name in enumerate(LOSSES):
        key = f"model.heads.{place}"
        assert relative(found[key], expected[key]) < 2e-6, name
        assert not torch.equal(found[key], captured.state[key]), f"{name} has no gradient"
        cases()
    assert relative(found["loss"], expected["loss"]) < 2e-6
    assert not same_bits(found, run_integers(captured))


TIMES, SYMBOLS, LABELS, EXAMPLES = 6, 4, 3, 8


@pytest.mark.parametrize("form", ["padded", "padded, lists", "joined", "joined, lists"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_ctc_loss_matches_torch_in_values_and_gradients(form: str, reduction: str, cases: CaseCounter) -> None:
    """They agree where no alignment exists, without labels, and for numbers that are no logarithms of a softmax."""
    random = torch.Generator().manual_seed(len(form) + len(reduction))

    def draw(low: int, high: int, shape: tuple[int, ...] = ()) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=random)

    infinite = 0
    for trial in range(20):
        times, count, classes, width = (int(draw(least, most)) for least, most in ((1, 8), (1, 3), (2, 5), (1, 4)))
        blank = int(draw(0, classes - 1))
        x = torch.randn(times, count, classes, dtype=torch.float64, generator=random)
        labels = draw(0, classes - 2, (count, width))
        labels += labels >= blank
        steps, lengths = draw(1, times, (count,)), draw(0, width, (count,))
        if "joined" in form:
            labels = torch.cat([row[:length] for row, length in zip(labels, lengths.tolist(), strict=True)])
            if not len(labels):
                continue  # torch refuses that
        given = (steps.tolist(), lengths.tolist()) if "lists" in form else (steps, lengths)
        options = {"blank": blank, "reduction": reduction, "zero_infinity": trial % 4 > 1}
        found = []
        for function in (F.ctc_loss, ctc_loss):
            leaf = x.clone().requires_grad_()
            loss = function(leaf.log_softmax(2) if trial % 2 else -leaf.abs(), labels, *given, **options)  # type: ignore[operator]
            finite = torch.isfinite(loss)
            (loss[finite] * torch.arange(1.0, 1 + int(finite.sum()))).sum().backward()
            infinite += not finite.all()
            found.append((loss.detach(), leaf.grad if finite.all() else None))
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-10)
        cases()
    assert infinite


def test_ctc_loss_matches_torch_without_batch_or_labels() -> None:
    x = torch.randn(5, 4, dtype=torch.float64).log_softmax(1)
    one = (x, torch.tensor([1, 2]), torch.tensor(5), torch.tensor(2))
    for reduction in ("none", "mean"):
        torch.testing.assert_close(ctc_loss(*one, reduction=reduction), F.ctc_loss(*one, reduction=reduction))
    torch.testing.assert_close(ctc_loss(x, torch.empty(0, dtype=torch.int64), [5], [0]), -x[:, 0].sum())


def recogniser(loss: nn.Module) -> Task:
    data = {
        "x": torch.randn(EXAMPLES, TIMES, 5),
        "labels": torch.randint(1, SYMBOLS, (EXAMPLES, LABELS)),
        "steps": torch.randint(LABELS + 2, TIMES + 1, (EXAMPLES,)),
        "lengths": torch.arange(EXAMPLES) % LABELS + 1,
    }
    data["labels"][:, 1] = data["labels"][:, 0] % (SYMBOLS - 1) + 1  # so that each has an alignment
    of_model = lambda model, x, *rest: loss(model(x).log_softmax(2).transpose(0, 1), *rest)  # noqa: E731
    return make_task(nn.Linear(5, SYMBOLS), data, 4, rate=0.5, loss=of_model)


@pytest.mark.slow
def test_a_model_with_ctc_loss_trains_as_in_eager_pytorch() -> None:
    torch.manual_seed(0)
    assert checked(recogniser(nn.CTCLoss())).program.body


def test_calling_torch_ctc_loss_directly_is_refused_with_advice() -> None:
    with pytest.raises(ConfigurationError, match=r"call it as torch\.nn\.functional\.ctc_loss"):
        capture_task(recogniser(torch.ctc_loss))  # type: ignore[arg-type]
