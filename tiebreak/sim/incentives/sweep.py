"""Best replies over grids of parameters, twice: by the closed forms and by the board's rules, story by story.

The closed forms look at the smallest and the largest cheat; the rules try every number of segments. At every point the
two must name the same best replies, exactly: `Region.disagreements` counts where they do not.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from math import isqrt
from random import Random
from typing import Any, Final

from tiebreak.sim.incentives import rules
from tiebreak.sim.incentives.equilibrium import solve
from tiebreak.sim.incentives.model import auditor_payoff, extremes, trainer_payoff
from tiebreak.sim.incentives.setting import CHEATS, HALF, Auditor, Costs, Setting, Trainer

Change = Callable[[Setting, Fraction], Setting]
Player = type[Trainer] | type[Auditor]
Best = frozenset[str]
"""All best replies: several where they pay the same."""
SEGMENTS: Final = 4
STEPS: Final = 16
LABELS: Final[dict[str, tuple[str, ...]]] = {
    "trainer": tuple(str(strategy) for strategy in Trainer),
    "auditor": tuple(str(strategy) for strategy in Auditor),
}
"""Numbers in a grid stand for these; the first of equals."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A parameter, its values as people read them, and how it changes a setting."""

    name: str
    values: tuple[Fraction, ...]
    change: Change


@dataclass(frozen=True, slots=True)
class Region:
    """Best replies of one party over two parameters; rows are those of `y`."""

    name: str
    party: str
    x: Axis
    y: Axis
    closed: tuple[tuple[Best, ...], ...]
    ruled: tuple[tuple[Best, ...], ...]

    @property
    def points(self) -> int:
        """How many were compared."""
        return len(self.x.values) * len(self.y.values)

    @property
    def disagreements(self) -> int:
        """At how many the two ways differ."""
        pairs = zip(self.closed, self.ruled, strict=True)
        return sum(a != b for row, other in pairs for a, b in zip(row, other, strict=True))

    def document(self) -> dict[str, Any]:
        """For a file: numbers of LABELS, and of both ways."""
        code = {label: number for number, label in enumerate(LABELS[self.party])}

        def grid(rows: tuple[tuple[Best, ...], ...]) -> list[list[int]]:
            return [[min(code[label] for label in best) for best in row] for row in rows]

        axes = {
            key: {"name": axis.name, "values": [float(value) for value in axis.values]}
            for key, axis in (("x", self.x), ("y", self.y))
        }
        more = {"closed": grid(self.closed), "rules": grid(self.ruled), "disagreements": self.disagreements}
        return {"name": self.name, "party": self.party, "labels": LABELS[self.party]} | axes | more


def _best(payoffs: dict[str, Fraction]) -> Best:
    most = max(payoffs.values())
    return frozenset(name for name, payoff in payoffs.items() if payoff == most)


def best_trainer(s: Setting) -> Best:
    """By the closed forms."""
    payoffs = {str(Trainer.HONEST): trainer_payoff(s, Trainer.HONEST)}
    return _best(payoffs | {str(cheat): max(trainer_payoff(at, cheat) for at in extremes(s)) for cheat in CHEATS})


def best_trainer_by_rules(s: Setting) -> Best:
    """Over every number of tampered segments and every story."""
    payoffs = {str(Trainer.HONEST): rules.expected_trainer(s, Trainer.HONEST)}
    every = [replace(s, tampered=x) for x in range(1, s.segments + 1)]
    return _best(payoffs | {str(cheat): max(rules.expected_trainer(at, cheat) for at in every) for cheat in CHEATS})


def best_auditor(s: Setting, cheat: Trainer, lies: Fraction) -> Best:
    """By the closed forms."""
    return _best({str(own): auditor_payoff(s, own, cheat, lies) for own in Auditor})


def best_auditor_by_rules(s: Setting, cheat: Trainer, lies: Fraction) -> Best:
    """Over every story."""
    return _best({str(own): rules.expected_auditor(s, own, cheat, lies) for own in Auditor})


def trainer_region(name: str, base: Setting, x: Axis, y: Axis) -> Region:
    """Of the trainer's best replies."""
    grid = [[x.change(y.change(base, b), a) for a in x.values] for b in y.values]
    closed = tuple(tuple(best_trainer(s) for s in row) for row in grid)
    ruled = tuple(tuple(best_trainer_by_rules(s) for s in row) for row in grid)
    return Region(name, "trainer", x, y, closed, ruled)


