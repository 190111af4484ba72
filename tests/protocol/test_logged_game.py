"""Disputes over runs of policy `logged`: a party that follows the committed logs never loses, others do."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.parts import slow_except
from tests.protocol import logged, walks
from tests.protocol.runs import SECRET, STEPS, Computed, Liar, Logs, Run, check_length, duel, program, stuck
from tests.protocol.walks import WALKS, Walks, check_invariants, other, walk
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import NO_WORD, LogTree, code_in, word_leaf
from tiebreak.protocol.commitments.records import ZERO_DIGEST, StepRecord
from tiebreak.protocol.errors import IllegalMove
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.moves import Move, Phase, Side
from tiebreak.protocol.game.rules import GameState, Level, Reason
from tiebreak.protocol.game.sides import Challenger, Defender
from tiebreak.protocol.program.rounding import Direction, Rounding, SumKind, pack_tolerances
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import fold

JOB = logged.logged_job()
LOGS, OTHER_LOGS = logged.random_logs(1), logged.random_logs(2)
HONEST = Run(JOB, logs=LOGS)
PRODUCTS, PLAIN, SCATTER = 13, 14, 20
"""Sums of 15, 4 and 9 terms: the second is judged at once. The third has three chunks."""
LEAVES = [*range(len(program().body)), *(program().leaf_of_commit(k) for k in range(2))]


def end_of(liar: Run, honest: Run, defender: Defender | None = None) -> GameState:
    return duel(liar, defender or Defender(liar), Challenger(honest, SECRET), on_move=check_invariants)


# ---------------------------------------------------------------- 9 and 10, and the length of walks

jobs = st.builds(
    logged.logged_job,
    levels=st.integers(1, 5),
    interval=st.integers(1, 5),
    precision=st.sampled_from([16, 32]),
    tolerances=st.sampled_from([logged.TOLERANCES, pack_tolerances({SumKind.PRODUCTS: 2, SumKind.SCATTER: 9})]),
)
logs_of_runs = st.integers(1, 2).map(logged.random_logs)


@settings(max_examples=10)
@given(
    st.integers(1, STEPS),
    st.sampled_from([*LEAVES, *logged.SUMS, *logged.SUMS]),
    jobs,
    logs_of_runs,
    st.integers(0, 10**6),
    st.integers(0, 4),
)
def test_invariant_10_an_honest_challenger_wins_wherever_the_lie_is(
    step: int, leaf: int, job: Job, logs: Logs, element: int, bend_from: int
) -> None:
    run = Run(job, logs=logs)
    numel = program().instruction_at(leaf).numel
    liar = Liar(job, step, leaf, element % numel, bend_from=bend_from, logs=logs)
    assume(liar.run_tree(job.checkpoints).root != run.run_tree(job.checkpoints).root)
    end = end_of(liar, run)
    assert end.verdict.winner is Side.CHALLENGER
    if liar.value_tree(step).node(0, leaf) != run.value_tree(step).node(0, leaf) and end.step == step:
        assert end.leaf == leaf
    check_length(end)
    # And the other way round: the liar's challenge of the honest run.
    end = end_of(run, liar)
    assert end.verdict.winner is Side.DEFENDER


# ---------------------------------------------------------------- cheats with values and entries


@pytest.mark.parametrize("bent", [False, True])
@pytest.mark.parametrize("cheat", logged.CHEATS)
@pytest.mark.parametrize("leaf", slow_except([PRODUCTS, PLAIN, SCATTER], SCATTER))
def test_party_that_ignores_the_rounding_log_loses_at_that_element(leaf: int, cheat: str, bent: bool) -> None:
    at = logged.find(leaf, cheat)
    wrong, liar = at.wrong, at.misled(at.wrong, bent=bent)
    end = end_of(liar, at.run)
    assert (end.verdict.winner, end.step, end.leaf, end.element) == (Side.CHALLENGER, at.step, leaf, at.element)
    assert end.direction is at.code
    assert end.claimed == wrong.to_bytes(4, "little")
    if leaf == PLAIN:
        assert end.verdict.reason is Reason.RECOMPUTED
        assert (end.verdict.committed, end.verdict.correct) == (end.claimed, at.right.to_bytes(4, "little"))
    elif bent:
        assert (end.verdict.reason, end.level, end.position) == (Reason.RECOMPUTED, Level.TERMS, 1)
    else:
        _, refused = stuck(Defender(liar), Challenger(at.run, SECRET))
        assert refused == "the last accumulator is not the claimed element"
    # Who audits by such arithmetic and challenges the true run loses in its turn.
    end = end_of(at.run, liar)
    assert end.verdict.winner is Side.DEFENDER


@pytest.mark.parametrize("cheat", ["off without an entry", "against the entry"])
def test_value_other_than_the_two_neighbours_is_convicted(cheat: str) -> None:
    """Near a middle a log chooses between two numbers, not among others."""
    at = logged.find(SCATTER, cheat)
    for bits in (at.right + 2 * logged.STEP, at.right + 1, at.right ^ 0x80000000):
        end = end_of(at.misled(bits), at.run)
        assert (end.verdict.winner, end.element) == (Side.CHALLENGER, at.element)


def test_tolerance_affects_only_sums_of_its_kind() -> None:
    """The same logs under tolerances of other kinds have no effect on this one."""
    for kind in SumKind:
        job = logged.logged_job(tolerances=pack_tolerances({kind: 2}))
        run = Run(job, logs=LOGS)
        for leaf in logged.SUMS:
            finite = [k for k in range(program().body[leaf].numel) if logged.exact_sum(run, 1, leaf, k) is not None]
            plain = [logged.nearest_bits(run, 1, leaf, k) for k in finite]
            found = [logged.bits_of(run, 1, leaf, k) for k in finite]
            if logged.SUMS[leaf] is not kind:
                assert plain == found
            elif kind is SumKind.SCATTER:
                assert plain != found


# ---------------------------------------------------------------- cheats with the logs that are opened


class OpensOther(Defender):
    """Its values follow from one set of logs, which its head commits to; what it opens is of another."""

    def __init__(self, oracle: Run, opened: Logs, phase: Phase) -> None:
        super().__init__(oracle)
        self._opened, self._phase = Defender(Opened(oracle, opened)), phase

    def opening(self, state: GameState) -> Move:
        return self._opened.opening(state) if state.phase is self._phase else super().opening(state)


class Opened(Run):
    """A run as it is, but that another log is shown for it."""

    def __init__(self, run: Run, opened: Logs) -> None:
        super().__init__(run.job, logs=run.logs)
        self._run, self._opened = run, opened

    def computed(self, step: int) -> Computed:
        return self._run.computed(step)

    def record(self, step: int) -> StepRecord:
        return self._run.record(step)

    def log_tree(self, step: int) -> LogTree:
        return self._opened.tree(step)


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_trainer_that_follows_uncommitted_logs_loses(interval: int) -> None:
    """Both ways: the head commits to the published logs, the values follow others, and either may be opened."""
    job = logged.logged_job(interval=interval)
    honest, forked = Run(job, logs=LOGS), logged.Forked(job, OTHER_LOGS, LOGS)
    assert forked.record(1).log_root == honest.record(1).log_root
    assert forked.run_tree(job.checkpoints).root != honest.run_tree(job.checkpoints).root
    truthful = end_of(forked, honest, OpensOther(forked, LOGS, Phase.OPEN_VALUES))
    assert truthful.verdict.winner is Side.CHALLENGER
    assert truthful.step == 1
    assert truthful.leaf in logged.SUMS
    _, refused = stuck(Defender(forked), Challenger(honest, SECRET))
    assert refused == "the step log is not the step's under the log root"
    # And with the published step log, but a word of its own.
    mixed = OpensOther(Opened(forked, LOGS), OTHER_LOGS, Phase.OPEN_CHUNK)
    _, refused = stuck(mixed, Challenger(honest, SECRET))
    assert refused == "the log word is not the chunk's under the step log"


def test_a_log_swapped_inside_the_segment_loses() -> None:
    liar = logged.Forked(JOB, logged.swapped(LOGS), LOGS)
    assert liar.record(2).digest == HONEST.record(2).digest
    assert liar.record(4).digest != HONEST.record(4).digest
    at, refused = stuck(Defender(liar), Challenger(HONEST, SECRET))
    assert (at.step, refused) == (3, "the step log is not the step's under the log root")


def test_a_record_inside_the_segment_with_another_log_root_loses() -> None:
    class Mixed(Run):
        """The first step of the second segment names the logs of the first."""

        def log_root(self, step: int) -> Digest:
            return super().log_root(1 if step == 3 else step)

        def computed(self, step: int) -> Computed:
            return lied.computed(step)

    lied = Liar(JOB, 3, 24, 7, logs=LOGS)
    at, refused = stuck(Defender(Mixed(JOB, logs=LOGS)), Challenger(HONEST, SECRET))
    assert (at.step, refused) == (3, "the log root of the record is not the checkpoint's")


def test_challenger_that_follows_uncommitted_logs_loses() -> None:
    """Whoever publishes logs that are not those of its head cannot be audited, and must not be challenged."""
    end = end_of(HONEST, Run(JOB, logs=OTHER_LOGS))
    assert end.verdict.winner is Side.DEFENDER


# ---------------------------------------------------------------- the moves that open logs, one by one

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
    return walks.at(name, phase, LOGGED_WALKS if name in LOGGED_WALKS else WALKS)


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
def test_log_opening_that_contradicts_its_commitment_is_illegal(what: str) -> None:
    name, phase, change, detail = TIES[what]
    state, move = at(name, phase)
    assert game.apply(state, move, state.last).verdict is None
    with pytest.raises(IllegalMove, match=f"^{detail}$"):
        game.apply(state, replace(move, **change(move)), state.last)


def test_log_word_of_another_chunk_or_value_is_illegal() -> None:
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
def test_invariant_4_an_illegal_move_is_refused_and_changes_nothing(what: str) -> None:
    name, phase, changes, message = REFUSED[what]
    state, move = at(name, phase)
    copy = replace(state)
    with pytest.raises(IllegalMove, match=message):
        game.apply(state, replace(move, **changes), state.earliest + 1)
    assert state == copy
    assert game.apply(state, move, state.earliest + 1).verdict is None


def test_game_state_keeps_the_opened_log_roots_and_word() -> None:
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


def test_unknown_log_code_three_rounds_to_nearest() -> None:
    """Nobody's tree has one, but a cheat may commit to one: the element is then rounded to nearest."""
    state, move = at("plain", Phase.OPEN_CHUNK)
    word = b"\xff" * 32
    root = fold(word_leaf(word), state.leaf, move.siblings)
    opened = game.apply(replace(state, step_log=root), replace(move, word=word), state.last)
    _, selected = at("plain", Phase.SELECT_ELEMENT)
    after = game.apply(opened, selected, state.last)
    assert (after.direction, after.phase) == (Direction.NONE, Phase.PROVE)
    assert code_in(word, 0) is Direction.NONE


def test_dispute_over_a_commit_or_source_opens_no_log_word() -> None:
    for leaf in (0, 3, 5, program().leaf_of_commit(0), program().leaf_of_commit(1)):
        end = walk(Liar(JOB, 4, leaf, 0, logs=LOGS), HONEST)[-1][2]
        assert (end.verdict.winner, end.leaf, end.word) == (Side.CHALLENGER, leaf, NO_WORD)
