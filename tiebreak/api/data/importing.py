"""Imports of arrays, as `tiebreak data` makes them, and the ids of arrays.

    tiebreak data import tokens.npy -o corpus.safetensors

    Task(data="corpus.safetensors", batch=Batch(size=8, examples=Windows(name="tokens", length=65, stride=64)), ...)

An import converts arrays of any type to float32 and int64. It takes little memory and is needed only once: every task
maps the file and reads the parts that it uses.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from tiebreak.engine.data import ArrayFile, Element, FactsCache, examine, open_npy, open_raw, open_safetensors
from tiebreak.engine.data.disk import Folder, write_whole
from tiebreak.engine.data.facts import Facts
from tiebreak.engine.data.formats import ordered, safetensors_header
from tiebreak.protocol.errors import ConfigurationError


def import_files(
    files: tuple[Path, ...], output: Path, *, dtype: str | None, offset: int, shape: tuple[int, ...] | None
) -> None:
    """Imports arrays into a new .safetensors file. dtype, offset (in bytes), shape: for raw bytes only.

    An array of rank 0 becomes one of shape [1]. The file appears whole or not at all. Raises `ConfigurationError`, and
    `StorageError` if the disk fails.
    """
    if output.exists() or output.suffix != ".safetensors":
        raise ConfigurationError(f"expected a new file that ends in .safetensors, got {output}; choose another")
    found: dict[str, ArrayFile] = {}
    for path in files:
        for name, array in _named(path, dtype, offset, shape).items():
            if name in found:
                raise ConfigurationError(f"expected each array once, got {name} in {found[name].path} and in {path}")
            found[name] = array
    kinds = {name: (Element[array.element.converted.name], array.shape or (1,)) for name, array in found.items()}
    total = sum(array.nbytes for array in found.values())
    with (
        Folder(output.absolute().parent, to_write=True) as folder, folder.replacing(output.name) as file,
        _progress("importing", total) as on_bytes,
    ):  # fmt: skip
        write_whole(file, memoryview(safetensors_header(kinds)))
        for name in ordered(kinds):
            array = found[name]
            for block in array.blocks():
                values = array.element.convert(array.element.read(block, big_endian=array.big_endian))
                write_whole(file, memoryview(np.ascontiguousarray(values).view(np.uint8).data))
                on_bytes(len(block))


def facts(path: Path, *, cached: bool) -> Iterator[tuple[str, ArrayFile, Facts]]:
    """The arrays of a file, by name. cached: accept facts from an earlier read."""
    cache = FactsCache() if cached else None
    for name, array in _named(path, None, 0, None).items():
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
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar if standard error is a terminal, and nothing otherwise. Takes the number of further bytes read."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(title, total=total)
        yield lambda more: progress.update(bar, advance=more)
