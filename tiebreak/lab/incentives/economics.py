"""Every number of one job that decides who gains what, and what its parties may choose. Wei and seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fractions import Fraction
from math import prod
from typing import Final, Self

from tiebreak.protocol.commitments.terms import MAX_GAMES

MOST_AUDITORS: Final = 1000


class TrainerStrategy(StrEnum):
    HONEST = "honest"
    NAIVE = "cheats, plays on when challenged"
    HEDGED = "cheats, reports itself when challenged"
    INSURED = "cheats, challenges itself before others can"
    SELF = "cheats, reports itself at once"
    LEAKING = "cheats, shows its root to the seats"


class AuditorStrategy(StrEnum):
    DILIGENT = "diligent"
    LAZY = "lazy"
    COPYING = "copies a challenge"
    FALSE = "false challenger"
    GUESSING = "seals a guess"
    TRUSTING = "seals the root that the trainer shows"


CHEATS: Final = (
    TrainerStrategy.NAIVE,
    TrainerStrategy.HEDGED,
    TrainerStrategy.INSURED,
    TrainerStrategy.SELF,
    TrainerStrategy.LEAKING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCosts:
    """The costs of transactions in wei: measured gas times a gas price.

    offer: create the job. way: accept it, and post every head. settle, withdraw, challenge, reclaim, concede, timeout,
    equivocation, seal, claim: one transaction each, the last two for a seat. defence, prosecution: all transactions of
    the defender or the challenger in a game that is walked to its end (prosecution includes the challenge). answer: one
    move of a defender.
    """

    offer: int = 0
    way: int = 0
    settle: int = 0
    withdraw: int = 0
    challenge: int = 0
    reclaim: int = 0
    concede: int = 0
    timeout: int = 0
    equivocation: int = 0
    defence: int = 0
    prosecution: int = 0
    answer: int = 0
    seal: int = 0
    claim: int = 0

    @classmethod
    def of(cls, gas: Mapping[str, int], gwei: Fraction, heads: int, *, opened: bool = False) -> Self:
        """The costs at a gas price, for a job in which `heads` heads are posted. gas: as `measured` returns it.

        opened: the heads are sealed, and the last is opened.
        """
        price = round(gwei * 10**9)
        heads += opened  # which stores as much as posting one
        same = {entry.name: price * gas[entry.name] for entry in fields(cls) if entry.name in gas}
        return cls(offer=price * gas["create"], way=price * (gas["accept"] + heads * gas["head"]), **same)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEconomics:
    """A job, its parties' costs, and how it is audited. Frozen: change it with `dataclasses.replace`.

    training: compute of the whole run. audit: compute of a whole replay. lie: what false weights are worth to the
    trainer besides saved compute; kept: the share of it that a convicted trainer keeps (1 if the weights are out before
    the window ends). harm: what false weights that settle cost the client besides the reward. segments, tampered: the
    number of parts in which the run is committed, and the number that a cheat does not compute. sampled: segments that
    an audit draws; all of them for a whole audit. A sample that disagrees is followed by a whole replay before the
    challenge, as on the command line. audit_probability: of each auditor. fee: for an audit that was made. planted:
    share of jobs that are decoys of the client, whose false heads are conceded to the first finder. rate: cost of
    capital per second. job_seconds: from acceptance to settlement. game_seconds: of the longest game.

    seated: whether the auditors hold seats of the job: then the board pays the fee for each right root, the trainer's
    heads stay sealed until the auditors have sealed theirs, and a conviction pays the prover's part in equal shares to
    whoever convicts and to each right seat. bond: of a seat. bought: share of the pool that is the trainer's own, so
    that each seat is drawn for it with this chance. joined_for: what strangers expected of a seat when they joined the
    pool; 0: what it brings them now. trusting: share of the auditors that take the root that a LEAKING trainer shows
    them for their own.

    Without seats the contract pays no fee. A game that starts over k others costs 2^k challenger's stakes.
    """

    reward: int
    trainer_stake: int
    challenger_stake: int
    training: int
    audit: int
    lie: int = 0
    kept: Fraction = Fraction(1)
    harm: int = 0
    segments: int = 1
    tampered: int = 1
    sampled: int = 1
    auditors: int = 1
    audit_probability: Fraction = Fraction(1)
    fee: int = 0
    planted: Fraction = Fraction(0)
    rate: Fraction = Fraction(0)
    job_seconds: int = 0
    game_seconds: int = 0
    seated: bool = False
    bond: int = 0
    bought: Fraction = Fraction(0)
    joined_for: Fraction = Fraction(0)
    trusting: Fraction = Fraction(0)
    costs: TransactionCosts = field(default_factory=TransactionCosts)

    @property
    def share(self) -> int:
        """The reward of whoever convicts: half of the trainer's stake, or with seats an equal share of it."""
        return self.trainer_stake // 2 // (1 + self.auditors if self.seated else 1)

    @property
    def burned_part(self) -> int:
        """The cost to a trainer of a conviction that it arranges itself: the stake without that share."""
        return self.trainer_stake - self.share

    @property
    def relief(self) -> int:
        """The pay of a challenger whose game is open when the trainer is slashed, out of the prover's share."""
        return min(self.challenger_stake // 2, self.share // MAX_GAMES)

    @property
    def saved(self) -> Fraction:
        """Compute that a cheat saves."""
        return Fraction(self.training * self.tampered, self.segments)

    @property
    def replay(self) -> Fraction:
        """Compute of one audit, for the segments that it draws."""
        return Fraction(self.audit * self.sampled, self.segments)

    @property
    def second_replay(self) -> int:
        """Compute of the whole replay after a sample that disagrees."""
        return self.audit if self.sampled < self.segments else 0

    @property
    def detection(self) -> Fraction:
        """The probability that an audit meets a tampered segment: 1 - C(S-x, s) / C(S, s), as `run.audit` prints it."""
        few, many = sorted((self.sampled, self.tampered))
        if few + many > self.segments:
            return Fraction(1)
        # Symmetric in s and x, so the product runs over the smaller.
        return 1 - prod((Fraction(self.segments - many - i, self.segments - i) for i in range(few)), start=Fraction(1))

    @property
    def finds(self) -> Fraction:
        """The probability that an auditor is a stranger to the trainer, audits, and finds the lie."""
        return (1 - self.bought) * self.audit_probability * self.detection

    @property
    def discovery(self) -> Fraction:
        """The probability that somebody finds the lie: 1 - (1 - p d)^n, with p (1 - f) for p where f was bought."""
        return 1 - (1 - self.finds) ** self.auditors

    @property
    def seat_costs(self) -> Fraction:
        """The cost of a seat besides the replay: two transactions, and the capital of bond and deposit in the pool."""
        return self.costs.seal + self.costs.claim + self.capital(2 * self.bond, self.job_seconds)

    @property
    def stranger_gain(self) -> Fraction:
        """The gain of a stranger that replays the run for a seat."""
        return self.joined_for or max(Fraction(0), self.fee - self.audit - self.seat_costs)

    @property
    def own_share(self) -> Fraction:
        """The share of the pool that an honest trainer holds where nobody gains by one slot more or less.

        Of N slots, each ties up capital that costs c a job, and n seats are drawn. Strangers join until n h / N = c, h
        `stranger_gain`. For its own k slots a trainer needs no replay, so a seat brings it v = h + A, and it stops
        where n v (N - k) / N^2 = c. Hence k / N = 1 - h / v = A / (h + A). Draws for other trainers' jobs make it
        smaller.
        """
        earned = self.stranger_gain + self.audit
        return self.audit / earned if earned else Fraction(0)

    def buying(self, share: Fraction) -> Fraction:
        """The cost of raising the trainer's share of the pool from `bought`, while strangers keep their slots.

        Those hold N (1 - bought), at c = n h / N each, so share / (1 - share) as many are the trainer's then.
        """
        if share == self.bought:
            return Fraction(0)
        return self.auditors * self.stranger_gain * (share - self.bought) / (1 - share)

    def capital(self, amount: int, seconds: int) -> Fraction:
        """The cost of having an amount locked."""
        return amount * self.rate * seconds
