"""Columns of datasets of Hugging Face's library `datasets` as arrays.

They are Arrow tables, which that library maps and reads in batches. A column of numbers, or of lists of numbers that
all have one shape, becomes an array.
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from tiebreak.engine.data.elements import Array, Element, of_numpy
from tiebreak.protocol.errors import ConfigurationError, EncodingError

BATCH_BYTES: Final = 1 << 24
MAX_BATCH_ROWS: Final = 4096


def arrays(dataset: Any, wanted: Iterable[str]) -> dict[str, Array]:
    """The columns of a `datasets.Dataset` in memory, as float32 or int64: those wanted, or all that are numbers.

    Of a dataset with a format, those that it shows. Raises `ConfigurationError` if it has no rows.
    """
    if len(dataset) == 0:
        raise ConfigurationError("expected at least one example, got none in the dataset")
    form = dataset.format
    shown = dataset.column_names if form["output_all_columns"] else form["columns"]
    found = dataset.select_columns(shown).with_format("arrow")
    row = next(found.iter(batch_size=1))
    columns = [name for name in wanted if name in shown] or [name for name in shown if _is_numeric(name, row)]
    parts: dict[str, list[Array]] = {name: [] for name in columns}
    chosen = found.select_columns(columns)
    # Arrow tables of about 16 MiB each.
    rows = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // max(1, next(chosen.iter(batch_size=1)).nbytes)))
    for table in chosen.iter(batch_size=rows):
        for name in columns:
            element, values = _numbers(name, table.column(name).combine_chunks())
            parts[name].append(element.convert(values))
    return {name: np.concatenate(part) for name, part in parts.items()}


def makes_rows(dataset: Any) -> bool:
    """Whether reading a `datasets.Dataset` computes its rows, by a transform or in a dtype that the user chose."""
    form = getattr(dataset, "format", None)
    return isinstance(form, dict) and (form["type"] == "custom" or "dtype" in form["format_kwargs"])


def _is_numeric(name: str, row: Any) -> bool:
    """Whether a column's value in a table of one row is a number or a list of numbers of one shape."""
    try:
        _numbers(name, row.column(name).combine_chunks())
    except (EncodingError, ConfigurationError):
        return False
    return True


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
    return element, (values.view(np.uint8) if element == Element.BOOL else values).reshape(shape)
