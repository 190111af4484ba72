"""Values that a step reads only to report them: metrics, log lines, counts of tokens.

A program has no Python in it, so a step that asks for values of tensors (`item()`, `if t > 0:`, `x[mask]`) has none,
unless the loss is the same whatever the answer. That is tried in plain PyTorch: numbers get other answers, masks other
elements, and each question with the answer yes or no, comparisons of such numbers among them, is also answered the
other way. If loss, gradients and buffers keep every bit in all of these runs, the answers of a first run are as good
as any others, and the step is traced with them. Such a number may not be looked up, become a text, or come from
`int()` and `float()`: nobody could follow it then.
"""

import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from tiebreak.engine.capture.purity import SEED, Rehearsal
from tiebreak.engine.capture.user_code import user_line
from tiebreak.protocol.errors import ConfigurationError

_NUMBERS: Final = frozenset(["item", "tolist", "__bool__", "__float__", "__int__", "__index__"])
"""Questions for numbers. In a trace, all of them are `item`, once for each number."""
_OTHERS: Final = frozenset(["masked_select", "nonzero"])
_COMPARES: Final = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__")
_CALCULATES: Final = tuple(
    f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow") for side in ("", "r")
)
_CONVERTS: Final = ("__float__", "__int__", "__index__")
_UNFOLLOWED: Final = ("__hash__", "__format__", "__str__", "__repr__")
_MOST_RUNS: Final = 64
_MOST_QUESTIONS: Final = 100_000
"""More in one run is a loop that waits for an answer."""


def _place(func: Any, args: Sequence[Any]) -> str:
    """The line that asks a question, and how; empty if a call of torch asks for no values."""
    name = getattr(func, "__name__", "")
    picks = name == "__getitem__" and any(
        isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8)
        for part in (args[1] if isinstance(args[1], tuple) else (args[1],))
    )
    if not picks and name not in _NUMBERS | _OTHERS:
        return ""
    return f"{user_line(sys._getframe(1))} {'item' if name in _NUMBERS else name}"


class Answers(TorchFunctionMode):
    """Notes the answers to a step's questions, by place, and gives them again to a trace.

    used: the places of the questions that the trace could not answer itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self._noted: dict[str, list[Any]] = defaultdict(list)
        self._left: dict[str, deque[Any]] = {}
        self.used = set[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if place := _place(func, args):
            self._noted[place] += tree_leaves(found.detach().clone() if isinstance(found, Tensor) else found)
        return found

    def restart(self) -> None:
        """Begins again, for another trace of the step."""
        self._left = {place: deque(answers) for place, answers in self._noted.items()}

    def of(self, func: Any, args: Sequence[Any]) -> Any:
        """The next answer to this question, from the code that calls this; None if the step did not ask it."""
        place = _place(func, args)
        if not self._left.get(place):
            return None
        self.used.add(place)
        return self._left[place].popleft()


class _Trial(TorchFunctionMode):
    """Gives other answers at some places. flipped: the questions of yes or no that are answered the other way."""

    def __init__(self, places: set[str], flipped: set[str]) -> None:
        super().__init__()
        self._places, self._flipped, self._asked = places, flipped, Counter[str]()
        self.questions: dict[str, None] = {}
        """The questions of yes or no that were asked, in order."""
        self._kinds = {kind: _tracked(kind, self._choice, self._other) for kind in (int, float)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        place = _place(func, args)
        if place not in self._places:
            return found
        if func.__name__ in _CONVERTS:  # Python makes plain numbers of them
            raise ConfigurationError(f"a number that nobody could follow is read at {place}")
        if isinstance(found, bool):
            return self._choice(place, found)
        if isinstance(found, list):
            return tree_map(lambda number: self._other(number, changed=True), found)
        if isinstance(found, Tensor):
            other = ~found if found.dtype == torch.bool else 3 * found + 1
            return torch.cat([other.detach(), other.new_ones(1, *other.shape[1:])])
        return self._other(found, changed=True)

    def _choice(self, place: str, answer: bool) -> bool:
        self._asked[place] += 1
        if self._asked[place] > _MOST_QUESTIONS:
            raise ConfigurationError(f"expected code that ends whatever the answer at {place}, got a loop")
        question = f"{place}, time {self._asked[place]}"
        self.questions[question] = None
        return answer ^ (question in self._flipped)

    def _other(self, number: Any, *, changed: bool = False) -> Any:
        """A number that remembers where it came from; another one than was given if `changed`."""
        kind = self._kinds.get(type(number))
        return number if kind is None else kind(3 * number + 17 if changed else number)


def _tracked(kind: type, choice: Callable[[str, bool], bool], other: Callable[[Any], Any]) -> type:
    """A kind of number whose comparisons are questions, and whose sums and products are such numbers too."""

    def comparing(name: str) -> Callable[..., Any]:
        def compare(number: Any, *operands: Any) -> Any:
            found = getattr(kind, name)(number, *operands)
            if found is NotImplemented:
                return found
            return choice(f"{user_line(sys._getframe(1))} {name}", found)

        return compare

    def calculating(name: str) -> Callable[..., Any]:
        return lambda number, *operands: other(getattr(kind, name)(number, *operands))

    def refusing(_: Any, *__: Any) -> Any:
        raise ConfigurationError("a number that was read is looked up, or becomes a text")

    made = {name: comparing(name) for name in (*_COMPARES, "__bool__")}
    made |= {name: calculating(name) for name in (*_CALCULATES, "__neg__", "__abs__")}
    return type(f"Read{kind.__name__}", (kind,), {**made, **dict.fromkeys(_UNFOLLOWED, refusing)})


def asked(model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor]) -> Answers:
    """The answers of a run in plain PyTorch to what a step asks."""
    answers = Answers()
    _results(model, loss, batch, answers)
    return answers


def are_reports(model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor], places: set[str]) -> bool:
    """Tries whether loss, gradients and buffers keep every bit with other answers at these places."""
    expected = _results(model, loss, batch, Answers())
    waiting, seen = [set[str]()], dict[str, None]()
    for runs, flipped in enumerate(waiting):
        trial = _Trial(places, flipped)
        try:
            found = _results(model, loss, batch, trial)
        except ConfigurationError:  # the step fails with another answer
            return False
        if runs >= _MOST_RUNS or len(found) != len(expected) or not all(map(_same, found, expected)):
            return False
        waiting += [{question} for question in trial.questions if question not in seen]
        seen |= trial.questions
    return True


def _results(
    model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor], mode: TorchFunctionMode
) -> list[Tensor]:
    rehearse = Rehearsal(model, [loss], batch)
    rehearse.watch = mode
    torch.manual_seed(SEED)
    rehearse()
    return rehearse.results()


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
