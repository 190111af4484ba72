"""Parties that do not do as agreed, for tests of the world; the catalogue of adversaries is elsewhere."""

from dataclasses import replace
from random import Random

from tiebreak.lab.sim.adversaries.tampering import Cheat, tampered
from tiebreak.lab.sim.world.agents import AuditorAgent, TrainerAgent
from tiebreak.lab.sim.world.game import Cast, CastMember
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.commitments.job import Head, Job, SignedHead
from tiebreak.protocol.game.moves import Phase
from tiebreak.protocol.parties.board import PublicJob
from tiebreak.protocol.parties.player import GameView, Reply

LEAF = 23
"""A sum of the small job whose elements have a tree of partial sums."""


def changed(workshop: Workshop, job: Job, _rng: Random) -> Work:
    """A run in which one element of one sum is larger by one."""
    return tampered(workshop, job, Cheat(name="-", step=5, leaf=LEAF, element=0, change=lambda value: value + 1))


def cheating(workshop: Workshop, **changes: object) -> Cast:
    """A cast whose trainer changed a value."""
    cast = Cast(workshop=workshop, deviation=changed, **changes)  # type: ignore[arg-type]
    cast.dishonest["trainer"] = "changed"
    return cast


# ---------------------------------------------------------------- trainers


class Unwilling(TrainerAgent):
    """Signs the job, and does not accept it."""

    def accepts(self, job: PublicJob) -> bool:
        return False


class Staller(TrainerAgent):
    """Stops moving when the values are to be opened."""

    def answers(self, view: GameView) -> bool:
        return view.state.phase is not Phase.OPEN_VALUES


def tardy(offset: int) -> type[TrainerAgent]:
    """A trainer whose opening of the steps stands in a block `offset` seconds after its last legal instant."""

    class Tardy(TrainerAgent):
        def reply(self, game: GameView) -> Reply:
            plain = super().reply(game)
            if game.state.phase is not Phase.OPEN_STEPS:
                return plain
            return replace(plain, wait=game.state.deadline + offset - 1 - self.world.now, untried=True)

    return Tardy


# ---------------------------------------------------------------- auditors and builders


class Forger(TrainerAgent):
    """Shows a head of its job with a signature of nobody."""

    def heads(self, job: Job, count: int) -> list[SignedHead]:
        head = Head(job_id=job.id, count=count, run_root=bytes(32))
        return [self.head(job, count), SignedHead(head=head, signature=bytes(65))]


class Mute(AuditorAgent):
    """Plays on the chain, and sends none of its moves as messages."""

    def wire(self, game: GameView, move: object) -> bytes | None:
        return None


class Garbled(AuditorAgent):
    """Sends messages that are none."""

    def wire(self, game: GameView, move: object) -> bytes | None:
        return bytes(200_000)


def seats(*makes: type[AuditorAgent]) -> list[CastMember]:
    """Auditors that do as agreed, and others beside them."""
    return [
        CastMember(
            name=f"auditor {number}", make=make, adversary=None if make is AuditorAgent else make.__name__.lower()
        )
        for number, make in enumerate(makes, 1)
    ]
