"""Time, seals, concessions and several challengers, on the contract and in the Python game at once."""

from dataclasses import replace

import pytest

from tests.chain.duel import Duel, lying_duel, new_job, parties, play, play_until
from tests.chain.support import CHALLENGER, ETHER, STRANGER, TRAINER, moves_in
from tests.chain.tiny import EVERY, Liar, Run
from tests.parts import slow_except
from tiebreak.protocol.chain import EmbeddedChain, JobStatus, Outcome, Reverted, calls
from tiebreak.protocol.chain.calls import move_call
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game import seals
from tiebreak.protocol.game.moves import NO_SEAL, Concede, Move, Phase, Prove, Select, SelectElement, Side
from tiebreak.protocol.game.rules import Reason

SUB, COMMIT, SOURCE = 24, 64, 3
SUM = max(k for k, i in enumerate(EVERY.program.body) if i.is_reduction and i.terms > 4)
"""Leaves of `EVERY`: a map, a long reduction, a commit and a source of state."""

# ---------------------------------------------------------------- clocks


def at_the_last_second(duel: Duel, move: Move) -> None:
    """t-1 and t are in time, t+1 is not; then the mover has lost. `t` counts the allowance for re-execution."""
    state, chain = duel.state, duel.chain
    assert state.deadline == state.last + state.rest + state.allowance
    for moment in (state.deadline - 1, state.deadline):
        chain.travel_to(moment)
        assert not duel.try_timeout()
    assert "ClockRunning" in duel.refusals
    chain.travel_to(state.deadline + 1)
    assert not duel.try_move(move)
    assert "ClockExhausted" in duel.refusals
    assert duel.try_timeout()
    assert duel.state.verdict is not None
    assert duel.state.verdict.winner is state.mover.other
    assert duel.state.verdict.reason is Reason.TIMEOUT


@pytest.mark.parametrize("replay_time", slow_except([0, 900], 900))
@pytest.mark.parametrize(
    "phase",
    slow_except(
        [Phase.DESCEND, Phase.SELECT, Phase.OPEN_STEPS, Phase.OPEN_VALUES, Phase.OPEN_TERMS, Phase.PROVE],
        Phase.OPEN_VALUES,
        Phase.PROVE,
    ),
)
def test_every_clock_at_its_edge(chain: EmbeddedChain, phase: Phase, replay_time: int) -> None:
    """After moves of 7 seconds each, half of which the allowances pay for."""
    duel, players = lying_duel(chain, EVERY, 3, SUM, levels=3, clock=400, replay_time=replay_time)
    last: Move | None = None
    while duel.state.phase is not phase:
        chain.advance(7)
        last = players[duel.state.mover].move(duel.state, last)
        assert duel.try_move(last), duel.contract_refusal
    allowed = phase in (Phase.OPEN_STEPS, Phase.OPEN_VALUES, Phase.OPEN_TERMS)
    assert duel.state.allowance == (replay_time if allowed else 400 if phase is Phase.PROVE else 0)
    move = players[duel.state.mover].move(duel.state, last)
    if phase is Phase.PROVE:
        chain.travel_to(duel.state.earliest - 1)
        assert not duel.try_move(move)
        assert "TooEarly" in duel.refusals
        chain.travel_to(duel.state.earliest)
        assert not duel.try_move(replace(move, salt=bytes(32)))  # type: ignore[call-arg]
        assert "WrongSeal" in duel.refusals
    at_the_last_second(duel, move)


