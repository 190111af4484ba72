"""Tells which random draws of a step are one draw: those that begin in the same state of torch's random numbers.

PyTorch draws the same numbers again from a state that was saved and set again (`set_rng_state`, `fork_rng`, a
hand-written checkpoint), so a program must, too. A trace draws nothing, so there a number is drawn for each draw.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from tiebreak.engine.capture.user_code import user_line
from tiebreak.protocol.errors import ConfigurationError

_UNTAGGED: Final = ("aten::random", "aten::binomial", "aten::_sample_dirichlet")
"""Draws that torch forgot to tag."""


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches the draws of a step, and says of each whether it repeats an earlier one.

    traced: whether the step runs on fake tensors.
    """

    supports_higher_order_operators = True

    def __init__(self, *, traced: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._traced = traced
        self.restart()

    def restart(self) -> None:
        """Begins a step in the present state."""
        self.earlier: list[int | None] = []
        """The number of the draw that each draw repeats; None for a new one."""
        self._first: dict[bytes, int | None] = {random_state(): None}
        self._calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_draw(func):
            return func(*args, **kwargs)
        begun = random_state()
        result = func(*args, **kwargs)
        if self._traced and any(isinstance(t, Tensor) and t.numel() for t in tree_leaves(result)):
            with _disable_current_modes():
                torch.rand(())
        call = tree_map_only(Tensor, lambda t: (tuple(t.shape), t.stride(), t.dtype), (func, args, kwargs))
        return self._noted(begun, call, result)

    def _noted(self, begun: bytes, call: Any, result: Any) -> Any:
        number, first, wrong = len(self.earlier), self._first.get(begun, -1), ""
        if (ended := random_state()) == begun:  # of no elements, or of a kind that needs no random number
            first = None
        elif first == -1:
            wrong = (
                "is none of this step's (`set_rng_state`, `manual_seed`), so that each step draws the same; leave that "
                "out, as each step draws by the job's seed, or keep the numbers in a buffer"
            )
        elif first is None:
            self._first[begun] = number
        elif self._calls[first] != call:
            wrong = (
                "another draw began in, of other shape, strides, type or distribution; set a state again "
                "(`set_rng_state`, `fork_rng`) only to draw the same again, by the same call"
            )
        if wrong:
            place = f"at {user_line(sys._getframe(2))} it draws from a state of torch's random numbers"
            raise ConfigurationError(f"the step cannot be captured: {place} that {wrong}")
        self.earlier.append(first)
        self._calls.append(call)
        self._first.setdefault(ended, None)
        return result


@cache
def is_draw(func: Any) -> bool:
    """Whether an operator draws random numbers itself, and not by others that it is made of."""
    if not isinstance(func, OpOverload):
        return False
    tagged = torch.Tag.nondeterministic_seeded in func.tags or func._schema.name.rstrip("_") in _UNTAGGED
    return tagged and not func._can_decompose()


def random_state() -> bytes:
    """The state of torch's random numbers, on all devices."""
    cuda: Any = torch.cuda
    states = [torch.get_rng_state(), *(cuda.get_rng_state_all() if cuda.is_initialized() else [])]
    with _disable_current_modes():
        return b"".join(state.numpy().tobytes() for state in states)


# The check puts numbers in the place of draws


class GivenDraws(Draws):  # type: ignore[no-untyped-call]
    """Puts the engine's random numbers, in the order of the step, where eager PyTorch would draw its own.

    What eager PyTorch draws again, as in the second run of a checkpointed part, gets the same numbers again.
    """

    def __init__(self, numbers: Sequence[Tensor | None]) -> None:
        super().__init__(traced=False)
        self._numbers = list(numbers)
        self._given: list[Tensor | None] = []

    def check_all_drawn(self) -> None:
        """Raises `ConfigurationError` if the program draws what eager PyTorch did not."""
        if left := [tuple(tensor.shape) for tensor in self._numbers if tensor is not None]:
            raise ConfigurationError(
                f"the program is not the model: it draws random numbers of shape {left[0]} where eager PyTorch draws "
                "others, or none"
            )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if not is_draw(func):
            return result
        output, result = result if func is _DROPOUT else (None, result)
        given = {a.name: a.default_value for a in func._schema.arguments} | (kwargs or {})
        given |= {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)}
        name, first = func._schema.name.removeprefix("aten::").rstrip("_"), self.earlier[-1]
        form, number = _FORMS.get(name), None if first is None else self._given[first]
        if output is not None and (given["train"] is False or given["p"] in (0, 1)):
            form = None  # nothing is drawn
        if form is not None and first is None:
            shape = _SHAPES[name](result.shape, given) if name in _SHAPES else result.shape
            number = self._numbers[0] if self._numbers else None
            if number is not None and number.shape != shape:
                number = None  # nothing reads it, and the trace left it out
            else:
                del self._numbers[:1]
        self._given.append(number)
        if form is not None and number is not None:
            wide = number.is_floating_point() and result.dtype == torch.float64
            number = number.to(result.device, result.dtype if wide else number.dtype)
            result.copy_(form(number, given))
            if output is not None:
                output.copy_(given["input"] * result / (1 - given["p"]))
        return result if output is None else (output, result)


