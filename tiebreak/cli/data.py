"""`tiebreak data`: datasets to arrays that a task maps, and the ids of arrays."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tiebreak.api.datasets import hugging_face
from tiebreak.api.datasets.arrays import import_arrays
from tiebreak.api.datasets.folder import OnBytes, importing, open_folder
from tiebreak.api.datasets.text import CUTS, LENGTHS, TOKENS, Counts, Layout, import_texts
from tiebreak.api.datasets.tokenizing import ByteTokens, TokenizerFile, Tokens
from tiebreak.cli.options import output_option
from tiebreak.engine.data import ArrayFile, FactsCache, examine, open_npy, open_raw, open_safetensors
from tiebreak.protocol.errors import ConfigurationError

FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def data() -> None:
    """Import datasets, and show the ids of arrays.

    A job commits to its data by their ids. Data stay on the disk: an array of any size is read in blocks to compute its
    id, and a run maps it into memory and reads what each batch needs. `import` makes such arrays of arrays of other
    types, of text, and of datasets of Hugging Face's `datasets`; `root` shows the id of each array.
    """


@data.group(name="import")
def import_group() -> None:
    """Convert a dataset, once, to arrays that tasks map into memory.

    A job's data are float32 and int64, so that is what every array becomes, in a new folder; the source stays as it is.
    An int64 takes 8 bytes on disk: tokens of 2 bytes grow fourfold. A task then says

        data=tiebreak.api.datasets.load_arrays("imported")

    and reads from the disk what each batch needs of it. Imports take little memory, whatever the size.
    """


@import_group.command(name="arrays")
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("--dtype", help="The files are raw bytes of this numpy type, such as <u2 or |u1.")
@click.option("--offset", type=click.IntRange(0), default=0, help="First byte of raw bytes.")
@click.option("--shape", help="Shape of raw bytes, such as 60000,28,28.  [default: one dimension]")
@output_option("imported", "New or empty folder for the arrays.")
def arrays(files: tuple[Path, ...], dtype: str | None, offset: int, shape: str | None, output: Path) -> None:
    """Import .npy files, all entries of .safetensors FILES, or raw bytes.

    float16, bfloat16 and integers of any width are converted exactly, float64 is rounded to nearest. Arrays are named
    after their files, or as in a .safetensors file. Objects (pickled data) are refused.
    """
    found: dict[str, ArrayFile] = {}
    for path in files:
        for name, array in _named(path, dtype, offset, _shape(shape)).items():
            if name in found:
                raise ConfigurationError(f"expected each array once, got {name} in {found[name].path} and in {path}")
            found[name] = array
    source = {"kind": "arrays", "files": [path.name for path in files]}
    total = sum(array.nbytes for array in found.values())
    with importing(output, source) as made, _progress("importing", total) as on_bytes:
        import_arrays(made, found, on_bytes)
    _show(open_folder(output), cache=None)


def _token_options(function: Any) -> Any:
    """The options that texts share."""
    for option in reversed(
        (
            click.option("--tokenizer", type=FILE, help="A tokenizer.json.  [default: tokens are bytes]"),
            click.option("--separator", help="Token after each text (without a tokenizer: text, such as a line end)."),
            click.option("--rows", type=click.IntRange(1), help="One row of this length for each text, and lengths."),
            click.option("--padding", help="Token that fills rows up (without a tokenizer: a character of one byte)."),
        )
    ):
        function = option(function)
    return function


@import_group.command(name="text")
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("--cut", type=click.Choice(list(CUTS)), default="files", show_default=True, help="What is one text.")
@_token_options
@output_option("imported", "New or empty folder for the arrays.")
def text(files: tuple[Path, ...], cut: str, output: Path, **settings: Any) -> None:
    """Import UTF-8 text FILES as tokens.

    Without --rows: one array `tokens`, all texts one after the other, for windows. With it: `tokens` with a row for
    each text, and `lengths`. A text is tokenized as a whole and has at most 4 MiB: cut larger files into lines or
    paragraphs. Empty texts are left out.
    """
    tokens, layout = _tokens(**settings)
    source = {"kind": "text", "files": [path.name for path in files], "cut": cut} | _described(tokens, settings)
    total = sum(path.stat().st_size for path in files if path.is_file())
    with importing(output, source) as made, _progress("importing", total) as on_bytes:
        counts = import_texts(made, CUTS[cut](files, on_bytes), tokens, layout)
    _show_counts(counts)
    _show(open_folder(output), cache=None)


@import_group.command(name="hf")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--split", help="Which dataset of several, such as train.")
@click.option("--column", "columns", multiple=True, help="A column of numbers; may be repeated.  [default: all]")
@click.option("--text", "text_column", help="A column of texts, which become tokens.")
@_token_options
@output_option("imported", "New or empty folder for the arrays.")
def hf(
    folder: Path, split: str | None, columns: tuple[str, ...], text_column: str | None, output: Path, **settings: Any
) -> None:
    """Import a dataset that Hugging Face's `datasets` saved in FOLDER with save_to_disk.

    Columns of numbers, and of lists of numbers of one shape, become arrays of the columns' names; row i of each is
    example i. Needs the extra tiebreak[hf].
    """
    dataset = hugging_face.open_dataset(folder, split)
    if text_column is not None and columns and settings["rows"] is None:
        raise ConfigurationError("expected --rows with --column and --text, so that row i of each array is example i")
    tokens, layout = _tokens(**settings)
    chosen = list(dict.fromkeys(columns)) or ([] if text_column is not None else hugging_face.numeric_columns(dataset))
    source = {"kind": "hf", "split": split, "columns": chosen, "text": text_column} | _described(tokens, settings)
    if text_column is not None and (taken := {TOKENS, LENGTHS} & set(chosen)):
        raise ConfigurationError(f"expected other names than those of the tokens, got {sorted(taken)}; rename columns")
    passes = bool(chosen) + (text_column is not None)
    with importing(output, source) as made, _progress("importing", passes * len(dataset)) as on_rows:
        if chosen:
            hugging_face.import_columns(made, dataset, chosen, on_rows)
        if text_column is not None:
            found = hugging_face.texts(dataset, text_column, on_rows)
            _show_counts(import_texts(made, found, tokens, layout, keep_empty=layout.rows is not None))
    _show(open_folder(output), cache=None)


@data.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--no-cache", is_flag=True, help="Read every byte, whatever was read before.")
def root(paths: tuple[Path, ...], no_cache: bool) -> None:
    """Show name, type, shape and id of the arrays in PATHS: .npy and .safetensors files, and imported folders.

    The id is what a job commits to: the root of the array's chunks, with its type and shape. It is computed once for
    each file and kept in the cache as long as the file does not change.
    """
    for path in paths:
        found = open_folder(path) if path.is_dir() else _named(path, None, 0, None)
        _show(found, cache=None if no_cache else FactsCache())


def _named(path: Path, dtype: str | None, offset: int, shape: tuple[int, ...] | None) -> dict[str, ArrayFile]:
    """The arrays of a file, by name."""
    if dtype is not None:
        return {path.stem: open_raw(path, dtype, shape, offset)}
    if shape is not None or offset:
        raise ConfigurationError("expected --dtype with --shape and --offset, which are for raw bytes")
    if path.suffix == ".safetensors":
        return open_safetensors(path)
    if path.suffix != ".npy":
        raise ConfigurationError(f"expected .npy, .safetensors, or --dtype for raw bytes, got {path}")
    return {path.stem: open_npy(path)}


def _shape(given: str | None) -> tuple[int, ...] | None:
    try:
        return None if given is None else tuple(int(part) for part in given.split(","))
    except ValueError as error:
        raise ConfigurationError(f"expected a shape such as 60000,28,28, got {given!r}") from error


def _tokens(
    tokenizer: Path | None, separator: str | None, rows: int | None, padding: str | None
) -> tuple[Tokens, Layout]:
    """What the options of texts ask for."""
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


def _show(found: dict[str, ArrayFile], cache: FactsCache | None) -> None:
    """A line for each array; its id is computed now if need be."""
    for name, array in found.items():
        with _progress(f"reading {name}", array.nbytes) as on_bytes:
            facts = examine(array, cache=cache, on_bytes=on_bytes)
        shape = " x ".join(map(str, array.shape)) or "one"
        note = f"  {facts.not_finite} not finite: no task takes it" if facts.not_finite else ""
        click.echo(f"{name:<20}{array.element:<6}{shape:<24}{facts.identity.hex()}{note}")


def _show_counts(counts: Counts) -> None:
    cut = f", {counts.cut} cut off at the row's length" if counts.cut else ""
    click.echo(f"{counts.texts} texts, {counts.tokens} tokens{cut}")


@contextmanager
def _progress(title: str, total: int) -> Iterator[OnBytes]:
    """A bar on a terminal's standard error; elsewhere nothing."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=32), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(title, total=total)
        yield lambda more: progress.update(bar, advance=more)
