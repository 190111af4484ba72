"""Losses of which torch reads values: the compositions against torch's functions in FP64, and captured."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conftest import CaseCounter
from tests.engine.lowering_bench import make_task
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.capture.substitutes import ctc_loss
from tiebreak.engine.capture.task import Task
from tiebreak.protocol.errors import ConfigurationError

TIMES, CLASSES, LABELS, EXAMPLES = 6, 4, 3, 8


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
        "labels": torch.randint(1, CLASSES, (EXAMPLES, LABELS)),
        "steps": torch.randint(LABELS + 2, TIMES + 1, (EXAMPLES,)),
        "lengths": torch.arange(EXAMPLES) % LABELS + 1,
    }
    data["labels"][:, 1] = data["labels"][:, 0] % (CLASSES - 1) + 1  # so that each has an alignment
    of_model = lambda model, x, *rest: loss(model(x).log_softmax(2).transpose(0, 1), *rest)  # noqa: E731
    return make_task(nn.Linear(5, CLASSES), data, 4, rate=0.5, loss=of_model)


@pytest.mark.slow
def test_a_model_with_ctc_loss_trains_as_in_eager_pytorch() -> None:
    torch.manual_seed(0)
    assert checked(recogniser(nn.CTCLoss())).program.body


def test_calling_torch_ctc_loss_directly_is_refused_with_advice() -> None:
    with pytest.raises(ConfigurationError, match=r"call it as torch\.nn\.functional\.ctc_loss"):
        capture_task(recogniser(torch.ctc_loss))  # type: ignore[arg-type]
