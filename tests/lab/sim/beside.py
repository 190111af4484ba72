"""Whole games of the catalogue, each played once: its board beside a ledger, and followed from its logs alone."""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import pytest

from tests.lab.sim.adversaries.playing import stage
from tiebreak.lab.sim.adversaries import blocks, seats
from tiebreak.lab.sim.games.playing import CATALOGUE
from tiebreak.lab.sim.world.board import WorldBoard
from tiebreak.lab.sim.world.game import GameResult, watch
from tiebreak.lab.sim.world.world import World
from tiebreak.protocol.chain import Call, GameRecord, Receipt, Reverted
from tiebreak.protocol.chain.board_state import FollowedBoard, Seen
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Concession, Head, Job, LogReceipt
from tiebreak.protocol.commitments.records import ZERO_DIGEST
from tiebreak.protocol.commitments.terms import MAX_GAMES
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.game.moves import Concede, Move, OpenSteps
from tiebreak.protocol.game.snapshot import Fork
from tiebreak.protocol.game.state import Reason
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import BURNED, Board, PublicGame, PublicJob
from tiebreak.protocol.parties.ledger import Ledger, Refusal
from tiebreak.protocol.parties.player import Player
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest

SEATED = {one.name for one in seats.ADVERSARIES}
ON_A_CHAIN = SEATED | {one.name for one in blocks.ADVERSARIES} | {"garbage entered"}
"""A ledger has no seats and no blocks, and takes no state that posted moves did not lead to."""

# ---------------------------------------------------------------- from logs alone


class Shadow(FollowedBoard):
    """Follows what a simulated board follows, by logs alone; knows of jobs only what their ids name."""

    def __init__(self, other: "Compared") -> None:
        self.known: dict[Digest, Job] = {}
        super().__init__()
        self.talk_of, self.program_of, self.job_of = other.talk_of, lambda _: other.program, self.known.get


class Compared(WorldBoard):
    """The simulator's board, with a shadow that must never differ."""

    program: Program
    """The program of the game that is played."""

    def __init__(self, domain: Domain, talk_of: Any) -> None:
        super().__init__(domain, talk_of)
        self.shadow = Shadow(self)
        self.judged = set[Digest]()
        """Games that a proof ended which came with the state to prove from."""
        self.comparisons = 0
        self.refusals = list[tuple[str, str]]()
        """What the contracts refused in blocks: function and error."""

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
        self.comparisons += 1

    def refuse(self, call: Call, sender: Address, error: Reverted, now: int) -> None:
        super().refuse(call, sender, error, now)
        self.refusals.append((call.kind, error.name))


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


# ---------------------------------------------------------------- beside a ledger


PLAIN = {
    wanted.FUNCTION: wanted
    for wanted in (tx.CancelJob, tx.AcceptJob, tx.Settle, tx.Abandon, tx.Part, tx.ClaimTimeout, tx.Reclaim, tx.Enter)
}
"""Those whose arguments are their fields."""


def wanted_of(call: Call, board: WorldBoard) -> tx.Transaction | None:  # noqa: C901  # one case a function
    """What a party would have asked for; None for what cannot be asked for, and for pay."""
    v = call.values
    if (plain := PLAIN.get(call.kind)) is not None:
        return plain(**dict(zip(plain.kinds(), v.values(), strict=True)))
    match call.kind:
        case "createJob":
            assert call.job is not None
            return tx.CreateJob(job=call.job, signature=v["trainerSignature"])
        case "postHead":
            return tx.PostHead(head=call.heads[0])
        case "reportEquivocation":
            return tx.Report(first=call.heads[0], second=call.heads[1])
        case "reportInconsistency":
            opened = [
                tx.OpenedHead(head=head, leaf=one.leaf, siblings=tuple(one.siblings))
                for head, one in zip(call.heads, (v["first"], v["second"]), strict=True)
            ]
            return tx.ReportInconsistency(position=v["position"], first=opened[0], second=opened[1])
        case "reportLoss":
            return tx.ReportLoss(
                head=call.heads[0], position=v["position"], state_root=v["stateRoot"], loss_bits=v["lossBits"],
                log_root=v["logRoot"], siblings=tuple(v["siblings"]),
            )  # fmt: skip
        case "reportConcession":
            conceded = Concession(head=Head(**vars(v["head"])), prover=v["prover"], signature=v["concession"])
            return tx.ReportConcession(concession=conceded)
        case "acknowledge":
            return tx.Acknowledge(receipt=LogReceipt(head=Head(**vars(v["head"])), signature=v["clientSignature"]))
        case "challenge":
            return tx.Challenge(head=call.heads[0], nonce=v["nonce"])
        case "concede":
            return tx.MakeMove(game_id=v["gameId"], sequence=0, move=Concede())
        case "enterAndProve":
            entered = tx.Enter(**dict(zip(tx.Enter.kinds(), v.values(), strict=False)))
            assert call.entered_proof is not None
            return tx.EnterAndProve(entered=entered, move=call.entered_proof, opened=tuple(v["opened"]))
        case "reportFork":
            return tx.ReportFork(fork=Fork(**dict(zip(Fork.kinds(), call.arguments, strict=True))))
    if call.move is not None and call.game_id in board.games:
        game = board.games[Digest(call.game_id or b"")]
        return tx.MakeMove(game_id=game.id, sequence=game.state.moves, move=call.move)
    return None


