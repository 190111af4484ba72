"""What a report is made of: sections of paragraphs, tables, pictures and lines to type. Neither HTML nor Markdown."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tiebreak.sim.report.tracing import Shown

Cell = Shown | str
Text = tuple[Cell, ...]
"""Words and numbers, in order."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands in one place of a table."""

    text: Text
    shade: float | None = None
    """From 0 to 1: how strongly the place is coloured."""
    tone: str = ""
    """"good" or "bad", where it is one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column's head, and what it says below."""

    title: str
    numeric: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Sentences."""

    kind: ClassVar[str] = "paragraph"
    text: Text
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """A few numbers to be seen first: number, then what it is."""

    kind: ClassVar[str] = "tiles"
    tiles: tuple[tuple[Text, Text, str], ...]
    """Number, words, tone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of numbers."""

    kind: ClassVar[str] = "table"
    name: str
    """Short, unique in the report: the appendix names it."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    note: Text = ()
    folded: bool = False
    """On a page: closed at first, because a picture beside it says the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing, and in words what it shows."""

    kind: ClassVar[str] = "picture"
    name: str
    """Its file's name, without the ending."""
    title: str
    svg: str
    note: Text = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Lines to copy into a shell: what for, then the line."""

    kind: ClassVar[str] = "lines"
    name: str
    title: str
    lines: tuple[tuple[str, str], ...]


Block = Paragraph | Tiles | Table | Picture | Lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and what stands below it."""

    title: str
    anchor: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A results file that was read."""

    name: str
    sha256: str
    facts: tuple[tuple[str, Text], ...]
    """What it says of itself: environment, seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it."""

    title: str
    sections: tuple[Section, ...]
    sources: tuple[Source, ...] = field(default=())

    def pictures(self) -> Iterator[Picture]:
        """In order."""
        for section in self.sections:
            yield from (block for block in section.blocks if isinstance(block, Picture))


def words(*parts: Cell | None) -> Text:
    """A text of what is given; None is left out."""
    return tuple(part for part in parts if part is not None)


def entry(cell: Cell, *, shade: float | None = None, tone: str = "") -> Entry:
    """A place in a table with one thing in it."""
    return Entry((cell,), shade, tone)


def row(*cells: Cell | Entry) -> tuple[Entry, ...]:
    """A table's row."""
    return tuple(cell if isinstance(cell, Entry) else entry(cell) for cell in cells)


def table(
    name: str, title: str, heads: Sequence[str], rows: Iterable[tuple[Entry, ...]], *, note: Text = (),
    folded: bool = False,
) -> Table:  # fmt: skip
    """A table whose columns are numeric where numbers are all that stands in them, dashes apart."""
    body = tuple(rows)
    kinds = [_numeric([line[i] for line in body]) for i in range(len(heads))]
    made = tuple(Column(title=head, numeric=kind) for head, kind in zip(heads, kinds, strict=True))
    return Table(name=name, title=title, columns=made, rows=body, note=note, folded=folded)


def _numeric(cells: Sequence[Entry]) -> bool:
    texts = [cell.text for cell in cells if plain_text(cell.text).strip("–")]
    return all(isinstance(text[0], Shown) or text == ("any",) for text in texts)


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a report a number is shown."""

    section: str
    table: str
    row: str
    column: str
    shown: Shown


def _shown(text: Text) -> Iterator[Shown]:
    return (part for part in text if isinstance(part, Shown))


def plain_text(text: Sequence[Cell]) -> str:
    """As a reader sees it, without markup."""
    return "".join(part.text if isinstance(part, Shown) else part for part in text)


def _of_block(section: str, block: Block) -> Iterator[Place]:
    if isinstance(block, Paragraph):
        yield from (Place(section, "text", "", "", shown) for shown in _shown(block.text))
    elif isinstance(block, Tiles):
        for number, told, _ in block.tiles:
            yield from (Place(section, "at a glance", plain_text(told), "", shown) for shown in _shown(number + told))
    elif isinstance(block, Picture):
        yield from (Place(section, block.name, "", "", shown) for shown in _shown(block.note))
    elif isinstance(block, Table):
        for cells in block.rows:
            name = plain_text(cells[0].text)
            for column, cell in zip(block.columns, cells, strict=True):
                yield from (Place(section, block.name, name, column.title, shown) for shown in _shown(cell.text))
        yield from (Place(section, block.name, "", "note", shown) for shown in _shown(block.note))


def places(sections: Iterable[Section]) -> tuple[Place, ...]:
    """Every number of a report, in the order in which it is read."""
    return tuple(place for section in sections for block in section.blocks for place in _of_block(section.title, block))
