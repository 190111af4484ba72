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
 "faults"        {what: how often} of games in rough weather; {} if it was fair in all of them
 "violations"    [{"game", "line", "violation"}, ...]: each promise that was broken, and the line to play it again
 "speed"         {"games_per_hour": of one process}
 "honest"        games without adversaries: S
 "levels"        {"1" ... "5": S}: all games, by the levels of a tree that one move reveals
 "notable"       {"most moves", ...: line}: the game with the greatest value of each quantity
 "adversaries"   {slug: {"name", "role", "gain", "where": [where it must be caught]
                         "games", "alone"     games in which it took part, and those in which it was alone
                         "caught": {catch: games}, of all its games
                         "first": line of the first game in which it was alone, or null
                         "summary": S, of those in which it was alone}}}

S   {"duels": {"count", "moves": D, "gas": D, "bytes": D, "seconds": D of simulated time},
     "honest": {role: M} of trainers and auditors, "dishonest": {role: M}}
D   null of nothing, else {"median", "max"}
M   {"wei": gained or lost, gas not counted; "gas"}, medians

Amounts are in wei, times in seconds. `to_markdown` makes the page of a summary: `summary.md`, and, without the rows of
each adversary, docs/simulation.md.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median_high, median_low
from typing import Any, Final

from tiebreak.lab.sim.games.line import GameLine, slug
from tiebreak.lab.sim.games.runner import Json
from tiebreak.protocol.errors import EncodingError

VERSION: Final = 3
FORMAT: Final = "tiebreak games"
FORMAT_VERSION: Final = 1
"""The format of a file of games."""
ERROR: Final = "error: "


