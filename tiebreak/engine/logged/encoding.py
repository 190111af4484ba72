"""The sparse encoding of a step's rounding log: entries' places and directions, compressed (docs/decisions/0019).

    header   u8 format = 1 ‖ u64 step ‖ u64 entries
    block    u8 width ‖ width planes of the gaps ‖ the directions
    part     u24 length ‖ bytes: plain if the length is that of the plain bytes, else one Zstandard frame

Headers are big-endian. Entries stand in the order of their places (`Places`); a block holds 65,536 of them, the last
one the rest. The gap of an entry is the number of elements between it and the previous entry. Plane k holds byte k of
the gaps, the lowest first, for as many planes as the block's largest gap has bytes. The last part holds a bit for each
entry, 1 for up, the first in the highest bit. Frames have no magic number and state their size.

The format cannot express an element that appears twice, out of order, or in an instruction that is not logged. For any
input, decoding allocates no more than a block and the entries of one value.
"""

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import BinaryIO, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from tiebreak.engine.logged.element_order import Places, joined
from tiebreak.protocol.codec import unsigned
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.step_log import Entries, Integers, LogError, Mask, StepLog

FORMAT: Final = 1
HEADER_BYTES: Final = 17
BLOCK: Final = 1 << 16
_LEVEL: Final = 1
_FRAMES: Final = zstandard.FORMAT_ZSTD1_MAGICLESS
_WINDOW: Final = 1 << 16
"""The largest window that a frame may ask for: that of the largest part."""
_Gaps = NDArray[np.uint64]
_Block = tuple[Integers, Mask]


def encode_sparse(log: StepLog, program: Program, step: int) -> bytes:
    """Encodes the log of a step. Raises `LogError` for one that is impossible for the program."""
    return encode_entries(log.entries.items(), program, step)


def encode_entries(entries: Iterable[tuple[int, Entries]], program: Program, step: int) -> bytes:
    """Like `encode_sparse`, but value by value: holds one value's entries and the bytes encoded so far."""
    places, packer, parts, count = Places.of(program), _Packer(), [b""], 0
    before = -1
    for place, up in _blocks(_placed(entries, program, places, step)):
        parts.append(packer.block(np.diff(place, prepend=before) - 1, up))
        before, count = int(place[-1]), count + len(place)
    parts[0] = unsigned(FORMAT, 1) + unsigned(step, 8) + unsigned(count, 8)
    return b"".join(parts)


def decode_sparse(data: bytes, program: Program, step: int) -> StepLog:
    """Decodes the log of a step. The result passes `StepLog.check`.

    Raises `LogError` for an entry beyond the last element, and `EncodingError` for bytes that are not a log of this
    step.
    """
    return StepLog(dict(decode_entries(BytesIO(data), len(data), program, step)))


def decode_entries(file: BinaryIO, length: int, program: Program, step: int) -> Iterator[tuple[int, Entries]]:
    """Like `decode_sparse`, from the next `length` bytes of a file, value by value: holds one value's entries."""
    places, source = Places.of(program), _Source(file, length, step)
    source.expect("format", FORMAT, 1)
    source.expect("step", step, 8)
    count = source.unsigned(8)
    if count > places.total:
        raise source.error(f"expected at most {places.total} entries, got {count}")
    value, held = -1, list[Entries]()
    for block in _placed_blocks(source, count, places, step):
        for found, entries in places.split(*block):
            if found != value and held:
                yield value, joined(held)
                held = []
            value = found
            held.append(entries)
    if held:
        yield value, joined(held)


