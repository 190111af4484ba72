"""Rows of a benchmark as a printed table and as JSON: metric, case, value, unit, target."""

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tiebreak.api.environment import describe

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured number. `target` in words, empty if there is none."""

    metric: str
    case: str
    value: float
    unit: str
    target: str = ""


def publish(
    name: str, rows: list[Row], note: str = "", *, environment: Iterable[tuple[str, str]] = (), folder: Path = RESULTS
) -> None:
    """Print the rows and write NAME.json into the folder; `environment` is added to what every result tells."""
    show(name, rows, note)
    write(name, rows, note, environment=dict((*describe(), *environment)), folder=folder)


def show(name: str, rows: list[Row], note: str = "") -> None:
    """Print the rows as a table."""
    table = Table(title=f"{name}: {note}" if note else name, title_justify="left", header_style="dim")
    for column in ("metric", "case", "value", "unit", "target"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for row in rows:
        table.add_row(row.metric, row.case, f"{row.value:,.6g}", row.unit, row.target)
    Console(width=130).print(table)


def write(name: str, rows: list[Row], note: str, *, environment: Mapping[str, str], folder: Path = RESULTS) -> None:
    """Write NAME.json into the folder, at once or not at all."""
    document = {"name": name, "note": note, "environment": environment, "rows": [asdict(row) for row in rows]}
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f".{name}.json.new"
    made.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    made.replace(folder / f"{name}.json")


def interleaved(candidates: dict[str, Callable[[], object]], repeats: int, warmup: int = 1) -> dict[str, float]:
    """Median seconds of each candidate; they take turns, so drift of the machine's speed hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(warmup + repeats):
        for name, run in candidates.items():
            started = time.perf_counter()
            run()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}
