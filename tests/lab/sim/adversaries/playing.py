"""What the tests of adversaries play: a deviating trainer against an auditor off the chain, and whole games."""

from dataclasses import replace
from random import Random
from typing import Any

from tiebreak.engine.capture.captured import Terms, sign_job
from tiebreak.lab.sim.adversaries.base import Adversary, Catch
from tiebreak.lab.sim.games.disputes import play as play_match
from tiebreak.lab.sim.games.playing import CATALOGUE
from tiebreak.lab.sim.world.game import TERMS, Cast, DuelResult, GameResult, PartyResult, play
from tiebreak.lab.sim.world.work import Lie, Work
from tiebreak.lab.sim.world.workshop import CLASSIFIER, Workshop
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Head, Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import MAX_GAMES, pool_bond
from tiebreak.protocol.game.match import Match
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.sides import Oracle

CLIENT, TRAINER = (PrivateKey.from_int(n) for n in (11, 12))
DOMAIN = Domain(chain_id=1, contract=Address(b"\x02" * 20))
HALF = TERMS.trainer_stake // 2
RELIEF = min(TERMS.challenger_stake // 2, HALF // MAX_GAMES)
SEATS = {"seats": 4, "seat_fee": TERMS.reward // 10, "seat_bond": pool_bond(TERMS.reward // 8)}

# ---------------------------------------------------------------- off the chain


def job_of(workshop: Workshop, nonce: int = 1, levels: int = 4) -> Job:
    terms = Terms(descent_levels=levels)
    return workshop.job(client=CLIENT.address, trainer=TRAINER.address, nonce=nonce, terms=terms)


def fight(job: Job, count: int, defender: Oracle, challenger: Oracle) -> Match:
    agreement = sign_job(job, DOMAIN, client=CLIENT, trainer=TRAINER)
    head = Head(job_id=job.id, count=count, run_root=defender.run_tree(count).root)
    return play_match(agreement, SignedHead.sign(head, DOMAIN, TRAINER), defender, challenger, secret=bytes(32))


def deviate(name: str, seed: int, workshop: Workshop | None = None) -> Work:
    """What a deviating trainer computes and shows, in this workshop or the one named exact."""
    workshop, work = workshop or Workshop.open("exact"), CATALOGUE[name].work
    assert work is not None
    return work(workshop, job_of(workshop), Random(seed))


def lied(name: str, seed: int, workshop: Workshop | None = None) -> tuple[Work, Lie]:
    """What a deviating trainer computes and shows, and its first lie."""
    work = deviate(name, seed, workshop)
    assert work.lie is not None
    return work, work.lie


def convict(name: str, seed: int) -> tuple[Workshop, Lie, Match]:
    """The auditor must win, at the first lie, for a reason that the deviation names.

    Plays in one of the workshops that it needs, or in those of the classifier in turn.
    """
    kind, rng = CATALOGUE[name], Random(f"{name} {seed}")
    places = kind.needs or CLASSIFIER
    workshop = Workshop.open(places[seed % len(places)])
    job = job_of(workshop, nonce=seed, levels=rng.randint(1, 5))
    assert kind.work is not None
    work = kind.work(workshop, job, rng)
    truth = workshop.audited(job, work)
    false = [own != true for own, true in zip(work.records, truth.records, strict=True)]
    assert work.lie is not None
    assert job.checkpoint_of(work.lie.step) == false.index(True)
    count = rng.randint(false.index(True) + 1, job.checkpoints)
    assert work.run_root(count) != truth.run_root(count)
    match = fight(job, count, work.oracle, truth.oracle)
    state, lie = match.final, work.lie
    assert match.loser is Side.DEFENDER
    assert (state.step, state.leaf) == (lie.step, lie.leaf)
    assert (state.element if state.claimed else None) == lie.element
    assert state.verdict is not None
    assert Catch(state.verdict.reason.name.lower().replace("_", " ")) in kind.caught
    return workshop, work.lie, match


# ---------------------------------------------------------------- whole games


def stage(kind: Adversary | str, rng: Random, **changes: Any) -> Cast:
    """A cast that the adversary has joined. `changes`: fields of the cast, or of its terms."""
    kind = CATALOGUE[kind] if isinstance(kind, str) else kind
    named = {name: value for name, value in changes.items() if name in Cast.__dataclass_fields__}
    terms = {name: value for name, value in changes.items() if name not in named}
    cast = Cast(workshop=Workshop.open("exact"), **named)
    cast.terms = replace(cast.terms, **terms)
    kind.join(cast, rng)
    if kind.caught:
        cast.expected[kind.name] = frozenset(str(catch) for catch in kind.caught)
    return cast


def result_of(kind: Adversary | str, seed: int, **changes: Any) -> GameResult:
    rng = Random(seed)
    return play(stage(kind, rng, **changes), f"{kind} {seed}", rng)


def played(kind: Adversary | str, seed: int, **changes: Any) -> GameResult:
    """A game of an adversary, which must break no promise and end where it says."""
    result, kind = result_of(kind, seed, **changes), CATALOGUE[kind] if isinstance(kind, str) else kind
    assert result.violations == ()
    assert result.catches[kind.name] in kind.caught
    return result


def party(result: GameResult, name: str) -> PartyResult:
    (found,) = [party for party in result.parties if party.name == name]
    return found


def of(result: GameResult, name: str) -> PartyResult:
    (found,) = [party for party in result.parties if party.adversary == name]
    return found


def duel(result: GameResult, challenger: str = "") -> DuelResult:
    """The only duel, or the only one of a challenger."""
    (found,) = [found for found in result.duels if challenger in ("", found.challenger)]
    return found
