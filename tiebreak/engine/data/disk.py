"""Access to folders and files that a stranger may have prepared, and files that appear whole or not at all.

A stranger's folder may hold a symbolic link or a second name (hard link) for a file of the user's, a pipe that blocks
whoever opens it, or a device. All reads and writes in such a folder therefore go through `Folder`:

* every name is a single component, resolved relative to the descriptor of its folder and never through a link, so that
  nobody can exchange a folder between a check and a use. Windows has no such descriptors: there a name is refused if it
  is a link, and an open file if it is not the one that was checked;
* only plain files are opened; they are checked before opening (opening a device may have effects) and again after it;
* a new file is created under an unused name (`O_EXCL`) and takes its final name when it is complete;
* a file is changed in place only if it has no second name, which might belong to a file that is not ours.

The path that a user gives may lead through links: that is the user's own choice.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final, Self

from tiebreak.engine import system
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError

_OTHERS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFREG: "a plain file",
}


class StorageError(ConfigurationError):
    """The disk is full, read-only or missing. Everything that was committed before is intact."""


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turns errors of the disk while writing there into `StorageError`."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error}. Nothing committed is lost; free or change the disk and run again to resume"
        ) from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EncodingError(f"{path}: cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Stamp:
    """File attributes that change when the file does. Times are in nanoseconds; only the system can set `changed`."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, file: FileIO) -> "Stamp":
        found = os.fstat(file.fileno())
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _expect(path: Path, kind: int, found: os.stat_result) -> os.stat_result:
    got = stat.S_IFLNK if system.is_link(found) else stat.S_IFMT(found.st_mode)
    if got != kind:
        raise EncodingError(f"{path}: expected {_OTHERS[kind]}, got {_OTHERS.get(got, 'a device')}")
    return found


@contextmanager
def opened(path: Path) -> Iterator[tuple[FileIO, Stamp]]:
    """Opens a plain file (or the target of a link to one) for reading. Raises `EncodingError` for anything else."""
    with _reading(path):
        _expect(path, stat.S_IFREG, path.stat())
        with FileIO(os.open(path, os.O_RDONLY | system.OPEN)) as file:
            _expect(path, stat.S_IFREG, os.fstat(file.fileno()))
            yield file, Stamp.of(file)


