"""The benchmark figures that the product itself uses: `python -m benchmarks.figures [--commit]`.

Fits seconds and bytes from results/scale.json to the features that they depend on: each is a sum of the features' unit
costs, none of them negative, fitted by relative error. GPT-2 and ResNet-50 at their published sizes are held out; a
test predicts them.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import nnls

from benchmarks.table import RESULTS

MEASURED: Final = RESULTS.parents[1] / "tiebreak" / "lab" / "incentives" / "measured.json"
LIE: Final = "sum of 768 products"
"""The case with the longest walk at every r of the measured disputes."""
STEP: Final = ("instructions", "products", "terms", "elements")
WORKERS: Final = {
    "sent": ("weights", "gradients", "tokens", "small"), "live": ("weights", "activations", "shards"),
}  # fmt: skip
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


def fit(rows: Sequence[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """Fits the cost of a unit of each feature, to four digits."""
    names = tuple(rows[0][0])
    design = np.array([[features[name] / value for name in names] for features, value in rows])
    scale = design.max(axis=0)
    found, _ = nnls(design / scale, np.ones(len(rows)))
    return {name: float(f"{unit:.4g}") for name, unit in zip(names, found / scale, strict=True)}


def fitted(found: Cases, group: str, metric: str, features: Mapping[str, str], constant: str = "") -> dict[str, float]:
    """Fits all cases of a group that are not held out.

    features: name -> metric. constant: the name of a feature of 1.
    """
    rows = []
    for case in found.values():
        if f"{group}: {metric}" in case and not (case.get("steps: held out") or case.get("workers: held out")):
            known = {name: case[f"{group}: {source}"] for name, source in features.items()}
            rows.append(({constant: 1.0, **known} if constant else known, case[f"{group}: {metric}"]))
    return fit(rows)


def named(game: Mapping[str, float]) -> dict[str, int]:
    """The rows of one dispute, by kind of move."""
    return {metric.removeprefix("gas: ").removeprefix("gas "): round(value) for metric, value in game.items()}


def collect(folder: Path = RESULTS) -> dict[str, Any]:
    """The contents of `measured.json`."""
    scale, board, games = cases("scale", folder), cases("board", folder)["board"], cases("million_steps", folder)
    step, state = {name: name for name in STEP}, {"tensors": "tensors", "bytes": "bytes"}
    hostile = cases("hostile", folder) if (folder / "hostile.json").is_file() else {}
    worst = [row["worst"] for case, row in hostile.items() if case.startswith("compiled")]
    unmeasured: float = json.loads(MEASURED.read_text("utf-8"))["worst data"]
    return {
        "environment": json.loads((folder / "scale.json").read_text("utf-8"))["environment"],
        "board": {name: round(board[f"gas: {metric}"]) for name, metric in BOARD.items()},
        "disputes": {str(levels): named(games[f"{LIE}, r = {levels}"]) for levels in range(1, 6)},
        "dearest proof": max(round(game["gas: prove"]) for game in games.values() if "gas: prove" in game),
        "seconds": {
            "plain step": fitted(scale, "steps", "eager", step),
            "trainer step": fitted(scale, "steps", "trainer", step),
            "hashed step": fitted(scale, "steps", "hashed", step),
            "hash state": fitted(scale, "states", "hash", state),
            "write state": fitted(scale, "states", "write", state),
            "accumulator tree": fitted(scale, "sums", "tree", {"terms": "terms"}, "trees"),
        },
        "bytes": {
            "memory": fitted(scale, "memory", "trainer", {"state": "state", "live": "live"}, "process"),
            **{
                f"workers {metric}": fitted(
                    scale, "workers", metric, {name: f"{metric} {name}" for name in WORKERS[metric]}
                )
                for metric in WORKERS
            },
            "files": {
                "metrics": scale["a step"]["files: metrics"],
                "head": scale["a checkpoint"]["files: head"],
                "program": scale["an instruction"]["files: program"],
            },
        },
        "largest step": max(
            case["steps: products"] for case in scale.values() if case.get("steps: held out") == 0
        ),
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
