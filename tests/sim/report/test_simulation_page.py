"""docs/simulation.md and its pictures are what the committed results say."""

import re
from collections.abc import Callable
from pathlib import Path

from tests.source_tree import ROOT
from tiebreak.sim.report import building, rendering

RESULTS = ROOT / "benchmarks" / "results"
COMMITTED = {"simulate": "simulate.json", "economics": "economics.json", "scale": "scale_curves.json"}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def drawing(svg: str) -> tuple[str, list[float]]:
    """What is drawn, and where: the last digit of a coordinate is the machine's."""
    return NUMBER.sub("0", svg), [float(number) for number in NUMBER.findall(svg)]


def test_the_page_is_what_the_results_say(tmp_path: Path, cases: Callable[[], None]) -> None:
    files = {key: path if (path := RESULTS / name).is_file() else None for key, name in COMMITTED.items()}
    rendering.write_markdown(building.build(files), tmp_path, "simulation")
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    there = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs" / "simulation").iterdir()}
    assert made == there | {Path("simulation.md")}, "run make report"
    for name in sorted(made):
        new, old = ((folder / name).read_text() for folder in (tmp_path, ROOT / "docs"))
        if name.suffix != ".svg":
            assert new == old, f"{name} is not what the results say: run make report"
            cases()
            continue
        (new_words, new_places), (old_words, old_places) = drawing(new), drawing(old)
        assert new_words == old_words, f"{name} is not what the results say: run make report"
        assert max((abs(a - b) for a, b in zip(new_places, old_places, strict=True)), default=0) <= 0.05, name
        cases()
