"""Parties that live on a real chain: machines, each with a ground of its own, before nodes that fail and lie.

No hub and no files: what parties say arrives at once, and what they compute is looked up (`tests.protocol.runs`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.chain.support import ETHER, STRANGER
from tests.protocol.runs import CHALLENGER, CLIENT, SECRET, TRAINER, Run
from tests.protocol.town import KINDS, TALKED, TALKED_TRUTH, TRUTH, root
from tiebreak.node.ground import ChainGround
from tiebreak.protocol.chain import Chain, EmbeddedChain, NodeError
from tiebreak.protocol.chain.node import Node
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.sides import Challenger, Defender, resume
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import PublicGame
from tiebreak.protocol.parties.machine import PartyMachine
from tiebreak.protocol.parties.player import Player
from tiebreak.protocol.parties.terms import Pace

BLOCK = 12


class Faulty:
    """A node with a fault in front of it: before each answer, `fault` may raise, or give another answer."""

    def __init__(self, node: Node, fault: Callable[[str, tuple[Any, ...]], Any] = lambda *_: None) -> None:
        self._node, self.fault = node, fault
        self.asked = self.failed = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._node, name)
        if not callable(found):
            return found

        def asked(*args: Any, **kwargs: Any) -> Any:
            self.asked += 1
            answer = self.fault(name, args)
            return found(*args, **kwargs) if answer is None else answer()

        return asked


@dataclass
class Rows:
    """An outbox's rows that outlive a process."""

    rows: list[bytes] = field(default_factory=list)

    def notes(self) -> list[bytes]:
        return list(self.rows)

    def note(self, note: bytes) -> None:
        self.rows.append(note)


class Villager:
    """A machine with its ground, and what survives its death."""

    def __init__(self, village: "Village", name: str) -> None:
        self.village, self.name = village, name
        self.kind, self.key = KINDS[name]
        self.node = Faulty(village.chain.node)
        self.journal: list[e.AppendRecord] = []
        self.rows = Rows()
        self.inbox: list[e.Event] = []
        self.events: list[e.Event] = []
        """All that the machine was told."""
        self.sent: list[e.Transact] = []
        self.away = 0
        self.clock = 0
        """By how much its machine's clock is off, in seconds."""
        self.wake()

    def wake(self) -> None:
        """Made anew from what was kept."""
        chain = Chain(self.node)  # type: ignore[arg-type]
        chain._deployment = self.village.chain.deployment
        pace = Pace(block_seconds=BLOCK, step_seconds=1, confirmations=self.village.confirmations)
        self.ground = ChainGround(chain, self.key, self.rows, pace=pace, steady=self.steady)
        self.machine: PartyMachine = self.kind(
            board=self.ground.board, domain=self.ground.domain, pace=pace, key=self.key, journal=list(self.journal)
        )
        self.ground.know(self.machine)
        self.is_started = False

    def steady(self) -> float:
        return self.village.seconds + self.clock

    def tell(self, event: e.Event) -> None:
        self.events.append(event)
        for action in self.machine.observe(event):
            self.act(action)

    def act(self, action: e.Action) -> None:
        match action:
            case e.AppendRecord():
                assert all(action.place != kept.place for kept in self.journal), "a place is written once"
                self.journal.append(action)
            case e.Transact():
                self.sent.append(action)
                self.ground.send(action)
            case e.Start(work=work):
                self.inbox.append(self.village.done(self, work))
            case e.FetchRun():
                self.inbox.append(e.Arrived(at=self.ground.now(), job_id=action.job_id, count=action.count))
            case _:
                self.village.carry(self, action)

    def step(self) -> None:
        try:
            found = self.ground.poll()
        except NodeError:
            self.away += 1
            return
        if not self.is_started:
            self.is_started = True
            self.tell(e.Started(at=self.ground.now()))
        for event in found:
            self.tell(event)
        inbox, self.inbox = self.inbox, []
        for event in inbox:
            self.tell(event)
        self.tell(e.Tick(at=self.ground.now()))


