"""The time that `tiebreak train --monitor` adds to a step: the demo's runs with and without it, four steps in turns.

    python -m benchmarks.monitor

Both are one run in one process. The machine may be busy with other work, so medians of many turns are compared. Few
steps have a sample, so the medians leave these out. Therefore the parts are also measured alone and added up: the call
after each step that only looks at the clock, and a sample with its line for each second of steps, with which a run
begins; later they are rarer.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import click

from benchmarks.table import Row, placed, publish, rows_of
from tiebreak.api.machine import Machine
from tiebreak.api.machine.running import make_interpreter
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training.bundle import capture_bundle
from tiebreak.api.training.runs import agree_on
from tiebreak.api.watching.sampling import INTERVAL, Sampler
from tiebreak.demo.tasks.loader import load_task
from tiebreak.engine.run.logs import NO_LOGS
from tiebreak.engine.run.loop import steps
from tiebreak.engine.run.train import Progress
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.terms import Terms

TURNS: Final = 200
STEPS: Final = 4
CALLS: Final = 20_000
SAMPLES: Final = 300


def measure(name: str) -> list[Row]:
    """Seconds of a step, and what monitoring adds to it, as measured in turns and as added up."""
    client, trainer = new_key(), new_key()
    with tempfile.TemporaryDirectory() as scratch:
        bundle = capture_bundle(load_task(name, steps=2 * TURNS * STEPS + STEPS), check="none")
        run = agree_on(bundle, Path(scratch) / "run", client=client, trainer=trainer, terms=Terms(), domain=OFF_CHAIN)
        interpreter = make_interpreter(run.program, Machine(threads=1), run.job)
        state, data = interpreter.to_device(run.state(0)), interpreter.place_data(run.data())
        computed = steps(interpreter, state, data, range(1, run.job.steps + 1), sums=NO_LOGS.before)
        sampler, taken = Sampler(run), {False: list[float](), True: list[float]()}
        told = Progress(step=0, steps=0, loss=0.0, loss_bits=0, seconds=0.0, resolving=0.0, waiting=0.0)
        for _ in range(STEPS):  # instructions are planned
            next(computed)
        for turn in range(2 * TURNS):
            is_monitored = turn % 2 == turn // 2 % 2  # so that neither is always first
            for _ in range(STEPS):
                began = time.perf_counter()
                step, result, _ = next(computed)
                run.add_metric(step, result.loss, 0.0)
                if is_monitored:
                    sampler(told)
                taken[is_monitored].append(time.perf_counter() - began)
        began = time.perf_counter()
        idle = Sampler(run, interval=3600)
        for _ in range(CALLS):
            idle(told)
        call = (time.perf_counter() - began) / CALLS
        always, each = Sampler(run, interval=0), []
        for _ in range(SAMPLES):
            began = time.perf_counter()
            always(told)
            each.append(time.perf_counter() - began)
    plain, monitored, sample = (statistics.median(values) for values in (taken[False], taken[True], each))
    case = f"{name}, one thread"
    added = call + min(1.0, plain / INTERVAL) * sample
    shares = {"added in turns / step": 100 * (monitored / plain - 1), "added up / step": 100 * added / plain}
    return [
        *rows_of(case, "ms", {"step": 1e3 * plain}),
        *rows_of(case, "us", {"a call without a sample": 1e6 * call, "a sample": 1e6 * sample}),
        *rows_of(case, "%", shares, dict.fromkeys(shares, "< 1")),
    ]


@click.command()
@placed
def main(folder: Path) -> None:
    """Measure what monitoring costs a step."""
    publish("monitor", [row for name in ("digits", "text") for row in measure(name)], "medians", folder=folder)


if __name__ == "__main__":
    main()
