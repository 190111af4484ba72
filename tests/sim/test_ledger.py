"""Without a chain, games end as with one: the ledger against the contracts, over simulated games.

Beside them the board is followed from its logs alone, which must show the same.
"""

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.parts import slow_except
from tests.sim.adversaries.playing import stage
from tests.sim.shadow import Compared
from tiebreak.protocol.chain import GameRecord, Receipt, Reverted
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Head, LogReceipt
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.game.moves import Concede
from tiebreak.protocol.game.snapshot import Fork
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.ledger import BURNED, Ledger, Refusal
from tiebreak.protocol.parties.player import Player
from tiebreak.protocol.tags import Digest
from tiebreak.sim.adversaries.catalogue import CATALOGUE, WEAKNESSES
from tiebreak.sim.world.board import Board
from tiebreak.sim.world.game import watch
from tiebreak.sim.world.world import World

FAST = (
    "one false sum",
    "equivocation",
    "silence in the talk",
    "two ways in one talk",
    "state entered over moves on the chain",
    "swapped logs",
)
"""Between them: convictions, reports, states that enter, forks, proofs that enter, receipts."""
SEATED = {name for name in [*CATALOGUE, *WEAKNESSES] if "seat" in name} | {"sealed head never opened"}
VANISHING = {"reorganised blocks", "reorganised seal", "delayed blocks", "choice taken back under its answer"}
UNSIGNED = {"window too short for a segment", "games of a year"}


def wanted_of(call: Call, board: Board) -> e.Transaction | None:  # noqa: C901  # one case a function
    """What a party would have asked for; None for what cannot be asked for, and for pay."""
    v = call.values
    match call.kind:
        case "createJob":
            assert call.job is not None
            return e.CreateJob(job=call.job, signature=v["trainerSignature"])
        case "cancelJob":
            return e.CancelJob(job_id=v["jobId"])
        case "acceptJob":
            return e.AcceptJob(job_id=v["jobId"])
        case "postHead":
            return e.PostHead(head=call.heads[0])
        case "reportEquivocation":
            return e.Report(first=call.heads[0], second=call.heads[1])
        case "reportInconsistency":
            opened = [
                e.OpenedHead(head=head, leaf=one.leaf, siblings=tuple(one.siblings))
                for head, one in zip(call.heads, (v["first"], v["second"]), strict=True)
            ]
            return e.ReportInconsistency(position=v["position"], first=opened[0], second=opened[1])
        case "acknowledge":
            return e.Acknowledge(receipt=LogReceipt(head=_head(v["head"]), signature=v["clientSignature"]))
        case "settle":
            return e.Settle(job_id=v["jobId"])
        case "abandon":
            return e.Abandon(job_id=v["jobId"])
        case "part":
            return e.Part(job_id=v["jobId"])
        case "challenge":
            return e.Challenge(head=call.heads[0], nonce=v["nonce"])
        case "timeout":
            return e.ClaimTimeout(game_id=v["gameId"])
        case "reclaim":
            return e.Reclaim(game_id=v["gameId"])
        case "concede":
            return e.MakeMove(game_id=v["gameId"], sequence=0, move=Concede())
        case "enter":
            return e.Enter(
                game_id=v["gameId"], sequence=v["sequence"], snapshot=v["snapshot"], signature=v["signature"]
            )
        case "enterAndProve":
            entered = e.Enter(
                game_id=v["gameId"], sequence=v["sequence"], snapshot=v["snapshot"], signature=v["signature"]
            )
            assert call.entered_proof is not None
            return e.EnterAndProve(entered=entered, move=call.entered_proof, opened=tuple(v["opened"]))
        case "reportFork":
            return e.ReportFork(fork=Fork(**dict(zip(Fork.kinds(), call.arguments, strict=True))))
    if call.move is not None and call.game_id in board.games:
        game = board.games[Digest(call.game_id or b"")]
        return e.MakeMove(game_id=game.id, sequence=game.state.moves, move=call.move)
    return None


def _head(shown: Any) -> Head:
    return Head(job_id=Digest(shown.job_id), count=shown.count, run_root=Digest(shown.run_root))


class Beside(Compared):
    """The simulator's board, with a ledger that takes and refuses what the contracts take and refuse."""

    world: World

    def __init__(self, domain: Domain, talk_of: Any) -> None:
        super().__init__(domain, talk_of)
        self.ledger = Ledger(domain)
        self.sender = Address(bytes(20))
        self.paid: defaultdict[Address, int] = defaultdict(int)
        """What each account has sent to the board and not withdrawn."""
        self.refused: defaultdict[str, int] = defaultdict(int)

    def _hear(self) -> None:
        for party in type(self).world.parties.values():
            for game_id in self.ledger.board.games if isinstance(party, Player) else ():
                if game_id in self.games and party.is_side(self.games[game_id]):
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
        self.refused[error.name] += 1

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
        assert self.ledger.claim(Address(BURNED)) == self.credit(Address(BURNED))
        self.count()


@pytest.mark.parametrize(
    "name",
    slow_except([n for n in [*CATALOGUE, *WEAKNESSES] if n not in SEATED | VANISHING | UNSIGNED], *FAST),
)
def test_the_ledger_ends_games_as_the_contracts_do(
    name: str, monkeypatch: pytest.MonkeyPatch, cases: Callable[[], None]
) -> None:
    rng = Random(f"ledger {name}")
    cast = stage(name, rng)
    made, settle = World.__init__, World._settle

    def make(world: World, *args: Any, **kwargs: Any) -> None:
        Beside.world = world
        made(world, *args, **kwargs)

    def settled(world: World, included: Any) -> None:
        assert isinstance(world.board, Beside)
        world.board.sender = included.pending.sender.address
        settle(world, included)

    monkeypatch.setattr(Beside, "count", staticmethod(cases), raising=False)
    monkeypatch.setattr(Beside, "program", cast.workshop.program, raising=False)
    monkeypatch.setattr(World, "__init__", make)
    monkeypatch.setattr(World, "_settle", settled)
    monkeypatch.setattr("tiebreak.sim.world.world.Board", Beside)
    world, _ = watch(cast, name, rng)
    assert world.board.disagreements == []
