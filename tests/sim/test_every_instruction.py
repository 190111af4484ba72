"""Every instruction of both demo programs, refereed at random elements in integers and on the EVM.

A step is computed in torch; then each referee gets nothing but openings. It must find the very bits that torch found,
so that the correct value is accepted and one an ulp away, in either direction, is not.
"""

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.contracts.context import Context, Target
from tests.parts import slow_except
from tiebreak.demo.tasks.loader import load_task
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.compile import Compiled, compile_task
from tiebreak.engine.data.tensors import identity, tensor_bytes
from tiebreak.engine.run.agreement import Terms, draft_job
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.train import make_record
from tiebreak.protocol.chain import EmbeddedChain, Reverted
from tiebreak.protocol.chain.calls import Call, proof_argument
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import data_tree, initial_record, state_leaf, state_tree
from tiebreak.protocol.errors import ProofError
from tiebreak.protocol.game import proof, referee
from tiebreak.protocol.game.moves import Prove, StateWitness, TensorWitness
from tiebreak.protocol.program.accumulator import encode
from tiebreak.protocol.program.isa import (
    TERMS_PER_LEAF,
    TRANSCENDENTALS,
    DType,
    Instruction,
    MapFunction,
    Opcode,
    Slot,
    SourceKind,
)
from tiebreak.protocol.program.program import Program, half_and_half, instruction_digest
from tiebreak.protocol.program.reference import accumulators, unpack
from tiebreak.protocol.program.rounding import NEAREST
from tiebreak.protocol.tags import Digest, Tag, tagged_hash
from tiebreak.protocol.trees import Tree

DEPLOYER = PrivateKey.from_int(0xDE9107)


@dataclass(frozen=True)
class Traced:
    """Step 1 of a task, whole."""

    compiled: Compiled
    job: Job
    values: dict[int, bytes]
    tree: Tree

    @property
    def program(self) -> Program:
        return self.compiled.program

    @property
    def body_root(self) -> Digest:
        return self.tree.node(self.program.half_depth, 0)

    def element(self, value: int, index: int) -> int:
        dtype = self.program.body[value].dtype
        return unpack(dtype, self.values[value][index * dtype.size : (index + 1) * dtype.size])[0]


def trace(name: str) -> Traced:
    task = load_task(name)
    compiled = compile_task(task)
    machine = Interpreter(compiled.program, Arithmetic())
    values: dict[int, bytes] = {}
    ids: dict[int, Digest] = {}

    def observe(leaf: int, tensor: torch.Tensor) -> torch.Tensor:
        values[leaf], ids[leaf] = bytes(tensor_bytes(tensor)), identity(tensor)
        return tensor

    machine.step(1, machine.to_device(compiled.state), machine.to_device(compiled.data), observe)
    program = compiled.program
    commits = [state_leaf(name, ids[program.leaf_of_commit(slot)]) for slot, name in enumerate(program.state_spec())]
    tree = half_and_half([ids[i] for i in range(len(program.body))], commits, program.half_depth)
    job = draft_job(
        compiled,
        steps=task.steps,
        checkpoint_interval=task.checkpoint_interval,
        client=Address(b"\1" * 20),
        trainer=Address(b"\2" * 20),
        terms=Terms(),
    )
    return Traced(compiled, job, values, tree)


@pytest.fixture(scope="module", params=slow_except(["digits", "text"], "digits"))
def traced(request: pytest.FixtureRequest) -> Traced:
    return trace(request.param)


class EvmReferee:
    """Calls of the contract, without transactions."""

    def __init__(self) -> None:
        self.chain = EmbeddedChain()
        self.chain.fund(DEPLOYER.address)
        self.chain.deploy(DEPLOYER)

    def judge(self, context: Context, move: Prove) -> bytes:
        call = Call("judge", (context.values, proof_argument(move)))
        return call.result(self.chain._node.call(self.chain.deployment.referee, call.data))


@pytest.fixture(scope="module")
def evm() -> EvmReferee:
    return EvmReferee()


