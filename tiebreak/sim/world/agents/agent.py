"""A party: its key and account, and how it waits and sends."""

from collections.abc import Callable, Generator
from random import Random
from typing import Any, ClassVar, Final

import simpy

from tiebreak.protocol.chain import ChainError, Receipt, Reverted
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.sim.world import calls
from tiebreak.sim.world.board import PublicJob
from tiebreak.sim.world.calls import Call
from tiebreak.sim.world.mail import Account
from tiebreak.sim.world.world import Block, Pending, World

Process = Generator[simpy.Event, Any, Any]
PASSING: Final = frozenset(
    {
        "FinalHeadMissing",
        "FinalHeadPosted",
        "GameIsOver",
        "Halted",
        "NotYourTurn",
        "OpenGames",
        "TooEarly",
        "WindowOpen",
    }
    | {"WrongJobStatus", "WrongPhase", "ClockRunning", "NothingToWithdraw"}
)
"""Refusals that time heals, or that another's pending transaction caused, which may never stand in a block."""


class Agent:
    """Someone with a key. `run` is its main process; its whole life is that, and what it starts."""

    ROLE: ClassVar[str] = "agent"

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        self.world = world
        self.name = name
        self.key = key
        self.account = Account()
        self.rng = Random(world.rng.getrandbits(64))  # noqa: S311  # choices of a game, which its line replays
        """For all choices of this party."""

    @property
    def address(self) -> Address:
        """Its account."""
        return self.key.address

    def start(self) -> None:
        """Set its processes going."""
        self.spawn(self.run())
        self.spawn(self.collect())

    def run(self) -> Process:
        """Its main process."""
        yield from ()

    def on_pending(self, pending: Pending) -> None:
        """Another's transaction came into the mempool."""

    def on_block(self, block: Block) -> None:
        """A block was made."""

    # ------------------------------------------------------------------ waiting and sending

    def spawn(self, process: Process) -> simpy.Process:
        """Start a process of its own."""
        return self.world.env.process(process)

    def sleep(self, seconds: int) -> Process:
        """Let time pass."""
        if seconds > 0:
            yield self.world.env.timeout(seconds)

    def until(self, holds: Callable[[], bool], deadline: int | None = None) -> Process:
        """Wait until something holds, or an instant has come; returns whether it holds. Looks when there is news."""
        while not holds():
            rest = None if deadline is None else deadline - self.world.now
            if rest is not None and rest <= 0:
                return False
            yield self.world.news if rest is None else self.world.news | self.world.env.timeout(rest)
        return True

    def send(self, call: Call, *, untried: bool = False) -> Process:
        """Send a transaction and wait for its receipt. Raises `ChainError` (`Reverted`) if it does not come to that."""
        receipt = yield self.world.submit(self, call, untried=untried)
        assert isinstance(receipt, Receipt)
        return receipt

    def attempt(self, call: Call) -> Process:
        """Send a transaction if it would not be refused; whether it stands in a block and was not."""
        try:
            yield from self.send(call)
        except ChainError:
            return False
        return True

    def press(self, call: Call) -> Process:
        """As `attempt`; if what is in its way waits still when the next block is there, it is sent for all that."""
        if (yield from self.attempt(call)):
            return True
        yield from self.next_slot()
        if not self.world.stands_alone(self, call):
            return False
        try:
            yield from self.send(call, untried=True)
        except ChainError:
            return False
        return True

    def insist(self, call: Call, while_useful: Callable[[], bool]) -> Process:
        """Send a transaction that must come through, also if others' pending ones are in its way; whether it did.

        What was in its way and did not come into the next block need never come: then it is sent for all that.
        """
        in_the_way = False
        while while_useful():
            try:
                yield from self.send(call, untried=in_the_way and self.world.stands_alone(self, call))
            except Reverted as refusal:
                in_the_way = True
                if refusal.name not in PASSING:
                    return False
                yield from self.next_slot()
            except ChainError:
                return False  # it cannot pay
            else:
                return True
        return False

    def next_slot(self) -> Process:
        """Wait for the instant of the next block, whether there is one or not."""
        yield from self.sleep(self.world.next_block - self.world.now)

    # ------------------------------------------------------------------ heads and money

    def sign_head(self, head: Any) -> SignedHead:
        """Sign a head with its key."""
        return SignedHead.sign(head, self.world.domain, self.key)

    def publish_head(self, head: SignedHead) -> None:
        """Show a head to everyone."""
        self.world.mail.publish_head(head, self.name, self.account, self.world.now)

    def has_business(self) -> bool:
        """Whether money of its may still move: a job or a game that it is in goes on."""
        board = self.world.board
        jobs = any(self.address in (job.job.client, job.job.trainer) and not job.is_over for job in board.jobs.values())
        return jobs or any(
            not game.is_over and self.address in (game.challenger, game.job.job.trainer)
            for game in board.games.values()
        )

    def collect(self) -> Process:
        """Withdraw what it is owed, once nothing more can come."""
        while True:
            yield from self.until(self.can_collect)
            if not (yield from self.insist(calls.withdraw(self.address), self.can_collect)):
                yield self.world.news

    def can_collect(self) -> bool:
        """Whether it is owed something, and nothing more can come."""
        return self.world.board.credit(self.address) > 0 and not self.has_business()

    def jobs(self) -> Process:
        """Wait for jobs; never ends. Calls `follow` for each that `concerns` it."""
        known: set[bytes] = set()

        def fresh() -> list[PublicJob]:
            return [job for number, job in self.world.board.jobs.items() if number not in known]

        while True:
            yield from self.until(lambda: bool(fresh()))
            for job in fresh():
                known.add(job.job.id)
                if self.concerns(job):
                    self.spawn(self.follow(job))

    def concerns(self, job: PublicJob) -> bool:
        """Whether it takes part in a job, or watches it."""
        return self.address in (job.job.client, job.job.trainer)

    def follow(self, job: PublicJob) -> Process:
        """What it does about a job."""
        yield from self.until(lambda: job.is_over)
