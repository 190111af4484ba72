"""Functions that read values of tensors in eager PyTorch, here in tensors of fixed shapes."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from math import log, pi
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tiebreak.engine.capture.user_code import is_users


class _Number(type):
    """The type of the stand-ins for `float` and `int` (`of`), which convert a tensor of one integer to a tensor."""

    of: type

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if args and is_counter(args[0]):
            return args[0].reshape(()).to(torch.int64 if cls.of is int else torch.get_default_dtype(), copy=True)
        return cls.of(*args, **options)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.of)


def _extreme(numbers: Callable[..., Any], tensors: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    def called(*values: Any, **options: Any) -> Any:
        if len(values) > 1 and any(isinstance(value, Tensor) for value in values):
            return reduce(tensors, map(torch.as_tensor, values))
        return numbers(*values, **options)

    return called


_BUILTINS: Final[dict[str, Any]] = {
    "float": _Number("float", (), {"of": float}),
    "int": _Number("int", (), {"of": int}),
    "min": _extreme(min, torch.minimum),
    "max": _extreme(max, torch.maximum),
}


def _kind(value: object) -> type | None:
    """The type of a number, or of that in a tensor with one; None for other tensors."""
    if not isinstance(value, Tensor):
        return type(value)
    if value.numel() != 1:
        return None
    return bool if value.dtype == torch.bool else float if value.is_floating_point() else int


def is_counter(value: object) -> bool:
    """Whether a value is a tensor of one integer. Bools follow other rules as numbers, and floats are mostly logged."""
    return isinstance(value, Tensor) and _kind(value) is int


def needs_number(func: Any, args: Any) -> bool:
    """Whether a call needs the number in a counter's tensor: in a text, or where numbers follow rules of their own.

    They have powers of any length, bools that add up, and quotients of FP64, which are cut at other places.
    """
    name, kinds = getattr(func, "__name__", ""), {_kind(value) for value in args}
    return func in (Tensor.__format__, Tensor.__repr__) or (
        (name in ("pow", "__rpow__") and kinds == {int})
        or (name in ("add", "__invert__") and kinds == {bool})
        or (name in ("__floordiv__", "__rfloordiv__", "remainder", "__rmod__") and float in kinds <= {int, float})
    )


class _Through(torch.autograd.Function):
    """The value of a parameter, whose gradient is the parameter's."""

    @staticmethod
    def forward(_: Any, value: Tensor, parameter: Tensor) -> Tensor:  # noqa: ARG004
        return value.view_as(value)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


_FLAG: Final[Any] = vars(torch._C.TensorBase)["requires_grad"]
_VALUE: Final = frozenset([Tensor.detach, Tensor.detach_, vars(torch._C.TensorBase)["data"].__get__])
"""Calls whose result has no gradient, and the same memory."""


@torch.no_grad()
def _renorm(index: Tensor, weight: Tensor, greatest: float, degree: float = 2.0) -> None:
    """`torch.embedding_renorm_`: shortens the rows that are read to a greatest norm."""
    norms = torch.linalg.vector_norm(weight, degree, 1)
    is_read = norms.new_zeros(norms.shape).index_put((index.reshape(-1),), norms.new_ones(())) > 0
    factors = torch.where(is_read & (norms > greatest), greatest / (norms + 1e-7), 1.0)
    weight.copy_(weight * factors[:, None])


