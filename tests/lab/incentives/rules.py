"""The same games paid out event by event by the board's rules. The closed forms are tested against them.

Nothing here uses `tiebreak.lab.incentives.model`, so each of the two is the other's oracle. A story is one outcome of
all random events: who audits, what each auditor draws, who comes first. `stories` lists all of them with their
probabilities. `play` lets the parties act on a ledger that pays as `contracts/src/board/JobBoard.sol` does.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations, product
from typing import Final

from tiebreak.lab.incentives.economics import AuditorStrategy, JobEconomics, TrainerStrategy, TransactionCosts

COSTS = TransactionCosts(
    way=30, settle=15, withdraw=8, challenge=40, reclaim=12, concede=19, equivocation=18, defence=280, prosecution=260
)
JOB = JobEconomics(
    reward=130_000, trainer_stake=400_000, challenger_stake=3000, training=100_000, audit=90_000, lie=20_000,
    segments=4, tampered=4, sampled=4, auditors=1, costs=COSTS,
)  # fmt: skip


CLIENT: Final = "client"
TRAINER: Final = "trainer"
SYBIL: Final = "the trainer's other account"
BURNED: Final = "burned"
GAS: Final = "gas"
COMPUTE: Final = "compute"
CAPITAL: Final = "capital"


def auditor(number: int) -> str:
    return f"auditor {number}"


@dataclass(kw_only=True)
class Ledger:
    """What the board holds, and what everyone has gained so far. All accounts sum to zero at the end."""

    job: JobEconomics
    wealth: defaultdict[str, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    status: str = "OFFERED"
    games: list[str] = field(default_factory=list)
    """Challengers of open games, the oldest first."""
    stakes: dict[str, int] = field(default_factory=dict)
    """What each challenger put up last: twice as much for each game that was open."""
    head: str = "true"
    """The root of the final head."""
    opened: bool = False
    seals: list[tuple[str, str]] = field(default_factory=list)
    """The owner of each seat that was sealed, and the root in its seal."""

    def move(self, payer: str, payee: str, amount: Fraction | int) -> None:
        self.wealth[payer] -= amount
        self.wealth[payee] += amount

    def accept(self) -> None:
        assert self.status == "OFFERED"
        self.move(CLIENT, "board", self.job.reward + self._seats() * self.job.fee)
        self.move(TRAINER, "board", self.job.trainer_stake)
        self.status = "ACTIVE"

    def seal(self, owner: str, root: str) -> None:
        assert self.status == "ACTIVE"
        assert not self.opened
        assert len(self.seals) < self._seats()
        self.move(owner, "board", self.job.bond)
        self.move(owner, GAS, self.job.costs.seal)
        self.move(owner, CAPITAL, 2 * self.job.bond * self.job.rate * self.job.job_seconds)
        self.seals.append((owner, root))

    def close_seats(self) -> None:
        """The owners of seats claim what they are due; then the client gets unpaid fees, and the rest burns."""
        left = self._seats() * self.job.fee
        burned = 0 if self.status == "SETTLED" else self._seats() * self._share()
        for owner, root in self.seals:
            is_heads = self.opened and root == self.head
            if root == "another's seal" or (self.status == "SETTLED" and not is_heads):
                burned += self.job.bond
                continue
            self.move("board", owner, self.job.bond)
            self.move(owner, GAS, self.job.costs.claim)
            if self.status == "SETTLED" or not is_heads:
                self.move("board", owner, self.job.fee)
                left -= self.job.fee
            if self.status == "SLASHED" and not is_heads:
                self.move("board", owner, self._share())
                burned -= self._share()
        self.move("board", CLIENT, left)
        self.move("board", BURNED, burned)

    def _seats(self) -> int:
        return self.job.auditors if self.job.seated else 0

    def _share(self) -> int:
        return self.job.trainer_stake // 2 // (1 + self._seats())

    def _relief(self) -> int:
        """What each challenger gets whose game is open when the trainer is slashed."""
        return min(self.job.challenger_stake // 2, self._share() // 16)

    def challenge(self, challenger: str) -> None:
        assert self.status == "ACTIVE"
        self.stakes[challenger] = self.job.challenger_stake << len(self.games)
        self.move(challenger, "board", self.stakes[challenger])
        self.games.append(challenger)
        self.move(challenger, GAS, self.job.costs.challenge)

    def defended(self, challenger: str) -> None:
        """The challenger lost: its stake goes to the trainer, minus the part that burns."""
        assert self.status == "ACTIVE"
        self.games.remove(challenger)
        stake = self.stakes[challenger]
        self.move("board", TRAINER, stake // 2)
        self.move("board", BURNED, stake - stake // 2)

    def convicted(self, challenger: str) -> None:
        assert self.status == "ACTIVE"
        self.games.remove(challenger)
        self.move("board", challenger, self.stakes[challenger])
        self._slash(challenger)

    def equivocation(self, reporter: str) -> None:
        assert self.status == "ACTIVE"
        self.move(reporter, GAS, self.job.costs.equivocation)
        self._slash(reporter)

    concession = equivocation
    """The trainer pays as much to the one to whom it concedes a head by signature."""

    def reclaim(self, challenger: str) -> None:
        """A challenger takes its stake back from a game that was cut short by the end of the job."""
        assert self.status == "SLASHED"
        self.games.remove(challenger)
        self.move("board", challenger, self.stakes[challenger] + self._relief())
        self.move(challenger, GAS, self.job.costs.reclaim)

    def settle(self) -> None:
        assert self.status == "ACTIVE"
        assert not self.games
        self.status = "SETTLED"
        self.move("board", TRAINER, self.job.reward + self.job.trainer_stake)
        self.move(TRAINER, GAS, self.job.costs.settle)

    def withdraw(self, account: str) -> None:
        """Pay the gas of a withdrawal. Its amount was counted when it was credited."""
        self.move(account, GAS, self.job.costs.withdraw)

    def _slash(self, prover: str) -> None:
        stake = self.job.trainer_stake
        self.status = "SLASHED"
        self.move("board", CLIENT, self.job.reward)
        self.move("board", prover, self._share() - len(self.games) * self._relief())
        self.move("board", BURNED, stake - (1 + self._seats()) * self._share())


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One outcome of all random events. audited: auditors that replayed. finders: those that disagreed, in order.

    bought: seats that were drawn for the trainer. trusted: auditors that took the root that they were shown.
    """

    decoy: bool
    audited: tuple[int, ...]
    finders: tuple[int, ...]
    bought: tuple[int, ...] = ()
    trusted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Players:
    """own: what auditor 0 does; None: it audits with the job's probability, as all others do."""

    trainer: TrainerStrategy
    own: AuditorStrategy | None = None

    def chance(self, s: JobEconomics, number: int) -> Fraction:
        if number == 0 and self.own is not None:
            return Fraction(self.own is AuditorStrategy.DILIGENT)
        return s.audit_probability * (1 - self.bought(s, number))

    def trusts(self, s: JobEconomics, number: int) -> Fraction:
        """The probability that this auditor, if it does not shirk, takes the root that the trainer shows it."""
        if self.trainer is not TrainerStrategy.LEAKING or (number == 0 and self.own is not None):
            return Fraction(0)
        return s.trusting

    def bought(self, s: JobEconomics, number: int) -> Fraction:
        return Fraction(0) if number == 0 and self.own is not None else s.bought


