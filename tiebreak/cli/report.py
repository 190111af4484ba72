"""`tiebreak report`: what the simulations found, as a page."""

from pathlib import Path
from typing import Final

import click

from tiebreak.cli.options import output_option
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.sim.report import building, rendering

RESULTS: Final = Path("benchmarks") / "results"
HTML: Final = "html"
MARKDOWN: Final = "markdown"
BOTH: Final = "both"


USUAL: Final = {
    "simulate": (Path("simulation") / "summary.json", RESULTS / "simulate.json"),
    "economics": (RESULTS / "economics.json",),
    "scale": (RESULTS / "scale_curves.json",),
}
"""Where results are looked for, one after the other: where the commands put them, then those of this repository."""


def _results(key: str, command: str) -> click.Option:
    """--KEY FILE; the usual places may be empty, a place that was asked for may not."""
    text = f"Results of `{command}` [default: {' or '.join(map(str, USUAL[key]))}, if there is one]."
    return click.Option([f"--{key}"], type=click.Path(dir_okay=False, path_type=Path), help=text)


@click.command()
@output_option("report", "Folder for the files; made if need be.")
@click.option("--name", default="report", show_default=True, help="Of the files, without the ending.")
@click.option("--format", "how", type=click.Choice([BOTH, HTML, MARKDOWN]), default=BOTH, show_default=True,
              help="Which files to write.")  # fmt: skip
def report(output: Path, name: str, how: str, **files: Path | None) -> None:
    """Render what was simulated as one HTML page and as Markdown.

    Reads the JSON results of the simulations, checks them, and writes NAME.html, which loads nothing and can be read
    from disk, and NAME.md with its pictures and a table of all numbers in the folder NAME. Every number shown carries
    its file and its place in it. A part without results is left out, and the report says which command makes them.
    """
    if not name or name != Path(name).name or name.startswith("."):
        raise ConfigurationError(f"expected a name for the files, without folders, got {name!r}")
    made = building.build({key: _there(key, path) for key, path in files.items()})
    written = []
    if how != MARKDOWN:
        written += rendering.write_html(made, output, name)
    if how != HTML:
        written += rendering.write_markdown(made, output, name)
    for path in written:
        if path.suffix in (".html", ".md", ".csv"):
            click.echo(str(path))


report.params.extend(_results(part.key, part.command) for part in building.PARTS)


def _there(key: str, path: Path | None) -> Path | None:
    return path or next((usual for usual in USUAL[key] if usual.is_file()), None)
