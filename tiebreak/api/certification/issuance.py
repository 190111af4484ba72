"""Makes certificates, and adds signatures to them (`tiebreak.protocol.commitments.certificate`).

A party signs only what its own files say. Numbered plan of `certify`: (1) the run is complete, and its final state has
the root of its last record; (2) the trainer's head commits to these records; an auditor's replay has no head, so there
it is the certificate's that must; (3) the weights are those of the final state; (4) a certificate that is there already
holds, and is for the same job, head and weights; (5) only then does the key sign.

In addition to the party's own signature, which counts, there is one by a P-256 key that follows from it, since cosign
and in-toto's libraries read no key on secp256k1.
"""

from collections.abc import Collection, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from re import fullmatch
from typing import Final

from tiebreak.api.certification import certificates
from tiebreak.api.certification.certificates import SignedCertificate, read_certificate
from tiebreak.api.certification.folders import FORMATS, PROSE, Found, digests, listed
from tiebreak.api.machine import environment
from tiebreak.api.signing.attesting import signed_for_others
from tiebreak.api.training.reading import CHECKS, check_of
from tiebreak.api.training.runs import names_of
from tiebreak.api.training.tasks import PEFT
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.engine.run.cost import cost_of
from tiebreak.engine.run.directory import RunDirectory, check_root
from tiebreak.engine.run.schedule import slot_name
from tiebreak.protocol.commitments.certificate import (
    MAX_SHAPES,
    Adapter,
    Attestation,
    Certificate,
    Logged,
    Origin,
    Seat,
    Sizes,
    Weights,
)
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES, Envelope
from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import run_tree, state_tree
from tiebreak.protocol.commitments.statement import WORDS, sign
from tiebreak.protocol.errors import ConfigurationError, StateError, VerificationError
from tiebreak.protocol.program.isa import DType, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest

_WORDS: Final = 200
_WRAPPERS: Final = frozenset(["base_layer", "original_module", "token_adapter"])
"""The modules that PEFT puts between a base's module and its tensors."""
_UNKNOWN: Final = (
    "expected a tensor of the run's model, or the folder of its adapter as PEFT writes it, got another name; certify "
    "an adapter by itself: a merged model has sums that whoever merged it rounded"
)

Ending = tuple[Logged, tuple[Seat, ...]]
"""The transaction that settled a job, and the seats that were paid (`tiebreak.api.chain.endings.ending_of`)."""


def certify(
    run: RunDirectory, model: Path, output: Path, key: PrivateKey | None, ending: Ending | None = None,
    attestation: Attestation | None = None, besides: Collection[str] = (),
) -> tuple[SignedCertificate, Found]:  # fmt: skip
    """Makes a certificate for the weights of a run, or adds a signature to the one that is there.

    key: the signer's; None: only read the existing certificate. attestation: goes into a certificate that is made,
    unread; its nonce should be the run root. besides: names of files that the certificate does not name, as they will
    be made from it. Raises `StateError` for a run that is not complete, `VerificationError` if
    weights or certificate are not the run's.
    """
    there = read_certificate(output).certificate if output.exists() else None
    found = certificates.read_weights(model, besides=output)
    found = replace(found, others=tuple(name for name in found.others if name not in FORMATS.union(besides)))
    made = _certificate(run, model, found, None if there is None else there.head, ending)
    if there is None and key is None:
        raise ConfigurationError(f"expected the key of whoever signs, or a certificate at {output}, got neither")
    if there is not None and attestation is not None:
        raise ConfigurationError(
            f"{output}: expected no certificate where an attestation is to go in, got one: it is signed"
        )
    if there is None:
        envelope = Envelope(payload=replace(made, attestation=attestation).payload)
    else:
        for what in ("agreement", "head", "record", "adapter", "start", "sizes"):  # (4)
            is_older = what in ("start", "sizes") and getattr(there, what) is None
            if getattr(there, what) != getattr(made, what) and not is_older:
                raise VerificationError(f"{output}: expected the {what} of the run in {run.path}, got another")
        certificates.check(there, found, model)
        # A party signs for no file of the folder that it does not have, but for those that only people read.
        signed = there.others or {}
        other = found.compared(model, signed).different if model.is_dir() else signed.keys()
        if wrong := sorted(name for name in other if Path(name).suffix not in PROSE):
            raise VerificationError(
                f"{model}: expected the other files that the certificate names, got none or others of {listed(wrong)}"
            )
        envelope = Envelope.decode(read_file(output, MAX_ENVELOPE_BYTES))
    if key is not None:
        envelope = sign(envelope, key)  # (5)
        envelope = signed_for_others(envelope, key)
        SignedCertificate.read(envelope.encode())
        write_file(output, envelope.encode())
    return SignedCertificate.read(envelope.encode()), found


