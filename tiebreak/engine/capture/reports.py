"""Values that a step reads only to report them: metrics, log lines, counts of tokens.

A program has no Python in it, so a step that asks for values of tensors (`item()`, `if t > 0:`, `x[mask]`) has none,
unless the loss is the same whatever the answer. That is tried in plain PyTorch, in three kinds of runs:

1. Numbers get other answers, masks other elements, and each question with the answer yes or no, comparisons of such
   numbers among them, is also answered the other way; so is a question that is first asked in such a run.
2. Several questions are answered the other way: each combination of up to four, else all of them, random ones, or as
   many as it takes for all to be answered yes, or no. So conditions that are joined or counted take both ways.
3. Numbers change by other functions (falling, close to 0, far up, each by one of its own), and comparisons hold. What
   functions in C make of several numbers (orders, means) changes with that.

If loss, gradients and buffers keep every bit in all of these runs, the answers of a first run are as good as any
others, and the step is traced with them. Such a number may not be looked up, become a text, or come from `int()` and
`float()` of a tensor: nobody could follow it then.
"""

import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from random import Random
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
_CALCULATES: Final = (
    *("__neg__", "__pos__", "__abs__", "__round__", "__floor__", "__ceil__", "__trunc__"),
    *(f"__{side}{name}__" for name in "add sub mul truediv floordiv mod divmod pow".split() for side in ("", "r")),
)
_CONVERTS: Final = ("__float__", "__int__", "__index__")
_UNFOLLOWED: Final = ("__hash__", "__format__", "__str__", "__repr__")
_MOST_RUNS: Final = 64
_MOST_QUESTIONS: Final = 100_000
"""More in one run is a loop that waits for an answer."""
_TOGETHER: Final = 4
"""Up to so many questions are answered the other way in each combination."""
_LIKE: Final = 1_000
"""So many questions get the same answer; beyond, a loop may wait for another one."""
_DRAWN: Final = 10
"""The number of random runs of the second kind."""


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


_Answer = Callable[[Random, bool], bool]
_Change = Callable[[Random, Any], Any]


def _as_it_is(_: Random, answer: bool) -> bool:
    return answer


def _raised(_: Random, number: Any) -> Any:
    return 3 * number + 17


def _far(number: Any) -> Any:
    return number + 10_000 if isinstance(number, int) else 1e6 * (abs(number) + 1)  # a loop may count to an integer


def _drawn(random: Random, number: Any) -> Any:
    """A number of either sign close to 0, near the given one, far from it, or small and whole but for a quarter."""
    size = random.choice(
        (1e-6 * number, random.lognormvariate(0, 2) * number, _far(number), random.randrange(9) + 0.25)
    )
    return random.choice((number, type(number)(random.choice((1, -1)) * size)))


_CHANGES: Final[tuple[_Change, ...]] = (
    lambda _, number: -3 * number - 17,
    lambda _, number: type(number)(1e-6 * number),
    lambda _, number: _far(number),
    *(lambda random, number: random.choice((type(number)(1e-6 * number), _far(number))),) * 6,
    *(lambda random, number: abs(_drawn(random, number)),) * 4,  # some functions take no negative numbers
    *(_drawn,) * 3,
)


