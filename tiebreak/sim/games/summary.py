"""The summary of all games of a file. It depends on nothing but the JSON Lines: `summarize(*read(path))`.

{"name": "simulate", "version": 2, "seed", "mix", "environment",
 "games"         how many were played
 "played"        {"alone", "together", "honest"}: with one adversary, with several, with none
 "errors"        games that could not be played to their end; they have no part in the numbers below
 "promises"      {"false_heads"       games in which a trainer signed a head of another run than the job's
                  "unwatched"         ... and no diligent, funded auditor was watching
                  "undetected"        ... and one was, and the job was settled nevertheless
                  "honest_slashed"    games in which an honest party lost a stake
                  "broken"            games with a violation, errors included}
 "violations"    [{"game", "line", "violation"}, ...]: each promise that was broken, and the line to play it again
 "speed"         {"wall": D, "games_per_hour": of one process}
 "honest"        games without adversaries: S
 "levels"        {"1" ... "5": S}: all games, by the levels of a tree that one move reveals
 "notable"       {"most moves", ...: line}: the game with the greatest value of each quantity
 "adversaries"   {slug: {"name", "role", "gain", "where": [where it must be caught]
                         "open": whether the rules do not stop it
                         "games", "alone"     games in which it took part, and those in which it was alone
                         "caught": {catch: games}, of all its games
                         "first": line of the first game in which it was alone, or null
                         "summary": S, of those in which it was alone}}}

S   {"games", "jobs": {job's end: games}, "verdicts": {reason: duels},
     "seconds": D of simulated time until all was settled,
     "duels": {"count", "rounds": D, "moves": D, "gas": D, "bytes": D, "seconds": D},
     "honest", "dishonest": {role: {"parties",
                                    "wei": P, "gas": P, "steps": P, "messages": P, "bytes": P, "refused": P}}}
     An honest builder, who neither spends nor gains, is left out. wei: gained or lost, gas not counted; steps:
     executed, or what a party with nothing cached would have to.
D   null of nothing, else {"min", "median", "max", "mean"}
P   {"min", "median", "max"}, and of gas the "mean"

Amounts are in wei, times in seconds.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median_high, median_low
from typing import Any, Final

from tiebreak.sim.games.line import GameLine, slug
from tiebreak.sim.games.records import Head, Json

VERSION: Final = 2
PARTY_NUMBERS: Final = ("wei", "gas", "steps", "messages", "bytes", "refused")
DUEL_NUMBERS: Final = ("rounds", "moves", "gas", "bytes", "seconds")
ERROR: Final = "error: "


def summarize(head: Head, records: Sequence[Json]) -> Json:
    records = sorted(records, key=lambda record: record["game"])
    results = [record["result"] for record in records if "result" in record]
    alone = [result for result in results if len(result["adversaries"]) == 1]
    levels = {result["line"]: str(GameLine.parse(result["line"], head.adversaries).levels) for result in results}
    violations = [
        {"game": record["game"], "line": record["line"], "violation": text}
        for record in records
        for text in violations_of(record)
    ]
    return {
        "name": "simulate",
        "version": VERSION,
        "seed": head.seed,
        "mix": head.mix,
        "environment": dict(head.environment),
        "games": len(records),
        "played": {
            "alone": len(alone),
            "together": sum(len(result["adversaries"]) > 1 for result in results),
            "honest": sum(not result["adversaries"] for result in results),
        },
        "errors": len(records) - len(results),
        "promises": {
            "false_heads": sum(result["false_head"] for result in results),
            "unwatched": sum(result["false_head"] and not result["watched"] for result in results),
            "undetected": sum(map(undetected, results)),
            "honest_slashed": sum(map(honest_slashed, results)),
            "broken": len({violation["game"] for violation in violations}),
        },
        "violations": violations,
        "speed": _speed(records),
        "honest": _stories([result for result in results if not result["adversaries"]]),
        "levels": {
            level: _stories([result for result in results if levels[result["line"]] == level])
            for level in sorted(set(levels.values()))
        },
        "notable": _notable(results),
        "adversaries": {name: _of_adversary(name, facts, results) for name, facts in head.adversaries.items()},
    }


def violations_of(record: Json) -> list[str]:
    """The promises that a game broke. A game that could not be played to its end counts as one."""
    return list(record["result"]["violations"]) if "result" in record else [ERROR + record["error"]]


def undetected(result: Json) -> bool:
    """Whether a false head was watched and paid for all the same."""
    return any(sentence.startswith("2:") for sentence in result["violations"])


def honest_slashed(result: Json) -> bool:
    """Whether an honest party lost a stake: the trainer its own, or a challenger in a duel."""
    honest = {party["name"]: party["role"] for party in result["parties"] if party["adversary"] is None}
    trainer = "trainer" in honest.values() and result["job_status"] == "slashed"
    return trainer or any(duel["challenger"] in honest and duel["verdict"] == "trainer" for duel in result["duels"])


def _speed(records: Sequence[Json]) -> Json:
    walls = [record["wall"] for record in records]
    return {"wall": distribution(walls), "games_per_hour": round(3600 / fmean(walls)) if any(walls) else None}


def _of_adversary(name: str, facts: Mapping[str, Any], results: Sequence[Json]) -> Json:
    own = [result for result in results if name in map(slug, result["adversaries"])]
    alone = [result for result in own if len(result["adversaries"]) == 1]
    catches = Counter(where for result in own for who, where in result["catches"].items() if slug(who) == name)
    return {
        "name": facts["name"],
        "role": facts["role"],
        "gain": facts["gain"],
        "where": list(facts["caught"]),
        "games": len(own),
        "alone": len(alone),
        "open": facts["open"],
        "caught": _counted(catches),
        "first": alone[0]["line"] if alone else None,
        "summary": _stories(alone),
    }


def _stories(results: Sequence[Json]) -> Json:
    duels = [duel for result in results for duel in result["duels"]]
    parties = [party for result in results for party in result["parties"]]
    return {
        "games": len(results),
        "jobs": _counted(Counter(result["job_status"] for result in results)),
        "verdicts": _counted(Counter(duel["reason"] for duel in duels)),
        "seconds": distribution([result["seconds"] for result in results]),
        "duels": {"count": len(duels), **_numbers(duels, DUEL_NUMBERS)},
        "honest": _by_role(parties, lambda party: party["adversary"] is None),
        "dishonest": _by_role(parties, lambda party: party["adversary"] is not None),
    }


def _by_role(parties: Sequence[Json], belongs: Callable[[Json], bool]) -> Json:
    own = [party for party in parties if belongs(party)]
    found = {}
    for role in sorted({party["role"] for party in own}):
        of_role = [party for party in own if party["role"] == role]
        if any(party[name] for party in of_role for name in PARTY_NUMBERS) or not _is_honest_builder(of_role[0]):
            found[role] = {"parties": len(of_role), **_costs(of_role)}
    return found


def _notable(results: Sequence[Json]) -> dict[str, str]:
    """The first of the games in which each quantity was greatest."""
    found = {}
    for name in ("moves", "gas", "bytes"):
        disputed = [(sum(duel[name] for duel in result["duels"]), result["line"]) for result in results]
        if any(size for size, _ in disputed):
            found[f"most {name}"] = max(disputed, key=lambda pair: pair[0])[1]
    if any(result["duels"] for result in results):
        found["most disputes"] = max(results, key=lambda result: len(result["duels"]))["line"]
    return found


def _is_honest_builder(party: Json) -> bool:
    return party["adversary"] is None and party["role"] == "builder"


def _costs(parties: Sequence[Json]) -> Json:
    found = {name: spread([party[name] for party in parties]) for name in PARTY_NUMBERS}
    found["gas"]["mean"] = _mean([party["gas"] for party in parties])
    return found


def _numbers(rows: Sequence[Json], names: Iterable[str]) -> Json:
    return {name: distribution([row[name] for row in rows]) for name in names}


def _counted(counter: Counter[str]) -> dict[str, int]:
    return {str(name): count for name, count in sorted(counter.items(), key=lambda item: (-item[1], str(item[0])))}


def spread(values: Sequence[float]) -> Json:
    """The minimum, median and maximum of some numbers."""
    return {"min": min(values), "median": _middle(values), "max": max(values)}


def distribution(values: Sequence[float]) -> Json | None:
    """The spread of some numbers and their mean; None for no numbers."""
    return {**spread(values), "mean": _mean(values)} if values else None


def _mean(values: Sequence[float]) -> float:
    return _short(fmean(values))


def _middle(values: Sequence[float]) -> float:
    """The median, exact if it is whole: amounts in wei exceed the precision of a float."""
    low, high = median_low(values), median_high(values)
    return low if low == high else (low + high) // 2 if (low + high) % 2 == 0 else (low + high) / 2


def _short(value: float) -> float:
    """Rounded to six significant digits; an integer if the result is whole."""
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded == int(rounded) else rounded
