"""Jobs, heads and moves as calls of the board, and back."""

from typing import Any

from tiebreak.protocol.chain import generated as g
from tiebreak.protocol.chain.abi import Function
from tiebreak.protocol.chain.errors import ChainError
from tiebreak.protocol.commitments.job import Head, Job
from tiebreak.protocol.commitments.records import ZERO_DIGEST
from tiebreak.protocol.game.moves import (
    ChunkOpening,
    Concede,
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
from tiebreak.protocol.game.rules import GameState
from tiebreak.protocol.tags import Digest

Defence = Descend | OpenSteps | OpenValues | OpenTensor | OpenChunk | OpenTerms


def job_struct(job: Job) -> g.Job:
    """The contract's job: its fields are those of the signed type."""
    return g.Job.from_values(job.values)


def head_struct(head: Head) -> g.Head:
    """The contract's head."""
    return g.Head(job_id=head.job_id, count=head.count, run_root=head.run_root)


def opened(state: GameState) -> tuple[Digest, ...]:
    """What the board's digest of a game in phase PROVE is over: the run root, and what was opened since (SPEC 11)."""
    fixed = (state.steps_root, state.body_root, state.value_seal, state.instruction, state.accumulator_root, state.seal)
    return _digests((state.head.run_root, *(item for item in fixed if item)))


def move_call(state: GameState, move: Move) -> Function[None]:
    """The call that plays a move; `state` is the game before it."""
    game_id = Digest(state.game_id)
    match move:
        case Select():
            node, siblings, seal = Digest(move.node), _digests(move.siblings), Digest(move.seal)
            return g.SelectCall(game_id, node=node, index=move.index, siblings=siblings, seal=seal)
        case SelectElement():
            return g.SelectElementCall(game_id, index=move.index, chunk=move.chunk, seal=Digest(move.seal))
        case Prove():
            return g.ProveCall(game_id, proof=proof_struct(move), salt=Digest(move.salt), opened=opened(state))
        case Concede():
            return g.ConcedeCall(game_id)
        case _:
            return _defence(game_id, move)


def _defence(game_id: Digest, move: Defence) -> Function[None]:
    match move:
        case Descend():
            return g.DescendCall(game_id, _digests(move.nodes))
        case OpenSteps():
            return _steps_call(game_id, move)
        case OpenValues():
            return _values_call(game_id, move)
        case OpenTensor():
            siblings, nodes = _digests(move.siblings), _digests(move.nodes)
            return g.OpenTensorCall(game_id, instruction=move.instruction, siblings=siblings, nodes=nodes)
        case OpenChunk():
            word, siblings = Digest(move.word), _digests(move.siblings)
            return g.OpenChunkCall(game_id, chunk=move.chunk, word=word, siblings=siblings)
        case OpenTerms():
            nodes, siblings = _digests(move.nodes), _digests(move.siblings)
            return g.OpenTermsCall(game_id, nodes=nodes, accumulator=move.accumulator, siblings=siblings)


def _digests(values: Any) -> tuple[Digest, ...]:
    return tuple(Digest(value) for value in values)


def _steps_call(game_id: Digest, move: OpenSteps) -> Function[None]:
    return g.OpenStepsCall(
        game_id,
        nodes=_digests(move.nodes),
        siblings=_digests(move.siblings),
        state_root=Digest(move.state_root),
        loss_bits=move.loss_bits,
        log_root=Digest(move.log_root),
    )


def _values_call(game_id: Digest, move: OpenValues) -> Function[None]:
    return g.OpenValuesCall(
        game_id,
        state_root=Digest(move.state_root),
        loss_bits=move.loss_bits,
        log_root=Digest(move.log_root),
        nodes=_digests(move.nodes),
        siblings=_digests(move.siblings),
        step_log=Digest(move.step_log),
        log_siblings=_digests(move.log_siblings),
    )


def proof_struct(move: Prove) -> g.Proof:
    """The referee's part of a proof."""
    return g.Proof(
        instruction=move.instruction,
        previous=move.previous,
        siblings=_digests(move.siblings),
        tensors=tuple(
            g.TensorOpening(t.value, t.dtype, t.dims, Digest(t.chunk_root), _digests(t.siblings)) for t in move.tensors
        ),
        chunks=tuple(g.ChunkOpening(c.tensor, c.chunk, c.data, _digests(c.siblings)) for c in move.chunks),
        witness=_witness(move.witness),
    )


def _witness(witness: Witness) -> g.Witness:
    match witness:
        case None:
            return g.Witness(0, ZERO_DIGEST, 0, ZERO_DIGEST, (), ZERO_DIGEST, ())
        case TensorWitness():
            identity, siblings = Digest(witness.tensor_id), _digests(witness.siblings)
            return g.Witness(0, ZERO_DIGEST, 0, ZERO_DIGEST, (), identity, siblings)
        case StateWitness():
            return g.Witness(
                step=witness.step,
                state_root=Digest(witness.state_root),
                loss_bits=witness.loss_bits,
                log_root=Digest(witness.log_root),
                record_siblings=_digests(witness.record_siblings),
                tensor_id=Digest(witness.tensor_id),
                siblings=_digests(witness.siblings),
            )


# ---------------------------------------------------------------- and back

MOVES: tuple[type[Function[Any]], ...] = (
    g.DescendCall,
    g.SelectCall,
    g.OpenStepsCall,
    g.OpenValuesCall,
    g.OpenTensorCall,
    g.OpenChunkCall,
    g.SelectElementCall,
    g.OpenTermsCall,
    g.ProveCall,
    g.ConcedeCall,
)
"""The calls that are moves."""


def read_move(call: Function[Any]) -> Move:
    """The move that a call made. Raises `ChainError` for another call."""
    match call:
        case g.SelectCall():
            return Select(node=call.node, index=call.index, siblings=call.siblings, seal=call.seal)
        case g.SelectElementCall():
            return SelectElement(index=call.index, chunk=call.chunk, seal=call.seal)
        case g.ProveCall():
            return _read_proof(call.proof, call.salt)
        case g.ConcedeCall():
            return Concede()
        case _:
            return _read_defence(call)


def _read_defence(call: Function[Any]) -> Move:
    match call:
        case g.DescendCall():
            return Descend(nodes=call.nodes)
        case g.OpenStepsCall():
            return _read_steps(call)
        case g.OpenValuesCall():
            return _read_values(call)
        case g.OpenTensorCall():
            return OpenTensor(instruction=call.instruction, siblings=call.siblings, nodes=call.nodes)
        case g.OpenChunkCall():
            return OpenChunk(chunk=call.chunk, word=call.word, siblings=call.siblings)
        case g.OpenTermsCall():
            return OpenTerms(nodes=call.nodes, accumulator=call.accumulator, siblings=call.siblings)
    raise ChainError(f"expected a move of the game, got a call of {call.NAME}")


def _read_steps(call: g.OpenStepsCall) -> OpenSteps:
    return OpenSteps(
        nodes=call.nodes,
        siblings=call.siblings,
        state_root=call.state_root,
        loss_bits=call.loss_bits,
        log_root=call.log_root,
    )


def _read_values(call: g.OpenValuesCall) -> OpenValues:
    return OpenValues(
        state_root=call.state_root,
        loss_bits=call.loss_bits,
        log_root=call.log_root,
        nodes=call.nodes,
        siblings=call.siblings,
        step_log=call.step_log,
        log_siblings=call.log_siblings,
    )


def _read_proof(proof: g.Proof, salt: bytes) -> Prove:
    tensors = (
        TensorOpening(value=t.value, dtype=t.dtype, dims=t.dims, chunk_root=t.chunk_root, siblings=t.siblings)
        for t in proof.tensors
    )
    chunks = (
        ChunkOpening(tensor=c.tensor, chunk=c.chunk_index, data=c.data, siblings=c.siblings) for c in proof.chunks
    )
    return Prove(
        instruction=proof.instruction,
        previous=proof.previous,
        siblings=proof.siblings,
        tensors=tuple(tensors),
        chunks=tuple(chunks),
        witness=_read_witness(proof.witness),
        salt=salt,
    )


def _read_witness(w: g.Witness) -> Witness:
    """The contract's one struct serves three kinds of witness; unused fields are zero and empty."""
    if w.state_root != ZERO_DIGEST or w.record_siblings:
        return StateWitness(
            step=w.step,
            state_root=w.state_root,
            loss_bits=w.loss_bits,
            log_root=w.log_root,
            record_siblings=w.record_siblings,
            tensor_id=w.tensor_id,
            siblings=w.siblings,
        )
    if w.tensor_id != ZERO_DIGEST or w.siblings:
        return TensorWitness(tensor_id=w.tensor_id, siblings=w.siblings)
    return None
