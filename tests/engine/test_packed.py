"""Packed sequences, which stay padded in a program, against eager PyTorch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tests.engine.lowering_bench import make_task
from tests.engine.optimizer_cases import against_torch
from tests.parts import slow_except
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.capture.task import Task
from tiebreak.protocol.errors import ConfigurationError

TIMES = 4
DATA = {"x": torch.sin(torch.arange(12.0 * TIMES * 4)).reshape(12, TIMES, 4), "n": 1 + torch.arange(12) * 5 % TIMES}


class Reader(nn.Module):
    """Reads sequences of the lengths n, and gives the last states and the outputs at all times."""

    def __init__(self, layer: nn.Module, start: float = 0.0, *, ordered: bool = False) -> None:
        super().__init__()
        self.layer, self.ordered = layer, ordered
        ways = layer.num_layers * (1 + layer.bidirectional)
        sizes = [getattr(layer, "proj_size", 0) or layer.hidden_size, layer.hidden_size]
        self.start = nn.ParameterList(nn.Parameter(torch.full((ways, 1, size), start)) for size in sizes)
        self.has_start = bool(start)

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        if self.ordered:
            n, order = n.sort(descending=True)
            x = x[order]
        first = self.layer.batch_first
        packed = pack_padded_sequence(x if first else x.transpose(0, 1), n, first, enforce_sorted=self.ordered)
        start = tuple(s.expand(-1, len(x), -1).contiguous() for s in self.start) if self.has_start else None
        if start and not isinstance(self.layer, nn.LSTM):
            start = start[0]
        found, states = self.layer(packed, start)
        padded, lengths = pad_packed_sequence(found, first, padding_value=0.5, total_length=TIMES + 1)
        ramp = torch.cos(torch.arange(padded.numel()).to(x.dtype)).reshape(padded.shape)
        ends = [
            (s * (1 + lengths[:, None])).square().mean() for s in (states if isinstance(states, tuple) else [states])
        ]
        return (padded * ramp).mean() + sum(ends)


def reading(model: nn.Module, **changes: Any) -> Task:
    return make_task(model, DATA, 4, loss=lambda m, x, n: m(x, n), rate=0.02, **changes)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "lstm, projected both ways": lambda: Reader(nn.LSTM(4, 3, 2, proj_size=2, bidirectional=True), 0.2),
    "gru": lambda: Reader(nn.GRU(4, 3, 2, bias=False, batch_first=True)),
    "rnn, relu": lambda: Reader(nn.RNN(4, 3, nonlinearity="relu", batch_first=True), 0.3, ordered=True),
}


@pytest.mark.parametrize("name", slow_except(LAYERS))
def test_recurrent_layers_on_packed_sequences_match_eager_pytorch(name: str) -> None:
    torch.manual_seed(0)
    made = reading(LAYERS[name](), steps=20)
    assert checked(made).check == "full"
    ours, theirs = against_torch(made)
    for key, tensor in theirs.items():
        torch.testing.assert_close(ours[key].double(), tensor, rtol=2e-5, atol=2e-5)


class Using(nn.Module):
    def __init__(self, use: Callable[[PackedSequence, nn.Module], Tensor], **settings: Any) -> None:
        super().__init__()
        self.layer, self.use = nn.GRU(4, 3, batch_first=True, **settings), use

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        return self.use(pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False), self.layer).square().mean()


def dropped(packed: PackedSequence, layer: nn.Module) -> Tensor:
    packed = PackedSequence(F.dropout(packed.data), *packed[1:])
    return layer(packed)[1]


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "data": (lambda: Using(lambda packed, _: packed.data), "reads inside of a packed sequence"),
    "an output": (lambda: Using(lambda packed, layer: layer(packed)[0].to("cpu")[0]), "reads inside of a packed"),
    "sizes": (lambda: Using(lambda packed, _: packed.batch_sizes.float()), "reads inside of a packed sequence"),
    "a shape": (lambda: Using(lambda packed, layer: layer(packed)[1] / len(packed.data)), "reads inside of a packed"),
    "a part": (lambda: Using(dropped), "and a mask to everything else"),
    "no layer": (lambda: Using(lambda packed, layer: layer(packed.data)[1]), "reads inside of a packed sequence"),
    "a cell": (
        lambda: Using(lambda packed, _: nn.LSTMCell(4, 3).requires_grad_(False)(packed.data)[1]),
        "reads inside of a packed",
    ),
    "the longest": (lambda: Using(lambda p, layer: pad_packed_sequence(layer(p)[0])[0]), "total_length=x.shape.1"),
    "dropout": (lambda: Using(lambda p, layer: layer(p)[1], num_layers=2, dropout=0.1), "set dropout to 0, or stack"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_steps_that_depend_on_the_packed_shape_are_refused(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ConfigurationError, match=message):
        capture_task(replace(reading(make()), steps=1))
