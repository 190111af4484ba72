"""Lines of text files, each as one text: hostile files are bounded, and refused with file and line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tiebreak.engine.data.disk import opened
from tiebreak.protocol.errors import ConfigurationError, EncodingError

MAX_TEXT_BYTES: Final = 1 << 22
"""A tokenizer needs about a hundred times the memory of the text that it is given."""


def lines(path: Path) -> Iterator[str]:
    """Yields each line without its line end (LF or CR LF).

    Raises `ConfigurationError` for a line that is too long, and `EncodingError` for one that is not UTF-8.
    """
    with opened(path) as (raw, _), open(raw.fileno(), "rb", closefd=False) as file:
        number = 0
        while line := file.readline(MAX_TEXT_BYTES + 1):
            number += 1
            if len(line) > MAX_TEXT_BYTES:
                raise ConfigurationError(
                    f"{path}, line {number}: expected texts of at most {MAX_TEXT_BYTES} bytes, got a longer one"
                )
            try:
                yield line.rstrip(b"\r\n").decode("utf-8")
            except UnicodeDecodeError as error:
                raise EncodingError(f"{path}, line {number}: expected UTF-8, got {error}") from error
