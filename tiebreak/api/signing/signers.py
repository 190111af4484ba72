"""A key that stays in another process (a wallet, a hardware device's helper): signatures over a Unix socket.

The path of the socket stands wherever a key file may. Each request is one connection: one line of JSON there, one line
back, both ASCII and ended by a newline.

    -> {"version": 1, "method": "address"}
    <- {"address": "0x..."}
    -> {"version": 1, "method": "sign", "address": "0x...", "kind": KIND, "digest": "0x...", "about": ABOUT}
    <- {"signature": "0x..."}          65 bytes: r, s (in the lower half), v (27 or 28)
    <- {"error": "words for the owner"}

KIND says what the digest (32 bytes) is of, so that the signer can compute it again and show what it signs:

    typed         ABOUT is the argument of `eth_signTypedData_v4` (EIP-712)
    dsse          ABOUT has the fields `payloadType` and `payload` (base64) of a DSSE envelope: the statement of a
                  certificate (`tiebreak certify`)
    transaction   ABOUT has the fields of an EIP-1559 transaction: numbers in decimal, bytes in hex, `to` absent for a
                  new contract
    secret        ABOUT is null. The signature is never shown to anybody: its hash is a salt, or a key that opens sealed
                  jobs. It is asked for twice, because the signer must give the same one always (RFC 6979).

Whatever comes back is checked: a signature of another key, or over another digest, is refused here.
"""

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tiebreak.protocol.commitments.dsse import Payload, base64
from tiebreak.protocol.commitments.eip712 import Address, TypedData
from tiebreak.protocol.commitments.keys import About, PrivateKey, verify
from tiebreak.protocol.errors import ConfigurationError, EncodingError, SignatureError
from tiebreak.protocol.strict_json import JsonObject

VERSION: Final = 1
SIGNER_SECONDS: Final = 120.0
"""The time that a person has to confirm."""
MAX_ANSWER_BYTES: Final = 4096
MIN_SECONDS: Final = 0.001
"""The shortest wait that is one: a timeout of 0 would mean none at all."""


class SignerKey(PrivateKey):
    """A key behind a socket. Every failure of the signer is a `ConfigurationError` that names the socket."""

    __slots__ = ("_path", "_seconds")

    def __init__(self, path: Path, seconds: float = SIGNER_SECONDS) -> None:
        """Asks the signer for its address."""
        self._path = path
        self._seconds = seconds
        self.address = Address(self._ask({"method": "address"}, "address", 20))

    def sign(self, digest: bytes, about: About = None) -> bytes:
        """Asks for a signature and checks it."""
        (kind, shown), address = _described(about), f"0x{self.address.hex()}"
        request = {"method": "sign", "address": address, "kind": kind, "digest": f"0x{digest.hex()}", "about": shown}
        signature = self._ask(request, "signature", 65)
        try:
            verify(digest, signature, self.address)
        except SignatureError as error:
            raise ConfigurationError(f"{self._path}: {error}") from error
        if about is None and self._ask(request, "signature", 65) != signature:
            raise ConfigurationError(
                f"{self._path}: expected the same signature for the same digest, got two; secrets cannot be derived "
                "from such a key"
            )
        return signature

    def to_pem(self, passphrase: str) -> bytes:  # noqa: ARG002 (there is nothing to encrypt)
        raise ConfigurationError(f"{self._path}: the key of a signer cannot be written to a file")

    def _ask(self, request: Mapping[str, Any], field: str, length: int) -> bytes:
        try:
            line = self._exchange(json.dumps({"version": VERSION, **request}).encode("ascii") + b"\n")
        except OSError as error:
            raise ConfigurationError(f"{self._path}: the signer does not answer: {error}") from error
        try:
            answer = JsonObject.parse(str(self._path), line, 1)
            if "error" in answer:
                raise ConfigurationError(f"{self._path}: the signer refuses: {answer.text('error')[:200]}")
            text = answer.text(field, f"0x[0-9a-fA-F]{{{2 * length}}}", f"0x and {2 * length} hex digits")
            answer.finish()
        except EncodingError as error:
            raise ConfigurationError(f"expected an answer of a signer: {error}") from error
        return bytes.fromhex(text[2:])

    def _exchange(self, request: bytes) -> bytes:
        """Sends a line and returns the line that answers, within one time limit, however slowly its bytes come."""
        if not hasattr(socket, "AF_UNIX"):
            raise OSError("this system has no Unix sockets")
        answer, end = b"", time.monotonic() + self._seconds
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._seconds)
            connection.connect(str(self._path))
            connection.sendall(request)
            while not answer.endswith(b"\n"):
                if len(answer) > MAX_ANSWER_BYTES:
                    raise OSError(f"expected a line of at most {MAX_ANSWER_BYTES} bytes, got more")
                connection.settimeout(max(end - time.monotonic(), MIN_SECONDS))
                if not (data := connection.recv(MAX_ANSWER_BYTES)):
                    raise OSError("it ended the connection before its answer was complete")
                answer += data
        return answer


def _described(about: About) -> tuple[str, dict[str, Any] | None]:
    """KIND and ABOUT of a request. The fields of a transaction are bytes, integers, or an empty access list."""
    if about is None:
        return "secret", None
    if isinstance(about, TypedData):
        return "typed", about.to_json()
    if isinstance(about, Payload):
        return "dsse", {"payloadType": about.kind, "payload": base64(about.data)}
    fields = {name: str(value) if isinstance(value, int) else value for name, value in about.items()}
    fields |= {name: f"0x{value.hex()}" for name, value in about.items() if isinstance(value, bytes)}
    return "transaction", fields
