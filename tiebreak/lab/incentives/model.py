"""Closed forms: what every strategy pays, when honesty and diligence are best replies, and the equilibria.

Notation of docs/economics.md: R reward; T, C stakes; W what of T a conviction pays out, half of it; K training, A
audit; x of S segments tampered with, G = K x/S saved; V the lie, k the share of V kept; p, d, n: each of n auditors
audits with probability p and finds with probability d; P = 1 - (1 - p d)^n (`discovery`). With seats: F the fee, B the
bond, f the bought share of the pool, W / (1 + n) each `share`. All are exact, in wei.
The tests pay out the same games event by event (`tests/lab/incentives/rules.py`) and compare.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from tiebreak.lab.incentives.economics import CHEATS, AuditorStrategy, JobEconomics, TrainerStrategy
from tiebreak.protocol.commitments.terms import MAX_GAMES
from tiebreak.protocol.errors import ConfigurationError

ZERO = Fraction(0)
SHARES: Final = 6
RUNNING: Final = (TrainerStrategy.HEDGED, TrainerStrategy.LEAKING)
"""The trainers that report themselves when they are challenged."""


def trainer_payoff(s: JobEconomics, strategy: TrainerStrategy) -> Fraction:
    """The trainer's expected gain. Not taking the job gives 0."""
    if strategy is TrainerStrategy.HONEST:
        # An exact replay of an honest run never differs, so no audit of it ends in a game.
        costs = s.training + s.costs.way + s.costs.settle + s.costs.withdraw
        return s.reward - costs - s.capital(s.trainer_stake, s.job_seconds) + _own_seats(s, strategy)
    if strategy is TrainerStrategy.LEAKING:
        s = _leaked(s)
    common = _own_seats(s, strategy) + s.saved - s.training - s.costs.way - s.capital(s.trainer_stake, s.job_seconds)
    caught = s.kept * s.lie - _loss_if_caught(s, strategy)
    if strategy is TrainerStrategy.SELF:
        return common + caught
    settles = s.reward + s.lie - s.costs.settle - s.costs.withdraw
    if strategy is TrainerStrategy.INSURED:
        common -= s.costs.challenge + s.costs.concede + s.capital(s.challenger_stake, s.game_seconds)
        settles -= s.challenger_stake - s.challenger_stake // 2
    return common + (1 - s.discovery) * settles + s.discovery * caught


def _leaked(s: JobEconomics) -> JobEconomics:
    """The same job, if those that trust the root that they are shown do not audit."""
    return replace(s, audit_probability=s.audit_probability * (1 - s.trusting))


def _own_seats(s: JobEconomics, strategy: TrainerStrategy) -> Fraction:
    """The earnings of the seats that are drawn for the trainer itself: nobody has to replay for them.

    They seal last. If a stranger has found the lie, they seal any other root than the head's, and are paid as if they
    had found it too; a trainer that reports itself at once does the same.
    """
    kept, convicted = (max(ZERO, s.fee + more - s.seat_costs) for more in (0, s.share))
    if not s.seated or strategy is TrainerStrategy.HONEST:
        return s.auditors * s.bought * kept
    found = Fraction(1) if strategy is TrainerStrategy.SELF else _others_find(s)
    return s.auditors * s.bought * (found * convicted + (1 - found) * kept)


def _loss_if_caught(s: JobEconomics, strategy: TrainerStrategy) -> Fraction:
    """The stake and gas that a trainer loses once it is accused."""
    if strategy is TrainerStrategy.NAIVE:
        return s.trainer_stake + s.costs.defence + s.capital(s.trainer_stake, s.game_seconds)
    if strategy is TrainerStrategy.INSURED:
        return Fraction(s.burned_part + s.relief + s.costs.withdraw)
    relief = s.relief if strategy in RUNNING else 0  # to the challenger that it overtakes
    return Fraction(s.burned_part + relief + s.costs.equivocation + s.costs.withdraw)


