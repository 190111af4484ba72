"""Late data in Python and in the contract, move by move: a source is proved under the step log of its step."""

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chain.duel import Duel, parties, play
from tests.chain.support import CHALLENGER, CLIENT, TRAINER
from tests.chain.test_random_play import late_job, over
from tests.chain.tiny import LATE, WRITTEN, late_logs, make_job
from tests.parts import slow_except
from tests.protocol.instructions import committed, source
from tests.protocol.runs import STEPS, Liar, Logs, Run, Setting
from tiebreak.protocol.chain import Call, EmbeddedChain, Outcome
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.game.match import moves
from tiebreak.protocol.game.moves import Move, Phase, Prove, Side, StateWitness, TensorWitness
from tiebreak.protocol.game.rules import apply
from tiebreak.protocol.game.sides import Party
from tiebreak.protocol.game.snapshot import Standing
from tiebreak.protocol.game.state import GameState, Level, Reason
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.program.isa import DType, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import StepLog

LOGS = late_logs()
LONE = Setting(
    "lone", Program((source(SourceKind.LATE, "written", DType.F32),), (committed("w", DType.F32, (), 0),)),
    {"w": bytes(4)}, {},
)  # fmt: skip
"""The least program: its only instruction reads a late number, which is the new state and the loss."""


def run(job: Job) -> Run:
    return Run(job, logs=LOGS, setting=LATE)


def lying(chain: EmbeddedChain, job: Job, step: int) -> tuple[Duel, Run, Run]:
    """A duel about other late data than the step log holds, and both runs."""
    liar = Liar(job, step, WRITTEN, logs=LOGS, setting=LATE)
    return Duel(chain, liar, head_count=job.checkpoints), liar, run(job)


def to_the_proof(duel: Duel, players: dict[Side, Party], at: int = WRITTEN) -> Move | None:
    """Play until the source is to be proved. Returns the last move."""
    last = None
    while duel.state.phase is not Phase.PROVE:
        last = players[duel.state.mover].move(duel.state, last)
        assert duel.try_move(last), duel.contract_refusal
    duel.wait()
    assert (duel.state.level, duel.state.leaf) == (Level.VALUES, at)
    return last


@pytest.mark.parametrize(("interval", "step"), slow_except([(1, 2), (2, 4), (5, 1)], (2, 4), several=True))
def test_other_late_data_than_the_logs_are_convicted(chain: EmbeddedChain, interval: int, step: int) -> None:
    """In segments of one step, of two and of five."""
    duel, liar, honest = lying(chain, late_job(levels=5, interval=interval), step)
    play(duel, parties(liar, honest))
    assert duel.state.verdict is not None
    assert (duel.state.verdict.winner, duel.state.verdict.reason) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert (duel.state.step, duel.state.leaf) == (step, WRITTEN)


@pytest.mark.parametrize("step", slow_except(range(1, 4), 2))
def test_the_only_instruction_is_proved_without_siblings(chain: EmbeddedChain, step: int) -> None:
    """The step log is then the tensor's id: a proof of depth 0."""
    LONE.program.validate()
    assert LONE.program.half_depth == 0
    logs = Logs({at: StepLog(late={"written": struct.pack("<f", at)}) for at in range(1, STEPS + 1)}, LONE.program)
    job = over(LONE, levels=3)
    liar, honest = (kind(job, *more, logs=logs, setting=LONE) for kind, more in ((Liar, (step, 0)), (Run, ())))
    duel, players = Duel(chain, liar, head_count=job.checkpoints), parties(liar, honest)
    last = to_the_proof(duel, players, at=0)
    proof = players[Side.CHALLENGER].move(duel.state, last)
    assert isinstance(proof, Prove)
    assert isinstance(proof.witness, TensorWitness)
    assert (proof.witness.siblings, proof.witness.tensor_id) == ((), logs.tree(step).root)
    for changed in (
        replace(proof.witness, siblings=(bytes(32),)),  # type: ignore[arg-type]
        replace(proof.witness, tensor_id=duel.state.node),
        replace(proof.witness, tensor_id=logs.tree(step % STEPS + 1).root),
    ):
        assert not duel.try_move(replace(proof, witness=changed))
    assert duel.refusals == {"WrongRoot", "WrongSiblingCount"}
    assert duel.try_move(proof)
    assert duel.state.verdict is not None
    assert (duel.state.verdict.winner, duel.state.verdict.reason) == (Side.CHALLENGER, Reason.RECOMPUTED)


