"""A report as files: one HTML page that loads nothing, or Markdown with its pictures and its numbers beside it."""

import csv
import io
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Final

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tiebreak.sim.report.drawing import alone
from tiebreak.sim.report.page import Cell, Place, Report, Text, places
from tiebreak.sim.report.tracing import Shown

NUMBERS: Final = "numbers.csv"
Mark = Callable[[Shown], str]


def environment(package: str, *, html: bool) -> Environment:
    """Templates of a package, and the style that all pages share. HTML is escaped; an unknown name is an error."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, "templates"), PackageLoader("tiebreak.sim.report", "templates")]),
        autoescape=html,  # noqa: S701 (Markdown has a filter of its own)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def to_html(report: Report) -> str:
    """One page that loads nothing from anywhere."""
    made = environment("tiebreak.sim.report", html=True)
    made.filters |= {"text": _html, "picture": Markup}  # our own SVG, escaped where made
    return made.get_template("page.html.j2").render(report=report, places=places(report.sections))


def to_markdown(report: Report, folder: str, mark: Mark = lambda shown: shown.text) -> str:
    """The same in Markdown; pictures and numbers are in the folder. `mark` says how a number is written."""
    made = environment("tiebreak.sim.report", html=False)
    made.filters |= {"text": lambda text: _markdown(text, mark), "words": markdown_words}
    page = made.get_template("page.md.j2").render(report=report, folder=folder, numbers=NUMBERS)
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def to_csv(report: Report) -> str:
    """Every number shown: where in the report, as shown, in full, and its place in a results file."""
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(["section", "table", "row", "column", "shown", "value", "source"])
    writer.writerows(_record(place) for place in places(report.sections))
    return made.getvalue()


def write_html(report: Report, folder: Path, name: str) -> list[Path]:
    """Write FOLDER/NAME.html."""
    return [_write(folder / f"{name}.html", to_html(report))]


def write_markdown(report: Report, folder: Path, name: str) -> list[Path]:
    """Write FOLDER/NAME.md, and FOLDER/NAME with a file for each picture and one for the numbers.

    Pictures of an earlier report that this one does not have are removed.
    """
    beside = folder / name
    pictures = {f"{picture.name}.svg": alone(picture.svg) for picture in report.pictures()}
    written = [_write(folder / f"{name}.md", to_markdown(report, name)), _write(beside / NUMBERS, to_csv(report))]
    for old in beside.glob("*.svg"):
        if old.name not in pictures:
            old.unlink()
    return written + [_write(beside / picture, svg) for picture, svg in pictures.items()]


def _write(path: Path, content: str) -> Path:
    """At once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}.new")
    made.write_text(content, encoding="utf-8", newline="\n")
    return made.replace(path)


def _html(text: Text) -> Markup:
    return Markup("").join(_html_part(part) for part in text)


def _html_part(part: Cell) -> Markup:
    if isinstance(part, str):
        return Markup(escape(part))  # noqa: S704 (escaped)
    return Markup('<data value="{}" title="{}">{}</data>').format(part.number.value, part.number.source, part.text)


def markdown_words(text: str) -> str:
    """Words that nothing in Markdown can take for markup, on one line."""
    escaped = re.sub(r"([\\`*_\[\]#|~$])", r"\\\1", escape(" ".join(text.split()), quote=False))
    # A bare address would become a link, and a name after @ a mention.
    return re.sub(r"(?<=\w)(://)|@(?=\w)|(?<=www)\.", lambda found: f"{found[0]}<!-- -->", escaped)


def _markdown(text: Text, mark: Mark) -> str:
    """Spaces at the ends of words count: they stand beside numbers."""
    return "".join(_markdown_part(part, mark) for part in text).strip()


def _markdown_part(part: Cell, mark: Mark) -> str:
    if isinstance(part, Shown):
        return mark(part)
    before, after = (" " if part[:1].isspace() else ""), (" " if part[-1:].isspace() else "")
    return f"{before}{markdown_words(part)}{after}" if part.strip() else " "


def _record(place: Place) -> list[str]:
    number = place.shown.number
    return [*map(_tame, (place.section, place.table, place.row, place.column)), place.shown.text,
            str(number.value), number.source]  # fmt: skip


def _tame(text: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" and text else text
