"""The loss of one micro-batch as a trainer computes it, for capture, and whether padding changes it."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import nan
from types import MethodType
from typing import Any, Final, cast

import torch
from accelerate.utils.operations import convert_outputs_to_fp32
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from tiebreak.api.huggingface.recording import FLASH, ITEMS, WEIGHT, RecordedColumns, Recording
from tiebreak.engine.capture import four_bit
from tiebreak.engine.capture.step_run import replaced
from tiebreak.protocol.errors import ConfigurationError

_REPORTED: Final = ("_metrics", "_stored_metrics", "_total_train_tokens")
"""Attributes in which TRL's trainers and Axolotl's collect what they log."""
_CLOSE: Final = 1e-4
_CLOSE_IN_BF16: Final = 3e-2
"""The largest distance of the gradients of a batch with and without padding, relative to their norms."""


More = Callable[[Any, Mapping[str, Tensor]], dict[str, Tensor]]


@contextmanager
def _silent(trainer: Any) -> Iterator[None]:
    """Discards what `compute_loss` reports. Changes of other attributes remain, and are detected."""
    aside = {name: copy.deepcopy(vars(trainer)[name]) for name in _REPORTED if name in vars(trainer)}
    tokens = {}
    if getattr(trainer.args, "include_tkps", False):  # Axolotl's counts, in its state
        tokens = {"tokens": {"trainable": torch.zeros(1), "total": torch.zeros(1)}}
    with replaced(trainer, log=lambda *_, **__: None, **aside), replaced(trainer.state, **tokens):
        yield


def objective(
    trainer: Any, columns: RecordedColumns, more: More | None = None, judge: Callable[..., Tensor] | None = None
) -> Callable[..., Tensor]:
    """The loss as a function of the model and a row of the data, each (1, ...); rank 0.

    more: gives further inputs, which the step computes itself, from model and row, for a trainer that samples. judge:
    says of both whether all rollouts so far are the model's samples, else the loss is NaN, with the same gradients; it
    may write to buffers.
    """

    def loss(model: Any, **rows: Tensor) -> Tensor:
        given: dict[str, Any] = {name: row[0].to(columns.dtypes[name]) for name, row in rows.items()}
        items, weight = None if more else given.pop(ITEMS, None), given.pop(WEIGHT, None)
        given |= more(model, given) if more else {}
        found: Tensor = value(trainer, model, given | columns.constants, items)
        if judge is not None:
            found = found + torch.where(judge(model, given), 0.0, nan)
        if weight is not None:
            return cast("Tensor", found * weight)
        return found if columns.factor == 1 else found * columns.factor

    loss.trainer = trainer  # type: ignore[attr-defined]  # so that capture looks at what it holds, too
    return loss


def value(trainer: Any, model: Any, inputs: Mapping[str, Any], items: Any) -> Tensor:
    """Computes the trainer's loss of one micro-batch, f32."""
    with _silent(trainer), trainer.compute_loss_context_manager():
        found = trainer.compute_loss(model, dict(inputs), num_items_in_batch=items)
    return cast("Tensor", found.float())


@contextmanager
def ready(trainer: Any) -> Iterator[None]:
    """Prepares the model for capture on the CPU, without features that change no result; restores it afterwards.

    That is the checkpointing of activations (a run decides itself what to compute again), and the trainer's device,
    with which accelerate also wraps `forward` in autocast: the job's is that of the CPU.
    """
    model, device = trainer.model, trainer.args.device
    with ExitStack() as stack:
        if getattr(model, "is_activation_checkpointing", False):
            model.activation_checkpointing_disable()  # the second run of the loop enables it again
        if hasattr(model, "_require_grads_hook"):
            model.disable_input_require_grads()
            stack.callback(model.enable_input_require_grads)
        parts: list[Any] = [model, getattr(trainer, "ref_model", None) or model]
        for part in parts:
            if "_original_forward" in vars(part):
                plain = torch.autocast("cpu", torch.bfloat16)(part._original_forward.__func__)
                stack.enter_context(replaced(part, forward=MethodType(convert_outputs_to_fp32(plain), part)))
        stack.enter_context(replaced(trainer.accelerator.state, device=torch.device("cpu")))
        stack.callback(model.to, device)
        stack.enter_context(replaced(trainer, train_dataset=None, eval_dataset=None))  # a loss reads its batch
        model.cpu().train()
        stack.enter_context(four_bit.as_state(model))
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        yield


