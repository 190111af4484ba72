"""The contract ABI: structs, calls, results, logs and errors between typed Python values and bytes.

`tiebreak.protocol.chain.generated` declares one class per struct, function, event and error of the contracts. Its
fields carry
their ABI types as annotations (`U64`, `Bytes32`, `tuple[U64, ...]`, another struct, an enum), from which everything
here follows: the canonical type, and how a value goes to `eth_abi` and comes back.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar, cast, get_args, get_origin, get_type_hints

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError
from eth_hash.auto import keccak

from tiebreak.protocol.chain.bindings import camel_case
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.tags import Digest

Result = TypeVar("Result")


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Kind:
    """An ABI type: its canonical name, and how its values come from `eth_abi` and go to it."""

    name: str
    read: Callable[[Any], Any] = _same
    write: Callable[[Any], Any] = _same


def _read_address(text: str) -> Address:
    return Address(bytes.fromhex(text.removeprefix("0x")))


# The integer widths, and the other plain types, of the contracts.
U8 = Annotated[int, Kind("uint8")]
U16 = Annotated[int, Kind("uint16")]
U24 = Annotated[int, Kind("uint24")]
U32 = Annotated[int, Kind("uint32")]
U40 = Annotated[int, Kind("uint40")]
U48 = Annotated[int, Kind("uint48")]
U64 = Annotated[int, Kind("uint64")]
U96 = Annotated[int, Kind("uint96")]
U128 = Annotated[int, Kind("uint128")]
U256 = Annotated[int, Kind("uint256")]
I256 = Annotated[int, Kind("int256")]
Bool = Annotated[bool, Kind("bool")]
String = Annotated[str, Kind("string")]
Bytes = Annotated[bytes, Kind("bytes")]
Bytes32 = Annotated[Digest, Kind("bytes32", lambda value: Digest(bytes(value)))]
EvmAddress = Annotated[Address, Kind("address", _read_address)]


def kind_of(annotation: Any) -> Kind:
    """The ABI type of an annotated field."""
    if get_origin(annotation) is Annotated:
        found: Kind = get_args(annotation)[1]
        return found
    if get_origin(annotation) is tuple:
        item = kind_of(get_args(annotation)[0])
        return Kind(
            f"{item.name}[]",
            lambda values: tuple(item.read(value) for value in values),
            lambda values: [item.write(value) for value in values],
        )
    if issubclass(annotation, Struct):
        return Kind(annotation.abi_type(), annotation.from_abi, annotation.to_abi)
    if issubclass(annotation, IntEnum):
        return Kind("uint8", annotation, int)
    raise TypeError(f"expected the annotation of an ABI type, got {annotation}")


@cache
def _kinds(struct: Any) -> dict[str, Kind]:
    hints = get_type_hints(struct, include_extras=True)
    return {field.name: kind_of(hints[field.name]) for field in fields(struct)}


def _decode(kinds: Sequence[Kind], data: bytes) -> list[Any]:
    """Values in our form. Raises `DecodingError`, also for a number that is no member of its enum."""
    values = decode([kind.name for kind in kinds], data)
    try:
        return [kind.read(value) for kind, value in zip(kinds, values, strict=True)]
    except ValueError as error:
        raise DecodingError(str(error)) from error


class Struct:
    """Base of the generated classes: dataclasses whose fields are annotated with ABI types, in the ABI's order."""

    __slots__ = ()

    @classmethod
    def kinds(cls) -> dict[str, Kind]:
        """Field -> its ABI type."""
        return _kinds(cast("Hashable", cls))

    @classmethod
    def abi_type(cls) -> str:
        """The canonical type: a tuple written out."""
        return f"({','.join(kind.name for kind in cls.kinds().values())})"

    @classmethod
    def from_abi(cls, values: Sequence[Any]) -> Self:
        """From `eth_abi`'s tuple."""
        pairs = zip(cls.kinds().items(), values, strict=True)
        return cls(**{name: kind.read(value) for (name, kind), value in pairs})

    @classmethod
    def from_values(cls, values: Sequence[Any]) -> Self:
        """From values in our form, in the ABI's order."""
        return cls(**dict(zip(cls.kinds(), values, strict=True)))

    def to_abi(self) -> tuple[Any, ...]:
        """As `eth_abi` takes it."""
        return tuple(kind.write(getattr(self, name)) for name, kind in self.kinds().items())

    def named(self) -> dict[str, Any]:
        """Values by the contracts' names."""
        return {camel_case(name): getattr(self, name) for name in self.kinds()}

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From bytes that follow a selector. Raises `DecodingError`."""
        return cls.from_values(_decode(list(cls.kinds().values()), data))

    def encode(self) -> bytes:
        """As the bytes that follow a selector."""
        return encode([kind.name for kind in self.kinds().values()], self.to_abi())


class Signed(Struct):
    """Something with a selector: the hash of its name and types."""

    __slots__ = ()
    NAME: ClassVar[str]

    @classmethod
    def topic(cls) -> bytes:
        """keccak-256 of name and types."""
        return bytes(keccak((cls.NAME + cls.abi_type()).encode("ascii")))

    @classmethod
    def selector(cls) -> bytes:
        """Its first 4 bytes."""
        return cls.topic()[:4]


class Function(Signed, Generic[Result]):
    """A function and the type of its result: an instance is a call with its arguments."""

    __slots__ = ()

    @property
    def data(self) -> bytes:
        """Calldata."""
        return self.selector() + self.encode()

    @classmethod
    def result(cls, data: bytes) -> Result:
        """What the function returned; None if it returns nothing. Raises `DecodingError`."""
        (annotation,) = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]  # every generic's subclass has it
        if annotation is type(None):
            return None  # type: ignore[return-value]
        if isinstance(annotation, type) and issubclass(annotation, Results):
            return annotation.decode(data)  # type: ignore[return-value]
        (value,) = _decode([kind_of(annotation)], data)
        return value  # type: ignore[no-any-return]


class Results(Struct):
    """What a function with several results returns."""

    __slots__ = ()


class Log(Signed):
    """An event."""

    __slots__ = ()
    INDEXED: ClassVar[tuple[str, ...]] = ()
    """Fields that stand in topics. Every one of these contracts is one word, so it stands there as it is."""

    @classmethod
    def read(cls, topics: Sequence[bytes], data: bytes) -> Self:
        """From the topics after the first, and the data. Raises `DecodingError`."""
        kinds = cls.kinds()
        plain = [name for name in kinds if name not in cls.INDEXED]
        values = _decode([kinds[name] for name in cls.INDEXED], b"".join(topics))
        values += _decode([kinds[name] for name in plain], data)
        return cls(**dict(zip((*cls.INDEXED, *plain), values, strict=True)))


class Refusal(Signed):
    """A custom error."""

    __slots__ = ()
