"""Hands the attestation in a certificate to a program of the user's, and returns its output.

The program's answer counts for nothing here: a machine that signs what it runs does not show that a result is right,
and a replay shows it without such a machine. The program is the user's own; the evidence, and whatever the program
prints about it, come from a stranger.
"""

import shlex
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Final

from tiebreak.engine.system import end_session
from tiebreak.protocol.commitments.certificate import Certificate
from tiebreak.protocol.errors import ConfigurationError

SECONDS: Final = 60.0
MAX_SAID_BYTES: Final = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierOutput:
    """The answer of a verifier. code: its exit status, None if it was stopped. text: printable, of at most 16 KiB."""

    code: int | None
    text: str


def ask(certificate: Certificate, command: str) -> VerifierOutput | None:
    """Runs `COMMAND TYPE NONCE` with the evidence on its standard input; None if the certificate has none.

    The nonce, in hex, is the run root. The verifier has to find it in the evidence: else this is evidence of something
    else. After a minute, or when its output exceeds a limit, the verifier is killed with all that it has started in its
    session. Raises `ConfigurationError` if the command cannot be run.
    """
    attestation = certificate.attestation
    if attestation is None:
        return None
    with tempfile.TemporaryFile() as evidence:
        evidence.write(attestation.evidence)
        evidence.seek(0)
        try:
            words = [*shlex.split(command), attestation.kind, certificate.head.head.run_root.hex()]
            process = subprocess.Popen(
                words, stdin=evidence, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"expected a command that verifies attestations, got {command!r}: {error}"
            ) from error
        with process:
            data, ended = _said(process, time.monotonic() + SECONDS)
    # Text that cannot move a terminal's cursor or hide anything: ASCII and line ends, and escapes for all else.
    text = data.decode("utf-8", "backslashreplace")
    text = "".join(c if c == "\n" or " " <= c <= "~" else c.encode("unicode_escape").decode() for c in text)
    return VerifierOutput(code=process.returncode if ended else None, text=text.rstrip("\n"))


def _said(process: subprocess.Popen[bytes], until: float) -> tuple[bytes, bool]:
    """The output of a process, and whether it ended by itself. Nothing of its session is left."""
    assert process.stdout is not None
    data, output = bytearray(), process.stdout

    def read() -> None:
        with suppress(ValueError):  # it was closed, while something that left the session still held it open
            while len(data) <= MAX_SAID_BYTES and (block := output.read(4096)):
                data.extend(block)

    reader = Thread(target=read, daemon=True)
    reader.start()
    try:
        reader.join(until - time.monotonic())
        if not reader.is_alive() and len(data) <= MAX_SAID_BYTES:
            process.wait(max(until - time.monotonic(), 0))
            return bytes(data), True
    except subprocess.TimeoutExpired:
        pass
    finally:
        end_session(process)
    return bytes(data[:MAX_SAID_BYTES]), False
