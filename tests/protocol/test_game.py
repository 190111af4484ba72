"""The rules of the game by the number of their invariant, and every tie."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from protocol import game
from protocol.errors import IllegalMove, VerificationError
from protocol.game import GameState, Level, Reason
from protocol.job import Head
from protocol.merkle import Tree, fold
from protocol.moves import (
    Concede,
    Descend,
    Move,
    OpenChunk,
    Opening,
    OpenSteps,
    OpenTensor,
    OpenTerms,
    OpenValues,
    Phase,
    Select,
    Side,
    TensorWitness,
)
from protocol.player import Challenger, Defender, first_nodes
from protocol.tags import EMPTY, Digest
from tests.protocol.runs import (
    GAME,
    REPLAY,
    SECRET,
    STEPS,
    Liar,
    Run,
    bend,
    duel,
    lie,
    make_job,
    ordinary_element,
    program,
)

JOB = make_job()
HONEST = Run(JOB)
REDUCTION = 32
"""A sum of 15 terms: 4 leaves of terms."""
SCATTER = 20
ARGMAX = 16
"""20 terms: 5 leaves, 3 of padding."""
COMMIT = program().leaf_of_commit(1)

Walk = list[tuple[GameState, Move, GameState]]


def walk(liar: Run, defender: Defender | None = None) -> Walk:
    """Every move of an honest challenger's game against a liar."""
    made: Walk = []
    duel(liar, defender or Defender(liar), Challenger(HONEST, SECRET), on_move=lambda *x: made.append(x))
    return made


WALKS = {
    "terms": walk(Liar(JOB, 4, ARGMAX, 0, bend_from=1)),
    "element": walk(Liar(JOB, 3, 24, 299)),
    "state source": walk(Liar(JOB, 3, 3)),
    "state source in a segment": walk(Liar(JOB, 4, 3)),
    "state source in the first step": walk(Liar(JOB, 1, 3)),
    "data source": walk(Liar(JOB, 4, 0)),
    "constant": walk(Liar(JOB, 4, 5)),
    "commit": walk(Liar(JOB, 4, COMMIT)),
    "segment of one step": walk(Liar(JOB, 5, 24, 3)),
}


def at(name: str, phase: Phase) -> tuple[GameState, Move]:
    """A state of a walk in which a move of this kind is due, and the move that was made."""
    return next((state, move) for state, move, _ in WALKS[name] if state.phase is phase)


def other(digest: bytes) -> bytes:
    return bytes([digest[0] ^ 1]) + digest[1:]


def check_invariants(before: GameState, move: Move, after: GameState) -> None:
    """Invariants 2, 3, 5 and 8, over one move."""
    assert move.KIND is before.phase
    assert before.mover is move.KIND.mover
    assert 0 <= after.position < 1 << 64
    assert 0 <= after.height <= 64
    assert after.defender_rest <= before.defender_rest
    assert after.challenger_rest <= before.challenger_rest
    charged = max(0, after.last - before.last - before.allowance)
    rests = before.defender_rest + before.challenger_rest
    assert after.defender_rest + after.challenger_rest + charged == rests
    assert (after.verdict is None) == (after.phase is not Phase.OVER)


@pytest.mark.parametrize("name", WALKS)
def test_walks_end_at_the_lie_within_the_bound(name: str) -> None:
    steps = WALKS[name]
    assert 5 <= len(steps) <= game.max_moves(JOB)
    for before, move, after in steps:
        check_invariants(before, move, after)
        if before.phase is Phase.SELECT and after.level is before.level:
            assert isinstance(move, Select)  # invariant 1
            assert after.node == move.node or after.phase is Phase.OPEN_VALUES
            assert fold(move.node, move.index, move.siblings) == before.node
            assert after.height == before.height - before.levels
            assert after.position >> before.levels == before.position
    verdict = steps[-1][2].verdict
    assert verdict is not None
    assert (verdict.winner, verdict.reason) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert verdict.committed != verdict.correct


def all_moves() -> list[Move]:
    """One of each kind; but conceding, which belongs to every phase."""
    return list({move.KIND: move for steps in WALKS.values() for _, move, _ in steps}.values())


@pytest.mark.parametrize("name", WALKS)
def test_3_a_move_of_another_kind_is_illegal(name: str, cases: Callable[[], None]) -> None:
    assert len(all_moves()) == 9
    for state, made, _ in WALKS[name]:
        for move in all_moves():
            if move.KIND is not made.KIND:
                with pytest.raises(IllegalMove, match=f"expected a move of kind {made.KIND.name}"):
                    game.apply(state, move, state.last + 1)
                cases()


