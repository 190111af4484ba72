"""Checks weights against a certificate (`tiebreak.protocol.commitments.certificate`). Imports no torch.

Numbered plan of `verify`: (1) the certificate holds by itself: statement, job, head, record and signatures; (2) the
parties who are asked for have signed; (3) only plain files are read, no tensor is in two of them, and an index, if
there is one, says where each is; (4) the files have the SHA-256 that was signed for, whatever they are called now;
(5) the tensors are those of the final state, all of them and no others, and an adapter's configuration is the one that
was signed for; (6) what loads the folder loads these files and runs no code of it, and its other files are those that
were signed for, if the certificate names any (`folders`); (7) each base that is given is one of the model, or what its
run started from, or in turn so of such a base with a certificate, for which all but (2) holds. One pass over the files
gives (4) and (5).
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from hashlib import sha256
from io import FileIO
from itertools import zip_longest
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
from tiebreak.protocol.strict_json import MAX_NESTING, JsonObject
from tiebreak.protocol.tags import Digest

MAX_INDEX_BYTES: Final = 1 << 24
SUFFIX: Final = ".safetensors"
MAX_CONFIGURATION_BYTES: Final = 1 << 20
WIDENED: Final = (Element.BF16, Element.F16)
"""Elements that are compared as the F32 of the same value: a state has no narrower ones."""
CHECK: Final = "check"
"""The field of `environment` that says how the program was compared with its model, if that was not the whole of it."""
LATE: Final = "late data"
"""The field of `environment` that says who answers for what the trainer gave with each step, if it gave anything."""


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

    @property
    def is_evaluation(self) -> bool:
        """Whether it is for the scores of a model."""
        return [*self.certificate.files] == [folders.SCORES]

    def role(self, signer: Address) -> str:
        """The role of a signer in the job; one who is no party of it is called an auditor."""
        job = self.certificate.job
        return {job.trainer: "trainer", job.client: "client"}.get(signer, "auditor")

    @property
    def signatures(self) -> list[dict[str, str]]:
        """The signers with their roles, for documents."""
        return [{"by": self.role(one), "address": f"0x{one.hex()}"} for one in self.signers]

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
                f"What {folders.EVALUATION} says of examples, columns and metrics: the signers say that the program "
                "computed so. Whoever has the examples makes the program again (`tiebreak evaluate --against`)."
                if self.is_evaluation
                else f"What {ADAPTER} and the names make of the tensors (scale, rank, places): the signers say "
                f"that the program computed so, with {listed([f'{end} as {entry}' for end, entry in ends])}."
            )
            if not base_given:
                root = certificate.adapter.root.hex()
                what = "scores" if self.is_evaluation else "adapters"
                said.append(f"That these are {what} of your model: the signers name a base of root {root} (--base).")
        if (check := certificate.environment.get(CHECK)) is not None:
            said.append(f"That the program is the model that was captured: by its maker's word, {check}.")
        if (late := certificate.environment.get(LATE)) is not None:
            said.append(f"What was declared of the data that the trainer gave with each step: {late}.")
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LineageLink:
    """Weights in a lineage. signed: their certificate, if one was given.

    origins: what they come from: `start`, which their run started from, and `base`; and of scores `scored`, the model
    or adapter that they are of, and `under`, the base of that adapter.
    """

    folder: Path
    found: Found
    signed: SignedCertificate | None
    origins: dict[str, "LineageLink"] = field(default_factory=dict)


def verify(
    model: Path, certificate: Path, *, require: Sequence[Address] = (), resaved: bool = False, others: bool = False,
    base: Path | None = None,
) -> tuple[SignedCertificate, Found]:  # fmt: skip
    """The same as `verify_lineage`, with at most one base. Returns the certificate and the files of the model."""
    bases = () if base is None else (base,)
    model_link = verify_lineage(model, certificate, bases, require=require, resaved=resaved, others=others)[0]
    assert model_link.signed is not None
    return model_link.signed, model_link.found


def verify_lineage(
    model: Path, certificate: Path, bases: Sequence[Path] = (), certificates: Sequence[Path] = (), *,
    require: Sequence[Address] = (), resaved: bool = False, others: bool = False,
) -> list[LineageLink]:  # fmt: skip
    """Checks a .safetensors file, or a folder as `save_pretrained` writes it, against a certificate; and its origins.

    bases: weights from which the model comes, perhaps by way of others of them; each has to be of use. certificates:
    those of the first bases, in their order. require: those who must have signed the model's certificate in addition to
    the trainer. resaved: the files may have other bytes than were signed for, as long as every tensor is the same.
    others: a folder may hold other files from which a loader could take weights or code. Returns the model's link, and
    then those that it leads to. Raises `VerificationError`.
    """
    if len(certificates) > len(bases):
        raise ConfigurationError(f"expected a --base for each --base-certificate, got {len(bases)}")
    given = [read_certificate(path) for path in (certificate, *certificates)]  # (1)
    for address in require:  # (2)
        if address not in given[0].signers:
            raise SignatureError(f"{certificate}: expected a signature by 0x{address.hex()}, got none")
    made = list[LineageLink]()
    for path, own, signed in zip_longest((model, *bases), (certificate, *certificates), given):
        found = _checked(path, read_weights(path, besides=own), signed, resaved=resaved, others=others)
        made.append(LineageLink(folder=path, found=found, signed=signed))
    return _lineage(made)


def _lineage(made: Sequence[LineageLink]) -> list[LineageLink]:
    """The first link, and all others, as it leads to them. Raises `VerificationError` (7)."""
    links, why = [made[0]], dict[LineageLink, str]()
    given = [link.found for link in made[1:]]
    starts_first = sorted(made, key=lambda link: link.found.configuration is None)
    for link in links:  # which grow
        if link.signed is None:
            continue
        for other in starts_first:
            try:
                role = _role(link.signed.certificate, link.found, other.found, given)
            except VerificationError as error:
                why.setdefault(other, str(error))
                continue
            if link.origins.setdefault(role, other) is other and other not in links:
                links.append(other)
    for other in made:
        if other not in links:
            raise VerificationError(
                f"{other.folder}: expected the base of {made[0].folder} or what its run started from, or that of "
                f"another --base with a certificate, once, got others: {why.get(other, 'it is given twice')}"
            )
    try:
        TopologicalSorter({link: link.origins.values() for link in links}).prepare()
    except CycleError as error:
        circle = " from ".join(str(link.folder) for link in reversed(error.args[1]))
        raise VerificationError(f"lineage: expected one that ends, got a circle: {circle}") from error
    return links


def _checked(path: Path, found: Found, signed: SignedCertificate | None, *, resaved: bool, others: bool) -> Found:
    """Steps (4) to (6) for weights, with a certificate or without, and their other files compared with it."""
    files = None if signed is None else signed.certificate.others
    if signed is not None:
        check(signed.certificate, found, path, resaved=resaved)
    if files is not None and path.is_dir():
        found = found.compared(path, files)
    if not others and path.is_dir() and (named := folders.doubtful(path, found, is_listed=files is not None)):  # (6)
        of_model = f"{WEIGHTS}, or {INDEX} with the files that it names,"
        right = of_model if found.configuration is None else folders.ADAPTER_WEIGHTS
        raise VerificationError(
            f"{path}: expected {right} and no other weights or code, got {listed(named)}: who loads the folder "
            "may get something else; --others leaves that to you"
        )
    return found


def _role(certificate: Certificate, found: Found, other: Found, given: Sequence[Found]) -> str:
    """The name of the origin that others are of certified weights. Raises `VerificationError` if they are none (7).

    given: all that may be origins, for an adapter that was scored stands on another of these.
    """
    if found.is_evaluation and not other.is_evaluation:
        for one in (one for one in given if (one.configuration is None) != (other.configuration is None)):
            with suppress(VerificationError):
                certificate.check_base(found.tensors, one.tensors | other.tensors)
                return "under" if other.configuration is None else "scored"
    if certificate.adapter is not None and other.configuration is None:
        certificate.check_base(found.tensors, other.tensors)
        return "scored" if found.is_evaluation else "base"
    if {*other.tensors.values()} == {*found.tensors.values()}:
        raise VerificationError("start: expected weights that training changed, got those that it ended with")
    certificate.check_start(other.tensors)
    return "start"


def check(certificate: Certificate, found: Found, model: Path, *, resaved: bool = False) -> None:
    """Raises `VerificationError` unless these are the weights of a certificate."""
    wanted = None if certificate.adapter is None else certificate.adapter.configuration
    if wanted != found.configuration:
        kinds = [("adapter", ADAPTER), ("evaluation", folders.EVALUATION)]
        words = [
            "a model"
            if digest is None
            else "the folder of an {} whose {} has SHA-256 {}".format(*kinds[is_evaluation], digest.hex())
            for digest, is_evaluation in (
                (wanted, [*certificate.files] == [folders.SCORES]),
                (found.configuration, found.is_evaluation),
            )
        ]
        raise VerificationError(
            f"{model}: expected {words[0]}, got {words[1]}; the configuration decides the result as the tensors do, "
            "and a merged model has sums that whoever merged it rounded"
        )
    if found.is_evaluation and wanted is not None:
        path = model / folders.EVALUATION
        said = JsonObject.parse(str(path), read_file(path, MAX_CONFIGURATION_BYTES), MAX_NESTING)
        for name, root in (("program", certificate.job.program_root), ("data", certificate.job.data_root)):
            said.same(name, root.hex(), ", as the job has it")
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
        configured = [name for name, weights in folders.CONFIGURED.items() if {name, weights} <= {*names}][:1]
        for name in configured:
            configuration = Digest(sha256(folder.read(name, MAX_CONFIGURATION_BYTES)).digest())
        read = {}
        for name in (name for name in names if name.endswith(SUFFIX)):
            with folder.reading(name) as (file, stamp):
                read[name] = _read(model / name, file, stamp)
        if not read:
            raise ConfigurationError(f"{model}: expected {SUFFIX} files in the folder, got none")
        if INDEX in names:
            _check_index(model / INDEX, folder.read(INDEX, MAX_INDEX_BYTES), read)
    own = {*read, *configured}
    place, certificate = model.resolve(), None if besides is None else besides.resolve()
    others = tuple(name for name in folders.others_in(model) if name not in own and place / name != certificate)
    return replace(_joined(model, read), others=others, configuration=configuration)


_Read = tuple[Digest, dict[str, Digest], frozenset[Element], frozenset[str]]
"""The SHA-256 of a file, the ids of the tensors in it, the types of its plain weights, and which are matrices."""


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
            wide, packed = array.element in WIDENED, array.element == Element.U8
            committed = DType.F32 if wide else DType.I64 if packed else array.committed
            if committed is None:
                raise EncodingError(
                    f"{array}: expected F32, BF16, F16, I64 or BOOL, which a run's tensors fill exactly, or U8, got "
                    f"{array.element}"
                )
            # Bytes are the codes of 4-bit weights, which a state holds as words (`tiebreak.engine.capture.four_bit`).
            left = -array.nbytes % 256 if packed else 0
            shape = ((array.nbytes + left) // committed.size,) if packed else array.shape
            stream = TensorStream(committed, shape, hasher=trees)
            # SAFETY: the file is opened once more by its path, and refused unless it is still the file of this stamp.
            for block in array.blocks():
                hashed = second.submit(whole.update, block)
                stream.update(array.element.convert(array.element.read(block)).data if wide else block)
                if array.committed == DType.BOOL:
                    check_bools(array, block)
                hashed.result()  # the next block takes the place of this one
            stream.update(bytes(left))
            ids[array.name] = stream.identity()
    plain = [array for array in arrays if array.element != Element.U8 and not folders.QUANTIZED.search(array.name)]
    matrices = frozenset(array.name for array in plain if len(array.shape) > 1)
    return Digest(whole.digest()), ids, frozenset(array.element for array in plain), matrices


def _joined(model: Path, read: Mapping[str, _Read]) -> Found:
    tensors: dict[str, Digest] = {}
    for name, (_, ids, *_) in read.items():
        if twice := tensors.keys() & ids.keys():
            raise EncodingError(f"{model}: expected each tensor once, got {min(twice)!r} in {name} once more")
        tensors |= ids
    return Found(
        files={name: digest for name, (digest, *_) in read.items()}, tensors=tensors,
        elements=frozenset().union(*(elements for _, _, elements, _ in read.values())),
        matrices=frozenset().union(*(matrices for *_, matrices in read.values())),
    )  # fmt: skip


def _check_index(path: Path, data: bytes, read: Mapping[str, _Read]) -> None:
    """Raises `EncodingError` unless the index, by which a model is loaded, names each tensor and its file."""
    found = JsonObject.parse(str(path), data, 4).take("weight_map", "an object", lambda x: isinstance(x, dict))
    right = {tensor: name for name, (_, ids, *_) in read.items() for tensor in ids}
    for tensor, _ in sorted(right.items() ^ found.items()):
        raise EncodingError(f"{path}: expected each tensor of the files with its file, got {tensor!r} otherwise")
