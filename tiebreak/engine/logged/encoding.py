"""The sparse encoding of a step's rounding log: places and directions, compressed (docs/decisions/rounding-logs.md).

    header   u8 format = 1 ‖ u64 step ‖ u64 entries
    block    u8 width ‖ width planes of the gaps ‖ the directions
    part     u24 length ‖ bytes: plain if the length is that of the plain bytes, else one Zstandard frame
    late     for each late tensor of the program, in slot order: its bytes, in parts of 65,536, the last one the rest

Headers are big-endian. Entries stand in the order of their places (`ElementOrder`); a block holds 65,536 of them, the
last one the rest. The gap of an entry is the number of elements between it and the previous entry. Plane k holds byte k
of the gaps, the lowest first, for as many planes as the block's largest gap has bytes. The last part holds a bit for
each entry, 1 for up, the first in the highest bit. Frames have no magic number and state their size.

The format cannot express an element that appears twice, out of order, or in an instruction that is not logged. For any
input, decoding allocates no more than the entries, once more those of one value, and a block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import BinaryIO, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from tiebreak.protocol.codec import unsigned
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Entries, Integers, LogError, Mask, StepLog, sum_kind

FORMAT: Final = 1
HEADER_BYTES: Final = 17
BLOCK: Final = 1 << 16
_LEVEL: Final = 1
_FRAMES: Final = zstandard.FORMAT_ZSTD1_MAGICLESS
_WINDOW: Final = 1 << 16
"""The largest window that a frame may ask for: that of the largest part."""
_Gaps = NDArray[np.uint64]
_Block = tuple[Integers, Mask]


@dataclass(frozen=True, slots=True, eq=False)
class ElementOrder:
    """The elements of all logged sums of a program in one sequence, in program order: the order of entries in files.

    The k-th logged sum is instruction `indices[k]`; its elements have places `starts[k]` to `starts[k + 1] - 1`.
    """

    indices: Integers
    starts: Integers

    @classmethod
    def of(cls, program: Program) -> "ElementOrder":
        """The order of a program. The limits on programs keep the number of elements below 2^60."""
        logged = [(index, body.numel) for index, body in enumerate(program.body) if sum_kind(body) is not None]
        starts = np.zeros(len(logged) + 1, dtype=np.int64)
        np.cumsum([numel for _, numel in logged], out=starts[1:])
        return cls(np.array([index for index, _ in logged], dtype=np.int64), starts)

    @property
    def total(self) -> int:
        """The number of elements in all."""
        return int(self.starts[-1])

    def start(self, index: int) -> int:
        """The place of a logged sum's first element."""
        return int(self.starts[np.searchsorted(self.indices, index)])

    def split(self, place: Integers, up: Mask) -> Iterator[tuple[int, Entries]]:
        """Splits entries by place, ascending, into entries by instruction."""
        sums = np.searchsorted(self.starts, place, side="right") - 1
        first = np.flatnonzero(np.diff(sums, prepend=-1))
        for a, b in zip(first.tolist(), [*first[1:].tolist(), len(place)], strict=False):
            k = int(sums[a])
            # The directions are copied because a view would keep the whole array alive.
            yield int(self.indices[k]), Entries(place[a:b] - self.starts[k], up[a:b].copy())


def joined(pieces: Sequence[Entries]) -> Entries:
    """Joins consecutive pieces of one value's entries."""
    if len(pieces) == 1:
        return pieces[0]
    elements = np.concatenate([piece.elements for piece in pieces])
    return Entries(elements, np.concatenate([piece.up for piece in pieces]))


