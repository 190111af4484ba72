"""Values that a step reads only to report them: metrics, log lines, counts of tokens.

A program has no Python in it, so a step that asks for values of tensors (`item()`, `if t > 0:`, `x[mask]`) has none,
unless the loss is the same whatever the answer. That is tried in plain PyTorch, in runs of three kinds:

1. Numbers get other answers, masks other elements, and each question with the answer yes or no, comparisons of such
   numbers among them, is also answered the other way; so is a question that is first asked in such a run.
2. Several answers are others: all combinations of up to four, else all, random ones, and yes or no to everything.
3. Numbers change by other functions (falling, to 0, far up, each by one of its own), and comparisons hold, so that
   orders and means that functions in C make of them change.

Weights and buffers are others than at the beginning: a teacher that still equals its student hides what copies it.
If loss, gradients and buffers keep every bit in all of these runs, the answers of a first run are as good as any
others, and the step is traced with them. Such a number may not be looked up, become a text, or come from `int()` and
`float()` of a tensor: nobody could follow it then.
"""

import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence, Set
from itertools import combinations
from random import Random
from typing import Any, Final
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from tiebreak.engine.capture.step_run import SEED, StepRun
from tiebreak.engine.capture.user_code import user_line
from tiebreak.protocol.errors import ConfigurationError

