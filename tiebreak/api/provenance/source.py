"""What a format is, and what its writer is given."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tiebreak.api.certification.certificates import SignedCertificate
from tiebreak.api.provenance.about import About
from tiebreak.protocol.commitments.keys import PrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSource:
    """A certificate, the name of its file, and what else goes into other formats.

    folder: where the files are, with the weights if these are in a folder. key: that of whoever signs. text: of a card
    that is there already, with its header.
    """

    signed: SignedCertificate
    certificate: str
    folder: Path
    key: PrivateKey | None = None
    text: str = ""
    about: About = field(default_factory=About)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFormat:
    """A format of other tools. signer: in words. asks: names of `FIELDS` that it has a place for.

    again: the bytes that a file found has to have, or None if it is none of ours. Raises `VerificationError`.
    """

    file: str
    signer: str
    make: Callable[[FormatSource], bytes]
    again: Callable[[FormatSource, bytes], bytes | None]
    asks: tuple[str, ...] = ()
