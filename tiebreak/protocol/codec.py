"""A strict reader and a writer for the big-endian binary formats of SPEC sections 3 to 6."""

import re
from typing import Final

from tiebreak.protocol.errors import EncodingError

MAX_NAME_BYTES: Final = 255
_NAME: Final = re.compile("[!-~]+")


class Reader:
    """Reads fixed-width fields from bytes; every shortage or excess is an `EncodingError`."""

    __slots__ = ("_data", "_size", "position")

    def __init__(self, data: bytes) -> None:
        self._data = bytes(data)
        self._size = len(self._data)
        self.position = 0
        """Offset of the first byte that was not read yet."""

    @property
    def remaining(self) -> int:
        return self._size - self.position

    def skip(self, count: int) -> int:
        """Go past `count` bytes. Returns the offset of the first."""
        start, self.position = self.position, self.position + count
        if self.position > self._size:
            self.position = start
            raise EncodingError(f"expected {count} more bytes at offset {start}, got {self._size - start}")
        return start

    def take(self, count: int) -> bytes:
        start = self.skip(count)
        return self._data[start : start + count]

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def signed(self, width: int) -> int:
        """A two's complement integer of `width` bytes."""
        return int.from_bytes(self.take(width), "big", signed=True)

    def finish(self) -> None:
        """Raise `EncodingError` if any bytes are left unread."""
        if self.remaining:
            raise EncodingError(f"expected the end at offset {self.position}, got {self.remaining} more bytes")


def unsigned(value: int, width: int) -> bytes:
    """`value` as an unsigned big-endian integer of `width` bytes."""
    try:
        return value.to_bytes(width, "big")
    except OverflowError:
        raise EncodingError(f"expected an unsigned integer of {width} bytes, got {value}") from None


def signed(value: int, width: int) -> bytes:
    """`value` as a two's complement big-endian integer of `width` bytes."""
    try:
        return value.to_bytes(width, "big", signed=True)
    except OverflowError:
        raise EncodingError(f"expected a signed integer of {width} bytes, got {value}") from None


def check_uint(name: str, value: object, bits: int) -> int:
    """Return `value` if it is an int that fits in `bits` bits; raise `EncodingError` otherwise. Bools are refused."""
    if type(value) is not int or not 0 <= value < 1 << bits:
        raise EncodingError(f"{name}: expected an unsigned {bits}-bit integer, got {value!r:.80}")
    return value


def check_bytes(name: str, value: object, length: int) -> bytes:
    """Return `value` if it is exactly `bytes` and has this length; raise `EncodingError` otherwise."""
    if type(value) is not bytes or len(value) != length:
        found = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        raise EncodingError(f"{name}: expected {length} bytes, got {found}")
    return value


def encode_name(name: str) -> bytes:
    """A state or data name: its length as u16, then its ASCII bytes. Raises `EncodingError` for an invalid name."""
    _check_name(name)
    return unsigned(len(name), 2) + name.encode("ascii")


def decode_name(reader: Reader) -> str:
    """Read a name written by `encode_name`. Raises `EncodingError` for an invalid name."""
    name = reader.take(reader.unsigned(2)).decode("latin-1")
    _check_name(name)
    return name


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME_BYTES or not _NAME.fullmatch(name):
        raise EncodingError(f"expected a name of 1 to {MAX_NAME_BYTES} printable ASCII characters, got {name!r}")
