"""Writes a demo's result as files for people and programs: report.html (self-contained), report.md, result.json."""

from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tiebreak.lab.demo.pictures import pictures
from tiebreak.lab.demo.results import DemoResult
from tiebreak.node.pages.words import whole
from tiebreak.protocol.commitments.terms import ether

HTML: Final = "report.html"
MARKDOWN: Final = "report.md"
JSON: Final = "result.json"


def short(digest: str) -> str:
    """The two ends of a long hex string; a short one stays whole."""
    return digest if len(digest) <= 18 else f"{digest[:10]}…{digest[-6:]}"


def share(part: int, whole: int) -> str:
    """Formats a ratio so that it is readable over many orders of magnitude."""
    return "0" if part == 0 or whole == 0 else f"{part / whole:.1e}"


def gain(wei: int) -> str:
    """Formats a party's gain; a minus marks a loss."""
    return f"{'+' if wei >= 0 else ''}{ether(wei)}"


def cell(text: object) -> str:
    """Escapes text that would otherwise end a Markdown table cell."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def environment(*, html: bool) -> Environment:
    """The template environment with its filters. Only Markdown has `cell`."""
    made = Environment(
        loader=PackageLoader("tiebreak.lab.demo", "templates"),
        autoescape=html,  # noqa: S701 (Markdown has a filter of its own)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"short": short, "whole": whole, "gain": gain, "cell": cell}
    made.globals["share"] = share
    return made


def to_html(result: DemoResult) -> str:
    """A self-contained page that loads no other resources."""
    drawn = {name: [Markup(svg) for svg in svgs] for name, svgs in pictures(result.jobs, result.disputes).items()}  # noqa: S704 (our own SVG, escaped where made)
    return environment(html=True).get_template("report.html.j2").render(r=result, pictures=drawn)


def to_markdown(result: DemoResult) -> str:
    return environment(html=False).get_template("report.md.j2").render(r=result)


def write(result: DemoResult, folder: Path) -> dict[str, Path]:
    """Writes the three files and returns their paths by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {HTML: to_html(result), MARKDOWN: to_markdown(result), JSON: result.to_json()}
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    return {name: folder / name for name in contents}
