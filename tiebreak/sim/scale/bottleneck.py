"""What gives way first when a job grows: in parameters, in steps, in the number of jobs.

A budget is a limit on one cost. Some are the user's (a clock, memory, disks, time, a chain), some this version's own:
limits on what a program or a file may hold. All costs grow with all three directions, so the place where a budget is
spent is found by halving the distance, on a scale of logarithms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tiebreak.engine.run.directory import MAX_METRICS_BYTES, MAX_RECORDS_BYTES
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import MAX_INSTRUCTIONS, MAX_TERMS
from tiebreak.protocol.program.program import Limits
from tiebreak.sim.scale.model import CostModel, Costs, Setting
from tiebreak.sim.scale.subjects import transformer_subject

DIRECTIONS: Final = ("parameters", "steps", "jobs")
MOST: Final = {"parameters": 10**15, "steps": 10**12, "jobs": 10**12}
"""How far each direction is looked along."""
DAY: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What a user has. days: within which a job is trained, and all jobs are audited and settled.

    auditor_cores: that audit all jobs. chain_share: of the chain's gas in that time, for these jobs.
    """

    memory_bytes: float = 128e9
    disk_bytes: float = 4e12
    days: float = 30
    auditor_cores: float = 1
    replay_time: float = 3600
    block_gas: float = 30e6
    block_seconds: float = 12
    chain_share: float = 0.01

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigurationError(f"expected {name} above zero, got {getattr(self, name)}")

    @property
    def chain_gas(self) -> float:
        """For these jobs, in all the time."""
        return self.block_gas / self.block_seconds * self.chain_share * self.days * DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A limit on one cost, and what would lift it."""

    name: str
    limit: float
    unit: str
    load: Callable[[Setting, Costs], float]
    lift: str
    own: bool = False
    """Whether it is a limit of this version, not of the user's means."""


def budgets_of(b: Budgets) -> tuple[Budget, ...]:
    """All, the user's first."""
    time = b.days * DAY
    return (
        Budget(name="memory of a machine", limit=b.memory_bytes, unit="bytes", load=lambda _, c: c.memory.value,
               lift="a step over several machines: the program is one list of instructions, nothing splits it yet"),
        Budget(name="time to train one job", limit=time, unit="s", load=lambda _, c: c.training.value,
               lift="a faster device (--step-seconds), or several"),
        Budget(name="time to audit all jobs", limit=time * b.auditor_cores, unit="s",
               load=lambda _, c: c.all_auditing.value,
               lift="more auditors: segments between kept checkpoints can be replayed apart, or a share audited"),
        Budget(name="replay time of one move", limit=b.replay_time, unit="s", load=lambda _, c: c.replay_move.value,
               lift="a shorter checkpoint interval, every checkpoint kept, or a longer replay time in the job"),
        Budget(name="disk for one run", limit=b.disk_bytes, unit="bytes", load=lambda _, c: c.run_bytes.value,
               lift="--keep every:M or last, a longer interval"),
        Budget(name="disk for all runs", limit=b.disk_bytes * b.auditor_cores, unit="bytes",
               load=lambda _, c: c.all_bytes.value, lift="drop a run's states once its job is settled"),
        Budget(name="gas of one block", limit=b.block_gas, unit="gas", load=lambda _, c: c.move_gas.value,
               lift="fewer levels a move (r)"),
        Budget(name="gas of the chain", limit=b.chain_gas, unit="gas", load=lambda _, c: c.all_gas.value,
               lift="a cheaper chain, or many jobs under one posted root"),
        *_own(Limits()),
    )  # fmt: skip


