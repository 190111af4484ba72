"""The benchmark figures that `tiebreak economics` uses: `python -m benchmarks.figures [--commit]`."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.table import RESULTS

MEASURED: Final = RESULTS.parents[1] / "tiebreak" / "lab" / "incentives" / "measured.json"
LIE: Final = "sum of 768 products"
"""The case with the longest walk at every r of the measured disputes."""
BOARD: Final = {
    "create": "create job", "accept": "accept job", "head": "post head", "settle": "settle", "withdraw": "withdraw",
    "challenge": "challenge", "reclaim": "reclaim", "concede": "concede", "timeout": "timeout",
    "equivocation": "report equivocation", "seal": "seal root", "claim": "claim seat",
}  # fmt: skip
Cases = dict[str, dict[str, float]]


def cases(name: str, folder: Path = RESULTS) -> Cases:
    """The cases of a results file: case -> metric -> value."""
    found: Cases = {}
    for row in json.loads((folder / f"{name}.json").read_text("utf-8"))["rows"]:
        found.setdefault(row["case"], {})[row["metric"]] = row["value"]
    return found


def named(game: Mapping[str, float]) -> dict[str, int]:
    """The rows of one dispute, by kind of move."""
    return {metric.removeprefix("gas: ").removeprefix("gas "): round(value) for metric, value in game.items()}


def collect(folder: Path = RESULTS) -> dict[str, Any]:
    """The contents of `measured.json`."""
    board, games = cases("board", folder)["board"], cases("million_steps", folder)
    hostile = cases("hostile", folder) if (folder / "hostile.json").is_file() else {}
    worst = [row["worst"] for case, row in hostile.items() if case.startswith("compiled")]
    unmeasured: float = json.loads(MEASURED.read_text("utf-8"))["worst data"]
    return {
        "environment": json.loads((folder / "scale.json").read_text("utf-8"))["environment"],
        "board": {name: round(board[f"gas: {metric}"]) for name, metric in BOARD.items()},
        "disputes": {str(levels): named(games[f"{LIE}, r = {levels}"]) for levels in range(1, 6)},
        "dearest proof": max(round(game["gas: prove"]) for game in games.values() if "gas: prove" in game),
        "worst data": max(worst, default=unmeasured),
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--commit", action="store_true", help=f"write {MEASURED.name} into the package")
    text = json.dumps(collect(), indent=1) + "\n"
    if options.parse_args().commit:
        MEASURED.write_text(text, "utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