def disagreement(s: JobEconomics, lie: bool) -> Fraction:
    """The probability that one replay disagrees, counted over all equally likely draws of segments."""
    if not lie:
        return Fraction(0)
    draws = list(combinations(range(s.segments), s.sampled))
    return Fraction(sum(any(segment < s.tampered for segment in draw) for draw in draws), len(draws))


def stories(s: JobEconomics, players: Players, *, decoy: bool = False) -> Iterator[tuple[Fraction, Story]]:
    finds = disagreement(s, decoy or players.trainer is not TrainerStrategy.HONEST)
    each = []
    for number in range(s.auditors):
        awake, bought, trusts = players.chance(s, number), players.bought(s, number), players.trusts(s, number)
        audits = awake * (1 - trusts)
        each.append([
            (1 - awake - bought, "idle"), (audits * (1 - finds), "agrees"), (audits * finds, "disagrees"),
            (bought, "bought"), (awake * trusts, "trusts"),
        ])  # fmt: skip
    for combination in product(*each):
        probability = Fraction(1)
        for chance, _ in combination:
            probability *= chance
        if not probability:
            continue
        who = {name: tuple(i for i, (_, did) in enumerate(combination) if did == name) for _, name in each[0]}
        found = who["disagrees"]
        audited = tuple(sorted(who["agrees"] + found))
        orders = [found[k:] + found[:k] for k in range(len(found))] or [()]
        for finders in orders:
            yield (
                probability / len(orders),
                Story(decoy=decoy, audited=audited, finders=finders, bought=who["bought"], trusted=who["trusts"]),
            )


