"""Simulated time: parties, mempool and chain, in whole seconds of a `simpy` environment.

Blocks come at fixed instants, every `BLOCK_SECONDS`, but only if a transaction waits. A party that tries its call
first, as honest parties do, tries it on the newest block alone, at the instant of the next; it learns of a refusal at
once and sends nothing. What is sent is executed at once, in the order of arrival, on top of what waits (a node's
*pending* state). If the builder includes everything in that order, the block is finished already. Otherwise the block
is executed anew. Whatever was tried may revert in the block and cost its sender the gas.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, Final

import simpy
from eth.abc import MiningChainAPI
from simpy.events import URGENT

from tiebreak.lab.sim.world.board import WorldBoard
from tiebreak.lab.sim.world.mail import Account, WorldMail
from tiebreak.lab.sim.world.simulated import BASE_FEE, GAS_LIMIT, TRANSACTION_WEI, Draft, SimulatedChain
from tiebreak.lab.sim.world.weather import Weather
from tiebreak.lab.sim.world.workshop import Deviation, Workshop
from tiebreak.protocol.chain import Call, ChainError, InsufficientFunds, Receipt, Reverted
from tiebreak.protocol.chain.records import GameRecord
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.game.moves import Move
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.parties.board import PublicGame
from tiebreak.protocol.parties.driver import PartyDriver
from tiebreak.protocol.parties.machine import PartyMachine
from tiebreak.protocol.parties.player import Player
from tiebreak.protocol.parties.terms import CONFIRMATIONS, Pace

GENESIS: Final = 2_000_000_000
"""Instant 0 of every game, as the chain's timestamp in seconds."""
BLOCK_SECONDS: Final = 12
STEP_SECONDS: Final = 20
"""Seconds that one training step takes, for trainer and auditor alike."""


class Participant(PartyDriver, PartyMachine):
    """A party, as the world sees it."""

    name: str
    account: Account

    def on_pending(self, pending: "Pending") -> None:
        """Called when another party's transaction enters the mempool."""

    def on_block(self, block: "WorldBlock") -> None:
        """Called after a block was made."""

    def order(self, pending: list["Pending"], now: int) -> list["Pending"]:  # noqa: ARG002
        """The transactions of the next block, in order, if this party makes the blocks: all, as they arrived."""
        return pending


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pending:
    """A transaction that waits for a block. Everyone can read it."""

    sender: Participant
    call: Call
    done: simpy.Event
    """Succeeds with the `Receipt`, or fails with `Reverted`."""
    at: int
    """The time when it was sent, in seconds of the chain."""
    untried: bool
    """Whether it was sent without a trial, and may revert in the block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Included:
    pending: Pending
    applied: Receipt
    record: GameRecord | None
    """The contract's record, after the transaction, of the game that it was about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldBlock:
    number: int
    timestamp: int
    transactions: tuple[Included, ...]


@dataclass(kw_only=True, eq=False)
class GameSetting:
    """The computation, the terms and the speed of a game."""

    workshop: Workshop
    terms: Terms
    deviation: Deviation | None = None
    """The deviation that the trainer computes instead of the job; None for honest training."""
    block_seconds: int = BLOCK_SECONDS
    step_seconds: int = STEP_SECONDS
    confirmations: int = CONFIRMATIONS
    """Blocks on top of a transaction's before its sender counts it as sent for good, and learns of it."""
    weather: Weather | None = None

    @property
    def pace(self) -> Pace:
        """The speed of this world, for parties that judge a job's terms."""
        return Pace(block_seconds=self.block_seconds, step_seconds=self.step_seconds)


@dataclass(slots=True)
class _Drafting:
    """The pending state: what was executed already for the next block."""

    draft: Draft
    included: list[Included] = field(default_factory=list)


class _Slot(simpy.Event):
    """The instant of a block. It comes before everything else at that instant."""

    def __init__(self, env: simpy.Environment, delay: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, URGENT, delay)