def first_share(s: JobEconomics) -> Fraction:
    """E[1 / (1 + X)], X ~ Bin(n-1, p d): the chance that a finder is the first of all finders."""
    chance = s.finds
    if not chance or s.auditors == 0:
        return Fraction(1)
    return (1 - (1 - chance) ** s.auditors) / (s.auditors * chance)


def doubling(s: JobEconomics) -> Fraction:
    """E[2^rank] of a finder's game, in stakes: its rank is any of 0 ... X alike, X as above.

    ((1 + q)^n - 1) / (n q), by the integral of E[t^X] from 1 to 2; at most what the last of MAX_GAMES games costs.
    """
    chance = s.finds
    if not chance or s.auditors == 0:
        return Fraction(1)
    return min(((1 + chance) ** s.auditors - 1) / (s.auditors * chance), Fraction(1 << MAX_GAMES - 1))


def finder_payoff(s: JobEconomics, strategy: TrainerStrategy) -> Fraction:
    """The expected gain from a challenge for an auditor that has found this cheat's lie, without replays."""
    first, late = first_share(s), s.costs.challenge + s.costs.reclaim + s.costs.withdraw
    if strategy is TrainerStrategy.NAIVE:
        # What the first pays the others as relief, each of them is as likely to be paid.
        won = s.share - s.costs.prosecution - s.costs.withdraw
        return first * won - (1 - first) * late - doubling(s) * s.capital(s.challenger_stake, s.game_seconds)
    return ZERO if strategy is TrainerStrategy.SELF else first * (s.relief - late)


def _others_find(s: JobEconomics) -> Fraction:
    """The probability that one of the other n-1 auditors finds a lie."""
    return 1 - (1 - s.finds) ** max(s.auditors - 1, 0)


def _false_challenge(s: JobEconomics, strategy: TrainerStrategy) -> Fraction:
    """The gain of a challenge without a replay that is then left to time out.

    Against a cheat that runs away, the stake comes back.
    """
    if strategy in (*RUNNING, TrainerStrategy.INSURED):
        return Fraction(s.relief - overtaken_gas(s))
    if strategy is TrainerStrategy.SELF:
        return ZERO
    return -(s.costs.challenge + s.challenger_stake + s.capital(s.challenger_stake, s.game_seconds))


def auditor_payoff(s: JobEconomics, own: AuditorStrategy, strategy: TrainerStrategy, lies: Fraction) -> Fraction:
    """An auditor's expected gain from a job. `lies`: the share of jobs that are this cheat's.

    `strategy` HONEST: the only lies are planted ones.
    """
    if strategy is TrainerStrategy.HONEST and lies:
        raise ConfigurationError(f"lies: expected 0 of an honest trainer, got {lies}")
    return s.planted * _of_decoy(s, own) + (1 - s.planted) * (
        lies * _of_job(s, own, strategy) + (1 - lies) * _of_job(s, own, TrainerStrategy.HONEST)
    )


def _of_seat(s: JobEconomics, own: AuditorStrategy, strategy: TrainerStrategy) -> Fraction:
    """The gain of the holder of a seat. Whoever seals a root that is not right can lose the bond."""
    if strategy is TrainerStrategy.SELF or own is AuditorStrategy.LAZY:
        return ZERO  # the job is over before a root is sealed, or the seat stays empty
    lost = s.bond + s.seat_costs - s.costs.claim  # what is not paid is not claimed
    if own is AuditorStrategy.COPYING:  # a seal names its auditor, so the copier cannot open it
        return -lost * (1 - (1 - (1 - s.bought) * s.audit_probability) ** (s.auditors - 1))
    s = _leaked(s) if strategy is TrainerStrategy.LEAKING else s
    is_lie = strategy is not TrainerStrategy.HONEST
    if own is AuditorStrategy.DILIGENT:
        return s.fee - s.audit - s.seat_costs + (s.share + finder_payoff(s, strategy) if is_lie else 0)
    found = _others_find(s) if is_lie else ZERO
    if own is AuditorStrategy.GUESSING:
        return found * (s.fee + s.share - s.seat_costs) - (1 - found) * lost
    return (1 - found) * s.fee - s.seat_costs if strategy is TrainerStrategy.LEAKING else ZERO


