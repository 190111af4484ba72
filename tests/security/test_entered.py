"""States that two colluding sides sign and enter: refused in the contract's words, or followed; other games go on."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest

from tests.protocol.runs import CHALLENGER, CLIENT, DOMAIN, TRAINER, program
from tests.protocol.town import PACE
from tests.protocol.walks import WALKS
from tests.vectors.snapshots import changed, logged_walk, refusal
from tiebreak.protocol.chain.board_state import FollowedBoard, Seen, standing_at
from tiebreak.protocol.chain.records import Event
from tiebreak.protocol.errors import IllegalMove
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Phase, Side
from tiebreak.protocol.game.snapshot import Snapshot
from tiebreak.protocol.game.state import GameState, Level
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import PublicGame
from tiebreak.protocol.parties.client import ClientParty
from tiebreak.protocol.parties.machine import UNEXPECTED
from tiebreak.protocol.parties.trainer import TrainerParty
from tiebreak.protocol.tags import Digest

FIRST, SECOND = Digest(b"\x01" * 32), Digest(b"\x02" * 32)
START = WALKS["terms"][0][0]
LATER = START.last + 5
states = cache(lambda: list(dict.fromkeys(before for name in WALKS for before, _, _ in WALKS[name])))
moves = cache(lambda: list({move.KIND: move for name in WALKS for _, move, _ in WALKS[name]}.values()))
LOGGED = (
    ("Descended", {"nodes": (bytes(32),) * 4}),
    ("Selected", {"index": 3, "seal": bytes(32)}),
    ("StepsOpened", {"nodes": (bytes(32),) * 2}),
    ("ValuesOpened", {"stateRoot": bytes(32), "lossBits": 0, "nodes": (bytes(32),) * 4}),
    ("TensorOpened", {"nodes": (bytes(32),)}),
    ("ChunkOpened", {"chunk": bytes(12)}),
    ("ElementSelected", {"element": 1, "seal": bytes(32)}),
    ("TermsOpened", {"nodes": (bytes(32),) * 4, "accumulator": bytes(12)}),
)


def garbage(rng: Random, walked: Sequence[GameState]) -> bytes:
    """A state of a walk, in which some fields are others', at an end of their range, or anything."""
    found, other = (Snapshot.of(rng.choice(walked)).encode() for _ in range(2))
    for _ in range(rng.randrange(1, 4)):
        at, size = rng.choice([(n, 1) for n in range(8)] + [(n, 8) for n in (8, 16, 24, 32)] + [(40, 4), (44, 4)])
        new = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size), bytes(size - 1) + rng.randbytes(1)))
        found = changed(found, at, rng.choice((new, other[at : at + size])))
    return found


def events(*shown: tuple[str, dict[str, Any]]) -> Seen:
    return Seen(events=tuple(Event(name, values, 1, bytes(32)) for name, values in shown), at=LATER)


def following(talk_of: Callable[..., Any] | None = None) -> FollowedBoard:
    board = FollowedBoard()
    board.program_of, board.job_of, board.talk_of = lambda _: program(), lambda _: START.job, talk_of or board.talk_of
    head = {"jobId": START.job.id, "count": START.head.count, "runRoot": START.head.run_root}
    board.follow(events(("JobCreated", {"jobId": START.job.id}), ("JobAccepted", {"jobId": START.job.id})))
    for number in (FIRST, SECOND):
        board.follow(events(("GameStarted", {**head, "gameId": number, "challenger": CHALLENGER.address})))
    for found in board.games.values():  # the job of the walks has no talk; states enter as where there is one
        found.state = replace(found.state, last=LATER + 1)
    return board


def require_total(state: GameState) -> None:
    """Everything that a party asks of an open game has an answer, and each move a next state or an `IllegalMove`."""
    assert state.mover in Side
    assert state.deadline >= state.last
    assert state.levels <= state.job.descent_levels
    assert state.level is Level.VALUES or state.leaves
    if state.level in (Level.CHUNKS, Level.TERMS):
        assert state.rounding
        assert state.job.is_logged or not state.is_logged_sum
    for move in moves():
        for make in (rules.apply, rules.follow):
            try:
                make(state, move, state.earliest)
            except IllegalMove:
                continue


