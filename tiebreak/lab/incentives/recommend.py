"""Derives, from a user's figures, terms under which honesty and diligence are best replies, with margins of error."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Final

from tiebreak.lab.incentives import model
from tiebreak.lab.incentives.economics import JobEconomics
from tiebreak.lab.incentives.figures import Figures
from tiebreak.lab.incentives.model import Condition, disbelief, honesty, overtaken_gas, stuffing, victims_loss
from tiebreak.protocol.commitments.terms import MAX_GAMES, MAX_SECONDS, Terms, least_challenger_stake, pool_bond
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.parties.terms import REPLAYS

STAKE_BITS: Final = 128
DIGITS: Final = 3
RATES: Final = (
    Fraction(1), Fraction(1, 2), Fraction(1, 4), Fraction(1, 10), Fraction(1, 20), Fraction(1, 50), Fraction(1, 100),
)  # fmt: skip
"""The audit probabilities whose stakes are compared."""
FACTORS: Final = 1000
"""Factors are searched up to this one, to about a thousandth of themselves."""
_FINE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Recommended terms.

    planted: the share of decoys that would replace seats, since auditors earn part of a decoy's stake; None if no
    share would.
    """

    terms: Terms
    planted: Fraction | None
    conditions: tuple[Condition, ...]

    @property
    def holds(self) -> bool:
        return all(condition.holds for condition in self.conditions)


