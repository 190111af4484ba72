"""Colluding parties: a trainer with most of the auditors, the builder, the client, or accounts of its own.

All of them share one name in a cast, and the ending of the last one counts for all.
"""

from collections.abc import Callable, Set
from dataclasses import replace
from random import Random
from typing import Final

from tiebreak.protocol.chain import ChainError, calls
from tiebreak.protocol.commitments.job import Job, SignedHead, game_id
from tiebreak.protocol.game.moves import Descend
from tiebreak.protocol.game.rules import start
from tiebreak.protocol.game.sides import Challenger, Party
from tiebreak.protocol.parties.board import PublicGame, PublicJob
from tiebreak.protocol.parties.events import JobDrafted
from tiebreak.protocol.tags import Digest
from tiebreak.sim.adversaries.auditors import Bribed, bribe
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.builders import Censor, bearable, diligent
from tiebreak.sim.adversaries.deviations import RECOMPUTED, TRAINER
from tiebreak.sim.adversaries.heads import Withholding
from tiebreak.sim.adversaries.places import BUILDER, FalseSum, Placed, client, given, seat_friend, seat_trainer
from tiebreak.sim.adversaries.waiting import last_call
from tiebreak.sim.world.agents import Agent, Builder, Client, GameView, Process, Reply, Scripted, Trainer
from tiebreak.sim.world.cast import Cast, Seat, TrainerFactory
from tiebreak.sim.world.work import Bound, Work
from tiebreak.sim.world.workshop import Deviation
from tiebreak.sim.world.world import Pending

MOST: Final = 3
"""The largest number of accounts that a trainer buys or opens."""
Recruit = Callable[[Cast, Random, str], TrainerFactory]
"""Seats the friends of a trainer under a name, and gives the trainer."""


def second_head(party: Agent, head: SignedHead) -> SignedHead:
    """Another head of the same count by the trainer, an accomplice of this party, which chooses the root."""
    trainer = party.world.parties[TRAINER]
    assert isinstance(trainer, Trainer), "the cast has one"
    return trainer.sign_head(replace(head.head, run_root=Digest(party.rng.randbytes(32))))


# ---------------------------------------------------------------- with auditors, or a builder


def _auditors(cast: Cast, rng: Random, name: str) -> TrainerFactory:
    """Pays auditors to say nothing, or to give up games that they are winning. One that it does not pay is enough."""
    for _ in range(rng.randint(1, MOST)):
        friend = given(Bribed, at=bribe(cast, rng))
        seat_friend(cast, name, "friend", friend, rng.randint(0, len(cast.auditors)))
    return Trainer


def _censor(cast: Cast, rng: Random, name: str) -> TrainerFactory:
    """A builder excludes the challenger's transactions for as long as its assumptions allow."""
    cast.builder = given(Censor, victims=diligent(cast), seconds=bearable(cast), first=rng.randint(0, 8))
    cast.dishonest[BUILDER] = name
    return Trainer


class Hoarder(Builder):
    """Shows a transaction that would end the job, so that honest parties hold theirs back, and never includes it.

    It keeps no honest transaction out of a block, which is within a builder's assumptions. A party that waits for the
    pending transaction loses by its clock. An honest party sends what is legal on top of the newest block.
    """

    def run(self) -> Process:
        """Send a report of two heads signed by its friend, the trainer, once the first head is there."""
        heads = self.world.mail.heads
        yield from self.until(lambda: bool(heads))
        self.world.submit(self, calls.report_equivocation(heads[0].head, second_head(self, heads[0].head)))

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002
        """All other transactions; its own only when it can do nothing any more."""
        is_over = all(job.is_over for job in self.world.board.jobs.values())
        return [waiting for waiting in pending if is_over or waiting.sender is not self]


def _hoarder(cast: Cast, _rng: Random, name: str) -> TrainerFactory:
    cast.builder = Hoarder
    cast.dishonest[BUILDER] = name
    return Trainer


# ---------------------------------------------------------------- with itself


