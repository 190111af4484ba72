"""Snapshots: one encoding of where a game stands, and what is signed of it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.records import any_record
from tests.protocol.runs import CHALLENGER, DOMAIN, GAME, TRAINER
from tests.protocol.walks import WALKS, at
from tiebreak.protocol.commitments.eip712 import Domain, encode_type
from tiebreak.protocol.commitments.keys import PrivateKey, recover
from tiebreak.protocol.errors import EncodingError, SignatureError, StateError, VerificationError
from tiebreak.protocol.game.moves import Phase
from tiebreak.protocol.game.snapshot import SNAPSHOT_BYTES, Fork, Snapshot, Standing, opened_digest
from tiebreak.protocol.game.state import GameState, Level
from tiebreak.protocol.tags import Digest, Tag, tagged_hash


@given(any_record(Snapshot))
def test_game_snapshot_round_trips(snapshot: Snapshot) -> None:
    encoded = snapshot.encode()
    assert len(encoded) == SNAPSHOT_BYTES
    assert Snapshot.decode(encoded) == snapshot
    assert snapshot.id == tagged_hash(Tag.SNAPSHOT, encoded)


@given(
    st.tuples(*(st.integers(0, high) for high in (11, 6, 66, 2))).map(bytes),
    st.one_of(st.just(bytes(SNAPSHOT_BYTES - 4)), st.binary(min_size=SNAPSHOT_BYTES - 4, max_size=SNAPSHOT_BYTES - 4)),
)
def test_snapshot_bytes_are_refused_or_reencode_identically(head: bytes, rest: bytes) -> None:
    phase, level, height, fresh = head
    data = head + rest
    if 1 <= phase <= 9 and level <= 4 and height <= 64 and fresh <= 1 and rest[12:15] == bytes(3):
        assert Snapshot.decode(data).encode() == data
    else:
        with pytest.raises(EncodingError):
            Snapshot.decode(data)


# ---------------------------------------------------------------- of a game


def test_every_state_of_a_game_has_its_own_snapshot(cases: Callable[[], None]) -> None:
    for name in WALKS:
        standings = [Standing.of(before) for before, _, _ in WALKS[name]]
        assert [s.sequence for s in standings] == [*range(len(standings))]
        assert {s.game_id for s in standings} == {GAME}
        assert len({s.snapshot for s in standings}) == len(standings)
        cases()


def test_snapshot_omits_what_the_contract_stores() -> None:
    state, _ = at("terms", Phase.PROVE)
    later = replace(state, last=10**6, defender_rest=1, challenger_rest=2, game_id=b"\1" * 32, moves=9)
    assert Snapshot.of(later) == Snapshot.of(state)


FIXED: dict[str, str] = {
    "state_root": "the record, under the run root", "log_root": "the record", "checkpoint": "the step",
    "step_log": "the record; it is shown until a word of it is", "operation": "the instruction's digest",
    "chunk": "the element, or the position", "word": "only policy `logged` has one",
    "direction": "only policy `logged` has one",
}  # fmt: skip
"""Fields of the state that a snapshot need not show, and what fixes them."""
OF_THE_CHAIN = {
    "job", "head", "game_id", "defender_rest", "challenger_rest", "last", "moved", "moves", "crowd", "verdict",
}  # fmt: skip


@pytest.mark.parametrize("name", ["terms", "element", "commit", "data source"])
def test_snapshot_covers_all_other_state_of_the_game(name: str, cases: Callable[[], None]) -> None:
    state, _ = at(name, Phase.PROVE)
    # The element's bits stand in place of the chunk's digest. Later the accumulators end in them.
    hidden = "node" if state.level is Level.CHUNKS else "claimed"
    others: dict[str, Any] = {"phase": Phase.SELECT, "level": Level.STEPS}
    for field in sorted(set(GameState.__slots__) - OF_THE_CHAIN - set(FIXED) - {hidden}):
        value = getattr(state, field)
        if value != b"":  # else not reached
            other = others.get(field, value + 1 if isinstance(value, int) else b"\7" * len(value))
            assert Snapshot.of(replace(state, **{field: other})) != Snapshot.of(state), field
            cases()


def test_finished_game_has_no_snapshot() -> None:
    over = WALKS["terms"][-1][2]
    with pytest.raises(StateError, match="over"):
        Snapshot.of(over)
    with pytest.raises(StateError, match="over"):
        Standing.of(over)


def test_opened_digest_is_a_hash_chain_from_the_run_root() -> None:
    start = WALKS["terms"][0][0]
    assert opened_digest(start) == start.head.run_root
    assert len({opened_digest(before) for before, _, _ in WALKS["terms"]}) == 7


# ---------------------------------------------------------------- signatures


def standing(**changes: Any) -> Standing:
    state, _ = at("terms", Phase.SELECT_ELEMENT)
    return replace(Standing.of(state), **changes)


def test_signed_state_type_matches_the_contract() -> None:
    assert encode_type("State", Standing.kinds()) == "State(bytes32 gameId,uint32 sequence,bytes32 snapshot)"


def test_state_signature_binds_game_sequence_snapshot_and_domain() -> None:
    first = standing()
    signature = TRAINER.sign(first.digest(DOMAIN))
    assert recover(first.digest(DOMAIN), signature) == TRAINER.address
    changes: list[dict[str, Any]] = [{"game_id": bytes(32)}, {"sequence": 0}, {"snapshot": bytes(32)}]
    others = [replace(first, **changed).digest(DOMAIN) for changed in changes]
    for digest in (*others, first.digest(Domain(chain_id=1, contract=DOMAIN.contract))):
        assert recover(digest, signature) != TRAINER.address


def fork(first: Standing, second: Standing, key: PrivateKey = TRAINER, second_key: PrivateKey = TRAINER) -> Fork:
    return Fork(
        game_id=first.game_id,
        sequence=first.sequence,
        first=first.snapshot,
        first_signature=key.sign(first.digest(DOMAIN)),
        second=second.snapshot,
        second_signature=second_key.sign(second.digest(DOMAIN)),
    )


def test_two_snapshots_of_one_sequence_are_a_fork() -> None:
    first, other = standing(), standing(snapshot=Digest(b"\1" * 32))
    fork(first, other).verify(DOMAIN, TRAINER.address)
    with pytest.raises(VerificationError, match="expected two different snapshots"):
        fork(first, first).verify(DOMAIN, TRAINER.address)
    for wrong in (
        fork(first, replace(other, sequence=other.sequence + 1)),
        fork(first, replace(other, game_id=Digest(bytes(32)))),
        fork(first, other, CHALLENGER),
        fork(first, other, TRAINER, CHALLENGER),
    ):
        with pytest.raises(SignatureError):
            wrong.verify(DOMAIN, TRAINER.address)
