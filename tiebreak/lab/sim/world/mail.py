"""Mail between parties outside the chain: heads, published runs, and game moves as signed messages.

Everyone sees everything that is published here. Where the sides of a game do not talk, a move is sent as a message only
once its transaction stands in a block, because a message that shows a proof before the seal counts would reveal too
much. Where they talk, the post is as bad as posts are: a message may be late, get lost, or come twice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from tiebreak.lab.sim.world.work import Work
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.game.messages import Transcript
from tiebreak.protocol.game.moves import Move
from tiebreak.protocol.game.snapshot import SignedStanding
from tiebreak.protocol.parties.board import PublicGame
from tiebreak.protocol.tags import Digest


@dataclass(slots=True)
class Account:
    """Running totals of what a party did and paid."""

    gas: int = 0
    fees_wei: int = 0
    steps: int = 0
    """Steps that the party had to execute, in training or for an audit."""
    messages: int = 0
    """Messages sent outside the chain: heads, and moves as signed messages."""
    bytes: int = 0
    refused: int = 0
    """Transactions that reverted in a block, plus messages that the recipient refused."""

    def sent(self, size: int) -> None:
        self.messages += 1
        self.bytes += size


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedHead:
    """A head that everyone sees, published by mail or in a transaction."""

    head: SignedHead
    leaves: tuple[Digest, ...]
    """The leaves of its run tree; empty if they were not published."""
    by: str
    at: int


MOST_LATE: Final = 20
COPIES: Final = (0, *[1] * 14, 2)
"""The numbers of times that a message of a talk arrives, all equally likely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidInGame:
    """A move or a receipt that a side of a game sent; None if it could not be read."""

    game_id: Digest
    by: str
    at: int
    content: Move | SignedStanding | None


class WorldMail:
    """Published heads and runs, and the transcripts of games.

    `notify` is called whenever something new was published.
    """

    def __init__(self, domain: Domain, notify: Callable[[], None]) -> None:
        self._domain = domain
        self._notify = notify
        self.heads: list[PublishedHead] = []
        self._valid: dict[tuple[SignedHead, Job], bool] = {}
        self.runs: dict[Digest, Work] = {}
        """Maps each job to the run that its trainer published last."""
        self.transcripts: dict[Digest, Transcript] = {}
        self.game_bytes: dict[Digest, int] = {}
        self.talks: list[SaidInGame] = []
        """The statements in games whose sides talk, in order."""
        self._posts: dict[Digest, Random] = {}

    def publish_head(self, head: SignedHead, leaves: tuple[Digest, ...], by: str, account: Account, now: int) -> None:
        account.sent(len(head.encode()))
        self.see_head(head, by, now, leaves)
        self._notify()

    def see_head(self, head: SignedHead, by: str, now: int, leaves: tuple[Digest, ...] = ()) -> None:
        """Note that a head is public, for instance by a transaction; leaves may follow."""
        if all(known.head != head or bool(leaves) > bool(known.leaves) for known in self.heads):
            self.heads.append(PublishedHead(head=head, leaves=leaves, by=by, at=now))

    def heads_of(self, job_id: Digest) -> list[PublishedHead]:
        return [known for known in self.heads if known.head.head.job_id == job_id]

    def is_valid(self, head: SignedHead, job: Job) -> bool:
        """Whether the head is one of the job and signed by its trainer.

        Cached, since the result is the same for everyone.
        """
        if (head, job) not in self._valid:
            try:
                head.verify(job, self._domain)
                self._valid[head, job] = True
            except VerificationError:
                self._valid[head, job] = False
        return self._valid[head, job]

    def publish_run(self, job_id: Digest, work: Work) -> None:
        """Publish a run: its records and, under policy `logged`, its logs."""
        self.runs[job_id] = work
        self._notify()

    # ------------------------------------------------------------------ games

    def transcript(self, game: PublicGame) -> Transcript:
        """The messages of a game that were accepted so far."""
        if game.id not in self.transcripts:
            made = Transcript(game.first_state, domain=self._domain, challenger=game.challenger)
            self.transcripts[game.id] = made
        return self.transcripts[game.id]

    def fate(self, game: PublicGame) -> list[int]:
        """The delay of each copy of a message, in seconds; none if it is lost."""
        rng = self._posts.setdefault(game.id, Random(int.from_bytes(game.id, "big")))  # noqa: S311
        return [rng.randrange(MOST_LATE) for _ in range(rng.choice(COPIES))]

    def note(self, game: PublicGame, by: str, at: int, content: Move | SignedStanding | None) -> None:
        """Records a message of a talk, for `games.story`."""
        self.talks.append(SaidInGame(game_id=game.id, by=by, at=at, content=content))

    def deliver(self, game: PublicGame, wire: bytes, sender: Account) -> bool:
        """Deliver a message to the other side, which checks it. Returns whether it was accepted; counts a refusal."""
        sender.sent(len(wire))
        self.game_bytes[game.id] = self.game_bytes.get(game.id, 0) + len(wire)
        if wire in self.transcript(game).wires:
            return True  # said again
        try:
            self.transcript(game).append(wire)
        except VerificationError:
            sender.refused += 1
            return False
        return True
