"""Chunk trees by the compiled hasher, hashing.c, which interleaves several streams of SHA-256 on each core.

Without the kernel, `tiebreak.protocol.hashing.PLAIN` computes the same bytes. A kernel that disagrees with it on a test
when it is loaded is not used.
"""

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from tiebreak.engine.native import Build, load
from tiebreak.protocol.hashing import CHUNK_BYTES, DIGEST_BYTES, PLAIN, Hasher, HashInput
from tiebreak.protocol.tags import EMPTY, Tag

_HEIGHTS: Final = 64
MAX_RECORD_BYTES: Final = 111
"""The longest record that, with tag, padding and length, fills two blocks of SHA-256."""
SERIAL_BYTES: Final = 1 << 20
"""The size up to which one thread is as fast as several."""
LEAST_BYTES: Final = 1 << 14
LEAST_NODES: Final = 64
"""The least input that is worth a call of the kernel: bytes of data, or nodes or records of a level."""


class _Piece(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("bytes", "floats", "height")),
        ("out", ctypes.c_void_p),
    ]


@dataclass(frozen=True)
class HashKernel:
    """The loaded kernel, for inputs of any size."""

    library: ctypes.CDLL
    span: int
    """The most chunks in one piece of work: a power of two."""

    @property
    def implementation(self) -> str:
        """The name of the instructions that it uses."""
        return bytes(self.library.implementation()).decode()

    def roots(self, inputs: Sequence[HashInput], threads: int) -> list[bytes]:
        """The root of the chunk tree of each input."""
        counts = [-(-data.view.nbytes // (self.span * CHUNK_BYTES)) for data in inputs]
        out = np.empty((sum(counts), DIGEST_BYTES), dtype=np.uint8)
        work: list[_Piece] = []
        for data in inputs:
            height = _depth(min(self.span, -(-data.view.nbytes // CHUNK_BYTES)))
            work += self._pieces(data, height, out.ctypes.data + DIGEST_BYTES * len(work), DIGEST_BYTES)
        self._run(work, threads, (inputs, out))
        return [self._top(bytes(out[end - n : end].data)) for end, n in zip(np.cumsum(counts), counts, strict=True)]

    def leaf_level(self, data: HashInput, threads: int) -> bytes:
        """The digests of all chunks."""
        out = np.empty((-(-data.view.nbytes // CHUNK_BYTES), DIGEST_BYTES), dtype=np.uint8)
        self._run(self._pieces(data, -1, out.ctypes.data, self.span * DIGEST_BYTES), threads, (data, out))
        return out.tobytes()

    def _pieces(self, data: HashInput, height: int, out: int, step: int) -> list[_Piece]:
        """The work on one input: for each piece the node of this height (-1: all digests), `step` bytes apart."""
        size, piece_bytes = data.view.nbytes, self.span * CHUNK_BYTES
        address = int(np.frombuffer(data.view, dtype=np.uint8).ctypes.data)
        return [
            _Piece(address + start, min(piece_bytes, size - start), data.floats, height, out + number * step)
            for number, start in enumerate(range(0, size, piece_bytes))
        ]

    def parent_level(self, below: bytes, empty: bytes) -> bytes:
        count = len(below) // DIGEST_BYTES
        out = ctypes.create_string_buffer((count + 1) // 2 * DIGEST_BYTES)
        self.library.parents(below, count, empty, out)
        return out.raw

    def record_level(self, tag: Tag, records: bytes, width: int) -> bytes:
        """`Hasher.record_level` for records of at most `MAX_RECORD_BYTES`."""
        if not 1 <= width <= MAX_RECORD_BYTES or len(records) % width:
            expected = f"expected records of one width, 1 to {MAX_RECORD_BYTES} bytes"
            raise ValueError(f"{expected}, got {len(records)} bytes of records of {width}")
        count = len(records) // width
        out = ctypes.create_string_buffer(count * DIGEST_BYTES)
        self.library.records(tag.value, records, count, width, out)
        return out.raw

    def _top(self, level: bytes) -> bytes:
        """The root above nodes of the height of a whole piece (or the node itself if there is only one)."""
        height = _depth(self.span)
        while len(level) > DIGEST_BYTES:
            level = self.parent_level(level, _empties()[height * DIGEST_BYTES : (height + 1) * DIGEST_BYTES])
            height += 1
        return level

    def _run(self, work: list[_Piece], threads: int, memory: object) -> None:
        """Runs the pieces; each thread takes the next one until none is left.

        `memory` keeps alive what they point into.
        """
        pieces, taken = (_Piece * len(work))(*work), ctypes.c_int64(0)

        def run(held: object = memory) -> None:  # noqa: ARG001 - held as long as any thread runs, whatever interrupts us
            self.library.hash_pieces(pieces, len(work), _empties(), ctypes.byref(taken))

        if sum(piece.bytes for piece in work) <= SERIAL_BYTES:
            threads = 1
        others = [threading.Thread(target=run, name=f"hashing-{n}") for n in range(1, min(threads, len(work)))]
        for thread in others:
            thread.start()
        run()
        for thread in others:
            thread.join()


@dataclass(frozen=True, slots=True)
class CompiledHasher:
    """`Hasher` by the kernel, on `threads` cores.

    Short levels are hashed in Python, where a call of the kernel costs more.
    """

    kernel: HashKernel
    threads: int

    def roots(self, inputs: Sequence[HashInput]) -> list[bytes]:
        return self.kernel.roots(inputs, self.threads)

    def leaf_level(self, data: HashInput) -> bytes:
        return PLAIN.leaf_level(data) if data.view.nbytes < LEAST_BYTES else self.kernel.leaf_level(data, self.threads)

    def parent_level(self, below: bytes, empty: bytes) -> bytes:
        return (PLAIN if len(below) < LEAST_NODES * DIGEST_BYTES else self.kernel).parent_level(below, empty)

    def record_level(self, tag: Tag, records: bytes, width: int) -> bytes:
        plain = len(records) < LEAST_NODES * width or width > MAX_RECORD_BYTES
        return (PLAIN if plain else self.kernel).record_level(tag, records, width)


def hasher(threads: int = 1) -> Hasher:
    """The fastest hasher of this machine, with this many threads."""
    found = kernel()
    return PLAIN if found is None else CompiledHasher(found, threads)


def build(source: str | Path = __file__) -> Build:
    """The compiled library, or the reason why there is none. It may not agree with `PLAIN`."""
    number, pointer, text = ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
    return load(
        source, hash_pieces=(None, pointer, number, text, pointer), parents=(None, text, number, text, text),
        records=(None, text, text, number, number, text), implementation=(text,), span=(number,),
    )  # fmt: skip


def kernel() -> HashKernel | None:
    """The kernel, or None if there is no compiler, it is switched off, or it disagrees with `PLAIN`."""
    library = build().library
    return None if library is None else _checked(library)


@cache
def _checked(library: ctypes.CDLL) -> HashKernel | None:
    found = HashKernel(library, library.span())
    return found if agrees(found) else None


def agrees(found: HashKernel) -> bool:
    """Whether a kernel agrees with `PLAIN` on every code path, with NaN among the data."""
    words = np.arange(found.span * CHUNK_BYTES // 4 + 1200, dtype=np.uint32) * np.uint32(2654435761)
    words[::301] = 0xFFC00001
    view = memoryview(words.astype("<u4").view(np.uint8).data)
    sizes = (1, 7, 55, 56, 504, 511, 512, 516, 1024, 1536, 2572, view.nbytes)
    inputs = [HashInput(view[:size], size % 4 == 0) for size in sizes]
    records = [(Tag.ACCUMULATOR, view[: 7 * width].tobytes(), width) for width in (1, 47, 48, MAX_RECORD_BYTES)]
    if any(found.record_level(*record) != PLAIN.record_level(*record) for record in records):
        return False
    return found.roots(inputs, 2) == PLAIN.roots(inputs) and all(
        found.leaf_level(data, 2) == PLAIN.leaf_level(data) for data in inputs
    )


@cache
def _empties() -> bytes:
    """The root of an empty tree of each height."""
    roots = [bytes(EMPTY)]
    while len(roots) < _HEIGHTS:
        roots += [PLAIN.parent_level(roots[-1], roots[-1])]
    return b"".join(roots)


def _depth(leaves: int) -> int:
    return (leaves - 1).bit_length()
