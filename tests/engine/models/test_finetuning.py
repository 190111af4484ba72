"""Fine-tuning: frozen parameters and low-rank adapters (LoRA), both in plain torch."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from tests.conftest import CaseCounter
from tests.engine.models.harness import check, randomised, task_of, tokens, train
from tests.engine.models.test_vision import image_task, resnet
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.compile import MODEL, OPTIMIZER, compile_task
from tiebreak.engine.capture.task import Task
from tiebreak.protocol.program.isa import Opcode

pytestmark = pytest.mark.slow


class LowRank(nn.Module):
    """x W' + (x A B) * (alpha / rank) on a frozen linear layer (or GPT-2's Conv1D); B starts at zero."""

    def __init__(self, frozen: nn.Module, rank: int, alpha: float, dropout: float = 0.0) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        weight = frozen.weight if isinstance(frozen, Conv1D) else frozen.weight.T
        self.a = nn.Parameter(torch.randn(weight.shape[0], rank) / weight.shape[0] ** 0.5)
        self.b = nn.Parameter(torch.zeros(rank, weight.shape[1]))
        self.dropout = nn.Dropout(dropout)
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.frozen(x) + self.dropout(x) @ self.a @ self.b * self.scale
        return adapted


def adapt(model: nn.Module, names: tuple[str, ...], rank: int = 2) -> nn.Module:
    """The model, all frozen, with adapters on the submodules of these names."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in names:
                setattr(module, name, LowRank(child, rank, alpha=4.0, dropout=0.1))
    return model


def next_token(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(input_ids=ids[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def gpt2() -> nn.Module:
    config = GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=13, n_positions=8)
    return randomised(GPT2LMHeadModel(config), seed=1)


def lora_task() -> Task:
    torch.manual_seed(2)
    return task_of(adapt(gpt2(), ("c_attn", "c_fc")), next_token, {"ids": tokens(3, 4, 8, vocabulary=13)})


def test_low_rank_adapters_train_and_nothing_else_does(cases: CaseCounter) -> None:
    task = lora_task()
    trained = check(task, cases)
    adapters = {n for n, _ in task.model.named_parameters() if n.endswith((".a", ".b"))}
    assert len(adapters) == 8
    moments = {n.removeprefix(f"{OPTIMIZER}momentum.") for n in trained.compiled.state if n.startswith(OPTIMIZER)}
    assert moments == adapters
    _, _, state = train(trained.compiled, Arithmetic(), 3)
    for name, _ in task.model.named_parameters():
        before, after = trained.compiled.state[MODEL + name], state[MODEL + name]
        assert torch.equal(before, after) == (name not in adapters), name
        assert MODEL + name in trained.program.state_spec()


def test_frozen_weights_cost_no_gradient() -> None:
    frozen, whole = (compile_task(task).program for task in (lora_task(), replace(lora_task(), model=gpt2())))

    def products(program: object) -> int:
        return sum(i.numel * i.terms for i in program.body if i.opcode == Opcode.REDUCE and len(i.operands) == 2)  # type: ignore[attr-defined]

    assert products(frozen) < 0.85 * products(whole)


def test_a_new_head_on_a_frozen_body_with_frozen_statistics(cases: CaseCounter) -> None:
    model = resnet()
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)

    class Frozen(nn.Module):
        """The body in evaluation mode, whatever the mode of the whole."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def train(self, mode: bool = True) -> nn.Module:
            super().train(mode)
            self.inner.resnet.eval()
            return self

        def forward(self, **inputs: Tensor) -> object:
            return self.inner(**inputs)

    task = image_task(Frozen(model).train(), 32)
    trained = check(task, cases)
    _, _, state = train(trained.compiled, Arithmetic(), 3)
    moved = {n for n, t in trained.compiled.state.items() if not torch.equal(t, state[n]) and n.startswith(MODEL)}
    assert moved == {"model.inner.classifier.1.weight", "model.inner.classifier.1.bias"}
    assert any(n.endswith("running_mean") for n in trained.compiled.state)
