"""A report of the results files that there are; a sentence for each that there is not."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tiebreak.sim.report import incentives, scaled, simulated
from tiebreak.sim.report.economics_shape import Economics
from tiebreak.sim.report.page import Paragraph, Report, Section, Source
from tiebreak.sim.report.results import Results, Shape
from tiebreak.sim.report.scale_shape import Scale
from tiebreak.sim.report.simulate_shape import Simulate

TITLE: Final = "Tiebreak, simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one command writes, and what is said of it."""

    key: str
    title: str
    command: str
    shape: type[Shape]
    sections: Callable[[Results], tuple[Section, ...]]


PARTS: Final = (
    Part(key="simulate", title="Games", command="tiebreak simulate", shape=Simulate, sections=simulated.sections),
    Part(
        key="economics",
        title="Incentives",
        command="make bench-economics",
        shape=Economics,
        sections=incentives.sections,
    ),
    Part(key="scale", title="Growth", command="tiebreak scale --curves", shape=Scale, sections=scaled.sections),
)


def build(files: dict[str, Path | None]) -> Report:
    """Of the files by key of their part; None where there is none. Raises as `Results.read` does."""
    sections: list[Section] = []
    sources = []
    for part in PARTS:
        path = files.get(part.key)
        if path is None:
            text = f"Not in this report: no results of `{part.command}`, which makes them."
            sections.append(Section(title=part.title, anchor=part.key, blocks=(Paragraph(text=(text,)),)))
        else:
            results = Results.read(path, part.shape)
            sections += part.sections(results)
            sources.append(_source(results))
    return Report(title=TITLE, sections=tuple(sections), sources=tuple(sources))


def _source(results: Results) -> Source:
    facts = [(name, results.text("environment", name)) for name in results.keys("environment")]
    return Source(name=results.name, sha256=results.sha256, facts=tuple((name, (text,)) for name, text in facts))
