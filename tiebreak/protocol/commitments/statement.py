"""in-toto Statements (v1) in DSSE envelopes (`dsse`): what certificates and statements about the corpus share.

    payload   JSON, with sorted names and without spaces: `_type`, `subject` (names with SHA-256), `predicateType`, and
              `predicate`, of which each kind of statement has its own

There is one statement for one content: a reader builds it again (`require_same`) and compares every byte. A party signs
the envelope with its own key: `keyid` is `0x` and its address, `sig` the 65 bytes of `keys`. Signatures under other key
ids are for other tools.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.dsse import Envelope, Payload
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.errors import EncodingError, SignatureError
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.tags import Digest

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
WORDS: Final = "[ -~]{0,255}"
"""Printable ASCII, which may be shown on any terminal."""
FILE: Final = "[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
"""A file name that stands in Markdown and on a command line as it is."""


def document_of(subjects: Mapping[str, Digest], kind: str, predicate: Mapping[str, Any]) -> dict[str, Any]:
    """A statement of a kind about subjects, each with its SHA-256 by its name."""
    listed = [{"name": name, "digest": {"sha256": subjects[name].hex()}} for name in sorted(subjects)]
    return {"_type": STATEMENT_TYPE, "subject": listed, "predicateType": kind, "predicate": predicate}


def payload_of(document: dict[str, Any]) -> Payload:
    """The one encoding of a statement, as it is signed."""
    return Payload(kind=PAYLOAD_TYPE, data=json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii"))


def statement_of(payload: Payload, predicate_type: str, depth: int) -> JsonObject:
    """A statement of a type; its subject and predicate are still to be read. depth: see `parse_json`."""
    if payload.kind != PAYLOAD_TYPE:
        raise EncodingError(f"envelope: expected a payload of type {PAYLOAD_TYPE}, got {payload.kind}")
    top = JsonObject.parse("statement", payload.data, depth)
    top.same("_type", STATEMENT_TYPE)
    top.same("predicateType", predicate_type)
    return top


def require_same(payload: Payload, document: dict[str, Any], expected: str) -> None:
    """Raise `EncodingError` unless the payload is this document. expected: describes the document in words."""
    if payload_of(document) != payload:
        raise EncodingError(
            f"statement: expected {expected}, in its one spelling, got "
            f"{_difference('statement', document, json.loads(payload.data)) or 'another spelling of it'}"
        )


def sign(envelope: Envelope, key: keys.PrivateKey) -> Envelope:
    """The envelope with the signature of one more party."""
    return envelope.signed(hexed(key.address), key.sign(envelope.payload.digest, envelope.payload))


def signers_of(envelope: Envelope, name: str) -> list[Address]:
    """The addresses that signed. Raises `SignatureError` if a signature under an address is not by that address."""
    digest, found = envelope.payload.digest, list[Address]()
    for key_id, signature in envelope.signatures:
        if not key_id.startswith("0x"):
            continue
        try:
            signer = keys.recover(digest, signature)
        except SignatureError as error:
            raise SignatureError(f"{name}: expected a signature by {key_id}, got none: {error}") from error
        if key_id != hexed(signer):
            raise SignatureError(f"{name}: expected a signature by {key_id}, got one by {hexed(signer)}")
        found.append(signer)
    return found


def hexed(data: bytes) -> str:
    return f"0x{data.hex()}"


def digest_in(of: JsonObject, name: str) -> Digest:
    """The digest in a field, in hex."""
    return Digest(of.data(name, 32, ""))


def digests_in(of: JsonObject, name: str) -> tuple[Digest, ...]:
    """The digests in a field that holds a list of them."""
    found = of.take(name, "a list of roots", lambda items: isinstance(items, list))
    return tuple(digest_in(JsonObject(name, {"root": item}), "root") for item in found)


def subject_in(item: object) -> tuple[str, Digest]:
    """The name and the SHA-256 of a subject."""
    one = JsonObject("subject", item)
    return one.text("name", FILE, "the name of a file"), digest_in(one.inner("digest"), "sha256")


def texts_in(of: JsonObject) -> dict[str, str]:
    """All fields of an object that may have any printable names, each of them text."""
    found = {name: of.text(name, WORDS, "printable text") for name in of.names()}
    if not all(name.isascii() and name.isprintable() for name in found):
        raise EncodingError("statement: expected printable names, got others")
    return found


def is_list(value: object) -> bool:
    """Whether a JSON value is a list that is not empty."""
    return isinstance(value, list) and len(value) > 0


def _difference(name: str, expected: Any, found: Any) -> str:
    """The first place where two JSON values differ, in words; empty if they are equal."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        parts = (_difference(f"{name}, {key}", expected[key], found[key]) for key in sorted(expected))
        return next(filter(None, parts), "")
    if isinstance(expected, dict) and isinstance(found, dict):
        return f"{name} with other fields: {min(expected.keys() ^ found.keys())[:40]!r}"
    return "" if expected == found else f"{name} {str(found)[:80]!r} instead of {str(expected)[:80]!r}"
