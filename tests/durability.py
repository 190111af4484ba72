"""Power cuts: what a disk may show after one, at each operation of a product that stores something.

`PowerCuts(folder)` follows the files and folders below a folder while a test stores something there: the syncs,
renames, links and removals that the product asks the system for, and what it wrote in between. A disk owes nobody more
than this:

* a file has the content of its last sync, or what was written since, or the beginning of that. Its size never tells of
  bytes that were not written: file systems that keep a journal save data before the size that covers it;
* a folder has the names of its last sync; of the changes since, any may be there and any may be missing, in any order,
  but a rename is there as a whole;
* a file's sync does not save its name, and a folder's sync does not save the content of its files.

At each operation, before and after it, the object collects every such state as an image. The test lays each out again
and asks the product's own reader. What the product has returned by then (`acknowledge`) must be there; of what was
under way, all or nothing.
"""

import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, combinations
from pathlib import Path
from typing import Any, Final, Self

import pytest

ALL_SUBSETS: Final = 4
"""The number of unsynced changes of names up to which every subset is tried: beyond it, those that lack or have one."""

Entry = tuple[int, str]
"""A name in a folder, which is given by its inode."""
Change = dict[Entry, int | None]
"""What one operation puts under names: an inode, or None if it removes them."""
Store = Callable[[Path, Callable[[], None]], None]
"""Stores something in a folder, and calls the function each time the product has returned."""
Check = Callable[[Path, int], None]
"""Fails unless a folder holds what is stored when the product has returned so often, or more."""


@dataclass(frozen=True)
class Image:
    """What a disk may show after a power cut. `acknowledged`: how often the product had returned by then.

    files: content and the paths that lead to it, several for hard links.
    """

    acknowledged: int
    folders: frozenset[str]
    files: frozenset[tuple[tuple[str, ...], bytes]]

    @contextmanager
    def laid_out(self, place: Path) -> Iterator[Path]:
        """The image as a folder at `place`, which is removed afterwards."""
        place.mkdir()
        for folder in sorted(self.folders):
            (place / folder).mkdir()
        for (path, *links), content in self.files:
            (place / path).write_bytes(content)
            for link in links:
                (place / link).hardlink_to(place / path)
        try:
            yield place
        finally:
            shutil.rmtree(place)


