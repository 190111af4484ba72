"""Jobs, heads and moves as the arguments of contract calls, and back."""

from typing import Any, Final

from protocol.chain.errors import ChainError
from protocol.job import Head, Job
from protocol.moves import (
    ChunkOpening,
    Descend,
    Move,
    OpenChunk,
    OpenSteps,
    OpenTensor,
    OpenTerms,
    OpenValues,
    Prove,
    Select,
    SelectElement,
    StateWitness,
    TensorOpening,
    TensorWitness,
    Witness,
)

ZERO: Final = bytes(32)

Arguments = tuple[Any, ...]


def job_arguments(job: Job) -> Arguments:
    """The struct `Job`."""
    return job.values


def head_arguments(head: Head) -> Arguments:
    """The struct `Head`."""
    return (head.job_id, head.count, head.run_root)


def move_call(move: Move) -> tuple[str, Arguments]:
    """The function that plays a move, and its arguments after the game's id."""
    match move:
        case Descend():
            return "descend", (list(move.nodes),)
        case Select():
            return "select", (list(move.nodes), move.index)
        case OpenSteps():
            return "openSteps", (move.steps_root, list(move.siblings))
        case OpenValues():
            fields = (move.state_root, move.loss_bits, move.log_root, move.body_root)
            return "openValues", (*fields, list(move.siblings))
        case OpenTensor():
            return "openTensor", (move.instruction, list(move.siblings), move.chunk_root)
        case OpenChunk():
            return "openChunk", (move.chunk,)
        case SelectElement():
            return "selectElement", (move.index, move.chunk, move.instruction)
        case OpenTerms():
            return "openTerms", (move.accumulator_root, move.accumulator, list(move.siblings), move.instruction)
        case Prove():
            return "prove", (_proof(move),)


def _proof(move: Prove) -> Arguments:
    tensors = [(t.value, t.dtype, list(t.dims), t.chunk_root, list(t.siblings)) for t in move.tensors]
    chunks = [(c.tensor, c.chunk, c.data, list(c.siblings)) for c in move.chunks]
    return (move.instruction, move.previous, list(move.siblings), tensors, chunks, _witness(move.witness))


def _witness(witness: Witness) -> Arguments:
    match witness:
        case None:
            return (0, ZERO, 0, ZERO, [], ZERO, [])
        case TensorWitness():
            return (0, ZERO, 0, ZERO, [], witness.tensor_id, list(witness.siblings))
        case StateWitness():
            record = (witness.step, witness.state_root, witness.loss_bits, witness.log_root)
            return (*record, list(witness.record_siblings), witness.tensor_id, list(witness.siblings))


def read_move(function: str, a: dict[str, Any]) -> Move:
    """The move that a call made; `a` its arguments by their names. Raises `ChainError` for another function."""
    match function:
        case "descend":
            return Descend(nodes=tuple(a["nodes"]))
        case "select":
            return Select(nodes=tuple(a["nodes"]), index=a["index"])
        case "openSteps":
            return OpenSteps(steps_root=a["stepsRoot"], siblings=tuple(a["siblings"]))
        case "openValues":
            return _read_values(a)
        case "openTensor":
            siblings = tuple(a["siblings"])
            return OpenTensor(instruction=a["instruction"], siblings=siblings, chunk_root=a["chunkRoot"])
        case "openChunk":
            return OpenChunk(chunk=a["chunk"])
        case "selectElement":
            return SelectElement(index=a["index"], chunk=a["chunk"], instruction=a["instruction"])
        case "openTerms":
            return _read_terms(a)
        case "prove":
            return _read_proof(a["proof"])
    raise ChainError(f"expected a move of the game, got a call of {function}")


def _read_values(a: dict[str, Any]) -> OpenValues:
    return OpenValues(
        state_root=a["stateRoot"],
        loss_bits=a["lossBits"],
        log_root=a["logRoot"],
        body_root=a["bodyRoot"],
        siblings=tuple(a["siblings"]),
    )


def _read_terms(a: dict[str, Any]) -> OpenTerms:
    return OpenTerms(
        accumulator_root=a["accumulatorRoot"],
        accumulator=a["accumulator"],
        siblings=tuple(a["siblings"]),
        instruction=a["instruction"],
    )


def _read_proof(proof: dict[str, Any]) -> Prove:
    tensors = (
        TensorOpening(
            value=t["value"],
            dtype=t["dtype"],
            dims=tuple(t["dims"]),
            chunk_root=t["chunkRoot"],
            siblings=tuple(t["siblings"]),
        )
        for t in proof["tensors"]
    )
    chunks = (
        ChunkOpening(tensor=c["tensor"], chunk=c["chunkIndex"], data=c["data"], siblings=tuple(c["siblings"]))
        for c in proof["chunks"]
    )
    return Prove(
        instruction=proof["instruction"],
        previous=proof["previous"],
        siblings=tuple(proof["siblings"]),
        tensors=tuple(tensors),
        chunks=tuple(chunks),
        witness=_read_witness(proof["witness"]),
    )


def _read_witness(w: dict[str, Any]) -> Witness:
    """The contract's one struct serves three kinds of witness; unused fields are zero and empty."""
    siblings = tuple(w["siblings"])
    if w["stateRoot"] != ZERO or w["recordSiblings"]:
        return StateWitness(
            step=w["step"],
            state_root=w["stateRoot"],
            loss_bits=w["lossBits"],
            log_root=w["logRoot"],
            record_siblings=tuple(w["recordSiblings"]),
            tensor_id=w["tensorId"],
            siblings=siblings,
        )
    if w["tensorId"] != ZERO or siblings:
        return TensorWitness(tensor_id=w["tensorId"], siblings=siblings)
    return None
