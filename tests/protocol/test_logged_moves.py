"""The moves that open logs: every tie that can break, every part that must be empty, what the walk remembers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.protocol.logged import (
    logged_job,
    random_logs,
)
from tests.protocol.runs import Liar, Run, program
from tests.protocol.walks import WALKS, Walks, other, walk
from tiebreak.protocol.commitments.log_tree import NO_WORD, code_in, word_leaf
from tiebreak.protocol.commitments.records import ZERO_DIGEST
from tiebreak.protocol.errors import IllegalMove
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.moves import Move, Phase, Side
from tiebreak.protocol.game.rules import GameState
from tiebreak.protocol.program.rounding import Direction, Rounding
from tiebreak.protocol.trees import fold

JOB = logged_job()
LOGS = random_logs(1)
HONEST = Run(JOB, logs=LOGS)
PLAIN, SCATTER = 14, 20
"""Sums of 4 and 9 terms; the second has three chunks."""


LOGGED_WALKS = Walks(
    HONEST,
    {
        "scatter": Liar(JOB, 4, SCATTER, 140, bend_from=1, logs=LOGS),
        "plain": Liar(JOB, 1, PLAIN, 0, logs=LOGS),
        "map": Liar(JOB, 3, 24, 299, logs=LOGS),
        "single step": Liar(JOB, 5, SCATTER, 3, bend_from=1, logs=LOGS),
    },
)


def at(name: str, phase: Phase) -> tuple[GameState, Move]:
    """A state of a walk in which a move of this kind is due, and the move that was made."""
    return next(
        (state, move)
        for state, move, _ in (LOGGED_WALKS if name in LOGGED_WALKS else WALKS)[name]
        if state.phase is phase
    )


LAST, ROOT, LOG, WORD = (
    "the last record is not the checkpoint",
    "the step record is not the disputed one",
    "the step log is not the step's under the log root",
    "the log word is not the chunk's under the step log",
)
STEPS_PHASE, VALUES, CHUNK = Phase.OPEN_STEPS, Phase.OPEN_VALUES, Phase.OPEN_CHUNK
Change = Callable[[Any], dict[str, Any]]
TIES: dict[str, tuple[str, Phase, Change, str]] = {
    "checkpoint's state": ("scatter", STEPS_PHASE, lambda m: {"state_root": other(m.state_root)}, LAST),
    "checkpoint's loss": ("scatter", STEPS_PHASE, lambda m: {"loss_bits": m.loss_bits ^ 1}, LAST),
    "checkpoint's log": ("scatter", STEPS_PHASE, lambda m: {"log_root": other(m.log_root)}, LAST),
    "record's log": ("scatter", VALUES, lambda m: {"log_root": other(m.log_root)}, ROOT),
    "no step log": ("scatter", VALUES, lambda _: {"step_log": ZERO_DIGEST}, LOG),
    "step log": ("scatter", VALUES, lambda m: {"step_log": other(m.step_log)}, LOG),
    "step log's siblings": ("scatter", VALUES, lambda m: {"log_siblings": tuple(map(other, m.log_siblings))}, LOG),
    "the neighbour's log": (
        "scatter", VALUES, lambda m: {"step_log": m.log_siblings[0], "log_siblings": (m.step_log,)}, LOG),
    "step log of one": ("single step", VALUES, lambda m: {"step_log": other(m.step_log)}, LOG),
    "no word": ("scatter", CHUNK, lambda _: {"word": NO_WORD}, WORD),
    "word": ("scatter", CHUNK, lambda m: {"word": other(m.word)}, WORD),
    "word's siblings": ("scatter", CHUNK, lambda m: {"siblings": (other(m.siblings[0]), *m.siblings[1:])}, WORD),
    "word of a scalar": ("plain", CHUNK, lambda m: {"word": other(m.word)}, WORD),
}  # fmt: skip


@pytest.mark.parametrize("what", TIES)
def test_a_broken_tie_is_illegal(what: str) -> None:
    name, phase, change, detail = TIES[what]
    state, move = at(name, phase)
    assert game.apply(state, move, state.last).verdict is None
    with pytest.raises(IllegalMove, match=f"^{detail}$"):
        game.apply(state, replace(move, **change(move)), state.last)


def test_the_word_of_another_chunk_or_value_loses() -> None:
    state, move = at("scatter", Phase.OPEN_CHUNK)
    assert state.chunk == 1
    tree = LOGS.tree(4)
    assert move.siblings == tuple(tree.proof(SCATTER, 1))
    for value, chunk in ((SCATTER, 0), (SCATTER, 2), (SCATTER, 3)):
        siblings = tuple(tree.proof(value, chunk))
        forged = replace(move, word=tree.word(value, chunk), siblings=siblings)
        assert fold(word_leaf(forged.word), value << 2 | chunk, siblings) == tree.root
        with pytest.raises(IllegalMove, match=f"^{WORD}$"):
            game.apply(state, forged, state.last)


NOTHING = "expected nothing of a rounding log with"
ONE = (bytes(32),)
REFUSED: dict[str, tuple[str, Phase, dict[str, Any], str]] = {
    "too few log siblings": ("scatter", VALUES, {"log_siblings": ()}, "expected 1 log siblings, got 0"),
    "too many log siblings": ("single step", VALUES, {"log_siblings": ONE}, "expected 0 log siblings, got 1"),
    "too few word siblings": ("scatter", CHUNK, {"siblings": 7 * ONE}, "expected 8 log siblings, got 7"),
    "no word siblings": ("plain", CHUNK, {"siblings": ()}, "expected 6 log siblings, got 0"),
    "word of a map": ("map", CHUNK, {"word": b"\1" * 32}, f"{NOTHING} a chunk of what is not"),
    "siblings of a map": ("map", CHUNK, {"siblings": ONE}, f"{NOTHING} a chunk of what is not"),
    "exact: state root": ("terms", STEPS_PHASE, {"state_root": b"\1" * 32}, f"{NOTHING} the steps"),
    "exact: loss": ("terms", STEPS_PHASE, {"loss_bits": 1}, f"{NOTHING} the steps"),
    "exact: log root": ("terms", STEPS_PHASE, {"log_root": b"\1" * 32}, f"{NOTHING} the steps"),
    "exact: step log": ("terms", VALUES, {"step_log": b"\1" * 32}, f"{NOTHING} the values"),
    "exact: siblings": ("terms", VALUES, {"log_siblings": ONE}, f"{NOTHING} the values"),
    "exact: word": ("terms", CHUNK, {"word": b"\1" * 32}, f"{NOTHING} a chunk"),
    "exact: word siblings": ("terms", CHUNK, {"siblings": ONE}, f"{NOTHING} a chunk"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_4_an_illegal_move_is_refused_and_changes_nothing(what: str) -> None:
    name, phase, changes, message = REFUSED[what]
    state, move = at(name, phase)
    copy = replace(state)
    with pytest.raises(IllegalMove, match=message):
        game.apply(state, replace(move, **changes), state.earliest + 1)
    assert state == copy
    assert game.apply(state, move, state.earliest + 1).verdict is None


def test_what_the_walk_remembers_of_the_logs() -> None:
    for name in ("scatter", "single step"):
        state, _ = at(name, Phase.OPEN_TERMS)
        step, leaf, element = state.step, state.leaf, state.element
        assert state.log_root == HONEST.record(step).log_root
        assert state.step_log == LOGS.tree(step).root
        assert state.word == LOGS.tree(step).word(leaf, state.chunk)
        assert state.direction == HONEST.directions(step, leaf).get(element, Direction.NONE)
        assert state.rounding == Rounding(precision=16, tolerance=2, direction=state.direction)
        assert state.is_logged_sum
    state, _ = at("map", Phase.PROVE)
    assert (state.word, state.direction, state.is_logged_sum) == (NO_WORD, Direction.NONE, False)
    state, _ = at("terms", Phase.OPEN_TERMS)
    assert (state.step_log, state.log_root, state.is_logged_sum) == (ZERO_DIGEST, ZERO_DIGEST, False)


def test_a_code_of_three_means_nothing() -> None:
    """Nobody's tree has one, but a cheat may commit to one: the element is then rounded to nearest."""
    state, move = at("plain", Phase.OPEN_CHUNK)
    word = b"\xff" * 32
    root = fold(word_leaf(word), state.leaf, move.siblings)
    opened = game.apply(replace(state, step_log=root), replace(move, word=word), state.last)
    _, selected = at("plain", Phase.SELECT_ELEMENT)
    after = game.apply(opened, selected, state.last)
    assert (after.direction, after.phase) == (Direction.NONE, Phase.PROVE)
    assert code_in(word, 0) is Direction.NONE


def test_a_walk_to_a_commit_or_a_source_asks_for_no_word() -> None:
    for leaf in (0, 3, 5, program().leaf_of_commit(0), program().leaf_of_commit(1)):
        end = walk(Liar(JOB, 4, leaf, 0, logs=LOGS), HONEST)[-1][2]
        assert (end.verdict.winner, end.leaf, end.word) == (Side.CHALLENGER, leaf, NO_WORD)
