"""From a user's figures to terms under which honesty and diligence are best replies, and how far off they may be."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, Final

from tiebreak.protocol.commitments.job import MAX_SECONDS
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.sim.incentives.figures import Figures
from tiebreak.sim.incentives.measured import Gas
from tiebreak.sim.incentives.model import Condition, conditions, first_share, honesty, victims_loss
from tiebreak.sim.incentives.setting import Setting

MOST_STAKE: Final = (1 << 128) - 1
DIGITS: Final = 3
RATES: Final = (
    Fraction(1), Fraction(1, 2), Fraction(1, 4), Fraction(1, 10), Fraction(1, 20), Fraction(1, 50), Fraction(1, 100),
)  # fmt: skip
"""Audit probabilities whose stakes are compared."""
FACTORS: Final = 1000
"""Factors are found up to this one, to a thousandth of themselves or so."""
_FINE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """terms: for the job. fee: wei for an audit that was made.

    planted: share of decoys that would do in its place, as auditors are paid by what a decoy's stake pays out; None if
    none would.
    """

    terms: Terms
    fee: int
    planted: Fraction | None
    conditions: tuple[Condition, ...]

    @property
    def holds(self) -> bool:
        """Whether all conditions do."""
        return all(condition.holds for condition in self.conditions)


def rounded_up(wei: Fraction | int) -> int:
    """To three digits, so that people can read it."""
    whole = ceil(wei)
    unit = int(10 ** max(len(str(whole)) - DIGITS, 0))
    return -(-whole // unit) * unit


def times(f: Figures) -> Terms:
    """Terms without stakes; window and replay time with the margin, in whole minutes.

    The window holds the training of a segment, on the worst data that the client can choose for it, so that an honest
    trainer's next head comes in time. It also holds the replay of the whole run, after the segments that an auditor
    draws: a trainer that makes up its run posts the final head at once, and then the auditor has the window alone. The
    replay time holds the replay of a segment on the worst data.
    """
    drawn = f.sampled * f.segment_seconds if f.sampled < f.segments else 0
    behind = (drawn + f.training_seconds) * f.replay_ratio
    slow = f.slow_data * f.segment_seconds
    longest = max(f.margin * max(behind, slow), Fraction(f.least_window))
    window, replay_time = (-(-ceil(each) // 60) * 60 for each in (longest, f.margin * slow * f.replay_ratio))
    if max(window, replay_time) > MAX_SECONDS:
        raise ConfigurationError(f"expected a window of at most {MAX_SECONDS} seconds, got {max(window, replay_time)}")
    return Terms(challenge_window=window, replay_time=replay_time, clock=f.clock, challenger_stake=0,
                 descent_levels=f.descent_levels)  # fmt: skip


def reward_for(f: Figures, gas: Gas, terms: Terms) -> int:
    """Training, gas and the capital of the stake, and the profit on all of it."""
    s = f.setting(terms, gas)
    own = s.training + s.costs.way + s.costs.settle + s.costs.withdraw + s.capital(s.trainer_stake, s.job_seconds)
    return rounded_up(own * (1 + f.profit))


def _worse(s: Setting, margin: Fraction) -> Iterator[Setting]:
    """The setting, with one after the other of what the stake rests on off by the margin."""
    yield s
    yield replace(s, lie=ceil(s.lie * margin))
    yield replace(s, training=ceil(s.training * margin))  # a step, or all that is paid for in dollars, costs more
    yield replace(s, training=ceil(s.training * margin), lie=ceil(s.lie * margin), audit=ceil(s.audit * margin))
    yield replace(s, audit_probability=s.audit_probability / margin)


def least_stake(f: Figures, gas: Gas, terms: Terms, **rules: Any) -> int:
    """The least stake of the trainer for which honesty is its best reply in all of `_worse`. To three digits, up."""

    def deters(stake: int) -> bool:
        tried = replace(terms, trainer_stake=stake)
        s = f.setting(replace(tried, reward=reward_for(f, gas, tried)), gas, **rules)
        return all(honesty(at).holds for at in _worse(s, f.margin))

    high = 1
    while not deters(high):
        high *= 2
        if high > MOST_STAKE:
            raise ConfigurationError(
                "expected a stake that deters every cheat, got none below 2^128 wei: nothing burns, or nobody looks"
            )
    low = high // 2
    while high - low > max(high // 10**6, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if deters(middle) else (middle, high)
    return rounded_up(high)


def least_fee(s: Setting, profit: Fraction) -> int:
    """For an audit that was made: compute and what false alarms cost, and the profit."""
    lost = s.costs.prosecution + s.challenger_stake + s.capital(s.challenger_stake, s.game_seconds) + s.second_replay
    return rounded_up((s.replay + s.false_alarm * lost) * (1 + profit))


def least_decoys(s: Setting, profit: Fraction) -> Fraction | None:
    """Share e of decoys for which e d (first (W + J - gas) - a) pays the replay and the profit; None if no share does.

    A decoy with one false segment among those that an audit may draw is the cheapest to overlook, so x = 1 here.
    """
    at = replace(s, tampered=1)
    won = at.prover_part + at.jackpot - at.costs.challenge - at.costs.withdraw
    gain = at.detection * (first_share(at) * won - at.second_replay)
    share = at.replay * (1 + profit) / gain if gain > 0 else Fraction(2)
    return share if share <= 1 else None


def recommend(f: Figures, gas: Gas, **rules: Any) -> Recommendation:
    """The smallest terms with the figures' margin. `rules`: of `Setting`, where they are not the contract's."""
    terms = times(f)
    terms = replace(terms, trainer_stake=least_stake(f, gas, terms, **rules))
    terms = replace(terms, reward=reward_for(f, gas, terms))
    s = f.setting(terms, gas, **rules)
    kept = 1 - s.challenge_burn
    if not kept:
        raise ConfigurationError("challenge_burn: expected less than 1, got 1: nothing would pay the victim")
    terms = replace(terms, challenger_stake=rounded_up(victims_loss(s) * f.margin / kept))
    s = f.setting(terms, gas, **rules)
    fee = least_fee(s, f.profit)
    checked = conditions(replace(s, fee=fee, proven=True))
    return Recommendation(terms=terms, fee=fee, planted=least_decoys(s, f.profit), conditions=checked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What an audit probability costs, a job, in wei: replays of all auditors, and capital of the stake it needs."""

    probability: Fraction
    discovery: Fraction
    stake: int
    replays: Fraction
    capital: Fraction

    @property
    def total(self) -> Fraction:
        """Of both."""
        return self.replays + self.capital


