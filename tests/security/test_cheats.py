"""What a cheat commits to be out of reach, and what it sends to stop the other side: each is caught or refused."""

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.protocol.programs import every_kind
from tests.protocol.runs import CHALLENGER, DOMAIN, GAME, SECRET, TRAINER, Run, duel, make_job, stuck
from tiebreak.protocol.commitments.job import Head, game_id
from tiebreak.protocol.commitments.records import StepRecord, loss_id
from tiebreak.protocol.errors import IllegalMove, VerificationError
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.messages import Transcript, seal
from tiebreak.protocol.game.moves import Descend, OpenTensor, Phase, Prove, Side, TensorWitness
from tiebreak.protocol.game.rules import Level, Reason
from tiebreak.protocol.game.sides import Challenger, Defender
from tiebreak.protocol.program.isa import (
    Access,
    DType,
    Instruction,
    IotaParams,
    MapFunction,
    Opcode,
    ReduceFunction,
    ShuffleParams,
    SourceConst,
    SourceKind,
    WindowFunction,
    WindowParams,
)
from tiebreak.protocol.program.program import encode_instruction, instruction_digest
from tiebreak.protocol.tags import EMPTY, Digest
from tiebreak.protocol.trees import Tree, fold

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
STEP = 3


def payload(bits: int) -> Callable[[int, int, bytes], bytes]:
    """A loss with these bits in step 3 and after; nothing else is touched."""
    last = len(every_kind().body) - 1
    return lambda step, leaf, data: struct.pack("<I", bits) if step >= STEP and leaf == last else data


@pytest.mark.parametrize("bits", [0x7FC00001, 0x7F800001, 0xFFC00000, 0x7F800000, 0x80000000])
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


@pytest.mark.parametrize(("steps", "interval"), [(1, 1), (5, 1), (5, 5), (5, 3), (4, 4), (2, 2)])
def test_every_division_of_a_run_into_segments_catches_a_lie_in_its_last_step(steps: int, interval: int) -> None:
    job = make_job(steps=steps, interval=interval)
    last = len(every_kind().body) - 1
    cheat = Run(job, lambda step, leaf, data: b"\1\2\3\4" if (step, leaf) == (steps, last) else data, steps)
    end = duel(cheat, Defender(cheat), Challenger(Run(job), SECRET))
    assert (end.verdict.winner, end.step) == (Side.CHALLENGER, steps)
    honest = duel(Run(job), Defender(Run(job)), Challenger(Run(job), SECRET))
    assert honest.verdict.winner is Side.DEFENDER


# ---------------------------------------------------------------- programs that nobody validated


def _step(opcode: Opcode, dtype: DType, **fields: object) -> Instruction:
    return Instruction(opcode=opcode, dtype=dtype, **fields)  # type: ignore[arg-type]


def access(rank: int = 0) -> Access:
    return Access(0, 0, (1,) * rank)


INVALID = {
    "reduction of no terms": _step(Opcode.REDUCE, F32, reduction=(0,), operands=(access(1),)),
    "window of step 0": _step(
        Opcode.WINDOW, F32, shape=(2,), operands=(access(1),), params=WindowParams(lo=(0,), hi=(2,), step=(0,))
    ),
    "window without its else": _step(
        Opcode.WINDOW,
        F32,
        function=WindowFunction.ELSE,
        shape=(2,),
        operands=(access(1),),
        params=WindowParams(lo=(0,), hi=(1,), step=(1,)),
    ),
    "iota of floats": _step(Opcode.IOTA, F32, shape=(2,), params=IotaParams(offset=-7, strides=(1,))),
    "shuffle without operands": _step(Opcode.SHUFFLE, I64, shape=(2,), params=ShuffleParams(n=0, stream=1)),
    "constant wider than its dtype": _step(
        Opcode.SOURCE, F32, function=SourceKind.CONST, params=SourceConst(bits=1 << 63)
    ),
    "argmax of floats": _step(
        Opcode.REDUCE, F32, function=ReduceFunction.ARGMAX, reduction=(9,), operands=(access(1),)
    ),
    "sum of bools": _step(Opcode.REDUCE, BOOL, reduction=(9,), operands=(access(1),)),
    "map of nothing": _step(Opcode.MAP, F32, function=MapFunction.ADD),
    "sine of integers": _step(Opcode.MAP, I64, function=MapFunction.SIN, operands=(access(),)),
    "product of three": _step(Opcode.REDUCE, F32, reduction=(2,), operands=(access(1),) * 3),
    "commit of nothing": _step(Opcode.COMMIT, F32),
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


# ---------------------------------------------------------------- messages


def test_a_signed_illegal_move_enters_no_transcript() -> None:
    run = Run(make_job())
    head, identity = run.head(), game_id(run.head().head, DOMAIN, CHALLENGER.address, 0)
    transcript = Transcript(game.start(run.job, head.head, identity, 0), domain=DOMAIN, challenger=CHALLENGER.address)
    move = Descend(nodes=(EMPTY,) * 32)
    with pytest.raises(IllegalMove, match="expected 4 nodes, got 32"):
        transcript.seal(move, TRAINER)
    with pytest.raises(IllegalMove, match="expected 4 nodes, got 32"):
        transcript.append(seal(transcript.next_message(move), DOMAIN, TRAINER, None))
    assert (transcript.messages, transcript.state.moves) == (0, 0)


def test_a_false_head_of_another_job_starts_no_game() -> None:
    run = Run(make_job())
    with pytest.raises(VerificationError):
        game.start(run.job, Head(job_id=make_job(nonce=8).id, count=1, run_root=EMPTY), GAME, 0)
    with pytest.raises(VerificationError):
        game.start(run.job, Head(job_id=run.job.id, count=run.job.checkpoints + 1, run_root=EMPTY), GAME, 0)


def test_a_record_of_another_step_does_not_tie() -> None:
    """A cheat shows the record of an earlier step where a later one stands."""

    class Stale(Run):
        def record(self, step: int) -> StepRecord:
            return replace(super().record(step), step=1) if step == 2 else super().record(step)

    cheat = Stale(make_job())
    at, refused = stuck(Defender(cheat), Challenger(Run(make_job()), SECRET))
    assert (at.step, refused) == (2, "the step record is not the disputed one")
    assert loss_id(0x7FC00000) != loss_id(0x7FC00001)
