"""The posts between a party and its hub: one thread brings what waits in the journal, one reads what the hub has.

Both repeat until they succeed, whatever goes wrong. A post leaves with the bytes that the journal has. A hub that has
lost posts, or another hub, gets all of them again; one that forgot what it had is read anew.
"""

from collections.abc import Callable, Set
from functools import partial
from threading import Event as Flag
from threading import Thread
from typing import Final

from tiebreak.node.hub_client import HubClient, HubForgot, VerifiedPost
from tiebreak.node.journal import Journal
from tiebreak.node.log import Log
from tiebreak.protocol.errors import TiebreakError
from tiebreak.protocol.tags import Digest

PAUSE_SECONDS: Final = 5.0
"""The pause after an error of the hub."""
CLOSE_SECONDS: Final = 5.0
"""The longest wait for a thread, which may be in the middle of a request."""


class HubTraffic:
    """Posts and reads for a party, and remembers how far it has come with both."""

    def __init__(
        self, hub_client: HubClient, journal: Journal, notes: Log, stop: Flag, *,
        put: Callable[[Callable[[], None]], None], on_post: Callable[[VerifiedPost], None],
        on_forgot: Callable[[], None],
    ) -> None:  # fmt: skip
        """put: has the machine's thread make a call, such as `on_post` for each post that is read.

        on_forgot: called in the thread that reads if the hub has forgotten posts, once all is to be said again.
        """
        self.hub_client, self._journal, self._notes, self._stop = hub_client, journal, notes, stop
        self._put, self._on_post, self._on_forgot = put, on_post, on_forgot
        self.wanted: Set[Digest] = frozenset()
        """The jobs whose posts are wanted."""
        self._asked_for: Set[Digest] = frozenset()
        """The jobs of the request that reads from the hub now."""
        self.reads_all = False
        """Whether every post is read, from the first one on: then the party learns of all jobs by posts."""
        self._unsent = Flag()
        self._is_met = False
        """Whether it is known that the hub still has the last post that it took."""
        self._trouble = ""
        self._threads: list[Thread] = []
        self.read_up_to = self._kept_up_to = (0, b"")
        """The last post of the hub that was processed, with its place; and the last one that the journal has."""
        self._cursor = ""
        """The name of that fact: places are a hub's own."""

    def start(self) -> None:
        self._asked_for = self.wanted
        for target in (self._read, self._send):
            self._threads.append(Thread(target=target, daemon=True))
            self._threads[-1].start()

    def close(self) -> None:
        """End the threads. The caller has set the flag that stops them."""
        self.hub_client.close()
        self._unsent.set()
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)

    def note(self, text: str) -> None:
        """Note a trouble with the hub, once. Any thread may call this."""
        if text != self._trouble:
            self._notes.warn("hub", text)
        self._trouble = text

    def _note_error(self, error: Exception) -> None:
        if not self._stop.is_set():  # else the journal was closed meanwhile
            self.note(str(error) if isinstance(error, TiebreakError) else repr(error))

    # ------------------------------------------------------------------ sending

    def post_soon(self) -> None:
        """Wakes the thread that brings the hub the posts which wait in the journal."""
        self._unsent.set()

    def _send(self) -> None:
        while not self._stop.is_set():
            self._unsent.wait(PAUSE_SECONDS)
            self._unsent.clear()
            try:
                self.send_all()
            except Exception as error:  # not a hub of this chain, say: a party with games goes on without one
                self._note_error(error)

    def send_all(self) -> None:
        """Bring the hub all posts that wait in the journal, each once it takes it."""
        if self._journal.fact("hub") != self.hub_client.hub:
            self._journal.say_all_again()  # another hub has none of the posts that the last one got
            self._journal.keep_fact("hub", self.hub_client.hub)
        elif not self._is_met and (last := self._journal.last_heard()) is not None and not self.hub_client.holds(*last):
            self._say_all_again()
        self._is_met = True
        behind = 0
        while found := self._journal.unheard(behind):
            for waiting in found:
                if self._stop.is_set():
                    return
                behind = waiting.id
                try:
                    place = self.hub_client.post(waiting.wire).place
                except TiebreakError as error:
                    # It may be too early, as for a move in a game that its challenger has not opened there yet.
                    self.note(f"does not take a post yet: {error}")
                    continue
                self._journal.heard(waiting, place)

    def _say_all_again(self) -> None:
        """The hub has lost posts: send all again."""
        self._notes.warn("hub", "it has lost posts that it had taken; all is said again")
        self._journal.say_all_again()
        self._unsent.set()

    # ------------------------------------------------------------------ reading

    def _read(self) -> None:
        while not self._stop.is_set():
            try:
                self.read_all()
            except Exception as error:
                self._note_error(error)
                self._stop.wait(PAUSE_SECONDS)

    def read_all(self) -> None:
        """Read what the hub has of the jobs that are wanted, from the last post on that was processed."""
        self._cursor = f"read of {self.hub_client.hub.hex()}"
        place, last = 0, self._journal.fact(self._cursor) or b""
        if last and not self.reads_all:
            place, last = int.from_bytes(last[:8], "big"), last[8:]
        try:
            for verified in self.hub_client.read(lambda: self.wanted, place, last if place else b""):
                self._put(partial(self._on_post, verified))
                if self._stop.is_set():
                    return
        except HubForgot:
            self._journal.keep_fact(self._cursor, b"")
            self._put(partial(setattr, self, "read_up_to", (0, b"")))
            self._say_all_again()
            self._on_forgot()

    def ask(self) -> None:
        """Read on with another request if other jobs are wanted than those of the present one."""
        if self.wanted != self._asked_for:
            self._asked_for = self.wanted
            self.hub_client.turn()

    def processed(self, verified: VerifiedPost) -> None:
        if verified.place > self.read_up_to[0]:
            self.read_up_to = verified.place, verified.received.wire

    def keep_cursor(self) -> None:
        """Note up to where the hub was read, so that offers of strangers are read once and not at each start."""
        if self.read_up_to != self._kept_up_to:
            place, wire = self._kept_up_to = self.read_up_to
            self._journal.keep_fact(self._cursor, place.to_bytes(8, "big") + wire)
