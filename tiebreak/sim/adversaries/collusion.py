"""Colluding parties: a trainer with most of the auditors, the builder, the client, or accounts of its own.

All of them share one name in a cast, and the ending of the last one counts for all.
"""

from dataclasses import replace
from functools import partial
from random import Random
from typing import ClassVar, Final

from tiebreak.protocol.chain import ChainError
from tiebreak.protocol.commitments.job import Job, SignedHead, game_id
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game.moves import Descend
from tiebreak.protocol.game.rules import start
from tiebreak.protocol.game.sides import Challenger, Party
from tiebreak.protocol.parties.board import PublicGame, PublicJob
from tiebreak.protocol.parties.events import JobDrafted
from tiebreak.protocol.tags import Digest
from tiebreak.sim.adversaries.auditors import BribedAuditor
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.builders import BUILDER, bearable, censor, diligent
from tiebreak.sim.adversaries.false_runs import TRAINER, FalseSum, seat_trainer
from tiebreak.sim.adversaries.waiting import last_call
from tiebreak.sim.world import calls
from tiebreak.sim.world.agents import Builder, Client, GameView, Process, Reply, Scripted, Trainer
from tiebreak.sim.world.cast import AgentFactory, Cast, Seat
from tiebreak.sim.world.work import Bound, Work
from tiebreak.sim.world.world import Pending, World

CLIENT: Final = "client"
MOST: Final = 3
"""The largest number of accounts that a trainer buys or opens."""


class _Conspiracy(Adversary):
    """A trainer with a false run, and its friends. They end where the trainer ends."""

    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.RECOMPUTED})

    def lead(self, cast: Cast) -> None:
        """Seat the trainer last, so that its ending counts for all."""
        cast.dishonest.pop(TRAINER, None)
        seat_trainer(cast, self.name, Trainer, false_run=FalseSum())

    def seat(self, cast: Cast, make: AgentFactory, place: int) -> None:
        """Seat a friend among the auditors."""
        party = f"friend {len(cast.auditors)}"
        cast.auditors.insert(place, Seat(name=party, make=make))
        cast.dishonest[party] = self.name


class BribedMajority(_Conspiracy):
    """Pays all auditors except the incorruptible ones. One of these is enough to catch the trainer."""

    name: ClassVar[str] = "bribes all auditors but one"
    gain: ClassVar[str] = "the reward for a false run, if nobody else looks"

    def join(self, cast: Cast, rng: Random) -> None:
        """Draw auditors that say nothing, or give up games that they are winning."""
        for _ in range(rng.randint(1, MOST)):
            self.seat(cast, BribedAuditor().make(rng), rng.randint(0, len(cast.auditors)))
        self.lead(cast)


class FriendlyBuilder(_Conspiracy):
    """A builder excludes the challenger's transactions for as long as its assumptions allow."""

    name: ClassVar[str] = "trainer with a builder"
    gain: ClassVar[str] = "that the challenger's clock runs out"

    def join(self, cast: Cast, rng: Random) -> None:
        """Draw the transaction at which the censorship starts."""
        cast.builder = censor(diligent(cast), bearable(cast), rng.randint(0, 8))
        cast.dishonest[BUILDER] = self.name
        self.lead(cast)


class _Hoarder(Builder):
    """Sends a transaction that would end the job into the mempool, and never includes it in a block.

    A party that tries its own transactions on top of the pending state is told that the job is over.
    """

    def run(self) -> Process:
        """Send a report of two heads signed by its friend, the trainer, once the first head is there."""
        trainer, heads = self.world.parties[TRAINER], self.world.mail.heads
        assert isinstance(trainer, Trainer), "the cast has one"
        yield from self.until(lambda: bool(heads))
        first = heads[0].head
        second = trainer.sign_head(replace(first.head, run_root=Digest(self.rng.randbytes(32))))
        self.world.submit(self, calls.report(first, second))

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002
        """All other transactions; its own only when it can do nothing any more."""
        is_over = all(job.is_over for job in self.world.board.jobs.values())
        return [waiting for waiting in pending if is_over or waiting.sender is not self]


