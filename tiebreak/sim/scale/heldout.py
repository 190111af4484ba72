"""What the model says of points that it was not fitted to, beside what was measured there.

Each comparison has a bound that was set before it was made: seconds, memory and bytes of logs within a factor, gas
within 5 %, numbers of moves exactly. What lies beyond is told, and the test of it fails.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from tiebreak.sim.scale.fitting import Prediction
from tiebreak.sim.scale.measurements import Measurements
from tiebreak.sim.scale.model import CostModel, log_features, memory_features, step_features
from tiebreak.sim.scale.walks import moves_of

TIME, DISK, LOGS, MEMORY, GAS, EXACT = 2.0, 3.0, 3.0, 1.5, 1.05, 1.0
"""Factors within which a prediction has to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One prediction and the measurement. factor: the greater over the smaller. source: the result file."""

    group: str
    what: str
    case: str
    unit: str
    predicted: Prediction
    measured: float
    bound: float
    source: str

    @property
    def factor(self) -> float:
        """1 if they are equal."""
        low, high = sorted((self.predicted.value, self.measured))
        return high / low if low else float("inf")

    @property
    def holds(self) -> bool:
        """Whether it is within its bound."""
        return self.factor <= self.bound

    @property
    def is_inside(self) -> bool:
        """Whether the measurement lies between the prediction's own bounds."""
        return self.predicted.low <= self.measured <= self.predicted.high


def comparisons(model: CostModel, m: Measurements) -> list[HeldOut]:
    """All of them."""
    return [*_steps(model, m), *_threads(model, m), *_states(model, m), *_memory(model, m), *_logs(model, m),
            *_disputes(model, m)]  # fmt: skip


def _steps(model: CostModel, m: Measurements) -> Iterator[HeldOut]:
    """Steps of the models at their published sizes, on one thread as the others."""
    for step in m.held_out:
        features = step_features(step.counts)
        for what, fit, measured in (
            ("plain step", model.eager, step.eager),
            ("trainer's step", model.trainer, step.trainer),
            ("step with every value hashed", model.hashed, step.hashed),
        ):
            yield HeldOut(
                group="time", what=what, case=step.name, unit="s", predicted=fit.predict(features), measured=measured,
                bound=TIME, source="scale",
            )  # fmt: skip
        yield HeldOut(
            group="time", what="trainer / plain", case=step.name, unit="x", predicted=model.slowdown(step.counts),
            measured=step.trainer / step.eager, bound=TIME, source="scale",
        )  # fmt: skip


def _threads(model: CostModel, m: Measurements) -> Iterator[HeldOut]:
    """The same on two threads and another day: half of one thread's seconds, and the ratio to plain PyTorch."""
    engine = m.others["engine"]
    for step in m.held_out:
        case = f"{step.name}, 2 threads"
        yield HeldOut(
            group="time", what="trainer's step", case=case, unit="s",
            predicted=model.trainer.predict(step_features(step.counts)).times(0.5),
            measured=engine.get("trainer: a step", case, "ms") / 1e3, bound=TIME, source="engine",
        )  # fmt: skip
        yield HeldOut(
            group="time", what="trainer / plain", case=case, unit="x", predicted=model.slowdown(step.counts),
            measured=engine.get("trainer / eager FP32", case, "x"), bound=TIME, source="engine",
        )  # fmt: skip
    accumulate = m.others["accumulate"]
    for log2 in (20, 24):
        yield HeldOut(
            group="time", what="accumulator tree", case=f"2^{log2} terms", unit="s",
            predicted=model.sums.predict({"trees": 1, "terms": 1 << log2}),
            measured=accumulate.get("tree", f"2^{log2} terms", "s"), bound=TIME, source="accumulate",
        )  # fmt: skip


STATES: Final = (("ResNet-50, 0.20 GB in 428 tensors", 428, 0.20), ("GPT-2 124M, 1.49 GB in 444 tensors", 444, 1.49))
"""Case in results/commit.json, its tensors, its GB."""


def _states(model: CostModel, m: Measurements) -> Iterator[HeldOut]:
    commit, features = m.others["commit"], {"tensors": 0.0, "bytes": 0.0}
    for case, tensors, gigabytes in STATES:
        features = {"tensors": tensors, "bytes": gigabytes * 1e9}
        measured = gigabytes / commit.get("state ids, 1 thread", case, "GB/s")
        yield HeldOut(
            group="time", what="hashing a state", case=case, unit="s", predicted=model.hashing.predict(features),
            measured=measured, bound=TIME, source="commit",
        )  # fmt: skip
    case = "GPT-2 124M with Adam, k = 10"
    wrote = commit.get("hash and write the state", case, "s") - commit.get("hash the state", case, "s")
    yield HeldOut(
        group="time", what="writing a state", case=case, unit="s", predicted=model.writing.predict(features),
        measured=wrote, bound=DISK, source="commit",
    )  # fmt: skip


def _memory(model: CostModel, m: Measurements) -> Iterator[HeldOut]:
    for step in m.held_out:
        yield HeldOut(
            group="memory", what="trainer's peak", case=step.name, unit="bytes",
            predicted=model.memory.predict(memory_features(step.counts)),
            measured=m.others["memory"].get("trainer: peak memory", step.name, "MB") * 1e6, bound=MEMORY,
            source="memory",
        )  # fmt: skip


def _logs(model: CostModel, m: Measurements) -> Iterator[HeldOut]:
    """The logged ResNet-50 takes 64 images of 32 x 32, four times as many as the step that was counted."""
    logged = m.others["logged"]
    for name, step, factor in (("gpt2", m.step("gpt2"), 1), ("resnet50", m.step("resnet50-32"), 4)):
        case = f"bytes, {name}, b=32, proven"
        yield HeldOut(
            group="logs", what="rounding log of a step", case=case, unit="bytes",
            predicted=model.logs.predict({k: v * factor for k, v in log_features(step.counts).items()}),
            measured=logged.get("sparse log", case, "bytes a step"), bound=LOGS, source="logged",
        )  # fmt: skip


PLAYED: Final = (*(("sum of 768 products", levels) for levels in range(1, 6)),
                 *((case, 5) for case in ("sum of 50257 products", "exp", "weight")))  # fmt: skip
"""Disputes in results/million_steps.json."""


def _disputes(model: CostModel, m: Measurements) -> Iterator[HeldOut]:
    played = m.others["million_steps"]
    for number, (name, levels) in enumerate(PLAYED):
        case, place = f"{name}, r = {levels}", replace(m.places[name], levels=levels)
        gas = model.gas.dispute(place)[0]
        if not number:  # the first game on that board
            gas = gas.plus(Prediction.exactly(model.gas.first_payout))
        yield HeldOut(
            group="gas", what="a dispute", case=case, unit="gas", predicted=gas,
            measured=played.get("gas in all", case, "gas"), bound=GAS, source="million_steps",
        )  # fmt: skip
        yield HeldOut(
            group="moves", what="transactions", case=case, unit="",
            predicted=Prediction.exactly(1 + len(moves_of(place))),
            measured=played.get("transactions", case, ""), bound=EXACT, source="million_steps",
        )  # fmt: skip
