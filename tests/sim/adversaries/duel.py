"""A deviating trainer against a diligent auditor, off the chain."""

from dataclasses import dataclass
from random import Random

from tiebreak.engine.run.agreement import Terms, sign_job
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Head, Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.sides import Oracle
from tiebreak.sim.adversaries.base import Catch
from tiebreak.sim.adversaries.deviations import DeviatingTrainer
from tiebreak.sim.games.duel import Match, play
from tiebreak.sim.world.work import Lie, Work
from tiebreak.sim.world.workshop import Workshop

CLIENT, TRAINER = (PrivateKey.from_int(n) for n in (11, 12))
DOMAIN = Domain(chain_id=1, contract=Address(b"\x02" * 20))


def job_of(workshop: Workshop, nonce: int = 1, levels: int = 4) -> Job:
    terms = Terms(descent_levels=levels)
    return workshop.job(client=CLIENT.address, trainer=TRAINER.address, nonce=nonce, terms=terms)


def fight(job: Job, count: int, defender: Oracle, challenger: Oracle) -> Match:
    """A game against the defender's head of so many checkpoints."""
    agreement = sign_job(job, DOMAIN, client=CLIENT, trainer=TRAINER)
    head = Head(job_id=job.id, count=count, run_root=defender.run_tree(count).root)
    return play(agreement, SignedHead.sign(head, DOMAIN, TRAINER), defender, challenger, secret=bytes(32))


@dataclass(frozen=True)
class Duel:
    """What a deviation came to."""

    workshop: Workshop
    work: Work
    lie: Lie
    match: Match

    def origin(self) -> str:
        """The part of the model that the lie is in."""
        return self.workshop.program.instruction_at(self.lie.leaf).origin


def workshop_of(kind: type[DeviatingTrainer], seed: int) -> Workshop:
    """The workshop that a kind needs, or each in turn."""
    return Workshop.open(kind.needs or ("exact", "logged")[seed % 2])


def convict(kind: type[DeviatingTrainer], seed: int) -> Duel:
    """The auditor must win, at the first lie, for a reason that the deviation names."""
    rng = Random(f"{kind.name} {seed}")
    workshop = workshop_of(kind, seed)
    job = job_of(workshop, nonce=seed, levels=rng.randint(1, 5))
    work = kind().work(workshop, job, rng)
    truth = workshop.audited(job, work)
    false = [own != true for own, true in zip(work.records, truth.records, strict=True)]
    assert work.lie is not None
    assert job.checkpoint_of(work.lie.step) == false.index(True)
    count = rng.randint(false.index(True) + 1, job.checkpoints)
    assert work.run_root(count) != truth.run_root(count)
    match = fight(job, count, work.oracle, truth.oracle)
    assert_caught(kind, match, work.lie)
    return Duel(workshop, work, work.lie, match)


def assert_caught(kind: type[DeviatingTrainer], match: Match, lie: Lie) -> None:
    state = match.final
    assert match.loser is Side.DEFENDER, kind.name
    assert (state.step, state.leaf) == (lie.step, lie.leaf), kind.name
    assert (state.element if state.claimed else None) == lie.element, kind.name
    assert state.verdict is not None
    assert Catch(state.verdict.reason.name.lower().replace("_", " ")) in kind.caught, kind.name
