"""Games with every adversary (an hour on two cores): `make bench-simulate`.

A run that was killed continues where it stopped. Its results follow from the seed, except for speed and environment.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Final

import click

from benchmarks.table import RESULTS, placed
from tiebreak.engine.system import usable_cores
from tiebreak.lab.commands.simulate import PromiseBroken, run
from tiebreak.lab.sim.games.mixes import ALL
from tiebreak.lab.sim.games.playing import deal
from tiebreak.lab.sim.games.series import SUMMARY
from tiebreak.lab.sim.games.summary import to_markdown
from tiebreak.lab.sim.world.workshop import CLASSIFIER, ROLLOUTS

TABLES: Final = RESULTS / "simulation.md"
PAGE: Final = RESULTS.parents[1] / "docs" / "simulation.md"
LINK: Final = "../benchmarks/results/simulation.md"
"""The link from the page to the tables."""


@click.command()
@click.option("--games", default=1000, show_default=True)
@click.option("--seed", default=2026, show_default=True)
@click.option("--mix", default=ALL, show_default=True)
@click.option("--rough", is_flag=True, help="In rough weather, for a section of the page.")
@click.option("--rollouts", is_flag=True, help="About late data, for a section of the page.")
@click.option("--processes", default=usable_cores(), show_default="all cores")
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), default=Path("build") / "simulate")
@placed
def main(
    games: int, seed: int, mix: str, rough: bool, rollouts: bool, processes: int, work: Path, folder: Path
) -> None:  # fmt: skip
    """Play the games and keep their summary; with --commit, docs/simulation.md too."""
    try:
        workshops = ROLLOUTS if rollouts else CLASSIFIER
        run(deal(seed, mix, games, rough=rough, workshops=workshops), work, processes, resume=True)
    except PromiseBroken as broken:
        sys.exit(str(broken))  # a summary with a broken promise is not a result to publish
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(work / SUMMARY, folder / f"{'rollouts' if rollouts else 'rough' if rough else 'simulate'}.json")
    paths = [folder / f"{name}.json" for name in ("simulate", "rough", "rollouts")]
    found = [json.loads(path.read_text()) if path.exists() else None for path in paths]
    found = found if found[0] else [*filter(None, found)][:1]
    (folder / TABLES.name).write_text(to_markdown(*found), encoding="utf-8")
    if folder == RESULTS:
        PAGE.write_text(to_markdown(*found, details=LINK), encoding="utf-8")


if __name__ == "__main__":
    main()