def auditor_region(name: str, base: Setting, cheat: Trainer, lies: tuple[Fraction, ...], y: Axis) -> Region:
    """Of an auditor's, over the share of lies and another parameter."""
    x = Axis("share of jobs with a lie", lies, lambda s, _: s)
    grid = [y.change(base, b) for b in y.values]
    closed = tuple(tuple(best_auditor(s, cheat if q else Trainer.HONEST, q) for q in lies) for s in grid)
    ruled = tuple(tuple(best_auditor_by_rules(s, cheat if q else Trainer.HONEST, q) for q in lies) for s in grid)
    return Region(name, "auditor", x, y, closed, ruled)


def even(low: Fraction | int, high: Fraction | int, steps: int = STEPS) -> tuple[Fraction, ...]:
    """From low to high, both with them."""
    return tuple(low + Fraction(i, steps) * (high - low) for i in range(steps + 1))


def shares(name: str, field: str) -> Axis:
    """A share from 0 to 1."""

    def change(s: Setting, value: Fraction) -> Setting:
        values: dict[str, Any] = {field: value}
        return replace(s, **values)

    return Axis(name, even(0, 1), change)


def multiples(name: str, field: str, of: str, most: int) -> Axis:
    """An amount, in multiples of another of the setting."""

    def change(s: Setting, value: Fraction) -> Setting:
        amounts: dict[str, Any] = {field: int(value * getattr(s, of))}
        return replace(s, **amounts)

    return Axis(name, even(0, most), change)


