"""Seals: the formula, the salts, and invariant 11 of the game: nobody proves what it had not sealed before."""

import hmac
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.runs import CLOCK, GAME, SECRET, Liar, duel
from tests.protocol.walks import ARGMAX, COMMIT, HONEST, JOB, WALKS
from tiebreak.protocol.errors import EncodingError, IllegalMove
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game import seals
from tiebreak.protocol.game.moves import NO_SEAL, Move, Phase, Select, SelectElement, Side
from tiebreak.protocol.game.rules import GameState, Level
from tiebreak.protocol.game.sides import Challenger, Defender

digests = st.binary(min_size=32, max_size=32)
places = st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6).map(tuple)


@given(digests, digests, digests)
def test_a_seal_is_the_hash_that_the_specification_says(game_id: bytes, answer: bytes, salt: bytes) -> None:
    assert seals.seal(game_id, answer, salt) == sha256(b"tb.seal." + game_id + answer + salt).digest()


@pytest.mark.parametrize("name", ["game id", "answer", "salt"])
def test_seal_inputs_must_be_32_bytes(name: str) -> None:
    parts = {"game_id": bytes(32), "answer": bytes(32), "salt": bytes(32)}
    for length in (0, 31, 33):
        with pytest.raises(EncodingError, match=f"{name}: expected 32 bytes, got {length}"):
            seals.seal(**(parts | {name.replace(" ", "_"): bytes(length)}))


@pytest.mark.parametrize(
    ("data", "number"),
    [(b"\x01", 1), (b"\x00\x00\xc0\x7f", 0x7FC00000), (b"\xff" * 8, (1 << 64) - 1), (b"\x02" + bytes(7), 2)],
)
def test_an_element_is_sealed_as_the_number_of_its_bits(data: bytes, number: int) -> None:
    assert seals.element_answer(data) == number.to_bytes(32, "big")


@given(digests, digests, places)
def test_salts_follow_from_secret_game_and_place(secret: bytes, game_id: bytes, place: tuple[int, ...]) -> None:
    salt = seals.derive_salt(secret, game_id, place)
    text = b"tiebreak: salt of a seal" + game_id + b"".join(number.to_bytes(8, "big") for number in place)
    assert salt == hmac.new(secret, text, sha256).digest()


def test_a_salt_of_a_weak_secret_is_refused() -> None:
    for length in (0, 31, 33):
        with pytest.raises(EncodingError, match=f"secret: expected 32 bytes, got {length}"):
            seals.derive_salt(bytes(length), GAME, (1,))
    with pytest.raises(EncodingError, match="game id: expected 32 bytes"):
        seals.derive_salt(bytes(32), b"", (1,))


# ---------------------------------------------------------------- 11: what was not sealed is not proved


@pytest.mark.parametrize("name", WALKS)
def test_invariant_11_proof_must_wait_one_clock_after_the_last_move(name: str) -> None:
    """t-1, t and t+1 of the last move, by whichever side it was, and of the first and last instant for the proof."""
    state, proof, _ = WALKS[name][-1]
    assert state.phase is Phase.PROVE
    state = replace(state, last=1000, moved=1000, challenger_rest=1)
    with pytest.raises(IllegalMove, match="not before 1000, got 999"):
        game.apply(state, proof, 999)
    ripe = 1000 + CLOCK
    for now in (1000, 1001, ripe - 1):
        with pytest.raises(
            IllegalMove, match=f"expected a proof not before {ripe}, a clock after .*, got one at {now}"
        ):
            game.apply(state, proof, now)
        with pytest.raises(IllegalMove):
            game.timeout(state, now)
    assert game.apply(state, proof, ripe).challenger_rest == 1, "to wait costs nothing"
    assert game.apply(state, proof, ripe + 1).is_over
    with pytest.raises(IllegalMove, match=f"not after {ripe + 1}"):
        game.apply(state, proof, ripe + 2)
    # A challenger that has used up its clock before has one instant left.
    state = replace(state, challenger_rest=0)
    assert game.apply(state, proof, ripe).is_over
    with pytest.raises(IllegalMove):
        game.timeout(state, ripe)
    assert game.timeout(state, ripe + 1).is_over


class Seals(Challenger):
    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        super().__init__(HONEST, SECRET)
        self._change = change

    def move(self, state: GameState, answered: Move | None) -> Move:
        move = super().move(state, answered)
        if isinstance(move, Select | SelectElement) and move.seal != NO_SEAL:
            return replace(move, seal=self._change(move.seal))
        return move


@pytest.mark.parametrize("leaf", [0, ARGMAX, 24, COMMIT])
def test_invariant_11_a_true_proof_without_its_seal_is_illegal(leaf: int) -> None:
    """Nothing can be proved where zero was sealed, and a wrong challenger cannot prove the truth."""
    liar = Liar(JOB, 4, leaf, 0, bend_from=1)
    made: list[tuple[GameState, Move, GameState]] = []
    duel(liar, Defender(liar), Challenger(HONEST, SECRET), on_move=lambda *x: made.append(x))
    right = made[-1][1]
    changes: tuple[Callable[[bytes], bytes], ...] = (lambda _: NO_SEAL, lambda seal: bytes([seal[0] ^ 1]) + seal[1:])
    for change in changes:
        told: list[tuple[GameState, Move, GameState]] = []
        end = duel(liar, Defender(liar), Seals(change), on_move=lambda *x, told=told: told.append(x))  # type: ignore[misc]
        assert end.verdict.winner is Side.DEFENDER, "it gives up rather than send what would be refused"
        state = told[-1][0]
        for now in range(state.earliest, state.deadline + 1, 20):
            with pytest.raises(IllegalMove, match="expected the seal of the right answer"):
                game.apply(state, right, now)
        assert game.timeout(state, state.deadline + 1).is_over


@pytest.mark.parametrize("leaf", [24, ARGMAX])
def test_a_leaf_that_is_not_judged_may_carry_any_seal(leaf: int) -> None:
    """The rules cannot know at a leaf of VALUES whether it is a source: its seal is kept, and opened by nobody."""
    liar = Liar(JOB, 4, leaf, 0, bend_from=1)

    class Chatty(Challenger):
        def move(self, state: GameState, answered: Move | None) -> Move:
            move = super().move(state, answered)
            at_leaf = isinstance(move, Select) and state.level is Level.VALUES and state.height == state.levels
            return replace(move, seal=b"\7" * 32) if at_leaf else move

    end = duel(liar, Defender(liar), Chatty(HONEST, SECRET))
    assert (end.verdict.winner, end.value_seal) == (Side.CHALLENGER, b"\7" * 32)
