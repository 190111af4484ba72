"""Clocks, replay time and concession: invariants 5, 6 and 12, and 9 and 10 under delays."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.bounds import max_moves
from tests.protocol.runs import CLOCK, GAME, REPLAY, SECRET, Run, make_job
from tests.protocol.walks import WALKS, Erratic, Garbage, RandomChallenger, at, check_invariants
from tiebreak.protocol.errors import IllegalMove
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.moves import Concede, Phase, Side
from tiebreak.protocol.game.rules import GameState, Level, Reason
from tiebreak.protocol.game.sides import Challenger, Defender, Party


@pytest.mark.parametrize("name", ["terms", "commit", "state source"])
def test_6_exactly_one_of_move_and_timeout_is_legal(name: str, cases: Callable[[], None]) -> None:
    allowed = Counter[int]()
    for state, move, _ in WALKS[name]:
        state = replace(state, last=1000, moved=1000, defender_rest=70, challenger_rest=30)
        rest = 70 if state.mover is Side.DEFENDER else 30
        last = 1000 + state.allowance + rest
        assert (state.rest, state.deadline) == (rest, last)
        allowed[state.allowance] += 1
        first = 1000 + (CLOCK if state.phase is Phase.PROVE else 0)
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
    assert set(allowed) == {0, REPLAY, CLOCK}


def test_5_time_does_not_run_backward() -> None:
    state, move = at("terms", Phase.DESCEND)
    state = replace(state, last=50, moved=50)
    with pytest.raises(IllegalMove, match="not before 50, got 49"):
        game.apply(state, move, 49)
    with pytest.raises(IllegalMove, match="not before 50, got 49"):
        game.timeout(state, 49)


@pytest.mark.parametrize("name", WALKS)
def test_12_who_replays_has_an_allowance(name: str) -> None:
    """As the specification lists them: three openings, and the first selection in the trees that they open."""
    told = {
        (Phase.OPEN_STEPS, Level.RUN), (Phase.SELECT, Level.STEPS), (Phase.OPEN_VALUES, Level.STEPS),
        (Phase.SELECT, Level.VALUES), (Phase.OPEN_TERMS, Level.CHUNKS), (Phase.SELECT, Level.TERMS),
    }  # fmt: skip
    seen = Counter[tuple[Phase, Level]]()
    for state, _, _ in WALKS[name]:
        place = (state.phase, state.level)
        waits = CLOCK if state.phase is Phase.PROVE else 0
        assert state.allowance == (REPLAY if place in told and not seen[place] else waits), place
        seen[place] += 1
    assert max(seen[place] for place in told if place[0] is not Phase.SELECT) == 1
    if name == "terms":
        assert set(seen) > told
        assert seen[Phase.SELECT, Level.VALUES] > 1


def test_12_the_bound_is_reached_and_not_passed() -> None:
    """Every move as late as it may be: at its allowance, until a side's last one eats its clock."""
    steps = WALKS["terms"]
    state = steps[0][0]
    start = state.last
    last_of = {side: max(k for k, (s, _, _) in enumerate(steps) if s.mover is side) for side in Side}
    for number, (_, move, _) in enumerate(steps[:-1]):
        late = state.rest if number == last_of[state.mover] else 0
        state = game.apply(state, move, state.last + state.allowance + late)
    assert state.phase is Phase.PROVE
    assert (state.defender_rest, state.challenger_rest) == (0, CLOCK)
    bound = start + 3 * CLOCK + 6 * REPLAY + 1
    assert state.deadline == bound - 1
    with pytest.raises(IllegalMove):
        game.timeout(state, bound - 1)
    assert game.timeout(state, bound).is_over


# ---------------------------------------------------------------- conceding


@pytest.mark.parametrize("name", WALKS)
def test_whoever_is_to_move_may_concede_and_loses(name: str, cases: Callable[[], None]) -> None:
    for state, _, _ in WALKS[name]:
        for now in (state.last, state.deadline, state.deadline + 1):
            after = game.apply(state, Concede(), now)
            check_invariants(state, Concede(), after)
            assert (after.verdict.winner, after.verdict.reason) == (state.mover.other, Reason.CONCEDED)
            assert after.verdict.detail == f"the {state.mover.name.lower()} conceded in phase {state.phase.name}"
            assert after.moves == state.moves + 1
            cases()
        if state.last:
            with pytest.raises(IllegalMove, match="not before"):
                game.apply(state, Concede(), state.last - 1)


# ---------------------------------------------------------------- 9 and 10 under delays


class Slow:
    """When a side moves: a hostile one as late as it likes, or never; an honest one in time."""

    def __init__(self, random: Random, honest: Side) -> None:
        self._random = random
        self._honest = honest

    def instant(self, state: GameState) -> int | None:
        """None: not any more."""
        soonest = state.last + (state.phase is Phase.PROVE) * CLOCK
        if state.mover is self._honest:
            # At most two seconds of its clock a move: there is enough for every game.
            return self._random.randint(soonest, state.last + state.allowance + 2)
        latest = min(self._random.choice([state.last + state.allowance + 1, state.deadline]), state.deadline)
        if latest < soonest or self._random.random() < 0.02:
            return None
        return self._random.choice([soonest, latest, self._random.randint(soonest, latest)])

    def concedes(self, state: GameState) -> bool:
        return state.mover is not self._honest and self._random.random() < 0.02


def slow_duel(run: Run, parties: dict[Side, Party], slow: Slow) -> tuple[GameState, int]:
    """A game in its own time, to its verdict and the instant of that."""
    state, answered = game.start(run.job, run.head().head, GAME, 1000), None
    allowed = Counter[Side]()
    while not state.is_over:
        now = slow.instant(state)
        if now is None:
            with pytest.raises(IllegalMove):
                game.timeout(state, state.deadline)
            return game.timeout(state, state.deadline + 1), state.deadline + 1
        allowed[state.mover] += state.allowance > 0 and state.phase is not Phase.PROVE
        assert allowed[state.mover] <= 3  # invariant 12
        answered = Concede() if slow.concedes(state) else parties[state.mover].move(state, answered)
        before, state = state, game.apply(state, answered, now)
        check_invariants(before, answered, state)
    return state, state.last


def check_end(state: GameState, end: int, winner: Side) -> None:
    assert state.verdict.winner is winner, state.verdict
    assert 1000 <= end <= 1000 + 3 * CLOCK + 6 * REPLAY + 1  # invariant 12
    assert state.moves <= max_moves(state.job)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(1, 5))
def test_9_and_12_an_honest_defender_in_time_never_loses(random: Random, levels: int, interval: int) -> None:
    run = Run(make_job(levels=levels, interval=interval))
    parties: dict[Side, Party] = {Side.DEFENDER: Defender(run), Side.CHALLENGER: RandomChallenger(run, random)}
    check_end(*slow_duel(run, parties, Slow(random, Side.DEFENDER)), Side.DEFENDER)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(1, 5))
def test_10_and_12_an_honest_challenger_in_time_never_loses(random: Random, levels: int, interval: int) -> None:
    run = Run(make_job(levels=levels, interval=interval))
    liar = Garbage(run, random)
    parties: dict[Side, Party] = {Side.DEFENDER: Erratic(liar, random), Side.CHALLENGER: Challenger(run, SECRET)}
    check_end(*slow_duel(liar, parties, Slow(random, Side.CHALLENGER)), Side.CHALLENGER)