def max_sparse_bytes(program: Program) -> int:
    """An upper bound on the size of any log of the program."""
    places = Places.of(program)
    parts = _width(places.total) + 1
    return HEADER_BYTES + (places.total // BLOCK + 1) * (1 + 4 * parts) + places.total * parts


def _placed(entries: Iterable[tuple[int, Entries]], program: Program, places: Places, step: int) -> Iterator[_Block]:
    """Entries by place, checked, at most a block at a time."""
    before = -1
    for value, found in entries:
        if value <= before:
            rule = "instruction twice" if value == before else f"expected instructions after {before} in order"
            raise LogError(rule, step=step, value=value)
        before = value
        StepLog({value: found}).check(program, step)
        for first in range(0, len(found), BLOCK):
            part = slice(first, first + BLOCK)
            yield found.elements[part] + places.start(value), found.up[part]


def _blocks(pieces: Iterable[_Block]) -> Iterator[_Block]:
    """The same entries in pieces of exactly one block, except the last."""
    held, count = list[_Block](), 0
    for place, up in pieces:
        held.append((place, up))
        count += len(place)
        if count >= BLOCK:
            place, up = _concatenated(held)
            yield place[:BLOCK], up[:BLOCK]
            held, count = [(place[BLOCK:], up[BLOCK:])], count - BLOCK
    if count:
        yield _concatenated(held)


def _concatenated(pieces: list[_Block]) -> _Block:
    return np.concatenate([place for place, _ in pieces]), np.concatenate([up for _, up in pieces])


class _Packer:
    """Makes blocks with one shared compressor: creating one takes longer than compressing a small block."""

    def __init__(self) -> None:
        settings = zstandard.ZstdCompressionParameters.from_level(_LEVEL, format=_FRAMES, write_content_size=True)
        self._compressor = zstandard.ZstdCompressor(compression_params=settings)

    def block(self, gaps: Integers, up: Mask) -> bytes:
        width = _width(int(gaps.max()))
        planes = np.ascontiguousarray(gaps.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T)
        parts = [plane.tobytes() for plane in planes] + [np.packbits(up).tobytes()]
        return unsigned(width, 1) + b"".join(map(self._part, parts))

    def _part(self, plain: bytes) -> bytes:
        packed = self._compressor.compress(plain)
        kept = packed if len(packed) < len(plain) else plain
        return unsigned(len(kept), 3) + kept


class _Source:
    """The bytes of one log, which are not trusted."""

    def __init__(self, file: BinaryIO, length: int, step: int) -> None:
        self._file, self._length, self._rest, self._step = file, length, length, step
        self._decompressor = zstandard.ZstdDecompressor(format=_FRAMES, max_window_size=_WINDOW)

    def error(self, rule: str) -> EncodingError:
        """An error that names the step of the log."""
        return EncodingError(
            f"encoded rounding log of step {self._step}, up to byte {self._length - self._rest}: {rule}"
        )

    def take(self, count: int) -> bytes:
        found = self._file.read(min(count, self._rest))
        self._rest -= len(found)
        if len(found) < count:
            raise self.error(f"truncated: expected {count} more bytes, got {len(found)}")
        return found

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def expect(self, what: str, expected: int, width: int) -> None:
        found = self.unsigned(width)
        if found != expected:
            raise self.error(f"expected {what} {expected}, got {found}")

    def finish(self) -> None:
        if self._rest:
            raise self.error(f"expected the end, got {self._rest} more bytes")

    def part(self, size: int) -> NDArray[np.uint8]:
        """The `size` plain bytes of the next part."""
        length = self.unsigned(3)
        if not 1 <= length <= size:
            raise self.error(f"expected a part of 1 to {size} bytes, got {length}")
        kept = self.take(length)
        return np.frombuffer(kept if length == size else self._decompressed(kept, size), dtype=np.uint8)

    def _decompressed(self, packed: bytes, size: int) -> bytes:
        try:
            # The frame's header determines what would be allocated, so it is checked before anything else.
            stated = zstandard.get_frame_parameters(packed, format=_FRAMES)
            if stated.content_size != size:
                raise self.error(f"expected a frame of {size} bytes, got one of {stated.content_size}")
            if stated.window_size > _WINDOW:
                raise self.error(f"expected a window of at most {_WINDOW} bytes, got {stated.window_size}")
            plain = self._decompressor.decompress(packed, max_output_size=size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise self.error(f"expected a Zstandard frame: {error}") from error
        if len(plain) != size:
            raise self.error(f"expected a frame of {size} bytes, got {len(plain)}")
        return plain


def _placed_blocks(source: _Source, count: int, places: Places, step: int) -> Iterator[_Block]:
    """Places and directions by block, ascending and all below the number of elements."""
    before = -1
    for first in range(0, count, BLOCK):
        gaps, up = _read_block(source, min(BLOCK, count - first), _width(places.total))
        # In floating point first: a sum within twice the bound there cannot have overflowed 64 bits.
        beyond = float(gaps.sum(dtype=np.float64)) > 2.0 * places.total
        place = np.cumsum(gaps.astype(np.int64) + 1) + before
        if beyond or place[-1] >= places.total:
            raise _out_of_range(gaps, before, places, step)
        before = int(place[-1])
        yield place, up
    source.finish()


def _read_block(source: _Source, count: int, limit: int) -> tuple[_Gaps, Mask]:
    width = source.unsigned(1)
    if not 1 <= width <= limit:
        raise source.error(f"expected gaps of 1 to {limit} bytes, got {width}")
    gaps = np.zeros(count, dtype=np.uint64)
    for k in range(width):
        plane = source.part(count)
        gaps |= plane.astype(np.uint64) << np.uint64(8 * k)
        if k and k == width - 1 and not plane.any():
            raise source.error(f"expected gaps in as few bytes as they need, got {width}")
    bits = np.unpackbits(source.part((count + 7) // 8))
    if bits[count:].any():
        raise source.error(f"expected zeros after the directions of {count} entries")
    return gaps, bits[:count].astype(np.bool_)


def _out_of_range(gaps: _Gaps, before: int, places: Places, step: int) -> LogError:
    """An error that names the first element beyond the end, counted as one of the last logged sum."""
    place = before
    for gap in gaps.tolist():
        place += gap + 1
        if place >= places.total:
            break
    value, start = int(places.values[-1]), int(places.starts[-2])
    rule = f"out of range: expected an element below {places.total - start}"
    return LogError(rule, step=step, value=value, element=place - start)


def _width(greatest: int) -> int:
    """The number of bytes for a gap up to this one."""
    return max(1, (greatest.bit_length() + 7) // 8)