class Village:
    def __init__(
        self, chain: EmbeddedChain, run: Run, *, parties: tuple[str, ...] = ("client", "trainer", "auditor"),
        confirmations: int = 0,
    ) -> None:  # fmt: skip
        self.chain, self.run, self.confirmations = chain, run, confirmations
        self.truth = TALKED_TRUTH if run.job == TALKED else TRUTH
        self.seconds = 0.0
        self.villagers = {name: Villager(self, name) for name in parties}
        self.villagers["client"].inbox.append(e.JobDrafted(at=0, job=run.job))

    def mine(self) -> None:
        """A block without transactions, when the next one is due."""
        self.chain.advance(BLOCK)
        self.chain._tester.mine_block()
        self.seconds += BLOCK

    def rounds(self, most: int = 400) -> Iterator[int]:
        """Blocks and turns, until the job has ended and everybody has withdrawn."""
        for number in range(most):
            self.mine()
            for villager in self.villagers.values():
                villager.step()
            yield number
            board = self.villagers["client"].ground.board
            owed = any(self.chain.credit(key.address) for key in (CLIENT, TRAINER, CHALLENGER))
            ends = (job.is_over and self.chain.job_state(job.id).status is job.status for job in board.jobs.values())
            if board.jobs and all(ends) and not owed:  # also on the chain: its last blocks may just have vanished
                return
        raise AssertionError("expected an end, got none")

    def live(self) -> None:
        """To the end, and until everybody has seen it."""
        for _ in self.rounds():
            pass
        self.finish()

    def finish(self) -> None:
        """Let everybody see the end."""
        self.mine()
        for villager in self.villagers.values():
            villager.node.fault = lambda *_: None
            villager.step()

    def carry(self, sender: Villager, action: e.Action) -> None:
        """What is said arrives at once at everybody else."""
        for villager in self.villagers.values():
            now = villager.ground.now()
            if villager is sender:
                continue
            match action:
                case e.OfferJob(job=job) if villager.name == "trainer":
                    villager.inbox.append(e.JobOffered(at=now, job=job))
                case e.SignJob(job=job, signature=signature) if villager.name == "client":
                    villager.inbox.append(e.JobSigned(at=now, job=job, signature=signature))
                case e.ShowHead(head=head):
                    villager.inbox.append(e.HeadShown(at=now, head=head))
                case e.ShowMove(game_id=game, wire=wire) if isinstance(villager.machine, Player):
                    villager.inbox.append(e.MoveShown(at=now, game_id=game, wire=wire))
                case e.ShowReceipt(game_id=game, receipt=receipt) if isinstance(villager.machine, Player):
                    villager.inbox.append(e.ReceiptShown(at=now, game_id=game, receipt=receipt))

    def done(self, villager: Villager, work: e.Work) -> e.Event:
        now = villager.ground.now()
        match work:
            case e.Train():
                return e.Done(at=now, work=work, root=root(self.run, work.count))
            case e.Replay():
                return e.Done(at=now, work=work, root=root(self.truth, work.head.head.count))
            case e.Gather():
                return e.Done(at=now, work=work, move=self._move(villager, work))
        raise AssertionError(work)

    def _move(self, villager: Villager, work: e.Gather) -> Any:
        played = villager.ground.board.games[work.game_id]
        line = played.moves if work.said is None else work.said
        start = rules.start(played.job.job, played.head.head, played.id, played.started)
        is_defender = villager.key.address == played.job.job.trainer if villager.key else False
        player = Defender(self.run) if is_defender else Challenger(self.truth, SECRET)
        state = resume(player, start, tuple(line))
        assert (state.mover is Side.DEFENDER) == is_defender
        return player.move(state, line[-1] if line else None)


def new_village_chain() -> EmbeddedChain:
    """A chain with the contracts, and with money for everybody."""
    chain = EmbeddedChain()
    for key in (CLIENT, TRAINER, CHALLENGER, STRANGER):
        chain.fund(key.address, 10_000 * ETHER)
    chain.deploy(STRANGER)
    return chain


def game_of(villager: Villager) -> PublicGame:
    (found,) = villager.ground.board.games.values()
    return found


def key_of(name: str) -> PrivateKey:
    found = KINDS[name][1]
    assert found is not None
    return found