@dataclass(frozen=True, slots=True, kw_only=True)
class GamesHeader:
    """The properties that all games of a file have in common."""

    seed: int
    mix: str
    environment: Mapping[str, str]
    adversaries: Mapping[str, Mapping[str, Any]]

    def to_json(self) -> Json:
        return {"format": FORMAT, "version": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def of(cls, found: Json) -> "GamesHeader":
        """Parse the first line. Raises `EncodingError` for a file of another format or version."""
        if (found.get("format"), found.get("version")) != (FORMAT, FORMAT_VERSION):
            got = f"{found.get('format')!r}, version {found.get('version')!r}"
            raise EncodingError(f"expected a file of {FORMAT!r}, version {FORMAT_VERSION}, got {got}")
        return cls(**{name: found[name] for name in cls.__slots__})


def summarize(head: GamesHeader, records: Sequence[Json]) -> Json:
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
        "faults": dict(sum((Counter(result["faults"]) for result in results), Counter())),
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


PAGE: Final = "summary.md"
ENDINGS: Final = {
    "recomputed": "it lost a dispute: the referee computed the disputed instruction and got another result",
    "padding": "it lost a dispute: what it committed to had data where only padding may be",
    "timeout": "it lost a dispute: its clock ran out",
    "conceded": "it conceded a dispute",
    "equivocation": "it was slashed for signing two different heads of the same length",
    "forked": "it lost a game for signing two states in one place",
    "inconsistency": "it was slashed for signing two heads that show different records of the same segment",
    "nonfinite": "it was slashed for signing a record whose loss is infinite or NaN, which the job forbids",
    "abandoned": "its job was ended because its heads did not come in time",
    "parted": "its job was ended without receipts for all logs, and only the part with receipts was paid",
    "refused": "a contract or a party refused what it sent",
    "forfeited": "it lost the bond of a seat",
    "unpaid": "it earned nothing, although others with its role did",
    "harmless": "it did nobody any harm, and gained nothing by it",
    "undetected": "its false head was paid",
}
"""The meaning of each ending of an adversary."""
ROLES: Final = ("trainer", "challenger", "auditor", "client", "builder")


# ---------------------------------------------------------------- the page


def to_markdown(
    summary: Json, rough: Json | None = None, rollouts: Json | None = None, *, details: str | None = None
) -> str:  # fmt: skip
    """A summary as a Markdown page.

    rough: the summary of other games, in rough weather, for a section of its own. rollouts: the same for games about
    late data. details: a link to the page with all tables, for a short page without a row for each adversary.
    """
    both = summary if rollouts is None else {**summary, "adversaries": rollouts["adversaries"] | summary["adversaries"]}
    more_games = ((rough, _rough), (rollouts, _rollouts))
    blocks: list[Iterable[str]] = [_promises(summary)]
    blocks += [section(found) for found, section in more_games if found is not None]
    if details is None:
        blocks += [_endings(both), _disputes(both), _payments(both), _replay(both)]
    else:
        more = (
            f"[The tables of all {len(_adversaries(both))} adversaries]({details}) say what each one hopes for and "
            "where it ended, what its disputes took, and what each side gained and paid. They have a line for each, "
            "with which `tiebreak simulate --replay LINE` plays one of its games again, move by move."
        )
        blocks += [_disputes(summary, each=False), ["## Adversaries", more]]
    return "\n\n".join(block for part in blocks for block in part) + "\n"


def _promises(s: Json) -> Iterator[str]:
    played = s["played"]
    yield "# Simulated games"
    yield (
        f"{s['games']:,} games of seed {s['seed']} and mix `{s['mix']}`: {played['alone']:,} with one adversary, "
        f"{played['together']:,} with several, {played['honest']:,} with honest parties only. Each game is a small "
        "training job with its own client, trainer, auditors and block builder, played with the real engine, signed "
        "messages and contract in simulated time. `tiebreak simulate` plays such games and writes this page."
    )
    yield "## Promises"
    yield _kept(s)
    if s["violations"]:
        yield "### Broken promises"
        yield table(
            ("game", "promise", "line"), ((v["game"], v["violation"], f"`{v['line']}`") for v in s["violations"])
        )


def _rough(s: Json) -> Iterator[str]:
    faults, played = s["faults"], s["played"]
    yield "## In rough weather"
    yield (
        f"{s['games']:,} games of seed {s['seed']} and mix `{s['mix']}` ({played['alone']:,} with one adversary, "
        f"{played['together']:,} with several, {played['honest']:,} with honest parties only), played with `--rough`. "
        "What parties say to each other gets lost, or comes late, twice and in another order. Their transactions come "
        "late, or get lost and are sent again. A party dies at any instant, amid its work or between two of its "
        "actions, and begins again with nothing but its journal. Up to three of the newest blocks vanish, and what was "
        "in them comes back in another order. The seconds that all this costs a party are bounded by those that its "
        "clocks have to spare. What an adversary does may be lost, too, so one that is alone may end as if others were "
        "there."
    )
    yield table(("what went wrong", "times"), ((what, faults[what]) for what in sorted(faults)))
    yield _kept(s)


def _rollouts(s: Json) -> Iterator[str]:
    played = s["played"]
    yield "## With late data"
    yield (
        f"{s['games']:,} games of seed {s['seed']} and mix `{s['mix']}` ({played['alone']:,} with one adversary, "
        f"{played['together']:,} with several, {played['honest']:,} with honest parties only). A tiny language model "
        "learns from answers that its trainer samples and publishes. The program samples, too, and its loss is NaN "
        "from the first false answer on, which the job forbids. Honest trainers draft in FP32, FP64 or bfloat16, with "
        "a cache or without, some answers at a time or all, with every other token wrong, and start again amid a run."
    )
    yield _kept(s)


def _kept(s: Json) -> str:
    p = s["promises"]
    watched = p["false_heads"] - p["unwatched"]
    return "\n".join((
        f"- In {watched:,} games a trainer signed a false head while an auditor was watching; "
        f"in {p['undetected']:,} of them it was paid.",
        f"- In {p['unwatched']:,} games nobody watched a false head. Nothing is promised then.",
        f"- An honest party lost a stake in {p['honest_slashed']:,} games.",
        f"- {p['broken']:,} games broke a promise; {s['errors']:,} could not be played to their end.",
    ))  # fmt: skip


def _endings(s: Json) -> Iterator[str]:
    yield "## Where each adversary ended"
    yield (
        "A count is the number of games in which the adversary took part, alone or with others, and ended in that "
        "way. Alone it must end in one of its own ways. Together with others it may end as they do, because the first "
        "to be caught ends the job for all. Any other ending is a broken promise and stands in the section above."
    )
    yield table(("ending", "meaning"), ENDINGS.items())
    rows = []
    for found in _adversaries(s):
        ends = ", ".join(f"{name} {count:,}" for name, count in found["caught"].items())
        rows.append((found["name"], found["role"], found["gain"], found["games"], ends))
    yield table(("adversary", "role", "hopes for", "games", "ended"), rows)


def _disputes(s: Json, *, each: bool = True) -> Iterator[str]:
    heads = ("disputes", "moves", "most moves", "gas", "most gas", "message bytes", "minutes", "most minutes")

    def cells(duels: Json) -> tuple[Any, ...]:
        moves, gas, sent, seconds = (duels[name] for name in ("moves", "gas", "bytes", "seconds"))
        minutes = (round(seconds["median"] / 60), round(seconds["max"] / 60))
        return duels["count"], moves["median"], moves["max"], gas["median"], gas["max"], sent["median"], *minutes

    def rows(stories: Iterable[tuple[str, Json]]) -> Iterator[tuple[Any, ...]]:
        return ((name, *cells(story["duels"])) for name, story in stories if story["duels"]["count"])

    yield "## Disputes"
    yield "Medians, each beside the greatest. Minutes are simulated time from the challenge to the verdict."
    yield "By levels of a tree that one move shows, over all games:"
    yield table(("levels", *heads), rows(s["levels"].items()))
    if each:
        yield "By adversary, over games in which it was alone:"
        yield table(("adversary", *heads), rows((found["name"], found["summary"]) for found in _adversaries(s)))


def _payments(s: Json) -> Iterator[str]:
    yield "## What each side gains and pays"
    yield (
        "Medians over games in which the adversary was alone: ether won or lost, without gas, then gas. Stakes differ "
        "from game to game."
    )

    def cells(found: Json | None) -> tuple[str, ...]:
        return ("–", "–") if found is None else (ether(found["wei"]), number(found["gas"]))

    honest = s["honest"]["honest"]
    rows = [("nobody: all are honest", "", "", *cells(honest.get("trainer")), *cells(honest.get("auditor")))]
    for found in _adversaries(s):
        if found["alone"]:
            story = found["summary"]
            own, others = story["dishonest"].get(found["role"]), story["honest"]
            sides = (own, others.get("trainer"), others.get("auditor"))
            rows.append((found["name"], *(cell for side in sides for cell in cells(side))))
    sides = ("adversary", "honest trainer", "honest auditor")
    yield table(("adversary is", *(f"{side}: {unit}" for side in sides for unit in ("ether", "gas"))), rows)


def _replay(s: Json) -> Iterator[str]:
    first = ((found["name"], found["first"]) for found in _adversaries(s) if found["first"])
    lines = [*s["notable"].items(), *first]
    if lines:
        yield "## Play one again"
        yield "`tiebreak simulate --replay LINE` plays the game of a line again and tells it move by move."
        yield table(("game", "line"), ((name, f"`{line}`") for name, line in lines))


def _adversaries(s: Json) -> list[Json]:
    """The adversaries that took part, by role and name."""
    met = [found for found in s["adversaries"].values() if found["games"]]
    return sorted(met, key=lambda found: (ROLES.index(found["role"]), found["name"]))


def ether(wei: float) -> str:
    """Writes an amount to four significant digits, with a sign."""
    return f"{wei / 10**18:+.4g}" if wei else "0"


def number(value: Any) -> str:
    """Writes whole numbers with thousands separators; other values as text."""
    return f"{round(value):,}" if isinstance(value, int | float) else str(value)


def table(head: Sequence[str], rows: Iterable[Iterable[Any]], write: Callable[[Any], str] = number) -> str:
    """A Markdown table with numeric columns aligned to the right."""
    body = [[write(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    right = [body != [] and all(row[i][:1] in "-+–0123456789" for row in body) for i in range(len(head))]
    lines = [[*head], ["---:" if numbers else "---" for numbers in right], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
