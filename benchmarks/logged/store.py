"""Stores the measurements of `benchmarks.logged`, part by part, and the policies that it found."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.table import RESULTS, Row, show, write
from tiebreak.api.machine.environment import describe

NAME = "logged"
NOTE = "policy logged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One part of the report for one model. It is measured as a whole and replaced as a whole."""

    part: str
    model: str

    @property
    def case(self) -> str:
        """The beginning of the cases of its rows."""
        return f"{self.part}, {self.model}"

    def owns(self, row: Row) -> bool:
        """Whether a row belongs to this unit."""
        return row.case == self.case or row.case.startswith(self.case + ", ")


class Store:
    """The results file: rows of all units measured so far; its environment records how long each unit took."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        self._path = folder / f"{NAME}.json"

    def policy(self, name: str) -> Path:
        """The file of the policy with this name."""
        return self.folder / NAME / f"{name}.json"

    def rows(self) -> list[Row]:
        return [Row(**row) for row in self._document().get("rows", [])]

    def has(self, unit: Unit) -> bool:
        """Whether the unit has been measured."""
        return any(map(unit.owns, self.rows()))

    def merge(self, unit: Unit, rows: list[Row], seconds: float) -> None:
        """Prints a unit's rows and writes the file, in which they replace the unit's older rows."""
        strange = [row.case for row in rows if not unit.owns(row)]
        if strange:
            raise ValueError(f"expected cases that begin with {unit.case!r}, got {strange[0]!r}")
        show(unit.case, rows)
        told = dict(describe()) | dict(self._taken()) | {unit.case: f"{seconds / 60:.1f} minutes"}
        kept = [row for row in self.rows() if not unit.owns(row)]
        write(NAME, sorted(kept + rows, key=_group), NOTE, environment=told, folder=self.folder)

    def check_environment(self) -> None:
        """Exits if existing rows were measured elsewhere, because rows of one file are compared with one another."""
        before = self._document().get("environment", {})
        for name, value in describe():
            if before and before.get(name) != value:
                raise click.ClickException(
                    f"expected the environment of {self._path.name}, {name} {before.get(name)}, got {value}; "
                    "move that file away to measure everything anew"
                )

    def _taken(self) -> Iterator[tuple[str, str]]:
        machine = {name for name, _ in describe()}
        environment: dict[str, str] = self._document().get("environment", {})
        return ((name, value) for name, value in environment.items() if name not in machine)

    def _document(self) -> dict[str, Any]:
        if not self._path.is_file():
            return {}
        found: dict[str, Any] = json.loads(self._path.read_text("utf-8"))
        return found


def _group(row: Row) -> str:
    """The sort key that keeps the rows of a part together; otherwise the order of measurement stays."""
    return row.case.split(", ")[0]
