"""Writes docs/economics.md from the model: `python -m benchmarks.economics_page docs/economics.md [--check]`."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from benchmarks.economics import SWEPT
from benchmarks.table import RESULTS
from tiebreak.sim.incentives.figures import FIGURES, PRESETS
from tiebreak.sim.incentives.findings import Findings, Table, find, percent, tables
from tiebreak.sim.incentives.gas import measured

RESULT: Final = RESULTS / "economics.json"
PARTS: Final[Mapping[str, str]] = {
    "COSTS": "What things cost",
    "TERMS": "Recommended terms",
    "CONDITIONS": "Best replies",
    "MARGINS": "How far figures may be off",
    "RATES": "Audits against stakes, ether a job",
    "REGIMES": "Equilibria at these terms",
    "GRIEFING": "Griefing, ether",
}

TEXT: Final = Path(__file__).with_name("economics_page.txt")


def markdown(table: Table) -> str:
    """The first column is words."""
    rule = ["---"] + ["---:"] * (len(table.header) - 1)
    cells = [table.header, tuple(rule), *table.rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells) + "\n"


def _presets(found: Mapping[str, Findings]) -> str:
    rows = []
    for name, each in found.items():
        f, r = each.figures, each.recommendation
        gas = each.setting.costs.way + each.setting.costs.settle + each.setting.costs.withdraw
        rows.append(
            (
                f"`{name}`: {PRESETS[name].title}", f"{float(f.training_cost):,.0f}", f"{f.dollars(gas):,.2f}",
                f"{f.dollars(r.terms.reward):,.0f}", f"{f.dollars(r.terms.trainer_stake):,.0f}",
                f"{f.dollars(r.terms.challenger_stake):,.0f}", f"{f.dollars(r.fee):,.0f}",
                "none" if r.planted is None else percent(r.planted),
            )
        )  # fmt: skip
    header = ("dollars", "training", "trainer's gas", "reward", "T", "C", "fee of an audit", "or: decoys")
    sources = "\n".join(f"- `{name}`: {PRESETS[name].source}." for name in found)
    return markdown(Table(title="", header=header, rows=tuple(rows))) + f"\nAssumed:\n\n{sources}\n"


def _defaults() -> str:
    gpt2 = PRESETS[SWEPT].figures
    skipped = ("steps", "seconds_per_step", "machine_hour", "machines", "checkpoint_interval", "lie_value", "harm")
    rows = [
        (f"`{name}`", limits.what, f"{float(getattr(gpt2, name)):g}")
        for name, (_, limits) in FIGURES.items()
        if name not in skipped
    ]
    return markdown(Table(title="", header=("figure", "", "default"), rows=tuple(rows)))


def _factor(value: Fraction | None) -> str:
    return "any" if value is None else f"{float(value):.2g}"


def page(result: Mapping[str, Any]) -> str:
    """The whole page. result: what `make bench-economics` wrote."""
    found = {name: find(preset.figures, measured(preset.figures.descent_levels)) for name, preset in PRESETS.items()}
    chosen, preset, swept = found[SWEPT], PRESETS[SWEPT], result["sweep"]
    f, gas = chosen.figures, chosen.gas
    named = {table.title: markdown(table) for table in tables(chosen)}
    values: dict[str, object] = {key: named[title] for key, title in PARTS.items()}
    free = [g.factor for g in chosen.griefing if "no stake" in g.attack]
    staked = [g.factor for g in chosen.griefing if "this stake" in g.attack]
    values |= {
        "ESCAPE": f"{gas.equivocation:,}", "GAME": f"{gas.defence + gas.prosecution:,}",
        "NOBODY": percent(chosen.regimes[0].equilibrium.lies), "FREE": _between(free), "STAKED": _between(staked),
        "SWEPT": SWEPT, "TITLE": preset.title, "SOURCE": preset.source, "ETHER": f"{float(f.ether):,g}",
        "GWEI": f"{float(f.gas_price):g}", "LIE": f"{float(f.lie_value):,g}", "PROFIT": percent(f.profit),
        "CAPITAL": percent(f.capital_rate), "MARGIN": f"{float(f.margin):g}", "PRESETS": _presets(found),
        "POINTS": f"{swept['points']:,}", "DISAGREEMENTS": swept["disagreements"], "SEED": swept["seed"],
        "DEFAULTS": _defaults(),
    }  # fmt: skip
    return TEXT.read_text("utf-8").format(**values)


def _between(factors: Sequence[Fraction | None]) -> str:
    known = sorted(factor for factor in factors if factor is not None)
    return f"{_factor(known[0])} to {_factor(known[-1])}"


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args()
    made = page(json.loads(RESULT.read_text("utf-8")))
    if not options.check:
        options.path.write_text(made, encoding="utf-8")
        return 0
    if options.path.read_text("utf-8") == made:
        return 0
    print(f"{options.path} is not what the model says: run python -m {__spec__.name} {options.path}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
