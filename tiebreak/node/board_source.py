"""The place where a party's transactions count: a chain, followed block by block, or the ledger of a hub.

A chain is known by what a node says of it, which may be late, incomplete or changed tomorrow. So:

1. Time is the chain's. Between two blocks it goes on by this machine's steady clock; what day it is here never matters.
2. Whatever is read belongs to one chain: the hash of the newest block is the same before and after.
3. The newest blocks are read again, at least four times. Where they differ from what was followed, be it by a
   reorganisation or because a node had not seen all of them, the board is taken back to before the difference and
   follows anew.
4. A node that has less than was followed is behind, not right: nothing is taken back until it says something else of a
   block.
5. The board is rebuilt from the chain at each start. The only rows kept are the outbox's.
6. Headers that hash to what they say link the newest blocks to each other, and show which of them hold logs. What a
   node leaves out there is taken from receipts, or noticed (`tiebreak.node.light_client`).
7. A transaction is tried on the newest block before it is sent, is sent once under its name, and has counted once the
   board has followed the block that it is in. That it would be refused is believed of the block that the board is at:
   a machine that is told so may never try again.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Final, cast

from eth_abi.exceptions import DecodingError

from tiebreak.node.journal import Journal, read_place, write_place
from tiebreak.node.light_client import LINKED, LightClient
from tiebreak.node.retrying_node import RetryingNode
from tiebreak.protocol.chain import Chain, ChainError, InsufficientFunds, NodeError, Reverted
from tiebreak.protocol.chain.board_state import FollowedBoard, Seen, head_in
from tiebreak.protocol.chain.calls import Call, call_of
from tiebreak.protocol.chain.gas import gas_limit
from tiebreak.protocol.chain.node import Node, Tip
from tiebreak.protocol.chain.outbox import Fate, Outbox, Sent
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Head, Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties.board import Board
from tiebreak.protocol.parties.ledger import Ledger, Refusal, job_of
from tiebreak.protocol.parties.machine import PartyMachine
from tiebreak.protocol.parties.player import Player
from tiebreak.protocol.parties.terms import CONFIRMATIONS, Pace
from tiebreak.protocol.tags import Digest

OVERLAP: Final = 16
"""Blocks that were followed already and are read again with the next ones."""
READS: Final = 4
"""The least number of times that each block is read again: nodes leave out what they have not indexed yet."""
RANGE: Final = 2_000
"""Blocks that one request asks for; public nodes answer no more."""
REFOLD_SECONDS: Final = 60
"""The least time between two passes over the whole chain to follow jobs whose fields became known late."""
AGAIN: Final = "Halted"
"""The error that a machine gets for a transaction that ended without an answer: it decides afresh."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A block with logs of the contracts: the transactions that logged something, and their places."""

    tip: Tip
    logs: tuple[tuple[bytes, int], ...]


@dataclass(frozen=True, slots=True)
class _Shown:
    """A transaction as a node shows it: its logs, its calls of the contracts, and its calldata."""

    seen: Seen
    calls: tuple[Call, ...]
    data: bytes


