"""A board beside which everything is followed from its logs alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tiebreak.protocol.chain import GameRecord, Receipt
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.chain.following import FollowedBoard, Seen
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.records import ZERO_DIGEST
from tiebreak.protocol.game.moves import Move, OpenSteps
from tiebreak.protocol.game.state import Reason
from tiebreak.protocol.parties.board import PublicGame
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest
from tiebreak.sim.world.board import Board


class Shadow(FollowedBoard):
    """Follows what a simulated board follows, by logs alone; knows of jobs only what their ids name."""

    def __init__(self, other: "Compared") -> None:
        self.known: dict[Digest, Job] = {}
        super().__init__(talk_of=other.talk_of, program_of=lambda _: other.program, job_of=self.known.get)


class Compared(Board):
    """The simulator's board, with a shadow that must never differ."""

    program: Program
    count: Callable[[], None]

    def __init__(self, domain: Domain, talk_of: Any) -> None:
        super().__init__(domain, talk_of)
        self.shadow = Shadow(self)
        self.judged = set[Digest]()
        """Games that a proof ended which came with the state to prove from."""

    def begin_block(self) -> None:
        super().begin_block()
        self.shadow.begin_block()

    def take_back(self) -> None:
        super().take_back()
        self.shadow.take_back()
        self.compare()

    def record(self, call: Call, applied: Receipt, now: int, theirs: GameRecord | None) -> None:
        super().record(call, applied, now, theirs)
        if call.kind == "enterAndProve":
            self.judged.add(call.arguments[0])
        if call.job is not None:
            self.shadow.known[call.job.id] = call.job
        self.shadow.height = self.height
        self.shadow.follow(Seen(events=applied.events, at=now, gas=applied.gas_used))
        self.compare()

    def compare(self) -> None:
        shadow = self.shadow
        assert shadow.disagreements == []
        assert (shadow.credits, shadow.pools) == (self.credits, self.pools)
        assert list(shadow.jobs) == list(self.jobs)
        assert list(shadow.games) == list(self.games)
        for job_id, job in self.jobs.items():
            assert shadow.jobs[job_id] == job
        for game_id, game in self.games.items():
            judged = game_id in self.judged
            assert facts(shadow.games[game_id], judged=judged) == facts(game, judged=judged)
        self.count()


def facts(found: PublicGame, *, judged: bool) -> dict[str, Any]:
    """All that both know. A log lacks siblings, and a proof that came with a state does not show where it stood."""
    shown = {slot: getattr(found, slot) for slot in PublicGame.__slots__ if slot not in ("job", "head", "moves")}
    shown |= {"job": found.job.id, "head": found.head.head, "moves": [bare(move) for move in found.moves]}
    verdict = found.state.verdict
    if verdict is None:
        return shown
    shown["state"] = replace(found.state, verdict=replace(verdict, detail=""))
    if verdict.reason is Reason.RECOMPUTED:
        del shown["moves"]  # the last of them is not in the log
    if judged:
        del shown["entries"]
        shown["costs"] = [gas for _, gas in found.costs]
        shown["state"] = (verdict.winner, verdict.reason)
    return shown


def bare(move: Move) -> Move:
    """A move as a log shows it."""
    if isinstance(move, OpenSteps):
        move = replace(move, state_root=ZERO_DIGEST, loss_bits=0)
    dropped = {name: type(getattr(move, name))() for name in ("siblings", "log_siblings") if hasattr(move, name)}
    return replace(move, **dropped)
