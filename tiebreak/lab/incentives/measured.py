"""Measurements of this repository: the gas of every operation, and how much hostile data slow a step.

The figures are in `measured.json` beside this module, so that an installed package has them. `python -m
benchmarks.figures --commit` makes that file from the results of the benchmarks.
"""

import json
from collections.abc import Mapping
from fractions import Fraction
from importlib.resources import files
from typing import Any, Final

from tiebreak.protocol.errors import ConfigurationError

FIGURES: Final[Mapping[str, Any]] = json.loads(files(__package__).joinpath("measured.json").read_bytes())
"""The measured figures by name:

board       gas of each transaction of the job board
disputes    r -> median gas of each kind of move in a dispute where a move shows r levels of a tree, the gas and the
              number of transactions of the whole game; `dearest proof`: gas of the dearest last move that was measured
worst data  factor by which the worst data that were found slow a step, compared with ordinary data
"""
WORST: Final = Fraction(str(FIGURES["worst data"]))
_SHOWING: Final = ("open_steps", "open_values", "open_tensor", "open_terms")
"""Openings that already show a tree, so that the challenger selects a node at once."""
_OPENINGS: Final = (*_SHOWING, "open_chunk")


def measured(levels: int) -> dict[str, int]:
    """Gas of each transaction, where a move of a dispute shows `levels` levels of a tree.

    defence, prosecution: all transactions of one side in a game that is walked to its end. answer: one move. claim:
    of a seat, with the withdrawal.
    """
    game, board = dispute(levels), FIGURES["board"]
    defence, prosecution = sides(game)
    claim = board["claim"] + board["withdraw"]
    return {**board, "claim": claim, "defence": defence, "prosecution": prosecution, "answer": game["descend"]}


def dispute(levels: int) -> dict[str, int]:
    """The measured game at r = `levels`. Raises `ConfigurationError` if there is none."""
    found: dict[str, int] | None = FIGURES["disputes"].get(str(levels))
    if found is None:
        raise ConfigurationError(f"expected a move that shows 1 to 5 levels of a tree, got {levels}")
    return found


def moves_of(game: Mapping[str, int]) -> dict[str, int]:
    """The number of transactions of each kind in a measured game.

    A game has one challenge, one proof, each opening once, and one selection after each opening that shows a tree and
    after each descent. The number of descents follows from the number of transactions.
    """
    once = [kind for kind in ("challenge", "prove", "select_element", *_OPENINGS) if kind in game]
    showing = sum(kind in _SHOWING for kind in once)
    descents, odd = divmod(game["transactions"] - len(once) - showing, 2)
    if odd or descents < 0:
        openings = sum(kind in _OPENINGS for kind in once)
        raise ConfigurationError(
            f"expected transactions of whole rounds beside {openings} openings, got {game['transactions']}"
        )
    return {**dict.fromkeys(once, 1), "descend": descents, "select": descents + showing}


def sides(game: Mapping[str, int]) -> tuple[int, int]:
    """(defender's, challenger's) gas of a whole game."""
    moves = moves_of(game)
    # A whole game costs more than its moves' medians, because the first write to a slot costs more.
    scale = Fraction(game["in all"], sum(game[kind] * number for kind, number in moves.items()))
    defender = sum(game[kind] * number for kind, number in moves.items() if kind in ("descend", *_OPENINGS))
    return round(defender * scale), round(game["in all"] - defender * scale)