def test_8_nothing_is_legal_when_it_is_over(cases: Callable[[], None]) -> None:
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
        game.start(replace(JOB, nonce=8), head, GAME, 0)
    with pytest.raises(VerificationError, match="at most 3 checkpoints, got 4"):
        game.start(JOB, Head(job_id=JOB.id, count=4, run_root=head.run_root), GAME, 0)
    with pytest.raises(VerificationError, match="game id: expected 32 bytes"):
        game.start(JOB, head, GAME[1:], 0)


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize("name", ["terms", "commit", "state source"])
def test_6_exactly_one_of_move_and_timeout_is_legal(name: str, cases: Callable[[], None]) -> None:
    allowed = Counter[int]()
    for state, move, _ in WALKS[name]:
        state = replace(state, last=1000, defender_rest=70, challenger_rest=30)
        rest = 70 if state.mover is Side.DEFENDER else 30
        last = 1000 + state.allowance + rest
        assert (state.rest, state.deadline) == (rest, last)
        allowed[state.allowance] += 1
        first = 1001 if state.phase is Phase.PROVE else 1000
        for now in {first, 1000 + state.allowance - 1, 1000 + state.allowance, last - 1, last} - {999, 1000} | {first}:
            for legal in (move, Concede()):
                after = game.apply(state, legal, now)
                assert after.last == now
                assert after.defender_rest + after.challenger_rest == 100 - max(0, now - 1000 - state.allowance)
            with pytest.raises(IllegalMove, match=f"expected an instant after {last}, got {now}"):
                game.timeout(state, now)
            cases()
        for late in (move, Concede()):
            with pytest.raises(IllegalMove, match=f"expected a move not after {last}, got one at {last + 1}"):
                game.apply(state, late, last + 1)
        verdict = game.timeout(state, last + 1).verdict
        assert verdict is not None
        assert (verdict.winner, verdict.reason) == (state.mover.other, Reason.TIMEOUT)
        assert ("of replay" in verdict.detail) == (state.allowance > 0)
    assert set(allowed) == {0, REPLAY}


def test_5_time_does_not_run_backward() -> None:
    state, move = at("terms", Phase.DESCEND)
    state = replace(state, last=50)
    with pytest.raises(IllegalMove, match="not before 50, got 49"):
        game.apply(state, move, 49)
    with pytest.raises(IllegalMove, match="not before 50, got 49"):
        game.timeout(state, 49)


# ---------------------------------------------------------------- lost ties and illegal moves, one by one

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
    "not canonical": ("terms", Phase.OPEN_TERMS, lambda m: replace(m, accumulator=m.accumulator[1:])),
    "not the claimed": ("terms", Phase.OPEN_TERMS, lambda m: replace(m, accumulator=m.accumulator[:-1] + b"\x7f")),
    "not the last leaf": ("terms", Phase.OPEN_TERMS, lambda m: replace(m, nodes=(other(m.nodes[0]), *m.nodes[1:]))),
}  # fmt: skip


@pytest.mark.parametrize("detail", TIES)
def test_a_broken_tie_loses_at_once(detail: str) -> None:
    name, phase, change = TIES[detail]
    state, move = at(name, phase)
    after = game.apply(state, change(move), state.last)
    assert after.verdict is not None
    assert (after.verdict.winner, after.verdict.reason) == (Side.CHALLENGER, Reason.BROKEN_TIE)
    assert detail.strip() in after.verdict.detail


def test_a_rounding_log_breaks_the_policy() -> None:
    state, move = at("terms", Phase.OPEN_VALUES)
    assert isinstance(move, OpenValues)
    record = replace(HONEST.record(state.step), log_root=Digest(b"\1" * 32))
    state = replace(state, node=record.digest)
    move = replace(move, state_root=record.state_root, loss_bits=record.loss_bits, log_root=record.log_root)
    after = game.apply(state, move, state.last)
    assert after.verdict is not None
    assert "rounding log" in after.verdict.detail


def _flip_siblings(move: Move) -> Move:
    return replace(move, siblings=tuple(other(s) for s in move.siblings))  # type: ignore[union-attr,call-arg]


