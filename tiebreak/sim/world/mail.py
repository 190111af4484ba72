"""What parties tell each other beside the chain: heads, what goes with a run, moves of games as signed messages.

Everything that is published here everyone sees. A move travels as a message once its transaction stands in a block: a
message that shows a proof before the seal counts would show too much.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.game.messages import Transcript
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.parties.board import PublicGame
from tiebreak.protocol.tags import Digest
from tiebreak.sim.world.work import Work


@dataclass(slots=True)
class Account:
    """What a party did and paid, as it goes."""

    gas: int = 0
    fees_wei: int = 0
    steps: int = 0
    messages: int = 0
    bytes: int = 0
    refused: int = 0

    def sent(self, size: int) -> None:
        """One more message of this many bytes."""
        self.messages += 1
        self.bytes += size


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedHead:
    """A head that everyone sees, by mail or in a transaction."""

    head: SignedHead
    by: str
    at: int


class Mail:
    """Boards, boxes and transcripts. `notify` tells everyone that there is something new."""

    def __init__(self, domain: Domain, notify: Callable[[], None]) -> None:
        self._domain = domain
        self._notify = notify
        self.heads: list[PublishedHead] = []
        self._valid: dict[tuple[SignedHead, Job], bool] = {}
        self.runs: dict[Digest, Work] = {}
        """By job, what its trainer last published of its run."""
        self.transcripts: dict[Digest, Transcript] = {}
        self.game_bytes: dict[Digest, int] = {}

    def publish_head(self, head: SignedHead, by: str, account: Account, now: int) -> None:
        """Show a head to everyone."""
        account.sent(len(head.encode()))
        self.see_head(head, by, now)
        self._notify()

    def see_head(self, head: SignedHead, by: str, now: int) -> None:
        """A head became public, for instance by a transaction that shows it. Each is kept once."""
        if all(known.head != head for known in self.heads):
            self.heads.append(PublishedHead(head=head, by=by, at=now))

    def heads_of(self, job_id: Digest) -> list[PublishedHead]:
        """The heads of a job that are public, in the order in which they were shown."""
        return [known for known in self.heads if known.head.head.job_id == job_id]

    def is_valid(self, head: SignedHead, job: Job) -> bool:
        """Whether it is a head of the job, signed by its trainer. Everyone finds the same, so it is found once."""
        if (head, job) not in self._valid:
            try:
                head.verify(job, self._domain)
                self._valid[head, job] = True
            except VerificationError:
                self._valid[head, job] = False
        return self._valid[head, job]

    def publish_run(self, job_id: Digest, work: Work) -> None:
        """Show what goes with a run: its records and, under policy `logged`, its logs."""
        self.runs[job_id] = work
        self._notify()

    # ------------------------------------------------------------------ games

    def transcript(self, game: PublicGame) -> Transcript:
        """The messages of a game that were taken so far."""
        if game.id not in self.transcripts:
            self.transcripts[game.id] = Transcript(
                job_id=game.job.job.id,
                game_id=game.id,
                domain=self._domain,
                defender=game.job.job.trainer,
                challenger=game.challenger,
            )
        return self.transcripts[game.id]

    def deliver(self, game: PublicGame, wire: bytes, side: Side, sender: Account) -> bool:
        """Hand a message to the other side, which checks it; whether it took it. What it refuses is counted."""
        sender.sent(len(wire))
        self.game_bytes[game.id] = self.game_bytes.get(game.id, 0) + len(wire)
        try:
            self.transcript(game).append(wire, side)
        except VerificationError:
            sender.refused += 1
            return False
        return True
