"""The part of claims of ownership (`tiebreak.api.certification.claims`) that reads states or computes, by torch."""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import pack

import torch
from torch import Tensor

from tiebreak.api.certification import certificates, claims
from tiebreak.api.certification.claims import OwnershipChallenge, OwnershipClaim
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.data import check_unchanged
from tiebreak.engine.data.disk import Folder, storing, write_file
from tiebreak.engine.data.formats import write_tensors
from tiebreak.engine.run import directory as run_files
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.directory import RunDirectory, kept_steps
from tiebreak.engine.run.loop import exact, steps
from tiebreak.engine.run.segments import signed_records
from tiebreak.protocol import errors
from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES, Envelope, Payload
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.statement import sign
from tiebreak.protocol.errors import ConfigurationError, VerificationError


def largest_change(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """The largest |after - before| of one weight, in FP32: the same in any order of computation, unlike a norm."""
    weights = [name for name in sorted(before) if name.startswith(MODEL) and before[name].dtype == torch.float32]
    return max((float((after[name] - before[name]).abs().max()) for name in weights), default=0.0)


# ---------------------------------------------------------------- the owner


def claim(run: RunDirectory, folder: Path) -> OwnershipClaim:
    """Writes the claim of a run's owner into a new or empty folder.

    Each state is checked against its record. Raises `StateError` if one was not kept.
    """
    claims.require_exact(run)
    records, head = signed_records(run)
    ends = [0, *(record.step for record in records)]
    if missing := sorted(set(ends) - set(kept_steps(run, len(records)))):
        raise errors.StateError(
            f"{run.path}: expected the states of all checkpoints, got none after step {missing[0]}; train with --keep "
            "all, or replay with `tiebreak audit` and copy the states of the replay"
        )
    changes, before = list[float](), run.state(0)
    for record in records:
        after = run.state(record.step, record.state_root)
        changes.append(largest_change(before, after))
        before = after
    with Folder.make(folder) as made:
        if made.names():
            raise ConfigurationError(f"expected a new or empty folder, got {folder}; choose another or empty it")
        for name in (run_files.HEADS, run_files.STATES):
            made.add(name)
    write_file(folder / run_files.HEADS / run_files.head_name(head.head.count), head.encode())
    write_file(folder / run_files.RECORDS, b"".join(record.encode() for record in records))
    write_file(folder / claims.CHANGES, pack(f"<{len(changes)}f", *changes))
    for name in (run_files.PROGRAM, run_files.JOB):
        _copy(run.path / name, folder / name)
    return OwnershipClaim.read(folder)


def answer(run: RunDirectory, made: OwnershipClaim, challenge: OwnershipChallenge, key: PrivateKey) -> list[int]:
    """Adds data, opened states and a signature to a claim. Returns the steps after which the states are.

    Raises `ConfigurationError` if the key is not the trainer's or the client's.
    """
    if key.address not in (run.job.trainer, run.job.client):
        raise ConfigurationError(
            f"expected the key of trainer 0x{run.job.trainer.hex()} or client 0x{run.job.client.hex()}, got "
            f"0x{key.address.hex()}"
        )
    shown, folder = claims.opened(made, challenge), made.run.path
    with Folder(folder, run_files.STATES, to_write=True) as states:
        for step in shown:  # whole, since the initial state is perhaps not among them
            write_tensors(states, run_files.state_name(step), run.state(step, narrow=True), narrow=True)
    _copy(run.path / run_files.DATA, folder / run_files.DATA)
    signed = sign(Envelope(payload=Payload(kind=claims.PAYLOAD_TYPE, data=challenge.encode())), key)
    write_file(folder / claims.ANSWER, signed.encode())
    return shown


def _copy(source: Path, target: Path) -> None:
    with storing(target):
        shutil.copyfile(source, target)


# ---------------------------------------------------------------- the checker


@dataclass(kw_only=True)
class Ownership:
    """The result of a check. signer: the owner of the claim. drawn: the segments that were replayed, all of them true.

    moved: the distance of the final weights from the first state's, in units of the final weights' norm: the run's own
    work. The first state itself is not the run's work. linked: whether the disputed weights were given.
    """

    signer: Address
    drawn: tuple[int, ...]
    count: int
    steps: int = 0
    moved: float = 0.0
    seconds: float = 0.0
    linked: bool = False


def check(
    made: OwnershipClaim, challenge: OwnershipChallenge, machine: Machine, *, model: Path | None = None,
    certificate: Path | None = None,
) -> Ownership:  # fmt: skip
    """Checks an answer to this checker's own challenge. Raises `VerificationError` unless it holds.

    model, certificate: the disputed weights, as `tiebreak verify` takes them, and their certificate; both or neither.
    """
    if (model is None) != (certificate is None):
        raise ConfigurationError("expected the disputed weights and their certificate, or neither, got one")
    drawn = made.drawn(challenge)  # (3)
    found = Ownership(signer=_signer(made, challenge), drawn=drawn, count=len(made.records))  # (4)
    if model is not None and certificate is not None:
        signed, _ = certificates.verify(model, certificate, resaved=True, others=True)
        if signed.certificate.head.head != made.head.head:  # (8)
            raise VerificationError(
                f"{certificate}: expected the head of run root {made.head.head.run_root.hex()}, got one of "
                f"{signed.certificate.head.head.run_root.hex()}: these weights are of another run"
            )
        found.linked = True
    _replay(made, machine, found)
    return found


def _signer(made: OwnershipClaim, challenge: OwnershipChallenge) -> Address:
    path, job = made.run.path / claims.ANSWER, made.run.job
    with made.run.folder() as folder:
        envelope = Envelope.decode(folder.read(claims.ANSWER, MAX_ENVELOPE_BYTES))
    payload = Payload(kind=claims.PAYLOAD_TYPE, data=challenge.encode())
    if envelope.payload != payload:
        raise VerificationError(f"{path}: expected an answer to the challenge of this check, got one to another")
    for key_id, signature in envelope.signatures:
        signer = keys.recover(payload.digest, signature)
        if key_id == f"0x{signer.hex()}" and signer in (job.trainer, job.client):
            return signer
    raise errors.SignatureError(
        f"{path}: expected a signature by trainer 0x{job.trainer.hex()} or client 0x{job.client.hex()}, got none"
    )


def _replay(made: OwnershipClaim, machine: Machine, found: Ownership) -> None:
    """Steps (5) to (7), for each drawn segment."""
    run, job, started = made.run, made.run.job, time.perf_counter()
    held = set(kept_steps(run, len(made.records)))
    if missing := [step for segment in found.drawn if (step := job.first_step(segment) - 1) not in held]:  # (5)
        raise VerificationError(f"{run.path}: expected the opened state after step {missing[0]}, got none")
    interpreter = make_interpreter(run.program, machine, job)
    data = interpreter.place_data(run.data())
    ends: list[Mapping[str, Tensor]] = []
    for segment in found.drawn:
        first, last = job.first_step(segment), job.last_step(segment)
        before = made.records[segment - 1].state_root if segment else job.initial_state_root
        start = run.state(first - 1, before)
        state, loss_bits = interpreter.to_device(start), 0
        for done in steps(interpreter, state, data, range(first, last + 1), sums=exact):
            state, loss_bits = done.result.state, done.result.loss_bits
            found.steps += 1
        check_unchanged(data.values())  # otherwise an honest record might seem false
        after = {name: tensor.to("cpu") for name, tensor in state.items()}
        replayed, signed = make_record(last, after, loss_bits), made.records[segment]
        if replayed != signed:  # (6)
            raise VerificationError(
                f"segment {segment}, steps {first} to {last}: expected record {replayed.digest.hex()}, to which the "
                f"opened state leads, got {signed.digest.hex()}, which is signed"
            )
        change, claimed = largest_change(start, after), made.changes[segment]
        if change != claimed:  # (7)
            raise VerificationError(f"segment {segment}: expected a largest change of {change!r}, got {claimed!r}")
        ends = [ends[0] if ends else start, after]
    found.moved = _moved(*ends)
    found.seconds = time.perf_counter() - started


def _moved(first: Mapping[str, Tensor], last: Mapping[str, Tensor]) -> float:
    weights = [name for name in sorted(last) if name.startswith(MODEL) and last[name].dtype == torch.float32]
    away = sum(float((last[name].double() - first[name].double()).square().sum()) for name in weights)
    size = sum(float(last[name].double().square().sum()) for name in weights)
    return (away / size) ** 0.5 if size else 0.0
