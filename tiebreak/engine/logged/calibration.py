"""Algorithm 3 of the paper (`threshold`): how far two computations of the same sum may differ.

For each type of layer, the paper searches between two bounds for a tau such that random inputs of the layer's shape,
computed in permuted orders, never round differently without having been logged. Here the same is done with every logged
sum of the real program, on its real operands, for several steps: in permuted orders, with and without the compiled
kernels, with different numbers of threads, and on each available device.

This differs from the paper in two ways. First, its tau is a share of 2^exponent of the result. If a result of 1 comes
from terms of 10^6, computations differ by 10^6 times as many of these units, so a single cancellation needs a tau that
logs everything, or breaks one that does not. The threshold kappa here is in units of the element's own error, u times
N, where N is the norm of its terms, which the kernels compute along with the sum: one small number fits all elements.
Second, the exact sum is available, so values are compared with it as well as with each other. The distance in the
paper's unit that would cover the same divergences is measured and reported too (`MeasuredSums.of_exponent`).

The *tolerance* 2^-n of a job says how near to a middle a log decides. It is chosen narrow, because within it a trainer
is free in what it logs: n is the largest value with which a given share of the elements would still be logged if they
were open. The other elements, those that cancel most, are computed exactly where they are open, which takes time but no
log.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, floor, log2
from typing import Final

from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.ziv import LEAST, UNIT, NearTies
from tiebreak.engine.logged.divergence import Comparer, Variant
from tiebreak.engine.logged.policy import LoggedPolicy, Measurements
from tiebreak.engine.run import loop
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.float32 import FRACTION_BITS, MAX_PRECISION
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import MAX_TOLERANCE, MIN_TOLERANCE, SumKind, sum_kind

LOW: Final = 1.0
HIGH: Final = 2.0**40
"""The bounds of the search for thresholds, in units of u times the norm. None is below one rounding of the whole."""
FRACTION: Final = 4
"""The number of search steps in a power of two."""
MARGIN: Final = 8.0
"""The factor on the threshold found, since a machine that was not measured may diverge more. Logs grow as much."""
MAX_MARGIN: Final = 2.0**20
SMALLEST: Final = LEAST / UNIT
"""The smallest threshold that the arithmetic takes."""
SHARE: Final = 0.99
SLACK: Final = 18
"""The powers of two by which 2^-n exceeds the error of one rounding in a gap, where nothing was measured."""

OnProgress = Callable[[int, int], None]
"""Called with the number of sums compared so far and in total."""


class CalibrationError(ConfigurationError):
    """No threshold within the bounds covers the divergences seen."""


def threshold(low: float, high: float, covers: Callable[[float], bool]) -> float:
    """Algorithm 3: the smallest threshold that covers, among `FRACTION` per power of two from `low` to `high`.

    covers: whether a threshold covers every divergence seen; if so, all larger ones do. Raises `CalibrationError` if
    none does.
    """
    first, last = ceil(FRACTION * log2(low)), floor(FRACTION * log2(high))
    if not covers(2 ** (last / FRACTION)):
        raise CalibrationError(
            f"expected divergences of at most {high:g} units of u times the norm, got larger ones: this machine "
            "computes sums less accurately than any order of their terms explains; see `tiebreak doctor`"
        )
    while first < last:
        middle = (first + last) // 2
        if covers(2 ** (middle / FRACTION)):
            last = middle
        else:
            first = middle + 1
    return float(2 ** (last / FRACTION))


class Calibration:
    """Compares every logged sum of some programs in several variants, and derives a policy."""

    late: Final[Mapping[str, Tensor]] = {}
    settles: Final = True

    def __init__(self, variants: Sequence[Variant], *, precision: int, seed: int = 0) -> None:
        """Raises `ConfigurationError` for a precision that no policy can have, or if there is nothing to compare."""
        self._proven = proven_policy(precision)
        if len(variants) < 2:
            raise ConfigurationError(f"expected at least two variants to compare, got {len(variants)}")
        self.variants = tuple(variants)
        self.programs: list[str] = []
        self.steps = 0
        self._seed = seed
        self._comparison = Comparer(variants, precision, seed)
        self._compared: Callable[[], None] = lambda: None

    def examine(
        self, program: Program, state: Mapping[str, Tensor], data: Mapping[str, Tensor], *, steps: int,
        on_progress: OnProgress = lambda *_: None,
    ) -> None:  # fmt: skip
        """Runs the first steps of a program under policy `exact`, computing each logged sum in every variant."""
        interpreter = Interpreter(program, Arithmetic(precision=self._proven.precision))
        now, there = interpreter.to_device(state), interpreter.place_data(data)
        count, done = steps * sum(sum_kind(instruction) is not None for instruction in program.body), itertools.count(1)
        self._compared = lambda: on_progress(next(done), count)
        for _ in loop.steps(interpreter, now, there, range(1, steps + 1), sums=lambda *_: self, check_finite=True):
            pass
        self.programs.append(program.root.hex())
        self.steps += steps

    def settle(
        self, _index: int, instruction: Instruction, operands: Sequence[Tensor], _result: Tensor, _near: NearTies
    ) -> None:
        """Called by the interpreter with each logged sum; leaves its result as it is."""
        self._comparison.compare(instruction, operands)
        self._compared()

    def policy(self, *, margin: float = MARGIN, share: float = SHARE, environment: Sequence[str] = ()) -> LoggedPolicy:
        """Thresholds that cover what was seen, times the margin, and the narrowest tolerances for the share.

        share: the part of the elements that must stay loggable. A kind of sum that was not seen keeps the proven bound.
        environment: lines for the record. Raises `CalibrationError`.
        """
        if not 1 <= margin <= MAX_MARGIN:
            raise ConfigurationError(f"expected a margin of 1 to {MAX_MARGIN:g}, got {margin}")
        if not 0 < share <= 1:
            raise ConfigurationError(f"expected a share above 0 and at most 1, got {share}")
        proven = self._proven
        thresholds, tolerances = dict(proven.thresholds), dict(proven.tolerances)
        found = {}
        for kind, seen in self._comparison.seen.items():
            if seen.elements:
                kappa = max(margin * threshold(LOW, HIGH, seen.largest.__le__), SMALLEST)
                thresholds[kind], tolerances[kind] = kappa, seen.tolerance(kappa, share)
                found[kind] = seen.measured(kappa, tolerances[kind])
        measurements = Measurements(
            programs=tuple(self.programs), steps=self.steps,
            orders=len({variant.order for variant in self.variants} - {None}), seed=self._seed, margin=float(margin),
            share=float(share), settings=tuple(map(str, self.variants)), environment=tuple(environment), sums=found,
        )  # fmt: skip
        return replace(proven, thresholds=thresholds, tolerances=tolerances, measurements=measurements)


def proven_policy(precision: int) -> LoggedPolicy:
    """The policy without measurements: its thresholds are the proven bounds. Logs are larger, but nothing can fail."""
    slack = -round(log2(UNIT)) - (precision - (MAX_PRECISION - FRACTION_BITS)) - SLACK
    tolerances = dict.fromkeys(SumKind, min(max(slack, MIN_TOLERANCE), MAX_TOLERANCE))
    return LoggedPolicy(precision=precision, thresholds=dict.fromkeys(SumKind), tolerances=tolerances)