class SockPuppet(Scripted):
    """Challenges its master's first head before anybody else does, and plays as slowly as possible."""

    def objects(self, job: PublicJob) -> bool:  # noqa: ARG002
        """It does not play to win."""
        return False

    def accused(self, job: PublicJob) -> SignedHead | None:
        return next(iter(self.heads_of(job.id)), None)

    def plays(self, game: PublicGame) -> bool:  # noqa: ARG002
        return True

    def party_in(self, game: PublicGame) -> Party:
        """It uses its master's run and needs none of its own."""
        return Challenger(self.world.mail.runs[game.job.id].oracle, self.secret)

    def reply(self, game: GameView) -> Reply:
        """Answer directly before its clock runs out."""
        honest = super().reply(game)
        return replace(honest, wait=last_call(self.world, game.state.deadline))


def _sock_puppets(cast: Cast, rng: Random, name: str) -> TrainerFactory:
    for _ in range(rng.randint(1, MOST)):
        seat_friend(cast, name, "friend", SockPuppet)
    return Trainer


class Accomplice(Scripted):
    """Challenges its master's first false head at once. It need not replay, because its master told it."""

    def objects(self, job: PublicJob) -> bool:  # noqa: ARG002
        """It accepts any terms, since it wants to lose."""
        return False

    def accused(self, job: PublicJob) -> SignedHead | None:
        truth = self.world.workshop.honest(job.job)
        shown = self.heads_of(job.id)
        return next((head for head in shown if head.head.run_root != truth.run_root(head.head.count)), None)

    def reclaims(self, game: PublicGame) -> bool:  # noqa: ARG002
        """It takes back the stake that its master paid."""
        return True


class Master(Trainer):
    """Concedes at once to its puppet, before anybody else can win, and plays all other games as slowly as possible."""

    puppet: str

    def concedes(self, view: GameView) -> bool:
        return view.game.challenger == self.world.parties[self.puppet].address


def _loses_to_itself(cast: Cast, _rng: Random, name: str) -> TrainerFactory:
    return given(Master, puppet=seat_friend(cast, name, "puppet", Accomplice))


class Delaying(Scripted):
    """Challenges its silent master's last head in the last block of the window, and lets its own clock run out."""

    def follow(self, job: PublicJob) -> Process:
        yield from self.until(lambda: job.is_over or bool(self.world.mail.heads_of(job.id)))
        while not job.is_over and self.world.now < job.window_end - self.world.block_seconds:
            yield from self.sleep(last_call(self.world, job.window_end))  # each new head extends the window
        if not job.is_over:
            head = self.world.mail.heads_of(job.id)[-1].head
            yield from self.attempt(calls.challenge(head, 0, job.job.challenger_stake))


def _delays_itself(cast: Cast, rng: Random, name: str) -> TrainerFactory:
    seat_friend(cast, name, "puppet", Delaying)
    return given(Withholding, first=rng.randint(2, 4))


class SelfReporter(Scripted):
    """Reports two heads of one count by its master as soon as somebody challenges."""

    def follow(self, job: PublicJob) -> Process:
        yield from self.until(lambda: job.is_over or bool(self.world.board.games_of(job.id)))
        if not job.is_over:
            first = self.world.mail.heads_of(job.id)[0].head
            yield from self.attempt(calls.report_equivocation(first, second_head(self, first)))


def _reports_itself(cast: Cast, _rng: Random, name: str) -> TrainerFactory:
    seat_friend(cast, name, "puppet", SelfReporter)
    return Trainer


# ---------------------------------------------------------------- with the client


class BaitingTrainer(Trainer):
    """Shows a false head, and answers a challenge in the same block, so that the challenger's clock runs at once.

    If the clock is shorter than the time between blocks, the game ends there, whoever is right.
    """

    def objects(self, job: Job) -> bool:  # noqa: ARG002
        """It proposed the terms itself."""
        return False

    def on_pending(self, pending: Pending) -> None:
        """Notice a challenge in the mempool."""
        call = pending.call
        if call.kind == "challenge" and not pending.untried and self.job is not None and call.job_id == self.job.id:
            self.spawn(self._answer(call.heads[0], pending.sender.key.address, call.values["nonce"]))

    def _answer(self, head: SignedHead, challenger: bytes, nonce: int) -> Process:
        job, work = self.held()
        identity = game_id(head.head, self.world.domain, challenger, nonce)
        state = start(job, head.head, identity, self.world.next_block)
        shown = tuple(work.oracle.run_tree(head.head.count).below(state.height, 0, state.levels))
        try:
            yield from self.send(calls.move_call(state, Descend(nodes=shown)))
        except ChainError:
            return


class ComplicitClient(Client):
    """Never abandons its friend: what it pays stays between the two."""

    def gives_up(self, job: PublicJob) -> bool:  # noqa: ARG002
        return False


