"""The one loop over steps, which training, replays, evidence and the simulator share; they differ in what they observe.

Algorithms 1 and 2 of the paper meet here: a trainer's steps record how sums near a tie were rounded, and everyone
else's steps follow what was recorded. The caller supplies the object that does either for each step.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import free_memory
from tiebreak.engine.run.cost import require_memory
from tiebreak.engine.run.interpreter import Interpreter, Observer, State, StepResult, Sums
from tiebreak.protocol.program.program import Program

S = TypeVar("S", bound=Sums)


class ComputedStep(NamedTuple, Generic[S]):
    """A computed step. sums: the object that settled its logged sums; None under policy `exact`."""

    number: int
    result: StepResult
    sums: S | None


def steps(
    interpreter: Interpreter, state: State, data: State, numbers: Iterable[int], *,
    sums: Callable[[int, Arithmetic, State], S | None], observe: Observer | None = None, check_finite: bool = False,
    donate: Callable[[], bool] = lambda: False,
) -> Iterator[ComputedStep[S]]:  # fmt: skip
    """Computes the steps of these numbers (ascending, without gaps) lazily, starting from the state before them.

    sums, donate: called once before each step, for the arguments of `Interpreter.step`; `sums` also gets the state
    before it. With `donate`, the state of a result must not be read after the next step was requested.
    """
    for number in numbers:
        settling = sums(number, interpreter.arithmetic, state)
        given = data if settling is None else {**data, **settling.late}
        logged = settling if settling is not None and settling.settles else None
        result = interpreter.step(
            number, state, given, observe, check_finite=check_finite, donate=donate(), sums=logged
        )
        state = result.state
        yield ComputedStep(number, result, settling)


def exact(_step: int, _arithmetic: Arithmetic, _state: State) -> Sums | None:
    """The `sums` of policy `exact`, which has no logged sums to settle."""
    return None


def exact_step(
    program: Program,
    data: Mapping[str, Tensor],
    number: int,
    state: Mapping[str, Tensor],
    device: torch.device,
) -> tuple[State, float]:
    """The state after one step on a device, and its loss, both even if not finite.

    Raises `ConfigurationError` if the device's memory is too little.
    """
    if (free := free_memory(device)) is not None:  # on a CPU, `Interpreter.to_device` knows better
        require_memory(program, free, held=sum(tensor.nbytes for tensor in state.values()))
    interpreter = Interpreter(program, Arithmetic(device))
    held, placed = interpreter.to_device(state), interpreter.place_data(data)
    result = interpreter.step(number, held, placed, check_finite=False)
    return result.state, result.loss
