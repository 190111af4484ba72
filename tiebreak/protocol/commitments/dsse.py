"""DSSE v1 envelopes, the JSON files in which in-toto's statements are signed by any number of keys.

    envelope   {"payload": base64, "payloadType": text, "signatures": [{"keyid": text, "sig": base64}, ...]}
    PAE        `DSSEv1 ` || length of type || ` ` || type || ` ` || length of payload || ` ` || payload, lengths in
               decimal; its SHA-256 is what a key signs

https://github.com/secure-systems-lab/dsse/blob/v1.0.2/protocol.md. A key id is only a hint of whose a signature is.
"""

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, Self

from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.tags import Digest

MAX_ENVELOPE_BYTES: Final = 128 << 10
"""Room for the certificate of an adapter on all linear layers of a model with 126 layers, with an attestation."""
MAX_SIGNATURES: Final = 64
MAX_SIGNATURE_BYTES: Final = 512
_DEPTH: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The data that are signed, and their media type."""

    kind: str
    data: bytes

    @property
    def pae(self) -> bytes:
        """The bytes that are hashed and signed: DSSE's pre-authentication encoding."""
        kind = self.kind.encode()
        return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(self.data), self.data)

    @property
    def digest(self) -> Digest:
        return Digest(sha256(self.pae).digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A payload with its signatures by key id, none of which is checked here."""

    payload: Payload
    signatures: tuple[tuple[str, bytes], ...] = ()

    def signed(self, key_id: str, signature: bytes) -> Self:
        """The same with one more signature, or another one under this key id."""
        return replace(self, signatures=tuple((dict(self.signatures) | {key_id: signature}).items()))

    def encode(self) -> bytes:
        """The file. Raises `EncodingError` for one that nobody would read."""
        signatures = [{"keyid": key_id, "sig": base64(signature)} for key_id, signature in self.signatures]
        kind, data = self.payload.kind, base64(self.payload.data)
        made = json.dumps({"payload": data, "payloadType": kind, "signatures": signatures}).encode() + b"\n"
        _check_size(len(made))
        return made

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Reads a file. Raises `EncodingError`."""
        _check_size(len(data))
        top = JsonObject.parse("envelope", data, _DEPTH)
        payload = Payload(
            kind=top.text("payloadType", "[ -~]{1,128}"), data=from_base64("payload", top.text("payload"))
        )
        few = f"up to {MAX_SIGNATURES} signatures"
        listed = top.take("signatures", few, lambda x: isinstance(x, list) and len(x) <= MAX_SIGNATURES)
        top.finish()
        found: dict[str, bytes] = {}
        for number, item in enumerate(listed):
            one = JsonObject(f"envelope, signature {number + 1}", item)
            key_id = one.text("keyid", "[ -~]{0,128}", "up to 128 printable characters")
            signature = from_base64("signature", one.text("sig"))
            one.finish()
            if key_id in found or len(signature) > MAX_SIGNATURE_BYTES:
                raise EncodingError(f"envelope: expected one short signature for each key id, got {key_id!r} otherwise")
            found[key_id] = signature
        return cls(payload=payload, signatures=tuple(found.items()))


def base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def from_base64(name: str, text: str) -> bytes:
    """Decodes standard base64 with its padding. Raises `EncodingError` for any other spelling of the same bytes."""
    try:
        data = b64decode(text.encode("ascii"), validate=True)
    except ValueError as error:
        raise EncodingError(f"{name}: expected base64, got {text[:40]!r}") from error
    if base64(data) != text:
        raise EncodingError(f"{name}: expected the one base64 of these bytes, got another")
    return data


def _check_size(size: int) -> None:
    if size > MAX_ENVELOPE_BYTES:
        raise EncodingError(f"envelope: expected at most {MAX_ENVELOPE_BYTES} bytes, got {size}")