@pytest.mark.parametrize("phase", [Phase.OPEN_STEPS, Phase.OPEN_VALUES, Phase.OPEN_TENSOR, Phase.OPEN_TERMS])
def test_wrong_siblings_lose_and_a_wrong_number_is_illegal(phase: Phase) -> None:
    state, move = at("terms", phase)
    after = game.apply(state, _flip_siblings(move), state.last)
    assert after.verdict is not None
    assert after.verdict.reason is Reason.BROKEN_TIE
    assert isinstance(move, OpenSteps | OpenValues | OpenTensor | OpenTerms)
    for siblings in (move.siblings[1:], (*move.siblings, bytes(32))):
        with pytest.raises(IllegalMove, match=f"expected {len(move.siblings)} siblings, got {len(siblings)}"):
            game.apply(state, replace(move, siblings=siblings), state.last)


@pytest.mark.parametrize("phase", [kind.KIND for kind in get_args(Opening)])
@pytest.mark.parametrize("name", ["terms", "element", "data source"])
def test_another_number_of_nodes_is_illegal(name: str, phase: Phase) -> None:
    """Not a broken tie: a challenger could not have been shown what is not there."""
    found = [(state, move) for state, move, _ in WALKS[name] if state.phase is phase]
    for state, move in found:
        assert isinstance(move, Opening)
        count = len(move.nodes)
        assert count in (0, 1, 2, 4)
        assert (count == 0) == (name == "data source" and phase is Phase.OPEN_TENSOR)
        for nodes in (move.nodes[1:], move.nodes[: count // 2], (*move.nodes, bytes(32)), move.nodes * 2):
            if len(nodes) != count:
                with pytest.raises(IllegalMove, match=rf"expected {count} nodes.*, got {len(nodes)}"):
                    game.apply(state, replace(move, nodes=nodes), state.last)
    assert found or (name, phase) in [("element", Phase.OPEN_TERMS), ("data source", Phase.OPEN_TERMS)]


REFUSED: dict[str, tuple[str, Phase, Callable[[Move], Move]]] = {
    "expected 4 nodes, got 3": ("terms", Phase.DESCEND, lambda m: replace(m, nodes=m.nodes[1:])),
    "expected 4 nodes, got 8": ("terms", Phase.DESCEND, lambda m: replace(m, nodes=m.nodes * 2)),
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
    "element: expected no witness": (
        "element",
        Phase.PROVE,
        lambda m: replace(m, witness=TensorWitness(tensor_id=bytes(32), siblings=())),
    ),
    "constant|scalar: expected no witness": (
        "constant",
        Phase.PROVE,
        lambda m: replace(m, witness=TensorWitness(tensor_id=bytes(32), siblings=())),
    ),
    "expected a tensor id": ("data source", Phase.PROVE, lambda m: replace(m, witness=None)),
    "expected root ": (
        "data source",
        Phase.PROVE,
        lambda m: replace(m, witness=replace(m.witness, tensor_id=other(m.witness.tensor_id))),
    ),
    "record before the step as witness": ("state source", Phase.PROVE, lambda m: replace(m, witness=None)),
    "expected record 2, got record 1": (
        "state source",
        Phase.PROVE,
        lambda m: replace(m, witness=replace(m.witness, step=1)),
    ),
    "expected .*root": (
        "state source",
        Phase.PROVE,
        lambda m: replace(m, witness=replace(m.witness, loss_bits=m.witness.loss_bits ^ 1)),
    ),
    "expected root  ?": (
        "state source in a segment",
        Phase.PROVE,
        lambda m: replace(m, witness=replace(m.witness, tensor_id=other(m.witness.tensor_id))),
    ),
    "expected 0 siblings": (
        "state source in the first step",
        Phase.PROVE,
        lambda m: replace(m, witness=replace(m.witness, record_siblings=(bytes(32),))),
    ),
    "expected root [0-9a-f]": ("commit", Phase.PROVE, lambda m: replace(m, instruction=program().encoded[-2])),
    "tensor id and its siblings": ("commit", Phase.PROVE, lambda m: replace(m, witness=None)),
    "expected root [0-9a-f]+": (
        "commit",
        Phase.PROVE,
        lambda m: replace(m, witness=replace(m.witness, tensor_id=other(m.witness.tensor_id))),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_4_an_illegal_move_is_refused_and_changes_nothing(message: str) -> None:
    name, phase, change = REFUSED[message]
    state, move = at(name, phase)
    copy = replace(state)
    with pytest.raises(IllegalMove, match=message):
        game.apply(state, change(move), state.last + 1)
    assert state == copy
    assert game.apply(state, move, state.last + 1) != state


# ---------------------------------------------------------------- 9: an honest defender never loses


class RandomChallenger(Challenger):
    """Legal moves at random; what it proves is true, since only true openings verify."""

    def __init__(self, oracle: Run, random: Random) -> None:
        super().__init__(oracle, SECRET)
        self._random = random

    def pick(self, state: GameState, nodes: Sequence[bytes]) -> int:
        return self._random.randrange(len(nodes))

    def pick_element(self, state: GameState, chunk: bytes) -> int:
        return self._random.randrange(len(chunk) // state.dtype.size)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(1, 5), st.data())
def test_9_an_honest_defender_never_loses(random: Random, levels: int, interval: int, data: st.DataObject) -> None:
    run = Run(make_job(levels=levels, interval=interval))
    count = data.draw(st.integers(1, run.job.checkpoints))
    end = duel(run, Defender(run), RandomChallenger(run, random), count=count, on_move=check_invariants)
    assert end.verdict is not None
    assert end.verdict.winner is Side.DEFENDER
    assert end.verdict.reason in (Reason.PADDING, Reason.RECOMPUTED)


def test_9_a_false_challenger_loses_where_it_is_wrong() -> None:
    """The challenger's own run is the tampered one."""
    for leaf in (3, 24, ARGMAX, COMMIT):
        end = duel(HONEST, Defender(HONEST), Challenger(Liar(JOB, 4, leaf, bend_from=1)))
        assert end.verdict is not None
        assert (end.verdict.winner, end.verdict.reason, end.leaf) == (Side.DEFENDER, Reason.CONCEDED, leaf)


# ---------------------------------------------------------------- 10: an honest challenger never loses

LEAVES = [*range(len(program().body)), *(program().leaf_of_commit(k) for k in range(2))]


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, STEPS),
    st.sampled_from(LEAVES),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 10**6),
    st.integers(0, 4),
)
def test_10_an_honest_challenger_wins_wherever_the_lie_is(
    step: int, leaf: int, levels: int, interval: int, element: int, bend_from: int
) -> None:
    job = make_job(levels=levels, interval=interval)
    numel = program().instruction_at(leaf).numel
    liar = Liar(job, step, leaf, element % numel, bend_from=bend_from)
    run = Run(job)
    # Where the flipped bit of the value undoes that of the loss, no lie was committed.
    assume(liar.run_tree(job.checkpoints).root != run.run_tree(job.checkpoints).root)
    end = duel(liar, Defender(liar), Challenger(run), on_move=check_invariants)
    assert end.verdict is not None
    assert end.verdict.winner is Side.CHALLENGER
    if liar.value_tree(step).node(0, leaf) != run.value_tree(step).node(0, leaf) and end.step == step:
        assert end.leaf == leaf


class Garbage(Run):
    """A cheat that commits to random leaves, at places that are used and at places that must be empty."""

    def __init__(self, job: Run, random: Random) -> None:
        super().__init__(job.job, lie(4, 33), 4)
        self._random = random
        self._kept: dict[tuple[str, int], Tree] = {}

    def _spoil(self, key: tuple[str, int], tree: Tree, keep: set[int], width: int) -> Tree:
        if key not in self._kept:
            leaves = [tree.node(0, k) for k in range(1 << tree.depth)]
            for _ in range(self._random.randrange(4)):
                place = self._random.randrange(width)
                if place not in keep:
                    leaves[place] = Digest(self._random.choice([EMPTY, self._random.randbytes(32)]))
            self._kept[key] = Tree(leaves, tree.depth)
        return self._kept[key]

    def run_tree(self, count: int) -> Tree:
        tree = super().run_tree(count)
        return self._spoil(("run", count), tree, set(), 1 << tree.depth)

    def steps_tree(self, checkpoint: int) -> Tree:
        tree = super().steps_tree(checkpoint)
        return self._spoil(("steps", checkpoint), tree, {self.job.segment_steps(checkpoint) - 1}, 1 << tree.depth)

    def value_tree(self, step: int) -> Tree:
        half = 1 << self.job.half_depth
        return self._spoil(("values", step), super().value_tree(step), {self.job.body_count - 1}, half)


class Erratic(Defender):
    """Sometimes posts something else than its own trees, of the right shape."""

    def __init__(self, oracle: Run, random: Random) -> None:
        super().__init__(oracle)
        self._random = random

    def move(self, state: GameState, answered: Move | None) -> Move:
        move = super().move(state, answered)
        if self._random.random() > 0.05:
            return move
        noise = self._random.randbytes(32)
        if isinstance(move, Descend):
            return replace(move, nodes=(*move.nodes[:-1], noise))
        if isinstance(move, OpenSteps):
            leaves = [self._random.randbytes(32) for _ in range(state.job.segment_steps(state.checkpoint))]
            tree = Tree([*leaves[:-1], state.node])
            return OpenSteps(nodes=first_nodes(tree, state.job), siblings=tuple(tree.proof(len(leaves) - 1)))
        if isinstance(move, OpenChunk):
            return OpenChunk(chunk=self._random.randbytes(len(move.chunk)))
        return move


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(1, 5))
def test_10_an_honest_challenger_wins_against_garbage(random: Random, levels: int, interval: int) -> None:
    run = Run(make_job(levels=levels, interval=interval))
    liar = Garbage(run, random)
    assert liar.run_tree(run.job.checkpoints).root != run.run_tree(run.job.checkpoints).root
    end = duel(liar, Erratic(liar, random), Challenger(run), on_move=check_invariants)
    assert end.verdict is not None
    assert end.verdict.winner is Side.CHALLENGER


class FalseTerms(Defender):
    """Puts leaves of its choice into the accumulator tree, before the true last one."""

    def __init__(self, oracle: Run, change: Callable[[list[bytes]], list[bytes]]) -> None:
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
        assert isinstance(move, OpenTerms)
        return replace(move, nodes=first_nodes(tree, state.job), siblings=tuple(tree.proof(true.count - 1)))


def test_10_padding_of_an_accumulator_tree_must_be_empty() -> None:
    """True leaves, a false element: the first false leaf is the last; a leaf of padding cannot hide that."""
    liar = Liar(JOB, 4, ARGMAX, 0, bend_from=4)
    assert liar.accumulators(4, ARGMAX, 0).count == 5
    end = duel(liar, FalseTerms(liar, lambda x: [*x[:7], b"\1" * 32]), Challenger(HONEST))
    assert end.verdict is not None
    assert (end.verdict.reason, end.position) == (Reason.RECOMPUTED, 4)


@pytest.mark.parametrize(("place", "reason"), [(7, Reason.PADDING), (2, Reason.RECOMPUTED)])
def test_padding_and_leaves_decide_alike_for_a_challenger_that_goes_there(place: int, reason: Reason) -> None:
    """A challenger may dispute any leaf: a spoiled one convicts, also where padding must be empty."""

    class GoesTo(Challenger):
        def pick(self, state: GameState, nodes: Sequence[bytes]) -> int:
            if state.level is not Level.TERMS:
                return super().pick(state, nodes)
            return place >> (state.height - state.levels) & (1 << state.levels) - 1

    liar = Liar(JOB, 4, ARGMAX, 0, bend_from=4)
    spoiled = FalseTerms(liar, lambda x: [*x[:place], b"\1" * 32, *x[place + 1 :]])
    end = duel(liar, spoiled, GoesTo(HONEST))
    assert end.verdict is not None
    assert (end.verdict.winner, end.verdict.reason) == (Side.CHALLENGER, reason)
    if place == 7:
        end = duel(liar, Defender(liar), GoesTo(HONEST))
        assert end.verdict is not None
        assert (end.verdict.winner, end.verdict.reason) == (Side.DEFENDER, Reason.PADDING)


@pytest.mark.parametrize("first", range(4))
def test_a_bent_sum_is_caught_at_the_leaf_where_it_bends(first: int) -> None:
    liar = Liar(JOB, 4, REDUCTION, 0, bend_from=first)
    true = HONEST.encoded(4, REDUCTION, 0)
    assert bend(liar, 4, REDUCTION, 0, true, first)[:first] == true[:first]
    end = duel(liar, Defender(liar), Challenger(HONEST))
    assert end.verdict is not None
    assert (end.verdict.reason, end.level, end.position) == (Reason.RECOMPUTED, Level.TERMS, first)


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_lie_in_any_instruction_ends_at_that_instruction(leaf: int) -> None:
    is_body = leaf < len(program().body)
    element = ordinary_element(1, leaf) if is_body else 0
    liar = Liar(JOB, 1, leaf, element, bend_from=1)
    end = duel(liar, Defender(liar), Challenger(HONEST))
    assert end.verdict is not None
    assert (end.verdict.winner, end.verdict.reason) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert (end.step, end.leaf) == (1, leaf)
    if end.claimed:
        assert end.element == element


def test_7_the_bound_holds_for_the_longest_walk() -> None:
    """One level a move, the deepest trees of this program."""
    job = make_job(levels=1, interval=4)
    liar = Liar(job, 3, ARGMAX, 14, bend_from=4)
    end = duel(liar, Defender(liar), Challenger(Run(job)))
    assert end.moves <= game.max_moves(job)
    # run, steps, values, tensor (of one chunk), chunk, element, terms, proof
    assert end.moves == sum((2 * 1, 2 * 2, 2 * 7, 1, 1, 1, 2 * 3, 1))
