"""The outbox: numbers, bids and fates of transactions, before nodes that are slow, forgetful, or lie."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

import pytest
from eth_hash.auto import keccak
from hypothesis import given
from hypothesis import strategies as st

from tests.chain.support import TRAINER
from tiebreak.protocol.chain import InsufficientFunds, NodeError
from tiebreak.protocol.chain.gas import CAP_FACTOR, Bid, Market, first_bid, raised_bid
from tiebreak.protocol.chain.node import Tip, read_transaction
from tiebreak.protocol.chain.outbox import BLOCKS_TO_RAISE, LOOKS, Fate, Outbox, Sent
from tiebreak.protocol.commitments.eip712 import Address

GWEI = 10**9
BLOCK = 12
TO = Address(b"\x0b" * 20)


# ---------------------------------------------------------------- bids


prices = st.integers(0, 1 << 60)
markets = st.builds(Market, prices, prices)


@given(markets, st.integers(1, 1 << 64))
def test_a_first_bid_covers_a_doubled_base_fee_up_to_the_cap(market: Market, cap: int) -> None:
    bid = first_bid(market, cap)
    assert bid.most == min(cap, 2 * market.base + market.tip)
    assert bid.tip == min(market.tip, bid.most)


bids = st.builds(lambda most, tip: Bid(max(most, tip), min(most, tip)), prices, prices)


@given(bids, markets, st.integers(1, 1 << 64), st.none() | st.integers(-3, 50))
def test_raised_bid_replaces_the_old_one_within_the_cap(last: Bid, market: Market, cap: int, left: int | None) -> None:
    """The rule is go-ethereum's: both prices rise to at least 110%, in integers."""
    raised = raised_bid(last, market, cap, left)
    if raised is None:
        assert 10 * cap < 11 * max(last.most, last.tip)
        return
    assert raised.tip <= raised.most <= cap
    assert raised.most * 100 >= last.most * 110
    assert raised.tip * 100 >= last.tip * 110