def rates(f: Figures, gas: Gas, **rules: Any) -> tuple[Rate, ...]:
    """The stakes that go with audits of so many jobs. The cheapest is a trade of replays against capital."""
    bare, found = times(f), []
    for probability in RATES:
        at = replace(f, audit_probability=probability)
        terms = replace(bare, trainer_stake=least_stake(at, gas, bare, **rules))
        s = at.setting(terms, gas, **rules)
        found.append(
            Rate(
                probability=probability,
                discovery=s.discovery,
                stake=terms.trainer_stake,
                replays=s.auditors * probability * s.replay,
                capital=s.capital(s.trainer_stake, s.job_seconds),
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """By which factor a figure may fall (down) or grow (up) before a condition breaks; None: by any.

    breaks_down, breaks_up: the conditions that then break.
    """

    figure: str
    down: Fraction | None
    up: Fraction | None
    breaks_down: str = ""
    breaks_up: str = ""


_SCALED: Final[dict[str, tuple[str, ...]]] = {
    "cost of a training step, the replay's unchanged": ("machine_hour", "replay_ratio"),
    "cost of compute, training and replay": ("machine_hour",),
    "cost of a replay": ("replay_ratio",),
    "value of the lie": ("lie_value",),
    "gas price": ("gas_price",),
    "dollars for an ether": ("ether",),
    "audit probability": ("audit_probability",),
    "cost of capital": ("capital_rate",),
}
"""What is varied, and the figures that stand for it; of two, the second is divided."""


def _scaled(f: Figures, names: tuple[str, ...], factor: Fraction) -> Figures | None:
    changed = {name: getattr(f, name) * (factor if i == 0 else 1 / factor) for i, name in enumerate(names)}
    try:
        return replace(f, **changed)
    except ConfigurationError:
        return None  # a probability above 1 and the like


def _furthest(broken: Callable[[Fraction], str], towards: Fraction) -> tuple[Fraction | None, str]:
    """The last factor between 1 and `towards` at which nothing is broken, and what breaks behind it."""
    if not broken(towards):
        return None, ""
    good, bad = 0, _FINE
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if broken(_power(towards, middle)) else (middle, bad)
    return _power(towards, good), broken(_power(towards, bad))


def _power(towards: Fraction, part: int) -> Fraction:
    """Factors in even steps of their logarithm, as fractions of a few digits."""
    return Fraction(float(towards) ** (part / _FINE)).limit_denominator(10**6)


def margins(f: Figures, gas: Gas, found: Recommendation, **rules: Any) -> tuple[Margin, ...]:
    """Of every figure, with the recommended terms and fee in wei as they are."""

    def broken(at: Figures | None) -> str:
        if at is None:
            return ""
        s = at.setting(found.terms, gas, fee=found.fee, proven=True, **rules)
        return next((condition.name for condition in conditions(s) if not condition.holds), "")

    table = []
    for words, names in _SCALED.items():
        most = 1 / f.audit_probability if names == ("audit_probability",) else Fraction(FACTORS)
        scaled = lambda factor, names=names: broken(_scaled(f, names, factor))  # noqa: E731
        down, breaks_down = _furthest(scaled, Fraction(1, FACTORS))
        up, breaks_up = _furthest(scaled, most) if most > 1 else (None, "")
        table.append(Margin(figure=words, down=down, up=up, breaks_down=breaks_down, breaks_up=breaks_up))
    return tuple(table)
