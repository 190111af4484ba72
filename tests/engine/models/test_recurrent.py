"""Recurrent models in plain torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conftest import CaseCounter
from tests.engine.models.harness import OPTIMIZER_FOR_TESTS, check, randomised, tokens
from tests.parts import slow_except
from tiebreak.engine.capture.task import Batch, Rows, Task

VOCABULARY = 9


class Reader(nn.Module):
    """Embedding, a recurrent network over the sequence, next-token logits."""

    def __init__(self, network: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6, padding_idx=0)
        self.network = network
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.network(self.embedding(ids))
        logits: Tensor = self.head(hidden)
        return logits


class Stepwise(nn.Module):
    """A cell, called once per position; an LSTM's has a second state."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        blank = x.new_zeros(x.shape[0], self.cell.hidden_size)
        state = (blank, blank) if isinstance(self.cell, nn.LSTMCell) else blank
        out = []
        for position in x.unbind(1):
            state = self.cell(position, state)
            out.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(out, 1), None


def next_token(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


NETWORKS = {
    "lstm": (lambda: nn.LSTM(6, 5, batch_first=True), 5),
    "lstm, two layers, both ways, dropout": (
        lambda: nn.LSTM(6, 4, num_layers=2, bidirectional=True, dropout=0.25, batch_first=True), 8,
    ),
    "gru": (lambda: nn.GRU(6, 5, batch_first=True), 5),
    "rnn": (lambda: nn.RNN(6, 5, batch_first=True), 5),
    "lstm cell": (lambda: Stepwise(nn.LSTMCell(6, 5)), 5),
    "gru cell": (lambda: Stepwise(nn.GRUCell(6, 5)), 5),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_except(NETWORKS, "lstm"))
def test_recurrent(name: str, cases: CaseCounter) -> None:
    make, width = NETWORKS[name]
    task = Task(
        name="sequences",
        model=randomised(Reader(make(), width), seed=2, scale=0.2),
        loss=next_token,
        optimizer=OPTIMIZER_FOR_TESTS,
        data={"ids": tokens(3, 6, 5, vocabulary=VOCABULARY)},
        batch=Batch(size=3, examples=Rows(names=("ids",))),
        steps=4,
        checkpoint_interval=1,
        seed=4,
    )
    check(task, cases)
