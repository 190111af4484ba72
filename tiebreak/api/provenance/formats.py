"""Writes what a certificate says in formats of other tools, and checks such files against it. Imports no torch.

`FORMATS` is the table of them. Each is a file of a fixed name, in the folder of the weights, or, if these are one file,
in the certificate's. All say less than the certificate, and prove less. A check makes the file again from the
certificate and from what the file alone can have, its signature and its own text, and compares every byte.

    hub            a model card: a header as Hugging Face's Hub reads it, and a section of Markdown between comments,
                   which is checked; header and the other text are whatever their author wrote
    slsa           SLSA provenance (v1): the job is the build definition, with the job file as its external parameters;
                   program, data and first state are dependencies, the trainer is the builder
    in-toto        a training run by a predicate of our own (docs/predicate.md), with a level of assurance
    model-signing  OpenSSF model signing (v1.0): all files of the folder with their SHA-256, in a Sigstore bundle, for
                   `model_signing verify key`, or `certificate` with a chain of X.509 certificates
    dossier        a page for an AI Act file, with what a person declares (`about`)
    cyclonedx      a bill of materials for models (1.6), with what a person declares
    spdx           a document of SPDX 3.0.1, with what a person declares
    receipt        a Computation Receipt (`tiebreak.protocol.commitments.computation_receipts`)

slsa, in-toto and model-signing are signed by the P-256 key of a party (`tiebreak.api.signing.attesting`), slsa also by
the trainer's own key. They name that P-256 key, and there has to be a signature under its id in the certificate.

Fields of the certificate's predicate (and `subject`) -> fields of the format; what is not here is left out of it:

    hub            job.id, .program, .data, .firstState, finalState.root, adapter.root -> rows of the section
    slsa           subject -> subject; job -> buildDefinition.externalParameters.job; job.program, .data, .firstState ->
                   buildDefinition.resolvedDependencies; job.id -> runDetails.metadata.invocationId; job.trainer ->
                   runDetails.builder.id; head.runRoot -> runDetails.byproducts
    in-toto        subject -> subject; job.id, .steps -> job; job.program, .data, .firstState, adapter.root -> inputs;
                   finalState.root -> finalState; job.policy, .precision -> arithmetic; signatures -> signers,
                   assuranceLevel
    model-signing  subject -> resources
    dossier        subject, job.program, .data, .firstState, .steps, .policy, .precision, finalState.root, adapter.root,
                   sizes, environment, settlement, audits -> lines of the page
    cyclonedx      subject, others, adapter.configuration -> metadata.component.components; finalState.root, sizes ->
                   metadata.component; adapter.root, job.data -> components; job.program, .firstState, .id, .trainer,
                   .client, .steps, .checkpoints, .policy, .precision, head.runRoot, environment -> formulation
    spdx           subject, others, adapter.configuration -> software_File; finalState.root, adapter.root ->
                   ai_AIPackage; job.data -> dataset_DatasetPackage; job.program, .firstState -> software_Package;
                   job.trainer -> Agent; job.id, .steps, .checkpoints, .policy, .precision, head.runRoot, environment ->
                   build_Build
    receipt        job.program, .steps -> computation.id; job.policy, .precision -> arithmetic; job.firstState ->
                   model.digest; job.data -> input.digest; finalState.root -> output.digest
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from tiebreak.api.certification import folders
from tiebreak.api.certification.certificates import SignedCertificate
from tiebreak.api.provenance import bills, cards, dossier, model_signatures, receipts, statements
from tiebreak.api.provenance.source import CertificateFormat, FormatSource
from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.protocol.errors import ConfigurationError, VerificationError

CARD: Final = "README.md"
LAST: Final = "model-signing"
"""The format that covers the files of all others."""
COSIGNER: Final = "a key that signed the certificate too"
MAX_BYTES: Final = 1 << 24


def write(names: Collection[str], source: FormatSource) -> list[Path]:
    """Writes the formats of these names, all or none of them, and returns their files. Raises `ConfigurationError`."""
    if "hub" in names and not source.text and (card := source.folder / CARD).exists():
        source = replace(source, text=read_file(card, MAX_BYTES).decode(errors="surrogateescape"))
    made: dict[str, bytes] = {}
    for name in sorted(names, key=lambda name: name == LAST):
        made[FORMATS[name].file] = FORMATS[name].make(replace(source, pending=made))
    for file, data in made.items():
        write_file(source.folder / file, data)
    return [source.folder / file for file in made]


def keep_bundle(names: Collection[str], model: Path, certificate: Path, *, signs: bool = True) -> None:
    """Raises `ConfigurationError` if a bundle covers all files of a folder, and others are to be written there.

    signs: whether the certificate is written.
    """
    changes = bool(names) or (signs and certificate.resolve().is_relative_to(model.resolve()))
    if LAST not in names and changes and model.is_dir() and (model / folders.MODEL_SIGNATURE).exists():
        raise ConfigurationError(
            f"{model / folders.MODEL_SIGNATURE}: expected no signature of the whole folder where a file is to change, "
            f"got one; add {LAST} to --for, so that it is made again by your key, or remove it"
        )


def check(signed: SignedCertificate, model: Path, certificate: Path) -> Iterator[str]:
    """Checks the formats beside weights and certificate; a sentence for each. Raises `VerificationError`."""
    places = [place.resolve() for place in (folder_of(model, model), certificate.parent)]
    for place, (name, kind) in ((place, item) for place in dict.fromkeys(places) for item in FORMATS.items()):
        path = place / kind.file
        if not path.is_file():
            continue
        data = read_file(path, MAX_BYTES)
        try:
            scores = model if model.is_dir() else None
            source = FormatSource(signed=signed, certificate=certificate.name, folder=place, scores=scores)
            again = kind.again(source, data)
        except VerificationError as error:
            raise type(error)(f"{path}: {error}") from error
        if again is not None and again != data:
            raise VerificationError(
                f"{path}: expected what this certificate makes of it as {name}, got another file: it was changed, or "
                f"made by another version of tiebreak; `certify --for {name}` makes it again"
            )
        if again is not None:
            but = ", but for what it declares of the model," if kind.asks else ","
            signed_by = f"signed by {kind.signer}.{kind.says(data)}"
            yield f"{path} ({name}) is what this certificate makes of it{but} {signed_by}"


def folder_of(model: Path, certificate: Path) -> Path:
    """The folder of the formats: that of the weights, or, if these are one file, that of the certificate."""
    return model if model.is_dir() else certificate.parent


FORMATS: Final = {
    "hub": CertificateFormat(
        file=CARD, signer="nobody (its marked section)", make=cards.card, again=cards.card_again, asks=cards.HEADER
    ),
    "slsa": CertificateFormat(
        file=folders.SLSA, signer="the trainer", make=statements.slsa, again=statements.slsa_again
    ),
    "in-toto": CertificateFormat(
        file=folders.IN_TOTO, signer=COSIGNER, make=statements.training_run, again=statements.training_run_again,
        says=statements.training_run_says,
    ),
    "model-signing": CertificateFormat(
        file=folders.MODEL_SIGNATURE, signer=COSIGNER, make=model_signatures.model_signature,
        again=model_signatures.model_signature_again, says=model_signatures.model_signature_says,
    ),
    "dossier": CertificateFormat(
        file=folders.DOSSIER, make=dossier.dossier, again=dossier.dossier_again, asks=dossier.ASKED
    ),
    "cyclonedx": CertificateFormat(
        file=folders.CYCLONEDX, make=bills.cyclonedx, again=bills.cyclonedx_again, asks=bills.CDX_ASKS
    ),
    "spdx": CertificateFormat(file=folders.SPDX, make=bills.spdx, again=bills.spdx_again, asks=bills.SPDX_ASKS),
    "receipt": CertificateFormat(file=folders.RECEIPT, make=receipts.receipt, again=receipts.receipt_again),
}  # fmt: skip
"""All formats, by the names that `tiebreak certify --for` takes."""
