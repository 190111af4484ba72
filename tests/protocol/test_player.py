"""The two sides of a game: moves, seals, descriptions of verdicts, and resumption after a crash.

Invariant 11 of the game: nobody proves what it had not sealed before.
"""

import hmac
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import runs
from tests.protocol.walks import ARGMAX, COMMIT, HONEST, JOB, WALKS
from tiebreak.protocol.commitments.job import game_id
from tiebreak.protocol.errors import EncodingError, IllegalMove, StateError, VerificationError
from tiebreak.protocol.game import match, rules, seals
from tiebreak.protocol.game.match import Match
from tiebreak.protocol.game.messages import Message, Transcript, open_wire
from tiebreak.protocol.game.moves import NO_SEAL, Concede, Descend, Move, Phase, Select, SelectElement, Side
from tiebreak.protocol.game.rules import GameState, Reason
from tiebreak.protocol.game.sides import Challenger, Defender, Path, describe
from tiebreak.protocol.game.state import Level, Ongoing
from tiebreak.protocol.packing import pack, unpack
from tiebreak.protocol.trees import Tree, verify

SUB = 24


def played(run: runs.Run, against: runs.Run) -> tuple[Match, Transcript]:
    head, clock = run.head(), count(5).__next__
    start = rules.start(JOB, head.head, game_id(head.head, runs.DOMAIN, runs.CHALLENGER.address, 0), clock())
    transcript = Transcript(start, domain=runs.DOMAIN, challenger=runs.CHALLENGER.address)

    def carry(side: Side, move: Move) -> tuple[Move, int]:
        wire = transcript.sign(move, runs.TRAINER if side is Side.DEFENDER else runs.CHALLENGER)
        return transcript.append(wire), len(wire)

    challenger, judge = Challenger(against, runs.SECRET), match.by_rules(clock)
    done = match.play(start, defender=Defender(run), challenger=challenger, judge=judge, courier=carry)
    return done, transcript


def test_a_game_by_messages_ends_like_one_without() -> None:
    liar = runs.Liar(JOB, 4, ARGMAX, 3, bend_from=2)
    done, transcript = played(liar, HONEST)
    plain = runs.duel(liar, Defender(liar), Challenger(HONEST, runs.SECRET))
    assert (done.final.value_seal, plain.value_seal) == (bytes(32), bytes(32)), "nothing is proved at that leaf"
    assert done.final.seal != plain.seal, "a seal is of one game"
    assert replace(done.final, last=plain.last, moved=plain.moved, game_id=plain.game_id, seal=plain.seal) == plain
    assert transcript.messages == len(done.moves) == plain.moves
    assert sum(map(len, transcript.wires)) == sum(move.bytes for move in done.moves)
    assert all(move.by is move.move.KIND.mover for move in done.moves if move.move.KIND is not Phase.OVER)


def test_the_state_of_each_turn_survives_packing(cases: Callable[[], None]) -> None:
    """As it does on its way to the process that finds a move, in whichever tree the game stands."""
    kind, levels = Ongoing(), set[Level]()
    for liar in (runs.Liar(JOB, 4, ARGMAX, 3, bend_from=2), runs.Liar(JOB, 3, 3)):
        _, transcript = played(liar, HONEST)
        for state in transcript._states:
            packed = unpack(pack(kind.pack(state)), 1 << 20)
            assert kind.unpack("state", packed) == state
            for spoiled in (packed[:-1], [*packed, 0], [*packed[:3], 99, *packed[4:]]):
                with pytest.raises(VerificationError):
                    kind.unpack("state", spoiled)
            levels.add(state.level)
            cases()
    assert levels >= {Level.RUN, Level.STEPS, Level.VALUES, Level.CHUNKS, Level.TERMS}
    with pytest.raises(EncodingError, match="expected the state of a game that goes on"):
        kind.check("state", played(runs.Liar(JOB, 3, 3), HONEST)[0].final)


def test_a_wrong_challenger_concedes_in_a_message() -> None:
    """A wrong value and, from there on, consistent: its seal is not of what the referee finds."""
    done, transcript = played(HONEST, runs.Run(JOB, runs.lie(4, SUB), 4))
    verdict = done.final.verdict
    assert (verdict.winner, verdict.reason) == (Side.DEFENDER, Reason.CONCEDED)
    assert verdict.detail == "the challenger conceded in phase PROVE"
    assert Message.decode(open_wire(transcript.wires[-1])[0]).move == done.moves[-1].move == Concede()
    told = describe(done.final, runs.program())
    assert told.leaf == SUB


@pytest.mark.parametrize("name", ["terms", "element", "state source", "data source", "commit"])
def test_a_challenger_takes_up_its_game_after_a_crash(name: str) -> None:
    """Its secret and the moves so far give the same moves, the same seals, and what opens them."""
    made, resumed = WALKS[name], 0
    for number, (state, move, _) in enumerate(made):
        if state.mover is Side.CHALLENGER:
            again, answered = Challenger(runs.Run(JOB), runs.SECRET), made[number - 1][1]
            for _, earlier, after in made[:number]:
                again.learn(after, earlier)
            assert again.move(state, answered) == move
            resumed += 1
    assert resumed >= 4
    forgotten = Challenger(HONEST, bytes(32))
    for _, earlier, after in made[:-1]:
        forgotten.learn(after, earlier)
    assert forgotten.move(made[-1][0], made[-2][1]) == Concede(), "without its secret it has nothing to open"


def test_a_challenger_s_secret_decides_its_seals() -> None:
    liar = runs.Run(JOB, runs.lie(4, SUB), 4)
    made = [
        runs.duel(liar, Defender(liar), Challenger(HONEST, secret)).seal
        for secret in (runs.SECRET, runs.SECRET, bytes(32))
    ]
    assert made[0] == made[1] != made[2]
    with pytest.raises(EncodingError, match="secret: expected 32 bytes, got 31"):
        runs.duel(liar, Defender(liar), Challenger(HONEST, runs.SECRET[1:]))


def test_verdict_description_shows_the_element_in_hex() -> None:
    liar = runs.Liar(JOB, 3, SUB, 299)
    told = describe(runs.duel(liar, Defender(liar), Challenger(HONEST, runs.SECRET)), runs.program(), HONEST)
    data = {run: run.tensor(3, SUB)[4 * 299 : 4 * 300][::-1].hex() for run in (liar, HONEST)}
    assert (told.checkpoint, told.step, told.leaf, told.instruction) == (1, 3, SUB, "map sub")
    assert told.element == 299
    assert (told.committed, told.correct) == (data[liar], data[HONEST])
    assert int(told.committed, 16) ^ int(told.correct, 16) == 1


def test_a_partial_sum_is_described_with_the_true_element() -> None:
    liar = runs.Liar(JOB, 4, ARGMAX, 3, bend_from=2)
    state = runs.duel(liar, Defender(liar), Challenger(HONEST, runs.SECRET))
    told = describe(state, runs.program(), HONEST)
    assert (told.instruction, told.element) == ("reduce argmax", 3)
    assert int(told.committed, 16) ^ int(told.correct, 16) == 1
    assert describe(state, runs.program()).correct == ""


def test_verdicts_on_commits_and_padding_are_described() -> None:
    commit = runs.program().leaf_of_commit(0)
    liar = runs.Liar(JOB, 2, commit)
    told = describe(runs.duel(liar, Defender(liar), Challenger(HONEST, runs.SECRET)), runs.program())
    assert (told.leaf, told.instruction, told.element) == (commit, "commit", None)
    assert (told.committed, told.correct) == (
        liar.value_tree(2).node(0, commit).hex(),
        HONEST.value_tree(2).node(0, commit).hex(),
    )

    class Rightmost(Challenger):
        def pick(self, state: GameState, nodes: Sequence[bytes]) -> int:
            return len(nodes) - 1

    told = describe(runs.duel(HONEST, Defender(HONEST), Rightmost(HONEST, runs.SECRET)), runs.program())
    assert (told.checkpoint, told.leaf) == (None, None)
    state = runs.duel(HONEST, Defender(HONEST), Challenger(HONEST, runs.SECRET))
    with pytest.raises(StateError, match="with a verdict"):
        describe(replace(state, verdict=None), runs.program())


def test_players_refuse_the_other_side_s_turn() -> None:
    states: list[GameState] = []
    liar = runs.Run(JOB, runs.lie(4, SUB), 4)
    runs.duel(liar, Defender(liar), Challenger(HONEST, runs.SECRET), on_move=lambda before, *_: states.append(before))
    for state in states:
        party = Challenger(HONEST, runs.SECRET) if state.mover is Side.DEFENDER else Defender(HONEST)
        with pytest.raises(StateError, match="expected a phase in which the"):
            party.move(state, None)


def test_path_proves_agreed_leaves_from_revealed_nodes() -> None:
    theirs = Tree([bytes([k]) * 32 for k in range(16)])
    own = Tree([bytes([k if k < 11 else 99]) * 32 for k in range(16)])
    path = Path()
    for height, position, levels in ((4, 0, 2), (2, 2, 2)):
        path.add(height, position, tuple(theirs.below(height, position, levels)))
    for leaf in range(11):
        verify(theirs.root, 4, leaf, theirs.node(0, leaf), path.proof(own, leaf, 4))
    assert Descend(nodes=tuple(theirs.below(4, 0, 2))).nodes[2] == theirs.node(2, 2)


# ---------------------------------------------------------------- seals

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
            seals.derive_salt(bytes(length), runs.GAME, (1,))
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
        rules.apply(state, proof, 999)
    ripe = 1000 + runs.CLOCK
    for now in (1000, 1001, ripe - 1):
        with pytest.raises(
            IllegalMove, match=f"expected a proof not before {ripe}, a clock after .*, got one at {now}"
        ):
            rules.apply(state, proof, now)
        with pytest.raises(IllegalMove):
            rules.timeout(state, now)
    assert rules.apply(state, proof, ripe).challenger_rest == 1, "to wait costs nothing"
    assert rules.apply(state, proof, ripe + 1).is_over
    with pytest.raises(IllegalMove, match=f"not after {ripe + 1}"):
        rules.apply(state, proof, ripe + 2)
    # A challenger that has used up its clock before has one instant left.
    state = replace(state, challenger_rest=0)
    assert rules.apply(state, proof, ripe).is_over
    with pytest.raises(IllegalMove):
        rules.timeout(state, ripe)
    assert rules.timeout(state, ripe + 1).is_over


class Seals(Challenger):
    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        super().__init__(HONEST, runs.SECRET)
        self._change = change

    def move(self, state: GameState, answered: Move | None) -> Move:
        move = super().move(state, answered)
        if isinstance(move, Select | SelectElement) and move.seal != NO_SEAL:
            return replace(move, seal=self._change(move.seal))
        return move


@pytest.mark.parametrize("leaf", [0, ARGMAX, 24, COMMIT])
def test_invariant_11_a_true_proof_without_its_seal_is_illegal(leaf: int) -> None:
    """Nothing can be proved where zero was sealed, and a wrong challenger cannot prove the truth."""
    liar = runs.Liar(JOB, 4, leaf, 0, bend_from=1)
    made: list[tuple[GameState, Move, GameState]] = []
    runs.duel(liar, Defender(liar), Challenger(HONEST, runs.SECRET), on_move=lambda *x: made.append(x))
    right = made[-1][1]
    changes: tuple[Callable[[bytes], bytes], ...] = (lambda _: NO_SEAL, lambda seal: bytes([seal[0] ^ 1]) + seal[1:])
    for change in changes:
        told: list[tuple[GameState, Move, GameState]] = []
        end = runs.duel(liar, Defender(liar), Seals(change), on_move=lambda *x, told=told: told.append(x))  # type: ignore[misc]
        assert end.verdict.winner is Side.DEFENDER, "it gives up rather than send what would be refused"
        state = told[-1][0]
        for now in range(state.earliest, state.deadline + 1, 20):
            with pytest.raises(IllegalMove, match="expected the seal of the right answer"):
                rules.apply(state, right, now)
        assert rules.timeout(state, state.deadline + 1).is_over


@pytest.mark.parametrize("leaf", [24, ARGMAX])
def test_a_leaf_that_is_not_judged_may_carry_any_seal(leaf: int) -> None:
    """The rules cannot know at a leaf of VALUES whether it is a source: its seal is kept, and opened by nobody."""
    liar = runs.Liar(JOB, 4, leaf, 0, bend_from=1)

    class Chatty(Challenger):
        def move(self, state: GameState, answered: Move | None) -> Move:
            move = super().move(state, answered)
            at_leaf = isinstance(move, Select) and state.level is Level.VALUES and state.height == state.levels
            return replace(move, seal=b"\7" * 32) if at_leaf else move

    end = runs.duel(liar, Defender(liar), Chatty(HONEST, runs.SECRET))
    assert (end.verdict.winner, end.value_seal) == (Side.CHALLENGER, b"\7" * 32)
