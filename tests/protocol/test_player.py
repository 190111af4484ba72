"""Whole games as signed messages, and what is told about them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import pytest

from tests.protocol import runs
from tests.protocol.walks import ARGMAX, HONEST, JOB, WALKS
from tiebreak.protocol.commitments.job import game_id
from tiebreak.protocol.errors import EncodingError, StateError, VerificationError
from tiebreak.protocol.game import match, rules
from tiebreak.protocol.game.match import Match
from tiebreak.protocol.game.messages import Message, Transcript, open_wire
from tiebreak.protocol.game.moves import Concede, Descend, Phase, Side
from tiebreak.protocol.game.rules import GameState, Reason
from tiebreak.protocol.game.sides import Challenger, Defender, Path, describe
from tiebreak.protocol.game.state import Level, Ongoing
from tiebreak.protocol.packing import pack, unpack
from tiebreak.protocol.trees import Tree, verify

SUB = 24


def seconds() -> Callable[[], int]:
    """A clock that shows 5, 6, 7, ..."""
    return count(5).__next__


def played(run: runs.Run, against: runs.Run) -> tuple[Match, Transcript]:
    head, clock = run.head(), seconds()
    start = rules.start(JOB, head.head, game_id(head.head, runs.DOMAIN, runs.CHALLENGER.address, 0), clock())
    transcript = Transcript(start, domain=runs.DOMAIN, challenger=runs.CHALLENGER.address)
    done = match.play(
        start,
        defender=Defender(run),
        challenger=Challenger(against, runs.SECRET),
        judge=match.by_rules(clock),
        courier=match.by_message(transcript, {Side.DEFENDER: runs.TRAINER, Side.CHALLENGER: runs.CHALLENGER}),
    )
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
    seals = [
        runs.duel(liar, Defender(liar), Challenger(HONEST, secret)).seal
        for secret in (runs.SECRET, runs.SECRET, bytes(32))
    ]
    assert seals[0] == seals[1] != seals[2]
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
