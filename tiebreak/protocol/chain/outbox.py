"""An account's transactions on their way into blocks: their nonces, their bids and their fates.

An account's transactions count in the order of their numbers (nonces), so one that no block takes holds up all behind
it. An `Outbox` numbers them itself: by what the chain has, and by what it has sent. It does not ask what waits in the
mempool: nobody can check a node's answer to that, and what waits there may never be mined. It sends each transaction
again, under the same number and for a higher fee, until a block has it or its deadline is past. What it asks a node
(the newest block, counts, receipts, prices) may be late, missing or false for a while.

Everything that it sends is recorded first. Made anew from these records, an outbox goes on where it was: it sends no
call twice that has a name, and gives no number away that one of its own transactions waits for. A key that another
process uses as well costs a number now and then: a transaction whose number was used by another is `DISPLACED`, and its
sender decides afresh. So is, at worst, one whose receipt the node withholds: the contracts take no move twice.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Annotated, Any, Final

from eth_hash.auto import keccak

from tiebreak.protocol.chain.errors import NodeError
from tiebreak.protocol.chain.gas import CAP_FACTOR, Bid, Market, first_bid, raised_bid
from tiebreak.protocol.chain.node import Node, Tip, read_transaction, sign_transaction
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.packing import U64, Data, Record, unpack

MAX_RAW_BYTES: Final = 1 << 18
ENVELOPE: Final = 128
"""The most bytes of a transaction in addition to its calldata, for what a rollup takes for its data."""
BLOCKS_TO_RAISE: Final = 2
"""A bid is raised after this many new blocks without the transaction."""
LOOKS: Final = 3
"""The number of times in a row that a node must say that a nonce is used up, or free, before it is believed."""
RAISES_TO: Final = (5, 6)
"""The part of the cap that raises for one transaction may take up."""
LONGEST_PAUSE: Final = 1.0


class Fate(Enum):
    """Whether a sent transaction still waits, or how it ended."""

    WAITING = auto()
    MINED = auto()
    """It is in a block, with as many blocks on top as are asked for. It may have reverted there."""
    DISPLACED = auto()
    """Another transaction of the account has its number."""
    EXPIRED = auto()
    """Its deadline is past. It may still be mined: the next transaction outbids it under the same number."""


class Note(Record):
    """An entry of an outbox's journal. Without `raw`: the transaction of this number is no longer on its way."""

    number: U64
    name: Annotated[bytes, Data(MAX_RAW_BYTES)]
    deadline: U64
    """The last second of the chain's time in which the transaction is of use; 0 if there is none."""
    raw: Annotated[bytes, Data(MAX_RAW_BYTES)]

    @classmethod
    def decode(cls, data: bytes) -> "Note":
        """An entry from a journal that may be damaged. Raises `EncodingError`."""
        return cls.unpack("note", unpack(data, 2 * MAX_RAW_BYTES))


@dataclass(slots=True, kw_only=True, eq=False)
class Sent:
    """A transaction that an outbox has sent, maybe several times."""

    name: bytes
    to: Address | None
    data: bytes
    value: int
    gas: int
    deadline: int
    """The last second of the chain's time in which it is of use; 0 if there is none."""
    number: int
    bid: Bid
    raw: bytes = b""
    hashes: list[bytes] = field(default_factory=list)
    """The hashes of all its versions, newest last."""
    fate: Fate = Fate.WAITING
    receipt: Mapping[str, Any] | None = None
    problem: str = ""
    """The node's newest objection to it."""
    seen: bytes = b""
    """The newest block when it was last sent."""
    passed_by: int = 0
    """New blocks without it since its bid."""
    doubts: int = 0
    """The number of looks in a row that found its nonce used, and no receipt."""