class FollowedWeights:
    """Trained parameters of one trace, which the step writes to or whose `requires_grad` it sets.

    The model holds their values, which have no gradient. What it computes of these has that of the parameter. Both are
    given by name.
    """

    def __init__(self, values: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
        self._own = {id(value): (name, value, parameters[name]) for name, value in values.items()}
        self._now: dict[str, tuple[int, Tensor]] = {}
        self.off = set[str]()
        """The names of those whose gradient is switched off."""

    def call(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """A call of torch, to be made in the place of another."""
        if func in (F.embedding, F.embedding_bag) and kwargs.get("max_norm") is not None:  # torch gives it by name
            _renorm(args[0], args[1], kwargs["max_norm"], kwargs["norm_type"])
            kwargs = {**kwargs, "max_norm": None}
        own = self._own.get(id(args[0])) if args else None
        if own is not None and func in (Tensor.requires_grad_, _FLAG.__set__):
            is_on = (*args[1:], *kwargs.values(), True)[0]
            (self.off.discard if is_on else self.off.add)(own[0])
            return (lambda: own[1]), (), {}
        if own is not None and func == _FLAG.__get__:
            return (lambda: own[0] not in self.off), (), {}
        if not self._own or not torch.is_grad_enabled() or func in _VALUE:
            return func, args, kwargs
        return func, self._with_gradient(args), {n: self._with_gradient(value) for n, value in kwargs.items()}

    def _with_gradient(self, given: Any) -> Any:
        if type(given) in (tuple, list):  # and no torch.Size, which tensors are made by
            return type(given)(map(self._with_gradient, given))
        name, value, parameter = self._own.get(id(given), ("", given, given))
        if not name or name in self.off:
            return given
        if self._now.get(name, (-1,))[0] != value._version:
            self._now[name] = value._version, _Through.apply(value, parameter)  # type: ignore[no-untyped-call]
        return self._now[name][1]


def question(func: Any, args: Any, caller: str) -> str:
    """The name of the function that asks for values, as in `user_code.VALUES`. caller: the name of its caller."""
    name, is_whole = getattr(func, "__name__", ""), bool(args) and not torch.is_floating_point(args[0])
    if name not in ("item", "tolist", "__int__", "__float__", "__index__"):
        return name
    is_choice = caller == "__bool__" or args[0].dtype == torch.bool
    return "__bool__" if is_choice else "__index__" if is_whole else "item"


def _hashed(tensor: Tensor) -> int:
    """The identity of a tensor, but not for the user's sets and dicts, in which eager PyTorch looks up a number."""
    if is_users(sys._getframe(1).f_code.co_filename) and not isinstance(tensor, nn.Parameter):
        raise TypeError("a counter's number is looked up")
    return id(tensor)


@contextmanager
def counters_as_tensors(model: nn.Module, loss: Callable[..., Tensor]) -> Iterator[None]:
    """Gives `float`, `int`, `min` and `max` a form for tensors in the files of the model's classes and of the loss."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__ if issubclass(kind, nn.Module)}
    scopes = [vars(sys.modules[kind.__module__]) for kind in kinds if kind.__module__ in sys.modules]
    scopes += [getattr(getattr(loss, "loss", loss), "__globals__", {})]  # a task's loss is wrapped
    before, changed = Tensor.__hash__, [(scope, scope.keys() & _BUILTINS.keys()) for scope in scopes]
    try:
        for scope, own in changed:
            scope.update({name: value for name, value in _BUILTINS.items() if name not in own})
        Tensor.__hash__ = _hashed  # type: ignore[method-assign]
        yield
    finally:
        Tensor.__hash__ = before  # type: ignore[method-assign]
        for scope, own in changed:
            for name in _BUILTINS.keys() - own:
                scope.pop(name, None)


def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,  # noqa: A002
    bias: Tensor | None = None, training: bool = False, momentum: float | Tensor = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.batch_norm`, whose momentum may be a tensor: 1 / (the number of batches so far)."""
    if not isinstance(momentum, Tensor):
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    with torch.no_grad():
        wide, dims = input.float(), [0, *range(2, input.dim())]
        for held, now in ((running_mean, wide.mean(dims)), (running_var, wide.var(dims))):
            if held is not None:
                held.copy_(momentum * now + (1 - momentum) * held)
    return F.batch_norm(input, None, None, weight, bias, training, 0.0, eps)


Cell = Callable[[Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, ...]]
"""A step of a recurrent layer: from W x + b, V h + c and the state, each (B, hidden), to the new state."""


def _lstm(given: Tensor, hidden: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    take, keep, new, show = (given + hidden).chunk(4, 1)
    cell = keep.sigmoid() * state[1] + take.sigmoid() * new.tanh()
    return show.sigmoid() * cell.tanh(), cell


def _gru(given: Tensor, hidden: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    (reset, keep, new), (own_reset, own_keep, own_new) = given.chunk(3, 1), hidden.chunk(3, 1)
    new = (new + (reset + own_reset).sigmoid() * own_new).tanh()
    return (new + (keep + own_keep).sigmoid() * (state[0] - new),)


_CELLS: Final[dict[str, Cell]] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": lambda given, hidden, _: ((given + hidden).tanh(),),
    "rnn_relu": lambda given, hidden, _: ((given + hidden).relu(),),
}
"""The layers' steps, by torch's names."""
_MAY_READ: Final = (*_CELLS, "_pad_packed_sequence", "__get__", "__getitem__", "size", "dim", "to")
"""The calls in torch's recurrent layers that may read packed sequences."""


class PackedSequences:
    """The packed sequences of one trace. They stay padded: the data are (T * B, ...), and batch sizes are lengths (B).

    Only recurrent layers and `pad_packed_sequence` may read them, since in eager PyTorch they have other shapes.
    """

    def __init__(self) -> None:
        self._data: dict[int, Tensor] = {}
        self._lengths: dict[int, Tensor] = {}

    def concern(self, func: Any, args: Any) -> bool:
        """Whether a call of torch packs sequences or reads packed ones."""
        if getattr(func, "__name__", "") == "_pack_padded_sequence":
            return True
        return bool(self._data) and any(id(a) in self._data or id(a) in self._lengths for a in tree_leaves(args))

    def deed(self, func: Any, args: Any, file: str) -> str:
        """Names what such a call, from a file, does that a program cannot, with advice; empty if nothing."""
        name = func.__name__
        if name == "_pack_padded_sequence":
            return ""
        unpacked = name in _CELLS and id(args[1]) not in self._lengths
        if file not in (nn.modules.rnn.__file__, nn.utils.rnn.__file__) or name not in _MAY_READ or unpacked:
            return (
                "reads inside of a packed sequence, which only recurrent layers and pad_packed_sequence may do; give "
                "padded tensors and a mask to everything else"
            )
        if name == "_pad_packed_sequence" and args[4] == 0:
            return (
                "pads to the longest sequence of each batch, which data decide; give pad_packed_sequence the length "
                "of the padded tensor, as `total_length=x.shape[1]` with batch_first"
            )
        if name in _CELLS and args[5] > 1 and args[6] and args[7]:
            return "drops out between layers of packed sequences; set dropout to 0, or stack layers on padded ones"
        return ""

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of such a call: of batch sizes the first is the number of sequences, and their number 0."""
        found: Any
        name, is_lengths = func.__name__, id(args[0]) in self._lengths
        if is_lengths and name in ("size", "__getitem__"):
            return 0 if name == "size" else args[0].shape[0]
        if name == "_pad_packed_sequence":
            return _padded(*args)
        if name == "_pack_padded_sequence":
            padded, lengths, batch_first = args
            found = (padded.transpose(0, 1) if batch_first else padded).flatten(0, 1).clone(), lengths.clone()
            self._lengths[id(found[1])] = found[1]
        else:
            found = _recurrent(_CELLS[name], *args) if name in _CELLS else func(*args, **kwargs)
        first = found[0] if isinstance(found, tuple) else found
        if isinstance(first, Tensor):
            (self._lengths if is_lengths else self._data)[id(first)] = first
        return found


def _padded(data: Tensor, lengths: Tensor, batch_first: bool, value: float, times: int) -> tuple[Tensor, Tensor]:
    padded = data.reshape(-1, lengths.shape[0], *data.shape[1:])
    outside = torch.arange(padded.shape[0])[:, None] >= lengths
    padded = padded.masked_fill(outside[(..., *(None for _ in padded.shape[2:]))], value)
    padded = F.pad(padded, (*(0, 0) * (padded.dim() - 1), 0, times - padded.shape[0]), value=value)
    return padded.transpose(0, 1) if batch_first else padded, lengths.clone()


def _recurrent(
    cell: Cell, data: Tensor, lengths: Tensor, start: Tensor | Sequence[Tensor], weights: Sequence[Tensor],
    biases: bool, layers: int, _dropout: float, _training: bool, both_ways: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Recurrent layers over padded sequences; the state stays as it is outside of each."""
    x = data.reshape(-1, lengths.shape[0], data.shape[1])
    inside, ways = (torch.arange(x.shape[0])[:, None] < lengths)[..., None], 1 + both_ways
    each, ends = len(weights) // (layers * ways), []
    for layer in range(layers):
        outputs = []
        for way in range(layer * ways, layer * ways + ways):
            into, again, *more = weights[way * each : way * each + each]
            first, second = more[:2] if biases else (None, None)
            given, state = F.linear(x, into, first), [s[way] for s in ([start] if isinstance(start, Tensor) else start)]
            found, times = {}, range(x.shape[0])
            for time in times if way == layer * ways else reversed(times):
                new, *rest = cell(given[time], F.linear(state[0], again, second), state)
                new = F.linear(new, more[-1]) if len(more) % 2 else new  # an LSTM's projection
                state = [torch.where(inside[time], a, b) for a, b in zip((new, *rest), state, strict=True)]
                found[time] = state[0]
            outputs.append(torch.stack([found[time] for time in times]))
            ends.append(state)
        x = torch.cat(outputs, 2)
    return x.flatten(0, 1), *(torch.stack(states) for states in zip(*ends, strict=True))


_NEVER: Final = -1e30
"""The logarithm of what cannot happen: finite, so that no infinity cancels another in a gradient."""


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int], target_lengths: Tensor | Sequence[int],
    blank: int = 0, reduction: str = "mean", zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.ctc_loss`, in all its forms (Graves et al., ICML 2006).

    log_probs: (T, N, C) or (T, C); targets: (N, S), (S) or joined. Without an alignment the loss is infinite, or 0 if
    `zero_infinity` is set, and has no gradient. torch computes the lattice in one kernel; here it is unrolled over the
    time steps, in logarithms as there: some 55 operators for each, forward and backward.
    """
    batched = log_probs.dim() == 3
    log_probs = log_probs if batched else log_probs[:, None]
    times, count, _ = log_probs.shape
    steps, lengths = (torch.as_tensor(n).reshape(-1).expand(count) for n in (input_lengths, target_lengths))
    if batched and targets.dim() == 1:  # the targets of the batch, one behind the other
        widest = targets.numel() if isinstance(target_lengths, Tensor) else max(target_lengths, default=0)
        places = (lengths.cumsum(0) - lengths)[:, None] + torch.arange(widest)
        targets = targets[places.clamp(max=max(targets.numel() - 1, 0))] if widest else targets.reshape(count, 0)
    targets = targets.reshape(count, -1)

    # Blanks before, between and behind the labels; a label may follow another one at once, unless it is the same.
    blanks = torch.full((count, targets.shape[1] + 1), blank)
    labels = torch.stack([blanks[:, 1:], targets.long()], 2).flatten(1)
    labels = torch.cat([labels, blanks[:, :1]], 1)
    width = labels.shape[1]
    skips = torch.cat([torch.zeros(count, 2, dtype=torch.bool), labels[:, 2:] != labels[:, :-2]], 1)[:, :width]
    emitted = log_probs.gather(2, labels.expand(times, *labels.shape))
    never = torch.full((count, 2), _NEVER, dtype=log_probs.dtype)

    reached = torch.cat([emitted[0, :, :2], never[:, :1].expand(count, max(width - 2, 0))], 1)
    for time in range(1, times):
        before = torch.cat([never, reached], 1)
        jumped = torch.where(skips, before[:, :-2], _NEVER)
        following = torch.stack([reached, before[:, 1:-1], jumped]).logsumexp(0) + emitted[time]
        reached = torch.where((time < steps)[:, None], following, reached)
    final = reached.gather(1, torch.stack([2 * lengths, (2 * lengths - 1).clamp(min=0)]).T).T
    found = -torch.stack([final[0], torch.where(lengths > 0, final[1], _NEVER)]).logsumexp(0)

    # torch's gradient is that of the numbers whose log_softmax this is, which adds exp(log_probs).
    inside = torch.arange(times)[:, None] < steps
    whole = (log_probs.exp().sum(2) * inside).sum(0)
    loss = torch.where(found < -_NEVER / 2, found + (whole - whole.detach()), 0.0 if zero_infinity else torch.inf)
    if reduction == "mean":
        return (loss / lengths.clamp(min=1)).mean()
    if reduction == "sum":
        return loss.sum()
    return loss if batched else loss[0]


def gaussian_nll_loss(
    input: Tensor,  # noqa: A002 (torch's name)
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """`torch.nn.functional.gaussian_nll_loss`, without its check that no variance is negative."""
    if not isinstance(var, Tensor):
        var = torch.full_like(input, var)
    if var.shape != input.shape and var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    var = var.clone()
    with torch.no_grad():
        var.clamp_(min=eps)  # the gradient goes on as if nothing had been clamped
    loss = 0.5 * (var.log() + (input - target).square() / var)
    if full:
        loss = loss + 0.5 * log(2 * pi)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss
