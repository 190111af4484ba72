"""Sections on the games that were played: promises, who was caught where, disputes, what each side pays."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from tiebreak.sim.report import charts, words
from tiebreak.sim.report.page import (
    Block,
    Entry,
    Lines,
    Paragraph,
    Picture,
    Section,
    Table,
    Text,
    Tiles,
    entry,
    row,
    table,
)
from tiebreak.sim.report.results import Key, Results
from tiebreak.sim.report.tracing import Number, difference, product, ratio, total

ROLES: Final = ("trainer", "challenger", "auditor", "client", "builder")
"""In this order; others after them."""
SHOWN_VIOLATIONS: Final = 20


class Games:
    """A checked results file of `tiebreak simulate`, with the questions that sections ask of it."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.slugs = sorted(results.keys("adversaries"), key=lambda slug: (_rank(self.role(slug)), self.name(slug)))

    def role(self, slug: str) -> str:
        """An adversary's place among the parties."""
        return self.results.text("adversaries", slug, "role")

    def name(self, slug: str) -> str:
        """An adversary's name in words; `open` marks those that no rule stops."""
        name = self.results.text("adversaries", slug, "name")
        return f"{name} (open)" if self.results.raw("adversaries", slug).get("open") else name

    def roles(self) -> list[str]:
        """Of adversaries, in the report's order."""
        return sorted({self.role(slug) for slug in self.slugs}, key=_rank)

    def spread(self, *path: Key) -> tuple[Number, Number, Number] | None:
        """Least, median, greatest of a distribution, or None if there is none."""
        if self.results.raw(*path) is None:
            return None
        least, middle, most = (self.results.number(*path, what) for what in ("min", "median", "max"))
        return least, middle, most

    def median(self, *path: Key) -> Number | None:
        """Of a distribution, if there is one; the last but one part of the path may be missing (a role)."""
        *outer, who, what = path
        there = self.results.raw(*outer)
        return self.results.optional(*path, "median") if who in there and there[who][what] is not None else None

    def gas_per_game(self, story: Sequence[Key], roles: Sequence[str], side: str) -> Number | None:
        """What the parties of these roles on one side spent in a game: the mean over the games."""
        spent = []
        for role in roles:
            found = self.results.raw(*story, side).get(role)
            if found is not None and found["gas"] is not None:
                mean = self.results.number(*story, side, role, "gas", "mean")
                spent.append(product(mean, self.results.number(*story, side, role, "parties")))
        return ratio(total(spent), self.results.number(*story, "games")) if spent else None


def _rank(role: str) -> tuple[int, str]:
    return (ROLES.index(role) if role in ROLES else len(ROLES)), role


def sections(results: Results) -> tuple[Section, ...]:
    """All that is said of games."""
    games = Games(results)
    made = (
        Section(title="Promises", anchor="promises", blocks=tuple(_promises(games))),
        Section(title="Who was caught where", anchor="caught", blocks=tuple(_caught(games))),
        Section(title="Disputes", anchor="disputes", blocks=tuple(_disputes(games))),
        Section(title="What each side pays", anchor="payments", blocks=tuple(_payments(games))),
        Section(title="To play again", anchor="replay", blocks=tuple(_replay(games))),
    )
    return tuple(section for section in made if section.blocks)


def _promises(games: Games) -> Iterable[Block]:
    found = games.results
    number = found.number
    watched = difference(number("promises", "false_heads"), number("promises", "unwatched"))
    undetected, slashed, broken = (number("promises", what) for what in ("undetected", "honest_slashed", "broken"))
    yield Tiles(
        tiles=(
            ((words.whole(number("games")),), ("games played",), ""),
            ((words.whole(found.count("adversaries")),), ("adversaries in the catalogue",), ""),
            ((words.whole(undetected),), ("undetected, of ", words.whole(watched), " watched lies"), _tone(undetected)),
            ((words.whole(slashed),), ("games in which an honest party lost a stake",), _tone(slashed)),
            ((words.whole(broken),), ("games that broke a promise",), _tone(broken)),
            ((words.short(found.optional("speed", "games_per_hour")),), ("games an hour, one process",), ""),
        )
    )  # fmt: skip
    yield Paragraph(text=_how_played(games))
    if found.raw("violations"):
        yield from _violations(games)


