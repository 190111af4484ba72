"""Imports of datasets into folders of arrays, as `tiebreak data` makes them, and the ids of arrays."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tiebreak.api.data import hugging_face
from tiebreak.api.data.folder import Import, OnBytes, importing, open_folder
from tiebreak.api.data.text import CUTS, LENGTHS, TOKENS, ImportCounts, Layout, import_texts
from tiebreak.api.data.tokenizing import ByteTokens, TokenizerFile, Tokens
from tiebreak.engine.data import ArrayFile, FactsCache, examine, open_npy, open_raw, open_safetensors
from tiebreak.engine.data.facts import Facts
from tiebreak.protocol.errors import ConfigurationError


def import_files(
    files: tuple[Path, ...], output: Path, *, dtype: str | None, offset: int, shape: tuple[int, ...] | None
) -> None:
    """Imports array files, converted to float32 and int64. dtype, offset (in bytes), shape: for raw bytes only."""
    found: dict[str, ArrayFile] = {}
    for path in files:
        for name, array in _named(path, dtype, offset, shape).items():
            if name in found:
                raise ConfigurationError(f"expected each array once, got {name} in {found[name].path} and in {path}")
            found[name] = array
    source = {"kind": "arrays", "files": [path.name for path in files]}
    total = sum(array.nbytes for array in found.values())
    with importing(output, source) as made, _progress("importing", total) as on_bytes:
        import_arrays(made, found, on_bytes)


def import_arrays(made: Import, arrays: Mapping[str, ArrayFile], on_bytes: OnBytes) -> None:
    """Writes each array as float32 or int64 (see `data.elements`). An array of rank 0 becomes one of shape [1]."""
    for name, array in arrays.items():
        writer = made.array(name, array.element.converted, array.shape[1:])
        for block in array.blocks():
            writer.extend(array.element.convert(array.element.read(block, big_endian=array.big_endian)))
            on_bytes(len(block))


def import_text(files: tuple[Path, ...], output: Path, *, cut: str, settings: dict[str, Any]) -> ImportCounts:
    """Imports text files as tokens. cut: a key of `CUTS`. settings: tokenizer, separator, rows, padding."""
    tokens, layout = _tokens(**settings)
    source = {"kind": "text", "files": [path.name for path in files], "cut": cut} | _described(tokens, settings)
    total = sum(path.stat().st_size for path in files if path.is_file())
    with importing(output, source) as made, _progress("importing", total) as on_bytes:
        return import_texts(made, CUTS[cut](files, on_bytes), tokens, layout)


def import_dataset(
    folder: Path, output: Path, *, split: str | None, columns: tuple[str, ...], text: str | None,
    settings: dict[str, Any],
) -> ImportCounts | None:  # fmt: skip
    """Imports a dataset of Hugging Face's library: numeric columns [default: all], and at most one column of texts.

    Returns the counts of the texts, or None if no column of texts was asked for.
    """
    dataset = hugging_face.open_dataset(folder, split)
    if text is not None and columns and settings["rows"] is None:
        raise ConfigurationError("expected --rows with --column and --text, so that row i of each array is example i")
    tokens, layout = _tokens(**settings)
    chosen = list(dict.fromkeys(columns)) or ([] if text is not None else hugging_face.numeric_columns(dataset))
    source = {"kind": "hf", "split": split, "columns": chosen, "text": text} | _described(tokens, settings)
    if text is not None and (taken := {TOKENS, LENGTHS} & set(chosen)):
        raise ConfigurationError(f"expected other names than those of the tokens, got {sorted(taken)}; rename columns")
    passes = bool(chosen) + (text is not None)
    with importing(output, source) as made, _progress("importing", passes * len(dataset)) as on_rows:
        if chosen:
            hugging_face.import_columns(made, dataset, chosen, on_rows)
        if text is None:
            return None
        found = hugging_face.texts(dataset, text, on_rows)
        return import_texts(made, found, tokens, layout, keep_empty=layout.rows is not None)


def facts(path: Path, *, cached: bool) -> Iterator[tuple[str, ArrayFile, Facts]]:
    """The arrays of a file or an imported folder, by name. cached: accept facts from an earlier read."""
    cache = FactsCache() if cached else None
    for name, array in (open_folder(path) if path.is_dir() else _named(path, None, 0, None)).items():
        with _progress(f"reading {name}", array.nbytes) as on_bytes:
            found = examine(array, cache=cache, on_bytes=on_bytes)
        yield name, array, found


def _named(path: Path, dtype: str | None, offset: int, shape: tuple[int, ...] | None) -> dict[str, ArrayFile]:
    if dtype is not None:
        return {path.stem: open_raw(path, dtype, shape, offset)}
    if shape is not None or offset:
        raise ConfigurationError("expected --dtype with --shape and --offset, which are for raw bytes")
    if path.suffix == ".safetensors":
        return open_safetensors(path)
    if path.suffix != ".npy":
        raise ConfigurationError(f"expected .npy, .safetensors, or --dtype for raw bytes, got {path}")
    return {path.stem: open_npy(path)}


def _tokens(
    tokenizer: Path | None, separator: str | None, rows: int | None, padding: str | None
) -> tuple[Tokens, Layout]:
    """The tokenizer and the layout that the options for texts ask for."""
    tokens: Tokens = ByteTokens() if tokenizer is None else TokenizerFile(tokenizer)
    fill = None if padding is None else tokens.special(padding)
    if fill is not None and len(fill) != 1:
        raise ConfigurationError(f"expected a padding of one token, got {len(fill)}")
    return tokens, Layout(
        separator=None if separator is None else tokens.special(separator),
        rows=rows,
        padding=None if fill is None else int(fill[0]),
    )


def _described(tokens: Tokens, settings: dict[str, Any]) -> dict[str, Any]:
    return tokens.description | {name: settings[name] for name in ("separator", "rows", "padding")}


@contextmanager
def _progress(title: str, total: int) -> Iterator[OnBytes]:
    """Shows a bar if standard error is a terminal, and nothing otherwise."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=32), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(title, total=total)
        yield lambda more: progress.update(bar, advance=more)