def regions(base: Setting) -> Iterator[Region]:
    """The pictures of the report, around a setting."""
    probability = shares("audit probability of each auditor", "audit_probability")
    stake = multiples("trainer's stake / cost of training", "trainer_stake", "training", 8)
    yield trainer_region("one auditor, whole audits", base, probability, stake)
    yield trainer_region("two auditors, whole audits", replace(base, auditors=2), probability, stake)
    high = multiples("trainer's stake / cost of training", "trainer_stake", "training", 48)
    yield trainer_region("one auditor, one segment drawn", replace(base, sampled=1), probability, high)
    burn = shares("share of the stake that burns", "burn")
    yield trainer_region("every second job is audited", replace(base, audit_probability=HALF), burn, stake)
    yield trainer_region("every job is audited", replace(base, audit_probability=Fraction(1)), burn, stake)
    lie = multiples("value of the lie / cost of training", "lie", "training", 8)
    yield trainer_region("stake against the lie, every job audited", base, lie, stake)
    changed = replace(base, oldest_paid=True, challenge_burn=HALF, challenger_stake=base.training // 2)
    yield trainer_region("changed rules, one auditor", changed, probability, stake)
    lies, fee = even(0, 1), multiples("fee of a proven audit / its cost", "fee", "audit", 2)
    few = replace(base, auditors=2, audit_probability=HALF)
    yield auditor_region("a cheat that reports itself", few, Trainer.HEDGED, lies, fee)
    yield auditor_region("a cheat that plays on", few, Trainer.NAIVE, lies, fee)
    yield auditor_region("fees for claims", replace(few, proven=False), Trainer.HEDGED, lies, fee)
    yield auditor_region("decoys", few, Trainer.HEDGED, lies, shares("share of decoys", "planted"))
    copied = shares("chance that a copy is paid", "mirror")
    yield auditor_region("copies", few, Trainer.NAIVE, lies, copied)
    yield auditor_region("changed rules", replace(changed, auditors=2), Trainer.HEDGED, lies, stake)


def any_setting(rng: Random) -> Setting:
    """One with every parameter at random, small enough that all its stories can be told."""

    def amount(most: int) -> int:
        return rng.choice((0, rng.randrange(1, most), rng.randrange(most // 2, most)))

    def share() -> Fraction:
        return rng.choice((Fraction(0), Fraction(1), HALF, Fraction(rng.randrange(101), 100)))

    training, segments, challenge = rng.randrange(1, 10**6), rng.randint(1, SEGMENTS), amount(500)
    return Setting(
        reward=training + amount(10**6), trainer_stake=amount(10**7), challenger_stake=amount(10**6), training=training,
        audit=amount(10**6), lie=amount(10**6), kept=share(), segments=segments, sampled=rng.randint(1, segments),
        whole_first=rng.random() < 1 / 2, auditors=rng.randint(1, 3), audit_probability=share(),
        false_alarm=Fraction(0), fee=amount(10**6), proven=rng.random() < 1 / 2, planted=share(),
        jackpot=amount(10**6), mirror=share(), rate=Fraction(rng.randrange(100), 10**9),
        job_seconds=rng.randrange(10**7), game_seconds=rng.randrange(10**6), burn=share(), challenge_burn=share(),
        oldest_paid=rng.random() < 1 / 2,
        costs=Costs(
            way=amount(500), settle=amount(500), withdraw=amount(500), challenge=challenge, reclaim=amount(500),
            concede=amount(500), equivocation=amount(500), defence=amount(5000), prosecution=challenge + amount(5000),
        ),
    )  # fmt: skip


def compare_at_random(points: int, seed: int) -> int:
    """At how many of so many random settings, with a random auditor's world each, the two ways differ."""
    rng, differ = Random(seed), 0  # noqa: S311  # a simulation
    for _ in range(points):
        s = any_setting(rng)
        cheat = rng.choice(CHEATS)
        lies = Fraction(rng.randrange(1, 101), 100)
        at = replace(s, tampered=rng.randint(1, s.segments))
        same = best_trainer(s) == best_trainer_by_rules(s)
        same &= best_auditor(at, cheat, lies) == best_auditor_by_rules(at, cheat, lies)
        differ += not same
    return differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a trainer was paid on average in games at random, beside what it expects. Wei; error: of the mean."""

    strategy: str
    games: int
    mean: float
    error: float
    expected: float


def simulate(s: Setting, games: int, seed: int) -> Iterator[Simulated]:
    """Each strategy over seeded games."""
    rng = Random(seed)  # noqa: S311  # a simulation
    for strategy in Trainer:
        players, paid = rules.Players(trainer=strategy), []
        for _ in range(games):
            wealth = rules.play(s, players, rules.draw(s, players, rng)).wealth
            paid.append(wealth[rules.TRAINER] + wealth[rules.SYBIL])
        mean = sum(paid, start=Fraction(0)) / games
        variance = sum(((x - mean) ** 2 for x in paid), start=Fraction(0)) / max(games - 1, 1)
        error = isqrt(int(variance / games))
        yield Simulated(
            strategy=str(strategy),
            games=games,
            mean=float(mean),
            error=float(error),
            expected=float(trainer_payoff(s, strategy)),
        )


def curves(base: Setting) -> list[dict[str, Any]]:
    """Equilibria over the trainer's stake: the contract, its client as auditor, decoys, and changed rules."""
    changed = replace(base, oldest_paid=True, challenge_burn=HALF, challenger_stake=base.training // 2)
    cases: Sequence[tuple[str, Setting, int]] = (
        ("contract, anonymous auditor", base, 0),
        ("contract, the client audits in its own interest", base, base.reward + base.harm),
        ("changed rules, one auditor", changed, 0),
        ("changed rules, three auditors", replace(changed, auditors=3), 0),
    )
    stakes, found = even(Fraction(1, 2), 8, 15), []
    for name, s, interest in cases:
        solved = [solve(replace(s, trainer_stake=int(stake * s.training)), interest) for stake in stakes]
        found.append(
            {
                "name": name,
                "x": {"name": "trainer's stake / cost of training", "values": [float(stake) for stake in stakes]},
                "lies": [round(float(at.lies), 6) for at in solved],
                "audit probability": [round(float(at.audit_probability), 6) for at in solved],
                "false jobs that settle": [round(float(at.accepted), 6) for at in solved],
            }
        )
    return found


def sweep(
    base: Setting, seed: int, *, points: int = 300, games: int = 2000, on_region: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Everything, as a document for a file. The same seed and setting make the same bytes."""
    base = replace(base, segments=SEGMENTS, sampled=SEGMENTS, tampered=SEGMENTS)
    found = []
    for region in regions(base):
        on_region(region.name)
        found.append(region)
    on_region("settings at random")
    differ = compare_at_random(points, seed)
    on_region("games at random")
    played = [asdict(result) for result in simulate(replace(base, audit_probability=HALF), games, seed)]
    return {
        "seed": seed,
        "setting": {name: _plain(value) for name, value in asdict(base).items()},
        "points": sum(region.points for region in found) + 2 * points,
        "disagreements": sum(region.disagreements for region in found) + differ,
        "regions": [region.document() for region in found],
        "equilibria": curves(base),
        "at random": {"points": points, "disagreements": differ},
        "simulated": played,
    }


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Fraction) else value
