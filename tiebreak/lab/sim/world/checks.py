"""The promises of the system, checked at the end of a game. Each check returns a sentence for every violation.

1. No honest party loses a stake, a reward it earned or a deposit (gas apart); an honest trainer is paid. Under policy
   `logged` a dishonest client may keep the reward of the last segment, and of no other.
2. A false head that was watched never settles, and nobody is paid for receipts from the first lie on.
3. Every adversary ends where it has to.
4. The board owns exactly what it owes, and no money of an honest party is stuck in it.
5. The Python referee and the contract agree at every move.
6. A cheat that an honest auditor convicts by recomputing is convicted at its first lie.
7. No seat of a true run is paid for an audit that was not made.
8. No party signs two things in one place, even if it died in between.

Where an adversary ended (`ending`) is judged by what happened and not by what it claims. `sim.adversaries` lists the
names of the endings.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from tiebreak.lab.sim.world.agents import Agent, TrainerAgent
from tiebreak.lab.sim.world.work import Lie
from tiebreak.lab.sim.world.world import World
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.state import Reason
from tiebreak.protocol.parties.board import BURNED, JobStatus, PublicGame, PublicJob
from tiebreak.protocol.parties.events import Alarm, AppendRecord, Place
from tiebreak.protocol.parties.machine import UNEXPECTED
from tiebreak.protocol.parties.trainer import AHEAD
from tiebreak.protocol.tags import Digest

_REASONS: Final = {
    Reason.RECOMPUTED: "recomputed",
    Reason.PADDING: "padding",
    Reason.TIMEOUT: "timeout",
    Reason.CONCEDED: "conceded",
    Reason.FORKED: "forked",
}
UNDETECTED: Final = "undetected"
"""The ending of a trainer whose false head was settled. No adversary may end like this."""
_UNPAID: Final = (JobStatus.SLASHED, JobStatus.ABANDONED)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A finished game, as the checks see it. `agents` maps names to all parties."""

    world: World
    agents: Mapping[str, Agent]
    wei: Mapping[str, int]
    """The wei that each party gained or lost, gas apart."""
    deviations: Mapping[str, str]
    """Maps each dishonest party to its adversary."""
    expected: Mapping[str, frozenset[str]]
    """Maps each adversary to the endings that it may have."""
    catches: Mapping[str, str]
    """Maps each adversary to the ending that it had."""
    false_jobs: frozenset[Digest]
    """The jobs with a false head that became public."""
    watched: bool
    cut_short: bool
    """Whether the game was stopped before it came to an end by itself."""

    def is_honest(self, address: bytes) -> bool:
        return any(a.address == address and name not in self.deviations for name, a in self.agents.items())

    @property
    def jobs(self) -> list[PublicJob]:
        return list(self.world.board.jobs.values())

    @property
    def games(self) -> list[PublicGame]:
        return list(self.world.board.games.values())

    def name_of(self, address: bytes) -> str:
        """The name of the account's owner, or the address in hex for an unknown account."""
        return next((name for name, agent in self.agents.items() if agent.address == address), address.hex())


def violations(finished: Finished) -> tuple[str, ...]:
    """Every promise that was broken, as sentences."""
    promises = (
        nobody_loses,
        false_heads_fall,
        adversaries_end,
        money_adds_up,
        referees_agree,
        first_lies,
        audits_are_made,
        nothing_twice,
    )
    return tuple(sentence for promise in promises for sentence in promise(finished))


def nobody_loses(finished: Finished) -> list[str]:
    """Promise 1."""
    found = []
    for agent in finished.agents.values():
        if agent.name in finished.deviations:
            continue
        owed, wei = least_owed(finished, agent), finished.wei[agent.name]
        if wei < owed:
            found.append(f"1: {agent.name}, honest: expected at least {owed} wei, got {wei}")
    unpaid = [job.status.name for job in finished.jobs if job.status in _UNPAID and finished.is_honest(job.job.trainer)]
    return found + [f"1: the honest trainer's job ended {status}" for status in unpaid] + withheld(finished)


def withheld(finished: Finished) -> list[str]:
    """Promise 1 for a job that ended without all receipts: a dishonest party withheld them, and gained a segment."""
    found = []
    for job in (job for job in finished.jobs if job.status is JobStatus.PARTED):
        if not finished.is_honest(job.job.trainer):
            continue
        if finished.is_honest(job.job.client):
            found.append("1: the honest trainer's and the honest client's job ended PARTED")
        if job.receipts < job.head_count - AHEAD:
            found.append(f"1: the honest trainer went on to head {job.head_count} with {job.receipts} receipts")
    return found


