"""Whole games of each adversary of `tiebreak.sim.adversaries.collusion`."""

from dataclasses import replace
from random import Random

import pytest
import simpy

from tests.sim.adversaries.playing import HALF, of, party, played, stage
from tiebreak.protocol.chain import ChainError
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.parties.board import PublicJob
from tiebreak.sim.adversaries.base import TRAINER, false_sum, seat_trainer
from tiebreak.sim.adversaries.collusion import BaitingTrainer
from tiebreak.sim.world.agents import Agent, Auditor
from tiebreak.sim.world.cast import TERMS, Cast, Seat
from tiebreak.sim.world.game import play, seat
from tiebreak.sim.world.workshop import Workshop
from tiebreak.sim.world.world import World

CONSPIRACIES = ["bribes all auditors but one", "trainer with a builder", "decoy in the mempool", "sock puppets"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONSPIRACIES)
def test_one_auditor_that_does_as_agreed_convicts_all_of_them(name: str) -> None:
    result = played(name, 1)
    assert (result.watched, result.job_status) == (True, "slashed")
    assert party(result, "auditor").wei == HALF
    conspirators = sum(found.wei for found in result.parties if found.adversary == name)
    lost = [duel for duel in result.duels if duel.challenger != "auditor" and duel.verdict == "trainer"]
    assert len(lost) <= 1
    # What one of them loses to another stays with them, but for the half that burns. It was the second game at once.
    burned = len(lost) * 2 * TERMS.challenger_stake // 2
    assert conspirators == -TERMS.trainer_stake - burned
    assert result.seconds <= 300 + 3 * TERMS.clock + 6 * TERMS.replay_time, "whatever the others do"


def test_a_censored_challenger_wins_later() -> None:
    result = played("trainer with a builder", 2)
    (duel,) = result.duels
    assert (duel.challenger, duel.reason) == ("auditor", "recomputed")
    assert result.seconds > 1000, "it was kept out for most of its clock"


@pytest.mark.slow
def test_puppets_open_games_and_delay_nothing() -> None:
    result = played("sock puppets", 3)
    puppets = [duel for duel in result.duels if duel.challenger.startswith("friend")]
    assert puppets
    assert {duel.verdict for duel in puppets} == {"void"}
    alone = played("bribes all auditors but one", 3)
    assert result.seconds <= alone.seconds + 300


def on_the_pending_state(world: World, sender: Agent, call: Call, *, untried: bool = False) -> simpy.Event:
    """As transactions were once tried: behind all that wait."""
    pending = world.new_pending(sender, call, untried=untried)
    try:
        world._execute(world._draft_of_next(), pending, in_block=untried)
    except ChainError as error:
        pending.done.fail(error)
        return pending.done
    world.pending.append(pending)
    if not world._arrival.triggered:
        world._arrival.succeed()
    return pending.done


@pytest.mark.slow
def test_what_waits_in_the_mempool_holds_nobody_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without looking past what waits, no challenge is ever sent, and no timeout claimed."""
    result = played("decoy in the mempool", 4)
    (duel,) = result.duels
    assert (duel.verdict, duel.reason) == ("challenger", "recomputed")
    monkeypatch.setattr(World, "submit", on_the_pending_state)
    world, agents = seat(stage("decoy in the mempool", Random(4), challenge_window=300), Random(4))
    for agent in agents.values():
        agent.start()
    while world.env.peek() <= 900:
        world.env.step()
    (job,) = world.board.jobs.values()
    assert world.now > job.window_end
    assert not world.board.games, "nobody can challenge any more"


# ---------------------------------------------------------------- bait


@pytest.mark.parametrize("seed", [0, 2], ids=["clock", "stake"])
def test_nobody_who_reads_the_terms_takes_the_bait(seed: int) -> None:
    result = played("bait", seed)
    assert (result.watched, result.false_head, result.job_status) == (False, True, "settled")
    assert result.duels == ()
    assert party(result, "auditor").wei == 0
    assert party(result, "client").wei + party(result, TRAINER).wei == 0, "all that was paid stays with the two"


class Careless(Auditor):
    """Honest, but does not read terms."""

    def objects(self, job: PublicJob) -> bool:
        return False


def test_who_does_not_read_the_terms_loses_its_stake_though_it_is_right() -> None:
    cast = Cast(workshop=Workshop.open("exact"), terms=replace(TERMS, clock=11))
    cast.deviation = false_sum()
    seat_trainer(cast, Random(0), "bait", BaitingTrainer)
    cast.dishonest["client"] = "bait"
    cast.auditors = [Seat(name="careless", make=Careless)]
    result = play(cast, "-", Random(5))
    (duel,) = result.duels
    assert (duel.challenger, duel.verdict, duel.reason, duel.moves) == ("careless", "trainer", "timeout", 1)
    assert party(result, "careless").wei == -TERMS.challenger_stake
    assert party(result, TRAINER).wei == TERMS.reward + TERMS.challenger_stake // 2


# ---------------------------------------------------------------- copies


def test_a_copied_run_is_as_good_as_its_original() -> None:
    result = played("trainer that copies another", 6)
    first, second = party(result, TRAINER), of(result, "trainer that copies another")
    assert (first.wei, second.wei) == (TERMS.reward, TERMS.reward)
    assert party(result, "client").wei == -2 * TERMS.reward
    assert (first.steps, second.steps) == (10, 0)


# ---------------------------------------------------------------- oneself


@pytest.mark.parametrize("name", ["self-challenge to keep the stake", "self-report to keep the stake"])
def test_who_convicts_itself_keeps_half_at_most(name: str) -> None:
    """The burned half is gone, the odd wei with it; the reward goes back; an honest challenger has its stake again."""
    result = played(name, 2)
    (puppet,) = [party for party in result.parties if party.name.startswith("puppet")]
    assert (party(result, "trainer").wei, puppet.wei) == (-TERMS.trainer_stake, HALF)
    assert party(result, "trainer").wei + puppet.wei == -(HALF + 1)
    assert (party(result, "client").wei, party(result, "auditor").wei) == (0, 0)


def test_a_game_against_oneself_delays_by_one_clock() -> None:
    result = played("self-challenge to win time", 2)
    (puppet,) = [party for party in result.parties if party.name.startswith("puppet")]
    assert party(result, "client").wei == TERMS.trainer_stake
    assert party(result, "trainer").wei + puppet.wei == -TERMS.trainer_stake - TERMS.challenger_stake // 2, (
        "half of its stake went from one pocket to the other, and half burned"
    )
    assert result.seconds < 10 * 20 + TERMS.challenge_window + TERMS.clock + 300