def context(
    t: Traced, target: Target, position: int, *, element: int = 0, leaf: int = 0, accumulator_root: bytes = bytes(32)
) -> Context:
    job, program = t.job, t.program
    return Context(
        target=target,
        depth=program.half_depth,
        rounding=job.precision,
        position=position,
        element=element,
        terms_leaf=leaf,
        step=1,
        state_count=job.state_count,
        data_count=job.data_count,
        instruction_leaf=instruction_digest(program.encoded_at(position)),
        program_root=program.root,
        body_root=t.body_root,
        data_root=job.data_root,
        record_root=initial_record(job.initial_state_root).digest,
        record_depth=0,
        record_position=0,
        accumulator_root=Digest(accumulator_root),
    )


def openings_of(t: Traced, value: int, element: int, leaf: int | None) -> Prove:
    tensors, chunks = referee.build_openings(
        t.program, t.program.body[value], element, leaf, body_tree=t.tree, tensor_bytes=t.values.__getitem__
    )
    return Prove(instruction=t.program.encoded[value], tensors=tensors, chunks=chunks)


def neighbours(i: Instruction, bits: int) -> set[int]:
    """The values one ulp (or one) away, as raw bits."""
    width = 8 * i.dtype.size if i.dtype != DType.BOOL else 1
    return {(bits + 1) % (1 << width), (bits - 1) % (1 << width)} - {bits}


IN_STEP_1: dict[str, Any] = {"step": 1, "rounding": NEAREST}


@pytest.mark.slow
def test_every_element_kind(traced: Traced, evm: EvmReferee, cases: object) -> None:
    rng = random.Random(traced.program.root)
    on_chain: Counter[str] = Counter()
    for value, i in enumerate(traced.program.body):
        if i.opcode == Opcode.SOURCE or (i.is_reduction and i.terms > TERMS_PER_LEAF):
            continue
        element = rng.randrange(i.numel)
        move = openings_of(traced, value, element, None)
        right = proof.judge_element(traced.job, i, element, traced.body_root, move, **IN_STEP_1)
        size = i.dtype.size
        committed = traced.values[value][element * size : (element + 1) * size]
        assert right == committed, f"instruction {value} ({i.origin}), element {element}"
        bits = int.from_bytes(committed, "little")
        assert all(n.to_bytes(size, "little") != right for n in neighbours(i, bits))
        cases()  # type: ignore[operator]
        where = context(traced, Target.ELEMENT, value, element=element)
        assert int.from_bytes(evm.judge(where, move), "big") == bits, f"instruction {value} on the EVM"
        on_chain[i.opcode.name] += 1
        on_chain["transcendental"] += i.opcode == Opcode.MAP and MapFunction(i.function) in TRANSCENDENTALS
    assert on_chain["MAP"] >= 10
    assert min(on_chain[name] for name in ("GATHER", "WINDOW", "IOTA", "RANDOM", "SHUFFLE", "transcendental")) >= 1


def test_every_long_reduction(traced: Traced, evm: EvmReferee, cases: object) -> None:
    rng = random.Random(traced.program.root)
    judged: Counter[str] = Counter()
    for value, i in enumerate(traced.program.body):
        if not i.is_reduction or i.terms <= TERMS_PER_LEAF:
            continue
        element = rng.randrange(i.numel)
        types = traced.program.operand_dtypes(i)

        def read(operand: int, where: int, i: Instruction = i) -> int:
            return traced.element(i.operands[operand].value, where)

        held = [encode(a) for a in accumulators(i, element, read, types)]
        digest, final = proof.finish(i, held[-1], NEAREST)
        size = i.dtype.size
        assert final == traced.values[value][element * size : (element + 1) * size], (
            f"{value} ({i.origin}) at {element}"
        )
        tree = Tree([tagged_hash(Tag.ACCUMULATOR, e) for e in held])
        assert digest == tree.node(0, len(held) - 1)
        leaf = rng.randrange(len(held))
        move = openings_of(traced, value, element, leaf)
        if leaf:
            siblings = tuple(tree.proof(leaf - 1))
            move = Prove(
                instruction=move.instruction,
                previous=held[leaf - 1],
                siblings=siblings,
                tensors=move.tensors,
                chunks=move.chunks,
            )
        right = proof.judge_terms(traced.job, i, element, traced.body_root, move, leaf=leaf, root=tree.root)
        assert right == tree.node(0, leaf)
        bent = bytearray(held[leaf])
        bent[-1] ^= 1
        assert tagged_hash(Tag.ACCUMULATOR, bytes(bent)) != tree.node(0, leaf)
        cases()  # type: ignore[operator]
        key = f"{i.opcode.name} {i.function} {len(i.operands)}"
        where = context(traced, Target.TERMS, value, element=element, leaf=leaf, accumulator_root=tree.root)
        assert evm.judge(where, move) == tree.node(0, leaf), f"instruction {value} on the EVM"
        judged[key] += 1
    assert judged["REDUCE 0 2"] >= 3
    assert judged["REDUCE 0 1"] >= 1
    assert judged["SCATTER_SUM 0 2"] >= 1


