"""The summary of all games of a file: the numbers that the page and the command line show.

It depends on nothing but the JSON Lines: `summarize(*read(path))`.

{"name": "simulate", "version": 3, "seed", "mix", "environment",
 "games"         how many were played
 "played"        {"alone", "together", "honest"}: with one adversary, with several, with none
 "errors"        games that could not be played to their end; they have no part in the numbers below
 "promises"      {"false_heads"       games in which a trainer signed a head of another run than the job's
                  "unwatched"         ... and no diligent, funded auditor was watching
                  "undetected"        ... and one was, and the job was settled nevertheless
                  "honest_slashed"    games in which an honest party lost a stake
                  "broken"            games with a violation, errors included}
 "violations"    [{"game", "line", "violation"}, ...]: each promise that was broken, and the line to play it again
 "speed"         {"games_per_hour": of one process}
 "honest"        games without adversaries: S
 "levels"        {"1" ... "5": S}: all games, by the levels of a tree that one move reveals
 "notable"       {"most moves", ...: line}: the game with the greatest value of each quantity
 "adversaries"   {slug: {"name", "role", "gain", "where": [where it must be caught]
                         "open": whether the rules do not stop it
                         "games", "alone"     games in which it took part, and those in which it was alone
                         "caught": {catch: games}, of all its games
                         "first": line of the first game in which it was alone, or null
                         "summary": S, of those in which it was alone}}}

S   {"duels": {"count", "moves": D, "gas": D, "bytes": D, "seconds": D of simulated time},
     "honest": {role: M} of trainers and auditors, "dishonest": {role: M}}
D   null of nothing, else {"median", "max"}
M   {"wei": gained or lost, gas not counted; "gas"}, medians

Amounts are in wei, times in seconds.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, median_high, median_low
from typing import Any, Final

from tiebreak.sim.games.line import GameLine, slug
from tiebreak.sim.games.records import Header, Json

VERSION: Final = 3
ERROR: Final = "error: "


def summarize(head: Header, records: Sequence[Json]) -> Json:
    records = sorted(records, key=lambda record: record["game"])
    results = [record["result"] for record in records if "result" in record]
    alone = [result for result in results if len(result["adversaries"]) == 1]
    honest = [result for result in results if not result["adversaries"]]
    levels: dict[str, list[Json]] = {}
    for result in results:
        levels.setdefault(str(GameLine.parse(result["line"], head.adversaries).levels), []).append(result)
    violations = [
        {"game": record["game"], "line": record["line"], "violation": text}
        for record in records
        for text in violations_of(record)
    ]
    walls = [record["wall"] for record in records]
    return {
        "name": "simulate",
        "version": VERSION,
        "seed": head.seed,
        "mix": head.mix,
        "environment": dict(head.environment),
        "games": len(records),
        "played": {
            "alone": len(alone), "together": len(results) - len(alone) - len(honest), "honest": len(honest)
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
        "speed": {"games_per_hour": round(3600 / fmean(walls)) if any(walls) else None},
        "honest": _story(honest),
        "levels": {level: _story(found) for level, found in sorted(levels.items())},
        "notable": _notable(results),
        "adversaries": {name: _of_adversary(name, facts, results) for name, facts in head.adversaries.items()},
    }  # fmt: skip


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
        "caught": dict(sorted(catches.items(), key=lambda item: (-item[1], item[0]))),
        "first": alone[0]["line"] if alone else None,
        "summary": _story(alone),
    }


def _story(results: Sequence[Json]) -> Json:
    duels = [duel for result in results for duel in result["duels"]]
    parties = [party for result in results for party in result["parties"]]
    honest = [party for party in parties if party["adversary"] is None and party["role"] in ("trainer", "auditor")]
    return {
        "duels": {
            "count": len(duels),
            **{name: _spread([duel[name] for duel in duels]) for name in ("moves", "gas", "bytes", "seconds")},
        },
        "honest": _medians(honest),
        "dishonest": _medians([party for party in parties if party["adversary"] is not None]),
    }


def _medians(parties: Sequence[Json]) -> Json:
    return {
        role: {name: median([party[name] for party in parties if party["role"] == role]) for name in ("wei", "gas")}
        for role in sorted({party["role"] for party in parties})
    }


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


def _spread(values: Sequence[float]) -> Json | None:
    return {"median": median(values), "max": max(values)} if values else None


def median(values: Sequence[float]) -> float:
    """The median, exact if it is whole: amounts in wei exceed the precision of a float."""
    low, high = median_low(values), median_high(values)
    return low if low == high else (low + high) // 2 if (low + high) % 2 == 0 else (low + high) / 2