def _of_job(s: JobEconomics, own: AuditorStrategy, strategy: TrainerStrategy) -> Fraction:
    if s.seated and own is not AuditorStrategy.FALSE:
        return _of_seat(s, own, strategy)
    if own is AuditorStrategy.DILIGENT:
        if strategy is TrainerStrategy.SELF:
            return ZERO  # the job is over before anybody could audit it
        if strategy is TrainerStrategy.HONEST:
            return s.fee - s.replay
        return s.fee - s.replay + s.detection * (finder_payoff(s, strategy) - s.second_replay)
    if own is AuditorStrategy.FALSE:
        return _false_challenge(s, strategy)
    if own is AuditorStrategy.COPYING and strategy is TrainerStrategy.NAIVE:
        # It ends after the original, with relief, and is the last of all games: E[2^X; X > 0] stakes. The games of
        # other cheats are over before a copy could be made.
        others, chance = max(s.auditors - 1, 0), s.finds
        stakes = min((1 + chance) ** others - (1 - chance) ** others, Fraction(1 << MAX_GAMES - 1))
        gas = s.costs.prosecution + s.costs.reclaim + s.costs.withdraw
        return _others_find(s) * (s.relief - gas) - stakes * s.capital(s.challenger_stake, s.game_seconds)
    return ZERO


def _of_decoy(s: JobEconomics, own: AuditorStrategy) -> Fraction:
    """The gain from a decoy, which concedes to the first true challenge and lets a false one time out."""
    if own is AuditorStrategy.DILIGENT:
        # An audit may draw any segment of a decoy, and the number of false ones is x, as for a cheat.
        won = s.share - s.costs.challenge - s.costs.withdraw
        return s.fee - s.replay + s.detection * (first_share(s) * won - s.second_replay)
    return _false_challenge(s, TrainerStrategy.HONEST) if own is AuditorStrategy.FALSE else ZERO