def least_owed(finished: Finished, agent: Agent) -> int:
    """The least that an honest party must have gained, in wei, given how its jobs and games ended."""
    total = 0
    for job in finished.jobs:
        terms = job.job
        if terms.client == agent.address:
            total -= terms.reward if job.status is JobStatus.SETTLED else 0
            total -= terms.seat_fee * job.paid_fees
            total += terms.trainer_stake if job.status is JobStatus.ABANDONED else 0
            total -= job.earned if job.status is JobStatus.PARTED else 0
        if terms.trainer == agent.address and isinstance(agent, TrainerAgent):
            total += terms.reward if job.status is JobStatus.SETTLED else 0
            total += job.earned if job.status is JobStatus.PARTED else 0
    for game in finished.games:
        if game.void and game.challenger == agent.address:
            total += _relief(game)
        if game.state.verdict is None or game.void:
            continue
        won_by_defender = game.state.verdict.winner is Side.DEFENDER
        if won_by_defender and game.job.job.trainer == agent.address:
            total += game.stake // 2
        if not won_by_defender and game.challenger == agent.address:
            total += game.job.share - sum(map(_relief, finished.world.board.games_of(game.job.id)))
    return total + sum(_seats_owed(finished, agent, job) for job in finished.jobs)


def _relief(game: PublicGame) -> int:
    """The relief that is kept for, or was paid to, the challenger of a game whose job was slashed over it."""
    return game.job.relief if game.job.status is JobStatus.SLASHED and game.state.verdict is None else 0


def _seats_owed(finished: Finished, agent: Agent, job: PublicJob) -> int:
    """The wei that the seats of an honest auditor earned."""
    seats = sum(auditor == agent.address for auditor, _ in job.seating.seals.values())
    if job.status is JobStatus.SLASHED:
        saw_it = not job.seating.is_opened or (job.job.id in finished.false_jobs and not job.equivocation)
        return seats * (job.job.seat_fee + job.share) if saw_it else 0
    return seats * job.job.seat_fee if job.is_over else 0


def false_heads_fall(finished: Finished) -> list[str]:
    """Promise 2."""
    if not finished.watched:
        return []
    lies, found = _lies(finished), []
    for job in (job for job in finished.jobs if job.job.id in finished.false_jobs):
        lie = lies.get(job.job.trainer)
        is_paid = lie is not None and job.job.checkpoint_of(lie.step) < job.receipts
        if job.status is JobStatus.SETTLED or (job.status is JobStatus.PARTED and is_paid):
            found.append(f"2: a false head was watched, and job {job.job.id.hex()[:8]} was paid for it")
    return found


def _lies(finished: Finished) -> dict[Address, Lie]:
    """The first lie of each trainer that lied."""
    trainers = [agent for agent in finished.agents.values() if isinstance(agent, TrainerAgent)]
    return {t.address: t.work.lie for t in trainers if t.work is not None and t.work.lie is not None}


def adversaries_end(finished: Finished) -> list[str]:
    """Promise 3."""
    found = []
    for name, allowed in finished.expected.items():
        end = finished.catches.get(name, "nowhere")
        if end not in allowed:
            found.append(f"3: {name}: expected an end by {', '.join(sorted(allowed))}, got {end}")
    return found


def money_adds_up(finished: Finished) -> list[str]:
    """Promise 4."""
    chain, found = finished.world.chain, list[str]()
    owed = sum(chain.credit(agent.address) for agent in finished.agents.values())
    deposits = sum(
        bond for agent in finished.agents.values() for bond, _ in finished.world.board.slots_of(agent.address)
    )
    stakes = sum(game.stake + _relief(game) for game in finished.games if not game.is_over)
    held = deposits + stakes + sum(map(_held, finished.jobs)) + finished.world.board.credit(BURNED)
    owned = chain.balance(chain.deployment.board)
    if owned != owed + held:
        found.append(f"4: the board owes {owed + held} wei and owns {owned}")
    for agent in finished.agents.values():
        if agent.name not in finished.deviations and (credit := chain.credit(agent.address)):
            found.append(f"4: {agent.name} left {credit} wei in the board")
    found += [
        f"4: game {game.id.hex()[:8]} did not end"
        for game in finished.games
        if not game.is_over and finished.is_honest(game.challenger)  # an adversary may abandon its own money
    ]
    for job in (job for job in finished.jobs if not job.is_over):
        parties = [job.job.client] if job.status is JobStatus.OFFERED else [job.job.client, job.job.trainer]
        if any(map(finished.is_honest, parties)):
            found.append(f"4: job {job.job.id.hex()[:8]} did not end")
    return [*found, "4: the game went on until it was stopped"] if finished.cut_short else found


