"""What a cheat commits to be out of reach, and what it sends to stop the other side: each is caught or refused."""

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.protocol.instructions import BOOL, F32, I64, const, counted, mapped, reduced, shuffled, windowed
from tests.protocol.programs import every_kind
from tests.protocol.runs import GAME, SECRET, Run, duel, make_job, stuck
from tiebreak.protocol.commitments.job import Head
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.errors import IllegalMove, VerificationError
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.moves import OpenTensor, Phase, Prove, Side, TensorWitness
from tiebreak.protocol.game.rules import Level, Reason
from tiebreak.protocol.game.sides import Challenger, Defender
from tiebreak.protocol.program.isa import Access, Instruction, MapFunction, Opcode, ReduceFunction
from tiebreak.protocol.program.program import encode_instruction, instruction_digest
from tiebreak.protocol.tags import EMPTY, Digest
from tiebreak.protocol.trees import Tree, fold

STEP = 3


def payload(bits: int) -> Callable[[int, int, bytes], bytes]:
    """A loss with these bits in step 3 and after; nothing else is touched."""
    last = len(every_kind().body) - 1
    return lambda step, leaf, data: struct.pack("<I", bits) if step >= STEP and leaf == last else data


@pytest.mark.parametrize("bits", [0x7FC00001, 0x7F800000, 0x80000000])
def test_strange_bits_in_a_committed_loss_are_caught(bits: int) -> None:
    cheat = Run(make_job(), payload(bits), STEP)
    end = duel(cheat, Defender(cheat), Challenger(Run(make_job()), SECRET))
    assert (end.verdict.winner, end.step) == (Side.CHALLENGER, STEP)


class Littered(Run):
    """Puts garbage where a tree must be empty: in the run tree behind its head."""

    def run_tree(self, count: int) -> Tree:
        tree = super().run_tree(count)
        leaves = [tree.node(0, k) for k in range(count)]
        leaves += [Digest(b"\7" * 32)] * ((1 << tree.depth) - count)
        return Tree(leaves, tree.depth)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_garbage_behind_a_head_is_caught(count: int) -> None:
    cheat = Littered(make_job())
    end = duel(cheat, Defender(cheat), Challenger(Run(make_job()), SECRET), count=count)
    assert (end.verdict.winner, end.verdict.reason) == (Side.CHALLENGER, Reason.PADDING)


# ---------------------------------------------------------------- programs that nobody validated


ONE, NONE = Access(0, 0, (1,)), Access(0, 0, ())
INVALID = {
    "reduction of no terms": reduced(F32, (), (0,), ONE),
    "window of step 0": windowed(F32, (2,), ONE, lo=(0,), hi=(2,), step=(0,)),
    "window without its else": replace(windowed(F32, (2,), ONE, lo=(0,), hi=(1,), step=(1,)), function=1),
    "iota of floats": replace(counted((2,), offset=-7, strides=(1,)), dtype=F32),
    "shuffle without operands": shuffled((2,), n=0, stream=1),
    "constant wider than its dtype": const(1 << 63),
    "argmax of floats": reduced(F32, (), (9,), ONE, function=ReduceFunction.ARGMAX),
    "sum of bools": reduced(BOOL, (), (9,), ONE),
    "map of nothing": mapped(MapFunction.ADD, F32, ()),
    "sine of integers": mapped(MapFunction.SIN, I64, (), NONE),
    "product of three": reduced(F32, (), (2,), ONE, ONE, ONE),
    "commit of nothing": Instruction(opcode=Opcode.COMMIT, dtype=F32),
}


@pytest.mark.parametrize("name", INVALID)
def test_a_program_that_nobody_validated_cannot_crash_a_referee(name: str) -> None:
    """Client and trainer may sign anything; who referees their game must not fall over it."""
    instruction = INVALID[name]
    try:
        encoded = encode_instruction(instruction)
    except (AttributeError, VerificationError):
        encoded = bytes((instruction.opcode, 0, instruction.dtype, 0, 0, 0, 0, 0))
    siblings = (EMPTY,) * 2
    # One body instruction and one commit: the program tree has depth 1.
    job = replace(
        make_job(), body_count=1, state_count=1, program_root=fold(instruction_digest(encoded), 0, siblings[:1])
    )
    state = replace(
        game.start(job, Head(job_id=job.id, count=1, run_root=Digest(bytes(32))), GAME, 0),
        phase=Phase.OPEN_TENSOR,
        level=Level.VALUES,
        step=1,
    )
    for nodes in ((), (EMPTY,), (EMPTY,) * 4):
        with pytest.raises(IllegalMove):
            game.apply(state, OpenTensor(instruction=encoded, siblings=siblings[:1], nodes=nodes), 0)
    # So no instruction of a game in PROVE is one of these, but at the leaf of a commit, where it comes with the proof.
    job = replace(job, program_root=fold(instruction_digest(encoded), 1, siblings[:1]))
    state = replace(state, job=job, leaf=1, position=1, phase=Phase.PROVE, body_root=EMPTY, value_seal=bytes(32))
    witness = TensorWitness(tensor_id=EMPTY, siblings=())
    with pytest.raises(IllegalMove):
        game.apply(state, Prove(instruction=encoded, siblings=siblings[:1], witness=witness), 1)


def test_opening_with_another_steps_record_is_refused() -> None:
    """A cheat shows the record of an earlier step where a later one stands."""

    class Stale(Run):
        def record(self, step: int) -> StepRecord:
            return replace(super().record(step), step=1) if step == 2 else super().record(step)

    cheat = Stale(make_job())
    at, refused = stuck(Defender(cheat), Challenger(Run(make_job()), SECRET))
    assert (at.step, refused) == (2, "the step record is not the disputed one")