def extremes(s: JobEconomics) -> tuple[JobEconomics, ...]:
    """The smallest and the largest cheat. P is concave in x and the gain is linear, so no other pays more than both."""
    return tuple(replace(s, tampered=x) for x in sorted({1, s.segments}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition that holds if `slack` >= 0. `name` says what is compared, `binds` which case is the tightest."""

    name: str
    slack: Fraction
    binds: str = ""

    @property
    def holds(self) -> bool:
        """Ties count as holding, because a deviation that gains nothing is not worth it."""
        return self.slack >= 0


def best_cheat(s: JobEconomics, cheats: Iterable[TrainerStrategy] = CHEATS) -> tuple[Fraction, TrainerStrategy, int]:
    """(payoff, strategy, tampered segments) of the cheat that pays most; among equals, the safest."""
    found = (
        (trainer_payoff(at, cheat), -_loss_if_caught(at, cheat), cheat, at) for at in extremes(s) for cheat in cheats
    )
    payoff, _, strategy, at = max(found, key=lambda entry: entry[:2])
    return payoff, strategy, at.tampered


def participation(s: JobEconomics) -> Condition:
    """An honest trainer does not lose by taking the job, even if it owns no seat."""
    return Condition(name="honest training pays", slack=trainer_payoff(replace(s, bought=ZERO), TrainerStrategy.HONEST))


def honesty(s: JobEconomics) -> Condition:
    """No way to cheat, on any share of the work, pays more than honest training."""
    payoff, strategy, tampered = best_cheat(s)
    slack = trainer_payoff(s, TrainerStrategy.HONEST) - payoff
    return Condition(name="no cheat pays more", slack=slack, binds=f"{strategy}; {tampered} of {s.segments} segments")


def stuffing(s: JobEconomics) -> Condition:
    """No larger share of the pool, paid for with the capital of more slots, makes a lie pay.

    The shares of all others are halved in turn: with n = 1 the best cut is `1 - bought` times sqrt(v / (v + L)), L what
    a conviction costs, and the loss about it is flat.
    """
    found = []
    for halvings in range(1, SHARES):
        share = 1 - (1 - s.bought) / (1 << halvings)
        payoff, strategy, _ = best_cheat(replace(s, bought=share))
        found.append((payoff - s.buying(share), f"{strategy}; {float(share):.0%} of the pool"))
    payoff, binds = max(found)
    slack = trainer_payoff(s, TrainerStrategy.HONEST) - payoff
    return Condition(name="no larger share of the pool makes a lie pay", slack=slack, binds=binds)


def perseverance(s: JobEconomics) -> Condition:
    """An honest trainer that has accepted the job does not gain by leaving it alone."""
    slack = participation(s).slack + s.trainer_stake
    return Condition(name="going on pays more than giving the stake up", slack=slack)


def diligence(s: JobEconomics) -> Condition:
    """An audit pays at least as well as anything else that an auditor can do, if every trainer is honest."""
    own = auditor_payoff(s, AuditorStrategy.DILIGENT, TrainerStrategy.HONEST, ZERO)
    others = [
        (auditor_payoff(s, other, TrainerStrategy.HONEST, ZERO), other)
        for other in AuditorStrategy
        if other != AuditorStrategy.DILIGENT
    ]
    best, other = max(others, key=lambda found: found[0])
    return Condition(name="auditing pays, with all trainers honest", slack=own - best, binds=str(other))


def disbelief(s: JobEconomics) -> Condition:
    """A root that the trainer shows before it must is worth less than an audit, for whoever takes it for a cheat's.

    It may be taken so because no honest trainer gains by showing one. All other seats are assumed to seal what they
    are shown.
    """
    at = replace(s, trusting=Fraction(1), audit_probability=Fraction(1))
    own, trusting = (
        auditor_payoff(at, own, TrainerStrategy.LEAKING, Fraction(1))
        for own in (AuditorStrategy.DILIGENT, AuditorStrategy.TRUSTING)
    )
    return Condition(name="auditing pays more than a root that the trainer shows", slack=own - trusting)


def overtaken_gas(s: JobEconomics) -> int:
    """Gas of starting a game, and of fetching its stake when it was cut short."""
    return s.costs.challenge + s.costs.reclaim + s.costs.withdraw


def victims_loss(s: JobEconomics) -> Fraction:
    """An honest trainer's loss in a game that is walked to its end: its gas, and the delay of reward and stake."""
    return s.costs.defence + s.capital(s.reward + s.trainer_stake, s.game_seconds)


def conditions(s: JobEconomics) -> tuple[Condition, ...]:
    """Every condition. Decoys and fees count."""
    return participation(s), *conditions_once_accepted(s)


def conditions_once_accepted(s: JobEconomics) -> tuple[Condition, ...]:
    """The conditions that matter once a trainer has accepted the job."""
    seats = (disbelief(s), stuffing(s)) if s.seated else ()
    return (
        honesty(s), diligence(s), *seats,
        Condition(name="a false challenge costs", slack=-_false_challenge(s, TrainerStrategy.HONEST)),
        # all costs of an honest trainer in a game that is walked to its end
        Condition(name="a false challenge pays its victim", slack=s.challenger_stake // 2 - victims_loss(s)),
        # the gas of having started a game that another conviction, or a report, cuts short
        Condition(name="a challenger that is overtaken loses no gas", slack=Fraction(s.relief - overtaken_gas(s))),
    )  # fmt: skip


# ---------------------------------------------------------------- harm for its own sake


@dataclass(frozen=True, slots=True, kw_only=True)
class Griefing:
    """An attack in wei: the attacker's loss, the harm that its victims spend or forgo, and what they are paid."""

    attack: str
    attacker: Fraction
    harm: Fraction
    compensation: Fraction

    @property
    def factor(self) -> Fraction | None:
        """The cost of a wei of harm to the attacker; None if there is no harm."""
        return self.attacker / self.harm if self.harm else None


CROWD: Final = 4
"""The number of games at once that are compared with one."""


def griefing(s: JobEconomics) -> tuple[Griefing, ...]:
    """The attacks of challengers and trainers that want nothing but the loss of others.

    A false challenge is left to time out, or walked to its end; in a series, all cost the same. Several challenges
    delay the job only once: games can start until the window ends, and they run side by side. `CROWD` of them at once,
    by a stranger, or by the trainer, make the next one cost 2^`CROWD` stakes: each costs twice the one before, and half
    of it burns.
    """
    late, seat = s.capital(s.reward + s.trainer_stake, s.game_seconds), s.fee + s.share if s.seated else 0
    rows: dict[str, tuple[Fraction | int, Fraction | int, Fraction | int]] = {}
    for words, stake in (("this stake", s.challenger_stake), ("no stake", 0)):
        lost = stake + s.capital(stake, s.game_seconds)
        silence = s.costs.answer + s.costs.timeout + late
        rows[f"false challenge, {words}, then silence"] = s.costs.challenge + lost, silence, stake // 2
        rows[f"false challenge, {words}, to the end"] = s.costs.prosecution + lost, victims_loss(s), stake // 2
    stakes = ((1 << CROWD) - 1) * s.challenger_stake
    kept, locked = sum((s.challenger_stake << rank) // 2 for rank in range(CROWD)), s.capital(stakes, s.game_seconds)
    crowd = CROWD * s.costs.challenge + stakes + locked
    rows[f"{CROWD} false challenges at once, then silence"] = (
        crowd,
        CROWD * (s.costs.answer + s.costs.timeout) + late,
        kept,
    )
    rows[f"a challenge made {1 << CROWD} times as dear by the trainer"] = crowd - kept, locked, 0
    rows["a lie defended to the last second, and lost"] = (
        s.trainer_stake + s.costs.defence + s.capital(s.trainer_stake, s.game_seconds),
        s.costs.prosecution + s.costs.withdraw + s.capital(s.challenger_stake + s.reward, s.game_seconds),
        s.share + seat,
    )
    rows["a lie, reported by itself once challenged"] = (
        _loss_if_caught(s, TrainerStrategy.HEDGED),
        s.replay + overtaken_gas(s),
        s.relief + seat,
    )
    rows["a job accepted and left alone"] = (
        s.trainer_stake + s.costs.way,
        s.costs.offer + s.capital(s.reward, s.job_seconds),
        s.trainer_stake,
    )
    return tuple(
        Griefing(attack=attack, attacker=Fraction(attacker), harm=Fraction(harm), compensation=Fraction(paid))
        for attack, (attacker, harm, paid) in rows.items()
    )


# ---------------------------------------------------------------- the verifier's dilemma
# How often trainers lie and auditors audit when neither can gain by changing. All auditors are alike, and a cheat is
# the one that pays the trainer most. `deterrent` says how often each auditor must audit before honesty pays. Below
# that every trainer cheats, above it none does. The gain of an auditor falls with the probability p with which the
# others audit, because finders share.

GRID: Final = 1 << 48
"""A probability that is a root is given as the least sufficient multiple of 1 / GRID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equilibrium:
    """`lies`: share of jobs whose trainer cheats. `discovery`: the probability that a lie is found."""

    lies: Fraction
    audit_probability: Fraction
    discovery: Fraction
    cheat: TrainerStrategy
    tampered: int

    @property
    def accepted(self) -> Fraction:
        """Share of all jobs that settle although they are false."""
        return self.lies * (1 - self.discovery)


def least(holds: Callable[[Fraction], bool]) -> Fraction | None:
    """The least multiple of 1 / GRID up to 1 from which on a condition holds; None if it fails at 1."""
    first = bisect_left(range(GRID + 1), True, key=lambda part: holds(Fraction(part, GRID)))
    return Fraction(first, GRID) if first <= GRID else None


def deterrent(s: JobEconomics) -> tuple[Fraction, TrainerStrategy, int] | None:
    """(p*, strategy, tampered): how often each auditor must audit, and for which cheat.

    None if always is not enough.
    """
    honest = trainer_payoff(s, TrainerStrategy.HONEST)
    found: tuple[Fraction, TrainerStrategy, int] | None = None
    for at in extremes(s):
        for strategy in CHEATS:
            p = least(
                lambda p, at=at, strategy=strategy: (  # type: ignore[misc]
                    trainer_payoff(replace(at, audit_probability=p), strategy) <= honest
                )
            )
            if p is None:
                return None
            if found is None or p > found[0]:
                found = p, strategy, at.tampered
    return found


def advantage(
    s: JobEconomics, p: Fraction, lies: Fraction, cheat: tuple[TrainerStrategy, int], interest: int = 0
) -> Fraction:
    """The gain of an audit over laziness if the others audit with probability p.

    interest: what discovering a lie saves the auditor besides, such as reward and harm for a client that audits itself.
    """
    strategy, tampered = cheat if lies else (TrainerStrategy.HONEST, cheat[1])
    at = replace(s, audit_probability=p, tampered=tampered)
    diligent, lazy = (
        auditor_payoff(at, own, strategy, lies) for own in (AuditorStrategy.DILIGENT, AuditorStrategy.LAZY)
    )
    found = (1 - at.planted) * lies * at.detection if strategy is not TrainerStrategy.SELF else 0
    return diligent - lazy + found * interest


def solve(s: JobEconomics, interest: int = 0) -> Equilibrium:
    """The symmetric equilibrium; if there are several, the one with the most audits.

    If all trainers lie, and auditing pays against one cheat but not against the next, `audit_probability` is where both
    pay the trainer the same, and trainers mix them.
    """

    def at(p: Fraction, lies: Fraction, cheat: tuple[TrainerStrategy, int]) -> Equilibrium:
        found = replace(s, audit_probability=p, tampered=cheat[1]).discovery
        return Equilibrium(lies=lies, audit_probability=p, discovery=found, cheat=cheat[0], tampered=cheat[1])

    def cheat_at(p: Fraction) -> tuple[TrainerStrategy, int]:
        _, strategy, tampered = best_cheat(replace(s, audit_probability=p))
        return strategy, tampered

    def all_lie(p: Fraction) -> bool:
        """Whether auditing no longer pays although every trainer cheats."""
        return advantage(s, p, Fraction(1), cheat_at(p), interest) <= 0

    one, none = Fraction(1), Fraction(0)
    bound = deterrent(s)
    if bound is None:
        p = least(all_lie)
        p = one if p is None else p
        return at(p, one, cheat_at(p))
    enough, cheat = bound[0], (bound[1], bound[2])
    if advantage(s, one, none, cheat, interest) >= 0:
        return at(one, none, cheat)
    lazy = advantage(s, enough, none, cheat, interest)
    if lazy > 0:
        p = least(lambda p: advantage(s, p, none, cheat, interest) <= 0)
        return at(one if p is None else p, none, cheat)
    busy = advantage(s, enough, one, cheat, interest)
    if busy >= 0 and busy > lazy:
        return at(enough, -lazy / (busy - lazy), cheat)
    p = least(all_lie)
    p = enough if p is None else min(p, enough)
    return at(p, one, cheat_at(p))