_DROPOUT: Final = torch.ops.aten.native_dropout.default
"""The only draw with two results: the output, and the mask, which is drawn. On CUDA `F.dropout` calls it."""


def _below(u: Tensor, given: Mapping[str, Any]) -> Tensor:
    p = given.get("p", given["self"])
    return u < (p if isinstance(p, Tensor) else torch.full((), p, dtype=torch.float32, device=u.device))


def _integers(drawn: Tensor, given: Mapping[str, Any]) -> Tensor:
    low, high = given.get("low", 0), given.get("high", given.get("to"))
    found: Tensor = low + torch.remainder(drawn, high - low)
    return found


def _raced(waits: Tensor, given: Mapping[str, Any]) -> Tensor:
    """The index that each draw of `multinomial` gives, from exponential numbers."""
    weights: Tensor = given["self"]
    if given["replacement"]:
        return (weights.unsqueeze(-2) / waits).argmax(-1)
    return (weights / waits).topk(given["num_samples"]).indices


def _gamma(numbers: Tensor, given: Mapping[str, Any], *, is_share: bool) -> Tensor:
    """Gamma numbers, or the shares that are Dirichlet numbers, from a normal and an exponential one for each."""
    a: Tensor = given["self"]
    d = a + 2 / 3
    cubed, less = d * (1 + numbers[0] / (3 * d.sqrt())) ** 3, numbers[1] / a
    if is_share:
        return torch.softmax(cubed.log() - less, -1).clamp(2.0**-126, 1 - 2.0**-24)
    return (cubed * torch.exp(-less)).clamp(min=2.0**-126)


_SHAPES: Final[dict[str, Callable[[torch.Size, Mapping[str, Any]], Sequence[int]]]] = {
    "multinomial": lambda shape, given: (*(shape if given["replacement"] else shape[:-1]), given["self"].shape[-1]),
    **dict.fromkeys(("_standard_gamma", "_sample_dirichlet"), lambda shape, _: (2, *shape)),
}
"""The shape of the engine's numbers for a draw, by operator, where it is not that of the result."""
_FORMS: Final[dict[str, Callable[[Tensor, Mapping[str, Any]], Tensor]]] = {
    "bernoulli": _below,
    "native_dropout": lambda u, given: _below(u, {"p": 1 - given["p"], "self": None}),
    "uniform": lambda u, given: given["from"] + (given["to"] - given["from"]) * u,
    "normal": lambda z, given: given["mean"] + given["std"] * z,
    "exponential": lambda e, given: e / given["lambd"],
    "multinomial": _raced,
    "_standard_gamma": partial(_gamma, is_share=False),
    "_sample_dirichlet": partial(_gamma, is_share=True),
    **dict.fromkeys(("randint", "randint_like", "random"), _integers),
    **dict.fromkeys(("rand", "rand_like", "randn", "randn_like", "randperm"), lambda drawn, _: drawn),
}
"""Functions from the engine's numbers to those of eager PyTorch, by operator (`tiebreak.engine.lowering.random`)."""