class ChainSource:
    """A board on a chain, and the way of one account's transactions there."""

    def __init__(
        self, chain: Chain, signer: PrivateKey | None = None, journal: Journal | None = None, *, pace: Pace,
        first_block: int = 0, confirmations: int = CONFIRMATIONS, cap: int | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`chain` is attached to the board. Without a signer nothing can be sent. `first_block`: the board's own.

        notes: keeps the rows of the outbox.
        """
        self.board = FollowedBoard()
        self.domain, self.pace = chain.domain, pace
        self._node = RetryingNode(chain.node, steady)
        self._chain = chain = chain.through(cast("Node", self._node))
        self._signer, self._steady = signer, steady
        self._outbox: Outbox | None = None
        if signer is not None:
            kept = {} if journal is None else {"journal": journal.notes(), "record": journal.note}
            self._outbox = chain.outbox(
                signer, cap=cap, confirmations=confirmations, block_seconds=pace.block_seconds, **kept
            )
        self._first_block = self._next = first_block
        """The first block that was not followed yet."""
        self._tip: Tip | None = None
        self._tip_seen = 0.0
        self._marks: deque[Tip] = deque(maxlen=256)
        """Blocks up to which the board was followed, oldest first."""
        self._reads: deque[int] = deque(maxlen=READS)
        """The first blocks of the last reads: what a node left out of one of them comes with the next."""
        self._followed: list[_Block] = []
        self.light_client = LightClient(chain)
        self._balances: dict[Address, tuple[bytes, int]] = {}
        """The hash of the block of the last answer for each account, and the account's wei then."""
        self._unsent: dict[e.Place, e.Transact] = {}
        self._ended: list[Sent] = []
        """Transactions mined in blocks that the board has not followed yet."""
        self._told: list[e.Event] = []
        self._late: dict[Digest, Job] = {}
        self._refolded = float("-inf")
        self.board.job_of = self._late.get

    def know(self, machine: PartyMachine) -> None:
        """Follow with what a machine knows: its programs, and its talks."""
        self.board.program_of = machine.program_of
        if isinstance(machine, Player):
            self.board.talk_of = machine.talk_of

    def learn(self, job: Job) -> None:
        """Take the fields of a job from elsewhere, if the chain does not show them. Its id says that they are right."""
        if job.id in self.board.unread:
            self._late[job.id] = job

    # ------------------------------------------------------------------ time and money

    def now(self) -> int:
        """The chain's time, in seconds; 0 before the first block was seen."""
        return 0 if self._tip is None else self._tip.timestamp + int(self._steady() - self._tip_seen)

    def data_fee(self, size: int) -> int:
        """The fee of the chain for the data of a transaction, in wei, as by `Node.data_fee`."""
        return int(self._node.data_fee(size))

    def balance(self, account: Address) -> int:
        """An account's wei at the newest block followed. Raises `NodeError` if the node does not answer."""
        at = b"" if self._tip is None else self._tip.hash
        if self._balances.get(account, (b"", 0))[0] != at or not at:
            self._balances[account] = (at, self._node.balance(account))
        return self._balances[account][1]

    # ------------------------------------------------------------------ following

    def poll(self) -> list[e.Event]:
        """Follow new blocks, send transactions that could not be sent, and see what became of those that were.

        A question that is not answered, or contradicts what is known, costs what depends on it and nothing else. Raises
        `NodeError` for one if there is nothing to tell; then it is to be called again.
        """
        problem: NodeError | None = None
        self._node.begin()
        unsent = [partial(self._send, wanted) for wanted in self._unsent.values()]
        parts: list[Callable[[], object]] = [self._follow, *unsent, self._look]
        for part in parts:
            try:
                part()
            except NodeError as error:
                problem = error
        self._tell_ended()
        told, self._told = self._told, []
        if problem is not None and not told:
            raise problem
        return told

    def _follow(self) -> None:
        newest = self._node.newest()
        while self._marks and newest.number < self._marks[-1].number and self._node.may_ask_again():
            newest = self._node.newest()  # the node is behind, or the one of several that was asked
        self._wind_back(newest)
        if self._marks and newest.number < self._marks[-1].number:
            return
        is_new = self._tip is None or newest.hash != self._tip.hash
        is_missed = any(job in self.board.unread for job in self._late)
        if is_missed and self._steady() - self._refolded >= REFOLD_SECONDS:
            # With the jobs that were learned late, everything is followed again, not too often.
            is_new, self._refolded = True, self._steady()
            self._begin_again()
        if not is_new:
            return
        began = self._next
        while self._next <= newest.number:
            unseen = (number for number in self.light_client.withheld if number > newest.number - LINKED)
            again = min(self._next - OVERLAP, self._next, *self._reads, *unseen)
            first = max(self._first_block, again, self._next - RANGE)
            last = min(newest.number, self._next + RANGE - 1)
            end = newest if last == newest.number else self._node.block(last)
            if end == newest:
                light_client = LINKED if self._marks else OVERLAP  # a start is to be quick: each block is a request
                self.light_client.link(newest, max(first, last - light_client + 1))
            read = self._read(first, last)
            if end is None or (end != self.light_client.at(last) and end != self._node.block(last)):
                raise NodeError(f"expected one block number {last}, got two")
            if not self._take_in(first, read):
                continue
            self._next = last + 1
            self._marks.append(end)
        self._reads.append(began)
        self._tip, self._tip_seen = newest, self._steady()
        self.board.height = newest.number
        self._told.append(e.BoardChanged(at=self.now(), block=newest.timestamp))

    def _wind_back(self, newest: Tip) -> None:
        """Take back what was followed of blocks that the chain no longer has."""
        while self._marks:
            mark = self._marks[-1]
            is_near = 0 < newest.number - mark.number <= LINKED
            if is_near and self.light_client.link(newest, mark.number + 1) == mark.hash:
                return
            found = newest if newest.number == mark.number else self._node.block(mark.number)
            if found is None:
                # A node that lacks the last block followed may agree with an earlier one, or know none of them.
                earlier = next((mark for mark in reversed(self._marks) if mark.number <= newest.number), None)
                if earlier is None or self._node.block(earlier.number) == earlier:
                    return
            if found == mark:
                return
            self._marks.pop()
            self.light_client.drop(mark.number)
            self._next = self._marks[-1].number + 1 if self._marks else self._first_block
            self._take_back(self._next)
        if self._followed:
            self._begin_again()

    def _take_back(self, first: int) -> None:
        """Take back all that was followed from this block on."""
        try:
            while self._followed and self._followed[-1].tip.number >= first:
                self.board.take_back()
                self._followed.pop()
        except IndexError:
            self._begin_again()

    def _begin_again(self) -> None:
        self.board.start_again()
        self._followed.clear()
        self._marks.clear()
        self._reads.clear()
        self._next = self._first_block

    def _take_in(self, first: int, read: dict[_Block, list[_Shown]]) -> bool:
        """Fold in what is new of all blocks from `first` on.

        Returns False if what was followed of them is not what they are now; then it was taken back.
        """
        before = self._recent(first)
        found = list(read)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, found, strict=False)))
        if same < len(before):
            gone, new = before[same], found[same] if same < len(found) else None
            is_there = new is None or new.tip.number >= gone.tip.number
            has_more = new is not None and new.tip == gone.tip and set(new.logs) >= set(gone.logs)
            # A block that is still there may only lack logs in the node's last answer.
            if is_there and not has_more and self._node.block(gone.tip.number) == gone.tip:
                raise NodeError(f"expected the logs of block {gone.tip.number}, got them no longer")
            self._take_back(gone.tip.number if new is None else min(gone.tip.number, new.tip.number))
            return False
        for block in found[same:]:
            self.board.begin_block()
            self.board.height = block.tip.number
            self._followed.append(block)
            for shown in read[block]:
                heads = self._heads(shown)
                self.board.follow(shown.seen)
                self._told += [e.HeadShown(at=max(self.now(), shown.seen.at), head=head) for head in heads]
        return True

    # ------------------------------------------------------------------ reading

    def _recent(self, first: int) -> list[_Block]:
        """The blocks that were followed from this one on."""
        return self._followed[bisect_left(self._followed, first, key=lambda block: block.tip.number) :]

    def _read(self, first: int, last: int) -> dict[_Block, list[_Shown]]:
        """The blocks with logs of the contracts, in their order; without their transactions if followed already.

        Raises `NodeError` for logs that cannot be of one chain.
        """
        found_logs = self.light_client.logs(first, last)
        numbered: dict[int, list[Mapping[str, Any]]] = {}
        for log in sorted(found_logs, key=lambda log: (int(log["blockNumber"]), int(log["logIndex"]))):
            numbered.setdefault(int(log["blockNumber"]), []).append(log)
        read: dict[_Block, list[_Shown]] = {}
        known = self._recent(first)
        for number, found in numbered.items():
            block = self._block(number, found, known)
            read[block] = [] if block in known else self._transactions(block, found)
        return read

    def _block(self, number: int, logs: list[Mapping[str, Any]], followed: list[_Block]) -> _Block:
        """The block of some logs. One that was followed with the same logs is not requested again."""
        places = tuple((bytes(log["transactionHash"]), int(log["logIndex"])) for log in logs)
        hashes = {bytes(log["blockHash"]) for log in logs}
        for known in followed:
            if {known.tip.hash} == hashes and known.logs == places:
                return known
        tip = self.light_client.at(number) or self._node.block(number)
        if tip is None or hashes != {tip.hash}:
            raise NodeError(f"expected logs of one block number {number}, got those of another")
        return _Block(tip, places)

    def _transactions(self, block: _Block, logs: list[Mapping[str, Any]]) -> list[_Shown]:
        by_hash: dict[bytes, list[Mapping[str, Any]]] = {}
        for log in logs:
            by_hash.setdefault(bytes(log["transactionHash"]), []).append(log)
        return [self._transaction(block.tip, digest, found) for digest, found in by_hash.items()]

    def _transaction(self, tip: Tip, digest: bytes, logs: list[Mapping[str, Any]]) -> _Shown:
        events = tuple(event for log in logs if (event := self._chain.event_in(log)) is not None)
        found, gas = self._node.transaction(digest), 0
        data = b"" if found is None else bytes(found["input"])
        calls = [] if found is None or not found.get("to") else self._calls([(_address(found["to"]), data)])
        if not calls:  # it came by way of another contract, or of code that its sender delegates to
            calls = self._calls(self._node.inner_calls(digest))
        if any("gameId" in event.values for event in events):
            receipt = self._node.receipt(digest)
            gas = 0 if receipt is None else int(receipt["gasUsed"])
        seen = Seen(events=events, at=tip.timestamp, call=calls[0] if len(calls) == 1 else None, gas=gas)
        return _Shown(seen, tuple(calls), data)

    def _calls(self, sent: list[tuple[Address, bytes]]) -> list[Call]:
        """The calls, of (address, data) pairs, that are made to the contracts."""
        found, addresses = [], self._chain.deployment.named()
        for to, data in sent:
            try:
                call = Call.decode(data)
            except (ChainError, DecodingError, OverflowError):
                continue
            if to == addresses[call.contract]:
                found.append(call)
        return found

    def _heads(self, shown: _Shown) -> list[SignedHead]:
        """The signed heads that a transaction has shown."""
        found = [head for call in shown.calls for head in call.heads]
        for event in shown.seen.events:
            job = self.board.jobs.get(event.values.get("jobId", Digest(b"")))
            if event.name == "HeadPosted" and job is not None:
                said = event.values
                head = Head(job_id=job.id, count=said["count"], run_root=Digest(said["runRoot"]))
                if all(one.head != head for one in found):
                    hidden = head_in(head, job.job, self.domain, shown.data)
                    found += [] if hidden is None else [hidden]
        return found

    # ------------------------------------------------------------------ sending

    def send(self, wanted: e.Transact) -> None:
        """Send a transaction if it would not be refused, once; `poll` returns its fate."""
        if self._outbox is None:
            raise NodeError("expected an account to send from, got a board source that only follows")
        name = write_place(wanted.place)
        is_known = any(sent.name == name for sent in (*self._outbox.waiting, *self._ended))
        if not is_known and wanted.place not in self._unsent:
            self._unsent[wanted.place] = wanted
            self._node.begin()
            self._send(wanted)

    def _send(self, wanted: e.Transact) -> None:
        """Try to send a transaction; if the node does not answer, it is tried again at the next poll."""
        assert self._signer is not None, "nothing is unsent without an account"
        deadline, name = wanted.deadline or 0, write_place(wanted.place)
        try:
            if 0 < deadline < self.now():
                raise Reverted(AGAIN, {})
            call = call_of(wanted.transaction, self.board)
            if wanted.untried:
                to = self._chain.deployment.named()[call.contract]
                outbox = self._chain.outbox(self._signer)
                outbox.post(to, call.data, call.value, gas=gas_limit(call), deadline=deadline, name=name)
            else:
                self._chain.post(self._signer, call, deadline=deadline, name=name)
            error = None
        except NodeError:
            return
        except (Reverted, InsufficientFunds) as refused:
            error = refused.name if isinstance(refused, Reverted) else ""
            if error != AGAIN and not self._is_current():
                return
        if error is not None:
            self._told.append(e.Refused(at=self.now(), place=wanted.place, error=error))
        del self._unsent[wanted.place]

    def _is_current(self) -> bool:
        """Whether the node's newest block is the one that the board is at."""
        try:
            return self._tip is not None and self._node.newest().hash == self._tip.hash
        except NodeError:
            return False

    def _look(self) -> None:
        if self._outbox is not None and self._outbox.waiting:
            self._ended += self._outbox.look()

    def _tell_ended(self) -> None:
        """Tell of a transaction that has ended, once the board shows its effect."""
        waiting, self._ended = self._ended, []
        for sent in waiting:
            receipt = sent.receipt if sent.fate is Fate.MINED else None
            if receipt is not None and int(receipt["blockNumber"]) >= self._next:
                self._ended.append(sent)
                continue
            place, now = read_place(sent.name), self.now()
            is_done = receipt is not None and int(receipt["status"]) == 1
            self._told.append(e.Mined(at=now, place=place) if is_done else e.Refused(at=now, place=place, error=AGAIN))


