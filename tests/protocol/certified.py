"""Certificates for made-up tensors, with valid signatures."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from tests.protocol.runs import make_job
from tiebreak.protocol import trees
from tiebreak.protocol.commitments.certificate import Attestation, Certificate, Logged, Origin, Seat, Weights
from tiebreak.protocol.commitments.dsse import Envelope
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Head, SignedHead, SignedJob
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import StepRecord, state_tree
from tiebreak.protocol.commitments.statement import sign
from tiebreak.protocol.tags import Digest

CLIENT, TRAINER, AUDITOR, STRANGER = (PrivateKey.from_int(n) for n in (11, 12, 13, 14))
DOMAIN = Domain(chain_id=1337, contract=Address(bytes(19) + b"\x07"))
PREFIX = "model."


def root(text: str) -> Digest:
    return Digest(sha256(text.encode()).digest())


def tensors(count: int) -> dict[str, Digest]:
    return {f"layers.{n}.weight": root(f"tensor {n}") for n in range(count)}


def certificate(
    *, steps: int = 10, interval: int = 4, count: int = 5, shards: int = 1, domain: Domain = DOMAIN,
    ids: Mapping[str, Digest] = {}, first: Mapping[str, Digest] = {}, tolerances: int | None = None,
    loss_bits: int = 0x3F800000, **more: Any,
) -> Certificate:  # fmt: skip
    """A certificate for `count` tensors of a state that also has two moments for each, and a counter.

    ids: other entries of the state; `weights` then says which of them the tensors are. first: the entries that the
    first state has otherwise; then the certificate names what the run started from.
    """
    if not ids:
        moments = {f"{kind}.{name}": root(kind + name) for kind in ("first", "second") for name in tensors(count)}
        ids = {PREFIX + name: digest for name, digest in tensors(count).items()} | moments | {"step": root("step")}
        names = {name: PREFIX + name for name in tensors(count)}
        more = {"weights": Weights.of(state_tree(ids), sorted(ids), names, PREFIX)} | more
    before = state_tree({**ids, **first}).root if first else root("state")
    if first:
        shown = [sorted(ids)[at + n] for at, entries in more["weights"].places for n in range(entries)]
        more["start"] = Origin.of({**ids, **first}, dict(zip(shown, shown, strict=True)))
    job = replace(
        make_job(steps=steps, interval=interval, tolerances=tolerances), client=CLIENT.address, trainer=TRAINER.address,
        program_root=root("program"), body_count=8, state_count=len(ids), data_count=1,
        initial_state_root=before, data_root=root("data"),
    )  # fmt: skip
    record = StepRecord(step=steps, state_root=state_tree(ids).root, loss_bits=loss_bits)
    path = tuple(root(f"sibling {level}") for level in range(job.run_depth))
    run_root = trees.fold(record.digest, job.checkpoints - 1, path)
    made: dict[str, Any] = {
        "agreement": SignedJob(
            domain=domain, job=job, client_signature=job.sign(domain, CLIENT),
            trainer_signature=job.sign(domain, TRAINER),
        ),
        "head": SignedHead.sign(Head(job_id=job.id, count=job.checkpoints, run_root=run_root), domain, TRAINER),
        "record": record, "path": path,
        "files": {f"model-{n + 1:05d}-of-{shards:05d}.safetensors": root(f"file {n}") for n in range(shards)},
        "audits": (Seat(auditor=AUDITOR.address, number=0, paid=Logged(transaction=root("claim"), block=8)),),
        "settlement": Logged(transaction=root("settle"), block=9),
        "environment": {"cpu": "a processor", "torch": "2.0"},
        "attestation": Attestation(kind="made-up-gpu", evidence=b"evidence"),
    }  # fmt: skip
    return Certificate(**made | more)


def envelope(made: Certificate, *keys: PrivateKey) -> Envelope:
    """The certificate with the signatures of these keys [default: the trainer's and the client's]."""
    found = Envelope(payload=made.payload)
    for key in keys or (TRAINER, CLIENT):
        found = sign(found, key)
    return found
