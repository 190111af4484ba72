"""Parties that live on a real chain: machines, each with a ground of its own, before nodes that fail and lie.

No hub and no files: what parties post arrives at once, and what they compute is looked up (`tests.protocol.runs`).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.chain.support import ETHER, STRANGER
from tests.protocol.runs import CHALLENGER, CLIENT, TRAINER, Run
from tests.protocol.town import KINDS, TALKED, TALKED_TRUTH, TRUTH, Kept, result_of
from tiebreak.node.board_source import ChainSource
from tiebreak.node.hub_client import VerifiedPost
from tiebreak.protocol.chain import Chain, EmbeddedChain, NodeError
from tiebreak.protocol.chain.node import Node
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties.board import PublicGame
from tiebreak.protocol.parties.driver import PostingDriver, Turn
from tiebreak.protocol.parties.terms import CONFIRMATIONS, Pace
from tiebreak.protocol.tags import Digest

HUB = PrivateKey.from_int(0x4B)
START = 1_900_000_000
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


class Villager(PostingDriver):
    """A party with its ground."""

    def __init__(self, village: "Village", name: str) -> None:
        self.village, self.name = village, name
        self.kind, self.key = KINDS[name]
        self.inbox: list[Callable[[], None]] = []
        self.events: list[e.Event] = []
        """All that the machine was told."""
        self.clock = 0
        """The seconds by which its machine's clock is off."""
        self.heard = 0
        """The number of posts that it has read."""
        self.is_started, self.kept = False, Kept()
        pace = Pace(block_seconds=BLOCK, step_seconds=1)
        board_source = self.new_ground(pace)
        machine: Any = self.kind(board=board_source.board, domain=board_source.domain, pace=pace, key=self.key)
        super().__init__(machine, self.kept, board_source)
        self.board_source: Any = board_source
        if isinstance(board_source, ChainSource):
            board_source.know(self.machine)

    def new_ground(self, pace: Pace) -> Any:
        """The way to the chain, before a node that may fail."""
        self.node = Faulty(self.village.chain.node)
        chain = Chain(self.node)  # type: ignore[arg-type]
        chain._deployment = self.village.chain.deployment
        wanted = self.village.confirmations
        return ChainSource(chain, self.key, self.kept, pace=pace, confirmations=wanted, steady=self.steady)

    def steady(self) -> float:
        return self.village.seconds + self.clock

    def tell(self, event: e.Event) -> None:
        self.events.append(event)
        super().tell(event)

    def start_work(self, work: e.Work, turn: Turn | None) -> bool:
        self.inbox.append(partial(self.finish, work, **result_of(work, turn, self.village.run, self.village.truth)))
        return True

    def fetch_run(self, job_id: Digest, count: int) -> bool:
        self.inbox.append(partial(self.fetched, job_id, count))
        return True

    def posted(self) -> None:
        *_, wire = self.kept.posts.values()
        self.village.deliver(posts.SignedPost.decode(wire), self.machine.domain)

    def receive(self, verified: VerifiedPost) -> None:
        self.read(verified.post, verified.body)

    def step(self) -> None:
        verified_posts, self.heard = self.village.verified_posts[self.heard :], len(self.village.verified_posts)
        for verified in verified_posts:
            self.receive(verified)
        try:
            found = self.board_source.poll()
        except NodeError:
            return
        if not self.is_started:
            self.is_started = True
            self.tell(e.Started(at=self.board_source.now()))
        for event in found:
            self.tell(event)
        inbox, self.inbox = self.inbox, []
        for then in inbox:
            then()
        self.look_again()
        self.look()


class Village:
    KIND = Villager

    def __init__(
        self, chain: Any, run: Run, *, parties: tuple[str, ...] = ("client", "trainer", "auditor"),
        confirmations: int = CONFIRMATIONS,
    ) -> None:  # fmt: skip
        self.chain, self.run, self.confirmations = chain, run, confirmations
        self.truth = TALKED_TRUTH if run.job == TALKED else TRUTH
        self.seconds = 0.0
        self.verified_posts: list[VerifiedPost] = []
        self.villagers = {name: self.KIND(self, name) for name in parties}
        client = self.villagers["client"]
        client.inbox.append(lambda: client.tell(e.JobDrafted(at=0, job=run.job)))

    @property
    def now(self) -> int:
        return START + int(self.seconds)

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
            board = self.villagers["client"].board_source.board
            owed = any(self.chain.credit(key.address) for key in (CLIENT, TRAINER, CHALLENGER))
            ends = (job.is_over and self.chain.job_state(job.id).status is job.status for job in board.jobs.values())
            if board.jobs and all(ends) and not owed:  # also on the chain: its last blocks may just have vanished
                return
        raise AssertionError("expected an end, got none")

    def live(self) -> None:
        """Lives to the end, and until everybody has seen it."""
        for _ in self.rounds():
            pass
        self.finish()

    def finish(self) -> None:
        """Let everybody see the end."""
        self.mine()
        for villager in self.villagers.values():
            villager.node.fault = lambda *_: None
            villager.step()

    def deliver(self, signed: posts.SignedPost, domain: Domain) -> None:
        """What is posted can be read at once."""
        received = posts.Received(content=signed.post.content, place=len(self.verified_posts) + 1, at=self.now)
        signature = HUB.sign(received.digest(domain))
        entry = posts.ReceivedPost(place=received.place, at=received.at, wire=signed.encode(), signature=signature)
        self.verified_posts.append(VerifiedPost(received=entry, post=signed.post, body=signed.verify(domain)))


def new_village_chain() -> EmbeddedChain:
    """A chain with the contracts, and with money for everybody."""
    chain = EmbeddedChain()
    for key in (CLIENT, TRAINER, CHALLENGER, STRANGER):
        chain.fund(key.address, 10_000 * ETHER)
    chain.deploy(STRANGER)
    return chain


def game_of(villager: Villager) -> PublicGame:
    (found,) = villager.board_source.board.games.values()
    return found