BAIT: Final = "bait"


def _bait(cast: Cast, rng: Random) -> None:
    """Terms on which no challenger can win, and a trainer whose false head invites a challenge.

    The clock is shorter than the time between blocks, or the trainer's stake is nothing. Only a challenger that has not
    read the terms is cheated. An honest auditor stays out (`tiebreak.protocol.parties.terms`), and then the client has
    paid its own trainer for its own false run.
    """
    traps = (
        {"clock": rng.randint(1, cast.block_seconds - 1), "replay_time": rng.choice((0, cast.terms.replay_time))},
        {"trainer_stake": rng.randint(0, 1)},
    )
    cast.terms = replace(cast.terms, **rng.choice(traps))
    seat_trainer(cast, BAIT, BaitingTrainer, FalseSum())


# ---------------------------------------------------------------- two of a kind


class CopyingTrainer(Trainer):
    """Computes nothing, and signs the run that another trainer published for the same computation.

    Both sell the true run, which the client wanted twice. The copier takes the same risk, since it stakes the same
    amount on what it copies.
    """

    def compute(self, job: Job) -> Work:
        """The other trainer's run, bound to this trainer's job."""
        theirs = next(known for number, known in self.world.mail.runs.items() if number != job.id)
        return replace(theirs, oracle=Bound(job, theirs.oracle), computed_steps=0)

    def accepts(self, job: PublicJob) -> bool:
        """Accepts once the other trainer's whole run is there."""
        others = [other for other in self.world.board.jobs.values() if other is not job]
        is_there = any(other.has_final_head for other in others) or all(other.is_over for other in others)
        return is_there and any(number != job.id for number in self.world.mail.runs)

    def seconds(self, steps: int) -> int:  # noqa: ARG002
        """Signing takes no time."""
        return 0


class DoubleClient(Client):
    """Offers the same work to two trainers."""

    second: str

    def run(self) -> Process:
        """Make both offers, one after the other."""
        yield from super().run()
        yield from self.until(lambda: bool(self.world.board.jobs))
        job = replace(self.draft(), trainer=self.world.parties[self.second].address)
        self.tell(JobDrafted(at=self.world.now, job=job))


COPIER: Final = "trainer that copies another"


def _copying(cast: Cast, _rng: Random) -> None:
    """Seats the second trainer, with a client that asks both."""
    cast.auditors.append(Seat(name="second trainer", make=CopyingTrainer, adversary=COPIER))
    cast.client = given(DoubleClient, second="second trainer")


def conspiracy(
    name: str,
    gain: str,
    recruit: Recruit,
    caught: Set[Catch] = RECOMPUTED,
    *,
    run: Deviation | None = FalseSum(),  # noqa: B008  # it is frozen
) -> Adversary:
    """A row: a trainer with a false run, and its friends. They end where the trainer ends."""

    def join(cast: Cast, rng: Random) -> None:
        seat_trainer(cast, name, recruit(cast, rng, name), run)

    return Placed(name=name, role=Role.TRAINER, gain=gain, caught=frozenset(caught), takes_place=join)


# fmt: off
ADVERSARIES: Final = (
    conspiracy("bribes all auditors but one", "the reward for a false run, if nobody else looks", _auditors),
    conspiracy("trainer with a builder", "that the challenger's clock runs out", _censor),
    conspiracy("decoy in the mempool", "that a challenge, or a proof, is not even sent", _hoarder),
    conspiracy("sock puppets", "that an honest challenger comes too late, or has to wait", _sock_puppets),
    conspiracy("self-challenge to keep the stake", "half of its stake, which an honest challenger would have won",
        _loses_to_itself, {Catch.CONCEDED}),
    conspiracy("self-challenge to win time", "its stake for a while longer, in the hope that the client forgets",
        _delays_itself, {Catch.ABANDONED}, run=None),
    conspiracy("self-report to keep the stake", "half of its stake, which the challenger would have won",
        _reports_itself, {Catch.EQUIVOCATION}),
    client(BAIT, ComplicitClient, "the stakes of challengers", {Catch.HARMLESS}, before=_bait),
    Placed(name=COPIER, role=Role.TRAINER, gain="a reward without computing", caught=frozenset({Catch.HARMLESS}),
        takes_place=_copying),
)
# fmt: on
