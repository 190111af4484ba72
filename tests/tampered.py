"""An interpreter that lies, for tests of what convicts it. The simulator has a catalogue of lies of its own."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tiebreak.engine.run.interpreter import Interpreter, Observer, State, StepResult

Tamper = Callable[[int], Observer | None]
"""Maps a step to the observer that replaces honest values in it; None: nothing is replaced."""


class Tampered(Interpreter):
    """An honest interpreter, whose plan and kernels it shares, but for what `tamper` replaces."""

    def __init__(self, honest: Interpreter, tamper: Tamper) -> None:
        vars(self).update(vars(honest))
        self._tamper = tamper

    def step(
        self, number: int, state: State, data: State, observe: Observer | None = None, **options: Any
    ) -> StepResult:
        lie = self._tamper(number)
        if lie is None or observe is None:
            return super().step(number, state, data, observe or lie, **options)
        return super().step(number, state, data, lambda leaf, value: observe(leaf, lie(leaf, value)), **options)


def one_element(step: int, leaf: int, element: int, change: Callable[[Tensor], Tensor]) -> Tamper:
    """Changes one element of one value of one step."""

    def observe(number: int, value: Tensor) -> Tensor:
        if number != leaf:
            return value
        changed = value.clone()
        flat = changed.view(-1)
        flat[element] = change(flat[element])
        return changed

    return lambda number: observe if number == step else None
