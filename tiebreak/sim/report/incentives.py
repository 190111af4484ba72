"""Sections on money: where honesty and diligence are best replies, recommended terms and their margins, griefing."""

from collections.abc import Callable, Iterable
from typing import Final

from tiebreak.sim.report import region_charts, words
from tiebreak.sim.report.page import Block, Entry, Lines, Paragraph, Picture, Section, Table, entry, row, table
from tiebreak.sim.report.region_charts import Grid, Line, Slack
from tiebreak.sim.report.results import Results
from tiebreak.sim.report.tracing import Number, product

TERMS: Final[tuple[tuple[str, str, Callable[[Number | None], words.Cell]], ...]] = (
    ("reward", "reward", words.ether),
    ("trainer_stake", "trainer’s stake", words.ether),
    ("challenger_stake", "challenger’s stake", words.ether),
    ("challenge_window", "challenge window", words.span),
    ("clock", "clock of each side", words.span),
    ("replay_time", "time to replay a segment", words.span),
    ("descent_levels", "levels a move", words.whole),
)
SHARES: Final = ("lies", "audit probability", "false jobs that settle")
PANELS: Final = ("trainers cheat", "each auditor audits", "false jobs that settle")
MOST_FACTOR: Final = 1000.0
"""Factors are looked for up to this one, and no axis goes further."""


def sections(results: Results) -> tuple[Section, ...]:
    """All that is said of money."""
    made = (
        Section(title="Best replies", anchor="regions", blocks=tuple(_regions(results))),
        Section(title="Recommended terms", anchor="terms", blocks=tuple(_terms(results))),
        Section(title="How far figures may be off", anchor="margins", blocks=tuple(_margins(results))),
        Section(title="Audits and equilibria", anchor="equilibria", blocks=tuple(_equilibria(results))),
        Section(title="Griefing", anchor="griefing", blocks=tuple(_griefing(results))),
    )
    return tuple(section for section in made if section.blocks)


def _regions(found: Results) -> Iterable[Block]:
    points, differ = found.number("sweep", "points"), found.number("sweep", "disagreements")
    yield Paragraph(
        text=(
            "Which of its strategies pays a party most, over grids of parameters (", found.text("note"), "), found "
            "twice: by paying out every story by the board’s rules, which gives the points, and in closed form, which "
            "gives the lines. Of ", words.whole(points), " points compared they differ at ", words.whole(differ), ".",
        ),
        tone="bad" if differ.value else "",
    )  # fmt: skip
    every = list(found.indices("sweep", "regions"))
    for party in dict.fromkeys(found.text("sweep", "regions", i, "party") for i in every):
        mine = [i for i in every if found.text("sweep", "regions", i, "party") == party]
        labels = found.raw("sweep", "regions", mine[0], "labels")
        title = f"Best replies of {'an auditor' if party == 'auditor' else 'the trainer'}"
        svg = region_charts.regions(f"regions-{party}", title, labels, [_grid(found, i) for i in mine])
        yield Picture(name=f"regions-{party}", title=title, svg=svg)
    yield table(
        "regions", "Grids", ("grid", "party", "across", "up", "points", "the two ways differ at"),
        [_region(found, i) for i in every], folded=True,
    )  # fmt: skip
    yield _simulated(found)


def _grid(found: Results, i: int) -> Grid:
    region = found.raw("sweep", "regions", i)
    return Grid(
        title=region["name"], xlabel=region["x"]["name"], ylabel=region["y"]["name"], x=tuple(region["x"]["values"]),
        y=tuple(region["y"]["values"]), rules=region["rules"], closed=region["closed"],
    )  # fmt: skip


def _region(found: Results, i: int) -> tuple[Entry, ...]:
    at = ("sweep", "regions", i)
    points = product(found.count(*at, "x", "values"), found.count(*at, "y", "values"))
    differ = found.number(*at, "disagreements")
    return row(
        found.text(*at, "name"), found.text(*at, "party"), found.text(*at, "x", "name"), found.text(*at, "y", "name"),
        words.whole(points), entry(words.whole(differ), tone="bad" if differ.value else ""),
    )  # fmt: skip