def check_padding(
    trainer: Any, recording: Recording, columns: RecordedColumns, more: More | None = None
) -> None:  # fmt: skip
    """Compares loss and gradients of the smallest batches as Trainer feeds them with those of their padded rows.

    Gradients too, since a loss alone may be blind: that of DPO is ln 2 for each batch before the first step. Raises
    `ConfigurationError` if they differ.
    """
    loss = objective(trainer, columns, more)
    wanted = [p for p in trainer.model.parameters() if p.requires_grad]
    close = _close(trainer)
    trainer.model.eval()  # without dropout, whose masks have the batch's shape
    norms = [m for m in trainer.model.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
    before = [copy.deepcopy(norm.state_dict()) for norm in norms]
    for norm in norms:
        norm.train()  # their means are over a batch, with what fills it up
    for number, at in columns.smallest:
        given = {name: tensor[at : at + 1] for name, tensor in columns.data.items()}
        inputs = {name: v for name, v in recording.inputs[number].items() if name not in FLASH}
        if WEIGHT in given:
            given[WEIGHT] = torch.ones(1)
        plain, again = (
            _with_gradients(value(trainer, trainer.model, inputs, recording.items[number]), wanted) for _ in range(2)
        )
        padded = _with_gradients(loss(trainer.model, **given) / (1 if WEIGHT in given else columns.factor), wanted)
        if _near(plain, again, close) and not _near(plain, padded, close):  # capture says why it is not repeated
            shape = tuple(next(iter(inputs.values())).shape)
            advice = "set dataloader_drop_last=True, or pad all examples to one length"
            if more:
                advice = "take a model whose positions are relative, or prompts of one length"
            raise ConfigurationError(
                f"expected a loss that padding does not change, got others for batch {number} of shape "
                f"{shape} once it is padded to the shape of the others; {advice}"
            )
    for norm, state in zip(norms, before, strict=True):
        norm.load_state_dict(state)
    trainer.model.train()


def _close(trainer: Any) -> float:
    in_bf16 = trainer.args.bf16 or any(p.dtype == torch.bfloat16 for p in trainer.model.parameters() if p.requires_grad)
    return _CLOSE_IN_BF16 if in_bf16 else _CLOSE


def check_loss(trainer: Any, computed: float, plain: float) -> None:
    """Raises `ConfigurationError` if a step's loss is not near that of the trainer's own code in plain PyTorch.

    Capture compares the loss of drawn tokens, which are no samples, so that both are NaN; here they are samples.
    """
    if not abs(computed - plain) <= 10 * _close(trainer) * (1 + abs(plain)):
        raise ConfigurationError(
            f"expected the loss of plain PyTorch for the first rollouts, {plain:.6g}, got {computed:.6g}: the program "
            "is not the model. Please report this with the model"
        )


def _near(first: list[Tensor], second: list[Tensor], close: float) -> bool:
    """Whether two losses and their gradients are near. A gradient that should be 0 is the rounding of the others."""
    least = 1e-3 * max(float(gradient.norm()) for gradient in first[1:]) + 1e-6
    return all(bool((a - b).norm() <= close * (a.norm() + least)) for a, b in zip(first, second, strict=True))


def _with_gradients(loss: Tensor, wanted: list[Any]) -> list[Tensor]:
    gradients = list(torch.autograd.grad(loss, wanted, allow_unused=True))
    zero = torch.zeros(())
    return [loss.detach(), *(zero if g is None else g.float() for g in cast("list[Tensor | None]", gradients))]
