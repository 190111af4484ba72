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
    """As `tiebreak.sim.games.summary` says."""
    rng = Random(seed)
    adversaries: Json = {}
    for role, of_role in names.items():
        for i, name in enumerate(of_role):
            where = rng.sample(CATCHES, 2)
            first = rng.randrange(1, games)
            adversaries[name.replace(" ", "-")] = {
                "name": name, "role": role, "gain": f"what {name} saves", "where": where,
                "games": games + i, "alone": games, "open": name == "two heads",
                "caught": {where[0]: first, where[1]: games + i - first},
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


WHAT = {
    "trainer_step": ("the trainer's step, policy exact", "s"), "training": ("training, all steps", "s"),
    "replay_move": ("dearest move of a dispute", "s"), "dispute_time": ("a dispute, for each party", "s"),
    "memory": ("peak memory of a trainer", "bytes"), "run_bytes": ("a run directory", "bytes"),
    "records_bytes": ("of it records", "bytes"), "message_bytes": ("its signed messages", "bytes"),
    "dispute_gas": ("its gas", "gas"), "job_gas": ("gas of a job without a dispute", "gas"),
    "all_auditing": ("auditing all jobs", "s"), "all_bytes": ("run directories of all jobs", "bytes"),
    "all_gas": ("gas of all jobs and disputes", "gas"),
}  # fmt: skip


def predicted(value: float, *, exact: bool = False, extrapolated: bool = False) -> Json:
    factor = 1.0 if exact else 1.4
    return {"value": value, "low": value / factor, "high": value * factor, "extrapolated": extrapolated, "exact": exact}


def scale() -> Json:
    """As `tiebreak.sim.scale.curves` says."""
    curves = {}
    for direction, low, high in (("parameters", 6, 12), ("steps", 2, 7), ("jobs", 0, 5)):
        curves[direction] = [
            {
                "size": 10**power, "subject": "GPT-2", "parameters": 10**6, "interval": 100, "most_used": "memory",
                "share": 10.0 ** (power - 9),
                "costs": {
                    name: predicted(3.7 * 10 ** (power + 2 * (i % 3)), exact=unit == "gas", extrapolated=power > 8)
                    for i, (name, (_, unit)) in enumerate(WHAT.items())
                },
            }
            for power in range(low, high + 1)
        ]  # fmt: skip
    held_out = [
        {
            "group": group, "what": f"{group} of a step", "case": f"gpt {i}", "unit": unit,
            "predicted": predicted(10.0**i * 1.1), "measured": 10.0**i * (3.0 if i == 4 else 1.0),
            "factor": 3 / 1.1 if i == 4 else 1.1, "bound": 1.5, "holds": i != 4, "inside": i != 4, "source": "scale",
        }
        for group, unit in (("time", "s"), ("memory", "bytes"), ("gas", "gas"), ("moves", ""))
        for i in range(1, 6)
    ]  # fmt: skip
    spent = {
        "budget": "memory of a machine",
        "share": 1.1,
        "limit": 128e9,
        "unit": "bytes",
        "lift": "more",
        "own": True,
    }
    return {
        "name": "scale curves", "confidence": 0.9, "environment": {"cpu": "AMD EPYC"}, "sources": ["scale"],
        "job": {"parameters": 124_000_000, "steps": 10_000, "interval": 100, "levels": 5},
        "what": {name: {"name": words, "unit": unit} for name, (words, unit) in WHAT.items()},
        "held_out": held_out, "curves": curves,
        "bottlenecks": [
            {"direction": "parameters", "start": 1e8, "at": 3e8, "first": spent, "extrapolated": True},
            {"direction": "steps", "start": 1e4, "at": None, "first": {**spent, "own": False}, "extrapolated": False},
            {"direction": "jobs", "start": 1, "at": 1e12, "first": None, "extrapolated": True},
        ],
    }  # fmt: skip


STRATEGIES = ("honest", "cheats, plays on when challenged", "cheats, reports itself when challenged")
AUDITORS = ("diligent", "lazy", "copies a challenge")


def region(name: str, party: str, labels: tuple[str, ...], size: int = 9) -> Json:
    grid = [[0 if x + y > size else 1 + (x > y) for x in range(size)] for y in range(size)]
    values = [i / (size - 1) for i in range(size)]
    return {
        "name": name, "party": party, "labels": list(labels), "x": {"name": "audit probability", "values": values},
        "y": {"name": "stake / cost of training", "values": [8 * value for value in values]}, "closed": grid,
        "rules": grid, "disagreements": 0,
    }  # fmt: skip


def preset(scale: int) -> Json:
    ether = 10**18 * scale
    return {
        "figures": {"steps": "2000", "profit": "1/5"},
        "gas": {"challenge": 180_000},
        "terms": {
            "reward": 2 * ether, "trainer_stake": 9 * ether, "challenger_stake": 10**16, "challenge_window": 86_400,
            "clock": 21_600, "replay_time": 180, "descent_levels": 5,
        },
        "agree": ["--reward", f"{2 * scale}.25", "--challenge-window", "86400"],
        "audit_fee": ether // 3, "decoys": None if scale > 1 else 0.0123,
        "conditions": [
            {"name": "honest training pays", "holds": True, "slack": 1.5e17, "against": ""},
            {"name": "no cheat pays more", "holds": scale == 1, "slack": 3.25e17 * (3 - 2 * scale), "against": "x"},
        ],
        "margins": [
            {"figure": "cost of a replay", "down": None, "up": 1.2, "breaks_down": "", "breaks_up": "auditing pays"},
            {"figure": "gas price", "down": 0.031, "up": 47.5, "breaks_down": "x", "breaks_up": "y"},
        ],
        "rates": [
            {"probability": p, "discovery": p, "stake": 1e18 / p, "replays": 3e18 * p, "capital": 1e16 / p,
             "total": 3e18 * p + 1e16 / p}
            for p in (1.0, 0.5, 0.1)
        ],
        "equilibria": [
            {"name": "nobody pays auditors", "lies": 1.0, "audit_probability": 0.0, "accepted": 1.0, "cheat": "x",
             "cost": 0.0},
            {"name": "the client pays", "lies": 0.0, "audit_probability": 1.0, "accepted": 0.0, "cheat": "x",
             "cost": 1.234e17},
        ],
        "griefing": [
            {"attack": "false challenge, then silence", "attacker": 1e16, "harm": 2.5e15, "compensation": 1e16,
             "factor": 4.0},
            {"attack": "nothing harmed", "attacker": 1e16, "harm": 0.0, "compensation": 0.0, "factor": None},
        ],
    }  # fmt: skip


def economics() -> Json:
    """As `benchmarks.economics` says."""
    stakes = [0.5 * i for i in range(1, 9)]
    return {
        "name": "economics", "note": "seed 1; grids around the terms of preset gpt2", "environment": {"cpu": "EPYC"},
        "rows": [], "presets": {"fine-tune": preset(1), "gpt2": preset(2)},
        "sweep": {
            "seed": 1, "setting": {}, "points": 1234, "disagreements": 0, "at random": {},
            "regions": [
                *(region(f"{n} auditors", "trainer", STRATEGIES) for n in ("one", "two", "three", "four")),
                region("fees for claims", "auditor", AUDITORS),
            ],
            "equilibria": [
                {
                    "name": name, "x": {"name": "trainer's stake / cost of training", "values": stakes},
                    "lies": [1 / (1 + i * k) for i in range(8)],
                    "audit probability": [i / 8 for i in range(8)],
                    "false jobs that settle": [1 / (1 + i * k) ** 2 for i in range(8)],
                }
                for k, name in ((1, "contract"), (2, "changed rules"))
            ],
            "simulated": [
                {"strategy": name, "games": 2000, "mean": 1.02e17, "error": 3.1e15, "expected": 1e17}
                for name in STRATEGIES
            ],
        },
    }  # fmt: skip