def _own(limits: Limits) -> tuple[Budget, ...]:
    """What this version refuses, whatever machine it runs on."""
    raised = "a higher `tiebreak.protocol.program.program.Limits`, which each machine sets for itself"
    return (
        Budget(name="elements of a step", limit=limits.total_elements, unit="", own=True, lift=raised,
               load=lambda s, _: s.subject.counts.elements),
        Budget(name="terms of a step", limit=limits.total_terms, unit="", own=True, lift=raised,
               load=lambda s, _: s.subject.counts.products / 2 + s.subject.counts.terms),
        Budget(name="elements of a value", limit=limits.value_elements, unit="", own=True, lift=raised,
               load=lambda s, _: s.subject.counts.largest),
        Budget(name="instructions of a program", limit=MAX_INSTRUCTIONS, unit="", own=True,
               lift="a longer field in the job: part of the signed format",
               load=lambda s, _: s.subject.counts.instructions),
        Budget(name="terms of a sum", limit=MAX_TERMS, unit="", own=True,
               lift="a deeper accumulator tree: part of the protocol", load=lambda s, _: s.subject.counts.longest),
        Budget(name="bytes of records", limit=MAX_RECORDS_BYTES, unit="bytes", own=True,
               lift="a longer interval, or a higher limit in `tiebreak.engine.run.directory`",
               load=lambda _, c: c.records_bytes.value),
        Budget(name="bytes of metrics", limit=MAX_METRICS_BYTES, unit="bytes", own=True,
               lift="a line of metrics for every some steps, or a higher limit in `tiebreak.engine.run.directory`",
               load=lambda _, c: c.metrics_bytes.value),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """A budget at some size, and how much of it is used there."""

    budget: str
    share: float
    limit: float
    unit: str
    lift: str
    own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The first budget that is spent in a direction. at: the greatest size that is within all of them.

    at is None if the user's own figures are over it already; then `first` is the one most overspent. first is None if
    nothing gives way as far as was looked.
    """

    direction: str
    start: float
    at: float | None
    first: Spent | None
    extrapolated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Sizes in every direction from a user's figures. sequence, batch: of the family that stands for parameters."""

    model: CostModel
    budgets: tuple[Budget, ...]
    sequence: int = 1024
    batch: int = 8

    def at(self, setting: Setting, direction: str, size: int) -> Setting:
        """The same job of another size. More steps have longer segments only if the interval would not fit."""
        match direction:
            case "parameters":
                subject = transformer_subject(
                    size, sequence=self.sequence, batch=self.batch, steps=setting.steps, interval=setting.interval
                )
                return replace(setting, subject=subject)
            case "steps":
                return replace(setting, steps=max(size, setting.interval))
            case "jobs":
                return replace(setting, jobs=size)
        raise ConfigurationError(f"expected one of {', '.join(DIRECTIONS)}, got {direction}")

    def spent(self, setting: Setting) -> list[Spent]:
        """All budgets, the most used first."""
        costs = self.model.costs(setting)
        found = [
            Spent(
                budget=b.name,
                share=b.load(setting, costs) / b.limit,
                limit=b.limit,
                unit=b.unit,
                lift=b.lift,
                own=b.own,
            )
            for b in self.budgets
        ]
        return sorted(found, key=lambda spent: -spent.share)

    def first(self, setting: Setting, direction: str) -> Bottleneck:
        """What gives way first, and where."""
        start = _size(setting, direction)
        here = self.spent(setting)[0]
        if here.share > 1:
            return Bottleneck(direction=direction, start=start, at=None, first=here, extrapolated=False)
        low, high = start, start
        while high < MOST[direction] and self._within(setting, direction, high):
            low, high = high, min(MOST[direction], high * 4)
        if self._within(setting, direction, high):
            return Bottleneck(direction=direction, start=start, at=high, first=None, extrapolated=True)
        while high > low + 1 and high > low * 1.001:
            middle = min(high - 1, max(low + 1, round((low * high) ** 0.5)))
            low, high = (middle, high) if self._within(setting, direction, middle) else (low, middle)
        beyond = self.at(setting, direction, high)
        extrapolated = self.model.costs(beyond).trainer_step.extrapolated
        return Bottleneck(
            direction=direction, start=start, at=low, first=self.spent(beyond)[0], extrapolated=extrapolated
        )

    def limits(self, setting: Setting, direction: str) -> list[Bottleneck]:
        """How far each budget lasts, as if there were no other."""
        return [replace(self, budgets=(budget,)).first(setting, direction) for budget in self.budgets]

    def _within(self, setting: Setting, direction: str, size: int) -> bool:
        return self.spent(self.at(setting, direction, size))[0].share <= 1


def _size(setting: Setting, direction: str) -> int:
    return {"parameters": setting.subject.parameters, "steps": setting.steps, "jobs": setting.jobs}[direction]


def bottlenecks(growth: Growth, setting: Setting, directions: Sequence[str] = DIRECTIONS) -> list[Bottleneck]:
    """One for each direction."""
    return [growth.first(setting, direction) for direction in directions]
