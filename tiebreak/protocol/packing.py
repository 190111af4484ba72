"""Canonical msgpack (SPEC section 9): arrays, unsigned integers and byte strings, each value with one encoding.

The decoder reads with msgpack, encodes the result again and compares the bytes, which catches trailing bytes and any
encoding that is not the shortest. A `Record` declares its fields once, as annotations such as `U32` or `Bytes32`; its
array form, its JSON, the checks of its values, its calldata (`tiebreak.protocol.chain.calls`) and its EIP-712 type
(`tiebreak.protocol.commitments.eip712`) follow from them. Every malformed input raises `EncodingError`.
"""

import re
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from math import copysign
from typing import Annotated, Any, Self, cast, dataclass_transform, get_args, get_type_hints

import msgpack

from tiebreak.protocol.codec import check_bytes, check_uint
from tiebreak.protocol.errors import EncodingError, check_version
from tiebreak.protocol.tags import Digest

Packed = int | bytes | Sequence["Packed"]
"""The values that `pack` accepts."""


def pack(value: Packed) -> bytes:
    """Encode nested arrays of unsigned 64-bit integers and bytes. Each value has exactly one encoding."""
    _check(value)
    return bytes(msgpack.packb(value, use_bin_type=True))


def unpack(data: bytes, limit: int) -> Any:
    """Decode what `pack` encoded. Raises `EncodingError` for more than `limit` bytes and for any other encoding."""
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
    """Reads the items of one decoded array in order."""

    __slots__ = ("_at", "_items", "_what")

    def __init__(self, what: str, value: object, length: int) -> None:
        if not isinstance(value, list | tuple) or len(value) != length:
            found = f"{len(value)} fields" if isinstance(value, list | tuple) else type(value).__name__
            raise EncodingError(f"{what}: expected an array of {length} fields, got {found}")
        self._what = what
        self._items = value
        self._at = 0

    @classmethod
    def versioned(cls, what: str, value: object, length: int, version: int) -> Self:
        """Reads the items after the first, which is the version of the form: another one may have another length."""
        if isinstance(value, list | tuple) and value and type(value[0]) is int:
            check_version(what, value[0], version)
        fields = cls(what, value, length)
        fields.take(Uint(8))
        return fields

    def next(self) -> tuple[str, Any]:
        """The next item, preceded by the name to use for it in an error message."""
        self._at += 1
        return f"{self._what}, field {self._at}", self._items[self._at - 1]

    def take(self, kind: "FieldType") -> Any:
        """The next item, which must be of this kind."""
        name, item = self.next()
        value = kind.unpack(name, item)
        kind.check(name, value)
        return value


