"""The contracts' functions, events and custom errors, as the checked-in artifacts declare them.

`eth_abi` turns values into bytes and back; the types come from the ABIs. In what is read, addresses are 20 bytes,
enums members, arrays tuples, structs dictionaries by the contracts' names or the dataclasses of
`tiebreak.protocol.chain.records`. What each function, event and error means is said in `contracts/src/interfaces`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError
from eth_hash.auto import keccak

from tiebreak.protocol.chain.artifacts import CONTRACTS, load_artifact
from tiebreak.protocol.chain.errors import Reverted
from tiebreak.protocol.chain.records import EndReason, GameRecord, JobRecord, JobStatus, Outcome
from tiebreak.protocol.commitments.eip712 import Address

_ENUMS: Final = {"IJobBoard.JobStatus": JobStatus, "IGame.Verdict": Outcome, "IGame.Reason": EndReason}
_RECORDS: Final = {"IJobBoard.JobState": JobRecord, "IGame.GameState": GameRecord}
_BUILT_IN: Final = (("Error", "message", "string"), ("Panic", "code", "uint256"))
"""The compiler's own errors: `require` with words, and its checks."""


def snake_case(name: str) -> str:
    """`lossBits` -> loss_bits."""
    return re.sub("(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1], name).lower()


def camel_case(name: str) -> str:
    """`loss_bits` -> lossBits: the contracts' spelling."""
    return re.sub("_([a-z0-9])", lambda match: match[1].upper(), name)


@dataclass(frozen=True, slots=True)
class Field:
    """An argument, a result, or a member of a struct. `declared`: the Solidity name of its enum or struct."""

    name: str
    type: str
    """Canonical: a struct is written out as a tuple."""
    declared: str
    members: tuple["Field", ...]
    indexed: bool

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "Field":
        """From the ABI's JSON."""
        members = tuple(map(cls.of, entry.get("components", ())))
        kind = str(entry["type"])
        if members:
            kind = f"({','.join(member.type for member in members)}){kind.removeprefix('tuple')}"
        declared = str(entry.get("internalType", "")).removesuffix("[]").rpartition(" ")[2]
        return cls(str(entry["name"]), kind, declared, members, bool(entry.get("indexed")))

    def read(self, value: Any) -> Any:
        """From `eth_abi`'s form. Raises `ValueError` for a number that is no member of its enum."""
        return self._read(value, self.type)

    def _read(self, value: Any, kind: str) -> Any:
        if kind.endswith("[]"):
            return tuple(self._read(item, kind.removesuffix("[]")) for item in value)
        if self.members:
            found = named(self.members, value)
            record = _RECORDS.get(self.declared)
            return found if record is None else record(**{snake_case(name): item for name, item in found.items()})
        if kind == "address" and isinstance(value, str):
            return Address(bytes.fromhex(value.removeprefix("0x")))
        enum = _ENUMS.get(self.declared)
        return value if enum is None else enum(value)


def named(members: Sequence[Field], values: Sequence[Any]) -> dict[str, Any]:
    """Values in `eth_abi`'s form by their names, in ours."""
    return {member.name: member.read(value) for member, value in zip(members, values, strict=True)}


def decode_fields(members: Sequence[Field], data: bytes) -> dict[str, Any]:
    """Values by name, from their encoding. Raises `DecodingError`."""
    try:
        return named(members, decode([member.type for member in members], data))
    except ValueError as error:
        raise DecodingError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Entry:
    """A function, event or custom error. `topic`: keccak-256 of its name and types; its first 4 bytes select it."""

    name: str
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    topic: bytes

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "Entry":
        """From the ABI's JSON."""
        name, inputs = str(entry["name"]), tuple(map(Field.of, entry["inputs"]))
        signature = f"{name}({','.join(field.type for field in inputs)})"
        return cls(name, inputs, tuple(map(Field.of, entry.get("outputs", ()))), bytes(keccak(signature.encode())))

    @property
    def selector(self) -> bytes:
        """What calldata and reverts start with."""
        return self.topic[:4]

    def calldata(self, arguments: Sequence[Any]) -> bytes:
        """A call with these arguments, in the ABI's order."""
        return self.selector + encode([field.type for field in self.inputs], arguments)

    def arguments(self, calldata: bytes) -> tuple[Any, ...]:
        """The inverse of `calldata`, after the selector; in `eth_abi`'s form. Raises `DecodingError`."""
        return decode([field.type for field in self.inputs], calldata[4:])

    def result(self, data: bytes) -> Any:
        """What a function returned: None, its only value, or a tuple. Raises `DecodingError`."""
        try:
            values = decode([field.type for field in self.outputs], data)
            read = tuple(field.read(value) for field, value in zip(self.outputs, values, strict=True))
        except ValueError as error:
            raise DecodingError(str(error)) from error
        return read[0] if len(read) == 1 else read or None


@cache
def entries(kind: str) -> dict[str, Entry]:
    """Every `function`, `event` or `error` of the contracts, by name. No two differ under one name."""
    found = [e for contract in CONTRACTS for e in load_artifact(contract).abi if e["type"] == kind]
    return {entry["name"]: Entry.of(entry) for entry in found}


@cache
def _topics() -> dict[bytes, Entry]:
    return {event.topic: event for event in entries("event").values()}


@cache
def _errors() -> dict[bytes, Entry]:
    built_in = [Entry.of({"name": name, "inputs": [{"name": field, "type": kind}]}) for name, field, kind in _BUILT_IN]
    return {error.selector: error for error in (*entries("error").values(), *built_in)}


def read_log(topics: Sequence[bytes], data: bytes) -> tuple[str, dict[str, Any]] | None:
    """Name and values of an event; None for one of another contract. Raises `DecodingError`."""
    event = _topics().get(bytes(topics[0])) if topics else None
    if event is None:
        return None
    # Every indexed field of these contracts is one word, so it stands in its topic as it is.
    indexed = [field for field in event.inputs if field.indexed]
    values = decode_fields(indexed, b"".join(topics[1:]))
    values |= decode_fields([field for field in event.inputs if not field.indexed], data)
    return event.name, {field.name: values[field.name] for field in event.inputs}


def decode_revert(data: bytes, message: str) -> Reverted:
    """The error that a contract reverted with; `message` is the node's, for a revert without data."""
    if not data:
        return Reverted("Halted", {"message": message})
    error = _errors().get(data[:4])
    if error is None:
        return Reverted("Unknown", {"data": data})
    try:
        return Reverted(error.name, decode_fields(error.inputs, data[4:]))
    except DecodingError:
        return Reverted("Unknown", {"data": data})
