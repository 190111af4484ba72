"""Everything that follows from the figures of one job: tables for people, a document for programs."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Any, Final

from tiebreak.lab.incentives.economics import JobEconomics
from tiebreak.lab.incentives.figures import FIGURES, WEI, Figures
from tiebreak.lab.incentives.model import Equilibrium, Griefing, griefing, solve
from tiebreak.lab.incentives.recommend import Margin, Rate, Recommendation, margins, rates, recommend

AMOUNTS: Final = ("reward", "trainer_stake", "challenger_stake", "seat_fee", "seat_bond")
TIMES: Final = ("challenge_window", "clock", "replay_time", "talk_time", "audit_time", "deadline")
TERMS: Final = (*AMOUNTS[:3], *TIMES, "seats", *AMOUNTS[3:], "descent_levels")
OPTIONS: Final = {name: f"--{name.replace('_', '-')}" for name in TERMS}
"""The terms, with their options of `tiebreak agree`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """A way to have jobs audited at the recommended terms, and its equilibrium.

    cost: the client's cost of a job in wei.
    """

    name: str
    equilibrium: Equilibrium
    cost: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of text. All columns but the first are numeric."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    figures: Figures
    gas: Mapping[str, int]
    economics: JobEconomics
    recommendation: Recommendation
    margins: tuple[Margin, ...]
    rates: tuple[Rate, ...]
    regimes: tuple[Regime, ...]
    griefing: tuple[Griefing, ...]


def find(f: Figures, gas: Mapping[str, int]) -> Findings:
    found = recommend(f, gas)
    s, plain = (f.economics(replace(found.terms, seats=seats), gas) for seats in (found.terms.seats, 0))
    return Findings(
        figures=f,
        gas=gas,
        economics=s,
        recommendation=found,
        margins=margins(f, gas, found),
        rates=rates(f, gas),
        regimes=tuple(regimes(s, plain, found)),
        griefing=griefing(s),
    )


def regimes(seated: JobEconomics, plain: JobEconomics, found: Recommendation) -> Iterator[Regime]:
    """Ways to have the job audited: none, by the client, by decoys of the client, and by the holders of seats."""
    yield Regime(name="no seats: nobody pays auditors", equilibrium=solve(plain), cost=Fraction(0))
    own = solve(replace(plain, auditors=1), interest=plain.reward + plain.harm)
    yield Regime(name="no seats: the client audits when it pays", equilibrium=own,
                 cost=own.audit_probability * plain.replay)  # fmt: skip
    if found.planted is not None and found.planted < 1:
        e = found.planted
        decoys = solve(replace(plain, planted=e))
        own_cost = e / (1 - e) * (plain.trainer_stake + plain.costs.offer + plain.costs.way + plain.costs.concede)
        yield Regime(name=f"no seats: decoys, {percent(e)} of all jobs", equilibrium=decoys, cost=own_cost)
    sealed = solve(seated)
    paid = seated.auditors * seated.fee * (seated.bought + (1 - seated.bought) * sealed.audit_probability)
    yield Regime(name="strangers with seats", equilibrium=sealed, cost=paid)


def ether(wei: Fraction | int, digits: int | None = None) -> str:
    """Writes an amount exactly, or to `digits` significant digits; never in scientific notation."""
    if digits is None:
        return f"{(Decimal(int(wei)) / WEI).normalize():f}"
    value = float(Fraction(wei) / WEI)
    return f"{Decimal(f'{value:.{digits}g}'):f}" if value else "0"


def percent(share: Fraction | float) -> str:
    """Writes a share to three significant digits."""
    return f"{Decimal(f'{100 * float(share):.3g}'):f}%" if share else "0%"


def agree_options(found: Recommendation) -> tuple[str, ...]:
    """The recommended terms as options of `tiebreak agree`."""
    values = ((option, name, getattr(found.terms, name)) for name, option in OPTIONS.items())
    pairs = ((option, ether(value) if name in AMOUNTS else str(value)) for option, name, value in values)
    return tuple(chain.from_iterable(pairs))


def _span(seconds: int) -> str:
    return f"{seconds:,} ({seconds / 86400:.1f} days)" if seconds >= 86400 else f"{seconds:,} ({seconds / 3600:.1f} h)"


