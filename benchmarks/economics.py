"""Best replies over grids, found by the closed forms and by the board's rules, and the terms of the presets.

No time is measured here: the same seed makes the same file. `docs/economics.md` is made from it and from the model.
"""

import json
from dataclasses import asdict
from typing import Final

from rich.console import Console

from benchmarks.table import RESULTS, Row, show
from tiebreak.api.environment import describe
from tiebreak.sim.incentives.figures import PRESETS
from tiebreak.sim.incentives.findings import Findings, document, find
from tiebreak.sim.incentives.gas import measured
from tiebreak.sim.incentives.sweep import sweep

SEED: Final = 1
SWEPT: Final = "gpt2"
"""The preset around whose recommended terms the grids lie."""
WEI: Final = 10**18


def rows(name: str, found: Findings) -> list[Row]:
    """The terms of one preset."""
    terms, f = found.recommendation.terms, found.figures
    values = {
        "cost of training": (float(f.training_cost), "dollars"),
        "reward": (terms.reward / WEI, "ether"),
        "trainer's stake": (terms.trainer_stake / WEI, "ether"),
        "challenger's stake": (terms.challenger_stake / WEI, "ether"),
        "fee of a proven audit": (found.recommendation.fee / WEI, "ether"),
        "conditions that hold": (sum(c.holds for c in found.recommendation.conditions), f"of {5}"),
    }
    return [Row(metric=metric, case=name, value=value, unit=unit) for metric, (value, unit) in values.items()]


def main() -> None:
    """Compute and publish."""
    console = Console()
    findings = {name: find(preset.figures, measured(preset.figures.descent_levels)) for name, preset in PRESETS.items()}
    swept = sweep(findings[SWEPT].setting, SEED, on_region=lambda name: console.print(f"done: {name}", highlight=False))
    found = [row for name, each in findings.items() for row in rows(name, each)]
    found += [
        Row(metric="points compared", case="sweep", value=swept["points"], unit=""),
        Row(
            metric="points at which the two ways differ",
            case="sweep",
            value=swept["disagreements"],
            unit="",
            target="0",
        ),
    ]
    note = f"seed {SEED}; grids around the terms of preset {SWEPT}"
    show("economics", found, note)
    content = {
        "name": "economics",
        "note": note,
        "environment": dict(describe()),
        "rows": [asdict(row) for row in found],
        "presets": {name: document(each) for name, each in findings.items()},
        "sweep": swept,
    }
    made = RESULTS / ".economics.json.new"
    made.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
    made.replace(RESULTS / "economics.json")


if __name__ == "__main__":
    main()
