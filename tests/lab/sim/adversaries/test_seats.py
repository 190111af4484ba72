"""Whole games of the adversaries of jobs with seats: what each is paid, and that the promises about seats can break."""

from dataclasses import replace

import pytest

from tests.lab.sim.adversaries.playing import SEATS, of, party, played, result_of
from tiebreak.lab.sim.adversaries.base import Catch
from tiebreak.lab.sim.adversaries.seats import Guessing
from tiebreak.lab.sim.games.line import GameLine
from tiebreak.lab.sim.games.mixes import ALL, Mix
from tiebreak.lab.sim.games.mixes import SEATS as SEATS_DEALT
from tiebreak.lab.sim.games.playing import ADVERSARIES as PLAYED
from tiebreak.lab.sim.games.playing import CATALOGUE, play_line, repertoire
from tiebreak.lab.sim.world.game import TERMS, Cast, CastMember
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.parties.board import PublicJob
from tiebreak.protocol.tags import Digest

pytestmark = pytest.mark.slow

SHARE = TERMS.trainer_stake // 2 // 5


def test_auditors_that_guess_or_copy_a_root_lose_their_bonds() -> None:
    for name in ("seat sealed with a guess", "seal of a seat copied"):
        result = played(name, 4, **SEATS)
        lost = of(result, name).wei
        assert result.catches[name] == Catch.FORFEITED
        assert lost < 0
        assert lost % SEATS["seat_bond"] == 0
        assert of(result, name).steps == 0


def test_seated_auditors_get_their_shares_if_a_trainer_convicts_itself() -> None:
    result = played("self-report in a job with seats", 1, **SEATS)
    trainer, auditor = party(result, "trainer"), party(result, "auditor")
    (puppet,) = (found for found in result.parties if found.name.startswith("puppet"))
    assert auditor.wei > 0
    assert auditor.wei % (SEATS["seat_fee"] + SHARE) == min(TERMS.challenger_stake // 2, SHARE // 16), "and relief"
    assert trainer.wei + puppet.wei <= SHARE - TERMS.trainer_stake + 4 * (SEATS["seat_fee"] + SHARE)


class Cheating(Guessing):
    """Seals the true root, which somebody told it."""

    def root_to_seal(self, job: PublicJob) -> Digest | None:
        return self.world.workshop.honest(job.job).run_root(job.job.checkpoints)


def test_a_seat_fee_paid_without_an_audit_is_a_violation() -> None:
    """Promise 7 can fail: nothing in the rules knows where a root came from."""
    kind = CATALOGUE["seat sealed with a guess"]

    def place(cast: Cast, _rng: object) -> None:
        cast.terms = replace(cast.terms, **SEATS)  # type: ignore[arg-type]
        cast.auditors.append(CastMember(name="told", make=Cheating, adversary=kind.name))

    told = replace(kind, join=place)
    assert any(sentence.startswith("7: seat ") for sentence in result_of(told, 1).violations)


def test_a_game_line_sets_the_number_of_seats() -> None:
    result = play_line("v1 seed=1 game=1 seats=2")
    assert (result.job_status, result.violations) == ("settled", ())
    assert party(result, "auditor").wei == 2 * 10**18, "two fees of a tenth of the reward"
    with pytest.raises(ConfigurationError, match="expected seats=0 under policy logged, got 2"):
        GameLine(seed=1, game=1, workshop="logged", seats=2)
    with pytest.raises(ConfigurationError, match="equivocation: expected a job without seats, got 2"):
        play_line("v1 seed=1 game=1 with=equivocation seats=2")


def test_seats_are_dealt_to_games_that_can_have_them() -> None:
    """Where no head is posted, an adversary that posts heads is none."""
    seated, workshops = repertoire().seated, repertoire().workshops
    lines = [Mix.parse(ALL, repertoire()).deal(3, game, repertoire()) for game in range(120)]
    assert {line.seats for line in lines} == set(SEATS_DEALT)
    assert all(seated.issuperset(line.adversaries) and line.workshop == "exact" for line in lines if line.seats)
    assert {"poisoned-label", "seat-sealed-with-a-guess"} <= seated
    assert "equivocation" not in seated
    assert seated == {slug for slug, kind in PLAYED.items() if kind.seated and slug in workshops}