def test_bids_reach_the_cap_with_the_last_block() -> None:
    cap, bid, market = 1000 * GWEI, Bid(3 * GWEI, GWEI), Market(GWEI, GWEI)
    bids = []
    for left in (5, 4, 3, 2, 1):
        bid = raised_bid(bid, market, cap, left) or bid
        bids.append(bid.most)
    assert bids == sorted(set(bids))
    assert bids[-1] == cap
    assert raised_bid(bid, market, cap, 1) is None
    slow = raised_bid(Bid(3 * GWEI, GWEI), market, cap, None)
    assert slow == Bid(3 * GWEI * 9 // 8, GWEI * 9 // 8)


# ---------------------------------------------------------------- a node to lie with


@dataclass
class FakeNode:
    """A chain of one account, with a mempool that replaces by go-ethereum's rule. Tests change its answers."""

    base: int = GWEI
    tip: int = GWEI
    funds: int = 10**20
    fee: int = 0
    """What it takes for each byte, in addition to gas."""
    chain_id: int = 1
    blocks: list[tuple[bytes, list[bytes]]] = field(default_factory=lambda: [(b"genesis", [])])
    pool: dict[int, bytes] = field(default_factory=dict)
    heard: list[bytes] = field(default_factory=list)
    deaf: bool = False
    """Whether it forgets every transaction at once, and says nothing."""
    lies: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    """The answers that it gives instead of the truth, by method."""
    _blocks: Any = field(default_factory=count)

    def _say(self, method: str, truth: Any) -> Any:
        return self.lies.get(method, lambda same: same)(truth)

    def mined(self) -> list[bytes]:
        return [raw for _, raws in self.blocks for raw in raws]

    def newest(self) -> Tip:
        number = len(self.blocks)
        return self._say("newest", Tip(number, self.blocks[-1][0], 1000 + BLOCK * number))  # type: ignore[no-any-return]

    def count(self, account: Address) -> int:
        return self._say("count", len(self.mined()))  # type: ignore[no-any-return]

    def receipt(self, transaction: bytes) -> Mapping[str, Any] | None:
        for number, (_, raws) in enumerate(self.blocks, 1):
            for raw in raws:
                if bytes(keccak(raw)) == transaction:
                    found = {"transactionHash": transaction, "blockNumber": number, "status": 1, "gasUsed": 21_000}
                    return self._say("receipt", found)  # type: ignore[no-any-return]
        return None

    def market(self) -> Market:
        return self._say("market", Market(self.base, self.tip))  # type: ignore[no-any-return]

    def balance(self, account: Address) -> int:
        return self._say("balance", self.funds)  # type: ignore[no-any-return]

    def require(self, account: Address, wei: int) -> None:
        if self.funds < wei:
            raise InsufficientFunds(account, wei, self.funds)

    def data_fee(self, size: int) -> int:
        return self.fee * size

    def broadcast(self, raw: bytes) -> str:
        self.heard.append(raw)
        number, old = numbered(raw), self.pool.get(numbered(raw))
        if self.deaf:
            return ""
        if number < len(self.mined()):
            return "nonce too low"
        if old == raw:
            return "already known"
        if old is not None and not bid_of(raw).replaces(bid_of(old)):
            return "replacement transaction underpriced"
        self.pool[number] = raw
        return ""

    def mine(self, *, empty: bool = False) -> None:
        taken: list[bytes] = []
        while not empty and (raw := self.pool.pop(len(self.mined()) + len(taken), None)) is not None:
            taken.append(raw)
        self.blocks.append((b"block %d" % next(self._blocks), taken))

    def reorganise(self, depth: int) -> None:
        """Other blocks without transactions take the place of the last; the mempool forgets what was in them."""
        del self.blocks[-depth:]
        for _ in range(depth + 1):
            self.mine(empty=True)


def numbered(raw: bytes) -> int:
    return int(read_transaction(raw)["nonce"])


def bid_of(raw: bytes) -> Bid:
    fields = read_transaction(raw)
    return Bid(fields["maxFeePerGas"], fields["maxPriorityFeePerGas"])


def outbox(node: FakeNode, **settings: Any) -> Outbox:
    return Outbox(node, TRAINER, **settings)  # type: ignore[arg-type]


def post(box: Outbox, data: bytes = b"a move", **options: Any) -> Sent:
    return box.post(TO, data, gas=100_000, **options)


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def box(node: FakeNode) -> Outbox:
    return outbox(node)


def pass_by(node: FakeNode, box: Outbox, blocks: int) -> None:
    """Blocks without transactions, and a look after each."""
    for _ in range(blocks):
        node.mine(empty=True)
        box.look()


# ---------------------------------------------------------------- ordinary life


def test_sent_transactions_are_mined_and_leave_the_outbox(node: FakeNode, box: Outbox) -> None:
    first, second = post(box), post(box, b"another")
    assert [first.number, second.number] == [0, 1], "several in flight"
    assert box.look() == ()
    node.mine()
    assert box.look() == (first, second)
    assert (first.fate, second.fate, box.waiting) == (Fate.MINED, Fate.MINED, [])
    sent = read_transaction(node.mined()[1])
    assert (sent["data"], sent["to"], sent["gas"], sent["value"]) == (b"another", TO, 100_000, 0)
    assert post(box).number == 2


def test_unmined_transaction_gets_higher_bids_up_to_the_cap() -> None:
    node, cap = FakeNode(), 40 * GWEI
    box = outbox(node, cap=cap * 6 // 5)
    sent = post(box, deadline=1000 + BLOCK * 60)
    for _ in range(50):
        node.mine(empty=True)
        assert box.look() == ()
    bids = [bid_of(raw) for raw in dict.fromkeys(node.heard)]
    assert bids[0] == Bid(3 * GWEI, GWEI)
    assert len(bids) > 8
    assert all(later.replaces(earlier) for earlier, later in pairwise(bids))
    assert bids[-1].most == cap >= max(bid.most for bid in bids)
    assert len(node.heard) >= 40, "and sent again though nothing changed, since nodes forget"
    assert {numbered(raw) for raw in node.heard} == {0}
    node.mine()
    assert box.look() == (sent,)
    assert bid_of(node.mined()[0]) == bids[-1]


def test_bids_without_a_cap_stop_at_a_market_multiple_or_the_balance() -> None:
    for funds, most in ((10**20, CAP_FACTOR * 3 * GWEI * 5 // 6), (100_000 * 5 * GWEI, 5 * GWEI)):
        node = FakeNode(funds=funds)
        box = outbox(node)
        post(box)
        pass_by(node, box, 100)
        assert max(bid_of(raw).most for raw in node.heard) == most
    with pytest.raises(InsufficientFunds):
        post(outbox(FakeNode(funds=1)))


def test_low_balance_bids_all_it_has_if_the_next_block_takes_it() -> None:
    """The market's price is 2 gwei with the tip; a first bid that has the money is 3."""
    for tenths, most in ((29, 29), (20, 20), (35, 30)):
        post(outbox(node := FakeNode(funds=100_000 * tenths * GWEI // 10 + 7)), value=7)
        assert bid_of(node.heard[0]).most == most * GWEI // 10
    with pytest.raises(InsufficientFunds):
        post(outbox(FakeNode(funds=100_000 * 2 * GWEI - 1)))


def test_bids_reserve_the_rollup_data_fee() -> None:
    """The first bid and each raise leave enough for it, and who has less sends nothing."""
    funds = 100_000 * 3 * GWEI + 7
    post(outbox(node := FakeNode(funds=funds, fee=GWEI)), value=7)
    left = funds - 7 - 100_000 * bid_of(node.heard[0]).most
    assert node.data_fee(len(node.heard[0])) <= left < node.data_fee(2 * len(node.heard[0])) + 100_000
    box = outbox(node := FakeNode(funds=2 * funds, fee=GWEI, tip=3 * GWEI))
    post(box)
    pass_by(node, box, 5 * BLOCKS_TO_RAISE)
    assert len(set(node.heard)) > 1
    assert all(100_000 * bid_of(raw).most + node.data_fee(len(raw)) <= 2 * funds for raw in node.heard)
    with pytest.raises(InsufficientFunds):
        post(outbox(FakeNode(funds=100_000 * 2 * GWEI, fee=1)))


def test_an_old_version_may_be_the_one_that_is_mined(node: FakeNode, box: Outbox) -> None:
    sent, first = post(box), node.heard[0]
    pass_by(node, box, BLOCKS_TO_RAISE)
    assert len(sent.hashes) == 2
    node.pool[0] = first
    node.mine()
    assert box.look() == (sent,)
    assert sent.receipt is not None
    assert sent.receipt["transactionHash"] == sent.hashes[0]


def test_expired_transaction_gives_its_nonce_to_the_next(node: FakeNode, box: Outbox) -> None:
    late = post(box, deadline=1000 + 3 * BLOCK)
    for _ in range(3):
        node.mine(empty=True)
        ended = box.look()
    assert (ended, late.fate) == ((late,), Fate.EXPIRED)
    following = post(box, b"next")
    assert following.number == late.number
    assert following.bid.replaces(late.bid), "it takes the expired one's place in every mempool"
    node.mine()
    assert box.look() == (following,)
    assert [read_transaction(raw)["data"] for raw in node.mined()] == [b"next"]


def test_transaction_is_still_valid_at_its_deadline(node: FakeNode, box: Outbox) -> None:
    sent = post(box, deadline=1000 + 2 * BLOCK)
    node.mine(empty=True)
    assert (node.newest().timestamp, box.look()) == (sent.deadline, ())


# ---------------------------------------------------------------- restarts, and other processes


def test_restarted_outbox_sends_nothing_twice_and_reuses_no_nonce() -> None:
    node, journal = FakeNode(), list[bytes]()
    box = outbox(node, record=journal.append)
    done = post(box, name=b"done")
    node.mine()
    assert box.look() == (done,)
    sent = [post(box, bytes([n]), name=b"move %d" % n, deadline=10_000) for n in range(3)]
    pass_by(node, box, BLOCKS_TO_RAISE)
    node.pool.clear()  # the node restarts too

    again = outbox(node, journal=journal, record=journal.append)
    assert [(one.name, one.number, one.data, one.bid, one.hashes) for one in again.waiting] == [
        (one.name, one.number, one.data, one.bid, one.hashes) for one in sent
    ]
    assert post(again, b"\x01", name=b"move 1") is again.waiting[1]
    assert post(again, b"new").number == 4
    node.mine(empty=True)
    again.look()
    node.mine()
    assert [one.name for one in again.look()] == [b"move 0", b"move 1", b"move 2", b""]
    assert [numbered(raw) for raw in node.mined()] == [0, 1, 2, 3, 4]
    assert outbox(node, journal=journal).waiting == []


def test_everything_is_recorded_before_it_is_sent() -> None:
    node, journal = FakeNode(), list[bytes]()

    def crash(note: bytes) -> None:
        journal.append(note)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        post(outbox(node, record=crash), name=b"move")
    assert node.heard == []
    again = outbox(node, journal=journal)
    assert [one.name for one in again.waiting] == [b"move"]
    again.look()
    assert len(node.heard) == 1, "it is sent now"


def test_transaction_is_displaced_if_another_process_used_its_nonce(node: FakeNode) -> None:
    ours, theirs = outbox(node), outbox(node)
    lost = post(ours, b"ours")
    node.pool.clear()  # their node has not heard of it
    kept = post(theirs, b"theirs")
    assert lost.number == kept.number == 0
    node.mine()
    looks = [ours.look() for _ in range(LOOKS)]
    assert looks == [()] * (LOOKS - 1) + [(lost,)]
    assert lost.fate is Fate.DISPLACED
    assert post(ours, b"ours").number == 1


# ---------------------------------------------------------------- reorganisations


def test_a_transaction_of_a_block_that_vanished_is_sent_again(node: FakeNode) -> None:
    """It counts once its new block has as many blocks on top as it needs."""
    box = outbox(node, confirmations=3)
    sent = post(box)
    node.mine()
    node.mine(empty=True)
    box.look()
    assert sent.receipt is not None
    node.reorganise(2)
    assert box.look() == ()
    assert sent.receipt is None
    assert set(node.pool) == {0}
    node.mine()
    for _ in range(3):
        assert box.look() == ()
        node.mine(empty=True)
    assert box.look() == (sent,)


# ---------------------------------------------------------------- hostile nodes


def test_false_nonce_from_the_node_is_corrected_later() -> None:
    """Too high, nothing would ever be mined; too low, it would be refused."""
    for lie in (7, 0):
        node = FakeNode()
        box = outbox(node)
        for _ in range(2):
            post(box)
            node.mine()
        box.look()
        box = outbox(node)  # one that has sent something knows better than to believe a lower number
        node.lies["count"] = lambda truth, lie=lie: lie
        sent = post(box, b"kept")
        assert sent.number == lie
        node.lies.clear()
        for _ in range(LOOKS + 1):
            node.mine()
            ended = box.look()
            if ended:
                break
        if lie == 7:
            assert (ended, sent.fate, sent.number) == ((sent,), Fate.MINED, 2)
        else:
            assert (ended, sent.fate, node.heard.count(sent.raw)) == ((sent,), Fate.DISPLACED, 1)
        assert len(node.mined()) == (3 if lie == 7 else 2)


@pytest.mark.parametrize(
    "receipt",
    [
        lambda truth: None,
        lambda truth: {**truth, "transactionHash": bytes(32)},
        lambda truth: {**truth, "status": None},
        lambda truth: {**truth, "blockNumber": None},
        lambda truth: {"transactionHash": truth["transactionHash"]},
    ],
)
def test_missing_or_malformed_receipt_does_not_count_as_mined(
    receipt: Callable[[Any], Any], node: FakeNode, box: Outbox
) -> None:
    """What is certain: its number is used up. The sender decides afresh; the contracts take no move twice."""
    sent = post(box)
    node.mine()
    node.lies["receipt"] = receipt
    assert box.look() == ()
    node.lies.clear()
    assert box.look() == (sent,), "late is not too late"
    withheld = post(box)
    node.mine()
    node.lies["receipt"] = receipt
    for _ in range(LOOKS):
        ended = box.look()
    assert (ended, withheld.fate) == ((withheld,), Fate.DISPLACED)


@pytest.mark.parametrize("method", ["newest", "count", "receipt", "market", "balance"])
@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_node_that_times_out_costs_time_only(node: FakeNode, box: Outbox, method: str, calls: int) -> None:
    sent, left = post(box), count(calls, -1)

    def late(truth: Any) -> Any:
        if next(left) > 0:
            raise NodeError("timed out")
        return truth

    node.lies[method] = late
    for block in range(16):
        if block <= 12:
            assert block < 12 or method == "receipt" or next(left) <= 0
            node.mine(empty=block < 12)
        try:
            box.look()
        except NodeError:
            assert box.waiting == [sent]
    assert sent.fate is Fate.MINED
    assert len(node.mined()) == 1


def test_node_that_forwards_nothing_is_reported_and_the_nonce_kept(node: FakeNode, box: Outbox) -> None:
    node.deaf = True
    sent = post(box)
    with pytest.raises(NodeError, match="expected the transaction in a block within 0 s"):
        box.wait(sent, 0.1)
    assert (sent.fate, box.waiting) == (Fate.EXPIRED, [])
    node.deaf = False
    following = post(box, b"next")
    assert (following.number, following.bid.replaces(sent.bid)) == (0, True)


def test_inconsistent_transaction_counts_are_not_believed(node: FakeNode, box: Outbox) -> None:
    left = iter([*range(50, 50 + 3 * LOOKS), *(LOOKS - 1) * [50, 3]])
    node.lies["count"] = lambda truth: next(left, truth)
    with pytest.raises(NodeError, match="expected how many transactions of the account are in blocks"):
        post(box)
    assert post(box).number == 0
    node.mine()
    box.look()
    node.lies["count"] = lambda truth: 0
    assert post(box).number == 1, "less than it knows of is not asked again"


def test_used_nonce_is_believed_only_after_consecutive_polls(node: FakeNode, box: Outbox) -> None:
    sent = post(box)
    for used in (9, 9, 0, 9, 9):
        node.lies["count"] = lambda truth, used=used: used
        assert box.look() == ()
    node.lies.clear()
    node.mine()
    assert (box.look(), sent.fate) == ((sent,), Fate.MINED)


def test_changed_nonce_is_also_changed_in_the_journal() -> None:
    node, journal = FakeNode(), list[bytes]()
    box = outbox(node, record=journal.append)
    node.lies["count"] = lambda truth: 7
    sent = post(box, name=b"move")
    node.lies.clear()
    while sent.number:
        node.mine(empty=True)
        box.look()
    assert [(one.name, one.number) for one in outbox(node, journal=journal).waiting] == [(b"move", 0)]


def test_deep_reorganisation_does_not_block_later_transactions(node: FakeNode, box: Outbox) -> None:
    """And is lost from the mempool: the next transaction has a number that the chain has not come to."""
    post(box)
    node.mine()
    assert len(box.look()) == 1
    node.reorganise(1)
    node.pool.clear()
    sent = post(box, b"next")
    assert sent.number == 1
    for _ in range(LOOKS + 1):
        node.mine()
        box.look()
    assert (sent.fate, sent.number) == (Fate.MINED, 0)