def _tone(number: Number) -> str:
    return "bad" if number.value else "good"


def _how_played(games: Games) -> Text:
    alone, together, honest = (games.results.number("played", what) for what in ("alone", "together", "honest"))
    unwatched, errors = games.results.number("promises", "unwatched"), games.results.number("errors")
    return (
        "One adversary played in ", words.whole(alone), " games, several together in ", words.whole(together),
        ", nobody but honest parties in ", words.whole(honest), ". In ", words.whole(unwatched),
        " games a false head had no diligent, funded auditor to watch it; nothing is promised there. ",
        words.whole(errors), " games could not be played to their end.",
    )  # fmt: skip


def _violations(games: Games) -> Iterable[Block]:
    """Each is a counter-example: the line plays it again."""
    found = games.results
    at = list(found.indices("violations"))[:SHOWN_VIOLATIONS]
    yield Paragraph(text=("Promises were broken. Each line plays a counter-example again.",), tone="bad")
    lines = tuple(
        (found.text("violations", i, "violation"), _replay_line(found.text("violations", i, "line"))) for i in at
    )
    yield Lines(name="violations", title="Counter-examples", lines=lines)


def _replay_line(line: str) -> str:
    return f"tiebreak simulate --replay '{line}'"


def _caught(games: Games) -> Iterable[Block]:
    found = games.results
    seen = [slug for slug in games.slugs if found.raw("adversaries", slug, "games")]
    if not seen:
        return
    catches = _catches(games, seen)
    cells = [[found.optional("adversaries", slug, "caught", catch) for catch in catches] for slug in seen]
    expected = [[catch in found.raw("adversaries", slug, "where") for catch in catches] for slug in seen]
    title = "Games by adversary and by where it was caught"
    yield Paragraph(
        text=(
            "Where each adversary ended, counted over all games in which it took part. A place where it was expected "
            "to end is framed or has a dash; one that was not expected would be red, and is a broken promise. "
            "An adversary marked open does what no rule stops: a known limit, and no part of what is promised.",
        )
    )  # fmt: skip
    labels = [games.name(slug) for slug in seen]
    yield Picture(name="caught", title=title, svg=charts.matrix("caught", title, labels, catches, cells, expected))
    rows = tuple(
        row(
            games.name(slug), games.role(slug), words.whole(found.number("adversaries", slug, "games")),
            *(_count(found.raw("adversaries", slug, "games"), *cell) for cell in zip(line, frames, strict=True)),
        )
        for slug, line, frames in zip(seen, cells, expected, strict=True)
    )  # fmt: skip
    yield table(name="caught", title=title, heads=("adversary", "role", "games", *catches), rows=rows,
                folded=True)  # fmt: skip
    yield table(
        name="hopes", title="What each hopes to gain", heads=("adversary", "role", "hopes to gain"),
        rows=tuple(
            row(games.name(slug), games.role(slug), found.text("adversaries", slug, "gain")) for slug in games.slugs
        ),
        folded=True,
    )  # fmt: skip


def _catches(games: Games, slugs: Sequence[str]) -> list[str]:
    """Those that were expected or seen, the most frequent first."""
    totals: dict[str, float] = {}
    for slug in slugs:
        for catch in games.results.raw("adversaries", slug, "where"):
            totals.setdefault(catch, 0)
        for catch, count in games.results.raw("adversaries", slug, "caught").items():
            totals[catch] = totals.get(catch, 0) + count
    return sorted(totals, key=lambda catch: (-totals[catch], catch))


