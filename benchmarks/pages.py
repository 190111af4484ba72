"""Fills the tables of docs/*.md from results and from the model: `python -m benchmarks.pages [--check]`.

A table stands between `<!-- table SPEC -->` and `<!-- end -->`. SPEC is one of these JSON objects:

    {"results": FILE, "cases": GLOB, "metrics": [...]}    rows by case, columns by metric, of results/FILE.json
    {"economics": PRESET, "table": TITLE}                 a table of `tiebreak economics`
"""

import fnmatch
import json
import re
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from benchmarks.figures import cases
from benchmarks.table import RESULTS
from tiebreak.lab.incentives.figures import PRESETS
from tiebreak.lab.incentives.findings import Findings, find, tables
from tiebreak.lab.incentives.measured import measured
from tiebreak.lab.sim.games.summary import table

DOCS: Final = RESULTS.parents[1] / "docs"
PAGES: Final = (
    "distributed.md", "economics.md", "gas.md", "logged.md", "ownership.md", "screening.md",
)  # fmt: skip
BLOCK: Final = re.compile(r"(<!-- table (\{.*?\}) -->\n).*?(<!-- end -->)", re.DOTALL)


def number(value: Any) -> str:
    """Formats a number to four digits; whole numbers keep all of their digits."""
    if not isinstance(value, int | float):
        return "–" if value is None else str(value)
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"


def of_results(name: str, glob: str, metrics: Sequence[str]) -> str:
    """A table with a row for each case. The row's name omits the part of the case before the glob's first star."""
    found = {case: row for case, row in cases(name).items() if fnmatch.fnmatchcase(case, glob)}
    prefix = glob.split("*", maxsplit=1)[0]
    rows = [(case.removeprefix(prefix), *(row.get(metric) for metric in metrics))
            for case, row in found.items() if any(metric in row for metric in metrics)]  # fmt: skip
    return table(("", *(metric.removeprefix("gas: ").replace("_", " ") for metric in metrics)), rows, number)


@cache
def findings(preset: str) -> Findings:
    figures = PRESETS[preset].figures
    return find(figures, measured(figures.descent_levels))


def of_economics(preset: str, title: str) -> str:
    """A table as `tiebreak economics` prints it."""
    found = next(each for each in tables(findings(preset)) if each.title == title)
    return table(found.header, found.rows)


def filled(text: str) -> str:
    """Replaces the tables in the text of a page by current ones."""

    def fill(block: re.Match[str]) -> str:
        spec = json.loads(block[2])
        if "results" in spec:
            made = of_results(spec["results"], spec["cases"], spec["metrics"])
        else:
            made = of_economics(spec["economics"], spec["table"])
        return f"{block[1]}\n{made}\n\n{block[3]}"

    return BLOCK.sub(fill, text)


def main() -> int:
    """Fills the tables, or with --check compares them."""
    stale = []
    for path in (DOCS / name for name in PAGES):
        text = path.read_text("utf-8")
        if filled(text) != text:
            stale.append(path)
            if "--check" not in sys.argv:
                path.write_text(filled(text), encoding="utf-8")
    for path in stale:
        print(f"{path.name}: {'its tables are out of date' if '--check' in sys.argv else 'written'}")
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