@pytest.mark.slow
def test_the_first_selection_in_a_replayed_tree_has_an_allowance(chain: EmbeddedChain) -> None:
    """The steps, values and terms: the challenger has to compute them. The run and the chunks it has already."""
    duel, players = lying_duel(chain, EVERY, 3, SUM, levels=1, clock=400, replay_time=900)
    last: Move | None = None
    allowed = []
    while not duel.state.is_over:
        if duel.state.phase is Phase.SELECT:
            allowed.append((duel.state.level.name, duel.state.allowance > 0))
            chain.travel_to(duel.state.last + max(1, duel.state.allowance))
        rest = duel.state.challenger_rest
        free = duel.state.allowance > 0
        last = players[duel.state.mover].move(duel.state, last)
        assert duel.try_move(last), duel.contract_refusal
        assert not free or duel.state.challenger_rest == rest
        duel.wait()
    seen = dict.fromkeys(allowed)
    assert {level for level, free in seen if free} == {"STEPS", "VALUES", "TERMS"}
    assert ("RUN", True) not in seen
    assert ("VALUES", False) in seen, "only the first"


def test_the_last_second_is_in_time(chain: EmbeddedChain) -> None:
    job = new_job(EVERY, levels=1, clock=300, replay_time=50)
    duel = Duel(chain, Run(EVERY, job))
    chain.travel_to(duel.state.deadline)
    assert duel.try_move(parties(Run(EVERY, job), Run(EVERY, job))[duel.state.mover].move(duel.state, None))
    assert min(duel.state.defender_rest, duel.state.challenger_rest) == 0


# ---------------------------------------------------------------- seals

STRANGER_SEAL = b"\x33" * 32
LEAVES = {"source": SOURCE, "map": SUB, "terms": SUM, "commit": COMMIT}


def to_proof(chain: EmbeddedChain, leaf: int) -> tuple[Duel, Prove]:
    duel, players = lying_duel(chain, EVERY, 3, leaf, levels=4)
    proof = play_until(duel, players, Phase.PROVE)
    duel.wait()
    assert isinstance(proof, Prove)
    return duel, proof


@pytest.mark.parametrize("name", slow_except(LEAVES, "terms"))
def test_a_proof_needs_the_salt_of_its_seal(chain: EmbeddedChain, name: str) -> None:
    duel, proof = to_proof(chain, LEAVES[name])
    for salt in (bytes(32), proof.salt[:-1] + bytes([proof.salt[-1] ^ 1])):
        assert not duel.try_move(replace(proof, salt=salt))
        assert duel.refusals == {"WrongSeal"}
    assert duel.try_move(proof)
    assert duel.state.verdict is not None
    assert duel.state.verdict.winner is Side.CHALLENGER


@pytest.mark.parametrize("name", slow_except(LEAVES, "map"))
def test_whoever_sealed_another_answer_proves_nothing(chain: EmbeddedChain, name: str) -> None:
    """A challenger that walks to the right leaf but sealed what the defender claims, or nothing that opens."""
    duel, players = lying_duel(chain, EVERY, 3, LEAVES[name], levels=4)
    last: Move | None = None
    salt = b"\x07" * 32
    while duel.state.phase is not Phase.PROVE:
        last = players[duel.state.mover].move(duel.state, last)
        if isinstance(last, Select | SelectElement) and last.seal != NO_SEAL:
            last = replace(last, seal=seals.seal(duel.id, duel.state.node, salt))
        assert duel.try_move(last), duel.contract_refusal
    proof = players[Side.CHALLENGER]._proof(duel.state)  # type: ignore[attr-defined]  # what it would show
    duel.wait()
    for found in (salt, bytes(32)):
        assert not duel.try_move(replace(proof, salt=found))
    assert duel.refusals == {"WrongSeal"}
    assert duel.try_move(Concede())


@pytest.mark.slow
def test_a_seal_where_none_is_kept_is_illegal(chain: EmbeddedChain) -> None:
    duel, players = lying_duel(chain, EVERY, 3, SUM, levels=2)
    last: Move | None = None
    tried = 0
    while not duel.state.is_over:
        last = players[duel.state.mover].move(duel.state, last)
        if isinstance(last, Select | SelectElement) and last.seal == NO_SEAL:
            reaches_value = isinstance(last, Select) and duel.state.level.name == "VALUES" and duel.state.height <= 2
            if not reaches_value:
                assert not duel.try_move(replace(last, seal=b"\x01" * 32))
                tried += 1
        duel.wait()
        assert duel.try_move(last), duel.contract_refusal
    assert tried >= 4
    assert duel.refusals == {"UnexpectedSeal"}


