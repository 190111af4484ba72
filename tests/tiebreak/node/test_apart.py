"""What one post, game or answer raises ends no thread of a node; only what cannot be kept in the journal stops it."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.protocol.runs import DOMAIN
from tests.protocol.town import PACE
from tiebreak.node import driver
from tiebreak.node.driver import Driver
from tiebreak.protocol.chain.following import FollowedBoard
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.auditor import Watcher


def raising(*_: Any, **__: Any) -> Any:
    raise ValueError("of no family")


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> tuple[Driver, list[tuple[str, str]]]:
    """A driver of which everything outside raises, with the errors and warnings that it notes."""
    monkeypatch.setattr(driver, "PAUSE_SECONDS", 0)
    noted: list[tuple[str, str]] = []
    notes = SimpleNamespace(info=lambda *_, **__: None, warn=lambda *said: noted.append(said), error=noted.append)
    notes.error = notes.warn
    made = Driver(
        Watcher(board=FollowedBoard(), domain=DOMAIN, pace=PACE),
        ground=SimpleNamespace(poll=raising, now=lambda: 7, domain=DOMAIN),  # type: ignore[arg-type]
        mail=SimpleNamespace(follow=raising, hub=b""),  # type: ignore[arg-type]
        journal=SimpleNamespace(append=raising, fact=raising),  # type: ignore[arg-type]
        shelf=SimpleNamespace(), crews=None, notes=notes,  # type: ignore[arg-type]
    )  # fmt: skip
    return made, noted


def test_the_loop_goes_on_after_whatever_a_post_or_the_ground_raises(there: Any) -> None:
    made, noted = there
    made.machine.board.disagreements.append("Entered: of no lawful play")
    made.inbox.put(raising)
    made.step(0)
    assert noted[:3] == [
        ("post", "unexpected ValueError: of no family"),
        ("loop", "unexpected ValueError: of no family"),
        ("board", "Entered: of no lawful play"),
    ]
    made._note_board()
    assert [one for one in noted if one[0] == "board"] == [("board", "Entered: of no lawful play")]


@pytest.mark.parametrize("thread", ["_read_mail", "_send_mail"])
def test_no_thread_ends_by_what_the_hub_or_the_disk_raises(there: Any, thread: str) -> None:
    made, noted = there
    tries: list[int] = []

    def ask(*_: Any) -> None:
        tries.append(1)
        if len(tries) == 3:
            made.stop.set()
        raising()

    made.mail.follow = made.journal.fact = ask
    getattr(made, thread)()
    assert len(tries) == 3
    assert noted == [("hub", "ValueError('of no family')")]


def test_what_cannot_be_kept_stops_the_node(there: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = there
    alarm = e.Alarm(is_error=True, text="said after it")
    monkeypatch.setattr(made.machine, "observe", lambda _: (e.Record(place=("a",), data=b""), alarm))
    with pytest.raises(ValueError, match="of no family"):
        made.tell(e.Tick(at=7))
    assert made.stop.is_set()
