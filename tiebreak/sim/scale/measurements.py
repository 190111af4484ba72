"""The results of benchmarks as numbers to calculate with, read strictly.

Every number of `tiebreak.sim.scale` comes from a file under `benchmarks/results` and is found there by file, metric,
case and
unit. A file that is missing, or is not exactly what the benchmarks write, is refused by name: a cost model of half its
measurements would still print numbers.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any, Final

from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.program.program import decode_alone
from tiebreak.sim.scale.counts import Counts
from tiebreak.sim.scale.walks import Operand, Place

RESULTS: Final = Path(__file__).resolve().parents[3] / "benchmarks" / "results"
MAX_BYTES: Final = 1 << 22
MAX_NESTING: Final = 16
"""Nested deeper, JSON can exhaust the C stack of its parser."""
_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_ROW: Final = frozenset({"metric", "case", "value", "unit", "target"})
_GAME: Final = {
    "case": str,
    "steps": int,
    "interval": int,
    "levels": int,
    "body": int,
    "entries": int,
    "leaf": int,
    "gas_of_challenge": int,
    "moves": list,
}


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one result file."""

    name: str
    environment: dict[str, str]
    values: dict[tuple[str, str], tuple[float, str]]
    """(metric, case) -> value, unit."""

    @classmethod
    def read(cls, folder: Path, name: str) -> "Table":
        """NAME.json of the folder. Raises `ConfigurationError` if there is none, `EncodingError` for another file."""
        return cls.of(name, _document(folder, name))

    @classmethod
    def of(cls, name: str, document: dict[str, Any]) -> "Table":
        """From what the file holds."""
        environment, rows = document.get("environment"), document.get("rows")
        if not isinstance(environment, dict) or not all(type(v) is str for v in environment.values()):
            raise EncodingError(f"{name}: expected an environment of texts, got another")
        if not isinstance(rows, list) or not rows:
            raise EncodingError(f"{name}: expected a list of rows, got {type(rows).__name__}")
        values: dict[tuple[str, str], tuple[float, str]] = {}
        for number, row in enumerate(rows):
            key, value = _row(f"{name}, row {number}", row)
            if key in values:
                raise EncodingError(f"{name}, row {number}: expected one {key[0]!r} of {key[1]!r}, got another")
            values[key] = value
        return cls(name, environment, values)

    def get(self, metric: str, case: str, unit: str) -> float:
        """One number. Raises `EncodingError` if it is not there, or in another unit."""
        found = self.values.get((metric, case))
        if found is None:
            raise EncodingError(f"{self.name}: expected {metric!r} of {case!r}, got none; run its benchmark again")
        if found[1] != unit:
            raise EncodingError(f"{self.name}: expected {metric!r} of {case!r} in {unit!r}, got {found[1]!r}")
        return found[0]

    def cases(self, metric: str) -> list[str]:
        """The cases that have a metric, in the file's order."""
        return [case for name, case in self.values if name == metric]


