"""Games with every adversary: `make bench-simulate` plays them (an hour on two cores) and writes results/simulate.json.

Killed, it goes on where it was. What it writes follows from the seed, but for the speed and the environment.
"""

import argparse
import shutil
import sys
from pathlib import Path

from benchmarks.table import RESULTS
from tiebreak.api.environment import usable_cores
from tiebreak.cli.simulate import PromiseBroken, deal, run
from tiebreak.sim.games.mixes import ALL
from tiebreak.sim.games.series import SUMMARY

GAMES, SEED = 1000, 2026
FOLDER = Path("build") / "simulate"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--games", type=int, default=GAMES)
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--mix", default=ALL)
    options.add_argument("--processes", type=int, default=usable_cores())
    options.add_argument("--folder", type=Path, default=FOLDER)
    chosen = options.parse_args()
    try:
        run(deal(chosen.seed, chosen.mix, chosen.games), chosen.folder, chosen.processes, resume=True)
    except PromiseBroken as broken:
        sys.exit(str(broken))  # such a summary is no result to publish
    shutil.copyfile(chosen.folder / SUMMARY, RESULTS / "simulate.json")


if __name__ == "__main__":
    main()
