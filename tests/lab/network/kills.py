"""Kills parties at random instants, game after game, and compares each end with that of an undisturbed game.

    python -m tests.lab.network.kills [KILLS] [SEED]

Not a part of the suite, which plays one such game: 200 kills take three quarters of an hour. The clocks are so long
that a party which is killed many times in a row is still in time.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.lab.network.test_up import TRUE_ROOT, Stormy, plan_of, roots, said_twice
from tiebreak.lab.network.local_network import TERMS

EACH: Final = 12
"""The most kills of one game."""
ENDINGS: Final = {"": "settled", "rate": "slashed", "weight": "slashed", "label": "slashed"}
PATIENT: Final = TERMS | {"challenge-window": 240, "clock": 240, "talk-time": 60, "deadline": 1_200}


def play(folder: Path, cheat: str, seed: int, kills: int) -> tuple[int, bool]:
    """How many kills there were, and whether the game ended as without them, with nothing signed twice."""
    plan = plan_of(folder, cheat=cheat, embedded=False, terms=PATIENT)
    town = Stormy(plan, seed, kills)
    town.run()
    twice, honest = said_twice(folder), roots(folder)[4].startswith(TRUE_ROOT)
    good = town.ending.status == ENDINGS[cheat] and not twice and honest is not bool(cheat)
    if not good:
        print("\n".join(town.story), f"\ntwice: {twice}", flush=True)
    print(f"seed {seed}, {cheat or 'honest'}: {len(town.killed)} kills, {town.ending.status}, {good=}", flush=True)
    return len(town.killed), good


def main(wanted: int = 200, seed: int = 0) -> int:
    done, games, bad, first = 0, 0, 0, seed
    while done < wanted:
        cheat = list(ENDINGS)[games % len(ENDINGS)]
        with TemporaryDirectory() as folder:
            kills, good = play(Path(folder) / "town", cheat, first + games, min(EACH, wanted - done))
        done, games, bad = done + kills, games + 1, bad + (not good)
    print(f"{done} kills in {games} games; {bad} ended otherwise")
    return bad


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
