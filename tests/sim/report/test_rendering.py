"""The page and the Markdown: every number comes from a file, nothing is loaded, no text leaves its place."""

import csv
import io
import json
import re
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.sim.report import synthetic
from tests.sim.report.walking import Files, agrees
from tiebreak.sim.report import building, rendering
from tiebreak.sim.report.page import Report
from tiebreak.sim.report.tracing import Shown

HOSTILE = "<script>alert(1)</script>|`\"'$x_1$ [a](b) *b* # </svg>\\ ]]> &amp; {{ 7 * 7 }}"
VOID = {"meta", "br", "img", "hr", "input", "link", "path", "use", "rect"}
MADE: dict[str, Callable[[], Any]] = {
    "simulate": synthetic.simulate,
    "economics": synthetic.economics,
    "scale": synthetic.scale,
}
"""What each command would write."""


def write(folder: Path, **changed: Any) -> dict[str, Path | None]:
    """Results files of all parts, or of those given."""
    paths: dict[str, Path | None] = {}
    for key, make in MADE.items():
        found = changed.get(key, make())
        paths[key] = None if found is None else folder / f"{key}.json"
        if found is not None:
            (folder / f"{key}.json").write_text(json.dumps(found))
    return paths


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def paths(folder: Path) -> dict[str, Path | None]:
    return write(folder)


@pytest.fixture(scope="module")
def report(paths: dict[str, Path | None]) -> Report:
    return building.build(paths)


@pytest.fixture(scope="module")
def files(report: Report, folder: Path) -> Files:
    return Files.of(*(folder / source.name for source in report.sources))


class Page(HTMLParser):
    """Checks that tags nest; collects tags, text, and each number with its place."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.numbers: list[tuple[str, str, str]] = []
        self.words = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.seen.append((tag, found))
        if tag == "data":
            self.numbers.append((str(found["value"]), str(found["title"]), ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["data"]:
            value, place, text = self.numbers[-1]
            self.numbers[-1] = value, place, text + data
        elif not {"svg", "style", "code", "details"} & set(self.open):
            self.words += f" {data} "


def strings(found: Any) -> Iterator[str]:
    """All text of a file, names included."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield key
            yield from strings(value)
    elif isinstance(found, list):
        for value in found:
            yield from strings(value)
    elif isinstance(found, str):
        yield found


def typed(text: str, files: Files) -> list[str]:
    """Words with digits that stand in no results file and in no name of one."""
    known = {word for found in files.found.values() for word in " ".join(strings(found)).split()}
    known |= {"SHA-256", "`SHA-256`"}
    return [word for word in text.split() if re.search(r"\d", word) and word.strip("().,:;`*") not in known]


def test_every_number_on_the_page_is_in_the_files(report: Report, files: Files, cases: Callable[[int], None]) -> None:
    page = Page(rendering.to_html(report))
    for value, place, text in page.numbers:
        found = files.value(place)
        assert agrees(text, found), (text, place, found)
        assert float(value) == pytest.approx(found, rel=1e-12)
    assert len(page.numbers) > 300
    cases(len(page.numbers))


def test_no_number_on_the_page_was_typed(report: Report, files: Files) -> None:
    assert typed(Page(rendering.to_html(report)).words, files) == []


def test_no_number_in_the_markdown_was_typed(report: Report, files: Files, cases: Callable[[int], None]) -> None:
    shown: list[Shown] = []

    def mark(number: Shown) -> str:
        shown.append(number)
        return "NUMBER"

    page = rendering.to_markdown(report, "report", mark)
    for number in shown:
        assert agrees(number.text, files.value(number.number.source)), number
    page = re.sub(r"^    .*$", "", page, flags=re.MULTILINE)  # lines to type, checked below
    page = re.sub(r"`[0-9a-f]{64}`", "", page)
    assert typed(re.sub(r"!\[[^\]]*\]\([^)]*\)", "", page), files) == []
    assert page.count("NUMBER") == len(shown)
    cases(len(shown))


def test_a_typed_number_would_be_seen(files: Files) -> None:
    assert typed("there were 322 games", files) == ["322"]
    assert typed("seed 17, 5%.", files) == ["17,", "5%."]


def test_the_list_of_numbers_is_complete(report: Report, files: Files) -> None:
    rows = list(csv.DictReader(io.StringIO(rendering.to_csv(report))))
    page = Page(rendering.to_html(report))
    assert [(row["value"], row["source"], row["shown"]) for row in rows] == [
        (value, place, text) for value, place, text in page.numbers if not place.startswith("seed")
    ][: len(rows)]
    for row in rows:
        assert agrees(row["shown"], files.value(row["source"]))


def test_lines_to_type_are_those_of_the_files(report: Report, files: Files, cases: Callable[[], None]) -> None:
    known = set(strings(files.found))
    for line in re.findall(r"^    (tiebreak .*)$", rendering.to_markdown(report, "report"), flags=re.MULTILINE):
        command, *rest = shlex.split(line)[1:]
        assert command in ("simulate", "agree")
        assert set(rest) - {"--replay", "JOB"} <= known, line
        cases()


def test_files_are_named_with_their_digest(report: Report) -> None:
    page = rendering.to_markdown(report, "report")
    assert report.sources
    for source in report.sources:
        assert f"`{source.name}`, SHA-256 `{source.sha256}`" in page


