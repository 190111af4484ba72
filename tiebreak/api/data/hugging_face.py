"""Datasets that Hugging Face's library `datasets`, which is optional, saved with `save_to_disk`.

They are Arrow files, which that library maps and reads in batches. A column of numbers, or of lists of numbers that all
have one shape, becomes an array; a column of texts goes to `tiebreak.api.data.text`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from tiebreak.api.data.folder import Import, OnBytes
from tiebreak.engine.data.elements import Array, Element, of_numpy
from tiebreak.protocol.errors import ConfigurationError, EncodingError

BATCH_BYTES: Final = 1 << 24
MAX_BATCH_ROWS: Final = 4096


def open_dataset(folder: Path, split: str | None = None) -> Any:
    """Opens a dataset, or the given split if it has several. Raises `ConfigurationError` if the folder holds none."""
    library = _library()
    if not folder.is_dir():
        raise ConfigurationError(f"expected the folder of a dataset, got {folder}")
    try:
        found = library.load_from_disk(str(folder))
    except Exception as error:  # the library raises exceptions of many types for a bad folder; its message is passed on
        raise ConfigurationError(f"{folder}: expected a dataset saved with save_to_disk, got {error}") from error
    if isinstance(found, library.DatasetDict):
        if split not in found:
            raise ConfigurationError(f"{folder}: expected a split of {sorted(found)}, got {split!r}")
        found = found[split]
    elif split is not None:
        raise ConfigurationError(f"{folder}: expected no split, for there is one dataset, got {split!r}")
    if not len(found):
        raise ConfigurationError(f"{folder}: expected rows, got none")
    return found.with_format("arrow")


def import_columns(made: Import, dataset: Any, columns: list[str], on_rows: OnBytes) -> None:
    """Writes each column as a float32 or int64 array of shape [rows, ...].

    `on_rows` is called with the number of further rows that were written.
    """
    _check_columns(dataset, columns)
    chosen = dataset.select_columns(columns)
    for table in _tables(chosen):
        for name in columns:
            element, values = _numbers(name, table.column(name).combine_chunks())
            made.append(name, element.converted, element.convert(values))
        on_rows(table.num_rows)


def arrays(dataset: Any, wanted: Iterable[str]) -> dict[str, Array]:
    """The columns of a `datasets.Dataset` in memory, as float32 or int64: those wanted, or all that are numbers."""
    found = dataset.with_format("arrow")
    columns = [name for name in wanted if name in found.column_names] or numeric_columns(found)
    parts: dict[str, list[Array]] = {name: [] for name in columns}
    for table in _tables(found.select_columns(columns)):
        for name in columns:
            element, values = _numbers(name, table.column(name).combine_chunks())
            parts[name].append(element.convert(values))
    return {name: np.concatenate(part) for name, part in parts.items()}


def texts(dataset: Any, column: str, on_rows: OnBytes) -> Iterator[str]:
    """Yields the texts of a column."""
    _check_columns(dataset, [column])
    for table in _tables(dataset.select_columns([column])):
        for value in table.column(column):
            text = value.as_py()
            if not isinstance(text, str):
                raise ConfigurationError(f"column {column}: expected texts, got {type(text).__name__}")
            yield text
        on_rows(table.num_rows)


def numeric_columns(dataset: Any) -> list[str]:
    """The columns whose first row is a number or a list of numbers of one shape."""
    table = next(dataset.iter(batch_size=1))
    found = []
    for name in dataset.column_names:
        try:
            _numbers(name, table.column(name).combine_chunks())
        except (EncodingError, ConfigurationError):
            continue
        found.append(name)
    return found


def _check_columns(dataset: Any, columns: list[str]) -> None:
    missing = [name for name in columns if name not in dataset.column_names]
    if missing:
        raise ConfigurationError(f"expected columns of {sorted(dataset.column_names)}, got {missing}")


def _tables(dataset: Any) -> Iterator[Any]:
    """Yields Arrow tables of about 16 MiB each."""
    row = max(1, next(dataset.iter(batch_size=1)).nbytes)
    yield from dataset.iter(batch_size=max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // row)))


def _numbers(name: str, column: Any) -> tuple[Element, Array]:
    """The values of an Arrow column as an array [rows, ...], and their element type."""
    shape: list[int] = [len(column)]
    while True:
        if hasattr(column, "storage"):  # an extension type, such as Array2D
            column = column.storage
            continue
        if column.null_count:
            raise ConfigurationError(f"column {name}: expected a value in every row, got none in some")
        if not hasattr(column, "value_lengths"):
            break
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) != 1:
            raise ConfigurationError(
                f"column {name}: expected lists of one length, got {lengths[0]} to {lengths[-1]}; choose other columns"
            )
        shape.append(int(lengths[0]))
        column = column.flatten()
    values = np.asarray(column.to_numpy(zero_copy_only=False))
    element, big_endian = of_numpy(values.dtype.str)
    if big_endian:  # pragma: no cover - Arrow's are the machine's own
        raise ConfigurationError(f"column {name}: expected little-endian numbers")
    stored = values.view(np.uint8) if element == Element.BOOL else values
    return element, stored.reshape(shape)


def _library() -> Any:
    try:
        import datasets  # noqa: PLC0415 - optional, and takes a second
    except ImportError as error:
        raise ConfigurationError("expected the library datasets; install it: pip install 'tiebreak[hf]'") from error
    return datasets
