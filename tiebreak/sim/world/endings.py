"""Where a deviation ended, judged by what happened and not by what it claims. `sim.adversaries` lists the names."""

from collections.abc import Collection, Mapping
from typing import Final

from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.state import Reason
from tiebreak.protocol.parties.board import JobStatus, PublicGame
from tiebreak.protocol.tags import Digest
from tiebreak.sim.world.agents import Agent, Trainer
from tiebreak.sim.world.world import World

_REASONS: Final = {
    Reason.RECOMPUTED: "recomputed",
    Reason.PADDING: "padding",
    Reason.BROKEN_TIE: "broken tie",
    Reason.TIMEOUT: "timeout",
    Reason.CONCEDED: "conceded",
}
UNDETECTED: Final = "undetected"
"""The ending of a trainer whose false head was settled. No adversary may end like this."""


def ending(world: World, agent: Agent, wei: Mapping[str, int], false_jobs: Collection[Digest]) -> str:
    """How a dishonest party ended. The first of the following that applies is returned.

    A job of the party was slashed (and how) or abandoned; one of its false heads was settled (undetected); it lost a
    game that it started (and how); something of it was refused; it was not paid although another party of its role was,
    or a trainer would have been (unpaid). Otherwise it was harmless.
    """
    how = _as_trainer(world, agent, false_jobs) if isinstance(agent, Trainer) else None
    if how is not None:
        return how
    lost = [
        game
        for game in world.board.games.values()
        if game.challenger == agent.address and _lost_by(game, Side.CHALLENGER)
    ]
    if lost:
        return _reason(lost[0])
    if agent.account.refused:
        return "refused"
    others = [name for name, other in world.parties.items() if isinstance(other, Agent) and other.ROLE == agent.ROLE]
    paid_beside = any(wei[name] > 0 for name in others if name != agent.name)
    if wei[agent.name] <= 0 and (paid_beside or isinstance(agent, Trainer)):
        return "unpaid"
    return "harmless"


def _as_trainer(world: World, agent: Agent, false_jobs: Collection[Digest]) -> str | None:
    for job in world.board.jobs.values():
        if job.job.trainer != agent.address:
            continue
        if job.status is JobStatus.ABANDONED:
            return "abandoned"
        if job.status is JobStatus.SLASHED:
            lost = [game for game in world.board.games_of(job.job.id) if _lost_by(game, Side.DEFENDER)]
            return "equivocation" if job.equivocation or not lost else _reason(lost[0])
        if job.status is JobStatus.SETTLED and job.job.id in false_jobs:
            return UNDETECTED
    return None


def _lost_by(game: PublicGame, side: Side) -> bool:
    return not game.void and game.state.verdict is not None and game.state.verdict.winner is side.other


def _reason(game: PublicGame) -> str:
    assert game.state.verdict is not None
    return _REASONS[game.state.verdict.reason]
