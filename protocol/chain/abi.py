"""The contract ABI: calls, results and logs between Python values and bytes, by the names in the ABI."""

from collections.abc import Sequence
from typing import Any

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError
from eth_hash.auto import keccak

Entry = dict[str, Any]
"""A function, event, error or field as the compiler describes it."""


def abi_type(field: Entry) -> str:
    """The canonical type of a field: tuples written out."""
    kind = str(field["type"])
    if not kind.startswith("tuple"):
        return kind
    return f"({','.join(abi_type(part) for part in field['components'])}){kind.removeprefix('tuple')}"


def topic_of(entry: Entry) -> bytes:
    """keccak-256 of name and types: the first topic of an event."""
    types = ",".join(abi_type(field) for field in entry["inputs"])
    return bytes(keccak(f"{entry['name']}({types})".encode("ascii")))


def selector_of(entry: Entry) -> bytes:
    """The first 4 bytes of a call of a function, or of the data of an error."""
    return topic_of(entry)[:4]


def named(fields: Sequence[Entry], values: Sequence[Any]) -> dict[str, Any]:
    """Decoded values by name; structs become dictionaries, at any depth."""
    names = (field["name"] or f"argument{index}" for index, field in enumerate(fields))
    return {name: _structs(f, value) for name, f, value in zip(names, fields, values, strict=True)}


def _structs(field: Entry, value: Any) -> Any:
    if field["type"] == "tuple":
        return named(field["components"], value)
    if field["type"] == "tuple[]":
        return [named(field["components"], item) for item in value]
    return value


def decode_named(fields: Sequence[Entry], data: bytes) -> dict[str, Any]:
    """Values by name. Raises `DecodingError`."""
    return named(fields, decode([abi_type(field) for field in fields], data))


class Interface:
    """The functions and events of one contract."""

    __slots__ = ("_events", "_functions")

    def __init__(self, abi: Sequence[Entry]) -> None:
        self._functions = {entry["name"]: entry for entry in abi if entry["type"] == "function"}
        self._events = {topic_of(entry): entry for entry in abi if entry["type"] == "event"}

    def call(self, name: str, *arguments: Any) -> bytes:
        """Calldata of a call."""
        entry = self._functions[name]
        return selector_of(entry) + encode([abi_type(field) for field in entry["inputs"]], arguments)

    def result(self, name: str, data: bytes) -> Any:
        """The one value that a function returns; a struct as a tuple. Raises `DecodingError`."""
        (value,) = decode([abi_type(field) for field in self._functions[name]["outputs"]], data)
        return value

    def read_call(self, data: bytes) -> tuple[str, dict[str, Any]] | None:
        """Function and named arguments of calldata; None if it calls none of these functions."""
        for name, entry in self._functions.items():
            if selector_of(entry) == data[:4]:
                try:
                    return name, decode_named(entry["inputs"], data[4:])
                except DecodingError:
                    return None
        return None

    def read_log(self, topics: Sequence[bytes], data: bytes) -> tuple[str, dict[str, Any]] | None:
        """Event and named values of a log entry; None if it is none of these events."""
        entry = self._events.get(bytes(topics[0])) if topics else None
        if entry is None:
            return None
        indexed = [field for field in entry["inputs"] if field["indexed"]]
        plain = [field for field in entry["inputs"] if not field["indexed"]]
        # Every indexed value of these contracts is one word, so it stands in its topic as it is.
        return entry["name"], {**decode_named(indexed, b"".join(topics[1:])), **decode_named(plain, data)}
