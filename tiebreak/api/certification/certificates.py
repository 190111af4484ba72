"""Checks weights against a certificate (`tiebreak.protocol.commitments.certificate`). Imports no torch.

Numbered plan of `verify`: (1) the certificate holds by itself: statement, job, head, record and signatures; (2) the
parties who are asked for have signed; (3) only plain files are read, no tensor is in two of them, and an index, if
there is one, says where each is; (4) the files have the SHA-256 that was signed for, whatever they are called now;
(5) the tensors are those of the final state, all of them and no others, and an adapter's configuration is the one that
was signed for; (6) what loads the folder loads these files and runs no code of it, and its other files are those that
were signed for, if the certificate names any (`folders`); (7) the final state has the tensors of the base that is
given, under this adapter. One pass over the files gives (4) and (5).
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import Final, Self

from tiebreak.api.certification import folders
from tiebreak.api.certification.folders import ADAPTER, INDEX, WEIGHTS, Found, listed
from tiebreak.engine.data.arrays import check_bools, safetensors_in
from tiebreak.engine.data.disk import Folder, Stamp, opened, read_exactly, read_file
from tiebreak.engine.data.elements import Element
from tiebreak.engine.data.hashing import hasher
from tiebreak.protocol.commitments.certificate import Certificate
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES, Envelope
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.records import TensorStream
from tiebreak.protocol.errors import ConfigurationError, EncodingError, SignatureError, VerificationError
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.tags import Digest

MAX_INDEX_BYTES: Final = 1 << 24
SUFFIX: Final = ".safetensors"
MAX_CONFIGURATION_BYTES: Final = 1 << 20
WIDENED: Final = (Element.BF16, Element.F16)
"""Elements that are compared as the F32 of the same value: a state has no narrower ones."""
CHECK: Final = "check"
"""The field of `environment` that says how the program was compared with its model, if that was not the whole of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedCertificate:
    """A certificate that holds by itself, and who has signed it."""

    certificate: Certificate
    signers: list[Address]
    envelope: Envelope

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Reads and checks a certificate without its weights. Raises `VerificationError`."""
        envelope = Envelope.decode(data)
        certificate = Certificate.decode(envelope.payload)
        certificate.verify()
        return cls(certificate=certificate, signers=certificate.signers(envelope), envelope=envelope)

    def role(self, signer: Address) -> str:
        """The role of a signer in the job; one who is no party of it is called an auditor."""
        job = self.certificate.job
        return {job.trainer: "trainer", job.client: "client"}.get(signer, "auditor")

    def proves(self) -> list[str]:
        """Sentences that follow from the certificate alone."""
        job, domain = self.certificate.job, self.certificate.agreement.domain
        where = f"board 0x{domain.contract.hex()} of chain {domain.chain_id}" if domain.chain_id else "no chain"
        said = [
            f"The client 0x{job.client.hex()} and the trainer 0x{job.trainer.hex()} agreed on program, data, first "
            f"state and {job.steps:,} steps, with {where} to judge them; both signed.",
            "The trainer is bound to the final state: a replay that ends in another one convicts it by the signed head "
            "in this certificate.",
        ]
        for signer in self.signers:
            if self.role(signer) == "auditor":
                said.append(
                    f"0x{signer.hex()} signed too, and so says that its own replay of the run ended in this state."
                )
            elif self.role(signer) == "client":
                said.append("The client signed for these weights too.")
        return said

    def leaves_open(
        self, found: Found | None = None, *, chain_asked: bool = False, base_given: bool = False
    ) -> list[str]:
        """Sentences on what the certificate does not prove. found: the files that were checked, if any."""
        certificate = self.certificate
        rest = certificate.job.state_count - certificate.weights.count
        said = [
            "That the run was computed as agreed: the signers say so. An audit finds out, with the run's files.",
            "Whose the keys are, and that the signers are independent of each other: anybody can make keys.",
            "What program and data are: they are named by their roots, and shown by the run's files.",
            "When it was signed, and on which machine: that is the word of whoever made it.",
        ]
        if certificate.attestation is not None:
            said.append(
                f"What the attestation in it, of type {certificate.attestation.kind}, says of a machine: nothing here "
                "reads it (--attestation-verifier), and no machine's word makes a result right."
            )
        if certificate.job.is_logged:
            said.append("Unverifiable: how sums within the job's tolerance were rounded, which the trainer's log says.")
        if certificate.adapter is not None:
            ends = certificate.weights.suffixes.items()
            said.append(
                f"What {ADAPTER} and the names make of the tensors (scale, rank, places): the signers say that the "
                f"program computed so, with {listed([f'{end} as {entry}' for end, entry in ends])}."
            )
            if not base_given:
                root = certificate.adapter.root.hex()
                said.append(f"That these are adapters of your model: the signers name a base of root {root} (--base).")
        if (check := certificate.environment.get(CHECK)) is not None:
            said.append(f"That the program is the model that was captured: by its maker's word, {check}.")
        if rest:
            said.append(
                f"That the files hold the whole model: {rest} entries of the state, such as moments, are in none."
            )
        if chain_asked:
            said.append("That the node tells the truth about its chain: nobody's consensus was checked.")
        elif certificate.agreement.domain.chain_id:
            said.append("That the job was settled and auditors were paid: no node of its chain was asked (--rpc).")
        return said if found is None else said + found.leaves_open()


def read_certificate(path: Path) -> SignedCertificate:
    """Reads and checks a certificate without its weights. Raises `VerificationError` that names the file."""
    try:
        return SignedCertificate.read(read_file(path, MAX_ENVELOPE_BYTES))
    except VerificationError as error:
        raise type(error)(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def verify(
    model: Path, certificate: Path, *, require: Sequence[Address] = (), resaved: bool = False, others: bool = False,
    base: Path | None = None,
) -> tuple[SignedCertificate, Found]:  # fmt: skip
    """Checks a .safetensors file, or a folder as `save_pretrained` writes it, against a certificate.

    require: those who must have signed in addition to the trainer. resaved: the files may have other bytes than were
    signed for, as long as every tensor is the same. others: the folder may hold other files from which a loader could
    take weights or code. base: of an adapter, the model that it is to be used with. Raises `VerificationError`.
    """
    signed = read_certificate(certificate)  # (1)
    for address in require:  # (2)
        if address not in signed.signers:
            raise SignatureError(f"{certificate}: expected a signature by 0x{address.hex()}, got none")
    found, other_files = read_weights(model, besides=certificate), signed.certificate.others
    check(signed.certificate, found, model, resaved=resaved)
    if other_files is not None and model.is_dir():
        found = found.compared(model, other_files)
    read = {model: found}
    if base is not None:
        read[base] = read_weights(base)
        signed.certificate.check_base(found.tensors, read[base].tensors)  # (7)
    for folder, held in read.items() if not others else ():
        is_listed = folder == model and other_files is not None
        if folder.is_dir() and (named := folders.doubtful(folder, held, is_listed=is_listed)):  # (6)
            of_model = f"{WEIGHTS}, or {INDEX} with the files that it names,"
            right = of_model if held.configuration is None else folders.ADAPTER_WEIGHTS
            raise VerificationError(
                f"{folder}: expected {right} and no other weights or code, got {listed(named)}: who loads the folder "
                "may get something else; --others leaves that to you"
            )
    return signed, found


def check(certificate: Certificate, found: Found, model: Path, *, resaved: bool = False) -> None:
    """Raises `VerificationError` unless these are the weights of a certificate."""
    wanted = None if certificate.adapter is None else certificate.adapter.configuration
    if wanted != found.configuration:
        words = [
            "a model" if digest is None else f"the folder of an adapter whose {ADAPTER} has SHA-256 {digest.hex()}"
            for digest in (wanted, found.configuration)
        ]
        raise VerificationError(
            f"{model}: expected {words[0]}, got {words[1]}; the configuration decides the result as the tensors do, "
            "and a merged model has sums that whoever merged it rounded"
        )
    try:
        certificate.check_tensors(found.tensors)  # (5)
    except VerificationError as error:
        raise VerificationError(f"{model}: {error}") from error
    expected, got = (sorted(digest.hex() for digest in files.values()) for files in (certificate.files, found.files))
    if expected != got and not resaved:  # (4)
        raise VerificationError(
            f"{model}: expected files of the SHA-256 that was signed for, {listed(expected)}, got "
            f"{listed(got)}; each tensor is the certified one, so pass --resaved if you saved them again"
        )


def read_weights(model: Path, *, besides: Path | None = None) -> Found:
    """Reads a .safetensors file, or all of those in a folder, once. Raises `EncodingError`.

    besides: the certificate, which is not one of the other files if it lies in the folder.
    """
    if not model.is_dir():
        with opened(model) as (file, stamp):
            return _joined(model, {model.name: _read(model, file, stamp)})
    with Folder(model) as folder:
        folder.check()  # (3)
        names, configuration = folder.names(), None
        if ADAPTER in names and folders.ADAPTER_WEIGHTS in names:
            configuration = Digest(sha256(folder.read(ADAPTER, MAX_CONFIGURATION_BYTES)).digest())
        read = {}
        for name in (name for name in names if name.endswith(SUFFIX)):
            with folder.reading(name) as (file, stamp):
                read[name] = _read(model / name, file, stamp)
        if not read:
            raise ConfigurationError(f"{model}: expected {SUFFIX} files in the folder, got none")
        if INDEX in names:
            _check_index(model / INDEX, folder.read(INDEX, MAX_INDEX_BYTES), read)
    own = {*read, *([] if configuration is None else [ADAPTER])}
    place, certificate = model.resolve(), None if besides is None else besides.resolve()
    others = tuple(name for name in folders.others_in(model) if name not in own and place / name != certificate)
    return replace(_joined(model, read), others=others, configuration=configuration)


_Read = tuple[Digest, dict[str, Digest], frozenset[Element]]
"""The SHA-256 of a file, the ids of the tensors in it, and the types of their elements."""


def _read(path: Path, file: FileIO, stamp: Stamp) -> _Read:
    """One pass over a file: its own hash in a second thread, that of its tensors in this one and more."""
    arrays = sorted(safetensors_in(path, file, stamp).values(), key=lambda array: array.offset)
    if not arrays:
        raise EncodingError(f"{path}: expected at least one tensor, got none")
    header = bytearray(arrays[0].offset)
    file.seek(0)
    read_exactly(file, memoryview(header))
    whole, ids, trees = sha256(header), {}, hasher(os.cpu_count() or 1)
    with ThreadPoolExecutor(1) as second:
        for array in arrays:  # they follow each other without a gap
            wide = array.element in WIDENED
            committed = DType.F32 if wide else array.committed
            if committed is None:
                raise EncodingError(
                    f"{array}: expected F32, BF16, F16, I64 or BOOL, which a run's tensors fill exactly, got "
                    f"{array.element}"
                )
            stream = TensorStream(committed, array.shape, hasher=trees)
            # SAFETY: the file is opened once more by its path, and refused unless it is still the file of this stamp.
            for block in array.blocks():
                hashed = second.submit(whole.update, block)
                stream.update(array.element.convert(array.element.read(block)).data if wide else block)
                if array.committed == DType.BOOL:
                    check_bools(array, block)
                hashed.result()  # the next block takes the place of this one
            ids[array.name] = stream.identity()
    return Digest(whole.digest()), ids, frozenset(array.element for array in arrays)


def _joined(model: Path, read: Mapping[str, _Read]) -> Found:
    tensors: dict[str, Digest] = {}
    for name, (_, ids, _) in read.items():
        if twice := tensors.keys() & ids.keys():
            raise EncodingError(f"{model}: expected each tensor once, got {min(twice)!r} in {name} once more")
        tensors |= ids
    return Found(
        files={name: digest for name, (digest, *_) in read.items()}, tensors=tensors,
        elements=frozenset().union(*(elements for *_, elements in read.values())),
    )  # fmt: skip


def _check_index(path: Path, data: bytes, read: Mapping[str, _Read]) -> None:
    """Raises `EncodingError` unless the index, by which a model is loaded, names each tensor and its file."""
    found = JsonObject.parse(str(path), data, 4).take("weight_map", "an object", lambda x: isinstance(x, dict))
    right = {tensor: name for name, (_, ids, _) in read.items() for tensor in ids}
    for tensor, _ in sorted(right.items() ^ found.items()):
        raise EncodingError(f"{path}: expected each tensor of the files with its file, got {tensor!r} otherwise")
