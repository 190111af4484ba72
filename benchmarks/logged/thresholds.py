"""Part `thresholds` of `benchmarks.logged`: Algorithm 3 on a model's own steps. It saves the policies that it finds."""

from benchmarks.logged.context import Context
from benchmarks.logged.names import KINDS
from benchmarks.table import Row
from tiebreak.api.machine.environment import describe
from tiebreak.engine.logged.calibration import Calibration
from tiebreak.engine.logged.divergence import variants_of
from tiebreak.engine.logged.policy import LoggedPolicy
from tiebreak.engine.system import usable_cores
from tiebreak.protocol.numbers.float32 import MAX_PRECISION


def thresholds(c: Context) -> list[Row]:
    """Calibrates at b = 32."""
    settings = variants_of(c.sizes.orders, threads=(usable_cores(),), compiled=True)
    calibration = Calibration(settings, precision=MAX_PRECISION)
    of = c.compiled

    def told(done: int, count: int) -> None:
        if 10 * done // count > 10 * (done - 1) // count:
            c.say(f"{done} of {count} sums compared")

    calibration.examine(of.program, of.state, of.data, steps=c.sizes.calibrated_steps, on_progress=told)
    policy = calibration.policy(environment=[f"{name}: {value}" for name, value in describe()])
    path = c.store.policy(c.unit.model)
    path.parent.mkdir(parents=True, exist_ok=True)
    policy.save(path)
    return rows_of(c, policy)


def rows_of(c: Context, policy: LoggedPolicy) -> list[Row]:
    """Rows for the policy and for the evidence that it records."""
    assert policy.measurements is not None  # a calibrated policy always has evidence
    rows = [
        c.row("steps", policy.measurements.steps, ""),
        c.row("settings", len(policy.measurements.settings), ""),
    ]
    for kind, seen in policy.measurements.sums.items():
        threshold, case = policy.thresholds[kind], KINDS[kind]
        assert threshold is not None  # a calibrated threshold is never the proven bound
        rows += [
            c.row("elements compared", seen.elements, "", case),
            c.row("divergence", seen.divergence, "u N", case),
            c.row("error", seen.error, "u N", case),
            c.row("threshold", threshold, "u N", case),
            c.row("tolerance", policy.tolerances[kind], "n: 2^-n of the gap", case),
            c.row("elements logged", seen.logged, "of elements", case),
            c.row("elements open and computed exactly", seen.resolved, "of elements", case),
            c.row("distance by the paper's rule", seen.of_exponent, "of 2^exponent", case),
            c.row(
                "elements that the paper's rule logs",
                min(1.0, seen.of_exponent * 2.0 ** (policy.precision - 8)),
                "",
                case,
            ),
        ]
    return rows
