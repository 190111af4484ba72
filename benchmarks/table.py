"""Rows of a benchmark as a printed table and as JSON: metric, case, value, unit, target.

A run writes to `benchmark-results/`, or to the folder of --output. Only --commit merges its rows into
`benchmarks/results`.
"""

import functools
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from tiebreak.api.machine.environment import describe
from tiebreak.engine.data.disk import write_file

RESULTS: Final = Path(__file__).resolve().parent / "results"
OUTPUT: Final = Path("benchmark-results")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured number. target: in words; empty if there is none."""

    metric: str
    case: str
    value: float
    unit: str
    target: str = ""


def rows_of(
    case: str, unit: str, values: Mapping[str, float], targets: Mapping[str, str] = MappingProxyType({})
) -> list[Row]:
    """Rows of one case and unit, by metric, with those targets that there are."""
    return [
        Row(metric=metric, case=case, value=value, unit=unit, target=targets.get(metric, ""))
        for metric, value in values.items()
    ]


def placed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a click command the options --output and --commit, and calls it with the `folder` that they select."""

    @click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=OUTPUT, show_default=True,
                  help="Folder for the results.")  # fmt: skip
    @click.option("--commit", is_flag=True, help="Merge the rows into the repository's benchmarks/results instead.")
    @functools.wraps(function)
    def chosen(*args: Any, output: Path, commit: bool, **options: Any) -> Any:
        return function(*args, folder=RESULTS if commit else output, **options)

    return chosen


def publish(
    name: str, rows: list[Row], note: str = "", *, folder: Path = OUTPUT, environment: Iterable[tuple[str, str]] = ()
) -> None:
    """Prints the rows and merges them into NAME.json of the folder.

    environment: added to the environment that every result records.
    """
    show(name, rows, note)
    told = dict((*describe(), *environment))
    before = read(folder / f"{name}.json")
    new = {(row.metric, row.case): row for row in rows}
    kept = [row for row in before if (row.metric, row.case) not in new]
    order = {(row.metric, row.case): number for number, row in enumerate(before)}
    merged = sorted([*kept, *rows], key=lambda row: order.get((row.metric, row.case), len(order)))
    write(name, merged, note, environment=told, folder=folder)
    click.echo(f"{len(rows)} rows written to {folder / name}.json, {len(kept)} older ones kept", err=True)


def show(name: str, rows: list[Row], note: str = "", *, predicted: Mapping[str, float] | None = None) -> None:
    """Prints the rows. predicted: values by "CASE: METRIC", in a column of their own if there are any."""
    table = Table(title=f"{name}: {note}" if note else name, title_justify="left", header_style="dim")
    for column in ("metric", "case", "value", *(["predicted"] if predicted else []), "unit", "target"):
        table.add_column(column, justify="right" if column in ("value", "predicted") else "left")
    for row in rows:
        expected = (predicted or {}).get(f"{row.case}: {row.metric}")
        beside = ["" if expected is None else f"{expected:,.6g}"] if predicted else []
        table.add_row(row.metric, row.case, f"{row.value:,.6g}", *beside, row.unit, row.target)
    Console(width=130).print(table)


def read(path: Path) -> list[Row]:
    """The rows of a results file; empty if the file does not exist."""
    return [Row(**row) for row in json.loads(path.read_text("utf-8"))["rows"]] if path.is_file() else []


def write(
    name: str, rows: list[Row], note: str, *, environment: Mapping[str, str], folder: Path, **more: object
) -> None:
    """Writes NAME.json into the folder, atomically. more: further fields of the document."""
    document = {"name": name, "note": note, "environment": environment, **more, "rows": [asdict(row) for row in rows]}
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / f"{name}.json", f"{json.dumps(document, indent=1)}\n".encode())


def interleaved(candidates: dict[str, Callable[[], object]], repeats: int, warmup: int = 1) -> dict[str, float]:
    """Median seconds of each candidate. They take turns, so that a drift of the machine's speed affects all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(warmup + repeats):
        for name, run in candidates.items():
            started = time.perf_counter()
            run()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}