class Decoy(_Conspiracy):
    """A builder shows a transaction that would end the job, so that honest parties hold theirs back, and keeps it.

    It keeps no honest transaction out of a block, which is within a builder's assumptions. A party that waits for the
    pending transaction loses by its clock. An honest party sends what is legal on top of the newest block.
    """

    name: ClassVar[str] = "decoy in the mempool"
    gain: ClassVar[str] = "that a challenge, or a proof, is not even sent"

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # the false number is drawn when it computes
        cast.builder = _Hoarder
        cast.dishonest[BUILDER] = self.name
        self.lead(cast)


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
            yield from self.send(calls.make_move(state, Descend(nodes=shown)))
        except ChainError:
            return


class ComplicitClient(Client):
    """Never abandons its friend: what it pays stays between the two."""

    def gives_up(self, job: PublicJob) -> bool:  # noqa: ARG002
        return False


class Bait(Adversary):
    """Client and trainer sign a job on which no challenger can win, and show a head that invites a challenge.

    The clock is shorter than the time between blocks, or the trainer's stake is nothing. Only a challenger that has not
    read the terms is cheated. An honest auditor stays out (`tiebreak.protocol.parties.terms`), and then the client has
    paid its own trainer for its own false run.
    """

    name: ClassVar[str] = "bait"
    gain: ClassVar[str] = "the stakes of challengers"
    role: ClassVar[Role] = Role.CLIENT
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})

    def join(self, cast: Cast, rng: Random) -> None:
        """Draw one of the two kinds of terms."""
        traps = (
            {"clock": rng.randint(1, cast.block_seconds - 1), "replay_time": rng.choice((0, cast.terms.replay_time))},
            {"trainer_stake": rng.randint(0, 1)},
        )
        cast.terms = replace(cast.terms, **rng.choice(traps))
        seat_trainer(cast, self.name, BaitingTrainer, false_run=FalseSum())
        cast.client = ComplicitClient
        cast.dishonest.pop(CLIENT, None)
        cast.dishonest[CLIENT] = self.name


# ---------------------------------------------------------------- with itself


class Puppet(Scripted):
    """Challenges its master's first head and plays as slowly as possible, to block other challengers."""

    def objects(self, job: PublicJob) -> bool:  # noqa: ARG002
        """It does not play to win."""
        return False

    def accused(self, job: PublicJob) -> SignedHead | None:
        """Challenges the first head at once."""
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


class SockPuppets(_Conspiracy):
    """Opens games against itself, as long as games can be, before anybody else opens one."""

    name: ClassVar[str] = "sock puppets"
    gain: ClassVar[str] = "that an honest challenger comes too late, or has to wait"

    def join(self, cast: Cast, rng: Random) -> None:
        """Seat the puppets in front of all others."""
        for _ in range(rng.randint(1, MOST)):
            self.seat(cast, Puppet, 0)
        self.lead(cast)


# ---------------------------------------------------------------- two of a kind


class CopyingTrainer(Trainer):
    """Computes nothing, and signs the run that another trainer published for the same computation."""

    def compute(self, job: Job) -> Work:
        return self._of_another(job)

    def _of_another(self, job: Job) -> Work:
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


class _DoubleClient(Client):
    """Offers the same work to two trainers."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, second: str) -> None:
        super().__init__(world, name, key)
        self.second = second

    def run(self) -> Process:
        """Make both offers, one after the other."""
        yield from super().run()
        yield from self.until(lambda: bool(self.world.board.jobs))
        job = replace(self.draft(), trainer=self.world.parties[self.second].address)
        self.tell(JobDrafted(at=self.world.now, job=job))


class CopiedRun(Adversary):
    """Of two trainers who were given the same work, one computes and the other signs what it sees.

    Both sell the true run, which the client wanted twice. The copier takes the same risk, since it stakes the same
    amount on what it copies.
    """

    name: ClassVar[str] = "trainer that copies another"
    gain: ClassVar[str] = "a reward without computing"
    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002
        """Seat the second trainer, with a client that asks both."""
        party = "second trainer"
        cast.auditors.append(Seat(name=party, make=CopyingTrainer, adversary=self.name))
        cast.client = partial(_DoubleClient, second=party)


ADVERSARIES: tuple[type[Adversary], ...] = (
    BribedMajority,
    FriendlyBuilder,
    Decoy,
    Bait,
    SockPuppets,
    CopiedRun,
)
