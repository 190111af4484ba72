"""Results files as the commands write them, of made-up games."""

from random import Random
from statistics import fmean, median
from typing import Any

Json = dict[str, Any]
CATCHES = ("recomputed", "broken tie", "timeout", "equivocation", "abandoned", "refused", "harmless")
NAMES = {
    "trainer": (
        "poisoned label", "wrong learning rate", "skipped batch", "stale checkpoint", "two heads", "silent trainer",
    ),
    "challenger": ("griefing challenger", "copied challenge"),
    "auditor": ("lazy auditor",),
    "client": ("client who withholds data",),
    "builder": ("censoring builder",),
}  # fmt: skip


def distribution(values: list[float]) -> Json | None:
    if not values:
        return None
    bins = [[value, value, values.count(value)] for value in sorted(set(values))]
    if len(bins) > 16:
        low, high = min(values), max(values)
        edges = [low + (high - low) * i / 12 for i in range(13)]
        ends = zip(edges, [*edges[1:-1], high + 1], strict=False)
        bins = [[a, b, sum(a <= v < b for v in values)] for a, b in ends]
    found = {"min": min(values), "median": median(values), "max": max(values), "mean": fmean(values)}
    return {**found, "bins": bins}


def party(rng: Random, games: int, gain: float) -> Json:
    return {
        "parties": games,
        "wei": distribution([gain * rng.choice((1, 2, 5)) for _ in range(games)]),
        "fees_wei": distribution([rng.randrange(10**13, 10**15) for _ in range(games)]),
        "gas": distribution([rng.randrange(10**5, 10**6) for _ in range(games)]),
        "steps": distribution([rng.randrange(9, 19) for _ in range(games)]),
        "messages": distribution([rng.randrange(3, 60) for _ in range(games)]),
        "bytes": distribution([rng.randrange(300, 60000) for _ in range(games)]),
        "refused": distribution([0] * games),
    }


def story(rng: Random, games: int, role: str | None, *, disputes: bool = True) -> Json:
    duels = games if disputes else 0
    honest = {name: party(rng, games, 10**17) for name in ("auditor", "client", "trainer") if name != role}
    return {
        "games": games,
        "jobs": {"SLASHED": games} if disputes else {"SETTLED": games},
        "verdicts": {"recomputed": duels} if duels else {},
        "seconds": distribution([rng.randrange(4000, 90000) for _ in range(games)]),
        "duels": {
            "count": duels,
            "rounds": distribution([rng.randrange(2, 20) for _ in range(duels)]),
            "moves": distribution([rng.randrange(4, 40) for _ in range(duels)]),
            "gas": distribution([rng.randrange(10**5, 3 * 10**6) for _ in range(duels)]),
            "bytes": distribution([rng.randrange(10**3, 10**5) for _ in range(duels)]),
            "seconds": distribution([rng.randrange(600, 90000) for _ in range(duels)]),
        },
        "honest": honest,
        "dishonest": {role: party(rng, games, -(10**18))} if role else {},
    }


def simulate(seed: int = 0, games: int = 20, names: dict[str, tuple[str, ...]] = NAMES) -> Json:
    """As `sim.games.summary` says."""
    rng = Random(seed)
    adversaries: Json = {}
    for role, of_role in names.items():
        for i, name in enumerate(of_role):
            where = rng.sample(CATCHES, 2)
            first = rng.randrange(1, games)
            adversaries[name.replace(" ", "-")] = {
                "name": name, "role": role, "gain": f"what {name} saves", "where": where,
                "games": games + i, "alone": games, "caught": {where[0]: first, where[1]: games + i - first},
                "first": f"v1 seed={seed} game={i} with={name.replace(' ', '-')}",
                "summary": story(rng, games, role, disputes=role in ("trainer", "challenger")),
            }  # fmt: skip
    return {
        "name": "simulate", "version": 1, "seed": seed, "mix": "singles:6,pairs:3,honest:1",
        "environment": {"tiebreak": "0.1.0", "cpu": "AMD EPYC"},
        "games": 321, "played": {"alone": 220, "together": 81, "honest": 20}, "errors": 0,
        "promises": {"false_heads": 130, "unwatched": 7, "undetected": 0, "honest_slashed": 0, "broken": 0},
        "violations": [],
        "speed": {"wall": distribution([0.5, 0.7]), "games_per_hour": 6123},
        "honest": story(rng, games, None, disputes=False),
        "families": {role: story(rng, 60, role) for role in ("trainer", "challenger")},
        "levels": {str(level): story(rng, 40, "trainer") for level in range(1, 6)},
        "notable": {"most rounds": f"v1 seed={seed} game=9", "most gas": f"v1 seed={seed} game=11 levels=1"},
        "adversaries": adversaries,
    }  # fmt: skip