# ---------------------------------------------------------------- records and the kinds of their fields


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a record's field. `check` receives the field's name for its `EncodingError`."""

    def check(self, name: str, value: Any) -> None:
        """Raise `EncodingError` if the field cannot hold this value."""
        raise NotImplementedError

    def pack(self, value: Any) -> Packed:
        """Convert a field value to its packed form."""
        return cast("Packed", value)

    def unpack(self, name: str, item: Any) -> Any:  # noqa: ARG002  # arrays need the name
        """Convert a packed item back to a field value. The result is checked only when the record is constructed."""
        return item

    def to_json(self, value: Any) -> Any:
        """Convert a field value to its JSON form: here, bytes to hexadecimal digits after 0x."""
        return "0x" + value.hex()


@dataclass(frozen=True, slots=True)
class Uint(FieldType):
    """An unsigned integer of `bits` bits, from `low` to `high` if given. msgpack has 64 bits; wider ones are bytes."""

    bits: int
    low: int = 0
    high: int | None = None

    def check(self, name: str, value: Any) -> None:
        check_uint(name, value, self.bits)
        high = (1 << self.bits) - 1 if self.high is None else self.high
        if not self.low <= value <= high:
            raise EncodingError(f"{name}: expected a number between {self.low} and {high}, got {value}")

    def pack(self, value: Any) -> Packed:
        return cast("int", value) if self.bits <= 64 else cast("int", value).to_bytes(self.bits // 8, "big")

    def unpack(self, name: str, item: Any) -> Any:
        return item if self.bits <= 64 else int.from_bytes(check_bytes(name, item, self.bits // 8), "big")

    def to_json(self, value: Any) -> Any:
        return value if self.bits <= 32 else str(value)  # many readers hold numbers as FP64


@dataclass(frozen=True, slots=True)
class Raw(FieldType):
    """Exactly `length` bytes."""

    length: int

    def check(self, name: str, value: Any) -> None:
        check_bytes(name, value, self.length)


@dataclass(frozen=True, slots=True)
class Data(FieldType):
    """A byte string of at most `limit` bytes."""

    limit: int

    def check(self, name: str, value: Any) -> None:
        if type(value) is not bytes or len(value) > self.limit:
            found = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
            raise EncodingError(f"{name}: expected at most {self.limit} bytes, got {found}")


@dataclass(frozen=True, slots=True)
class ListOf(FieldType):
    """A tuple of at most `limit` items."""

    item: FieldType
    limit: int

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, list | tuple) or len(value) > self.limit:
            found = f"{len(value)}" if isinstance(value, list | tuple) else type(value).__name__
            raise EncodingError(f"{name}: expected at most {self.limit} items, got {found}")
        for item in value:
            self.item.check(name, item)

    def pack(self, value: Any) -> Packed:
        return tuple(map(self.item.pack, value))

    def unpack(self, name: str, item: Any) -> Any:
        if not isinstance(item, list | tuple):
            raise EncodingError(f"{name}: expected an array, got {type(item).__name__}")
        return tuple(self.item.unpack(name, value) for value in item)

    def to_json(self, value: Any) -> Any:
        return list(map(self.item.to_json, value))


@dataclass(frozen=True, slots=True)
class OneOf(FieldType):
    """One of several record types with different numbers of fields. If `optional`, None packs as an empty array."""

    types: tuple[type["Record"], ...]
    optional: bool = False

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, self.types) and not (self.optional and value is None):
            names = " or ".join(kind.__name__ for kind in self.types)
            raise EncodingError(f"{name}: expected {names}, got {type(value).__name__}")

    def pack(self, value: Any) -> Packed:
        return () if value is None else cast("Record", value).pack()

    def unpack(self, name: str, item: Any) -> Any:
        length = len(item) if isinstance(item, list | tuple) else -1
        if self.optional and length == 0:
            return None
        return next((kind for kind in self.types if len(kind.kinds()) == length), self.types[0]).unpack(name, item)

    def to_json(self, value: Any) -> Any:
        return None if value is None else value.to_json()


@dataclass(frozen=True, slots=True)
class AnyOf(FieldType):
    """One of several record types, preceded by its place among them."""

    types: tuple[type["Record"], ...]

    def check(self, name: str, value: Any) -> None:
        if type(value) not in self.types:
            names = ", ".join(kind.__name__ for kind in self.types)
            raise EncodingError(f"{name}: expected one of {names}, got {type(value).__name__}")

    def pack(self, value: Any) -> Packed:
        return self.types.index(type(value)), value.pack()

    def unpack(self, name: str, item: Any) -> Any:
        fields = Fields(name, item, 2)
        return self.types[fields.take(Uint(8, 0, len(self.types) - 1))].unpack(*fields.next())


@dataclass(frozen=True, slots=True)
class Maybe(FieldType):
    """A value that may be None, packed as an array of one item or none."""

    item: FieldType

    def check(self, name: str, value: Any) -> None:
        if value is not None:
            self.item.check(name, value)

    def pack(self, value: Any) -> Packed:
        return () if value is None else (self.item.pack(value),)

    def unpack(self, name: str, item: Any) -> Any:
        return self.item.unpack(*Fields(name, item, 1).next()) if item != [] else None


@dataclass(frozen=True, slots=True)
class Text(FieldType):
    """Words for people, packed as one line of at most `limit` characters, all of them printable."""

    limit: int = 4096

    def check(self, name: str, value: Any) -> None:
        if type(value) is not str:
            raise EncodingError(f"{name}: expected text, got {type(value).__name__}")

    def pack(self, value: Any) -> Packed:
        line = "".join(character if character.isprintable() else " " for character in value)
        return line[: self.limit].encode()

    def unpack(self, name: str, item: Any) -> Any:
        Data(4 * self.limit).check(name, item)
        text = item.decode("utf-8", "replace")
        if self.pack(text) != item:
            raise EncodingError(f"{name}: expected a line of at most {self.limit} printable characters, got others")
        return text


@dataclass(frozen=True, slots=True)
class Real(FieldType):
    """A number from 0 up to 2^53, packed as the 8 bytes of an FP64 number."""

    def check(self, name: str, value: Any) -> None:
        if type(value) is not float or not 0 <= value <= 2.0**53 or copysign(1, value) < 0:  # nor is NaN
            raise EncodingError(f"{name}: expected a number between 0 and 2^53, got {value!r:.80}")

    def pack(self, value: Any) -> Packed:
        return struct.pack(">d", value)

    def unpack(self, name: str, item: Any) -> Any:
        return struct.unpack(">d", check_bytes(name, item, 8))[0]


@dataclass(frozen=True, slots=True)
class EnumMember(FieldType):
    """A member of an enumeration, packed as its place."""

    members: type[Enum]

    def check(self, name: str, value: Any) -> None:
        if type(value) is not self.members:
            raise EncodingError(f"{name}: expected {self.members.__name__}, got {value!r:.80}")

    def pack(self, value: Any) -> Packed:
        return list(self.members).index(value)

    def unpack(self, name: str, item: Any) -> Any:
        Uint(8, 0, len(self.members) - 1).check(name, item)
        return list(self.members)[item]


U8 = Annotated[int, Uint(8)]
U32 = Annotated[int, Uint(32)]
U64 = Annotated[int, Uint(64)]
Bytes32 = Annotated[bytes, Raw(32)]
Root = Annotated[Digest, Raw(32)]


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record:
    """Base class of records: each is a frozen dataclass with its fields annotated with their kinds, in wire order."""

    def __init_subclass__(cls, *, frozen: bool = True, **constants: Any) -> None:
        """Constants that a class has for all its records stand in its header: `kind=...` is `KIND`."""
        for name, value in constants.items():
            setattr(cls, name.upper(), value)
        dataclass(frozen=frozen, kw_only=True)(cls)

    @classmethod
    def kinds(cls) -> dict[str, FieldType]:
        """The kind of each field, by field name, in wire order."""
        return _kinds(cast("Hashable", cls))

    def __post_init__(self) -> None:
        for name, kind in self.kinds().items():
            kind.check(f"{type(self).__name__}.{name}", getattr(self, name))

    @property
    def values(self) -> tuple[Any, ...]:
        """The fields' values, in wire order."""
        return tuple(getattr(self, name) for name in self.kinds())

    def pack(self) -> tuple[Packed, ...]:
        return tuple(kind.pack(getattr(self, name)) for name, kind in self.kinds().items())

    def encode(self) -> bytes:
        """The record's array in msgpack."""
        return pack(self.pack())

    @classmethod
    def unpack(cls, name: str, item: Any) -> Self:
        """Build the record from a decoded array. Raises `EncodingError`. `name` is used in error messages."""
        kinds = cls.kinds()
        found = Fields(name, item, len(kinds))
        return cls(**{field: kind.unpack(*found.next()) for field, kind in kinds.items()})

    def to_json(self) -> dict[str, Any]:
        """The record as an object with the contracts' field names."""
        return {camel_case(name): kind.to_json(getattr(self, name)) for name, kind in self.kinds().items()}


def camel_case(name: str) -> str:
    """Convert Python's spelling to that of Solidity, EIP-712 and JSON: `loss_bits` to `lossBits`."""
    return re.sub("_([a-z0-9])", lambda match: match[1].upper(), name)


@cache
def _kinds(record: Any) -> dict[str, FieldType]:
    hints = get_type_hints(record, include_extras=True)
    return {field.name: get_args(hints[field.name])[1] for field in fields(record)}