def test_every_source_and_commit(traced: Traced, evm: EvmReferee, cases: object) -> None:
    program, job = traced.program, traced.job
    states = {name: identity(t) for name, t in traced.compiled.state.items()}
    data = {name: identity(t) for name, t in traced.compiled.data.items()}
    state_proofs, data_proofs = state_tree(states), data_tree(data)
    initial = initial_record(job.initial_state_root)
    place = proof.record_place(job, 1, bytes(32), bytes(32))
    for value, i in enumerate(program.body):
        if i.opcode != Opcode.SOURCE:
            continue
        witness: StateWitness | TensorWitness | None = None
        if i.function == SourceKind.STATE:
            assert isinstance(i.params, Slot)
            witness = StateWitness(
                step=0, state_root=initial.state_root, loss_bits=initial.loss_bits, log_root=initial.log_root,
                record_siblings=(), tensor_id=states[i.params.name], siblings=tuple(state_proofs.proof(i.params.slot)),
            )  # fmt: skip
        elif i.function == SourceKind.DATA:
            assert isinstance(i.params, Slot)
            witness = TensorWitness(tensor_id=data[i.params.name], siblings=tuple(data_proofs.proof(i.params.slot)))
        move = Prove(instruction=program.encoded[value], witness=witness)
        right = proof.judge_source(job, i, 1, place, move)
        assert right == traced.tree.node(0, value)
        assert evm.judge(context(traced, Target.VALUE, value), move) == right
        cases()  # type: ignore[operator]
    half = program.half_depth
    for slot, commit in enumerate(program.commits):
        leaf = program.leaf_of_commit(slot)
        source = commit.operands[0].value
        witness = TensorWitness(tensor_id=traced.tree.node(0, source), siblings=tuple(traced.tree.proof(source)[:half]))
        move = Prove(instruction=program.encoded_at(leaf), siblings=tuple(program.tree.proof(leaf)), witness=witness)
        right = proof.judge_commit(job, leaf, traced.body_root, move)
        assert right == traced.tree.node(0, leaf)
        assert evm.judge(context(traced, Target.VALUE, leaf), move) == right
        cases()  # type: ignore[operator]


def test_a_forged_opening_is_refused_by_both(traced: Traced, evm: EvmReferee) -> None:
    value = next(
        n for n, i in enumerate(traced.program.body) if i.opcode == Opcode.MAP and i.function == MapFunction.MUL
    )
    move = openings_of(traced, value, 0, None)
    chunk = move.chunks[0]
    data = bytes([chunk.data[0] ^ 1]) + chunk.data[1:]
    forged = type(chunk)(tensor=chunk.tensor, chunk_index=chunk.chunk_index, data=data, siblings=chunk.siblings)
    bad = Prove(instruction=move.instruction, tensors=move.tensors, chunks=(forged, *move.chunks[1:]))
    with pytest.raises(ProofError):
        proof.judge_element(traced.job, traced.program.body[value], 0, traced.body_root, bad, **IN_STEP_1)
    with pytest.raises(Reverted) as caught:
        evm.judge(context(traced, Target.ELEMENT, value), bad)
    assert caught.value.name == "WrongRoot"


def test_the_record_of_the_step_follows_from_the_trace(traced: Traced) -> None:
    machine = Interpreter(traced.program, Arithmetic(permute=9))
    state = machine.to_device(traced.compiled.state)
    result = machine.step(1, state, machine.to_device(traced.compiled.data))
    depth = traced.program.state_depth
    first = (1 << traced.program.half_depth) >> depth
    assert make_record(1, result.state, result.loss_bits).state_root == traced.tree.node(depth, first)
