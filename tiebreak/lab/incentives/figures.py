"""The figures that a user gives for a job. They are read strictly and turned into `JobEconomics`."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from decimal import Decimal
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

from tiebreak.lab.incentives.economics import MOST_AUDITORS, JobEconomics, TransactionCosts
from tiebreak.lab.incentives.measured import WORST
from tiebreak.protocol.commitments.job import MAX_SEATS
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError

WEI: Final = 10**18
YEAR: Final = 365 * 24 * 3600
MOST: Final = 10**15
MOST_STEPS: Final = 10**12
MOST_SEGMENTS: Final = 10**6
MOST_BYTES: Final = 1 << 16
DEFAULTS: Final = Terms()


@dataclass(frozen=True, slots=True)
class Range:
    """The meaning of a figure and its valid range."""

    what: str
    least: int = 0
    most: int = MOST
    above: int | None = None

    def check(self, name: str, value: int | Fraction) -> None:
        """Raises `ConfigurationError` for a value out of range."""
        if self.above is not None and not value > self.above:
            raise ConfigurationError(f"{name}: expected more than {self.above}, got {float(value):g}")
        if not self.least <= value <= self.most:
            raise ConfigurationError(f"{name}: expected {self.least} to {self.most}, got {float(value):g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures that a client knows or assumes about a job. Amounts in dollars unless a name says otherwise.

    Numbers are rational and exactly as written (0.05 is 1/20). Defaults are assumptions.
    """

    steps: Annotated[int, Range("steps of the run", least=1, most=MOST_STEPS)]
    seconds_per_step: Annotated[Fraction, Range("machine seconds of a training step", above=0)]
    machine_hour: Annotated[Fraction, Range("dollars for an hour of one machine", above=0)]
    machines: Annotated[int, Range("machines that train in parallel", least=1, most=10**6)] = 1
    replay_ratio: Annotated[Fraction, Range("cost of replaying a step, in training steps", above=0)] = Fraction(1)
    slow_data: Annotated[Fraction, Range("factor by which the worst data slow a step", least=1)] = WORST
    checkpoint_interval: Annotated[int, Range("steps of a segment", least=1, most=MOST_STEPS)] = 1000
    sample: Annotated[int, Range("segments that an audit replays, drawn at random; 0: all", most=MOST_SEGMENTS)] = 0
    lie_value: Annotated[Fraction, Range("dollars that false weights earn the trainer, without saved compute")]
    lie_kept: Annotated[Fraction, Range("share of those dollars that a convicted trainer keeps", most=1)] = Fraction(1)
    harm: Annotated[Fraction, Range("dollars that false weights cost the client, apart from the reward")]
    auditors: Annotated[int, Range("number of auditors", least=1, most=MOST_AUDITORS)] = 1
    audit_probability: Annotated[Fraction, Range("probability that each of them audits", above=0, most=1)] = Fraction(1)
    seats: Annotated[int, Range("seats, whose auditors the board pays", least=1, most=MAX_SEATS)] = 1
    bought: Annotated[Fraction, Range("share of the pool that a cheat owns; 0: what pays it best", most=1)] = Fraction(
        0
    )
    profit: Annotated[Fraction, Range("profit in reward and fees, as a share of the cost")] = Fraction(1, 5)
    capital_rate: Annotated[Fraction, Range("cost of capital, as a share per year")] = Fraction(1, 20)
    ether: Annotated[Fraction, Range("price of an ether in dollars", above=0)] = Fraction(3000)
    gas_price: Annotated[Fraction, Range("price of gas in gwei")] = Fraction(5)
    clock: Annotated[int, Range("seconds that each side has in a dispute", least=1, most=10**9)] = DEFAULTS.clock
    least_window: Annotated[int, Range("seconds of the shortest challenge window", least=1, most=10**9)] = 24 * 3600
    descent_levels: Annotated[int, Range("levels of a tree that a move of a dispute shows", least=1, most=5)] = 5
    margin: Annotated[Fraction, Range("factor by which your figures may be wrong", least=1)] = Fraction(2)

    def __post_init__(self) -> None:
        for name, (_, limits) in FIGURES.items():
            limits.check(name, getattr(self, name))
        if self.segments > MOST_SEGMENTS:
            raise ConfigurationError(
                f"checkpoint_interval: expected at most {MOST_SEGMENTS} segments, got {self.segments}"
            )
        if self.sample > self.segments:
            raise ConfigurationError(f"sample: expected at most {self.segments} segments, got {self.sample}")

    @classmethod
    def of(cls, values: Mapping[str, Any], base: "Figures | None" = None) -> "Figures":
        """Figures from names and numbers: all that have no default, or those that change `base`."""
        for name in values:
            if name not in FIGURES:
                raise ConfigurationError(f"expected figures such as {', '.join(list(FIGURES)[:4])}, got {name!r}")
        exact: dict[str, Any] = {name: _number(name, value, FIGURES[name][0]) for name, value in values.items()}
        if base is not None:
            return replace(base, **exact)
        missing = [entry.name for entry in fields(cls) if entry.default is MISSING and entry.name not in exact]
        if missing:
            raise ConfigurationError(f"expected figures for {', '.join(missing)}, got none")
        return cls(**exact)

    @property
    def segments(self) -> int:
        return -(-self.steps // self.checkpoint_interval)

    @property
    def sampled(self) -> int:
        return self.sample or self.segments

    @property
    def training_cost(self) -> Fraction:
        """Dollars of compute for the whole run."""
        return self.steps * self.seconds_per_step * self.machine_hour / 3600

    @property
    def training_seconds(self) -> Fraction:
        """Seconds from the first step to the last."""
        return self.steps * self.seconds_per_step / self.machines

    @property
    def segment_seconds(self) -> Fraction:
        """Training seconds of one segment."""
        return min(self.steps, self.checkpoint_interval) * self.seconds_per_step / self.machines

    def wei(self, dollars: Fraction) -> int:
        """An amount in wei, rounded up."""
        return ceil(dollars / self.ether * WEI)

    def dollars(self, wei: Fraction | int) -> float:
        """An amount in dollars, as a float for display."""
        return float(Fraction(wei) / WEI * self.ether)

    def heads(self, window: int) -> int:
        """Number of posted heads: two in each window, so that a late one does not end the job; at least the last."""
        return min(self.segments, max(1, ceil(2 * self.training_seconds / window)))

    def job_seconds(self, terms: Terms) -> int:
        """Seconds from acceptance to settlement, if the heads come evenly and nobody challenges them."""
        heads, audits = self.heads(terms.challenge_window), self.segments * terms.audit_time
        if terms.seats:  # all audits begin with the final head, and seal before it is opened
            return ceil(self.training_seconds) + max(audits, terms.challenge_window) + terms.challenge_window
        audited = max(self.training_seconds / heads + audits, self.training_seconds + Fraction(audits, heads))
        return ceil(max(self.training_seconds + terms.challenge_window, audited))

    def economics(self, terms: Terms, gas: Mapping[str, int], **more: Any) -> JobEconomics:
        """The job under these terms; where they have seats, the auditors are those that hold them.

        gas: as `measured`. more: decoys, or rules that the contract does not have.
        """
        heads, audited = self.heads(terms.challenge_window), {}
        if terms.seats:
            audited = {
                "seated": True, "auditors": terms.seats, "sampled": self.segments, "fee": terms.seat_fee,
                "bond": terms.seat_bond, "bought": self.bought,
            }  # fmt: skip
        values: dict[str, Any] = {
            "reward": terms.reward,
            "trainer_stake": terms.trainer_stake,
            "challenger_stake": terms.challenger_stake,
            "training": self.wei(self.training_cost),
            "audit": self.wei(self.training_cost * self.replay_ratio),
            "lie": self.wei(self.lie_value),
            "kept": self.lie_kept,
            "harm": self.wei(self.harm),
            "segments": self.segments,
            "sampled": self.sampled,
            "auditors": self.auditors,
            "audit_probability": self.audit_probability,
            "rate": self.capital_rate / YEAR,
            "job_seconds": self.job_seconds(terms),
            "game_seconds": 3 * terms.clock + 6 * terms.replay_time,
            "costs": TransactionCosts.of(gas, self.gas_price, heads, opened=bool(terms.seats)),
        }
        found = JobEconomics(**(values | audited | more))
        return replace(found, bought=found.own_share) if found.seated and not found.bought else found


FIGURES: Final[dict[str, tuple[type, Range]]] = {
    name: (hint.__origin__, hint.__metadata__[0]) for name, hint in get_type_hints(Figures, include_extras=True).items()
}
"""Maps each figure to its type (int or Fraction) and range, in order."""


def _number(name: str, value: object, kind: type) -> int | Fraction:
    if isinstance(value, bool) or not isinstance(value, int | Decimal | Fraction):
        raise ConfigurationError(f"{name}: expected a number, got {value!r}")
    if isinstance(value, Decimal) and not value.is_finite():
        raise ConfigurationError(f"{name}: expected a finite number, got {value}")
    if isinstance(value, Decimal) and not -30 <= value.adjusted() <= 30:
        raise ConfigurationError(f"{name}: expected a number of 1e-30 to 1e30, got {value}")
    exact = Fraction(value)
    if kind is int and exact.denominator != 1:
        raise ConfigurationError(f"{name}: expected a whole number, got {value}")
    return int(exact) if kind is int else exact


def load(path: Path, base: Figures | None = None) -> Figures:
    """Figures from a TOML or JSON file, chosen by its suffix. Raises `ConfigurationError` for an invalid file."""
    if path.suffix not in (".toml", ".json"):
        raise ConfigurationError(f"{path}: expected a file named .toml or .json, got {path.suffix or 'no suffix'!r}")
    data = path.read_bytes()
    if len(data) > MOST_BYTES:
        raise ConfigurationError(f"{path}: expected at most {MOST_BYTES} bytes, got {len(data)}")
    try:
        text = data.decode()
        if path.suffix == ".toml":
            values: Any = tomllib.loads(text, parse_float=Decimal)
        else:
            values = json.loads(text, parse_float=Decimal, parse_constant=Decimal, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: expected {path.suffix[1:].upper()}, got {error}") from None
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path}: expected names and numbers, got {type(values).__name__}")
    try:
        return Figures.of(values, base)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name that stands there twice")
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A job to start from. `source`: where its assumptions come from; none of them is measured here."""

    title: str
    figures: Figures
    source: str


def _gpu_seconds(parameters: int, tokens: int, flops: int) -> Fraction:
    """Machine seconds of a step, to three digits, by the usual estimate of 6 FLOP a parameter and token."""
    seconds = Fraction(6 * parameters * tokens, flops)
    return Fraction(f"{float(seconds):.2e}")


GPU_FLOPS: Final = 20 * 10**12
"""Assumed FP64 rate of one GPU in a step, about a third of the 67 TFLOPS that NVIDIA names for the H100 SXM."""
GPU_HOUR: Final = Fraction(5, 2)
_GPU: Final = (
    "6 FLOP a parameter and token; an FP64 rate of 20 TFLOPS in a step, a third of the 67 that NVIDIA names for the "
    "tensor cores of an H100 SXM; 2.50 dollars an hour of such a GPU"
)
PRESETS: Final[dict[str, Preset]] = {
    "fine-tune": Preset(
        title="fine-tune of a small model",
        figures=Figures(
            steps=5000, seconds_per_step=_gpu_seconds(10**9, 16 * 2048, GPU_FLOPS), machine_hour=GPU_HOUR,
            checkpoint_interval=100, lie_value=Fraction(50), harm=Fraction(50),
        ),
        source=f"10^9 parameters, 16 x 2048 tokens a step, on one GPU; {_GPU}",
    ),
    "gpt2": Preset(
        title="GPT-2 124M for 10^5 steps",
        figures=Figures(
            steps=10**5, seconds_per_step=_gpu_seconds(124 * 10**6, 512 * 1024, GPU_FLOPS), machine_hour=GPU_HOUR,
            machines=8, lie_value=Fraction(1000), harm=Fraction(1000),
        ),
        source=f"512 x 1024 tokens a step, on 8 GPUs; {_GPU}",
    ),
    "7b": Preset(
        title="7B for 10^5 steps",
        figures=Figures(
            steps=10**5, seconds_per_step=_gpu_seconds(7 * 10**9, 4 * 1024 * 1024, GPU_FLOPS), machine_hour=GPU_HOUR,
            machines=1024, checkpoint_interval=500, lie_value=Fraction(10**5), harm=Fraction(10**6),
        ),
        source=f"4M tokens a step, on 1024 GPUs; {_GPU}",
    ),
}  # fmt: skip