def tables(found: Findings) -> tuple[Table, ...]:
    f, r = found.figures, found.recommendation
    conditions = tuple(
        (c.name, "holds" if c.holds else "BROKEN", ether(c.slack, 4), f"{f.dollars(c.slack):,.2f}", c.binds)
        for c in r.conditions
    )
    margins = tuple(
        (m.figure, _factor(m.down), _factor(m.up), "; ".join(filter(None, (m.breaks_down, m.breaks_up))) or "–")
        for m in found.margins
    )
    cheapest = min(found.rates, key=lambda rate: rate.total)
    rates = tuple(
        (
            *map(percent, (rate.probability, rate.discovery)),
            *(ether(cost, 3) for cost in (rate.stake, rate.replays, rate.capital)),
            ether(rate.total, 3) + (" (least)" if rate is cheapest else ""),
        )
        for rate in found.rates
    )
    regimes = tuple(
        (one.name, percent(e.lies), percent(e.audit_probability), percent(e.accepted), ether(one.cost, 3))
        for one in found.regimes for e in [one.equilibrium]
    )  # fmt: skip
    griefing = tuple(
        (g.attack, ether(g.attacker, 3), ether(g.harm, 3), ether(g.compensation, 3), _factor(g.factor))
        for g in found.griefing
    )
    shown = {
        ("What honesty gains", "", "", "ether", "dollars", "compared with"): conditions,
        ("How far figures may be off", "", "down to x", "up to x", "then this fails"): margins,
        (
            "Fewer audits need larger stakes (ether a job)",
            "share of jobs audited",
            "a lie is found",
            "stake needed",
            "cost of replays",
            "cost of capital",
            "both",
        ): rates,
        (
            "What happens at these terms if everyone wants money only",
            "",
            "jobs with a lie",
            "jobs audited",
            "lies that are paid",
            "the client pays, ether a job",
        ): regimes,
        (
            "Doing harm for its own sake (ether)",
            "",
            "attacker loses",
            "harm done",
            "victims are paid",
            "lost per ether of harm",
        ): griefing,
    }
    more = (Table(title=title, header=tuple(header), rows=rows) for (title, *header), rows in shown.items())
    return (_costs(found), _terms(found), *more)


def _costs(found: Findings) -> Table:
    f, s = found.figures, found.economics
    named: dict[str, Fraction | int] = {
        "training": s.training,
        "an audit": s.replay,
        "the trainer's transactions in a job without disputes": s.costs.way + s.costs.settle + s.costs.withdraw,
        "starting a dispute": s.costs.challenge,
        "a whole dispute, for the challenger": s.costs.prosecution,
        "a whole dispute, for the trainer": s.costs.defence,
        "reporting two heads of the same length": s.costs.equivocation,
        "sealing a root, claiming fee and bond, withdrawing": s.costs.seal + s.costs.claim,
    }
    rows = tuple((name, ether(amount, 4), f"{f.dollars(amount):,.2f}") for name, amount in named.items())
    return Table(title="What things cost", header=("", "ether", "dollars"), rows=rows)


def _terms(found: Findings) -> Table:
    f, r = found.figures, found.recommendation
    rows = []
    for name, option in OPTIONS.items():
        value = getattr(r.terms, name)
        if name in AMOUNTS:
            rows.append((option, ether(value), f"{f.dollars(value):,.2f}"))
        else:
            rows.append((option, _span(value) if name in TIMES else str(value), ""))
    rows.append(("each auditor audits", percent(f.audit_probability), ""))
    decoys = "none is enough" if r.planted is None else percent(r.planted)
    rows.append(("or: share of jobs that are decoys", decoys, ""))
    return Table(title="Recommended terms", header=("", "ether or seconds", "dollars"), rows=tuple(rows))


def _factor(value: Fraction | None) -> str:
    return "any" if value is None else f"{Decimal(f'{float(value):.3g}'):f}"


def document(found: Findings) -> dict[str, Any]:
    """The findings for programs: amounts in wei, shares and factors as numbers, exact figures as text."""
    r = found.recommendation
    return {
        "figures": {name: str(getattr(found.figures, name)) for name in FIGURES},
        "gas": dict(found.gas),
        "terms": {name: getattr(r.terms, name) for name in OPTIONS},
        "agree": list(agree_options(r)),
        "decoys": _plain(r.planted),
        "conditions": [{"holds": c.holds, **_plain(asdict(c))} for c in r.conditions],
        "margins": [_plain(asdict(m)) for m in found.margins],
        "rates": [{"total": float(rate.total), **_plain(asdict(rate))} for rate in found.rates],
        "equilibria": [
            {"name": regime.name, "cost": _plain(regime.cost), "accepted": float(regime.equilibrium.accepted),
             **_plain(asdict(regime.equilibrium))}
            for regime in found.regimes
        ],
        "griefing": [{"factor": _plain(g.factor), **_plain(asdict(g))} for g in found.griefing],
    }  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return float(value) if isinstance(value, Fraction) else value
