"""Whole games of builders that delay and reorder; the second at which a censored party begins to lose."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tests.lab.sim.adversaries.playing import party, played, stage
from tiebreak.lab.sim.adversaries import blocks
from tiebreak.lab.sim.adversaries.base import TRAINER, builder
from tiebreak.lab.sim.adversaries.mempool import Censor, victims_in, with_something_to_dispute
from tiebreak.lab.sim.games.playing import CATALOGUE
from tiebreak.lab.sim.world.game import TERMS, Cast, GameResult, play, seat
from tiebreak.lab.sim.world.small_task import STEPS
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.lab.sim.world.world import Pending, World
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game.moves import Phase
from tiebreak.protocol.parties import turns

# ---------------------------------------------------------------- who has to wait


def longer_than_all(cast: Cast, _rng: Random) -> int:
    """The seconds of a censorship that outlasts the clock and all windows."""
    return 4 * (cast.terms.challenge_window + cast.terms.clock + cast.terms.replay_time)


def in_a_game(cast: Cast, rng: Random) -> int:
    """One of the victims' transactions in a game, or the challenge."""
    trainer = TRAINER in victims_in(cast, rng)
    return 6 if trainer else rng.randint(0, 2)  # by then it has accepted the job and posted four heads


LASTING = builder(
    "censorship above the clock", Censor, "that the censored side loses a game by its clock", (),
    before=with_something_to_dispute, victims=victims_in, seconds=longer_than_all, first=in_a_game,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1], ids=["auditor", "trainer"])
def test_a_side_censored_for_longer_than_its_clock_loses(seed: int) -> None:
    """This is no promise: it says what the assumption is worth."""
    rng = Random(seed)
    cast = Cast(workshop=Workshop.open("exact"))
    LASTING.join(cast, rng)
    result = play(cast, "-", rng)
    if "one false sum" in result.catches:
        assert (result.job_status, party(result, "auditor").wei) == ("settled", -TERMS.challenger_stake)
        assert [sentence[0] for sentence in result.violations] == ["1", "2"]
    else:
        assert (result.job_status, party(result, TRAINER).wei) == ("slashed", -TERMS.trainer_stake)
        assert [sentence[0] for sentence in result.violations] == ["1", "1"]


# ---------------------------------------------------------------- the second at which it begins

QUICK = replace(TERMS, clock=90, replay_time=40, challenge_window=120, audit_time=0, descent_levels=5)
"""A block every second and a step of a second, so what is measured has no grid; no audit time, so the window ends."""
Trigger = Callable[[World, Pending], int | None]


class Measured(Censor):
    """Begins with one transaction, and notes how long that may wait."""

    bears: int
    """Bears down on it until its deadline."""
    later: int
    """Moves that its sender makes after it without an allowance: each takes the one second of a block."""

    def __init__(
        self, world: World, name: str, key: PrivateKey, *, victim: str, seconds: int, trigger: Trigger
    ) -> None:
        super().__init__(world, name, key)
        self.victims, self.seconds, self.trigger = frozenset({victim}), seconds, trigger
        type(self).later = 0

    def begins(self, pending: Pending) -> bool:
        deadline = self.trigger(self.world, pending)
        if deadline is None:
            return False
        type(self).bears = deadline - pending.at
        return True

    def on_pending(self, pending: Pending) -> None:
        begun, game_id = self.began is not None, pending.call.game_id
        super().on_pending(pending)
        if begun and pending.sender.name in self.victims and pending.call.move is not None and game_id is not None:
            type(self).later += self.world.board.games[game_id].state.allowance == 0


def in_phase(phase: Phase) -> Trigger:
    def trigger(world: World, pending: Pending) -> int | None:
        move, game_id = pending.call.move, pending.call.game_id
        if move is None or move.KIND is not phase or game_id is None:
            return None
        return world.board.games[game_id].state.deadline

    return trigger


def of_kind(kind: str) -> Trigger:
    def trigger(world: World, pending: Pending) -> int | None:
        (job,) = world.board.jobs.values() or (None,)
        return job.window_end if job is not None and pending.call.kind == kind else None

    return trigger


def censored(victim: str, trigger: Trigger, seconds: int) -> GameResult:
    cast = Cast(workshop=Workshop.open("exact"), terms=QUICK, block_seconds=1, step_seconds=1)
    CATALOGUE["challenge by a wrong replay" if victim == TRAINER else "one false sum"].join(cast, Random(7))
    cast.builder = lambda world, name, key: Measured(world, name, key, victim=victim, seconds=seconds, trigger=trigger)
    cast.dishonest["builder"] = "censorship below the clock"
    return play(cast, "-", Random(7))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "trigger", "allowance", "moves_before"),
    [(TRAINER, in_phase(Phase.OPEN_STEPS), QUICK.replay_time, 1), ("auditor", in_phase(Phase.PROVE), 0, None)],
    ids=["open steps", "prove"],
)
def test_a_move_may_be_censored_for_exactly_its_clock_and_allowance(
    victim: str, trigger: Trigger, allowance: int, moves_before: int | None
) -> None:
    """`moves_before`: of this side, without an allowance: each took the one second of a block, as later ones do."""
    assert censored(victim, trigger, 0).violations == ()
    bears = Measured.bears - Measured.later
    if moves_before is not None:
        assert bears == QUICK.clock + allowance - moves_before - Measured.later
    assert censored(victim, trigger, bears).violations == ()
    beyond = censored(victim, trigger, bears + 1)
    assert any(sentence.startswith("1: ") for sentence in beyond.violations), "the assumption is broken"
    assert beyond.duels[0].reason == "timeout"


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "kind"), [(TRAINER, "postHead"), ("auditor", "challenge")])
def test_heads_and_challenges_may_be_censored_for_exactly_the_window(victim: str, kind: str) -> None:
    trigger = of_kind(kind)
    assert censored(victim, trigger, 0).violations == ()
    assert QUICK.challenge_window - 2 * STEPS <= Measured.bears <= QUICK.challenge_window
    bears = Measured.bears
    assert censored(victim, trigger, bears).violations == ()
    assert censored(victim, trigger, bears + 1).violations != ()


# ---------------------------------------------------------------- whoever owns or floods the hub


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_hub_that_is_silent_for_ever_costs_nobody_a_game(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for an answer goes to the chain in time, from the first block of a game on."""
    monkeypatch.setattr(blocks.StallingHub, "late", lambda self, *_: None if self.began is not None else 0)
    result = played("hub that stalls", seed, talk_time=600)
    assert result.duels


def test_flooding_the_hub_delays_other_posts_by_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A post of a game has its turn after one of each address, any other in an `OTHERS`th of the batches at worst."""
    cast = stage("strangers who flood the hub", Random(1))
    world, agents = seat(cast, Random(1))
    found = agents["builder"]
    assert isinstance(found, blocks.Flooding)
    monkeypatch.setattr(world.board, "jobs", {"a job": None})
    found.addresses, found.games = 400, (True, False)
    waits = [found.late(kind) for kind in ("game", "job", "run")]
    assert waits == [7, 56, 56]
    monkeypatch.setattr(turns, "OTHERS", 1 << 60)
    assert found.late("job") is None