@dataclass
class PowerCuts:
    """Follows a folder, whose content is safe at the start; collects the images of all power cuts.

    without_sync: the number of a sync that the disk ignores, as if the product had forgotten it.
    """

    folder: Path
    without_sync: int | None = None
    images: dict[Image, None] = field(default_factory=dict)
    syncs: int = 0
    acknowledged: int = 0
    _held: dict[int, int] = field(default_factory=dict)
    """A descriptor of each file and folder by inode, so that no inode is used again."""
    _content: dict[int, bytes] = field(default_factory=dict)
    _safe: dict[Entry, int] = field(default_factory=dict)
    _seen: dict[Entry, int] = field(default_factory=dict)
    _pending: list[Change] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.RLock)
    _patch: pytest.MonkeyPatch = field(default_factory=pytest.MonkeyPatch)

    def __enter__(self) -> Self:
        self._real = {name: getattr(os, name) for name in ("open", "listdir", "stat")}
        self._root = self.folder.stat().st_ino
        self._hold(self._root, self.folder)
        self._observe()
        self._safe, self._pending = dict(self._seen), []
        self._content = {inode: _read(handle) for inode, handle in self._held.items() if _is_file(handle)}
        for name in ("fsync", "fdatasync"):
            self._patch.setattr(os, name, self._synced(getattr(os, name)))
        for name in ("replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir", "truncate", "ftruncate"):
            self._patch.setattr(os, name, self._changed(getattr(os, name), whole=name in ("replace", "rename")))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        for handle in self._held.values():
            os.close(handle)

    def acknowledge(self) -> None:
        """The product has returned: from here on, all that it stored must be there."""
        with self._lock:
            self._observe()
            self.acknowledged += 1
            self._cut()

    def _synced(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(handle: Any) -> None:
            with self._lock:
                self._observe()
                self._cut()
                real(handle)
                inode = os.fstat(handle).st_ino
                if inode in self._held:
                    self.syncs += 1
                    if self.syncs - 1 != self.without_sync:
                        self._save(inode)
                self._cut()

        return sync

    def _changed(self, real: Callable[..., Any], *, whole: bool) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._observe()
                self._cut()
                try:
                    return real(*arguments, **options)
                finally:
                    self._observe(whole=whole)
                    self._cut()

        return change

    def _save(self, inode: int) -> None:
        """What a sync of this inode makes safe."""
        if _is_file(self._held[inode]):
            self._content[inode] = _read(self._held[inode])
            return
        for change in [change for change in self._pending if any(folder == inode for folder, _ in change)]:
            self._pending.remove(change)
            _apply(change, self._safe)

    def _hold(self, inode: int, path: Path) -> None:
        if inode not in self._held:
            self._held[inode] = self._real["open"](path, os.O_RDONLY | os.O_NOFOLLOW)
            if _is_file(self._held[inode]):
                self._content[inode] = b""

    def _observe(self, *, whole: bool = False) -> None:
        """Finds the names that changed since the last look. whole: by one operation, which happens or not."""
        found = dict(self._walk(self._root, self.folder))
        changes: Change = {entry: found.get(entry) for entry in self._seen.keys() | found.keys()
                           if self._seen.get(entry) != found.get(entry)}  # fmt: skip
        self._pending += [changes] if whole and changes else [{entry: inode} for entry, inode in changes.items()]
        self._seen = found

    def _walk(self, inode: int, path: Path) -> Iterator[tuple[Entry, int]]:
        for name in sorted(self._real["listdir"](path)):
            status = self._real["stat"](path / name, follow_symlinks=False)
            assert stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode), (
                f"{path / name}: neither file nor folder"
            )
            self._hold(status.st_ino, path / name)
            yield (inode, name), status.st_ino
            if stat.S_ISDIR(status.st_mode):
                yield from self._walk(status.st_ino, path / name)

    def _cut(self) -> None:
        """Collects what the disk may show if the power fails now."""
        now = {inode: _read(handle) for inode, handle in self._held.items() if _is_file(handle)}
        torn = [inode for inode, content in now.items() if content != self._content[inode]]
        contents = [self._content, now]
        for inode in torn:  # the others are all old or all new
            contents += [others | {inode: part} for part in _torn(self._content[inode], now[inode])
                         for others in (self._content, now)]  # fmt: skip
        for changes in _subsets(self._pending):
            names = dict(self._safe)
            for change in changes:
                _apply(change, names)
            for chosen in contents:
                self.images[self._image(names, chosen)] = None

    def _image(self, names: dict[Entry, int], contents: dict[int, bytes]) -> Image:
        folders, files = set[str](), dict[int, list[str]]()

        def enter(folder: int, before: str) -> None:
            for (outer, name), inode in names.items():
                if outer == folder and inode in contents:
                    files.setdefault(inode, []).append(before + name)
                elif outer == folder:
                    folders.add(before + name)
                    enter(inode, f"{before}{name}/")

        enter(self._root, "")
        found = frozenset((tuple(sorted(paths)), contents[inode]) for inode, paths in files.items())
        return Image(self.acknowledged, frozenset(folders), found)


def _is_file(handle: int) -> bool:
    return stat.S_ISREG(os.fstat(handle).st_mode)


def _read(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)


def _apply(change: Change, names: dict[Entry, int]) -> None:
    for entry, inode in change.items():
        if inode is None:
            names.pop(entry, None)
        else:
            names[entry] = inode


def _subsets(changes: list[Change]) -> Iterator[tuple[Change, ...]]:
    if len(changes) <= ALL_SUBSETS:
        return chain.from_iterable(combinations(changes, count) for count in range(len(changes) + 1))
    counts = (0, 1, len(changes) - 1, len(changes))
    return chain.from_iterable(combinations(changes, count) for count in counts)


def _torn(old: bytes, new: bytes) -> list[bytes]:
    """Contents of a file that was written to since its last sync: old, new, and the new one cut off in three places."""
    same = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    return [old, new, *(new[:size] for size in sorted({same + 1, (same + len(new)) // 2, len(new) - 1}) if size > 0)]


def power_cuts(folder: Path, store: Store, without_sync: int | None = None) -> PowerCuts:
    with PowerCuts(folder, without_sync) as power:
        store(folder, power.acknowledge)
    return power


def survived(power: PowerCuts, place: Path, check: Check) -> int:
    """How many images pass the check; the first that does not raises."""
    for image in power.images:
        with image.laid_out(place) as folder:
            check(folder, image.acknowledged)
    return len(power.images)


def fails(power: PowerCuts, place: Path, check: Check) -> bool:
    """Whether a power cut can lose or break anything."""
    try:
        survived(power, place, check)
    except Exception:  # of the test or of the reader: either names what is lost
        return True
    return False
