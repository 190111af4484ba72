"""Judges the last move (SPEC section 10, phase PROVE): checks each opening, then recomputes the leaf.

Numbered plan. Each kind of leaf uses part of it:
(1) a part of the proof that this kind of leaf does not need is empty;
(2) the instruction is at its leaf under the program root (`commit`; for the others the game has checked it);
(3) record s-1 is at its place in the job's trees, and has the right step number;
(4) the state or data entry is at its slot under the record's state root or the job's data root; late data are at the
    place of their source under the step log;
(5) the operand's tensor id is at its position under the body root of the defender's value tree (`commit`);
(6) the operands' tensors and chunks verify (`tiebreak.protocol.game.referee`);
(7) the previous accumulator is one leaf to the left under the accumulator root.
Every failure raises a `VerificationError`: the proof proves nothing, so the move is illegal.
"""

from typing import NamedTuple

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.records import StepRecord, data_leaf, state_leaf
from tiebreak.protocol.errors import ProofError
from tiebreak.protocol.game import referee
from tiebreak.protocol.game.moves import Prove, StateWitness, TensorWitness
from tiebreak.protocol.program import accumulator, program, reference
from tiebreak.protocol.program.isa import Instruction, Opcode, Slot, SourceKind
from tiebreak.protocol.program.rounding import Rounding
from tiebreak.protocol.tags import Digest, Tag, tagged_hash
from tiebreak.protocol.trees import depth_of, verify


class RecordPlace(NamedTuple):
    """The place of record s-1: a position in the tree with this root and depth."""

    root: bytes
    depth: int
    position: int


def record_place(job: Job, step: int, run_root: bytes, steps_root: bytes) -> RecordPlace:
    """Locate record `step - 1`: record 0, a checkpoint of the run, or the left neighbour of the disputed record."""
    before = step - 1
    if before == 0:
        return RecordPlace(root=job.initial_record.digest, depth=0, position=0)
    if before % job.checkpoint_interval == 0:
        return RecordPlace(root=run_root, depth=job.run_depth, position=before // job.checkpoint_interval - 1)
    checkpoint = job.checkpoint_of(step)
    depth = depth_of(job.segment_steps(checkpoint))
    return RecordPlace(root=steps_root, depth=depth, position=before - job.first_step(checkpoint))


def finish(instruction: Instruction, encoded: bytes, rounding: Rounding) -> tuple[Digest, bytes]:
    """The leaf digest and the element's data for a final accumulator. Raises `EncodingError` unless it is canonical."""
    value = accumulator.finish(accumulator.decode_for(instruction, encoded), rounding)
    return tagged_hash(Tag.ACCUMULATOR, encoded), reference.pack(instruction.dtype, [value])


def judge_commit(job: Job, leaf: int, body_root: bytes, move: Prove) -> Digest:
    """The correct state leaf of a commit. `leaf` is its position in both the program tree and the value tree."""
    _require_unused("commit", previous=move.previous, tensors=move.tensors, chunks=move.chunks)  # (1)
    digest = program.instruction_digest(move.instruction)
    verify(job.program_root, job.half_depth + 1, leaf, digest, move.siblings)  # (2)
    instruction = program.decode_alone(move.instruction)
    if instruction.opcode != Opcode.COMMIT or not isinstance(instruction.params, Slot):
        raise ProofError(f"expected a commit, got {instruction.opcode.name}")
    witness = _tensor_witness(move)
    value = instruction.operands[0].value
    verify(body_root, job.half_depth, value, witness.tensor_id, witness.siblings)  # (5)
    return state_leaf(instruction.params.name, witness.tensor_id)


def judge_source(
    job: Job, instruction: Instruction, step: int, place: RecordPlace, move: Prove, *, leaf: int, step_log: bytes
) -> Digest:  # fmt: skip
    """The correct tensor id of a `source` in step `step`, whose late data are under the step log."""
    unused = {"previous": move.previous, "siblings": move.siblings, "tensors": move.tensors, "chunks": move.chunks}
    _require_unused("source", **unused)  # (1)
    if not isinstance(instruction.params, Slot):
        _require_unused("source of a scalar", witness=move.witness)  # (1)
        return referee.judge_scalar_source(instruction, step)
    slot = instruction.params
    if instruction.function == SourceKind.DATA:
        entry = _tensor_witness(move)
        named = data_leaf(slot.name, entry.tensor_id)
        verify(job.data_root, job.data_depth, slot.slot, named, entry.siblings)  # (4)
        return Digest(entry.tensor_id)
    if instruction.function == SourceKind.LATE:
        entry = _tensor_witness(move)
        verify(step_log, job.half_depth, leaf, entry.tensor_id, entry.siblings)  # (4)
        return Digest(entry.tensor_id)
    witness = move.witness
    if not isinstance(witness, StateWitness):
        raise ProofError("expected the record before the step as witness, got another")
    if witness.step != step - 1:  # (3)
        raise ProofError(f"expected record {step - 1}, got record {witness.step}")
    record = StepRecord(
        step=witness.step,
        state_root=Digest(witness.state_root),
        loss_bits=witness.loss_bits,
        log_root=Digest(witness.log_root),
    )
    verify(place.root, place.depth, place.position, record.digest, witness.record_siblings)  # (3)
    named = state_leaf(slot.name, witness.tensor_id)
    verify(witness.state_root, job.state_depth, slot.slot, named, witness.siblings)  # (4)
    return Digest(witness.tensor_id)


def judge_element(
    job: Job, instruction: Instruction, element: int, body_root: bytes, move: Prove, *, step: int, rounding: Rounding
) -> bytes:
    """The correct data (little-endian) of an element that is computed at once."""
    _require_unused("element", previous=move.previous, siblings=move.siblings, witness=move.witness)  # (1)
    openings = _openings(job, body_root, move)
    bits = referee.judge_element(instruction, element, openings, step=step, rounding=rounding)
    return bits.to_bytes(instruction.dtype.size, "little")


def judge_terms(
    job: Job, instruction: Instruction, element: int, body_root: bytes, move: Prove, *, leaf: int, root: bytes
) -> Digest:
    """The correct digest of a leaf of an element's accumulator tree, which has this root."""
    _require_unused("terms", witness=move.witness)  # (1)
    if leaf == 0:
        _require_unused("first terms", previous=move.previous, siblings=move.siblings)  # (1)
    else:
        before = tagged_hash(Tag.ACCUMULATOR, move.previous)
        depth = depth_of(accumulator.leaf_count(instruction.terms))
        verify(root, depth, leaf - 1, before, move.siblings)  # (7)
    encoded = referee.judge_leaf(instruction, element, leaf, move.previous, _openings(job, body_root, move))
    return tagged_hash(Tag.ACCUMULATOR, encoded)


def _openings(job: Job, body_root: bytes, move: Prove) -> referee.Openings:
    return referee.Openings(  # (6)
        body_root=body_root, half_depth=job.half_depth, tensors=move.tensors, chunks=move.chunks
    )


def _tensor_witness(move: Prove) -> TensorWitness:
    if not isinstance(move.witness, TensorWitness):
        raise ProofError("expected a tensor id and its siblings as witness, got another")
    return move.witness


def _require_unused(what: str, **parts: object) -> None:
    for name, part in parts.items():
        if part:
            raise ProofError(f"{what}: expected no {name}, got some")