class Folder:
    """An open folder, to be closed by `with`.

    Raises `EncodingError` for anything that is not a plain file or cannot be read, and `StorageError` if the disk
    refuses to write.
    """

    def __init__(self, path: Path, *inside: str, to_write: bool = False) -> None:
        """Opens the folder at a path, or a folder inside it, which must not be reached through a link.

        to_write: blames a missing folder on the disk (`StorageError`) and not on the sender of the files.
        """
        opening = storing if to_write else _reading
        self.path = path
        with opening(path):
            self._handle = system.open_folder(path)
        for name in inside:
            outer = self._handle
            try:
                with opening(self.path / name):
                    _expect(self.path / name, stat.S_IFDIR, self._status(name))
                    self._handle = system.open_folder(self._at(name), outer)
            finally:
                self.path = self.path / name
                _close(outer)

    @classmethod
    def make(cls, path: Path) -> "Folder":
        """Opens the folder at a path, after making it and its parents if necessary, each durably."""
        with storing(path):
            made = [path, *(parent for parent in path.parents if not parent.exists())]
            path.mkdir(parents=True, exist_ok=True)
        for folder in made:  # its name is in the folder above; that of `path` too, which a killed process may have made
            with cls(folder.parent, to_write=True) as above:
                above.sync()
        return cls(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._handle)

    def add(self, name: str) -> None:
        """Makes a folder in this one. The name must be new."""
        with storing(self.path / name):
            os.mkdir(self._at(name), dir_fd=self._handle)

    def names(self) -> list[str]:
        """The sorted names of the folder's content."""
        with _reading(self.path):
            return sorted(os.listdir(self._here))  # noqa: PTH208 - of the descriptor

    def holds(self, name: str) -> bool:
        """Whether anything of this name exists."""
        try:
            self._status(name)
        except FileNotFoundError:
            return False
        return True

    def check(self) -> None:
        """Raises `EncodingError` if the folder holds anything but plain files and folders."""
        with _reading(self.path), os.scandir(self._here) as entries:
            for entry in entries:
                if not entry.is_file(follow_symlinks=False) and not system.is_folder(entry):
                    _expect(self.path / entry.name, stat.S_IFREG, self._status(entry.name))

    def size(self, name: str, limit: int | None = None) -> int:
        """The size of a plain file in bytes.

        Raises `EncodingError` if it is missing, larger than `limit`, or not a plain file.
        """
        path = self.path / name
        with _reading(path):
            size = _expect(path, stat.S_IFREG, self._status(name)).st_size
        if limit is not None and size > limit:
            raise EncodingError(f"{path}: expected at most {limit} bytes, got {size}")
        return size

    @contextmanager
    def reading(self, name: str) -> Iterator[tuple[FileIO, Stamp]]:
        """Opens a plain file for reading."""
        with _reading(self.path / name), self._open(name, os.O_RDONLY) as file:
            yield file, Stamp.of(file)

    def read(self, name: str, limit: int) -> bytes:
        """A whole file of at most `limit` bytes."""
        with self.reading(name) as (file, stamp):
            return _whole(self.path / name, file, stamp, limit)

    @contextmanager
    def changing(self, name: str, *, make: bool = False) -> Iterator[FileIO]:
        """Opens a plain file to be changed in place. make: creates an empty one if there is none of this name."""
        with storing(self.path / name), self._open_to_change(name, make=make) as file:
            yield file

    @contextmanager
    def replacing(self, name: str) -> Iterator[FileIO]:
        """A new file that takes this name, durably, when the block succeeds; until then the old file stays."""
        part = f".{name}.part"
        with storing(self.path / name):
            if self.holds(name):
                _expect(self.path / name, stat.S_IFREG, self._status(name))
            self.remove(part)
            try:
                with self._open(part, os.O_RDWR, new=True) as file:
                    yield file
                    system.synced(file.fileno())
                self._replace(part, name)
            finally:
                self.remove(part)

    def write(self, name: str, content: bytes) -> None:
        """Writes a whole file or nothing."""
        with self.replacing(name) as file:
            write_whole(file, memoryview(content))

    def rename(self, part: str, name: str) -> None:
        """Gives a file its final name, durably, in place of the file that had it."""
        with storing(self.path / name):
            with self._open(part, os.O_RDONLY) as file:
                system.synced(file.fileno())
            self._replace(part, name)

    def sync(self) -> None:
        """Makes the present names of the folder's content durable, but not the content."""
        with storing(self.path):
            if self._handle is not None:
                system.synced(self._handle)

    def remove(self, name: str) -> None:
        """Removes a name if it exists: of a link only the link, of a file with several names only this one."""
        with storing(self.path / name), suppress(FileNotFoundError):
            os.unlink(self._at(name), dir_fd=self._handle)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the folder while a process writes into it. Raises `StateError` if another process holds the lock."""
        with storing(self.path):
            file = self._open_to_change(".lock", make=True)
        with file:
            try:
                system.lock(file)
            except BlockingIOError as error:
                raise StateError(f"{self.path}: another process is working in this folder") from error
            yield

    @property
    def _here(self) -> int | Path:
        return self.path if self._handle is None else self._handle

    def _at(self, name: str) -> str | Path:
        """The path to a name of this folder: from its descriptor, the name."""
        return self.path / name if self._handle is None else name

    def _replace(self, part: str, name: str) -> None:
        os.replace(self._at(part), self._at(name), src_dir_fd=self._handle, dst_dir_fd=self._handle)
        self.sync()

    def _open_to_change(self, name: str, *, make: bool) -> FileIO:
        file = self._open(name, os.O_RDWR, new=make and not self.holds(name))
        if os.fstat(file.fileno()).st_nlink > 1:
            file.close()
            raise EncodingError(f"{self.path / name}: expected a file of one name, got one that has more (hard links)")
        return file

    def _status(self, name: str) -> os.stat_result:
        if name in ("", ".", "..") or not system.FORBIDDEN.isdisjoint(name):
            raise EncodingError(f"{self.path}: expected the name of a file in it, got {name!r}")
        return os.stat(self._at(name), dir_fd=self._handle, follow_symlinks=False)

    def _open(self, name: str, flags: int, *, new: bool = False) -> FileIO:
        path = self.path / name
        checked = None if new else _expect(path, stat.S_IFREG, self._status(name))
        flags |= system.NOFOLLOW | system.OPEN | (os.O_CREAT | os.O_EXCL if new else 0)
        file = FileIO(os.open(self._at(name), flags, 0o666, dir_fd=self._handle), "r+" if flags & os.O_RDWR else "r")
        try:
            found = _expect(path, stat.S_IFREG, os.fstat(file.fileno()))
            if self._handle is None and checked is not None and not os.path.samestat(checked, found):
                raise EncodingError(f"{path}: expected the file that was checked, got another in its place")
        except EncodingError:
            file.close()
            raise
        return file


def _close(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Makes a folder and its parents, where they are missing, each durably."""
    with Folder.make(path):
        pass


def read_exactly(file: FileIO, into: memoryview) -> int:
    """Fills the buffer from the file's position; returns the bytes read, fewer only at the end of the file."""
    done = 0
    while done < len(into) and (count := file.readinto(into[done:])):
        done += count
    return done


def write_whole(file: FileIO, data: memoryview) -> None:
    """Writes all of the data: one call of the system writes at most 2 GiB, and less when the disk fills up."""
    while data:
        data = data[file.write(data) or 0 :]


def write_file(path: Path, content: bytes) -> None:
    """Writes a whole file or nothing. Raises `StorageError`."""
    with storing(path), Folder(path.parent) as folder:
        folder.write(path.name, content)


def read_file(path: Path, limit: int) -> bytes:
    """Reads a file (or the target of a link to one) of at most `limit` bytes. Raises `EncodingError`."""
    with opened(path) as (file, stamp):
        return _whole(path, file, stamp, limit)


def _whole(path: Path, file: FileIO, stamp: Stamp, limit: int) -> bytes:
    if stamp.size > limit:
        raise EncodingError(f"{path}: expected at most {limit} bytes, got {stamp.size}")
    data = bytearray(stamp.size)
    return bytes(memoryview(data)[: read_exactly(file, memoryview(data))])
