"""Whoever sees a challenger's moves on their way, and plays the same game beside it, does not get there first.

The mirror has a game of its own against the same head. At each instant it sees what the honest challenger sends, before
that counts, and may be put in front of it; the cheating trainer answers the mirror whatever it likes, at once. What it
does not have is a run of its own: all it can prove is what it was shown.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.protocol.runs import CLIENT, CLOCK, DOMAIN, GAME
from tests.protocol.walks import JOB, WALKS, Walk
from tiebreak.protocol.commitments.job import game_id
from tiebreak.protocol.errors import IllegalMove
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game import seals
from tiebreak.protocol.game.moves import NO_SEAL, Move, Prove, Select, SelectElement, Side
from tiebreak.protocol.game.rules import GameState, Level

SALT = b"\x3c" * 32
"""The mirror's own."""


def start_of(walk: Walk) -> GameState:
    """The mirror's game at its first instant: against the same head, at the same time, under its own name."""
    first = walk[0][0]
    mirror = game_id(first.head, DOMAIN, CLIENT.address, 0)
    assert mirror != first.game_id == GAME
    return game.start(JOB, first.head, mirror, first.last)


def shown_at(walk: Walk) -> int:
    """The instant at which the honest proof counts, and before which it can be seen."""
    return walk[-1][2].last


def right_answer(walk: Walk) -> bytes:
    state, proof, _ = walk[-1]
    correct = game.judge(state, proof)
    return seals.element_answer(correct) if state.level is Level.CHUNKS else correct


def sealed_anew(move: Move, identity: bytes, answer: bytes) -> Move:
    """The move with a seal of the mirror's where the honest challenger had one."""
    if isinstance(move, Select | SelectElement) and move.seal != NO_SEAL:
        return replace(move, seal=seals.seal(identity, answer, SALT))
    return move


def proofs(walk: Walk) -> Iterator[Prove]:
    """What the mirror can send once the proof is visible: as it is, or with its own salt."""
    proof = walk[-1][1]
    yield proof
    yield replace(proof, salt=SALT)


@pytest.mark.parametrize("name", WALKS)
def test_copying_every_move_gives_no_valid_proof(name: str) -> None:
    """Each move in the same instant, seal and all. Its seal opens in the honest game only."""
    walk = WALKS[name]
    state = start_of(walk)
    for _, move, after in walk[:-1]:
        state = game.apply(state, move, after.last)
    for now in (shown_at(walk), shown_at(walk) + 1, state.deadline):
        for proof in proofs(walk):
            with pytest.raises(IllegalMove, match="expected the seal of the right answer"):
                game.apply(state, proof, now)
    # The name of the game is all that is in the way.
    assert game.apply(replace(state, game_id=GAME), walk[-1][1], shown_at(walk)).is_over


@pytest.mark.parametrize("name", WALKS)
def test_front_runner_that_waits_for_the_proof_is_too_late(name: str, cases: object) -> None:
    """It stops before a move of its own, its seal at the latest. Once the proof is visible it seals that answer.

    The trainer answers it at once, and its clock has time for that. Still its proof is illegal for a clock after the
    honest one can be seen, and then the trainer is slashed.
    """
    walk = WALKS[name]
    moment, answer = shown_at(walk), right_answer(walk)
    seal_at = max(k for k, (_, m, _) in enumerate(walk) if isinstance(m, Select | SelectElement) and m.seal != NO_SEAL)
    for stop in range(seal_at + 1):
        if walk[stop][0].mover is not Side.CHALLENGER:
            continue
        state = replace(start_of(walk), challenger_rest=10 * CLOCK)
        for _, move, after in walk[:stop]:
            state = game.apply(state, move, after.last)
        for _, move, _ in walk[stop:-1]:
            state = game.apply(state, sealed_anew(move, state.game_id, answer), moment)
        for proof in proofs(walk):
            for now in (moment, moment + CLOCK - 1):
                with pytest.raises(IllegalMove, match=f"expected a proof not before {moment + CLOCK}"):
                    game.apply(state, proof, now)
        good = replace(walk[-1][1], salt=SALT)  # type: ignore[arg-type]
        late = game.apply(state, good, moment + CLOCK)
        assert late.verdict.winner is Side.CHALLENGER, "only the wait is in the way"
        cases()  # type: ignore[operator]


@pytest.mark.parametrize("name", WALKS)
def test_challenger_reveals_nothing_of_its_answer_before_the_proof(name: str) -> None:
    """What the honest challenger sends before its proof is the same, but for the seal, whatever the answer is."""
    walk = WALKS[name]
    answer = right_answer(walk)
    sent = [move for state, move, _ in walk[:-1] if state.mover is Side.CHALLENGER]
    for move in sent:
        parts = (move.node, *move.siblings) if isinstance(move, Select) else (move.chunk,)  # type: ignore[union-attr]
        assert answer not in parts, "they are the defender's"
    (sealing,) = (move for move in sent if move.seal != NO_SEAL)  # type: ignore[union-attr]
    assert isinstance(sealing, SelectElement) is (walk[-1][0].level is Level.CHUNKS), "once, and where it will prove"
    seal = sealing.seal  # type: ignore[union-attr]
    assert seal == seals.seal(GAME, answer, walk[-1][1].salt)  # type: ignore[union-attr]
    assert seal != seals.seal(GAME, answer, bytes(32)), "and the seal does not open without its salt"
