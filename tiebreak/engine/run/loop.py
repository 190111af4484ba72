"""The one loop over steps: training, replays, evidence and the simulator's runs are this, and differ in what they see.

Algorithms 1 and 2 of the paper meet here: a trainer's steps record how sums near a tie were rounded, everybody else's
follow what was recorded. What does either is handed in for each step.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from tiebreak.engine.run.interpreter import Interpreter, Observer, State, StepResult, Sums

S = TypeVar("S", bound=Sums)


class Done(NamedTuple, Generic[S]):
    """A step that was computed. sums: what settled its logged sums, None under policy `exact`."""

    number: int
    result: StepResult
    sums: S | None


def steps(
    interpreter: Interpreter,
    state: State,
    data: State,
    numbers: Iterable[int],
    *,
    sums: Callable[[int], S | None],
    observe: Callable[[int], Observer | None] = lambda _: None,
    check_finite: bool = False,
    donate: Callable[[], bool] = lambda: False,
) -> Iterator[Done[S]]:
    """Computes steps of these numbers (ascending, without gaps), each when it is asked for, from the state before them.

    sums, observe, donate: asked once before each step, for what `Interpreter.step` takes. With `donate`, nobody may
    read a result's state once the next step was asked for.
    """
    for number in numbers:
        settling = sums(number)
        result = interpreter.step(
            number, state, data, observe(number), check_finite=check_finite, donate=donate(), sums=settling
        )
        state = result.state
        yield Done(number, result, settling)


def exact(_step: int) -> Sums | None:
    """What settles logged sums where there are none: nothing."""
    return None
