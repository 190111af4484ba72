"""Tells which random draws of a step are one draw: those that begin in the same state of torch's random numbers.

PyTorch draws the same numbers again from a state that was saved and set again (`set_rng_state`, `fork_rng`, a
hand-written checkpoint), so a program must, too. A trace draws nothing, so there a number is drawn for each draw.
"""

import sys
from functools import cache
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
        return self._noted(begun, tree_map_only(Tensor, _layout, (func, args, kwargs)), result)

    def _noted(self, begun: bytes, call: Any, result: Any) -> Any:
        number, first = len(self.earlier), self._first.get(begun, -1)
        if (ended := random_state()) == begun:  # of no elements, or of a kind that needs no random number
            first = None
        elif first == -1:
            raise ConfigurationError(
                f"the step cannot be captured: at {user_line(sys._getframe(2))} it draws from a state of torch's "
                "random numbers that is none of this step's (`set_rng_state`, `manual_seed`), so that each step draws "
                "the same; leave that out, as each step draws by the job's seed, or keep the numbers in a buffer"
            )
        elif first is None:
            self._first[begun] = number
        elif self._calls[first] != call:
            raise ConfigurationError(
                f"the step cannot be captured: at {user_line(sys._getframe(2))} it draws from a state of torch's "
                "random numbers that another draw began in, of other shape, strides, type or distribution; set a state "
                "again (`set_rng_state`, `fork_rng`) only to draw the same again, by the same call"
            )
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


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype
