"""The rules of the game: its invariants by their numbers, and every check of an opening against its commitment."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.protocol import runs
from tests.protocol.runs import check_length, max_moves
from tests.protocol.walks import ARGMAX, HONEST, JOB, REDUCTION, WALKS, RandomChallenger, at, check_invariants, other
from tiebreak.protocol.commitments.job import Head
from tiebreak.protocol.errors import IllegalMove, VerificationError
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.moves import Concede, Descend, Move, OpenChunk, Opening, Phase, Side, TensorWitness
from tiebreak.protocol.game.rules import GameState, Level, Reason
from tiebreak.protocol.game.sides import Challenger, Defender, first_nodes
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree, fold


@pytest.mark.parametrize("name", WALKS)
def test_games_end_at_the_lie_within_the_move_bound(name: str) -> None:
    steps = WALKS[name]
    assert 5 <= len(steps) <= max_moves(JOB)
    for before, move, after in steps:
        check_invariants(before, move, after)
        if before.phase is Phase.SELECT and after.level is before.level:  # invariant 1
            assert after.node == move.node or after.phase is Phase.OPEN_VALUES
            assert fold(move.node, move.index, move.siblings) == before.node
            assert after.height == before.height - before.levels
            assert after.position >> before.levels == before.position
    verdict = steps[-1][2].verdict
    assert (verdict.winner, verdict.reason) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert verdict.committed != verdict.correct


def all_moves() -> list[Move]:
    return list({move.KIND: move for steps in WALKS.values() for _, move, _ in steps}.values())


@pytest.mark.parametrize("name", WALKS)
def test_invariant_3_a_move_of_another_kind_is_illegal(name: str, cases: Callable[[], None]) -> None:
    assert len(all_moves()) == 9
    for state, made, _ in WALKS[name]:
        for move in all_moves():
            if move.KIND is not made.KIND:
                with pytest.raises(IllegalMove, match=f"expected a move of kind {made.KIND.name}"):
                    game.apply(state, move, state.earliest + 1)
                cases()


def test_invariant_8_no_move_is_legal_after_the_game_is_over(cases: Callable[[], None]) -> None:
    over = WALKS["terms"][-1][2]
    for move in (*all_moves(), Concede()):
        with pytest.raises(IllegalMove, match="the game is over"):
            game.apply(over, move, 10**6)
        cases()
    with pytest.raises(IllegalMove, match="the game is over"):
        game.timeout(over, 10**6)
    with pytest.raises(ValueError, match="nobody moves"):
        _ = over.mover


def test_a_game_starts_only_against_a_head_of_the_job() -> None:
    head = HONEST.head().head
    with pytest.raises(VerificationError, match="expected job"):
        game.start(replace(JOB, nonce=8), head, runs.GAME, 0)
    with pytest.raises(VerificationError, match="at most 3 checkpoints, got 4"):
        game.start(JOB, Head(job_id=JOB.id, count=4, run_root=head.run_root), runs.GAME, 0)
    with pytest.raises(VerificationError, match="game id: expected 32 bytes"):
        game.start(JOB, head, runs.GAME[1:], 0)


# ---------------------------------------------------------------- answers to other choices


@cache
def answers_of_an_honest_defender() -> dict[Phase, list[tuple[GameState, Move]]]:
    """Its moves in many walks through one run, each with the state that it answers."""
    found: dict[Phase, list[tuple[GameState, Move]]] = {}

    def note(before: GameState, move: Move, _: GameState) -> None:
        if before.mover is Side.DEFENDER and (before, move) not in found.setdefault(before.phase, []):
            found[before.phase].append((before, move))

    for seed in range(150):
        runs.duel(HONEST, Defender(HONEST), RandomChallenger(HONEST, Random(seed)), on_move=note)
    return found


def other_elements(state: GameState) -> list[GameState]:
    """The same walk with another element selected at its end."""
    data, size = HONEST.tensor(state.step, state.leaf), state.dtype.size
    every = range(state.chunk * CHUNK_BYTES // size, min((state.chunk + 1) * CHUNK_BYTES, len(data)) // size)
    return [replace(state, element=k, claimed=data[k * size : (k + 1) * size]) for k in every]


def test_invariant_15_answers_to_another_choice_are_illegal(cases: Callable[[], None]) -> None:
    """A reorganisation may put another choice before an answer that everybody has seen."""
    found = {phase: list(answers) for phase, answers in answers_of_an_honest_defender().items()}
    defender = Defender(HONEST)
    elements = {state.element: state for at, _ in found[Phase.OPEN_TERMS] for state in other_elements(at)}
    found[Phase.OPEN_TERMS] += [(state, defender.move(state, None)) for state in elements.values()]
    assert set(found) == {kind.KIND for kind in (*get_args(Opening), OpenChunk)}
    for phase, answers in found.items():
        for state, right in answers[:50]:
            for _, answer in answers[:50]:
                if answer != right:
                    with pytest.raises(IllegalMove):
                        game.apply(state, answer, state.last)
                    cases()
        assert len(answers) > 1, phase


def test_invariant_15_another_elements_partial_sums_can_match_equal_bits() -> None:
    """Which is why OPEN_TERMS names its element: all else of it would be legal where it is wrong."""
    taken, defender = 0, Defender(HONEST)
    for state, right in answers_of_an_honest_defender()[Phase.OPEN_TERMS]:
        for twin in other_elements(state):
            if twin.claimed == state.claimed and twin.element != state.element:
                wrong = replace(defender.move(twin, None), element=state.element)  # type: ignore[call-arg]
                if wrong != right:
                    taken += game.apply(state, wrong, state.last).level is Level.TERMS
    assert taken > 3


# ---------------------------------------------------------------- ties that do not hold and illegal moves, one by one

TIES: dict[str, tuple[str, Phase, Callable[[Move], Move]]] = {
    "do not fold": ("terms", Phase.DESCEND, lambda m: replace(m, nodes=(other(m.nodes[0]), *m.nodes[1:]))),
    "not the last record": ("terms", Phase.OPEN_STEPS, lambda m: replace(m, nodes=(other(m.nodes[0]), *m.nodes[1:]))),
    "step record is not": ("terms", Phase.OPEN_VALUES, lambda m: replace(m, state_root=other(m.state_root))),
    "step record is not ": ("terms", Phase.OPEN_VALUES, lambda m: replace(m, loss_bits=m.loss_bits ^ 1)),
    "step record is not the": ("terms", Phase.OPEN_VALUES, lambda m: replace(m, log_root=other(m.log_root))),
    "loss is not": ("terms", Phase.OPEN_VALUES, lambda m: replace(m, nodes=(other(m.nodes[0]), *m.nodes[1:]))),
    "right half": ("terms", Phase.OPEN_VALUES, lambda m: replace(m, nodes=(*m.nodes[:-1], other(m.nodes[-1])))),
    "instruction is not": ("terms", Phase.OPEN_TENSOR, lambda m: replace(m, instruction=m.instruction + b"\0")),
    "chunk root is not": ("terms", Phase.OPEN_TENSOR, lambda m: replace(m, nodes=(other(m.nodes[0]),))),
    "has 1 bytes": ("terms", Phase.OPEN_CHUNK, lambda m: replace(m, chunk=m.chunk[:1])),
    "chunk is not the committed": ("terms", Phase.OPEN_CHUNK, lambda m: replace(m, chunk=other(m.chunk))),
    "bytes of an accumulator": ("terms", Phase.OPEN_TERMS, lambda m: replace(m, accumulator=m.accumulator[1:])),
    "not the claimed": ("terms", Phase.OPEN_TERMS, lambda m: replace(m, accumulator=m.accumulator[:-1] + b"\x7f")),
    "terms of (step, value, element) (4, 16, 0), got those of (3, 16, 0)": (
        "terms", Phase.OPEN_TERMS, lambda m: replace(m, step=3)),
    "got those of (4, 17, 0)": ("terms", Phase.OPEN_TERMS, lambda m: replace(m, value=17)),
    "got those of (4, 16, 1)": ("terms", Phase.OPEN_TERMS, lambda m: replace(m, element=1)),
    "not the last leaf": ("terms", Phase.OPEN_TERMS, lambda m: replace(m, nodes=(other(m.nodes[0]), *m.nodes[1:]))),
}  # fmt: skip


@pytest.mark.parametrize("detail", TIES)
def test_opening_that_contradicts_its_commitment_is_illegal(detail: str) -> None:
    name, phase, change = TIES[detail]
    state, move = at(name, phase)
    with pytest.raises(IllegalMove, match=re.escape(detail.strip())):
        game.apply(state, change(move), state.last)


def test_rounding_log_is_illegal_under_policy_exact() -> None:
    state, move = at("terms", Phase.OPEN_VALUES)
    record = replace(HONEST.record(state.step), log_root=Digest(b"\1" * 32))
    state = replace(state, node=record.digest)
    move = replace(move, state_root=record.state_root, loss_bits=record.loss_bits, log_root=record.log_root)
    with pytest.raises(IllegalMove, match="rounding log"):
        game.apply(state, move, state.last)


@pytest.mark.parametrize("phase", [Phase.OPEN_STEPS, Phase.OPEN_VALUES, Phase.OPEN_TENSOR, Phase.OPEN_TERMS])
def test_wrong_siblings_and_a_wrong_number_of_them_are_illegal(phase: Phase) -> None:
    state, move = at("terms", phase)
    with pytest.raises(IllegalMove, match=r"is not"):
        game.apply(state, replace(move, siblings=tuple(map(other, move.siblings))), state.last)
    for siblings in (move.siblings[1:], (*move.siblings, bytes(32))):
        with pytest.raises(IllegalMove, match=f"expected {len(move.siblings)} siblings, got {len(siblings)}"):
            game.apply(state, replace(move, siblings=siblings), state.last)


@pytest.mark.parametrize("phase", [kind.KIND for kind in get_args(Opening)])
@pytest.mark.parametrize("name", ["terms", "element", "data source"])
def test_opening_with_a_wrong_number_of_nodes_is_illegal(name: str, phase: Phase) -> None:
    found = [(state, move) for state, move, _ in WALKS[name] if state.phase is phase]
    for state, move in found:
        count = len(move.nodes)
        assert count in (0, 1, 2, 4)
        assert (count == 0) == (name == "data source" and phase is Phase.OPEN_TENSOR)
        for nodes in (move.nodes[1:], move.nodes[: count // 2], (*move.nodes, bytes(32)), move.nodes * 2):
            if len(nodes) != count:
                with pytest.raises(IllegalMove, match=rf"expected {count} nodes.*, got {len(nodes)}"):
                    game.apply(state, replace(move, nodes=nodes), state.last)
    assert found or (name, phase) in [("element", Phase.OPEN_TERMS), ("data source", Phase.OPEN_TERMS)]


TENSOR = TensorWitness(tensor_id=bytes(32), siblings=())


def shows(change: Callable[[Any], dict[str, Any]]) -> Callable[[Move], Move]:
    return lambda m: replace(m, witness=replace(m.witness, **change(m.witness)))


REFUSED: dict[str, tuple[str, Phase, Callable[[Move], Move]]] = {
    "expected 2 siblings, got 0": ("terms", Phase.SELECT, lambda m: replace(m, siblings=())),
    "expected 2 siblings, got 3": ("terms", Phase.SELECT, lambda m: replace(m, siblings=(*m.siblings, bytes(32)))),
    "expected an index below 4": ("terms", Phase.SELECT, lambda m: replace(m, index=m.index + 4)),
    "node that the defender": ("terms", Phase.SELECT, lambda m: replace(m, node=other(m.node))),
    "node that the +defender": ("terms", Phase.SELECT, lambda m: replace(m, index=m.index ^ 1)),
    "node that +the defender": ("terms", Phase.SELECT, lambda m: replace(m, siblings=m.siblings[::-1])),
    "no seal at height 0, position 1 of the RUN": ("terms", Phase.SELECT, lambda m: replace(m, seal=b"\1" * 32)),
    "no seal at an element of 20 terms": ("terms", Phase.SELECT_ELEMENT, lambda m: replace(m, seal=b"\1" * 32)),
    "chunk that the defender": ("terms", Phase.SELECT_ELEMENT, lambda m: replace(m, chunk=other(m.chunk))),
    "an index below 15": ("terms", Phase.SELECT_ELEMENT, lambda m: replace(m, index=15)),
    "disputed instruction, got a": ("terms", Phase.PROVE, lambda m: replace(m, instruction=b"x")),
    "seal of the right answer": ("terms", Phase.PROVE, lambda m: replace(m, salt=other(m.salt))),
    "seal of the right +answer": ("element", Phase.PROVE, lambda m: replace(m, salt=other(m.salt))),
    "seal of the +right answer": ("commit", Phase.PROVE, lambda m: replace(m, salt=other(m.salt))),
    "seal of +the right answer": ("data source", Phase.PROVE, lambda m: replace(m, salt=other(m.salt))),
    "expected root": ("terms", Phase.PROVE, lambda m: replace(m, previous=other(m.previous))),
    "expected 3 siblings": ("terms", Phase.PROVE, lambda m: replace(m, siblings=())),
    "expected operand dtypes|to be opened": ("terms", Phase.PROVE, lambda m: replace(m, tensors=(), chunks=())),
    "expected chunk": ("element", Phase.PROVE, lambda m: replace(m, chunks=())),
    "expected no previous": ("element", Phase.PROVE, lambda m: replace(m, previous=b"x")),
    "expected no siblings": ("element", Phase.PROVE, lambda m: replace(m, siblings=(bytes(32),))),
    "element: expected no witness": ("element", Phase.PROVE, lambda m: replace(m, witness=TENSOR)),
    "constant|scalar: expected no witness": ("constant", Phase.PROVE, lambda m: replace(m, witness=TENSOR)),
    "expected a tensor id": ("data source", Phase.PROVE, lambda m: replace(m, witness=None)),
    "expected root ": ("data source", Phase.PROVE, shows(lambda w: {"tensor_id": other(w.tensor_id)})),
    "record before the step as witness": ("state source", Phase.PROVE, lambda m: replace(m, witness=None)),
    "expected record 2, got record 1": ("state source", Phase.PROVE, shows(lambda _: {"step": 1})),
    "expected .*root": ("state source", Phase.PROVE, shows(lambda w: {"loss_bits": w.loss_bits ^ 1})),
    "expected root  ?": (
        "state source in a segment", Phase.PROVE, shows(lambda w: {"tensor_id": other(w.tensor_id)})),
    "expected 0 siblings": (
        "state source in the first step", Phase.PROVE, shows(lambda _: {"record_siblings": (bytes(32),)})),
    "expected root [0-9a-f]": ("commit", Phase.PROVE, lambda m: replace(m, instruction=runs.program().encoded[-2])),
    "tensor id and its siblings": ("commit", Phase.PROVE, lambda m: replace(m, witness=None)),
    "expected root [0-9a-f]+": ("commit", Phase.PROVE, shows(lambda w: {"tensor_id": other(w.tensor_id)})),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_invariant_4_an_illegal_move_is_refused_and_changes_nothing(message: str) -> None:
    name, phase, change = REFUSED[message]
    state, move = at(name, phase)
    copy = replace(state)
    with pytest.raises(IllegalMove, match=message):
        game.apply(state, change(move), state.earliest + 1)
    assert state == copy
    assert game.apply(state, move, state.earliest + 1) != state


# ---------------------------------------------------------------- 9: an honest defender never loses


# ---------------------------------------------------------------- 10: an honest challenger never loses

LEAVES = [*range(len(runs.program().body)), *(runs.program().leaf_of_commit(k) for k in range(2))]


@settings(max_examples=20)
@given(st.data(), st.sampled_from(LEAVES), st.integers(1, 5), st.integers(0, 10**6), st.integers(0, 4))
def test_invariant_10_an_honest_challenger_wins_wherever_the_lie_is(
    data: st.DataObject, leaf: int, levels: int, element: int, bend_from: int
) -> None:
    """Whatever the division of the run into segments, and the bits that sums are rounded to."""
    steps = data.draw(st.integers(1, runs.STEPS), "steps")
    step, interval = (data.draw(st.integers(1, steps), what) for what in ("the false one", "interval"))
    precision = data.draw(st.sampled_from([16, 24, 31, 32]), "precision")
    job = runs.make_job(steps=steps, levels=levels, interval=interval, precision=precision)
    numel = runs.program().instruction_at(leaf).numel
    liar = runs.Liar(job, step, leaf, element % numel, bend_from=bend_from)
    run = runs.Run(job)
    # Where the flipped bit of the value undoes that of the loss, no lie was committed.
    assume(liar.run_tree(job.checkpoints).root != run.run_tree(job.checkpoints).root)
    end = runs.duel(liar, Defender(liar), Challenger(run, runs.SECRET), on_move=check_invariants)
    assert end.verdict.winner is Side.CHALLENGER
    if liar.value_tree(step).node(0, leaf) != run.value_tree(step).node(0, leaf) and end.step == step:
        assert end.leaf == leaf
    check_length(end)
    assert runs.duel(run, Defender(run), Challenger(liar, runs.SECRET)).verdict.winner is Side.DEFENDER


class FalseTerms(Defender):
    """Puts leaves of its choice into the accumulator tree, before the true last one."""

    def __init__(self, oracle: runs.Run, change: Callable[[list[bytes]], list[bytes]]) -> None:
        super().__init__(oracle)
        self._change = change

    def move(self, state: GameState, answered: Move | None) -> Move:
        if state.phase is not Phase.OPEN_TERMS and state.level is not Level.TERMS:
            return super().move(state, answered)
        true = self.oracle.accumulators(state.step, state.leaf, state.element)
        leaves = self._change([true.node(0, k) for k in range(1 << true.depth)])
        tree = Tree(leaves, true.depth)
        if state.phase is Phase.DESCEND:
            return Descend(nodes=tuple(tree.below(state.height, state.position, state.levels)))
        move = super().move(state, answered)
        return replace(move, nodes=first_nodes(tree, state.job), siblings=tuple(tree.proof(true.count - 1)))


def test_invariant_10_padding_of_an_accumulator_tree_must_be_empty() -> None:
    """True leaves, a false element: the first false leaf is the last; a leaf of padding cannot hide that."""
    liar = runs.Liar(JOB, 4, ARGMAX, 0, bend_from=4)
    assert liar.accumulators(4, ARGMAX, 0).count == 5
    end = runs.duel(liar, FalseTerms(liar, lambda x: [*x[:7], b"\1" * 32]), Challenger(HONEST, runs.SECRET))
    assert (end.verdict.reason, end.position) == (Reason.RECOMPUTED, 4)


@pytest.mark.parametrize(("place", "reason"), [(7, Reason.PADDING), (2, Reason.RECOMPUTED)])
def test_challenger_wins_at_any_spoiled_leaf_or_padding(place: int, reason: Reason) -> None:
    """A challenger may dispute any leaf: a spoiled one convicts, also where padding must be empty."""

    class GoesTo(Challenger):
        def pick(self, state: GameState, nodes: Sequence[bytes]) -> int:
            if state.level is not Level.TERMS:
                return super().pick(state, nodes)
            return place >> (state.height - state.levels) & (1 << state.levels) - 1

    liar = runs.Liar(JOB, 4, ARGMAX, 0, bend_from=4)
    spoiled = FalseTerms(liar, lambda x: [*x[:place], b"\1" * 32, *x[place + 1 :]])
    end = runs.duel(liar, spoiled, GoesTo(HONEST, runs.SECRET))
    assert (end.verdict.winner, end.verdict.reason) == (Side.CHALLENGER, reason)
    if place == 7:
        end = runs.duel(liar, Defender(liar), GoesTo(HONEST, runs.SECRET))
        assert (end.verdict.winner, end.verdict.reason) == (Side.DEFENDER, Reason.PADDING)


@pytest.mark.parametrize("first", range(4))
def test_false_partial_sum_is_convicted_at_its_first_false_leaf(first: int) -> None:
    liar = runs.Liar(JOB, 4, REDUCTION, 0, bend_from=first)
    true = HONEST.encoded(4, REDUCTION, 0)
    assert runs.bend(liar, 4, REDUCTION, 0, true, first)[:first] == true[:first]
    end = runs.duel(liar, Defender(liar), Challenger(HONEST, runs.SECRET))
    assert (end.verdict.reason, end.level, end.position) == (Reason.RECOMPUTED, Level.TERMS, first)


def test_invariant_7_move_bound_holds_for_the_longest_game() -> None:
    """One level a move, the deepest trees of this program."""
    job = runs.make_job(levels=1, interval=4)
    liar = runs.Liar(job, 3, ARGMAX, 14, bend_from=4)
    end = runs.duel(liar, Defender(liar), Challenger(runs.Run(job), runs.SECRET))
    assert end.moves <= max_moves(job)
    # run, steps, values, tensor (of one chunk), chunk, element, terms, proof
    assert end.moves == sum((2 * 1, 2 * 2, 2 * 7, 1, 1, 1, 2 * 3, 1))


def test_invariant_7_disputing_a_million_steps_takes_at_most_30_moves() -> None:
    """The challenge included: 1000 checkpoints of 1000 steps, 2^13 values, tensors of 256 MiB, sums of 1024 terms."""
    depths = {"run": 10, "steps": 10, "values": 14, "chunks": 19, "terms": 8}
    assert 1 + game.walk_moves(5, **depths) == 30
    assert [1 + game.walk_moves(r, **depths) for r in (1, 2, 3, 4)] == [126, 66, 50, 38]


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize("name", ["terms", "commit", "state source"])
def test_invariant_6_exactly_one_of_move_and_timeout_is_legal(name: str, cases: Callable[[], None]) -> None:
    allowed = Counter[int]()
    for state, move, _ in WALKS[name]:
        state = replace(state, last=1000, moved=1000, defender_rest=70, challenger_rest=30)
        rest = 70 if state.mover is Side.DEFENDER else 30
        last = 1000 + state.allowance + rest
        assert (state.rest, state.deadline) == (rest, last)
        allowed[state.allowance] += 1
        first = 1000 + (runs.CLOCK if state.phase is Phase.PROVE else 0)
        assert state.earliest == first
        edges = {first, 1000 + state.allowance - 1, 1000 + state.allowance, last - 1, last}
        for now in {now for now in edges if now >= first}:
            after = game.apply(state, move, now)
            assert after.last == now
            assert after.defender_rest + after.challenger_rest == 100 - max(0, now - 1000 - state.allowance)
            with pytest.raises(IllegalMove, match=f"expected an instant after {last}, got {now}"):
                game.timeout(state, now)
            cases()
        with pytest.raises(IllegalMove, match=f"expected a move not after {last}, got one at {last + 1}"):
            game.apply(state, move, last + 1)
        verdict = game.timeout(state, last + 1).verdict
        assert (verdict.winner, verdict.reason) == (state.mover.other, Reason.TIMEOUT)
        assert ("not charged" in verdict.detail) == (state.allowance > 0)
    assert set(allowed) == {0, runs.REPLAY, runs.CLOCK}


def test_invariant_5_moves_and_timeouts_cannot_go_back_in_time() -> None:
    state, move = at("terms", Phase.DESCEND)
    state = replace(state, last=50, moved=50)
    with pytest.raises(IllegalMove, match="not before 50, got 49"):
        game.apply(state, move, 49)
    with pytest.raises(IllegalMove, match="not before 50, got 49"):
        game.timeout(state, 49)


@pytest.mark.parametrize("name", WALKS)
def test_invariant_12_moves_that_need_a_replay_get_extra_time(name: str) -> None:
    """The specification lists three openings, and the first selection in the trees that they open."""
    told = {
        (Phase.OPEN_STEPS, Level.RUN), (Phase.SELECT, Level.STEPS), (Phase.OPEN_VALUES, Level.STEPS),
        (Phase.SELECT, Level.VALUES), (Phase.OPEN_TERMS, Level.CHUNKS), (Phase.SELECT, Level.TERMS),
    }  # fmt: skip
    seen = Counter[tuple[Phase, Level]]()
    for state, _, _ in WALKS[name]:
        place = (state.phase, state.level)
        waits = runs.CLOCK if state.phase is Phase.PROVE else 0
        assert state.allowance == (runs.REPLAY if place in told and not seen[place] else waits), place
        seen[place] += 1
    assert max(seen[place] for place in told if place[0] is not Phase.SELECT) == 1
    if name == "terms":
        assert set(seen) > told
        assert seen[Phase.SELECT, Level.VALUES] > 1


def test_invariant_12_the_time_bound_is_reached_and_not_exceeded() -> None:
    """Every move as late as it may be: at its allowance, until a side's last one eats its clock."""
    steps = WALKS["terms"]
    state = steps[0][0]
    start = state.last
    last_of = {side: max(k for k, (s, _, _) in enumerate(steps) if s.mover is side) for side in Side}
    for number, (_, move, _) in enumerate(steps[:-1]):
        late = state.rest if number == last_of[state.mover] else 0
        state = game.apply(state, move, state.last + state.allowance + late)
    assert state.phase is Phase.PROVE
    assert (state.defender_rest, state.challenger_rest) == (0, runs.CLOCK)
    bound = start + 3 * runs.CLOCK + 6 * runs.REPLAY + 1
    assert state.deadline == bound - 1
    with pytest.raises(IllegalMove):
        game.timeout(state, bound - 1)
    assert game.timeout(state, bound).is_over