def test_any_state_signed_by_both_sides_is_refused_or_followed(cases: Callable[[], None]) -> None:
    rng, known, refused = Random(0x36), 0, 0
    logged = [before for before, _, _ in logged_walk()]
    for n in range(3000):
        walked = logged if n % 3 else states()
        data, start = garbage(rng, walked), walked[0]
        error = refusal(data, start.job, start.head)
        if error is not None:
            refused += 1
            assert str(error) == f"InvalidSnapshot(offset={error.offset}, value={error.value})"
            cases()
            continue
        state = standing_at(Snapshot.decode(data), start, 9, program())
        if state is not None:
            known += 1
            require_total(state)
            cases()
    assert refused > 500
    assert known > 100


def test_parties_keep_working_after_garbage_states(cases: Callable[[], None]) -> None:
    """Each game with garbage is followed, or lost with a line that says why; the one beside it is as it was."""
    rng, lost = Random(0x37), 0
    for _ in range(60):
        board, data = following(), garbage(rng, states())
        error = refusal(data, START.job, START.head)
        board.follow(events(("Entered", {"gameId": FIRST, "sequence": 9, "snapshot": data})))
        assert board.games[FIRST].is_lost or board.games[FIRST].state.moves == 9
        assert error is None or str(error) in board.disagreements[0]
        lost += board.games[FIRST].is_lost
        for name, values in rng.sample(LOGGED, 4):
            board.follow(events((name, {**values, "gameId": FIRST})))
        board.follow(events(("Descended", {"gameId": SECOND, "nodes": WALKS["terms"][0][1].nodes})))
        second = board.games[SECOND]
        assert (second.state.phase, second.is_lost) == (Phase.SELECT, False)
        for kind, key in ((ClientParty, CLIENT), (TrainerParty, TRAINER)):
            machine = kind(board=board, domain=DOMAIN, pace=PACE, key=key)
            for at in (LATER, second.state.deadline + 1000):
                said = [a.text for a in machine.observe(e.Tick(at=at)) if isinstance(a, e.Alarm)]
                assert not any(text.startswith(UNEXPECTED) for text in said), said
        cases()
    assert 20 < lost < 60


def raising(*_: Any) -> Any:
    raise ValueError("of no family")


def test_exception_in_one_game_stops_no_other_game(monkeypatch: pytest.MonkeyPatch) -> None:
    board = following(raising)
    entered = ("Entered", {"gameId": FIRST, "sequence": 9, "snapshot": Snapshot.of(START).encode()})
    board.follow(events(entered, ("Descended", {"gameId": SECOND, "nodes": WALKS["terms"][0][1].nodes})))
    assert board.disagreements == ["Entered: the contract took it, Python says ValueError: of no family"]
    assert (board.games[FIRST].is_lost, board.games[SECOND].state.phase) == (True, Phase.SELECT)
    played: list[Digest] = []

    def play(_: TrainerParty, game: PublicGame, __: Any) -> None:
        played.append(game.id)
        raising()

    monkeypatch.setattr(TrainerParty, "_play", play)
    alarms = TrainerParty(board=board, domain=DOMAIN, pace=PACE, key=TRAINER).observe(e.Tick(at=LATER))
    texts = [alarm.text for alarm in alarms if isinstance(alarm, e.Alarm) and alarm.is_error]
    assert played == [FIRST, SECOND]
    assert [text for text in texts if UNEXPECTED in text] == [
        f"{UNEXPECTED} in game {number.hex()[:8]}: ValueError: of no family" for number in played
    ]


def test_lawful_states_are_restored_from_their_snapshots() -> None:
    """A follower that enters each state of each walk comes to the same snapshot, so nothing lawful is lost."""
    for state in (*states(), *(before for before, _, _ in logged_walk())):
        found = standing_at(Snapshot.of(state), replace(START, job=state.job, head=state.head), state.moves, program())
        assert found is not None
        assert replace(Snapshot.of(found), opened=Snapshot.of(state).opened) == Snapshot.of(state)
        require_total(found)