def test_the_same_results_give_the_same_bytes(report: Report, paths: dict[str, Path | None]) -> None:
    again = building.build(paths)
    assert rendering.to_html(again) == rendering.to_html(report)
    assert rendering.to_markdown(again, "x") == rendering.to_markdown(report, "x")
    assert rendering.to_csv(again) == rendering.to_csv(report)


def test_the_page_loads_nothing(report: Report) -> None:
    source = rendering.to_html(report)
    page = Page(source)
    for tag, attributes in page.seen:
        assert tag not in ("script", "link", "iframe", "object", "img", "base", "form"), tag
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "action", "data"):
                assert value is not None
                assert value.startswith("#"), (tag, name, value)
            assert not name.startswith("on")
    assert re.findall(r"url\((?!#)|@import", source) == []
    assert "default-src 'none'" in source


def test_the_page_can_be_read_by_all(report: Report) -> None:
    """Pictures are named, tables have captions and heads, links lead to headings, what scrolls can be focused."""
    source = rendering.to_html(report)
    page = Page(source)
    tags = [tag for tag, _ in page.seen]
    assert all(found.get("aria-label") and found.get("role") == "img" for tag, found in page.seen if tag == "svg")
    assert tags.count("svg") == len(list(report.pictures())) > 0
    assert tags.count("caption") >= tags.count("table") - 1
    assert tags.count("h1") == tags.count("main") == 1
    ids = [found["id"] for _, found in page.seen if found.get("id")]
    assert len(ids) == len(set(ids))
    for tag, found in page.seen:
        if tag == "a" and found.get("href"):
            assert str(found["href"])[1:] in ids
        if tag == "div" and "scroll" in str(found.get("class")):
            assert found.get("tabindex") == "0"
            assert found.get("aria-label")
    assert 'name="viewport"' in source
    assert "prefers-color-scheme: dark" in source


def test_pictures_are_xml_of_their_own(report: Report, tmp_path: Path) -> None:
    written = rendering.write_markdown(report, tmp_path, "page")
    pictures = [path for path in written if path.suffix == ".svg"]
    assert len(pictures) == len(list(report.pictures())) > 0
    for path in pictures:
        root = ET.parse(path).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("aria-label")
        assert root.get("viewBox")
        assert "currentColor" in path.read_text()
        assert "prefers-color-scheme:dark" in path.read_text()
    linked = re.findall(r"\]\(([^)]+)\)", (tmp_path / "page.md").read_text())
    assert {tmp_path / link for link in linked} == {path for path in written if path.suffix != ".md"}


def test_pictures_that_are_no_more_are_removed(report: Report, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "old.svg").write_text("<svg/>")
    (tmp_path / "page" / "mine.txt").write_text("kept")
    rendering.write_markdown(report, tmp_path, "page")
    assert not (tmp_path / "page" / "old.svg").exists()
    assert (tmp_path / "page" / "mine.txt").exists()


def hostile(found: Any) -> Any:
    """Text that tries to be markup in every place that takes any text."""
    free = {
        "gain", "mix", "name", "role", "violation", "note", "what", "source", "case", "group", "budget", "lift",
        "figure", "breaks_up", "attack", "strategy", "most_used",
    }  # fmt: skip
    fixed = {"simulate", "economics", "scale curves"}
    if isinstance(found, dict):
        return {
            key: HOSTILE if key in free and isinstance(value, str) and value not in fixed else hostile(value)
            for key, value in found.items()
        }
    return [hostile(value) for value in found] if isinstance(found, list) else found


def test_text_cannot_leave_its_place(tmp_path: Path) -> None:
    changed = {key: hostile(make()) for key, make in MADE.items()}
    changed["simulate"]["violations"] = [{"game": 1, "line": "v1 seed=0 game=1", "violation": HOSTILE}]
    changed["simulate"]["environment"] = {HOSTILE[:80]: HOSTILE}
    made = building.build(write(tmp_path, **changed))
    source = rendering.to_html(made)
    page = Page(source)
    assert "script" not in {tag for tag, _ in page.seen}
    assert "alert(1)" in page.words
    assert "{{ 7 * 7 }}" in page.words
    for path in rendering.write_markdown(made, tmp_path, "page"):
        if path.suffix == ".svg":
            ET.parse(path)
    markdown = (tmp_path / "page.md").read_text()
    assert "<script" not in re.sub(r"^    .*$", "", markdown, flags=re.MULTILINE)
    assert "[a](b)" not in re.sub(r"^    .*$", "", markdown, flags=re.MULTILINE)
    for table in re.findall(r"(?:^\|.*\n)+", markdown, flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_what_is_missing_is_said(paths: dict[str, Path | None], cases: Callable[[], None]) -> None:
    none: dict[str, Path | None] = dict.fromkeys(paths)
    page = rendering.to_markdown(building.build(none), "report")
    for part in building.PARTS:
        assert f"no results of \\`{part.command}\\`" in page
        cases()


def test_broken_promises_are_shown_with_their_lines(report: Report, tmp_path: Path) -> None:
    found = synthetic.simulate()
    found["promises"] |= {"undetected": 1, "broken": 1}
    found["violations"] = [{"game": 3, "line": "v1 seed=0 game=3", "violation": "a false head was paid"}]
    made = building.build(write(tmp_path, **{**dict.fromkeys(MADE), "simulate": found}))
    page = rendering.to_markdown(made, "report")
    assert "Promises were broken" in page
    assert "    tiebreak simulate --replay 'v1 seed=0 game=3'" in page
    assert 'class="bad"' in rendering.to_html(made)
    assert "Promises were broken" not in rendering.to_markdown(report, "report")