def _simulated(found: Results) -> Table:
    at = ("sweep", "simulated")
    rows = [
        row(
            found.text(*at, i, "strategy"), words.whole(found.number(*at, i, "games")),
            words.ether(found.number(*at, i, "mean")), words.ether(found.number(*at, i, "error")),
            words.ether(found.number(*at, i, "expected")),
        )
        for i in found.indices(*at)
    ]  # fmt: skip
    heads = ("the trainer", "games", "mean gain", "standard error", "closed form expects")
    return table("simulated", "Games drawn at random, against the closed form", heads, rows)


def _terms(found: Results) -> Iterable[Block]:
    presets = found.keys("presets")
    yield Paragraph(
        text=("The smallest terms under which honesty and diligence are best replies although the figures they rest on "
              "may be off by the margin asked for. Prices and values are assumed, and are listed in docs/economics.md; "
              "gas was measured.",)
    )  # fmt: skip
    rows = [
        row(told, *(show(found.number("presets", preset, "terms", name)) for preset in presets))
        for name, told, show in TERMS
    ]
    rows.append(row("fee of a proven audit", *(words.ether(found.number("presets", p, "audit_fee")) for p in presets)))
    rows.append(row("or: share of decoys", *(words.percent(found.optional("presets", p, "decoys")) for p in presets)))
    yield table("terms", "Terms", ("", *presets), rows)
    conditions = [found.text("presets", presets[0], "conditions", i, "name")
                  for i in found.indices("presets", presets[0], "conditions")]  # fmt: skip
    yield table(
        "conditions", "What must hold, and by how much it does", ("condition", *presets),
        [row(name, *(_condition(found, preset, name) for preset in presets)) for name in conditions],
        note=("By how much the party gains more than by the best of its other choices. Red: it does not hold.",),
    )  # fmt: skip
    lines = tuple(
        (preset, " ".join(["tiebreak agree JOB", *found.raw("presets", preset, "agree")])) for preset in presets
    )
    yield Lines(name="agree", title="To agree on them", lines=lines)


def _condition(found: Results, preset: str, name: str) -> Entry:
    at = ("presets", preset, "conditions")
    for i in found.indices(*at):
        if found.text(*at, i, "name") == name:
            holds = found.raw(*at, i, "holds")
            return entry(words.ether(found.number(*at, i, "slack")), tone="" if holds else "bad")
    return entry(words.DASH)


def _margins(found: Results) -> Iterable[Block]:
    presets = [preset for preset in found.keys("presets") if found.raw("presets", preset, "margins")]
    if not presets:
        return
    yield Paragraph(
        text=("By which factor each figure may be off, the terms as recommended, before a condition breaks.",)
    )
    labels = list(dict.fromkeys(label for preset in presets for label in _figures(found, preset)))
    title = "How far figures may be off"
    panels = {preset: _slacks(found, preset) for preset in presets}
    yield Picture(name="margins", title=title, svg=region_charts.factors("margins", title, labels, panels, MOST_FACTOR))
    for preset in presets:
        at = ("presets", preset, "margins")
        yield table(
            f"margins-{preset}", f"How far figures may be off: {preset}", ("figure", "down to", "up to", "then fails"),
            [
                row(
                    found.text(*at, i, "figure"), _factor(found.optional(*at, i, "down")),
                    _factor(found.optional(*at, i, "up")),
                    "; ".join(filter(None, (found.text(*at, i, side) for side in ("breaks_down", "breaks_up")))),
                )
                for i in found.indices(*at)
            ],
            folded=True,
        )  # fmt: skip


def _figures(found: Results, preset: str) -> list[str]:
    return [found.text("presets", preset, "margins", i, "figure") for i in found.indices("presets", preset, "margins")]


def _slacks(found: Results, preset: str) -> list[Slack]:
    at = ("presets", preset, "margins")
    return [
        Slack(label=figure, down=found.optional(*at, i, "down"), up=found.optional(*at, i, "up"))
        for i, figure in enumerate(_figures(found, preset))
    ]


def _factor(number: Number | None) -> words.Cell:
    return "any" if number is None else words.times(number)


