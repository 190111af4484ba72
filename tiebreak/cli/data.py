"""`tiebreak data`: converts datasets into arrays that tasks map, and shows the ids of arrays."""

from pathlib import Path

import click

from tiebreak import api
from tiebreak.cli import options as opt
from tiebreak.protocol.errors import ConfigurationError, own_file


@click.group()
def data() -> None:
    """Import datasets, and show the ids of arrays.

    A job commits to its data by their ids. Data stay on the disk: an array of any size is read in blocks to compute its
    id, and a run maps it into memory and reads what each batch needs. `import` makes such arrays of arrays of other
    types; `root` shows the id of each array.
    """


@data.command(name="import")
@click.argument("files", nargs=-1, required=True, type=opt.NEW_FILE)
@click.option("--dtype", help="The files are raw bytes of this numpy type, such as <u2 or |u1.")
@click.option("--offset", type=click.IntRange(0), default=0, help="First byte of raw bytes.")
@click.option("--shape", help="Shape of raw bytes, such as 60000,28,28.  [default: one dimension]")
@opt.output_option("imported.safetensors", "New .safetensors file for the arrays.", kind=opt.NEW_FILE)
def import_arrays(files: tuple[Path, ...], dtype: str | None, offset: int, shape: str | None, output: Path) -> None:
    """Import FILES of arrays, or raw bytes, as data of tasks.

    FILES are .npy, .safetensors (all entries) or raw bytes. They become arrays that tasks map into memory. A job's data
    are float32 and int64, so that is what every array becomes, in one new file; the sources stay. float16, bfloat16 and
    integers of any width are converted exactly, float64 is rounded to nearest. An int64 takes 8 bytes on disk: tokens
    of 2 bytes grow fourfold. Arrays are named after their files, or as in a .safetensors file. Objects (pickled data)
    are refused. A task then says

        data="imported.safetensors"

    and reads from the disk what each batch needs of it. Imports take little memory, whatever the size.
    """
    with own_file():
        api.importing.import_files(files, output, dtype=dtype, offset=offset, shape=_shape(shape))
    _show(output, cached=False)


@data.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--no-cache", is_flag=True, help="Compute the ids again, whatever the cache has.")
@opt.json_option
def root(paths: tuple[Path, ...], no_cache: bool, as_json: bool) -> None:
    """Show name, type, shape and id of the arrays in PATHS.

    PATHS are .npy and .safetensors files. The id is what a job commits to: the root of the array's chunks, with its
    type and shape. It is computed once for each file and kept in the cache as long as the file does not change.
    """
    with own_file():
        if not as_json:
            for path in paths:
                _show(path, cached=not no_cache)
            return
        found = [one for path in paths for one in api.importing.facts(path, cached=not no_cache)]
    opt.tell([{"name": name, "type": array.element, "shape": array.shape, "id": facts.identity.hex(),
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
