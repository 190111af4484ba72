"""Imports of datasets into folders of arrays, as `tiebreak data` makes them, and the ids of arrays."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tiebreak.api.data.folder import Import, OnBytes, importing, open_folder
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


@contextmanager
def _progress(title: str, total: int) -> Iterator[OnBytes]:
    """Shows a bar if standard error is a terminal, and nothing otherwise."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=32), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(title, total=total)
        yield lambda more: progress.update(bar, advance=more)