def play(s: JobEconomics, players: Players, story: Story) -> Ledger:
    ledger = Ledger(job=s)
    trainer = TrainerStrategy.HONEST if story.decoy else players.trainer
    ledger.accept()
    saved = 0 if trainer is TrainerStrategy.HONEST else s.training * Fraction(s.tampered, s.segments)
    ledger.move(TRAINER, COMPUTE, s.training - saved)
    ledger.move(TRAINER, GAS, s.costs.way)
    ledger.move(TRAINER, CAPITAL, s.trainer_stake * s.rate * s.job_seconds)
    ledger.head = "true" if trainer is TrainerStrategy.HONEST and not story.decoy else "false"
    _SCRIPTS[trainer if not story.decoy else None](s, players, story, ledger)
    if ledger.status == "ACTIVE":
        ledger.settle()
        ledger.withdraw(TRAINER)
        if trainer is not TrainerStrategy.HONEST:
            ledger.move("the world", TRAINER, s.lie)
    ledger.close_seats()
    return ledger


def _lock(ledger: Ledger, account: str, amount: int) -> None:
    ledger.move(account, CAPITAL, amount * ledger.job.rate * ledger.job.game_seconds)


def _seal(s: JobEconomics, players: Players, story: Story, ledger: Ledger) -> None:
    """Strangers seal what they have; then the trainer's seats seal what pays them most; then the head is opened."""
    for number in range(s.auditors):
        if number in story.audited:
            ledger.seal(auditor(number), "true")
        elif number in story.trusted:
            ledger.seal(auditor(number), ledger.head)
    if players.own is AuditorStrategy.GUESSING:
        ledger.seal(auditor(0), "a guess")
    if players.own is AuditorStrategy.TRUSTING and players.trainer is TrainerStrategy.LEAKING:
        ledger.seal(auditor(0), ledger.head)
    if players.own is AuditorStrategy.COPYING and ledger.seals:
        ledger.seal(auditor(0), "another's seal")
    _own_seals(s, story, ledger, caught=bool(story.finders))
    ledger.opened = True


