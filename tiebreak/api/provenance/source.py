"""The fields of a format, and the input of its writer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.api.certification import folders
from tiebreak.api.certification.certificates import SignedCertificate
from tiebreak.api.provenance.about import About
from tiebreak.engine.data.arrays import open_safetensors
from tiebreak.engine.data.disk import read_file
from tiebreak.engine.data.elements import Element
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.statement import is_list
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.strict_json import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSource:
    """A certificate, the name of its file, and what else goes into other formats.

    folder: where the files are, with the weights if these are in a folder. key: that of whoever signs. text: of a card
    that is there already, with its header. chain: X.509 certificates of the key, in DER, leaf first. pending: files
    that are written at the same time, by their names. scores: a folder with scores of the weights.
    """

    signed: SignedCertificate
    certificate: str
    folder: Path
    key: PrivateKey | None = None
    text: str = ""
    about: About = field(default_factory=About)
    chain: tuple[bytes, ...] = ()
    pending: Mapping[str, bytes] = field(default_factory=dict)
    scores: Path | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The certified metrics, by name; none of weights."""
        return metrics_in(self.scores or self.folder) if self.signed.is_evaluation else {}

    def fields(self) -> dict[str, Any]:
        """The fields that templates name (`filling`): the predicate's, empty if it lacks them, and a few more."""
        document = self.signed.certificate.document()
        return {
            "adapter": {}, "sizes": {}, "settlement": {}, "audits": [], **document["predicate"],
            "subject": document["subject"], "digest": self.signed.certificate.payload.digest.hex(),
            "signatures": self.signed.signatures,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFormat:
    """A format of other tools. signer: in words. asks: names of `FIELDS` that it has a place for.

    again: the bytes that a file found has to have, or None if it is none of ours. Raises `VerificationError`. says: a
    sentence on what such a file says, with a space before it.
    """

    file: str
    make: Callable[[FormatSource], bytes]
    again: Callable[[FormatSource, bytes], bytes | None]
    signer: str = "nobody"
    asks: tuple[str, ...] = ()
    says: Callable[[bytes], str] = lambda _: ""


def metrics_in(folder: Path) -> dict[str, float]:
    """The metrics in a folder of scores, by name; none in one of weights. Raises `EncodingError`."""
    if not (path := folder / folders.EVALUATION).is_file() or not (folder / folders.SCORES).is_file():
        return {}
    names = JsonObject.parse(str(path), read_file(path, folders.MAX_JSON_BYTES), 4).take("metrics", "names", is_list)
    array = open_safetensors(folder / folders.SCORES).get("evaluation_metrics")
    if array is None or array.element != Element.F32 or array.shape != (len(names),):
        raise EncodingError(f"{folder / folders.SCORES}: expected metrics for {names}, f32, got others")
    values = np.frombuffer(b"".join(map(bytes, array.blocks())), "<f4")
    return {str(name): float(value) for name, value in zip(names, values, strict=True)}


def verify_command(signed: SignedCertificate, certificate: str) -> str:
    """The command by which a reader verifies the weights, with all signers required."""
    made = signed.certificate
    model = "." if len(made.files) > 1 or made.adapter or made.others is not None else next(iter(made.files))
    base = "" if made.adapter is None else " --base BASE"
    required = "".join(f" --require 0x{signer.hex()}" for signer in signed.signers)
    return f"tiebreak verify {model} {certificate}{base}{required}"
