"""Canonical msgpack (SPEC section 9): arrays, unsigned integers and byte strings, each value with one encoding.

The decoder lets msgpack read, then writes the result again and compares: whatever is not the shortest form, and
whatever trails, differs. `Fields` takes typed values from a decoded array; every surprise is an `EncodingError`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgpack

from tiebreak.protocol.codec import check_bytes, check_uint
from tiebreak.protocol.errors import EncodingError

T = TypeVar("T")

Packed = int | bytes | Sequence["Packed"]
"""What can be packed."""


def pack(value: Packed) -> bytes:
    """The one encoding of nested arrays of unsigned 64-bit integers and bytes."""
    _check(value)
    return bytes(msgpack.packb(value, use_bin_type=True))


def unpack(data: bytes, limit: int) -> Any:
    """The inverse of `pack`; refuses more than `limit` bytes and every other encoding. Raises `EncodingError`."""
    if type(data) is not bytes or len(data) > limit:
        raise EncodingError(f"expected at most {limit} bytes, got {len(data)}")
    try:
        value = msgpack.unpackb(data, raw=False, use_list=True, strict_map_key=True, max_ext_len=0, max_map_len=0)
        _check(value)
    except (ValueError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise EncodingError("expected one msgpack value, got bytes that are not") from error
    if msgpack.packb(value, use_bin_type=True) != data:
        raise EncodingError("expected the shortest msgpack forms, got another encoding")
    return value


def _check(value: object, depth: int = 0) -> None:
    if type(value) is list or type(value) is tuple:
        if depth > 8:
            raise EncodingError("expected arrays nested at most 8 deep")
        for item in value:
            _check(item, depth + 1)
    elif type(value) is int:
        check_uint("number", value, 64)
    elif type(value) is not bytes:
        raise EncodingError(f"expected arrays, unsigned integers and bytes, got {type(value).__name__}")


class Fields:
    """The items of one decoded array, taken in order."""

    __slots__ = ("_at", "_items", "_what")

    def __init__(self, what: str, value: object, length: int) -> None:
        if type(value) is not list or len(value) != length:
            found = f"{len(value)} fields" if isinstance(value, list) else type(value).__name__
            raise EncodingError(f"{what}: expected an array of {length} fields, got {found}")
        self._what = what
        self._items = value
        self._at = 0

    def _next(self) -> tuple[str, Any]:
        self._at += 1
        return f"{self._what}, field {self._at}", self._items[self._at - 1]

    def uint(self, bits: int = 64) -> int:
        """An unsigned integer of at most this many bits."""
        name, value = self._next()
        return check_uint(name, value, bits)

    def raw(self, length: int) -> bytes:
        """A byte string of exactly this length."""
        name, value = self._next()
        return check_bytes(name, value, length)

    def data(self, limit: int) -> bytes:
        """A byte string of at most this length."""
        name, value = self._next()
        if type(value) is not bytes or len(value) > limit:
            raise EncodingError(f"{name}: expected at most {limit} bytes, got something else")
        return value

    def list_of(self, read: Callable[[str, Any], T], limit: int) -> tuple[T, ...]:
        """An array of at most `limit` items, each read by `read(name, item)`."""
        name, value = self._next()
        if type(value) is not list or len(value) > limit:
            raise EncodingError(f"{name}: expected an array of at most {limit} items, got something else")
        return tuple(read(f"{name}, item {number}", item) for number, item in enumerate(value))

    def digests(self, limit: int) -> tuple[bytes, ...]:
        """An array of at most `limit` digests."""
        return self.list_of(lambda name, item: check_bytes(name, item, 32), limit)

    def array(self) -> tuple[str, Any]:
        """Name and value of a nested array, to be read by other `Fields`."""
        return self._next()
