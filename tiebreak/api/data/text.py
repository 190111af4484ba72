"""Turns texts into arrays of tokens: one long array with separators, for windows, or one padded row per text.

A text is a file, a line, or a paragraph of a file. Each text is tokenized as a whole, so that its tokens do not depend
on how it was read. That is why the length of a text is limited.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tiebreak.api.data.folder import Import, OnBytes
from tiebreak.api.data.tokenizing import Tokens
from tiebreak.engine.data.disk import opened
from tiebreak.engine.data.elements import Array
from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.protocol.program.isa import DType

MAX_TEXT_BYTES: Final = 1 << 22
"""A tokenizer needs about a hundred times the memory of the text that it is given."""
BATCH_BYTES: Final = 1 << 20
BATCH_TEXTS: Final = 4096
TOKENS: Final = "tokens"
LENGTHS: Final = "lengths"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of tokens in arrays.

    separator: follows each text, if given. rows: None makes one array `tokens`, int64 [all]. A length L makes `tokens`,
    int64 [texts, L], in which each row is filled up with `padding` or cut off at L, and `lengths`, int64 [texts], which
    does not count the padding.
    """

    separator: Array | None = None
    rows: int | None = None
    padding: int | None = None

    def __post_init__(self) -> None:
        if (self.rows is None) != (self.padding is None):
            raise ConfigurationError("expected both a row length and a padding token, or neither")


@dataclass(slots=True)
class ImportCounts:
    """The counts of an import of texts."""

    texts: int = 0
    tokens: int = 0
    cut: int = 0
    """The number of texts that were longer than a row."""


def import_texts(
    made: Import, texts: Iterable[str], tokens: Tokens, layout: Layout, *, keep_empty: bool = False
) -> ImportCounts:
    """Tokenizes texts in batches and writes `tokens` (and `lengths`). Leaves out empty texts unless `keep_empty`."""
    counts = ImportCounts()
    for batch in _batches(text for text in texts if text or keep_empty):
        encoded = tokens.encode(batch)
        if layout.separator is not None:
            encoded = [np.concatenate([ids, layout.separator]) for ids in encoded]
        counts.texts += len(encoded)
        counts.tokens += sum(len(ids) for ids in encoded)
        if layout.rows is None or layout.padding is None:
            made.append(TOKENS, DType.I64, np.concatenate(encoded))
        else:
            counts.cut += sum(len(ids) > layout.rows for ids in encoded)
            made.append(TOKENS, DType.I64, _padded(encoded, layout.rows, layout.padding))
            lengths = np.array([min(len(ids), layout.rows) for ids in encoded], dtype="<i8")
            made.append(LENGTHS, DType.I64, lengths)
    return counts


def _padded(encoded: list[Array], length: int, padding: int) -> Array:
    rows = np.full((len(encoded), length), padding, dtype="<i8")
    for row, ids in zip(rows, encoded, strict=True):
        row[: len(ids)] = ids[:length]
    return rows


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Groups texts into batches of about a megabyte."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if len(text) > MAX_TEXT_BYTES:
            raise ConfigurationError(f"expected texts of at most {MAX_TEXT_BYTES} characters, got one of {len(text)}")
        batch.append(text)
        size += len(text)
        if size >= BATCH_BYTES or len(batch) >= BATCH_TEXTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def whole_files(paths: Iterable[Path], on_bytes: OnBytes) -> Iterator[str]:
    """Yields each file as one text."""
    for path in paths:
        with opened(path) as (file, stamp):
            _check_length(path, 1, stamp.size)
            data = file.readall()
        on_bytes(len(data))
        yield _decoded(path, 1, data)


def lines(paths: Iterable[Path], on_bytes: OnBytes) -> Iterator[str]:
    """Yields each line as one text, without its line end (LF or CR LF)."""
    for path, number, line in _lines(paths, on_bytes):
        yield _decoded(path, number, line.rstrip(b"\r\n"))


def paragraphs(paths: Iterable[Path], on_bytes: OnBytes) -> Iterator[str]:
    """Yields the lines between blank lines (or between files) as one text, and keeps the line ends inside it."""
    held: list[bytes] = []
    size, first, last = 0, 0, Path()
    for path, number, line in _lines(paths, on_bytes):
        if held and (path != last or not line.strip()):
            yield _decoded(last, first, b"".join(held).rstrip(b"\r\n"))
            held, size = [], 0
        if line.strip():
            first = number if not held else first
            held.append(line)
            size, last = size + len(line), path
            _check_length(path, first, size)
    if held:
        yield _decoded(last, first, b"".join(held).rstrip(b"\r\n"))


CUTS: Final[dict[str, Callable[[Iterable[Path], OnBytes], Iterator[str]]]] = {
    "files": whole_files,
    "lines": lines,
    "paragraphs": paragraphs,
}
"""The ways to cut files into texts, by name."""


def _lines(paths: Iterable[Path], on_bytes: OnBytes) -> Iterator[tuple[Path, int, bytes]]:
    """Yields the file, the number (from 1) and the bytes of each line, with its line end."""
    for path in paths:
        with opened(path) as (raw, _), open(raw.fileno(), "rb", closefd=False) as file:
            number = 0
            while line := file.readline(MAX_TEXT_BYTES + 1):
                number += 1
                _check_length(path, number, len(line))
                on_bytes(len(line))
                yield path, number, line


def _check_length(path: Path, line: int, size: int) -> None:
    if size > MAX_TEXT_BYTES:
        raise ConfigurationError(
            f"{path}, line {line}: expected texts of at most {MAX_TEXT_BYTES} bytes, got one of {size} or more; "
            "cut the file into lines or paragraphs"
        )


def _decoded(path: Path, line: int, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EncodingError(f"{path}, line {line}: expected UTF-8, got {error}") from error
