"""Writes what a certificate says in formats of other tools, and checks such files against it. Imports no torch.

`FORMATS` is the table of them. Each is a file of a fixed name, in the folder of the weights, or, if these are one file,
in the certificate's. All say less than the certificate, and prove less. A check makes the file again from the
certificate and from what the file alone can have, its signature and its own text, and compares every byte.

    hub            a model card: a header as Hugging Face's Hub reads it, and a section of Markdown between comments,
                   which is checked; header and the other text are whatever their author wrote
    slsa           SLSA provenance (v1): the job is the build definition, with the job file as its external parameters;
                   program, data and first state are dependencies, the trainer is the builder
    model-signing  OpenSSF model signing (v1.0): the files of the weights with their SHA-256, in a Sigstore bundle, for
                   `model_signing verify key`
    receipt        a Computation Receipt (`tiebreak.protocol.commitments.computation_receipts`)

slsa and model-signing are signed by the P-256 key of a party (`tiebreak.api.signing.attesting`), slsa also by the
trainer's own key. They name that P-256 key, and there has to be a signature under its id in the certificate.

Fields of the certificate's predicate (and `subject`) -> fields of the format; what is not here is left out of it:

    hub            job.id, .program, .data, .firstState, finalState.root, adapter.root -> rows of the section
    slsa           subject -> subject; job -> buildDefinition.externalParameters.job; job.program, .data, .firstState ->
                   buildDefinition.resolvedDependencies; job.id -> runDetails.metadata.invocationId; job.trainer ->
                   runDetails.builder.id; head.runRoot -> runDetails.byproducts
    model-signing  subject -> resources
    receipt        job.program, .steps -> computation.id; job.policy, .precision -> arithmetic; job.firstState ->
                   model.digest; job.data -> input.digest; finalState.root -> output.digest
"""

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tiebreak.api.certification import folders
from tiebreak.api.certification.certificates import SignedCertificate
from tiebreak.api.signing.attesting import SLSA, check_pem, public_pem, signed_for_others
from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.protocol.commitments.certificate import Certificate
from tiebreak.protocol.commitments.computation_receipts import receipt_of_run, verdict
from tiebreak.protocol.commitments.dsse import Envelope, Payload
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.statement import FILE, STATEMENT_TYPE, is_list, payload_of, sign, signers_of
from tiebreak.protocol.errors import ConfigurationError, EncodingError, SignatureError, VerificationError
from tiebreak.protocol.strict_json import JsonObject

