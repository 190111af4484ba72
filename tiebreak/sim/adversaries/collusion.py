"""Several parties who are one: a trainer and most of the auditors, the builder, the client, or accounts of its own.

All of them go by one name in a cast, the one whose end counts as the last.
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
"""Accounts that a trainer buys, or opens, at the most."""


class _Conspiracy(Adversary):
    """A trainer with a false run, and friends: it ends where the trainer ends."""

    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.RECOMPUTED})

    def lead(self, cast: Cast) -> None:
        """The trainer's place, taken as the last, so that its end is the end of all."""
        cast.dishonest.pop(TRAINER, None)
        seat_trainer(cast, self.name, Trainer, false_run=FalseSum())

    def seat(self, cast: Cast, make: AgentFactory, place: int) -> None:
        """A friend among the auditors."""
        party = f"friend {len(cast.auditors)}"
        cast.auditors.insert(place, Seat(name=party, make=make))
        cast.dishonest[party] = self.name


class BribedMajority(_Conspiracy):
    """Pays all auditors but those that cannot be bought: one is enough."""

    name: ClassVar[str] = "bribes all auditors but one"
    gain: ClassVar[str] = "the reward for a false run, if nobody else looks"

    def join(self, cast: Cast, rng: Random) -> None:
        """With auditors that say nothing, or give up games that they are winning."""
        for _ in range(rng.randint(1, MOST)):
            self.seat(cast, BribedAuditor().make(rng), rng.randint(0, len(cast.auditors)))
        self.lead(cast)


class FriendlyBuilder(_Conspiracy):
    """A builder keeps out the challenger's transactions, as long as it can without leaving what is assumed of it."""

    name: ClassVar[str] = "trainer with a builder"
    gain: ClassVar[str] = "that the challenger's clock runs out"

    def join(self, cast: Cast, rng: Random) -> None:
        """From the challenge on, or from a move of the game."""
        cast.builder = censor(diligent(cast), bearable(cast), rng.randint(0, 8))
        cast.dishonest[BUILDER] = self.name
        self.lead(cast)


class _Hoarder(Builder):
    """Sends into the mempool what would end the job, and never takes it into a block.

    Whoever tries its own transactions on top of what waits is told that the job is over.
    """

    def run(self) -> Process:
        """A report of two heads that its friend, the trainer, signed; once the first head is there."""
        trainer, heads = self.world.parties[TRAINER], self.world.mail.heads
        assert isinstance(trainer, Trainer), "the cast has one"
        yield from self.until(lambda: bool(heads))
        first = heads[0].head
        second = trainer.sign_head(replace(first.head, run_root=Digest(self.rng.randbytes(32))))
        self.world.submit(self, calls.report(first, second))

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002
        """Others' transactions, and its own when that can do nothing any more."""
        is_over = all(job.is_over for job in self.world.board.jobs.values())
        return [waiting for waiting in pending if is_over or waiting.sender is not self]


class Decoy(_Conspiracy):
    """A builder shows a transaction that would end the job, so that honest parties hold theirs back, and keeps it.

    No transaction of an honest party is kept out of a block, so this is within what is assumed of a builder. Who waits
    for what waits loses by its clock; an honest party sends what is legal on top of the newest block.
    """

    name: ClassVar[str] = "decoy in the mempool"
    gain: ClassVar[str] = "that a challenge, or a proof, is not even sent"

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # the false number is drawn when it computes
        """With the builder."""
        cast.builder = _Hoarder
        cast.dishonest[BUILDER] = self.name
        self.lead(cast)


# ---------------------------------------------------------------- with the client


class BaitingTrainer(Trainer):
    """Shows a false head, and answers a challenge in the block in which it stands: then the challenger's clock runs.

    With a clock shorter than the time between blocks that is the end of the game, whoever is right.
    """

    def objects(self, job: Job) -> bool:  # noqa: ARG002
        """The terms are its own idea."""
        return False

    def on_pending(self, pending: Pending) -> None:
        """Sees a challenge on its way."""
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
    """Never abandons its friend: what it pays stays with the two."""

    def gives_up(self, job: PublicJob) -> bool:  # noqa: ARG002
        """Never."""
        return False