def test_what_was_opened_must_be_shown_again(chain: EmbeddedChain) -> None:
    """Another list, or one of another length, is no proof."""
    duel, proof = to_proof(chain, SUM)
    call = move_call(duel.state, proof)
    *shown, opened = call.arguments
    for changed, name in (
        ((*opened[:-1], STRANGER_SEAL), "WrongOpened"),
        ((opened[1], opened[0], *opened[2:]), "WrongOpened"),
        (opened[:-1], "WrongOpenedCount"),
        ((*opened, opened[-1]), "WrongOpenedCount"),
        ((), "WrongOpenedCount"),
    ):
        with pytest.raises(Reverted) as refused:
            chain.send(CHALLENGER, replace(call, arguments=(*shown, changed)))
        assert refused.value.name == name
    assert duel.try_move(proof)


# ---------------------------------------------------------------- concession


@pytest.mark.parametrize(
    "phase", slow_except([Phase.DESCEND, Phase.SELECT, Phase.OPEN_CHUNK, Phase.PROVE], Phase.PROVE)
)
def test_whoever_is_to_move_may_concede(chain: EmbeddedChain, phase: Phase) -> None:
    duel, players = lying_duel(chain, EVERY, 3, SUB, levels=2)
    play_until(duel, players, phase)
    mover = duel.state.mover
    with pytest.raises(Reverted) as refused:
        chain.send(STRANGER, calls.concede(duel.id))
    assert refused.value.name == "NotASide"
    assert duel.try_move(Concede())
    verdict = duel.state.verdict
    assert verdict is not None
    assert (verdict.winner, verdict.reason) == (mover.other, Reason.CONCEDED)
    assert moves_in(chain, duel.id, duel.started.block)[-1] == Concede()
    with pytest.raises(Reverted) as over:
        chain.send(duel.signers()[mover], calls.concede(duel.id))
    assert over.value.name == ("GameIsOver")


# ---------------------------------------------------------------- several challengers


def some_challengers(chain: EmbeddedChain, count: int) -> list[PrivateKey]:
    keys = [PrivateKey.from_int(0x5EC0 + k) for k in range(count)]
    for key in keys:
        if chain.balance(key.address) < ETHER:
            chain.fund(key.address, 100 * ETHER)
    return keys


