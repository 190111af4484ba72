"""`tiebreak data`: converts datasets into arrays that tasks map, and shows the ids of arrays."""

from pathlib import Path
from typing import Any

import click

from tiebreak import api
from tiebreak.cli.options import NEW_FILE, json_option, options, output_option, tell
from tiebreak.protocol.errors import ConfigurationError

CUTS = ("files", "lines", "paragraphs")


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

        data=tiebreak.api.data.load_arrays("imported")

    and reads from the disk what each batch needs of it. Imports take little memory, whatever the size.
    """


@import_group.command(name="arrays")
@click.argument("files", nargs=-1, required=True, type=NEW_FILE)
@click.option("--dtype", help="The files are raw bytes of this numpy type, such as <u2 or |u1.")
@click.option("--offset", type=click.IntRange(0), default=0, help="First byte of raw bytes.")
@click.option("--shape", help="Shape of raw bytes, such as 60000,28,28.  [default: one dimension]")
@output_option("imported", "New or empty folder for the arrays.")
def arrays(files: tuple[Path, ...], dtype: str | None, offset: int, shape: str | None, output: Path) -> None:
    """Import .npy files, all entries of .safetensors FILES, or raw bytes.

    float16, bfloat16 and integers of any width are converted exactly, float64 is rounded to nearest. Arrays are named
    after their files, or as in a .safetensors file. Objects (pickled data) are refused.
    """
    api.importing.import_files(files, output, dtype=dtype, offset=offset, shape=_shape(shape))
    _show(output, cached=False)


_token_options = options(
    click.option("--tokenizer", type=NEW_FILE, help="A tokenizer.json.  [default: tokens are bytes]"),
    click.option("--separator", help="Token after each text (without a tokenizer: text, such as a line end)."),
    click.option("--rows", type=click.IntRange(1), help="Give each text a row of this many tokens; keep its length."),
    click.option("--padding", help="Token for the rest of a row (without a tokenizer: a character of one byte)."),
)
"""The options that all imports of texts share."""


@import_group.command(name="text")
@click.argument("files", nargs=-1, required=True, type=NEW_FILE)
@click.option("--cut", type=click.Choice(CUTS), default="files", show_default=True, help="The parts that are texts.")
@_token_options
@output_option("imported", "New or empty folder for the arrays.")
def text(files: tuple[Path, ...], cut: str, output: Path, **settings: Any) -> None:
    """Import UTF-8 text FILES as tokens.

    Without --rows: one array `tokens`, all texts one after the other, for windows. With it: `tokens` with a row for
    each text, and `lengths`. A text is tokenized as a whole and has at most 4 MiB: cut larger files into lines or
    paragraphs. Empty texts are left out.
    """
    counts = api.importing.import_text(files, output, cut=cut, settings=settings)
    _show_counts(counts.texts, counts.tokens, counts.cut)
    _show(output, cached=False)


@import_group.command(name="hf")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--split", help="The dataset to import, if FOLDER holds several, such as train.")
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
    counts = api.importing.import_dataset(
        folder, output, split=split, columns=columns, text=text_column, settings=settings
    )
    if counts is not None:
        _show_counts(counts.texts, counts.tokens, counts.cut)
    _show(output, cached=False)


@data.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--no-cache", is_flag=True, help="Compute the ids again, whatever the cache has.")
@json_option
def root(paths: tuple[Path, ...], no_cache: bool, as_json: bool) -> None:
    """Show name, type, shape and id of the arrays in PATHS: .npy and .safetensors files, and imported folders.

    The id is what a job commits to: the root of the array's chunks, with its type and shape. It is computed once for
    each file and kept in the cache as long as the file does not change.
    """
    if not as_json:
        for path in paths:
            _show(path, cached=not no_cache)
        return
    found = [one for path in paths for one in api.importing.facts(path, cached=not no_cache)]
    tell([{"name": name, "type": array.element, "shape": array.shape, "id": facts.identity.hex(),
           "not_finite": facts.not_finite} for name, array, facts in found], as_json=True)  # fmt: skip


def _shape(given: str | None) -> tuple[int, ...] | None:
    try:
        return None if given is None else tuple(int(part) for part in given.split(","))
    except ValueError as error:
        raise ConfigurationError(f"expected a shape such as 60000,28,28, got {given!r}") from error


def _show(path: Path, *, cached: bool) -> None:
    """Prints a line for each array, whose id is computed now unless it is cached."""
    for name, array, facts in api.importing.facts(path, cached=cached):
        shape = " x ".join(map(str, array.shape)) or "one"
        note = f"  {facts.not_finite} not finite: no task takes it" if facts.not_finite else ""
        click.echo(f"{name:<20}{array.element:<6}{shape:<24}{facts.identity.hex()}{note}")


def _show_counts(texts: int, tokens: int, cut: int) -> None:
    click.echo(f"{texts} texts, {tokens} tokens{f', {cut} cut off at the length of a row' if cut else ''}")
