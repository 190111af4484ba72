"""The Markdown page of a summary: `summary.md` of a simulation, and docs/simulation.md."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from tiebreak.sim.games.records import Json

PAGE: Final = "summary.md"
ENDINGS: Final = {
    "recomputed": "it lost a dispute: the referee computed the disputed instruction and got another result",
    "padding": "it lost a dispute: what it committed to had data where only padding may be",
    "broken tie": "it lost a dispute: what it opened did not match what it had committed to",
    "timeout": "it lost a dispute: its clock ran out",
    "conceded": "it conceded a dispute",
    "equivocation": "it was slashed for signing two different heads of the same length",
    "abandoned": "its job was ended because its heads did not come in time",
    "refused": "a contract or a party refused what it sent",
    "unpaid": "it earned nothing, although others with its role did",
    "harmless": "it did nobody any harm, and gained nothing by it",
    "undetected": "its false head was paid",
}
"""What each ending of an adversary means."""
ROLES: Final = ("trainer", "challenger", "auditor", "client", "builder")


def to_markdown(summary: Json) -> str:
    """The page of a summary (`tiebreak.sim.games.summary` documents its fields)."""
    blocks = [_promises(summary), _endings(summary), _disputes(summary), _payments(summary), _replay(summary)]
    return "\n\n".join(block for part in blocks for block in part) + "\n"


def _promises(s: Json) -> Iterator[str]:
    p, played = s["promises"], s["played"]
    yield "# Simulated games"
    yield (
        f"{s['games']:,} games of seed {s['seed']} and mix `{s['mix']}`: {played['alone']:,} with one adversary, "
        f"{played['together']:,} with several, {played['honest']:,} with honest parties only. Each game is a small "
        "training job with its own client, trainer, auditors and block builder, played with the real engine, signed "
        "messages and contract in simulated time. `tiebreak simulate` plays such games and writes this page."
    )
    watched = p["false_heads"] - p["unwatched"]
    yield "\n".join((
        "## Promises",
        "",
        f"- In {watched:,} games a trainer signed a false head while an auditor was watching; "
        f"in {p['undetected']:,} of them it was paid.",
        f"- In {p['unwatched']:,} games nobody watched a false head. Nothing is promised then.",
        f"- An honest party lost a stake in {p['honest_slashed']:,} games.",
        f"- {p['broken']:,} games broke a promise; {s['errors']:,} could not be played to their end.",
    ))  # fmt: skip
    if s["violations"]:
        yield "### Broken promises"
        yield table(
            ("game", "promise", "line"), ((v["game"], v["violation"], f"`{v['line']}`") for v in s["violations"])
        )


def _endings(s: Json) -> Iterator[str]:
    yield "## Where each adversary ended"
    yield (
        "A count is the number of games in which the adversary took part, alone or with others, and ended in that "
        "way. Alone it must end in one of its own ways. Together with others it may end as they do, because the first "
        "to be caught ends the job for all. Any other ending is a broken promise and stands in the section above. "
        "*Open* marks a known weakness: the rules do not stop it, and nothing is promised about it."
    )
    yield table(("ending", "meaning"), ENDINGS.items())
    rows = []
    for found in _adversaries(s):
        ends = ", ".join(f"{name} {count:,}" for name, count in found["caught"].items())
        name = f"{found['name']} (*open*)" if found["open"] else found["name"]
        rows.append((name, found["role"], found["gain"], found["games"], ends))
    yield table(("adversary", "role", "hopes for", "games", "ended"), rows)


def _disputes(s: Json) -> Iterator[str]:
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
    lines = [*s["notable"].items(), *((f["name"], f["first"]) for f in _adversaries(s) if f["first"])]
    if lines:
        yield "## Play one again"
        yield "`tiebreak simulate --replay LINE` plays the game of a line again and tells it move by move."
        yield table(("game", "line"), ((name, f"`{line}`") for name, line in lines))


def _adversaries(s: Json) -> list[Json]:
    """The adversaries that took part, by role and name."""
    met = [found for found in s["adversaries"].values() if found["games"]]
    return sorted(met, key=lambda found: (ROLES.index(found["role"]), found["name"]))


def ether(wei: float) -> str:
    """To four significant digits, with a sign."""
    return f"{wei / 10**18:+.4g}" if wei else "0"


def number(value: Any) -> str:
    """Whole numbers with thousands separators; other values as text."""
    return f"{round(value):,}" if isinstance(value, int | float) else str(value)


def table(head: Sequence[str], rows: Iterable[Iterable[Any]], write: Callable[[Any], str] = number) -> str:
    """A Markdown table with numeric columns aligned to the right."""
    body = [[write(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    right = [body != [] and all(row[i][:1] in "-+–0123456789" for row in body) for i in range(len(head))]
    lines = [[*head], ["---:" if numbers else "---" for numbers in right], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
