"""Gas of every operation, read from what this repository measured; and its price, to wei."""

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from tiebreak.protocol.errors import ConfigurationError
from tiebreak.sim.incentives.setting import Costs

RESULTS: Final = Path(__file__).resolve().parents[3] / "benchmarks" / "results"
BOARD: Final = "board.json"
DISPUTES: Final = "million_steps.json"
LIE: Final = "sum of 768 products"
"""Of the disputes measured, the one with the longest walk at every r."""
_SHOWING: Final = ("open_steps", "open_values", "open_tensor", "open_terms")
"""Openings after which the challenger selects at once; the other selections each follow a descent."""
_DEFENDERS: Final = (*_SHOWING, "open_chunk")
_GWEI: Final = 10**9

Values = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gas:
    """Units of gas. defence, prosecution: all of a side's transactions in a game that is walked to its end."""

    create: int
    accept: int
    head: int
    settle: int
    withdraw: int
    challenge: int
    reclaim: int
    concede: int
    timeout: int
    equivocation: int
    defence: int
    prosecution: int
    answer: int

    def costs(self, gwei: Fraction, heads: int) -> Costs:
        """In wei, at a price per unit of gas, of a job with so many posted heads."""
        price = round(gwei * _GWEI)
        return Costs(
            offer=price * self.create,
            way=price * (self.accept + heads * self.head),
            settle=price * self.settle,
            withdraw=price * self.withdraw,
            challenge=price * self.challenge,
            reclaim=price * self.reclaim,
            concede=price * self.concede,
            timeout=price * self.timeout,
            equivocation=price * self.equivocation,
            defence=price * self.defence,
            prosecution=price * self.prosecution,
            answer=price * self.answer,
        )


def sides(found: Values) -> tuple[int, int]:
    """(defender's, challenger's) gas of a whole game, from medians by kind of move, their number, and the exact total.

    A game has one challenge, one proof, each opening once, and selections: one after each opening that shows a tree,
    one after each descent. The number of transactions says how many descents there were. Medians times numbers come to
    a little less than the total, for first writes to a slot cost more; the rest is shared in proportion.
    """
    openings = [kind for kind in _DEFENDERS if f"gas: {kind}" in found]
    showing = sum(kind in _SHOWING for kind in openings)
    element = int("gas: select_element" in found)
    descents, odd = divmod(round(found["transactions"]) - 2 - len(openings) - element - showing, 2)
    if odd or descents < 0:
        raise ConfigurationError(
            f"expected transactions of whole rounds beside {len(openings)} openings, got {found['transactions']:g}"
        )
    defender = descents * found["gas: descend"] + sum(found[f"gas: {kind}"] for kind in openings)
    challenger = found["gas: challenge"] + found["gas: prove"] + (descents + showing) * found["gas: select"]
    challenger += element * found.get("gas: select_element", 0.0)
    scale = found["gas in all"] / (defender + challenger)
    return round(defender * scale), round(challenger * scale)


def measured(levels: int, folder: Path = RESULTS) -> Gas:
    """As measured, for games in which a move shows so many levels of a tree."""
    board = _rows(folder / BOARD).get("board", {})
    game = _rows(folder / DISPUTES).get(f"{LIE}, r = {levels}", {})
    if not game:
        raise ConfigurationError(f"{folder / DISPUTES}: expected a dispute with r = {levels}, got none")
    try:
        defence, prosecution = sides(game)
        return Gas(
            create=round(board["gas: create job"]),
            accept=round(board["gas: accept job"]),
            head=round(board["gas: post head"]),
            settle=round(board["gas: settle"]),
            withdraw=round(board["gas: withdraw"]),
            challenge=round(board["gas: challenge"]),
            reclaim=round(board["gas: reclaim"]),
            concede=round(board["gas: concede"]),
            timeout=round(board["gas: timeout"]),
            equivocation=round(board["gas: report equivocation"]),
            defence=defence,
            prosecution=prosecution,
            answer=round(game["gas: descend"]),
        )
    except KeyError as error:
        raise ConfigurationError(f"{folder}: expected a row {error.args[0]!r} in the results, got none") from None


def _rows(path: Path) -> dict[str, Values]:
    """case -> metric -> value."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: expected measured gas, got no file; run `tiebreak economics` from a checkout of the repository"
        ) from None
    except ValueError as error:
        raise ConfigurationError(f"{path}: expected JSON, got {error}") from None
    cases: dict[str, Values] = {}
    try:
        for row in document["rows"]:
            cases.setdefault(row["case"], {})[row["metric"]] = float(row["value"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path}: expected rows of metric, case and value, got {error!r}") from None
    return cases