ROOT: Final = "tiebreakRoot"
"""The name of a digest that is the root of a tree (docs/SPEC.md), not the hash of a file."""
CARD: Final = "README.md"
BASE: Final = "base_model_name_or_path"
BEGIN, END = "<!-- tiebreak: what follows is made from the certificate -->", "<!-- tiebreak: end -->"
MAX_BYTES: Final = 1 << 24
_SECTION: Final = re.compile(rf"{re.escape(BEGIN)}\n.*?{re.escape(END)}\n", re.DOTALL)
_HEADER: Final = re.compile(r"---\n(.*?\n)?---\n", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSource:
    """A certificate, the name of its file, and the key of whoever signs.

    text: that of a card, with its header. base: the model that an adapter's configuration names, if that is on the Hub.
    """

    signed: SignedCertificate
    certificate: str
    key: PrivateKey | None = None
    text: str = ""
    base: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFormat:
    """A format of other tools. signer: in words. again: the bytes that a found file must have; None: it is not ours."""

    file: str
    signer: str
    make: Callable[[FormatSource], bytes]
    again: Callable[[FormatSource, bytes], bytes | None]


def write(names: Collection[str], source: FormatSource, model: Path, certificate: Path) -> list[Path]:
    """Writes the formats of these names, all or none of them, and returns their files. Raises `ConfigurationError`."""
    folder = model if model.is_dir() else certificate.parent
    if "hub" in names:
        there = read_file(folder / CARD, MAX_BYTES) if (folder / CARD).exists() else b""
        source = replace(source, text=source.text or there.decode(errors="surrogateescape"), base=_base(folder))
    made = {folder / FORMATS[name].file: FORMATS[name].make(source) for name in names}
    for path, data in made.items():
        write_file(path, data)
    return [*made]


def check(signed: SignedCertificate, model: Path, certificate: Path) -> Iterator[str]:
    """Checks the formats beside weights and certificate; a sentence for each. Raises `VerificationError`."""
    source = FormatSource(signed=signed, certificate=certificate.name)
    places = [place.resolve() for place in (model if model.is_dir() else model.parent, certificate.parent)]
    for path, name in ((place / kind.file, n) for place in dict.fromkeys(places) for n, kind in FORMATS.items()):
        if not path.is_file():
            continue
        data = read_file(path, MAX_BYTES)
        try:
            again = FORMATS[name].again(source, data)
        except VerificationError as error:
            raise type(error)(f"{path}: {error}") from error
        if again is not None and again != data:
            raise VerificationError(f"{path}: expected what this certificate makes of it as {name}, got another file")
        if again is not None:
            yield f"{path} ({name}) is what this certificate makes of it, signed by {FORMATS[name].signer}."


# ---------------------------------------------------------------- signed formats


def _slsa_payload(certificate: Certificate, pem: str) -> Payload:
    document = certificate.document()
    job = document["predicate"]["job"]
    dependencies = [{"name": name, "digest": {ROOT: job[name]}} for name in ("program", "data", "firstState")]
    predicate = {
        "buildDefinition": {
            "buildType": "urn:tiebreak:job:1", "externalParameters": {"job": job}, "resolvedDependencies": dependencies,
        },
        "runDetails": {
            "builder": {"id": f"urn:tiebreak:trainer:{job['trainer']}"}, "metadata": {"invocationId": job["id"]},
            "byproducts": [{"name": "run", "digest": {ROOT: certificate.head.head.run_root.hex()}}],
        },
    }  # fmt: skip
    return _payload(document["subject"], SLSA, predicate, pem)


def _slsa(source: FormatSource) -> bytes:
    key, trainer = source.key, source.signed.certificate.job.trainer
    if key is None or key.address != trainer:
        raise ConfigurationError(f"expected the key of the trainer, 0x{trainer.hex()}, SLSA's builder, got another")
    envelope = Envelope(payload=_slsa_payload(source.signed.certificate, public_pem(key)))
    return sign(signed_for_others(envelope, key), key).encode()


def _slsa_again(source: FormatSource, data: bytes) -> bytes:
    envelope, trainer = Envelope.decode(data), source.signed.certificate.job.trainer
    if signers_of(envelope, "SLSA provenance") != [trainer]:
        raise SignatureError(f"expected a signature by the trainer, 0x{trainer.hex()}, got none or others")
    return _again(source, envelope, _slsa_payload)[0].encode()


def _resources(certificate: Certificate, pem: str) -> Payload:
    digests = {file: certificate.files[file] for file in sorted(certificate.files)}
    predicate = {
        "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": []},
        "resources": [{"name": n, "algorithm": "sha256", "digest": d.hex()} for n, d in digests.items()],
    }
    subject = {"name": certificate.job.id.hex(), "digest": {"sha256": sha256(b"".join(digests.values())).hexdigest()}}
    return _payload([subject], "https://model_signing/signature/v1.0", predicate, pem)


def _bundle(envelope: Envelope, pem: str) -> bytes:
    bundle = {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "dsseEnvelope": json.loads(envelope.encode()),
        "verificationMaterial": {"publicKey": {"hint": sha256(pem.encode()).hexdigest()}, "tlogEntries": []},
    }  # fmt: skip
    return json.dumps(bundle).encode() + b"\n"


def _signature(source: FormatSource) -> bytes:
    if source.key is None:
        raise ConfigurationError("expected the key of whoever signs the model, got none")
    pem = public_pem(source.key)
    envelope = Envelope(payload=_resources(source.signed.certificate, pem))
    return _bundle(signed_for_others(envelope, source.key), pem)


def _signature_again(source: FormatSource, data: bytes) -> bytes:
    found = JsonObject.parse("bundle", data, 8).take("dsseEnvelope", "an object", lambda x: isinstance(x, dict))
    envelope = Envelope.decode(json.dumps(found).encode())
    if len(envelope.signatures) != 1:
        raise SignatureError(f"expected one signature, got {len(envelope.signatures)}")
    return _bundle(*_again(source, envelope, _resources))


def _payload(subjects: list[Any], kind: str, predicate: dict[str, Any], pem: str) -> Payload:
    """The first subject names the P-256 key that signs."""
    subjects = [subjects[0] | {"annotations": {"publicKey": pem}}, *subjects[1:]]
    return payload_of({"_type": STATEMENT_TYPE, "subject": subjects, "predicateType": kind, "predicate": predicate})


def _again(source: FormatSource, envelope: Envelope, payload: Callable[..., Payload]) -> tuple[Envelope, str]:
    """The envelope with the payload that the certificate gives, and the PEM of the P-256 key that signed it."""
    statement = JsonObject.parse("statement", envelope.payload.data, 8)
    subject = statement.take("subject", "at least one", is_list)[0]
    pem = JsonObject("subject", subject).inner("annotations").text("publicKey")
    check_pem(envelope, pem, source.signed.envelope)
    return replace(envelope, payload=payload(source.signed.certificate, pem)), pem


# ---------------------------------------------------------------- receipts