class World(GameSetting):
    """One game's time, chain, mempool, mail and parties."""

    def __init__(self, chain: SimulatedChain, setting: GameSetting, rng: Random) -> None:
        """`chain` has begun at `GENESIS`."""
        super().__init__(**{each.name: getattr(setting, each.name) for each in fields(GameSetting)})
        self.env = simpy.Environment()
        self.chain, self.rng = chain, rng
        program = setting.workshop.program
        self.board = WorldBoard(chain.domain, self.talk_of)
        self.board.program_of = lambda job: program if job.program_root == program.root else None
        self.mail = WorldMail(chain.domain, self.notify)
        self.parties: dict[str, Participant] = {}
        self.builder: Participant | None = None
        self.is_dry: Callable[[Participant], bool] = lambda _: False
        """Whether an account holds too little, at the present price of gas, for any transaction."""
        self.hub: Callable[[Participant, str], int | None] = lambda _, __: 0
        """The delay, in seconds, after which the hub publishes a party's post; None for never."""
        self.pending: list[Pending] = []
        self.blocks: list[WorldBlock] = []
        self.news = self.env.event()
        """Triggered, and then replaced, whenever something was mined or published."""
        self._drafting: _Drafting | None = None
        self._undo: list[MiningChainAPI] = []
        """The chain before each block, oldest first, for a reorganisation to take back."""
        self._vanishing = 0
        self._arrival = self.env.event()
        self.env.process(self._make_blocks())

    @property
    def now(self) -> int:
        """The current instant, in seconds of the chain."""
        return GENESIS + int(self.env.now)

    @property
    def domain(self) -> Domain:
        return self.chain.domain

    @property
    def height(self) -> int:
        """The number of the newest block, if there were one at every slot: those without transactions are left out."""
        return int(self.env.now) // self.block_seconds

    @property
    def next_block(self) -> int:
        """The instant of the next block, if there is one."""
        return self.now + self.block_seconds - int(self.env.now) % self.block_seconds

    def party_at(self, address: Address) -> Participant:
        """The party with this address. Raises `StopIteration` for an unknown one."""
        return next(party for party in self.parties.values() if party.address == address)

    def talk_of(self, game: PublicGame, sequence: int, snapshot: bytes) -> tuple[GameState, list[Move]]:
        """The state of this snapshot, and the line that led to it, as one of the parties has it from the talk.

        Raises `VerificationError` if nobody does.
        """
        for party in self.parties.values():
            if isinstance(party, Player):
                with suppress(VerificationError):
                    return party.talk_of(game, sequence, snapshot)
        raise VerificationError("expected a state that a side of the game has heard of, got another")

    def notify(self) -> None:
        """Wake everyone who waits for something to change."""
        old, self.news = self.news, self.env.event()
        old.succeed()

    def balance(self, party: Participant) -> int:
        """The wei that a party can pay with."""
        return 0 if self.is_dry(party) else self.chain.balance(party.address)

    # ------------------------------------------------------------------ the mempool

    def submit(self, sender: Participant, call: Call, *, untried: bool = False) -> simpy.Event:
        """Send a transaction; the event succeeds with its `Receipt` or fails with `Reverted`.

        The transaction is tried first, on the newest block alone, and not sent if it would revert there. An adversary
        may send it untried.
        """
        pending, drafting = self.new_pending(sender, call, untried=untried), self._draft_of_next()
        is_first = not drafting.included  # then the pending state is that of the newest block
        try:
            if not untried and not is_first:
                self.chain.draft(self.next_block).add(sender.key, call)
            self._execute(drafting, pending, in_block=untried or not is_first)
        except ChainError as error:
            if isinstance(error, Reverted):
                # The Python referee must refuse what the contract refuses.
                self.board.refuse(call, sender.address, error, drafting.draft.timestamp)
            pending.done.fail(error)
            return pending.done
        self.pending.append(pending)
        if not self._arrival.triggered:
            self._arrival.succeed()
        for party in list(self.parties.values()):
            if party is not sender:
                party.on_pending(pending)
        return pending.done

    def new_pending(self, sender: Participant, call: Call, *, untried: bool = False) -> Pending:
        """A transaction that is not in the mempool yet. A builder's own transaction never has to be."""
        done = self.env.event()
        done.defused = True  # a sender need not wait for it
        return Pending(sender=sender, call=call, done=done, at=self.now, untried=untried)

    def _draft_of_next(self) -> _Drafting:
        """The pending state of the next block. Transactions left over from the last block come first.

        If every trial was refused, no block was made at that instant, and the state is rebuilt for the next one.
        """
        if self._drafting is None or self._drafting.draft.timestamp != self.next_block:
            self._drafting = _Drafting(self.chain.draft(self.next_block))
            for waiting in list(self.pending):
                self._try_to_include(self._drafting, waiting)
        return self._drafting

    def _execute(self, drafting: _Drafting, pending: Pending, *, in_block: bool) -> None:
        """Execute a transaction as the next of the block. Raises `ChainError` if it cannot be included."""
        if drafting.draft.room < GAS_LIMIT:
            return  # it waits for the next block
        call = pending.call
        if self.is_dry(pending.sender):
            raise InsufficientFunds(pending.sender.address, call.value + TRANSACTION_WEI, 0)
        applied = drafting.draft.add(pending.sender.key, call, even_if_it_reverts=in_block)
        record, started = None, [event.values["gameId"] for event in applied.events if event.name == "GameStarted"]
        game_id = started[0] if started else call.game_id
        if applied.reverted is None and game_id is not None:
            record = drafting.draft.read(Call("game", (game_id,)))
        drafting.included.append(Included(pending=pending, applied=applied, record=record))

    def _try_to_include(self, drafting: _Drafting, pending: Pending) -> None:
        """Include a transaction as a builder does, even if it reverts. Drop it if its sender cannot pay."""
        try:
            self._execute(drafting, pending, in_block=True)
        except ChainError as error:
            self._drop(pending)
            if not pending.done.triggered:
                pending.done.fail(error)

    def _drop(self, pending: Pending) -> None:
        self.pending = [other for other in self.pending if other is not pending]

    # ------------------------------------------------------------------ blocks

    def _make_blocks(self) -> Generator[simpy.Event, Any, None]:
        while True:
            if not self.pending and not self._vanishing:
                self._arrival = self.env.event()
                yield self._arrival
            yield _Slot(self.env, self.next_block - self.now)
            self._make_block()

    def reorganise(self, blocks: int) -> None:
        """Lets a builder replace the blocks of the newest `blocks` slots when the next one comes.

        Their transactions go back to the front of the mempool, and nothing of them has happened.
        """
        self._vanishing = blocks
        if not self._arrival.triggered:
            self._arrival.succeed()

    def _vanish(self) -> None:
        oldest, self._vanishing = self.now - self._vanishing * self.block_seconds, 0
        while self.blocks and self.blocks[-1].timestamp >= oldest:
            block = self.blocks.pop()
            self.chain.rewind(self._undo.pop())
            self.board.take_back()
            for included in block.transactions:
                account, applied = included.pending.sender.account, included.applied
                account.gas -= applied.gas_used
                account.fees_wei -= applied.gas_used * BASE_FEE
                account.refused -= applied.reverted is not None
            again = [included.pending for included in block.transactions]
            if self.weather is not None:
                again = _by_sender([again[place] for place in self.weather.order(len(again))], again)
            self.pending = [*again, *self.pending]
            self._drafting = None

    def _make_block(self) -> None:
        self._vanish()
        self.board.height = self.height
        waiting = list(self.pending)
        ordered = waiting if self.builder is None else self.builder.order(waiting, self.now)
        ordered, drafting, self._drafting = _by_sender(ordered, waiting), self._drafting, None
        # The pending state is the block, if it holds exactly these.
        if drafting is None or [item.pending for item in drafting.included] != ordered:
            drafting = _Drafting(self.chain.draft(self.now))
            for pending in ordered:
                self._try_to_include(drafting, pending)
        if not drafting.included:
            return
        self._undo.append(self.chain.evm)
        self.board.begin_block()
        drafting.draft.mine()
        for included in drafting.included:
            self._drop(included.pending)
            self._settle(included)
        block = WorldBlock(number=drafting.draft.number, timestamp=self.now, transactions=tuple(drafting.included))
        self.blocks.append(block)
        for party in list(self.parties.values()):
            party.on_block(block)
        if self.weather is not None and (depth := self.weather.vanishing(self.block_seconds)):
            self.reorganise(depth)
        self.notify()

    def _settle(self, included: Included) -> None:
        pending, applied = included.pending, included.applied
        account = pending.sender.account
        account.gas += applied.gas_used
        account.fees_wei += applied.gas_used * BASE_FEE
        for head in pending.call.heads if applied.reverted is None else ():
            self.mail.see_head(head, pending.sender.name, self.now)
        done = pending.done
        if applied.reverted is not None:
            account.refused += 1
            self.board.refuse(pending.call, pending.sender.address, applied.reverted, self.now)
            if not done.triggered:  # else the sender knows already, from a block that vanished
                done.fail(applied.reverted)
            return
        self.board.record(pending.call, applied, self.now, included.record)
        if self.confirmations:
            self.env.process(self._confirm(included))
        elif not done.triggered:
            done.succeed(applied)

    def _confirm(self, included: Included) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(self.confirmations * self.block_seconds)
        if any(included in block.transactions for block in self.blocks) and not included.pending.done.triggered:
            included.pending.done.succeed(included.applied)


def _by_sender(ordered: Sequence[Pending], waiting: Sequence[Pending]) -> list[Pending]:
    """The builder's order, corrected so that each account's transactions stay in the order in which it sent them.

    A builder may leave transactions out and mix accounts. A transaction whose predecessor is left out is left out too.
    """
    taken: list[Pending] = []
    for pending in ordered:
        earlier = [other for other in waiting if other.sender is pending.sender]
        before = earlier[: earlier.index(pending)] if pending in earlier else []
        taken += [other for other in before if other in ordered and other not in taken]
        if all(other in taken for other in before) and pending not in taken:
            taken.append(pending)
    return taken
