"""Recurrent models in plain torch."""

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conftest import CaseCounter
from tests.engine.models.harness import check, randomised, task_of, tokens
from tests.parts import slow_except

VOCABULARY = 9


class Reader(nn.Module):
    def __init__(self, network: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6, padding_idx=0)
        self.network = network
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.network(self.embedding(ids))
        logits: Tensor = self.head(hidden)
        return logits


def next_token(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


NETWORKS = {
    "lstm": (lambda: nn.LSTM(6, 5, batch_first=True), 5),
    "lstm, two layers, both ways, dropout": (
        lambda: nn.LSTM(6, 4, num_layers=2, bidirectional=True, dropout=0.25, batch_first=True), 8,
    ),
    "gru": (lambda: nn.GRU(6, 5, batch_first=True), 5),
    "rnn": (lambda: nn.RNN(6, 5, batch_first=True), 5),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_except(NETWORKS, "lstm"))
def test_recurrent_models_are_trained_audited_and_refereed(name: str, cases: CaseCounter) -> None:
    make, width = NETWORKS[name]
    model = randomised(Reader(make(), width), seed=2, scale=0.2)
    check(task_of(model, next_token, {"ids": tokens(3, 6, 5, vocabulary=VOCABULARY)}, 3), cases)