def _held(job: PublicJob) -> int:
    """The wei that the board holds of a job, and for its seats."""
    if job.status is JobStatus.CANCELLED or job.seating.is_closed:
        return 0
    seats = job.job.seats * job.job.seat_fee
    if job.status is JobStatus.OFFERED:
        return job.job.reward + seats
    seats += job.job.seat_bond * len(job.seating.seals) - sum(job.seating.claimed.values())
    if job.status is JobStatus.ACTIVE:
        return job.job.reward + job.job.trainer_stake + seats
    return seats + (job.job.trainer_stake // 2 - job.share if job.status is JobStatus.SLASHED else 0)


def referees_agree(finished: Finished) -> list[str]:
    """Promise 5."""
    alarms = [kept.text for agent in finished.agents.values() for kept in agent.kept if isinstance(kept, Alarm)]
    unexpected = [text for text in alarms if text.startswith(UNEXPECTED)]
    return [f"5: {sentence}" for sentence in [*finished.world.board.disagreements, *unexpected]]


def first_lies(finished: Finished) -> list[str]:
    """Promise 6."""
    lies, found = _lies(finished), []
    for game in finished.games:
        state, verdict, lie = game.state, game.state.verdict, lies.get(game.job.job.trainer)
        if lie is None or verdict is None or verdict.winner is Side.DEFENDER or verdict.reason is not Reason.RECOMPUTED:
            continue
        expected = (lie.step, lie.leaf, lie.element)
        place = (state.step, state.leaf, state.element if state.claimed else lie.element)
        if finished.is_honest(game.challenger) and place != expected:
            found.append(f"6: expected a conviction at step, leaf, element {expected}, got {place}")
    return found


def audits_are_made(finished: Finished) -> list[str]:
    """Promise 7. A trainer's own accounts know its root, and a guess at a false one is right."""
    found = []
    for job in finished.jobs:
        if job.status is not JobStatus.SETTLED or finished.deviations.keys() & {"trainer"}:
            continue
        for seat, amount in job.seating.claimed.items():
            name = finished.name_of(job.seating.seals[seat][0])
            if amount > job.job.seat_bond and finished.agents[name].account.steps < job.job.steps:
                found.append(f"7: seat {seat} paid {name} {amount} wei for an audit that was not made")
    return found


def nothing_twice(finished: Finished) -> list[str]:
    """Promise 8: journals of all whose decisions are those of honest parties, and heads of honest trainers."""
    found = []
    for agent in finished.agents.values():
        if not agent.is_plain:
            continue
        places: list[Place] = [entry.place for entry in agent.kept if isinstance(entry, AppendRecord)]
        mail = finished.world.mail
        own = [job.job for job in finished.jobs if job.job.trainer == agent.address]
        if agent.name not in finished.deviations:  # of others, an accomplice may have the key
            heads = {known.head for job in own for known in mail.heads_of(job.id) if mail.is_valid(known.head, job)}
            places += [("head shown", head.head.job_id, head.head.count) for head in heads]
        twice = [place for place, times in Counter(places).items() if times > 1]
        found += [f"8: {agent.name} has two things at {place[0]!r}" for place in twice]
    return found


# ---------------------------------------------------------------- where an adversary ended


def ending(world: World, agent: Agent, wei: Mapping[str, int], false_jobs: Collection[Digest]) -> str:
    """The ending of a dishonest party. The first of the following that applies is returned.

    A job of the party was slashed (and how) or abandoned; one of its false heads was settled (undetected); it lost a
    game that it started (and how); it lost the bond of a seat (forfeited); something of it was refused; it was paid no
    more than relief although another party of its role was, or a trainer would have been (unpaid). Else: harmless.
    """
    how = _as_trainer(world, agent, false_jobs) if isinstance(agent, TrainerAgent) else None
    if how is not None:
        return how
    games = [game for game in world.board.games.values() if game.challenger == agent.address]
    if lost := [game for game in games if _lost_by(game, Side.CHALLENGER)]:
        return _reason(lost[0])
    jobs = list(world.board.jobs.values())
    if any(
        job.is_over and job.seating.seals[n][0] == agent.address and n not in job.seating.claimed
        for job in jobs
        for n in job.seating.seals
    ):
        return "forfeited"  # a seat was not claimed before it was too late
    if agent.account.refused:
        return "refused"
    if any(job.status is JobStatus.PARTED and job.job.client == agent.address for job in jobs):
        return "parted"
    others = [name for name, other in world.parties.items() if other.ROLE == agent.ROLE and name != agent.name]
    paid_beside = any(wei[name] > 0 for name in others)
    # A mirror looks like those who compute: it gets its gas back as they do, and no prize.
    relief = sum(map(_relief, games))
    if wei[agent.name] <= relief and (paid_beside or isinstance(agent, TrainerAgent)):
        return "unpaid"
    return "harmless"


def _as_trainer(world: World, agent: Agent, false_jobs: Collection[Digest]) -> str | None:
    for job in world.board.jobs.values():
        if job.job.trainer != agent.address:
            continue
        if job.status in (JobStatus.ABANDONED, JobStatus.PARTED):
            return job.status.name.lower()
        if job.status is JobStatus.SLASHED:
            lost = [game for game in world.board.games_of(job.job.id) if _lost_by(game, Side.DEFENDER)]
            if reported := [name for name in ("conceded", "inconsistency", "nonfinite") if getattr(job, name)]:
                return reported[0]
            return "equivocation" if job.equivocation or not lost else _reason(lost[0])
        if job.status is JobStatus.SETTLED and job.job.id in false_jobs:
            return UNDETECTED
    return None


def _lost_by(game: PublicGame, side: Side) -> bool:
    return not game.void and game.state.verdict is not None and game.state.verdict.winner is side.other


def _reason(game: PublicGame) -> str:
    assert game.state.verdict is not None
    return _REASONS[game.state.verdict.reason]