def _certificate(
    run: RunDirectory, model: Path, found: Found, head: SignedHead | None, ending: Ending | None
) -> Certificate:
    job, records = run.job, run.records()
    if len(records) != job.checkpoints:  # (1)
        raise StateError(f"{run.path}: expected records of all {job.checkpoints} checkpoints, got {len(records)}")
    ids, first = run.identities(job.steps), run.identities(0)
    tree = run_tree([record.digest for record in records], job.steps, job.checkpoint_interval)
    head = run.last_head() or head  # (2)
    if head is None:
        raise StateError(f"{run.path}: expected the trainer's signed head, or a certificate to add to, got neither")
    head.verify(job, run.agreement.domain)
    if head.head.count != job.checkpoints:
        raise StateError(f"{run.path}: expected a head of all {job.checkpoints} checkpoints, got {head.head.count}")
    check_root(f"{run.path}: records", head.head.run_root, tree.root)
    for record in records:
        job.check_loss(record)
    names = names_of(run, adapter=found.configuration is not None and not found.is_evaluation)
    for tensor, digest in found.tensors.items():  # (3)
        entry = names.setdefault(tensor, MODEL + tensor)
        if entry not in ids:
            raise VerificationError(f"{model}, {tensor}: {_UNKNOWN}")
        if ids[entry] != digest:
            raise VerificationError(f"{model}, {tensor}: expected it as {entry} of the final state, got another tensor")
    shown = {names[tensor] for tensor in found.tensors}
    certified = {name: entry for name, entry in names.items() if entry in shown}
    weights = Weights.of(state_tree(ids), sorted(ids), certified, MODEL)
    settlement, audits = (None, ()) if ending is None else ending
    check = check_of(run)
    described = dict(environment.describe()) | ({} if check == "full" else {certificates.CHECK: CHECKS[check]})
    return Certificate(
        agreement=run.agreement, head=head, record=records[-1], path=tuple(tree.proof(job.checkpoints - 1)),
        files=found.files, settlement=settlement, audits=audits,
        weights=weights,
        adapter=_adapter(run, ids, shown, found.configuration, is_evaluation=found.is_evaluation),
        start=Origin.of(first, certified),
        sizes=sizes_of(run.program),
        others=digests(model, (name for name in found.others if not name.endswith("/"))) if model.is_dir() else None,
        environment={n: text.encode("ascii", "replace").decode()[:_WORDS] for n, text in described.items()},
    )  # fmt: skip


def sizes_of(program: Program) -> Sizes | None:
    """The numbers of a program for a certificate; None if its data have too many entries, or unprintable names."""
    data = {name: shape for name, (_, shape) in program.data_spec().items()}
    if len(data) > MAX_SHAPES or not all(fullmatch(WORDS, name) for name in data):
        return None
    entries = ((name, prod(shape)) for name, (dtype, shape) in program.state_spec().items() if dtype == DType.F32)
    model = {name: count for name, count in entries if name.startswith(MODEL)}
    trained = sum(count for name, count in model.items() if name not in program.frozen)
    return Sizes(
        parameters=sum(model.values()), trained=trained, operations=cost_of(program).flops, data=data
    )  # fmt: skip


def _adapter(
    run: RunDirectory, ids: Mapping[str, Digest], shown: Set[str], configuration: Digest | None, *, is_evaluation: bool
) -> Adapter | None:
    """The part of a certificate for an adapter with the entries `shown` as its tensors; None for a model's weights.

    Scores are like an adapter: all that the run changed, with the model that they are of as their base.
    """
    if configuration is None:
        return None
    program = run.program
    sources = {slot_name(program.body[n]): n for n in program.sources(SourceKind.STATE)}
    changed = {slot_name(c) for c in program.commits if sources.get(slot_name(c)) != c.operands[0].value}
    lost = sorted(name for name in changed - shown if name.startswith(MODEL))
    if lost:
        raise VerificationError(
            f"{run.path}: expected all that was trained in the adapter, got {lost[0]} outside, which PEFT does "
            "not save: certify the weights of the whole model (`tiebreak weights` without --like), or add it to "
            "modules_to_save and train again"
        )
    names = base_names(own := names_of(run))
    prefix = MODEL + PEFT * any(key.startswith(PEFT) for key in own)
    if is_evaluation:
        with suppress(StateError):  # of an adapter, whose names in its file come first
            names |= names_of(run, adapter=True)
    return Adapter(
        configuration=configuration, root=Adapter.root_of(ids[entry] for entry in {*names.values()} - shown),
        base=Weights.of(state_tree(ids), sorted(ids), names, prefix, shown),
    )  # fmt: skip


def base_names(names: Mapping[str, str]) -> dict[str, str]:
    """The names that tensors had in a base before PEFT wrapped it. names: keys of the module's `state_dict`."""
    return {
        ".".join(word for word in key.removeprefix(PEFT).split(".") if word not in _WRAPPERS): entry
        for key, entry in names.items()
    }