def test_no_other_witness_proves_late_data(chain: EmbeddedChain, cases: Callable[[int], None]) -> None:
    duel, liar, honest = lying(chain, late_job(levels=3, interval=5), 3)
    players = parties(liar, honest)
    last = to_the_proof(duel, players)
    proof = players[Side.CHALLENGER].move(duel.state, last)
    assert isinstance(proof, Prove)
    witness, other = proof.witness, LOGS.tree(2)
    assert isinstance(witness, TensorWitness)
    state, siblings, zero = honest.record(2), witness.siblings, bytes(32)
    record = StateWitness(
        step=2, state_root=state.state_root, loss_bits=state.loss_bits, log_root=state.log_root,
        record_siblings=tuple(honest.steps_tree(0).proof(1)), tensor_id=witness.tensor_id, siblings=siblings,
    )  # fmt: skip
    others = [
        None,
        record,
        replace(witness, tensor_id=duel.state.node),  # the defender's
        replace(witness, siblings=siblings[:-1]),
        replace(witness, siblings=(*siblings, zero)),
        replace(witness, siblings=(siblings[1], siblings[0])),
        TensorWitness(tensor_id=other.late[WRITTEN], siblings=tuple(other.above(WRITTEN))),  # step 2's
        TensorWitness(tensor_id=LOGS.tree(3).root, siblings=()),  # the step log itself
        TensorWitness(tensor_id=siblings[0], siblings=(witness.tensor_id, siblings[1])),  # the leaf beside it
    ]
    for changed in others:
        assert not duel.try_move(replace(proof, witness=changed))
        cases(1)
    assert duel.refusals == {"UnusedPart", "WrongRoot", "WrongSiblingCount"}
    assert duel.try_move(proof)
    assert duel.state.is_over


def test_an_auditor_with_other_late_data_loses(chain: EmbeddedChain) -> None:
    honest = run(late_job(levels=5))
    duel = Duel(chain, honest)
    play(duel, parties(honest, Run(honest.job, logs=late_logs(1), setting=LATE)))
    assert duel.state.verdict is not None
    assert (duel.state.verdict.winner, duel.state.verdict.reason) == (Side.DEFENDER, Reason.CONCEDED)


def test_late_data_cannot_be_proved_in_a_job_without_logs(chain: EmbeddedChain) -> None:
    """No party takes such a job. Its step log is zero, and nothing stands under that."""
    job = make_job(LATE, CLIENT.address, TRAINER.address, levels=5)
    duel, liar, honest = lying(chain, job, 3)
    to_the_proof(duel, parties(liar, honest))
    log = LOGS.tree(3)
    witness = TensorWitness(tensor_id=log.late[WRITTEN], siblings=tuple(log.above(WRITTEN)))
    proof = Prove(instruction=honest.program.encoded_at(WRITTEN), witness=witness)
    assert not duel.try_move(proof)
    assert duel.refusals == {"WrongRoot"}


@pytest.mark.parametrize("stored", [False, True])
def test_a_signed_state_at_late_data_is_judged(chain: EmbeddedChain, *, stored: bool) -> None:
    """At once from what the defender signed, or after the state entered."""
    duel, liar, honest = lying(chain, replace(late_job(levels=5), talk_time=3000), 4)
    walk: list[tuple[GameState, Move]] = []

    def judge(state: GameState, move: Move) -> GameState:
        walk.append((state, move))
        return apply(state, move, state.earliest)

    assert [played.after for played in moves(duel.state, parties(liar, honest), judge)][-1].is_over
    state, proof = walk[-1]
    assert (state.phase, state.step_log) == (Phase.PROVE, LOGS.tree(4).root)
    assert isinstance(proof, Prove)
    signature = TRAINER.sign(Standing.of(state).digest(chain.domain))
    if stored:
        receipt = chain.send(CHALLENGER, Call.of(tx.Enter.of(state, signature)))
        assert chain.game_state(duel.id).log == state.step_log
        chain.pass_until(receipt.timestamp + duel.job.clock)
        receipt = chain.play(CHALLENGER, state, proof)
    else:
        receipt = chain.send(CHALLENGER, Call.of(tx.EnterAndProve.of(state, signature, proof)))
    assert receipt.event("GameEnded").values["verdict"] is Outcome.DEFENDER_LOST
