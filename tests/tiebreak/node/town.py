"""Parties on one machine and in one thread: real machines, journals, files and computations; a chain and a mailbox of
this process.
"""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock

from tiebreak.node.driver import Driver
from tiebreak.node.journal import Journal
from tiebreak.node.log import Log
from tiebreak.node.parties import Auditor, Client, Policy, Shelf, Trainer
from tiebreak.node.work import Bench, Crew
from tiebreak.protocol.chain import ChainError, EmbeddedChain, Reverted
from tiebreak.protocol.chain.calls import read_game
from tiebreak.protocol.chain.transacting import call_of
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.keys import RANDOM_BYTES, PrivateKey
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties.player import Player
from tiebreak.protocol.parties.terms import Pace
from tiebreak.protocol.tags import Digest
from tiebreak.sim.world.board import Board

PACE = Pace(block_seconds=1, step_seconds=1)


def new_key() -> PrivateKey:
    return PrivateKey.generate(secrets.token_bytes(RANDOM_BYTES))


@dataclass(frozen=True)
class LocalLetter:
    place: int
    at: int
    post: posts.Post
    body: posts.Body


class Town:
    """The chain and the mailbox."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chain = EmbeddedChain()
        self.owner = new_key()
        self.chain.fund(self.owner.address)
        self.chain.deploy(self.owner)
        self.domain = self.chain.domain
        self.board = Board(self.domain, self.talk_of)
        self.letters: list[LocalLetter] = []
        self.lock = Lock()
        self.drivers: list[Driver] = []
        self.events: list[e.HeadShown] = []
        (folder / "blobs").mkdir(parents=True)

    def talk_of(self, game, sequence, snapshot):
        for driver in self.drivers:
            machine = driver.machine
            if isinstance(machine, Player) and machine.is_side(game):
                state = machine.transcript(game).stood(sequence, snapshot)
                if state is not None:
                    return state, list(machine.transcript(game).line[:sequence])
        raise VerificationError("expected a state of the talk, got another")

    def funded(self) -> PrivateKey:
        key = new_key()
        self.chain.fund(key.address)
        return key

    def run_until(self, holds, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "it took too long"
            for driver in self.drivers:
                driver.step(0.01)

    def join(self, role: str, key: PrivateKey, **more) -> Driver:
        folder = self.folder / role
        ground, mail = LocalGround(self, key), LocalMail(self)
        journal = Journal(folder, {"role": role, "address": key.address.hex()})
        shelf, notes = Shelf(folder), Log(role)
        known = {"board": self.board, "domain": self.domain, "pace": PACE, "key": key, "journal": journal.records()}
        if role == "trainer":
            machine = Trainer(shelf=shelf, policy=Policy(), balance=lambda: ground.balance(key.address), **known)
        else:
            machine = {"auditor": Auditor, "client": Client}[role](shelf=shelf, **known)
        bench = Bench(
            folder=folder,
            domain=self.domain,
            hub=f"file://{self.folder / 'blobs'}",
            hub_key=mail.hub,
            secret=journal.fact_once("secret", lambda: secrets.token_bytes(32)),
            threads=1,
            cheat=more.get("cheat", ""),
        )
        crew = Crew(
            bench, on_steps=lambda steps: driver.told_steps(steps), on_trouble=lambda *said: driver.told_trouble(*said)
        )
        driver = Driver(machine, ground=ground, mail=mail, journal=journal, shelf=shelf, crew=crew, notes=notes)
        self.drivers.append(driver)
        driver.start()
        return driver


class LocalMail:
    hub = Address(bytes(20))

    def __init__(self, town: Town) -> None:
        self._town = town

    def post(self, wire: bytes) -> posts.Received:
        signed = posts.SignedPost.decode(wire)
        body = signed.verify(self._town.domain)
        with self._town.lock:
            for letter in self._town.letters:
                if letter.post == signed.post:
                    break
            else:
                letter = LocalLetter(len(self._town.letters) + 1, int(time.time()), signed.post, body)
                self._town.letters.append(letter)
        return posts.Received(content=signed.post.content, place=letter.place, at=letter.at)

    def follow(self, after: int) -> Iterator[LocalLetter]:
        while True:
            with self._town.lock:
                fresh = self._town.letters[after:]
            yield from fresh
            after += len(fresh)
            time.sleep(0.05)


class LocalGround:
    pace = PACE

    def __init__(self, town: Town, key: PrivateKey) -> None:
        self._town, self._key, self.board, self.domain = town, key, town.board, town.domain
        self._events: list[e.Event] = []
        self._seen = 0

    def now(self) -> int:
        return max(int(time.time()), self._town.chain.now())

    def balance(self, account: Address) -> int:
        return self._town.chain.balance(account)

    def poll(self) -> list[e.Event]:
        heads, self._seen = self._town.events[self._seen :], len(self._town.events)
        found, self._events = self._events, []
        return [*heads, e.BoardChanged(at=self.now(), block=self._town.chain.now()), *found]

    def send(self, wanted: e.Transact) -> None:
        chain, board = self._town.chain, self._town.board
        board.height += 1
        try:
            call = call_of(wanted.transaction, board)
            if int(time.time()) > chain.now() + 1:
                chain.travel_to(int(time.time()))
            receipt = chain.send(self._key, call)
        except ChainError as error:
            name = error.name if isinstance(error, Reverted) else ""
            self._events.append(e.Refused(at=self.now(), place=wanted.place, error=name))
            return
        game = next(
            (Digest(event.values["gameId"]) for event in receipt.events if event.name == "GameStarted"), call.game_id
        )
        record = None if game is None else chain._read(read_game(game))
        board.record(call, receipt, receipt.timestamp, record)
        assert not board.disagreements, board.disagreements
        self._town.events += [e.HeadShown(at=self.now(), head=head) for head in call.heads]
        self._events.append(e.Mined(at=self.now(), place=wanted.place))