class Staked(Ledger):
    """A ledger with the contracts' own bound of games: stakes that are paid, and double with each, keep it free."""

    def __init__(self, domain: Domain) -> None:
        super().__init__(domain)
        self.board = Board()  # type: ignore[assignment]

    def _require_room(self, sender: Address, found: PublicJob) -> None:
        if len(self.board.open_games(found.id)) >= MAX_GAMES:
            raise Refusal("TooManyGames")


class Beside(Compared):
    """The simulator's board, with a ledger that takes and refuses what the contracts take and refuse."""

    world: World

    def __init__(self, domain: Domain, talk_of: Any) -> None:
        super().__init__(domain, talk_of)
        self.ledger = Staked(domain)
        self.sender = Address(bytes(20))
        self.paid: defaultdict[Address, int] = defaultdict(int)
        """What each account has sent to the board and not withdrawn."""

    def _hear(self) -> None:
        for party in type(self).world.parties.values():
            for game_id in self.ledger.board.games if isinstance(party, Player) else ():
                if game_id in self.games and party.address in (
                    self.games[game_id].challenger,
                    self.games[game_id].job.job.trainer,
                ):
                    for wire in party.transcript(self.games[game_id]).wires:
                        self.ledger.hear(game_id, wire)

    def record(self, call: Call, applied: Receipt, now: int, theirs: GameRecord | None) -> None:
        wanted = wanted_of(call, self)
        super().record(call, applied, now, theirs)
        self.paid[self.sender] += call.value
        for event in applied.events:
            if event.name == "Withdrawn":
                self.paid[event.values["account"]] -= event.values["amount"]
        if wanted is not None:
            self._hear()
            self.ledger.take(self.sender, wanted, now)
            self.compare_ledger()

    def refuse(self, call: Call, sender: Address, error: Reverted, now: int) -> None:
        super().refuse(call, sender, error, now)
        try:
            wanted = wanted_of(call, self)
        except EncodingError:
            return  # no transaction can carry it
        if wanted is None or error.name in ("WrongPayment", "WrongOpened", "WrongOpenedCount"):
            return
        self._hear()
        with pytest.raises(Refusal):
            self.ledger.judge(sender, wanted, now)

    def compare_ledger(self) -> None:
        board = self.ledger.board
        assert list(board.jobs) == list(self.jobs)
        for job_id, job in self.jobs.items():
            assert board.jobs[job_id] == job
        for game_id, game in self.games.items():
            assert board.games[game_id].state == game.state
            assert (board.games[game_id].rank, board.games[game_id].void) == (game.rank, game.void)
        for account in self.paid.keys() | self.credits.keys():
            assert self.ledger.claim(account) == self.credit(account) - self.paid[account], account
        assert self.ledger.claim(BURNED) == self.credit(BURNED)
        self.comparisons += 1


# ---------------------------------------------------------------- the games


@dataclass(frozen=True)
class Whole:
    """What came of a whole game."""

    result: GameResult
    sent: Counter[str]
    """How often each call succeeded."""
    refusals: list[tuple[str, str]]
    comparisons: int


@cache
def whole(name: str) -> Whole:
    """A game of an adversary, which must break no promise and end where it says, for the ledger and the logs too."""
    kind, rng = CATALOGUE[name], Random(f"ledger {name}")
    cast = stage(name, rng)
    made, settle = World.__init__, World._settle

    def make(world: World, *args: Any, **kwargs: Any) -> None:
        Beside.world = world
        made(world, *args, **kwargs)

    def settled(world: World, included: Any) -> None:
        if isinstance(world.board, Beside):
            world.board.sender = included.pending.sender.address
        settle(world, included)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compared, "program", cast.workshop.program, raising=False)
        patch.setattr(World, "__init__", make)
        patch.setattr(World, "_settle", settled)
        patch.setattr("tiebreak.lab.sim.world.world.WorldBoard", Compared if name in ON_A_CHAIN else Beside)
        world, result = watch(cast, name, rng)
    board = world.board
    assert isinstance(board, Compared)
    assert result.violations == ()
    assert result.catches[name] in kind.caught
    sent = [included for block in world.blocks for included in block.transactions]
    succeeded = Counter(one.pending.call.kind for one in sent if one.applied.reverted is None)
    return Whole(result, succeeded, board.refusals, board.comparisons)