def _receipt(source: FormatSource) -> bytes:
    made = source.signed.certificate
    return receipt_of_run(made.job, made.record.state_root, {"tiebreakCertificate": made.payload.digest.hex()})


def _receipt_again(source: FormatSource, data: bytes) -> bytes:
    own = _receipt(source)
    if data != own:
        raise VerificationError(f"expected the receipt of this certificate, got another: {verdict(data, own)}")
    return own


# ---------------------------------------------------------------- model cards


def _card(source: FormatSource) -> bytes:
    """The card: header, then section, then the text of the one that is there, with a header of its own or without."""
    if not re.fullmatch(FILE, source.certificate):
        raise ConfigurationError(f"expected a certificate with a plain name, got {source.certificate!r}")
    header, fields = _HEADER.match(source.text), {"base_model": source.base} if source.base else {}
    there = (header and header[1]) or ""
    if source.signed.certificate.adapter is not None:
        fields |= {"base_model_relation": "adapter", "library_name": "peft"}
    made = "".join(f'{n}: "{fields[n]}"\n' for n in fields if not re.search(rf"^{n}:", there, re.MULTILINE))
    body = _SECTION.sub("", source.text[header.end() :] if header else source.text).lstrip()
    text = f"---\n{there}{made}---\n{_section(source.signed, source.certificate)}\n{body}"
    return text.encode(errors="surrogateescape")


def _card_again(source: FormatSource, data: bytes) -> bytes | None:
    if BEGIN.encode() not in data and END.encode() not in data:
        return None
    text = data.decode(errors="surrogateescape")
    # Counted first: a search from each of many beginnings without an end would take for ever.
    found = _SECTION.findall(text) if text.count(BEGIN) == text.count(END) == 1 else []
    name = re.search(rf"\]\(({FILE})\)", found[0]) if found else None
    if name is None:
        raise EncodingError("expected one section made from a certificate, between its two comments, got another")
    # Who signs later need not write the card again: it may name some of the signers.
    signers = [signer for signer in source.signed.signers if f"0x{signer.hex()}" in found[0]]
    section = _section(replace(source.signed, signers=signers), name[1])
    return text.replace(found[0], section).encode(errors="surrogateescape")


def _section(signed: SignedCertificate, certificate: str) -> str:
    job, adapter, files = signed.certificate.job, signed.certificate.adapter, signed.certificate.files
    model = "." if len(files) > 1 or adapter or signed.certificate.others is not None else next(iter(files))
    base, given = ("", "") if adapter is None else (f"\n| Base | `{adapter.root.hex()}` |", " --base BASE")
    signers = "\n".join(f"| Signed by {signed.role(signer)} | `0x{signer.hex()}` |" for signer in signed.signers)
    required = "".join(f" --require 0x{signer.hex()}" for signer in signed.signers)
    return f"""{BEGIN}
## Certificate

    tiebreak verify {model} {certificate}{given}{required}

These weights are what {job.steps:,} steps of a fixed program make of fixed data, from a fixed first state.
Every result is defined to the last bit, so anybody who trains again gets the same bytes.
[{certificate}]({certificate}) says which, and `tiebreak verify` checks every tensor against it.

| | |
| --- | --- |
| Certificate | `{signed.certificate.payload.digest.hex()}` |
| Job | `{job.id.hex()}` |
| Program | `{job.program_root.hex()}` |
| Data | `{job.data_root.hex()}` |
| First state | `{job.initial_state_root.hex()}` |{base}
| Final state | `{signed.certificate.record.state_root.hex()}` |
{signers}

It does not show that the run was computed as agreed: its signers say so, and an audit finds out.
{END}
"""


def _base(folder: Path) -> str:
    """The id of the base model that an adapter's configuration names; empty if it is none of the Hub's."""
    path = folder / folders.ADAPTER
    found = JsonObject.parse(str(path), read_file(path, MAX_BYTES) if path.is_file() else b"{}", folders.MAX_NESTING)
    name = str(found.take(BASE, "a name", lambda _: True)) if BASE in found else ""
    return name if re.fullmatch(r"\w[\w.-]{0,95}(?:/[\w.-]{1,96})?", name, re.ASCII) else ""


FORMATS: Final = {
    "hub": CertificateFormat(file=CARD, signer="nobody (its marked section)", make=_card, again=_card_again),
    "slsa": CertificateFormat(file=folders.SLSA, signer="the trainer", make=_slsa, again=_slsa_again),
    "model-signing": CertificateFormat(
        file=folders.MODEL_SIGNATURE,
        signer="a key that signed the certificate too",
        make=_signature,
        again=_signature_again,
    ),
    "receipt": CertificateFormat(file=folders.RECEIPT, signer="nobody", make=_receipt, again=_receipt_again),
}
"""All formats, by the names that `tiebreak certify --for` takes."""