def encode_sparse(log: StepLog, program: Program, step: int) -> bytes:
    """Encodes the log of a step. Raises `LogError` for one that is impossible for the program."""
    log.check(program, step)
    order = ElementOrder.of(program)
    # A compressor is shared by all blocks, since making one takes longer than compressing a small block.
    settings = zstandard.ZstdCompressionParameters.from_level(_LEVEL, format=_FRAMES, write_content_size=True)
    compressor = zstandard.ZstdCompressor(compression_params=settings)
    parts = [unsigned(FORMAT, 1) + unsigned(step, 8) + unsigned(log.count, 8)]
    if log.entries:
        place = np.concatenate([found.elements + order.start(index) for index, found in log.entries.items()])
        up = np.concatenate([found.up for found in log.entries.values()])
        before = -1
        for first in range(0, len(place), BLOCK):
            part = slice(first, first + BLOCK)
            parts.append(_block(compressor, np.diff(place[part], prepend=before) - 1, up[part]))
            before = int(place[part][-1])
    for data in map(log.late.__getitem__, program.late_spec()):
        parts += [_part(compressor, data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    return b"".join(parts)


def decode_sparse(data: bytes, program: Program, step: int) -> StepLog:
    """Decodes the log of a step. See `read_sparse`."""
    return read_sparse(BytesIO(data), len(data), program, step)


def read_sparse(file: BinaryIO, length: int, program: Program, step: int) -> StepLog:
    """Decodes the log of a step from the next `length` bytes of a file. The result passes `StepLog.check`.

    Raises `LogError` for an entry beyond the last element, and `EncodingError` for bytes that are not a log of this
    step.
    """
    order, source = ElementOrder.of(program), _Source(file, length, step)
    source.expect("format", FORMAT, 1)
    source.expect("step", step, 8)
    count = source.unsigned(8)
    if count > order.total:
        raise source.error(f"expected at most {order.total} entries, got {count}")
    pieces: dict[int, list[Entries]] = {}
    for block in _placed_blocks(source, count, order, step):
        for value, entries in order.split(*block):
            pieces.setdefault(value, []).append(entries)
    late = dict[str, bytes]()
    for name, (dtype, shape) in program.late_spec().items():
        size = dtype.size * prod(shape)
        late[name] = b"".join(source.part(min(BLOCK, size - at)).tobytes() for at in range(0, size, BLOCK))
    source.finish()
    found = StepLog({value: joined(pieces.pop(value)) for value in list(pieces)}, late)
    found.check(program, step)
    return found


def max_sparse_bytes(program: Program) -> int:
    """An upper bound on the size of any log of the program."""
    total = ElementOrder.of(program).total
    parts = _width(total) + 1
    sizes = [dtype.size * prod(shape) for dtype, shape in program.late_spec().values()]
    late = sum(size + 3 * (size // BLOCK + 1) for size in sizes)
    return HEADER_BYTES + (total // BLOCK + 1) * (1 + 4 * parts) + total * parts + late


def _block(compressor: zstandard.ZstdCompressor, gaps: Integers, up: Mask) -> bytes:
    width = _width(int(gaps.max()))
    planes = np.ascontiguousarray(gaps.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T)
    block = unsigned(width, 1)
    return block + b"".join(
        _part(compressor, plain) for plain in (*(plane.tobytes() for plane in planes), np.packbits(up).tobytes())
    )


def _part(compressor: zstandard.ZstdCompressor, plain: bytes) -> bytes:
    packed = compressor.compress(plain)
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


def _placed_blocks(source: _Source, count: int, order: ElementOrder, step: int) -> Iterator[_Block]:
    """Places and directions by block, ascending and all below the number of elements."""
    before = -1
    for first in range(0, count, BLOCK):
        gaps, up = _read_block(source, min(BLOCK, count - first), _width(order.total))
        # In floating point first: a sum within twice the bound there cannot have overflowed 64 bits.
        beyond = float(gaps.sum(dtype=np.float64)) > 2.0 * order.total
        place = np.cumsum(gaps.astype(np.int64) + 1) + before
        if beyond or place[-1] >= order.total:
            raise _out_of_range(gaps, before, order, step)
        before = int(place[-1])
        yield place, up


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


def _out_of_range(gaps: _Gaps, before: int, order: ElementOrder, step: int) -> LogError:
    """An error that names the first element beyond the end, counted as one of the last logged sum."""
    place = before
    for gap in gaps.tolist():
        place += gap + 1
        if place >= order.total:
            break
    index, start = int(order.indices[-1]), int(order.starts[-2])
    rule = f"out of range: expected an element below {order.total - start}"
    return LogError(rule, step=step, index=index, element=place - start)


def _width(greatest: int) -> int:
    """The number of bytes for a gap up to this one."""
    return max(1, (greatest.bit_length() + 7) // 8)