class _Trial(TorchFunctionMode):
    """Gives other answers at some places.

    flipped: the questions of yes or no that are answered the other way. answer: gives the answer otherwise. change:
    gives another number. Both draw from `seed`.
    """

    def __init__(
        self, places: set[str], flipped: frozenset[str] = frozenset(), answer: _Answer = _as_it_is,
        change: _Change = _raised, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.flipped, self.change = flipped, change
        self._places, self._asked, self._answer, self._seed = places, Counter[str](), answer, seed
        self._random = Random(seed)
        self.questions: dict[str, None] = {}
        """The questions of yes or no that were asked, in order."""
        self.changed = self.unfollowed = False
        """Whether a number or a tensor was changed, and whether a number went where nobody can follow it."""
        self._kinds = {kind: _tracked(kind, self._choice, self._other, self._refuse) for kind in (int, float)}

    def also(self, question: str) -> "_Trial":
        """The same with one more question answered the other way."""
        return _Trial(self._places, self.flipped | {question}, self._answer, self.change, self._seed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        place = _place(func, args)
        if place not in self._places:
            return found
        if func.__name__ in _CONVERTS:  # Python makes plain numbers of them
            self._refuse(f"is read at {place}")
        if isinstance(found, bool):
            return self._choice(place, found)
        self.changed = True
        rows = [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        most = args[0].numel() // max(rows[0][:1].numel(), 1) if rows else 0
        count = min(max(self.change(self._random, len(rows[0])), 0), most) if rows else 0
        return tree_map(lambda leaf: self._another(leaf, count), found)

    def _another(self, leaf: Any, count: int) -> Any:
        """Another number, or a tensor of `count` other rows."""
        if isinstance(leaf, bool):
            return self.change(self._random, 2 * leaf - 1) > 0
        if not isinstance(leaf, Tensor):
            return self._other(leaf, changed=True)
        other = ~leaf if leaf.dtype == torch.bool else 3 * leaf.detach() + 1
        given = torch.cat([other, other.new_ones(1, *other.shape[1:])])
        return given[torch.arange(count, device=leaf.device) % len(given)]

    def _refuse(self, deed: str) -> None:
        self.unfollowed = True  # the step may catch this
        raise ConfigurationError(f"a number that nobody could follow {deed}")

    def _choice(self, place: str, answer: bool) -> bool:
        self._asked[place] += 1
        if self._asked[place] > _MOST_QUESTIONS:
            raise ConfigurationError(f"expected code that ends whatever the answer at {place}, got a loop")
        question = f"{place}, time {self._asked[place]}"
        self.questions[question] = None
        given = self._answer(self._random, answer) if len(self.questions) <= _LIKE else answer
        return given ^ (question in self.flipped)

    def _other(self, number: Any, *, changed: bool = False) -> Any:
        """A number that remembers where it came from; another one than was given if `changed`."""
        kind = self._kinds.get(type(number))
        return number if kind is None else kind(self.change(self._random, number) if changed else number)


def _tracked(
    kind: type, choice: Callable[[str, bool], bool], other: Callable[[Any], Any], refuse: Callable[[str], None]
) -> type:
    """A kind of number whose comparisons are questions, and whose sums and products are such numbers too."""

    def comparing(name: str) -> Callable[..., Any]:
        def compare(number: Any, *operands: Any) -> Any:
            found = getattr(kind, name)(number, *operands)
            if found is NotImplemented:
                return found
            return choice(f"{user_line(sys._getframe(1))} {name}", found)

        return compare

    def calculating(name: str) -> Callable[..., Any]:
        return lambda number, *operands: tree_map(other, getattr(kind, name)(number, *operands))

    def refusing(*_: Any) -> None:
        refuse("is looked up, or becomes a text")

    made = {name: comparing(name) for name in (*_COMPARES, "__bool__")}
    made |= {name: calculating(name) for name in _CALCULATES}
    return type(f"Read{kind.__name__}", (kind,), {**made, **dict.fromkeys(_UNFOLLOWED, refusing)})


def asked(model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor]) -> Answers:
    """The answers of a run in plain PyTorch to what a step asks."""
    answers = Answers()
    _results(model, loss, batch, answers)
    return answers


def are_reports(model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor], places: set[str]) -> bool:
    """Tries whether loss, gradients and buffers keep every bit with other answers at these places."""
    expected = _results(model, loss, batch, Answers())
    waiting, seen, further, ended = [_Trial(places)], dict[str, None](), False, 0
    for runs, trial in enumerate(waiting):
        ends = True
        try:
            found = _results(model, loss, batch, trial)
        except ConfigurationError:  # the step fails with another answer
            if trial.change is _raised or trial.unfollowed:
                return False
            ends = False  # a logarithm may take no negative number
        if ends and (trial.unfollowed or len(found) != len(expected) or not all(map(_same, found, expected))):
            return False
        new = [question for question in trial.questions if question not in seen]
        seen |= dict.fromkeys(new)
        waiting += [trial.also(question) for question in new if not further or len(waiting) < 2 * _MOST_RUNS]
        if not further and len(waiting) > _MOST_RUNS:
            return False
        if not further and runs + 1 == len(waiting):
            further = True
            waiting += [*_together(places, [*seen], {trial.flipped for trial in waiting})]
            waiting += [_Trial(places, change=c, seed=i) for i, c in enumerate(_CHANGES) if waiting[0].changed]
        ended += ends and trial.change is not _raised
    return ended >= len(_CHANGES) // 4 or not waiting[0].changed


def _together(places: set[str], questions: Sequence[str], tried: set[frozenset[str]]) -> Iterator[_Trial]:
    """Runs in which several questions are answered the other way. tried: those that were together in one."""
    if len(questions) <= _TOGETHER:
        sets = (frozenset(some) for size in range(2, len(questions) + 1) for some in combinations(questions, size))
        yield from (_Trial(places, some) for some in sets if some not in tried)
        return
    for answer in (lambda *_: True, lambda *_: False, lambda _, answer: not answer):
        yield _Trial(places, answer=answer)
    for seed in range(_DRAWN):
        share = Random(seed).random()
        yield _Trial(places, answer=lambda random, answer, share=share: answer ^ (random.random() < share), seed=seed)


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
