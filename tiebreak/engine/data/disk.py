"""Files that appear whole or not at all, and reading of files that may be a stranger's."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path

from safetensors import SafetensorError

from tiebreak.protocol.errors import ConfigurationError, EncodingError


class StorageError(ConfigurationError):
    """The disk refused: full, read-only, or not there. What was committed before is intact."""


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Raises what the disk has against writing there as `StorageError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"cannot write {path}: {error}. Nothing committed is lost; free or change the disk and run again to resume"
        ) from error


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that becomes `path`, durably, when the block succeeds."""
    temporary = path.with_name(f".{path.name}.part")
    with storing(path):
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_file(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all. Raises `StorageError`."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_whole(file: RawIOBase, data: memoryview) -> None:
    """Writes all of it: the system writes at most 2 GiB at once, and less when the disk fills up."""
    while data:
        data = data[file.write(data) or 0 :]


def read_file(path: Path, limit: int) -> bytes:
    """Reads a file of at most `limit` bytes. Raises `EncodingError` if it is missing, larger or no plain file."""
    try:
        size_within(path, limit)
        return path.read_bytes()
    except OSError as error:
        raise EncodingError(f"{path}: cannot be read: {error}") from error


def size_within(path: Path, limit: int) -> int:
    """Bytes of a plain file. Raises `EncodingError` if it is missing, larger than `limit` or no plain file."""
    try:
        size = plain_size(path)
    except OSError as error:
        raise EncodingError(f"{path}: cannot be read: {error}") from error
    if size > limit:
        raise EncodingError(f"{path}: expected at most {limit} bytes, got {size}")
    return size


def plain_size(path: Path) -> int:
    """Bytes of a plain file. A stranger's folder may hold a pipe, which blocks, or a link to an endless device."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise EncodingError(f"{path}: expected a plain file, got another kind")
    return found.st_size