def _document(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    if not path.is_file():
        raise ConfigurationError(f"expected measurements in {path}, found none; make bench-{name} makes them")
    if path.stat().st_size > MAX_BYTES:
        raise EncodingError(f"{name}: expected at most {MAX_BYTES} bytes, got {path.stat().st_size}")
    try:
        text = path.read_text(encoding="utf-8")
        if _nesting(text) > MAX_NESTING:
            raise EncodingError(f"{name}: expected at most {MAX_NESTING} lists in each other, got more")
        document = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise EncodingError(f"{name}: expected JSON, got {error}") from error
    if not isinstance(document, dict):
        raise EncodingError(f"{name}: expected an object, got {type(document).__name__}")
    return document


def _nesting(text: str) -> int:
    """How deep brackets stand in each other, outside of strings."""
    depth = most = 0
    for bracket in _BRACKETS.findall(text):
        if bracket in "[{":
            depth += 1
            most = max(most, depth)
        elif bracket in "]}":
            depth -= 1
    return most


def _no_constant(text: str) -> float:
    raise ValueError(f"the number {text}")


def _row(where: str, row: object) -> tuple[tuple[str, str], tuple[float, str]]:
    if not isinstance(row, dict) or set(row) != _ROW:
        raise EncodingError(f"{where}: expected {', '.join(sorted(_ROW))}, got another row")
    metric, case, value, unit = row["metric"], row["case"], row["value"], row["unit"]
    if any(type(text) is not str for text in (metric, case, unit)):
        raise EncodingError(f"{where}: expected texts, got others")
    if type(value) not in (int, float) or not isfinite(value) or value < 0:
        raise EncodingError(f"{where}: expected a number from 0 on, got {value!r}")
    return (metric, case), (float(value), unit)


# ---------------------------------------------------------------- what there is in results/scale.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A workload, its counts, and CPU seconds of a step on one thread."""

    name: str
    held_out: bool
    parameters: int
    counts: Counts
    eager: float
    trainer: float
    hashed: float
    """The one step of a dispute in which every value is hashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveCost:
    """One transaction of a game."""

    kind: str
    nodes: int
    siblings: int
    zeros: int
    others: int
    wire: int
    gas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """A played dispute."""

    case: str
    steps: int
    interval: int
    levels: int
    body: int
    entries: int
    leaf: int
    gas_of_challenge: int
    moves: tuple[MoveCost, ...]

    @property
    def gas(self) -> int:
        """From the challenge to the verdict."""
        return self.gas_of_challenge + sum(move.gas for move in self.moves)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Everything that the model is fitted to, and the tables of other benchmarks that it has to predict."""

    table: Table
    steps: tuple[Step, ...]
    games: tuple[Game, ...]
    places: dict[str, Place]
    """Where the lies of results/million_steps.json stand (at r = 1)."""
    others: dict[str, Table]

    @classmethod
    def read(cls, folder: Path = RESULTS) -> "Measurements":
        """All files. Raises `ConfigurationError` and `EncodingError` as `Table.read`."""
        document = _document(folder, "scale")
        table = Table.of("scale", document)
        games, places = (_listed(document, name) for name in ("games", "places"))
        return cls(
            table=table,
            steps=tuple(_steps(table)),
            games=tuple(_game(f"scale, game {number}", game) for number, game in enumerate(games)),
            places=dict(_place(f"scale, place {number}", place) for number, place in enumerate(places)),
            others={name: Table.read(folder, name) for name in OTHERS},
        )

    @property
    def fitted(self) -> list[Step]:
        """The workloads that models are fitted to."""
        return [step for step in self.steps if not step.held_out]

    @property
    def held_out(self) -> list[Step]:
        """Those that they have to predict."""
        return [step for step in self.steps if step.held_out]

    def step(self, name: str) -> Step:
        """A workload by name. Raises `EncodingError`."""
        for found in self.steps:
            if found.name == name:
                return found
        raise EncodingError(f"scale: expected steps of {name!r}, got none")


OTHERS: Final = ("engine", "commit", "accumulate", "memory", "logged", "million_steps")


def _listed(document: dict[str, Any], name: str) -> list[object]:
    found = document.get(name)
    if not isinstance(found, list) or not found:
        raise EncodingError(f"scale: expected a list of {name}, got {type(found).__name__}")
    return found


def _steps(table: Table) -> Iterator[Step]:
    for name in table.cases("steps: trainer"):
        counted = {f.name: int(table.get(f"steps: {f.name}", name, "")) for f in fields(Counts)}
        yield Step(
            name=name,
            held_out=bool(table.get("steps: held out", name, "")),
            parameters=int(table.get("steps: parameters", name, "")),
            counts=Counts(**counted),
            eager=table.get("steps: eager", name, "s"),
            trainer=table.get("steps: trainer", name, "s"),
            hashed=table.get("steps: hashed", name, "s"),
        )


def _game(where: str, game: object) -> Game:
    if not isinstance(game, dict) or set(game) != set(_GAME):
        raise EncodingError(f"{where}: expected {', '.join(_GAME)}, got another game")
    for name, kind in _GAME.items():
        if type(game[name]) is not kind or (kind is int and game[name] < 0):
            raise EncodingError(f"{where}: expected {name} as {kind.__name__}, got {game[name]!r}")
    moves = tuple(_move(f"{where}, move {number}", move) for number, move in enumerate(game["moves"]))
    return Game(**{**game, "moves": moves})


def _move(where: str, move: object) -> MoveCost:
    if not isinstance(move, list) or len(move) != 7 or type(move[0]) is not str:
        raise EncodingError(f"{where}: expected a kind and six numbers, got {move!r}")
    if any(type(number) is not int or number < 0 for number in move[1:]):
        raise EncodingError(f"{where}: expected numbers from 0 on, got {move[1:]!r}")
    kind, nodes, siblings, zeros, others, wire, gas = move
    return MoveCost(kind=kind, nodes=nodes, siblings=siblings, zeros=zeros, others=others, wire=wire, gas=gas)


_PLACE: Final = ("checkpoints", "segment", "half_depth", "state_depth", "data_depth", "step", "interval", "leaf")
_PLACES: Final = frozenset({*_PLACE, "element", "term_leaf", "case", "instruction", "reads"})


def _place(where: str, place: object) -> tuple[str, Place]:
    if not isinstance(place, dict) or set(place) != _PLACES:
        raise EncodingError(f"{where}: expected {', '.join(sorted(_PLACES))}, got another place")
    numbers = {name: place[name] for name in (*_PLACE, "element", "term_leaf")}
    if any(type(number) is not int or number < 0 for number in numbers.values()):
        raise EncodingError(f"{where}: expected numbers from 0 on, got {numbers}")
    case, encoded, reads = place["case"], place["instruction"], place["reads"]
    if type(case) is not str or type(encoded) is not str or not isinstance(reads, list):
        raise EncodingError(f"{where}: expected a case, an instruction in hex and its operands, got others")
    try:
        target = decode_alone(bytes.fromhex(encoded))
    except ValueError as error:
        raise EncodingError(f"{where}: expected an instruction in hex, got {error}") from error
    return case, Place(levels=1, target=target, reads=tuple(_operand(where, read) for read in reads), **numbers)


def _operand(where: str, read: object) -> Operand:
    if not isinstance(read, list) or len(read) < 2 or any(type(number) is not int or number < 0 for number in read):
        raise EncodingError(f"{where}: expected an operand as value, dtype and shape, got {read!r}")
    value, dtype, *shape = read
    if dtype not in set(DType):
        raise EncodingError(f"{where}: expected a dtype, got {dtype}")
    return Operand(value=value, dtype=DType(dtype), shape=tuple(shape))
