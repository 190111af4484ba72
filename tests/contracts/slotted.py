"""Honest disputes about leaves of the value tree: every `source`, and `commit`."""

import random
from dataclasses import replace

from tests.contracts.disputes import DEPTH, F32, SLOTS, SMALL, ZERO, Context, Dispute, Target, element
from tests.protocol.instructions import STEP_NUMBER, committed, const, source
from tiebreak.protocol.commitments.records import StepRecord, data_leaf, state_leaf
from tiebreak.protocol.game.moves import Prove, StateWitness, TensorWitness
from tiebreak.protocol.program.isa import DType, SourceKind
from tiebreak.protocol.program.program import encode_instruction, instruction_digest
from tiebreak.protocol.program.reference import pack
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree

SOURCES = ("state", "data", "late", "const", "step")


def slotted(rng: random.Random, kind: str) -> Dispute:
    slot, name = rng.randrange(SLOTS), rng.choice(("w", "layer.0/weight", "~" * 255))
    tensor_digest = rng.randbytes(32)
    position, step = rng.randrange(4), rng.randrange(1, 9)
    context = Context(
        target=Target.VALUE,
        depth=DEPTH,
        position=position,
        step=step,
        state_count=SLOTS,
        data_count=SLOTS,
        body_root=rng.randbytes(32),
        step_log=rng.choice((ZERO, rng.randbytes(32))),
    )
    if kind in ("const", "step"):
        return _scalar(rng, context, kind)
    if kind == "commit":
        return _commit(context, slot, name, tensor_digest)
    if kind == "late":
        return _late(rng, context, slot, name, tensor_digest)
    leaf = (state_leaf if kind == "state" else data_leaf)(name, tensor_digest)
    leaves = [rng.randbytes(32) for _ in range(SLOTS)]
    leaves[slot] = leaf
    tree = Tree(leaves)
    encoded = encode_instruction(source(SourceKind[kind.upper()], name, F32, slot=slot))
    context = replace(context, instruction_leaf=instruction_digest(encoded))
    siblings = tuple(tree.proof(slot))
    if kind == "data":
        witness = TensorWitness(tensor_id=tensor_digest, siblings=siblings)
        job = replace(SMALL, data_root=tree.root)
        return Dispute(job, replace(context, data_root=tree.root), Prove(instruction=encoded, witness=witness))
    record = StepRecord(
        step=step - 1, state_root=tree.root, loss_bits=rng.getrandbits(32), log_root=Digest(rng.randbytes(32))
    )
    depth = rng.randrange(4)
    place = rng.randrange(1 << depth)
    records = Tree([record.digest if k == place else rng.randbytes(32) for k in range(1 << depth)])
    state = StateWitness(
        step=record.step,
        state_root=record.state_root,
        loss_bits=record.loss_bits,
        log_root=record.log_root,
        record_siblings=tuple(records.proof(place)),
        tensor_id=tensor_digest,
        siblings=siblings,
    )
    context = replace(context, record_root=records.root, record_depth=depth, record_position=place)
    return Dispute(SMALL, context, Prove(instruction=encoded, witness=state))


def _late(rng: random.Random, context: Context, slot: int, name: str, tensor_digest: bytes) -> Dispute:
    """Late data, sometimes of a step log that holds them elsewhere, or of a job without logs."""
    encoded = encode_instruction(source(SourceKind.LATE, name, F32, slot=slot))
    place = context.position if rng.randrange(4) else rng.randrange(1 << DEPTH)
    log = Tree([tensor_digest if k == place else rng.randbytes(32) for k in range(1 << DEPTH)])
    witness = TensorWitness(tensor_id=tensor_digest, siblings=tuple(log.proof(place)))
    step_log = log.root if rng.randrange(8) else ZERO
    context = replace(context, instruction_leaf=instruction_digest(encoded), step_log=step_log)
    return Dispute(SMALL, context, Prove(instruction=encoded, witness=witness))


def _scalar(rng: random.Random, context: Context, kind: str) -> Dispute:
    made = STEP_NUMBER
    if kind == "const":
        dtype = rng.choice(list(DType))
        made = const(int.from_bytes(pack(dtype, [element(rng, dtype)]), "little"), dtype)
    encoded = encode_instruction(made)
    return Dispute(SMALL, replace(context, instruction_leaf=instruction_digest(encoded)), Prove(instruction=encoded))


def _commit(context: Context, slot: int, name: str, tensor_digest: bytes) -> Dispute:
    value = context.position
    body = Tree([tensor_digest if k == value else bytes([k] * 32) for k in range(4)])
    encoded = encode_instruction(committed(name, F32, (), value, slot=slot))
    leaf = (1 << DEPTH) + slot
    program = Tree([instruction_digest(encoded) if k == leaf else bytes([k] * 32) for k in range(2 << DEPTH)])
    witness = TensorWitness(tensor_id=tensor_digest, siblings=tuple(body.proof(value)))
    move = Prove(instruction=encoded, siblings=tuple(program.proof(leaf)), witness=witness)
    job = replace(SMALL, program_root=program.root)
    return Dispute(job, replace(context, position=leaf, body_root=body.root, program_root=program.root), move)