def _count(games: int, number: Number | None, expected: bool) -> Entry:
    if number is None:
        return entry(words.DASH if expected else "")
    return entry(words.whole(number), shade=min(1.0, number.value / max(1, games)), tone="" if expected else "bad")


MEASURES: Final = {
    "rounds": charts.Measure(label="rounds"),
    "gas": charts.Measure(label="gas", log=True),
    "seconds": charts.Measure(label="time to verdict, simulated", log=True, time=True),
}
"""Of a dispute, in pictures."""
LINEAR: Final = tuple(replace(measure, log=False) for measure in MEASURES.values())
"""Bins have equal widths."""
FORMATS: Final = {"rounds": words.whole, "moves": words.whole, "gas": words.short, "seconds": words.span}


def _disputes(games: Games) -> Iterable[Block]:
    fought = [slug for slug in games.slugs if games.results.raw("adversaries", slug, "summary", "duels", "count")]
    if not fought:
        return
    yield Paragraph(
        text=(
            "Disputes of games in which the adversary was alone. Bars go from the least to the greatest, points are "
            "medians.",
        )
    )
    title = "Disputes by adversary"
    rows = [
        charts.Range(
            label=games.name(slug), group=games.role(slug),
            spreads=tuple(games.spread("adversaries", slug, "summary", "duels", field) for field in MEASURES),
        )
        for slug in fought
    ]  # fmt: skip
    yield Picture(name="disputes", title=title, svg=charts.ranges("disputes", title, rows, tuple(MEASURES.values())))
    yield table(
        name="disputes", title="Disputes by adversary", folded=True,
        heads=("adversary", "role", "disputes", "rounds", "moves", "gas", "time to verdict"),
        rows=tuple(_dispute_row(games, slug) for slug in fought),
        note=("Least, median and greatest.",),
    )  # fmt: skip
    yield from _grouped(games, "families", "Disputes by the adversary's role")
    yield from _grouped(games, "levels", "Disputes by levels descended at once")


def _dispute_row(games: Games, slug: str) -> tuple[Entry, ...]:
    at = ("adversaries", slug, "summary", "duels")
    spreads = (_spread(games, field, *at) for field in FORMATS)
    return row(games.name(slug), games.role(slug), words.whole(games.results.number(*at, "count")), *spreads)


def _spread(games: Games, field: str, *path: Key) -> Entry:
    """least – median – most."""
    found = games.spread(*path, field)
    if found is None:
        return entry(words.DASH)
    least, middle, most = (FORMATS[field](number) for number in found)
    return Entry((least, " · ", middle, " · ", most))


def _grouped(games: Games, key: str, title: str) -> Iterable[Block]:
    """Histograms of rounds, gas and time, a panel for each group."""
    groups = [
        group for group in (games.results.keys(key) if key in games.results.raw() else ())
        if games.results.raw(key, group, "duels", "count")
    ]  # fmt: skip
    if not groups:
        return
    panels = [[_histogram(games, key, group, "duels", field) for field in MEASURES] for group in groups]
    yield Picture(name=key, title=title, svg=charts.histograms(key, title, groups, panels, LINEAR))
    yield table(
        name=key, title=title, folded=True,
        heads=("", "games", "disputes", "rounds", "moves", "gas", "time to verdict"),
        rows=tuple(
            row(group, words.whole(games.results.number(key, group, "games")),
                words.whole(games.results.number(key, group, "duels", "count")),
                *(_spread(games, field, key, group, "duels") for field in FORMATS))
            for group in groups
        ),
        note=("Least, median and greatest.",),
    )  # fmt: skip


def _histogram(games: Games, *path: Key) -> charts.Histogram | None:
    if games.results.raw(*path) is None:
        return None
    bins = [
        (games.results.raw(*path, "bins", i, 0), games.results.raw(*path, "bins", i, 1),
         games.results.number(*path, "bins", i, 2))
        for i in games.results.indices(*path, "bins")
    ]  # fmt: skip
    return charts.Histogram(bins=bins, middle=games.results.number(*path, "median"))