def _own_seals(s: JobEconomics, story: Story, ledger: Ledger, *, caught: bool) -> None:
    """The trainer's seats, which cost no replay, seal last, if that pays."""
    win = s.fee + (s.trainer_stake // 2 // (1 + s.auditors) if caught else 0)
    if win > s.costs.seal + s.costs.claim + 2 * s.bond * s.rate * s.job_seconds:
        for _ in story.bought:
            ledger.seal(SYBIL, "another root" if caught else ledger.head)


def _audits(s: JobEconomics, story: Story, players: Players, ledger: Ledger) -> None:
    """Pay replays and their fees. A finder that drew a sample then replays the whole run."""
    if s.seated:
        for number in story.audited:
            ledger.move(auditor(number), COMPUTE, s.audit)
        _seal(s, players, story, ledger)
        return
    for number in story.audited:
        ledger.move(auditor(number), COMPUTE, s.audit * Fraction(s.sampled, s.segments))
        ledger.move(CLIENT, auditor(number), s.fee)
        if number in story.finders and s.sampled < s.segments:
            ledger.move(auditor(number), COMPUTE, s.audit)


def _with_honest(s: JobEconomics, players: Players, story: Story, ledger: Ledger) -> None:
    _audits(s, story, players, ledger)
    if players.own is AuditorStrategy.FALSE:
        ledger.challenge(auditor(0))
        _lock(ledger, auditor(0), s.challenger_stake)
        ledger.defended(auditor(0))


def _with_naive(s: JobEconomics, players: Players, story: Story, ledger: Ledger) -> None:
    _with_honest(s, players, story, ledger)
    if not story.finders:
        return
    for number in story.finders:
        ledger.challenge(auditor(number))
        _lock(ledger, auditor(number), ledger.stakes[auditor(number)])
    winner = auditor(story.finders[0])
    ledger.move(winner, GAS, s.costs.prosecution - s.costs.challenge)
    if players.own is AuditorStrategy.COPYING and not s.seated:
        ledger.challenge(auditor(0))
        ledger.move(auditor(0), GAS, s.costs.prosecution - s.costs.challenge)  # the copier plays along
        _lock(ledger, auditor(0), ledger.stakes[auditor(0)])
    ledger.move(TRAINER, GAS, s.costs.defence)
    _lock(ledger, TRAINER, s.trainer_stake)
    ledger.convicted(winner)
    ledger.withdraw(winner)
    for late in list(ledger.games):
        ledger.reclaim(late)
        ledger.withdraw(late)
    ledger.move("the world", TRAINER, s.kept * s.lie)


def _accusers(players: Players, story: Story) -> list[str]:
    return [auditor(0)] if players.own is AuditorStrategy.FALSE else [auditor(number) for number in story.finders[:1]]


def _with_hedged(s: JobEconomics, players: Players, story: Story, ledger: Ledger) -> None:
    _audits(s, story, players, ledger)
    for who in _accusers(players, story):
        ledger.challenge(who)
        ledger.equivocation(SYBIL)
        ledger.withdraw(SYBIL)
        ledger.reclaim(who)
        ledger.withdraw(who)
        ledger.move("the world", TRAINER, s.kept * s.lie)


def _with_insured(s: JobEconomics, players: Players, story: Story, ledger: Ledger) -> None:
    _audits(s, story, players, ledger)
    ledger.challenge(SYBIL)  # nobody can challenge before the trainer's heads are known, and it knows them first
    _lock(ledger, SYBIL, s.challenger_stake)
    ledger.move(TRAINER, GAS, s.costs.concede)  # one of the two sides ends the game
    accusers = _accusers(players, story)
    if not accusers:
        ledger.defended(SYBIL)
        return
    ledger.challenge(accusers[0])
    ledger.convicted(SYBIL)
    ledger.withdraw(SYBIL)
    ledger.reclaim(accusers[0])
    ledger.withdraw(accusers[0])
    ledger.move("the world", TRAINER, s.kept * s.lie)


def _with_self(s: JobEconomics, players: Players, story: Story, ledger: Ledger) -> None:
    del players  # the job ends before anybody can audit
    _own_seals(s, story, ledger, caught=True)
    ledger.equivocation(SYBIL)
    ledger.withdraw(SYBIL)
    ledger.move("the world", TRAINER, s.kept * s.lie)


def _with_decoy(s: JobEconomics, players: Players, story: Story, ledger: Ledger) -> None:
    _with_honest(s, players, story, ledger)
    for who in [auditor(number) for number in story.finders[:1]]:
        ledger.challenge(who)
        ledger.convicted(who)
        ledger.withdraw(who)


_SCRIPTS: Final[dict[TrainerStrategy | None, Callable[[JobEconomics, Players, Story, Ledger], None]]] = {
    TrainerStrategy.HONEST: _with_honest,
    TrainerStrategy.NAIVE: _with_naive,
    TrainerStrategy.HEDGED: _with_hedged,
    TrainerStrategy.INSURED: _with_insured,
    TrainerStrategy.SELF: _with_self,
    TrainerStrategy.LEAKING: _with_hedged,
    None: _with_decoy,
}


def expected_trainer(s: JobEconomics, strategy: TrainerStrategy) -> Fraction:
    players = Players(trainer=strategy)
    total = Fraction(0)
    for probability, story in stories(s, players):
        wealth = play(s, players, story).wealth
        total += probability * (wealth[TRAINER] + wealth[SYBIL])
    return total


def expected_auditor(s: JobEconomics, own: AuditorStrategy, strategy: TrainerStrategy, lies: Fraction) -> Fraction:
    """The expected gain of auditor 0, over decoys, lies and all stories."""
    worlds = [
        (s.planted, TrainerStrategy.HONEST, True),
        ((1 - s.planted) * lies, strategy, False),
        ((1 - s.planted) * (1 - lies), TrainerStrategy.HONEST, False),
    ]
    total = Fraction(0)
    for weight, trainer, decoy in worlds:
        if not weight:
            continue
        players = Players(trainer=trainer, own=own)
        for probability, story in stories(s, players, decoy=decoy):
            total += weight * probability * play(s, players, story).wealth[auditor(0)]
    return total


# ---------------------------------------------------------------- who joins a pool


def with_slots(s: JobEconomics, strangers: int, own: int) -> JobEconomics:
    """The job where so many slots of the pool are strangers', and so many the trainer's."""
    return replace(s, bought=Fraction(own, strangers + own))


def stranger_earns(s: JobEconomics, strangers: int, own: int) -> Fraction:
    """What one slot of a stranger brings in a job of an honest trainer, without its own capital."""
    drawn = expected_auditor(
        with_slots(s, strangers, own), AuditorStrategy.DILIGENT, TrainerStrategy.HONEST, Fraction(0)
    )
    return drawn * s.auditors / (strangers + own)


def best_slots(
    s: JobEconomics, strategy: TrainerStrategy, strangers: int, cost: Fraction, most: int
) -> tuple[Fraction, int]:
    """(gain, slots): how many of up to `most` slots, each of which costs `cost` a job, this trainer takes."""
    taken = ((expected_trainer(with_slots(s, strangers, own), strategy) - own * cost, own) for own in range(most + 1))
    return max(taken)
