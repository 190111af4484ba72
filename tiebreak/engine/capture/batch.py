"""A step's batch: the examples that it takes, their order, and how a loss gets their arrays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebreak.engine.optimizers.settings import require
from tiebreak.protocol.arguments import FLAG, TEXT, Expectation, instance, is_text, require_fields, tuple_of, whole
from tiebreak.protocol.errors import ConfigurationError

MAX_INDEX: Final = (1 << 63) - 1
"""The largest int64: steps, places and seeds are int64 in a program."""
TARGETS: Final = frozenset(["y", "target", "targets", "label", "labels"])
"""The usual names of targets."""
LOSSES: Final = Expectation(
    "a function of the model and the arrays of the batch, or a list of such functions, one for each phase of a step",
    lambda x: callable(x) or (isinstance(x, list | tuple) and bool(x) and all(map(callable, x))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Example i is row i of each named array; the batch gains a leading dimension.

    The loss gets each array as the argument of its name; the order counts only for `*batch`.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        require_fields(self, names=tuple_of('names of arrays in a tuple, such as ("x", "y")', is_text))
        require(len(self.names) > 0, "at least one name of an array", self.names)

    def arrays(self) -> tuple[str, ...]:
        """The names of the data that it reads."""
        return self.names

    def count(self, data: Mapping[str, Tensor]) -> int:
        """The number of examples in the data."""
        rows = {name: data[name].shape[0] if data[name].ndim else 0 for name in self.names}
        require(len(set(rows.values())) == 1, "arrays with equally many rows", rows)
        return min(rows.values())

    def take(self, data: Mapping[str, Tensor], index_B: Tensor) -> tuple[Tensor, ...]:
        """The batch of the examples `index_B` (int64 [B])."""
        return tuple(data[name][index_B] for name in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Example i is `length` tokens of a 1-d int64 array from i * stride on; the batch is int64 [B, length]."""

    name: str
    length: int
    stride: int

    def __post_init__(self) -> None:
        require_fields(self, name=TEXT, length=whole(1, MAX_INDEX), stride=whole(1, MAX_INDEX))

    def arrays(self) -> tuple[str, ...]:
        """The names of the data that it reads."""
        return (self.name,)

    def count(self, data: Mapping[str, Tensor]) -> int:
        """The number of whole windows in the tokens."""
        tokens = data[self.name]
        require(tokens.ndim == 1, f"one dimension in {self.name}", tuple(tokens.shape))
        return max(0, (tokens.shape[0] - self.length) // self.stride + 1)

    def take(self, data: Mapping[str, Tensor], index_B: Tensor) -> tuple[Tensor, ...]:
        """The batch of the examples `index_B` (int64 [B])."""
        offsets_BT = index_B[:, None] * self.stride + torch.arange(self.length)
        return (data[self.name][offsets_BT],)


Examples = Rows | Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A step's batch: `size` examples, without replacement within an epoch, in an order drawn from the seed.

    Draw number g = (step - 1) * size + j (step from 1, j the place in the batch) is example order(g mod n) of epoch g
    // n, where n is the number of examples; a batch may span two epochs. With gradient accumulation over A batches,
    `size` in this formula stands for A * size, and the step's batches are consecutive parts of the draws.

    shuffled: else the order of each epoch is that of the data.
    drop_last: whether n is the largest multiple of `size` instead, so that each epoch leaves out the last examples of
    its order.
    """

    size: int
    examples: Examples
    shuffled: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        examples = instance("tiebreak.Rows or tiebreak.Windows", Rows, Windows)
        require_fields(self, size=whole(1, MAX_INDEX), examples=examples, shuffled=FLAG, drop_last=FLAG)

    def drawn(self, examples: int) -> int:
        """The number of draws in an epoch over this number of examples."""
        return examples - examples % self.size if self.drop_last else examples


Loss = Callable[..., Tensor]
"""loss(model, ...) -> f32 of rank 0. Its further arguments are those of the batch, by name if the data are `Rows`."""


@dataclass(frozen=True, slots=True)
class NamedLoss:
    """A loss over a batch in the order of `names`: each array goes to the argument of its name.

    `*batch` takes the arrays that no argument names, in their order; `**batch` takes them by name.
    """

    loss: Loss
    names: tuple[str, ...]
    order: tuple[str, ...]
    """The arrays that are given by position."""
    unread: tuple[str, ...] = ()
    """The arrays that are given to losses of other phases only."""

    def __call__(self, model: nn.Module, *batch: Tensor) -> Tensor:
        given = {n: tensor for n, tensor in zip(self.names, batch, strict=True) if n not in self.unread}
        positional = [given.pop(name) for name in self.order]
        return self.loss(model, *positional, **given)

    @classmethod
    def of(cls, loss: Loss, names: tuple[str, ...], *, phases: Sequence[Loss] = ()) -> "NamedLoss":
        """Binds a loss. Raises `ConfigurationError` if its arguments are not those of the batch.

        phases: the losses of all phases of a step, if there are several; each array must be an argument of one.
        """
        loss = loss.loss if isinstance(loss, cls) else loss
        try:
            found = list(signature(loss).parameters.values())
        except (TypeError, ValueError):  # some callables in C do not tell their arguments
            return cls(loss, names, names)
        if not found or found[0].kind == Parameter.VAR_POSITIONAL:
            return cls(loss, names, names)
        arguments, kinds = found[1:], {p.kind for p in found[1:]}
        named = [p for p in arguments if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
        missing = [p.name for p in named if p.name not in names and p.default is Parameter.empty]
        left = [name for name in names if name not in [p.name for p in named]]
        takes_all = kinds & {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
        unread = tuple(left) if not takes_all and all(_is_named(name, phases) for name in left) else ()
        if missing or (left and not takes_all and not unread):
            raise ConfigurationError(
                f"expected a loss whose arguments after the model are the arrays of the batch, {', '.join(names)}, got "
                f"{', '.join(str(p) for p in arguments) or 'none'}; arrays are bound by name, so rename the arguments "
                "or the data, leave out what the loss does not take, or take them by position with `*batch`"
            )
        first = [p.name for p in named if p.kind == Parameter.POSITIONAL_ONLY and p.name in names]
        if Parameter.VAR_POSITIONAL in kinds:
            before = [p.name for p in named if p.kind != Parameter.KEYWORD_ONLY and p.name in names]
            first = [*before, *left]
        return cls(loss, names, tuple(first), unread)


def _is_named(name: str, losses: Sequence[Loss]) -> bool:
    """Whether a loss has an argument of this name."""
    return any(name in signature(getattr(loss, "loss", loss)).parameters for loss in losses)


def of_batch(loss: Callable[..., Tensor], names: tuple[str, ...], *, by_position: bool) -> Callable[..., Tensor]:
    """Gives torch's own losses, which take an output and a target, the signature loss(model, *batch).

    by_position: the arrays have no names of the user's, so every loss takes them in order.
    """
    own = isinstance(loss, nn.Module) or getattr(F, getattr(loss, "__name__", ""), None) is loss
    if not own and not by_position:
        return loss
    if own and (misplaced := [name for name in names[:-1] if name in TARGETS and names[-1] not in TARGETS]):
        raise ConfigurationError(
            f"expected the target of torch's own losses last in the data, got {', '.join(names)}; put {misplaced[0]} "
            "last, or write the loss as a function with arguments of these names"
        )

    def in_order(model: nn.Module, *batch: Tensor) -> Tensor:
        return loss(model(*batch[:-1]), batch[-1]) if own else loss(model, *batch)

    return in_order