def rounded_up(wei: Fraction | int) -> int:
    """Rounded up to three digits, so that people can read it."""
    whole = ceil(wei)
    unit = int(10 ** max(len(str(whole)) - DIGITS, 0))
    return -(-whole // unit) * unit


def times(f: Figures) -> Terms:
    """Terms without stakes; times with the margin, in whole minutes.

    The audit time is that of replaying a segment, so an auditor keeps up with whatever is posted, and when. The window
    is long enough to train a segment on the worst data that the client can choose for it, so that an honest trainer's
    next head comes in time, and to replay the segments that an auditor draws before it replays the whole run. The
    replay time is long enough to replay a segment on the worst data, and the talk for the replays of both sides on
    ordinary data, so that a game is over before the talk is; the deadline, to train the whole run on them and
    then let a head wait a window.
    """
    drawn = f.sampled * f.segment_seconds if f.sampled < f.segments else 0
    audit = f.margin * f.segment_seconds * f.replay_ratio
    slow = f.margin * f.slow_data * f.segment_seconds
    window = _minutes(max(f.margin * drawn * f.replay_ratio, slow, Fraction(f.least_window)))
    deadline = _minutes(f.margin * f.slow_data * f.training_seconds) + window
    replay_time, audit_time = _minutes(slow * f.replay_ratio), _minutes(audit)
    if (longest := max(deadline, replay_time, f.segments * audit_time)) > MAX_SECONDS:
        raise ConfigurationError(f"expected times of at most {MAX_SECONDS} seconds, got {longest}")
    return Terms(challenge_window=window, replay_time=replay_time, clock=f.clock, audit_time=audit_time,
                 talk_time=_minutes(2 * REPLAYS * audit), deadline=deadline, challenger_stake=0,
                 descent_levels=f.descent_levels)  # fmt: skip


def _minutes(seconds: Fraction) -> int:
    """Seconds, rounded up to whole minutes."""
    return -(-ceil(seconds) // 60) * 60


def reward_for(f: Figures, gas: Mapping[str, int], terms: Terms) -> int:
    """Training, gas and the capital of the stake, with the profit added, in wei."""
    s = f.economics(terms, gas)
    own = s.training + s.costs.way + s.costs.settle + s.costs.withdraw + s.capital(s.trainer_stake, s.job_seconds)
    return rounded_up(own * (1 + f.profit))


def _worse(s: JobEconomics, margin: Fraction) -> Iterator[JobEconomics]:
    """The job itself, and then variants, each with one assumption of the stake wrong by the margin."""
    yield s
    yield replace(s, lie=ceil(s.lie * margin))
    yield replace(s, training=ceil(s.training * margin))  # a step, or everything that is paid in dollars, costs more
    yield replace(s, training=ceil(s.training * margin), lie=ceil(s.lie * margin), audit=ceil(s.audit * margin))
    yield replace(s, audit_probability=s.audit_probability / margin)
    if s.seated:
        yield replace(s, bought=1 - (1 - s.bought) / margin)


def least_stake(f: Figures, gas: Mapping[str, int], terms: Terms) -> int:
    """The trainer's least stake that makes honesty its best reply in all of `_worse`, rounded up to three digits.

    Where there are seats, it also makes their auditors audit rather than believe a root that the trainer shows. And the
    sixteenth of the prover's share pays the gas of a challenger that is overtaken. That relief makes it dearer for a
    cheat to report itself is not counted on.
    """

    def deters(stake: int) -> bool:
        tried = replace(terms, trainer_stake=stake)
        s = f.economics(replace(tried, reward=reward_for(f, gas, tried)), gas)
        if s.share < MAX_GAMES * f.margin * overtaken_gas(s):
            return False
        if not s.seated:
            return all(honesty(at).holds for at in _worse(s, f.margin))
        joined = replace(s, joined_for=s.stranger_gain)
        return all(honesty(at).holds and disbelief(at).holds and stuffing(at).holds for at in _worse(joined, f.margin))

    bits = bisect_left(range(STAKE_BITS), True, key=lambda bits: deters(1 << bits))
    if bits == STAKE_BITS:
        raise ConfigurationError(f"expected a stake that deters every cheat, got none below 2^{bits} wei: nobody looks")
    high, low = 1 << bits, (1 << bits) // 2
    while high - low > max(high // 10**6, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if deters(middle) else (middle, high)
    return rounded_up(high)


def seated(f: Figures, gas: Mapping[str, int], terms: Terms) -> Terms:
    """The terms with seats.

    The fee pays a replay that costs `margin` times as much, gas and capital, with the profit added: it is fixed in wei
    when the job is made, and whoever is drawn after the run may stay away. The bond is about as large, so that a root
    which is as likely wrong as right is not worth sealing; it is one that has a pool.
    """
    audit = f.margin * f.economics(terms, gas).audit
    terms = replace(terms, seats=f.seats, seat_bond=pool_bond(ceil(audit * (1 + f.profit))))
    costs = f.economics(terms, gas).seat_costs
    return replace(terms, seat_fee=rounded_up((audit + costs) * (1 + f.profit)))


def least_decoys(s: JobEconomics, profit: Fraction) -> Fraction | None:
    """The share e of decoys for which e d (first (W - gas) - a) pays replay and profit; None if there is none.

    A decoy with one false segment among those that an audit may draw is the easiest to overlook, so x = 1 here.
    """
    at = replace(s, tampered=1)
    won = at.share - at.costs.challenge - at.costs.withdraw
    gain = at.detection * (model.first_share(at) * won - at.second_replay)
    share = at.replay * (1 + profit) / gain if gain > 0 else Fraction(2)
    return share if share <= 1 else None


def recommend(f: Figures, gas: Mapping[str, int]) -> Recommendation:
    """The smallest terms with the figures' margin."""
    terms = seated(f, gas, times(f))
    terms = replace(terms, trainer_stake=least_stake(f, gas, terms))
    terms = replace(terms, reward=reward_for(f, gas, terms))
    s = f.economics(terms, gas)
    least = least_challenger_stake(
        reward=terms.reward, trainer_stake=terms.trainer_stake, seats=terms.seats, seat_fee=terms.seat_fee,
        seat_bond=terms.seat_bond,
    )  # fmt: skip
    loss = 2 * victims_loss(s) * f.margin  # half of it burns
    terms = replace(terms, challenger_stake=rounded_up(max(loss, Fraction(least))))
    planted = least_decoys(f.economics(replace(terms, seats=0), gas), f.profit)
    return Recommendation(terms=terms, planted=planted, conditions=model.conditions(f.economics(terms, gas)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The cost of an audit probability, in wei for each job: replays of all auditors, and capital of the stake."""

    probability: Fraction
    discovery: Fraction
    stake: int
    replays: Fraction
    capital: Fraction

    @property
    def total(self) -> Fraction:
        return self.replays + self.capital


def rates(f: Figures, gas: Mapping[str, int]) -> tuple[Rate, ...]:
    """The stakes for several audit probabilities. The cheapest one balances replays against capital."""
    bare, found = times(f), []
    for probability in RATES:
        at = replace(f, audit_probability=probability)
        terms = replace(bare, trainer_stake=least_stake(at, gas, bare))
        s = at.economics(terms, gas)
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
    """The factors by which a figure may fall (down) or grow (up) before a condition breaks; None: any factor.

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
    "share of the pool that a cheat owns": ("bought",),
    "cost of capital": ("capital_rate",),
}
"""The properties that are varied, with their figures. If there are two, the second is divided by the factor."""


def _scaled(f: Figures, names: tuple[str, ...], factor: Fraction) -> Figures | None:
    changed = {name: getattr(f, name) * (factor if i == 0 else 1 / factor) for i, name in enumerate(names)}
    try:
        return replace(f, **changed)
    except ConfigurationError:
        return None  # invalid figures, such as a probability above 1


def _furthest(broken: Callable[[Fraction], str], towards: Fraction) -> tuple[Fraction | None, str]:
    """The last factor between 1 and `towards` at which no condition breaks, and the condition that breaks beyond it."""
    if not broken(towards):
        return None, ""
    bad = bisect_left(range(_FINE), True, lo=1, key=lambda part: bool(broken(_power(towards, part))))
    return _power(towards, bad - 1), broken(_power(towards, bad))


def _power(towards: Fraction, part: int) -> Fraction:
    """A factor in even logarithmic steps, as a fraction of a few digits."""
    return Fraction(float(towards) ** (part / _FINE)).limit_denominator(10**6)


def margins(f: Figures, gas: Mapping[str, int], found: Recommendation) -> tuple[Margin, ...]:
    """The margins of every figure, with the recommended terms fixed in wei, the job accepted, and the pool filled."""
    joined = f.economics(found.terms, gas)
    f = replace(f, bought=joined.bought)

    def broken(at: Figures | None) -> str:
        if at is None:
            return ""
        s = at.economics(found.terms, gas, joined_for=joined.stranger_gain)
        return next(
            (each.name for each in (model.perseverance(s), *model.conditions_once_accepted(s)) if not each.holds), ""
        )

    table = []
    for words, names in _SCALED.items():
        share = Fraction(getattr(f, names[0]) if names[0] in ("audit_probability", "bought") else 0)
        most = 1 / share if share else Fraction(FACTORS)
        scaled = lambda factor, names=names: broken(_scaled(f, names, factor))  # noqa: E731
        down, breaks_down = _furthest(scaled, Fraction(1, FACTORS))
        up, breaks_up = _furthest(scaled, most) if most > 1 else (None, "")
        table.append(Margin(figure=words, down=down, up=up, breaks_down=breaks_down, breaks_up=breaks_up))
    return tuple(table)