class Outbox:
    """The transactions of one account. `look` is to be called at every new block, and after any time."""

    def __init__(
        self,
        node: Node,
        signer: PrivateKey,
        *,
        cap: int | None = None,
        confirmations: int = 0,
        block_seconds: int = 12,
        journal: Iterable[bytes] = (),
        record: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """`cap`: the most to pay, in wei per gas; by default a multiple of the market's price.

        A transaction is mined once it has `confirmations` blocks on top of its own. `record` syncs a note to where
        `journal` comes from, oldest first.
        """
        self._node = node
        self._signer = signer
        self._cap = cap
        self.confirmations = confirmations
        self._block_seconds = block_seconds
        self._record = record
        self._spare: dict[int, Bid] = {}
        """Bids of transactions that expired and may still be mined, by nonce."""
        self._ended = -1
        """The nonce after those of all its transactions that have ended; -1 if it knows of none."""
        self._holes = 0
        """The number of new blocks in a row that found a nonce missing."""
        self._looked = b""
        """The newest block at the last look."""
        waiting: dict[int, Sent] = {}
        for note in map(Note.decode, journal):
            before = waiting.pop(note.number, None)
            if not note.raw:
                self._ended = max(self._ended, note.number + 1)
                continue
            tx = read_transaction(note.raw)
            bid = Bid(tx["maxFeePerGas"], tx["maxPriorityFeePerGas"])
            hashes = before.hashes if before is not None and before.name == note.name else []
            waiting[note.number] = Sent(
                name=note.name, to=tx["to"], data=tx["data"], value=tx["value"], gas=tx["gas"], deadline=note.deadline,
                number=note.number, bid=bid, raw=note.raw, hashes=[*hashes, bytes(keccak(note.raw))],
            )  # fmt: skip
        self.waiting = list(waiting.values())

    # ------------------------------------------------------------------ sending

    def post(
        self, to: Address | None, data: bytes, value: int = 0, *, gas: int, deadline: int = 0, name: bytes = b""
    ) -> Sent:
        """Send a transaction without trying it. One with the name of another that waits is that one.

        Raises `InsufficientFunds`, and `NodeError` if the node does not answer; then nothing was sent.
        """
        if name and (same := next((sent for sent in self.waiting if sent.name == name), None)) is not None:
            return same
        market, account = self._node.market(), self._signer.address
        fixed = value + self._node.data_fee(len(data) + ENVELOPE)
        # An account too poor for a doubled price bids all that it has, if the next block would take that.
        self._node.require(account, fixed + gas * min(self._cap_now(market), market.base + market.tip))
        affordable = (self._node.balance(account) - fixed) // gas
        number, bid = self._number(first_bid(market, min(self._cap_now(market), affordable)), market)
        self._node.require(account, fixed + gas * bid.most)
        sent = Sent(name=name, to=to, data=data, value=value, gas=gas, deadline=deadline, number=number, bid=bid)
        seen = self._node.newest()
        self.waiting.append(sent)
        self._send(sent, seen)
        return sent

    def _number(self, bid: Bid, market: Market) -> tuple[int, Bid]:
        """The number of the next transaction, and a bid that replaces what expired there."""
        used = self._count()
        self._spare = {number: spare for number, spare in self._spare.items() if number >= used}
        for number in sorted(self._spare):
            last = self._spare[number]
            better = bid if bid.replaces(last) else raised_bid(last, market, self._cap_now(market), None)
            if better is not None:
                del self._spare[number]
                return number, better
        own = (1 + number for number in (*self._spare, *(sent.number for sent in self.waiting)))
        return max((used, *own)), bid

    def _count(self) -> int:
        """The number of the account's transactions in blocks. One above the known number must be repeated to count."""
        said: Counter[int] = Counter()
        for _ in range(3 * LOOKS):
            found = self._node.count(self._signer.address)
            said[found] += 1
            if found <= self._ended or said[found] == LOOKS:
                return max(found, self._ended)
        raise NodeError(f"expected how many transactions of the account are in blocks, got {sorted(said)}")

    def _cap_now(self, market: Market) -> int:
        return self._cap or CAP_FACTOR * (2 * market.base + market.tip)

    def _send(self, sent: Sent, newest: Tip) -> None:
        fields: dict[str, Any] = {
            "chainId": self._node.chain_id, "nonce": sent.number, "value": sent.value, "data": sent.data,
            "gas": sent.gas, "maxFeePerGas": sent.bid.most, "maxPriorityFeePerGas": sent.bid.tip,
        }  # fmt: skip
        if sent.to is not None:
            fields["to"] = sent.to
        sent.raw = sign_transaction(self._signer, fields)
        sent.hashes.append(bytes(keccak(sent.raw)))
        self._record(Note(number=sent.number, name=sent.name, deadline=sent.deadline, raw=sent.raw).encode())
        sent.seen, sent.passed_by = newest.hash, 0
        sent.problem = self._node.broadcast(sent.raw)

    # ------------------------------------------------------------------ looking

    def look(self) -> tuple[Sent, ...]:
        """Check each waiting transaction, and send it again if no block has it. Returns those that have ended.

        Raises `NodeError` if the node does not answer; then it is to be called again.
        """
        newest, used = self._node.newest(), self._node.count(self._signer.address)
        for sent in sorted(self.waiting, key=lambda sent: sent.number):
            self._look_at(sent, newest, used)
        self._fill_hole(newest, used)
        ended = tuple(sent for sent in self.waiting if sent.fate is not Fate.WAITING)
        for sent in ended:
            self._end(sent)
        return ended

    def _end(self, sent: Sent) -> None:
        self.waiting.remove(sent)
        if sent.fate is Fate.EXPIRED:
            self._spare[sent.number] = sent.bid
        else:
            self._ended = max(self._ended, sent.number + 1)
        self._record(Note(number=sent.number, name=sent.name, deadline=0, raw=b"").encode())

    def _look_at(self, sent: Sent, newest: Tip, used: int) -> None:
        sent.receipt = self._receipt(sent)
        if sent.receipt is not None:
            confirmations = newest.number - int(sent.receipt["blockNumber"])
            # A reverted transaction is decided afresh at once, even if it might still come to count.
            if confirmations >= self.confirmations or sent.receipt["status"] != 1:
                sent.fate = Fate.MINED
            return
        sent.doubts = sent.doubts + 1 if sent.number < used else 0
        if sent.doubts >= LOOKS:
            sent.fate = Fate.DISPLACED
        elif 0 < sent.deadline < newest.timestamp:
            sent.fate = Fate.EXPIRED
        elif not sent.doubts and newest.hash != sent.seen:
            self._send_again(sent, newest)
        elif not sent.doubts and sent.problem:
            sent.problem = self._node.broadcast(sent.raw)  # it may not have arrived

    def _receipt(self, sent: Sent) -> Mapping[str, Any] | None:
        """The receipt of one of the transaction's versions; None if the node has none, or a malformed one."""
        for digest in reversed(sent.hashes):
            if (found := self._node.receipt(digest)) is None:
                continue
            fields = (found.get("blockNumber"), found.get("status"), found.get("gasUsed"))
            if bytes(found.get("transactionHash", b"")) == digest and all(isinstance(value, int) for value in fields):
                return found
        return None

    def _send_again(self, sent: Sent, newest: Tip) -> None:
        sent.seen, sent.passed_by = newest.hash, sent.passed_by + 1
        if sent.passed_by < BLOCKS_TO_RAISE and not sent.problem:
            sent.problem = self._node.broadcast(sent.raw)  # nodes forget
            return
        market = self._node.market()
        fixed = sent.value + self._node.data_fee(len(sent.raw))
        affordable = (self._node.balance(self._signer.address) - fixed) // sent.gas
        left = (sent.deadline - newest.timestamp) // (BLOCKS_TO_RAISE * self._block_seconds) if sent.deadline else None
        # The rest is for what takes its place if it expires.
        cap = self._cap_now(market) * RAISES_TO[0] // RAISES_TO[1]
        if (bid := raised_bid(sent.bid, market, min(cap, affordable), left)) is None:
            sent.problem = self._node.broadcast(sent.raw)
        else:
            sent.bid = bid
            self._send(sent, newest)

    def _fill_hole(self, newest: Tip, used: int) -> None:
        """Send the first transaction under the number that the chain lacks, if one is missing before it.

        That happens after a false count, and where nodes forgot what expired.
        """
        if newest.hash == self._looked:
            return
        self._looked = newest.hash
        first = min(self.waiting, key=lambda sent: sent.number, default=None)
        is_missing = first is not None and first.receipt is None and used < first.number
        self._holes = self._holes + 1 if is_missing else 0
        if first is not None and self._holes >= LOOKS:
            self._ended = -1  # as after a reorganisation: what has ended may be in no block any more
            before, first.number, self._holes = first.number, self._count(), 0
            if (spare := self._spare.pop(first.number, None)) is not None and not first.bid.replaces(spare):
                market = self._node.market()
                first.bid = raised_bid(spare, market, self._cap_now(market), None) or first.bid
            self._send(first, newest)
            self._record(Note(number=before, name=first.name, deadline=0, raw=b"").encode())

    def wait(self, sent: Sent, seconds: float) -> None:
        """Look until a transaction has ended. Raises `NodeError` after these seconds of the machine's clock.

        Then it counts as expired: it may still be mined, but the next transaction takes its number.
        """
        end, pause, problem = time.monotonic() + seconds, 0.02, ""
        while sent in self.waiting:
            try:
                self.look()
            except NodeError as error:
                problem = str(error)
            if sent not in self.waiting:
                return
            if time.monotonic() >= end:
                sent.fate = Fate.EXPIRED
                self._end(sent)
                said = problem or sent.problem or "nothing against it"
                raise NodeError(f"expected the transaction in a block within {seconds:.0f} s; the node said {said}")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