def _payments(games: Games) -> Iterable[Block]:
    alone = [slug for slug in games.slugs if games.results.raw("adversaries", slug, "alone")]
    if not alone:
        return
    yield Paragraph(
        text=(
            "Medians of games in which the adversary was alone. Gains are without gas, and stakes differ from game to "
            "game. Griefing is the gas that honest parties spend in such a game beyond what a game of honest parties "
            "costs them, for each gas that the adversary spends; means over the games. Stakes are not in it: who "
            "griefs by a lie pays with its own.",
        )
    )  # fmt: skip
    yield table(
        name="payments", title="What each side gains, spends and computes",
        heads=("adversary", "role", "its gain", "its gas", "its steps", "trainer’s gain", "trainer’s gas",
                        "auditor’s gain", "auditor’s gas", "auditor’s steps", "griefing"),
        rows=tuple(_payment_row(games, slug) for slug in alone),
    )  # fmt: skip
    if games.results.keys("honest", "honest"):
        yield _honest_table(games)


def _payment_row(games: Games, slug: str) -> tuple[Entry, ...]:
    story = ("adversaries", slug, "summary")
    role = games.role(slug)

    def of(side: str, who: str, what: str) -> Number | None:
        return games.median(*story, side, who, what)

    return row(
        games.name(slug), role, words.signed(words.ether(of("dishonest", role, "wei"))),
        words.short(of("dishonest", role, "gas")), words.whole(of("dishonest", role, "steps")),
        words.signed(words.ether(of("honest", "trainer", "wei"))), words.short(of("honest", "trainer", "gas")),
        words.signed(words.ether(of("honest", "auditor", "wei"))), words.short(of("honest", "auditor", "gas")),
        words.whole(of("honest", "auditor", "steps")), words.times(_griefing(games, story)),
    )  # fmt: skip


def _griefing(games: Games, story: Sequence[Key]) -> Number | None:
    """Gas of honest parties beyond a game of honest ones, for each gas of the adversary."""
    usual = games.gas_per_game(("honest",), games.results.keys(*story, "honest"), "honest")
    spent = games.gas_per_game(story, games.results.keys(*story, "honest"), "honest")
    own = games.gas_per_game(story, games.results.keys(*story, "dishonest"), "dishonest")
    if usual is None or spent is None or own is None:
        return None
    return ratio(difference(spent, usual), own)


def _honest_table(games: Games) -> Table:
    found = games.results
    rows = tuple(
        row(
            role, words.signed(words.ether(games.median("honest", "honest", role, "wei"))),
            words.short(games.median("honest", "honest", role, "gas")),
            words.whole(games.median("honest", "honest", role, "steps")),
            words.whole(games.median("honest", "honest", role, "messages")),
            words.size(games.median("honest", "honest", role, "bytes")),
        )
        for role in found.keys("honest", "honest")
    )  # fmt: skip
    return table(
        name="honest", title="Games of honest parties: medians",
        heads=("party", "gain", "gas", "steps", "messages", "bytes sent"), rows=rows,
    )  # fmt: skip


def _replay(games: Games) -> Iterable[Block]:
    """Lines of notable games."""
    found = games.results
    lines = [
        (found.text("notable", what), what) for what in (found.keys("notable") if "notable" in found.raw() else ())
    ]
    if lines:
        told = tuple((what, _replay_line(line)) for line, what in lines)
        yield Lines(name="notable", title="The longest and the dearest", lines=told)
    firsts = [slug for slug in games.slugs if found.raw("adversaries", slug).get("first")]
    if firsts:
        told = tuple((games.name(slug), _replay_line(found.text("adversaries", slug, "first"))) for slug in firsts)
        yield Lines(name="firsts", title="Each adversary’s first game", lines=told)