_NUMBERS: Final = frozenset(["item", "tolist", "__bool__", "__float__", "__int__", "__index__"])
"""Questions for numbers. In a trace, all of them are `item`, once for each number."""
_OTHERS: Final = frozenset(["masked_select", "nonzero"])
_COMPARES: Final = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__")
_CALCULATES: Final = (
    *(f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow")
      for side in ("", "r")),
    *("__neg__", "__pos__", "__abs__", "__round__", "__floor__", "__ceil__", "__trunc__"),
)  # fmt: skip
_CONVERTS: Final = ("__float__", "__int__", "__index__")
_UNFOLLOWED: Final = ("__hash__", "__format__", "__str__", "__repr__")
_MOST_RUNS: Final = 64
_MOST_QUESTIONS: Final = 100_000
"""More in one run is a loop that waits for an answer."""
_ANSWERS: Final[tuple[Callable[[Random, bool], bool], ...]] = (
    lambda _, answer: answer,
    lambda *_: True,
    lambda *_: False,
    lambda _, answer: not answer,
    *(lambda random, answer: answer ^ (random.random() < 0.5),) * 6,
    *(lambda random, answer: answer ^ (random.random() < 0.2),) * 4,
)
"""Functions of answers; runs of the first kind have the first one."""
_CHANGES: Final[tuple[Callable[["_Trial", Any], Any], ...]] = (
    lambda _, number: 3 * number + 17,
    lambda _, number: -3 * number - 17,
    lambda _, number: _near(number),
    lambda _, number: _far(number),
    *(lambda trial, number, k=k: (_near, _far)[(trial.given >> k // 2 ^ k) & 1](number) for k in range(6)),
    *(lambda trial, number: trial.random.choice((_near, _far))(number),) * 2,
    *(lambda trial, number: abs(_drawn(trial.random, number)),) * 4,  # some functions take no negative numbers
    *(lambda trial, number: trial.random.choice((-1, 1)) * _drawn(trial.random, number),) * 3,
)
"""Functions of numbers; runs of the first two kinds have the first one."""


def _near(number: Any) -> Any:
    return type(number)(1e-6 * number)


def _far(number: Any) -> Any:
    return number + 10_000 if isinstance(number, int) else 1e6 * (abs(number) + 1)  # a loop may count to an integer


def _drawn(random: Random, number: Any) -> Any:
    """The number, one near it, close to 0 or far, or a small one, whole but for a quarter."""
    near, small = random.lognormvariate(0, 2) * number, random.randrange(9) + 0.25
    return random.choice((number, number, type(number)(near), type(number)(small), _near(number), _far(number)))


def _place(func: Any, args: Sequence[Any]) -> str:
    """The user's line that reads values of a tensor, and by which function; empty if a call of torch reads none."""
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
    """Gives other answers at some places.

    flipped: the questions of yes or no that are answered the other way. answer, change: the places of the functions of
    answers and of numbers.
    """

    def __init__(self, places: set[str], flipped: Set[str] = frozenset(), answer: int = 0, change: int = 0) -> None:
        super().__init__()
        self._places, self._asked, self.random = places, Counter[str](), Random(answer + change)  # noqa: S311
        self.flipped, self.answer, self.change = flipped, answer, change
        self.questions: dict[str, None] = {}
        """The decisions (yes or no) that the step took from values it read, in order."""
        self.given, self.unfollowed = 0, False
        """The count of numbers and lengths given so far, and whether one went where nobody can follow it."""
        self._kinds = {kind: _tracked(kind, self._choice, self._other, self._refuse) for kind in (int, float)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        place = _place(func, args)
        if place not in self._places:
            return found
        if func.__name__ in _CONVERTS:  # Python makes plain numbers of them
            self._refuse(f"is read at {place}")
        if isinstance(found, bool):
            return self._choice(place, found)
        rows = [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        most = args[0].numel() // max(rows[0][:1].numel(), 1) if rows else 0
        count = min(max(self._changed(len(rows[0])), 0), most) if rows else 0
        return tree_map(lambda leaf: self._another(leaf, count), found)

    def _another(self, leaf: Any, count: int) -> Any:
        """Another number, or a tensor of `count` other rows."""
        if isinstance(leaf, bool):
            return self._changed(2 * leaf - 1) > 0
        if not isinstance(leaf, Tensor):
            return self._other(self._changed(leaf))
        other = ~leaf if leaf.dtype == torch.bool else 3 * leaf.detach() + 1
        given = torch.cat([other, other.new_ones(1, *other.shape[1:])])
        return given[torch.arange(count, device=leaf.device) % len(given)]

    def _changed(self, number: Any) -> Any:
        self.given += 1
        return _CHANGES[self.change](self, number)

    def _refuse(self, deed: str) -> None:
        self.unfollowed = True  # the step may catch this
        raise ConfigurationError(f"a number that nobody could follow {deed}")

    def _choice(self, place: str, answer: bool) -> bool:
        self._asked[place] += 1
        if self._asked[place] > _MOST_QUESTIONS:
            raise ConfigurationError(f"expected code that ends whatever the answer at {place}, got a loop")
        question = f"{place}, time {self._asked[place]}"
        self.questions[question] = None
        if self._asked[place] < 1_000:  # later, a loop may wait for another answer
            answer = _ANSWERS[self.answer](self.random, answer)
        return answer ^ (question in self.flipped)

    def _other(self, number: Any) -> Any:
        """The number as one that remembers where it came from."""
        kind = self._kinds.get(type(number))
        return number if kind is None else kind(number)


def _tracked(
    kind: type, choice: Callable[[str, bool], bool], other: Callable[[Any], Any], refuse: Callable[[str], None]
) -> type:
    """A kind of number whose comparisons are questions, and whose sums and products are such numbers too."""

    def comparing(name: str) -> Callable[..., Any]:
        def compare(number: Any, *operands: Any) -> Any:
            found = getattr(kind, name)(number, *operands)
            return found if found is NotImplemented else choice(f"{user_line(sys._getframe(1))} {name}", found)

        return compare

    def calculating(name: str) -> Callable[..., Any]:
        return lambda number, *operands: tree_map(other, getattr(kind, name)(number, *operands))

    def refusing(*_: Any) -> None:
        refuse("is looked up, or becomes a text")

    made = {name: comparing(name) for name in (*_COMPARES, "__bool__")}
    made |= {name: calculating(name) for name in _CALCULATES}
    return type(f"Read{kind.__name__}", (kind,), {**made, **dict.fromkeys(_UNFOLLOWED, refusing)})


def asked(model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor]) -> Answers:
    """Runs the step in plain PyTorch, and records the values that it reads."""
    answers = Answers()
    _results(model, loss, batch, answers)
    return answers


def are_reports(model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor], places: set[str]) -> bool:
    """Tries whether loss, gradients and buffers keep every bit with other answers at these places."""
    try:
        expected, beginning = _results(model, loss, batch, Answers(), _later), _later
    except ConfigurationError:  # a number may be a place, which a step cannot begin at
        expected, beginning = _results(model, loss, batch, Answers(), _apart), _apart
    waiting, seen, alone, ended = [first := _Trial(places)], dict[str, None](), True, 0
    for runs, trial in enumerate(waiting):
        try:
            found = _results(model, loss, batch, trial, beginning)
        except ConfigurationError:  # the step fails with another answer; a logarithm may take no negative number
            found = [] if trial.unfollowed or not trial.change else expected
        else:
            ended += trial.change > 0
        if trial.unfollowed or len(found) != len(expected) or not all(map(_same, found, expected)):
            return False
        new = [question for question in trial.questions if question not in seen]
        seen |= dict.fromkeys(new)
        if alone or len(waiting) < 2 * _MOST_RUNS:
            waiting += [_Trial(places, trial.flipped | {question}, trial.answer, trial.change) for question in new]
        if alone and len(waiting) > _MOST_RUNS:
            return False
        if alone and runs + 1 == len(waiting):
            alone, sizes = False, range(2, len(seen) + 1) if len(seen) <= 4 else range(0)
            waiting += [_Trial(places, {*some}) for size in sizes for some in combinations(seen, size)]
            waiting += [_Trial(places, answer=k) for k in range(1, len(_ANSWERS) * (len(seen) > 4))]
            waiting += [_Trial(places, change=k) for k in range(1, len(_CHANGES) * (first.given > 0))]
    return ended >= 4 or not first.given


def _results(
    model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor], mode: TorchFunctionMode,
    beginning: Callable[[str, Tensor], Tensor] = lambda _, tensor: tensor,
) -> list[Tensor]:  # fmt: skip
    run = StepRun(model, [loss], batch)
    run.beginning, run.watch = beginning, mode
    torch.manual_seed(SEED)
    run()
    return run.results()


def _apart(name: str, tensor: Tensor) -> Tensor:
    """A tensor of the state as it might be later: numbers keep their signs, and no two tensors are equal."""
    if not tensor.is_floating_point():
        return tensor
    noise = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(crc32(name.encode())))
    return (tensor * (1 + noise / 8) + noise / 1024).to(tensor.dtype)


def _later(name: str, tensor: Tensor) -> Tensor:
    """The same, and counters have counted some steps."""
    counts = tensor.ndim == 0 and not tensor.is_floating_point() and tensor.dtype != torch.bool
    return tensor + 7 if counts else _apart(name, tensor)


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