class Bait(Adversary):
    """Client and trainer sign a job on which no challenger can win, and show a head that asks to be challenged.

    Nobody is cheated but who challenges without having read the terms: a clock below the time between blocks, or a
    trainer's stake of nothing. An honest auditor keeps out (`tiebreak.protocol.parties.terms`), and then the client has
    paid its own trainer for its own false run.
    """

    name: ClassVar[str] = "bait"
    gain: ClassVar[str] = "the stakes of challengers"
    role: ClassVar[Role] = Role.CLIENT
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})

    def join(self, cast: Cast, rng: Random) -> None:
        """With one of the two kinds of terms."""
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
    """Challenges its master's first head and plays as slowly as it can, to be in the way of others."""

    def objects(self, job: PublicJob) -> bool:  # noqa: ARG002
        """It does not play to win."""
        return False

    def accused(self, job: PublicJob) -> SignedHead | None:
        """The first, at once."""
        return next(iter(self.heads_of(job.id)), None)

    def plays(self, game: PublicGame) -> bool:  # noqa: ARG002
        """As long as it lasts."""
        return True

    def party_in(self, game: PublicGame) -> Party:
        """It needs no run of its own: its master's will do."""
        return Challenger(self.world.mail.runs[game.job.id].oracle, self.secret)

    def reply(self, game: GameView) -> Reply:
        """Right before its clock has run out."""
        honest = super().reply(game)
        return replace(honest, wait=last_call(self.world, game.state.deadline))


class SockPuppets(_Conspiracy):
    """Opens games against itself, which last as long as games can, before anybody else does."""

    name: ClassVar[str] = "sock puppets"
    gain: ClassVar[str] = "that an honest challenger comes too late, or has to wait"

    def join(self, cast: Cast, rng: Random) -> None:
        """With some puppets, in front of all others."""
        for _ in range(rng.randint(1, MOST)):
            self.seat(cast, Puppet, 0)
        self.lead(cast)


# ---------------------------------------------------------------- two of a kind


class CopyingTrainer(Trainer):
    """Computes nothing: signs what another trainer shows of the same computation."""

    def compute(self, job: Job) -> Work:
        """Nothing yet."""
        return self._of_another(job)

    def _of_another(self, job: Job) -> Work:
        """The other trainer's run, for its own job."""
        theirs = next(known for number, known in self.world.mail.runs.items() if number != job.id)
        return replace(theirs, oracle=Bound(job, theirs.oracle), computed_steps=0)

    def accepts(self, job: PublicJob) -> bool:
        """Once the other's whole run is there."""
        others = [other for other in self.world.board.jobs.values() if other is not job]
        is_there = any(other.has_final_head for other in others) or all(other.is_over for other in others)
        return is_there and any(number != job.id for number in self.world.mail.runs)

    def seconds(self, steps: int) -> int:  # noqa: ARG002
        """A signature takes none."""
        return 0


class _DoubleClient(Client):
    """Offers the same work twice: to the trainer, and to another."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, second: str) -> None:
        super().__init__(world, name, key)
        self.second = second

    def run(self) -> Process:
        """Both offers, one after the other."""
        yield from super().run()
        yield from self.until(lambda: bool(self.world.board.jobs))
        job = replace(self.draft(), trainer=self.world.parties[self.second].address)
        self.tell(JobDrafted(at=self.world.now, job=job))


class CopiedRun(Adversary):
    """Of two trainers who were given the same work, one computes and the other signs what it sees.

    What both sell is the true run, which the client wanted twice. A copier is as good as what it copies: it stakes the
    same on it.
    """

    name: ClassVar[str] = "trainer that copies another"
    gain: ClassVar[str] = "a reward without computing"
    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002
        """In a place of its own, with a client that asks both."""
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