def _equilibria(found: Results) -> Iterable[Block]:
    curves = list(found.indices("sweep", "equilibria"))
    if curves:
        title = "Equilibria over the trainer’s stake"
        axis = found.text("sweep", "equilibria", 0, "x", "name")
        lines = [_line(found, i) for i in curves]
        yield Picture(
            name="equilibria", title=title, svg=region_charts.shares("equilibria", title, lines, PANELS, axis)
        )
        yield _solved(found, curves, axis)
    for preset in found.keys("presets"):
        if found.raw("presets", preset, "equilibria"):
            yield _regimes(found, preset)
    rated = [preset for preset in found.keys("presets") if found.raw("presets", preset, "rates")]
    if rated:
        title = "Audits against stakes"
        svg = region_charts.costs("rates", title, {preset: _rates(found, preset) for preset in rated})
        yield Picture(name="rates", title=title, svg=svg)
    for preset in rated:
        yield _rate_table(found, preset)


def _line(found: Results, i: int) -> Line:
    at = ("sweep", "equilibria", i)
    return Line(
        label=found.text(*at, "name"),
        x=tuple(found.number(*at, "x", "values", k) for k in found.indices(*at, "x", "values")),
        y=tuple(tuple(found.number(*at, share, k) for k in found.indices(*at, share)) for share in SHARES),
    )


def _solved(found: Results, curves: list[int], axis: str) -> Table:
    rows = [
        row(
            found.text("sweep", "equilibria", i, "name"),
            words.plain(found.number("sweep", "equilibria", i, "x", "values", k)),
            *(words.percent(found.number("sweep", "equilibria", i, share, k)) for share in SHARES),
        )
        for i in curves
        for k in found.indices("sweep", "equilibria", i, "x", "values")
    ]  # fmt: skip
    return table("equilibria", "Equilibria over the trainer’s stake", ("case", axis, *PANELS), rows, folded=True)


def _regimes(found: Results, preset: str) -> Table:
    at = ("presets", preset, "equilibria")
    rows = [
        row(
            found.text(*at, i, "name"), words.percent(found.number(*at, i, "lies")),
            words.percent(found.number(*at, i, "audit_probability")), words.percent(found.number(*at, i, "accepted")),
            words.ether(found.number(*at, i, "cost")),
        )
        for i in found.indices(*at)
    ]  # fmt: skip
    heads = ("way to have jobs audited", *PANELS, "the client pays, a job")
    return table(f"regimes-{preset}", f"Equilibria at the recommended terms: {preset}", heads, rows)


RATES: Final = (
    ("stake", "stake needed"),
    ("replays", "replays"),
    ("capital", "capital of the stake"),
    ("total", "sum"),
)


def _rates(found: Results, preset: str) -> tuple[list[Number], list[tuple[str, list[Number]]]]:
    at = ("presets", preset, "rates")
    every = found.indices(*at)
    lines = [(told, [found.number(*at, i, what) for i in every]) for what, told in RATES]
    return [found.number(*at, i, "probability") for i in every], lines


def _rate_table(found: Results, preset: str) -> Table:
    at = ("presets", preset, "rates")
    rows = [
        row(
            words.percent(found.number(*at, i, "probability")), words.percent(found.number(*at, i, "discovery")),
            *(words.ether(found.number(*at, i, what)) for what, _ in RATES),
        )
        for i in found.indices(*at)
    ]  # fmt: skip
    heads = ("each auditor audits", "a lie is found", *(told for _, told in RATES))
    return table(f"rates-{preset}", f"Audits against stakes: {preset}", heads, rows, folded=True)


def _griefing(found: Results) -> Iterable[Block]:
    presets = [preset for preset in found.keys("presets") if found.raw("presets", preset, "griefing")]
    if not presets:
        return
    yield Paragraph(
        text=("What an attacker loses who wants nothing but others’ loss, for each wei of harm, before its victims are "
              "paid. Below one an attack is cheaper than its harm.",)
    )  # fmt: skip
    for preset in presets:
        at = ("presets", preset, "griefing")
        rows = [
            row(
                found.text(*at, i, "attack"), words.ether(found.number(*at, i, "attacker")),
                words.ether(found.number(*at, i, "harm")), words.ether(found.number(*at, i, "compensation")),
                _factor(found.optional(*at, i, "factor")),
            )
            for i in found.indices(*at)
        ]  # fmt: skip
        heads = ("attack", "the attacker loses", "harm done", "victims are paid", "for each wei of harm")
        yield table(f"griefing-{preset}", f"Griefing: {preset}", heads, rows)
