"""Keeps a counter-example: `python -m tests.sim.counterexamples.keep FILE LINE CAUSE`; FILE as in `found.txt`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tiebreak.protocol.errors import TiebreakError
from tiebreak.sim.games.counterexamples import keep
from tiebreak.sim.games.playing import ADVERSARIES

KEPT = Path(__file__).resolve().parent


def main(arguments: Sequence[str]) -> None:
    if len(arguments) != 3:
        sys.exit(f"expected FILE LINE CAUSE, got {len(arguments)} arguments")
    file, line, cause = arguments
    try:
        keep(KEPT / file, line, cause, ADVERSARIES)
    except TiebreakError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