class HubSource:
    """The ledger that a hub's posts make, and the way of one account's transactions into it.

    Its driver hands it every post of the jobs that it follows (`hear`). Time is the hub's.
    """

    def __init__(
        self, domain: Domain, account: Address | None, post: Callable[[Digest, posts.Body, bytes], object], *,
        pace: Pace, steady: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """post: keeps a post about a job in the journal, once for each tag, and sends it until the hub has it."""
        self.light_client = None
        self._ledger = Ledger(domain)
        self.board: Board = self._ledger.board
        self.domain, self.pace = domain, pace
        self._account, self._post, self._steady = account, post, steady
        self._at, self._heard_at, self._place = 0, 0.0, 0
        self._places: dict[Digest, int] = {}
        """The last place that was heard of each job."""
        self._waiting: dict[bytes, e.Place] = {}
        """Bodies of transactions that were posted and have no place yet."""
        self._told: list[e.Event] = []

    def data_fee(self, size: int) -> int:  # noqa: ARG002  # a hub takes none
        return 0

    def balance(self, account: Address) -> None:  # noqa: ARG002  # without a chain nobody pays for transactions
        return None

    def now(self) -> int:
        """The hub's time, in seconds; 0 before anything was heard of it."""
        return self._at + int(self._steady() - self._heard_at) if self._at else 0

    def note_time(self, at: int) -> None:
        """The hub has given this instant to a post."""
        if at > self.now():
            self._at, self._heard_at = at, self._steady()

    def hear(self, place: int, at: int, post: posts.Post, body: posts.Body) -> None:
        """Take a post with all its signatures checked; of each job, later places come later."""
        if place <= self._places.get(post.job_id, 0):
            return
        self._places[post.job_id], self._place = place, max(place, self._place)
        self.note_time(at)
        error = ""
        try:
            self._ledger.read(post, body, at)
        except Refusal as refused:
            error = refused.name
        if not isinstance(body, posts.TransactionBody):
            return
        if post.sender == self._account and (own := self._waiting.pop(body.encode(), None)) is not None:
            now = self.now()
            self._told.append(e.Refused(at=now, place=own, error=error) if error else e.Mined(at=now, place=own))
        if not error:
            self._told += [e.HeadShown(at=self.now(), head=head) for head in body.transaction.heads]
            self._told.append(e.BoardChanged(at=self.now(), block=at))

    def poll(self) -> list[e.Event]:
        told, self._told = self._told, []
        return told

    def send(self, wanted: e.Transact) -> None:
        """Post a transaction if the ledger would take it now, once."""
        if self._account is None:
            raise StateError("expected an account to post from, got a board source that only follows")
        if wanted.place in self._waiting.values():
            return
        now, job = self.now(), job_of(wanted.transaction, self.board)
        try:
            if wanted.deadline is not None and wanted.deadline < now:
                raise Refusal(AGAIN)
            if job is None:
                raise Refusal("NoSuchGame")
            if not wanted.untried:
                self._ledger.judge(self._account, wanted.transaction, now)
        except Refusal as refused:
            self._told.append(e.Refused(at=now, place=wanted.place, error=refused.name))
            return
        body = posts.TransactionBody(transaction=wanted.transaction)
        self._waiting[body.encode()] = wanted.place
        self._post(job, body, write_place(wanted.place) + self._place.to_bytes(8, "big"))


AnyBoardSource = ChainSource | HubSource
"""The places where a party's transactions may count."""


def _address(value: object) -> Address:
    return Address(bytes.fromhex(value.removeprefix("0x")) if isinstance(value, str) else bytes(value))  # type: ignore[call-overload]
