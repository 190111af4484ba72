"""What it costs to harm others: the attacker's loss compared with the victims', before any compensation."""

from dataclasses import dataclass, replace
from fractions import Fraction

from tiebreak.sim.incentives.model import victims_loss
from tiebreak.sim.incentives.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Griefing:
    """attacker: wei that it loses. harm: wei that its victims spend or forgo. compensation: wei that they are paid."""

    attack: str
    attacker: Fraction
    harm: Fraction
    compensation: Fraction

    @property
    def factor(self) -> Fraction | None:
        """What a wei of harm costs the attacker; None if there is no harm."""
        return self.attacker / self.harm if self.harm else None


def false_challenges(s: Setting, words: str) -> tuple[Griefing, Griefing]:
    """A false challenge that is left to time out, and one that is walked to its end. In a series, all cost the same.

    Several challenges delay the job only once: games can start until the window ends, and they run side by side.
    """
    locked = s.capital(s.challenger_stake, s.game_seconds)
    late = s.capital(s.reward + s.trainer_stake, s.game_seconds)
    silent = Griefing(
        attack=f"false challenge, {words}, then silence",
        attacker=s.costs.challenge + s.challenger_stake + locked,
        harm=s.costs.answer + s.costs.timeout + late,
        compensation=Fraction(s.challenge_to_trainer),
    )
    walked = Griefing(
        attack=f"false challenge, {words}, to the end",
        attacker=s.costs.prosecution + s.challenger_stake + locked,
        harm=victims_loss(s),
        compensation=Fraction(s.challenge_to_trainer),
    )
    return silent, walked


def griefing(s: Setting) -> tuple[Griefing, ...]:
    """The attacks of challengers and trainers that want nothing but the loss of others."""
    stalled = s.capital(s.challenger_stake, s.game_seconds) + s.capital(s.reward, s.game_seconds)
    return (
        *false_challenges(s, "this stake"),
        *false_challenges(replace(s, challenger_stake=0), "no stake"),
        Griefing(
            attack="a lie defended to the last second, and lost",
            attacker=s.trainer_stake + s.costs.defence + s.capital(s.trainer_stake, s.game_seconds),
            harm=s.costs.prosecution + s.costs.withdraw + stalled,
            compensation=Fraction(s.prover_part),
        ),
        Griefing(
            attack="a lie, reported by itself once challenged",
            attacker=Fraction(s.burned_part + s.costs.equivocation + s.costs.withdraw),
            harm=s.replay + s.costs.challenge + s.costs.reclaim + s.costs.withdraw,
            compensation=Fraction(s.prover_part if s.oldest_paid else 0),
        ),
        Griefing(
            attack="a job accepted and left alone",
            attacker=Fraction(s.trainer_stake + s.costs.way),
            harm=s.costs.offer + s.capital(s.reward, s.job_seconds),
            compensation=Fraction(s.trainer_stake),
        ),
    )