@pytest.mark.slow
def test_the_first_to_prove_is_paid_and_the_others_get_their_stakes_back(chain: EmbeddedChain) -> None:
    job = new_job(EVERY, levels=5)
    liar, honest = Liar(EVERY, job, 3, SUB), Run(EVERY, job)
    keys = some_challengers(chain, 3)
    before = {key: chain.credit(key.address) for key in keys}
    duels = [Duel(chain, liar, challenger=key) for key in keys]
    assert chain.job_state(job.id).open_games == 3
    proofs = [play_until(duel, parties(liar, honest), Phase.PROVE) for duel in duels]
    for duel in duels:
        duel.wait()
    assert duels[1].try_move(proofs[1])
    assert chain.job_state(job.id).status is JobStatus.SLASHED
    for other in (0, 2):
        with pytest.raises(Reverted) as late:
            chain.play(keys[other], duels[other].state, proofs[other])
        assert late.value.name == "WrongJobStatus"
        with pytest.raises(Reverted) as late:
            chain.send(keys[other], calls.concede(duels[other].id))
        assert late.value.name == "WrongJobStatus"
        chain.send(STRANGER, calls.reclaim(duels[other].id))
        record = chain.game_state(duels[other].id)
        assert (record.verdict, record.reason) == (Outcome.VOID, Reason.JOB_SLASHED)
        with pytest.raises(Reverted) as twice:
            chain.send(STRANGER, calls.reclaim(duels[other].id))
        assert twice.value.name == "GameIsOver"
    gained = [chain.credit(key.address) - before[key] for key in keys]
    stakes = [job.challenger_stake << rank for rank in range(3)]
    assert gained == [stakes[0], stakes[1] + job.trainer_stake // 2, stakes[2]]
    assert chain.job_state(job.id).open_games == 0


@pytest.mark.slow
def test_a_lost_challenge_does_not_stop_another(chain: EmbeddedChain) -> None:
    """A cheat that challenges itself and loses on purpose buys nothing: the next challenger plays on."""
    job = new_job(EVERY, levels=5)
    liar, honest = Liar(EVERY, job, 3, SUB), Run(EVERY, job)
    friend, stranger = some_challengers(chain, 2)
    play(Duel(chain, liar, challenger=friend), parties(liar, liar))
    assert chain.job_state(job.id).status is JobStatus.ACTIVE
    duel = Duel(chain, liar, challenger=stranger)
    play(duel, parties(liar, honest))
    assert chain.job_state(job.id).status is JobStatus.SLASHED


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAVES)
def test_a_mirror_cannot_take_the_proof_out_of_the_queue(chain: EmbeddedChain, name: str) -> None:
    """A mirror challenges the same head and repeats every move that it sees.

    When the proof is in the public queue, its own transactions come first. It still cannot prove: the seal that it
    copied is of another game.
    """
    job = new_job(EVERY, levels=4)
    liar, honest = Liar(EVERY, job, 3, LEAVES[name]), Run(EVERY, job)
    victim_key, mirror_key = some_challengers(chain, 2)
    before = chain.credit(mirror_key.address), chain.credit(victim_key.address)
    victim = Duel(chain, liar, challenger=victim_key)
    mirror = Duel(chain, liar, challenger=mirror_key)
    players = parties(liar, honest)
    last: Move | None = None
    chosen: Move | None = None
    while victim.state.phase is not Phase.PROVE:
        last = players[victim.state.mover].move(victim.state, last)
        assert victim.try_move(last)
        chosen = last if last.KIND.mover is Side.CHALLENGER else chosen
        # The defender answers both alike; what the mirror sends it read from the chain.
        copied = moves_in(chain, victim.id, victim.last_block)[-1]
        assert copied == last
        assert mirror.try_move(copied)
    proof = players[Side.CHALLENGER].move(victim.state, last)
    assert isinstance(proof, Prove)
    # Front-running: the mirror knows the whole proof, salt included, before it counts.
    mirror.wait()
    own_salt = b"\x11" * 32
    for salt in (proof.salt, own_salt, bytes(32)):
        assert not mirror.try_move(replace(proof, salt=salt))
    assert mirror.refusals == {"WrongSeal"}
    # Nor can it choose again: its seal stands.
    assert chosen is not None
    with pytest.raises(Reverted) as again:
        chain.play(mirror_key, mirror.state, chosen)
    assert again.value.name == "WrongPhase"
    assert victim.try_move(proof)
    chain.send(mirror_key, calls.reclaim(mirror.id))
    gained = chain.credit(mirror_key.address) - before[0], chain.credit(victim_key.address) - before[1]
    assert gained == (2 * job.challenger_stake, job.challenger_stake + job.trainer_stake // 2)


@pytest.mark.slow
def test_a_mirror_that_starts_after_the_proof_was_seen_is_too_late(chain: EmbeddedChain) -> None:
    """It would have to walk the whole game before the proof counts, and every move takes a block."""
    duel, proof = to_proof(chain, SUB)
    mirror = Duel(chain, replace_oracle(duel), challenger=STRANGER, nonce=1)
    assert duel.try_move(proof)
    with pytest.raises(Reverted) as late:
        chain.play(TRAINER, mirror.state, Concede())
    assert late.value.name == "WrongJobStatus"
    chain.send(STRANGER, calls.reclaim(mirror.id))


def replace_oracle(duel: Duel) -> Run:
    """The defended run of a duel about `SUB` in step 3, made again."""
    return Liar(EVERY, duel.job, 3, SUB)
