"""The contracts' functions, events and custom errors, as declared in the checked-in artifacts.

`eth_abi` converts between values and bytes, with the types from the ABIs. In values that are read, addresses are 20
bytes, enums are members, arrays are tuples, and structs are namespaces with Python's spelling of their members' names.
`contracts/src/interfaces` documents each function, event and error.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError
from eth_hash.auto import keccak

from tiebreak.protocol.chain.artifacts import CONTRACTS, load_artifact
from tiebreak.protocol.chain.errors import Reverted
from tiebreak.protocol.chain.records import Outcome
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.game.state import Reason
from tiebreak.protocol.parties.board import JobStatus

_ENUMS: Final = {"IJobBoard.JobStatus": JobStatus, "IGame.Verdict": Outcome, "IGame.Reason": Reason}
_BUILT_IN: Final = (("Error", "message", "string"), ("Panic", "code", "uint256"))
"""Errors that the compiler defines: for `require` with a message, and for its own checks."""


def snake_case(name: str) -> str:
    """Convert the contracts' spelling to Python's: `lossBits` to `loss_bits`."""
    return re.sub("(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1], name).lower()


@dataclass(frozen=True, slots=True)
class Field:
    """An argument, a result, or a struct member. `declared` is its type's Solidity name, e.g. of an enum."""

    name: str
    type: str
    """The canonical type, in which a struct is written as a tuple."""
    declared: str
    members: tuple["Field", ...]
    indexed: bool

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "Field":
        members = tuple(map(cls.of, entry.get("components", ())))
        kind = str(entry["type"])
        if members:
            kind = f"({','.join(member.type for member in members)}){kind.removeprefix('tuple')}"
        declared = str(entry.get("internalType", "")).removesuffix("[]").rpartition(" ")[2]
        return cls(str(entry["name"]), kind, declared, members, bool(entry.get("indexed")))

    def read(self, value: Any, kind: str = "") -> Any:
        """Convert from `eth_abi`'s form, by default of `type`. Raises `ValueError` for a number not in its enum."""
        kind = kind or self.type
        if kind.endswith("[]"):
            return tuple(self.read(item, kind.removesuffix("[]")) for item in value)
        if self.members:
            return SimpleNamespace(**{snake_case(name): item for name, item in named(self.members, value).items()})
        if kind == "address" and isinstance(value, str):
            return Address(bytes.fromhex(value.removeprefix("0x")))
        enum = _ENUMS.get(self.declared)
        return value if enum is None else enum(value)


def named(members: Sequence[Field], values: Sequence[Any]) -> dict[str, Any]:
    """The values by name, converted from `eth_abi`'s form."""
    return {member.name: member.read(value) for member, value in zip(members, values, strict=True)}


def decode_fields(members: Sequence[Field], data: bytes) -> dict[str, Any]:
    """Decode values by name. Raises `DecodingError`."""
    try:
        return named(members, decode([member.type for member in members], data))
    except ValueError as error:
        raise DecodingError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Entry:
    """A function, event or custom error. `topic` is the keccak-256 of its signature, such as `name(type,type)`."""

    name: str
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    topic: bytes

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "Entry":
        name, inputs = str(entry["name"]), tuple(map(Field.of, entry["inputs"]))
        signature = f"{name}({','.join(field.type for field in inputs)})"
        return cls(name, inputs, tuple(map(Field.of, entry.get("outputs", ()))), bytes(keccak(signature.encode())))

    @property
    def selector(self) -> bytes:
        """The first 4 bytes of the entry's calldata or revert data."""
        return self.topic[:4]

    def calldata(self, arguments: Sequence[Any]) -> bytes:
        """Calldata for a call with these arguments, in ABI order."""
        return self.selector + encode([field.type for field in self.inputs], arguments)

    def arguments(self, calldata: bytes) -> tuple[Any, ...]:
        """The arguments in some calldata, in `eth_abi`'s form. Raises `DecodingError`. The selector is not checked."""
        return decode([field.type for field in self.inputs], calldata[4:])

    def result(self, data: bytes) -> Any:
        """The result of a function: None, its only value, or a tuple. Raises `DecodingError`."""
        try:
            values = decode([field.type for field in self.outputs], data)
            read = tuple(field.read(value) for field, value in zip(self.outputs, values, strict=True))
        except ValueError as error:
            raise DecodingError(str(error)) from error
        return read[0] if len(read) == 1 else read or None


@cache
def entries(kind: str) -> dict[str, Entry]:
    """All entries of a kind (`function`, `event` or `error`) in the contracts, by name. No name has two meanings."""
    found = [e for contract in CONTRACTS for e in load_artifact(contract).abi if e["type"] == kind]
    return {entry["name"]: Entry.of(entry) for entry in found}


@cache
def function_owners() -> dict[str, str]:
    """The contract of each function."""
    return {
        e["name"]: contract for contract in CONTRACTS for e in load_artifact(contract).abi if e["type"] == "function"
    }


@cache
def _topics() -> dict[bytes, Entry]:
    return {event.topic: event for event in entries("event").values()}


@cache
def _errors() -> dict[bytes, Entry]:
    built_in = [Entry.of({"name": name, "inputs": [{"name": field, "type": kind}]}) for name, field, kind in _BUILT_IN]
    return {error.selector: error for error in (*entries("error").values(), *built_in)}


def read_log(topics: Sequence[bytes], data: bytes) -> tuple[str, dict[str, Any]] | None:
    """The name and values of an event, or None if it is not one of these contracts'. Raises `DecodingError`."""
    event = _topics().get(bytes(topics[0])) if topics else None
    if event is None:
        return None
    # Every indexed field of these contracts is one word, so its topic holds the value itself and not a hash.
    values = decode_fields([field for field in event.inputs if field.indexed], b"".join(topics[1:]))
    values |= decode_fields([field for field in event.inputs if not field.indexed], data)
    return event.name, {field.name: values[field.name] for field in event.inputs}


def decode_revert(data: bytes, message: str) -> Reverted:
    """The error that a contract reverted with. `message` is the node's text, used if there is no revert data."""
    if not data:
        return Reverted("Halted", {"message": message})
    if (error := _errors().get(data[:4])) is None:
        return Reverted("Unknown", {"data": data})
    try:
        return Reverted(error.name, decode_fields(error.inputs, data[4:]))
    except DecodingError:
        return Reverted("Unknown", {"data": data})
