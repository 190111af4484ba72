"""The machines of `protocol.parties` as they run on a network: their computations, commitments and risks.

A program is known once its files lie in the party's folder, checked by the job's roots (`tiebreak.node.library`). Until
then the party stays out of the job.
"""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tiebreak.api.agreement.sealing import SEAL
from tiebreak.node.journal import JOBS
from tiebreak.protocol.codec import check_bytes
from tiebreak.protocol.commitments import seats, terms
from tiebreak.protocol.commitments.eip712 import ADDRESS_BYTES, Address
from tiebreak.protocol.commitments.job import Job, SignedJob
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError, EncodingError, VerificationError
from tiebreak.protocol.parties import auditor, client, trainer
from tiebreak.protocol.parties.board import PublicJob
from tiebreak.protocol.parties.machine import PartyMachine, is_active
from tiebreak.protocol.parties.terms import Pace, objections
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest

_INPUTS: Final = ("program.tbp", "data.safetensors", "checkpoints/000000000000.safetensors")
OFFER: Final = "offer.bin"
DRAFT: Final = "draft.txt"
"""The nonce of the draft of a job with seats (`tiebreak.api.agreement.offers`)."""
AUDITORS: Final = "auditors.txt"
"""The file in a client's folder of a job that names its auditors where there is no chain, an account a line."""
_AGREED: Final = ("job.bin", OFFER)


class JobFiles:
    """The programs of the jobs whose files are in a party's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / JOBS
        self._programs: dict[Digest, Program] = {}
        """Programs by job: none is read twice, and none that is not the job's is kept."""
        self._missing: set[Digest] = set()
        self.seconds: dict[Digest, float] = {}
        """The seconds that a step takes on this machine, by each job whose program was tried (`work.Try`)."""
        self.starts: dict[Digest, float] = {}
        """The seconds of such a trial without a step."""

    def folder(self, job_id: Digest) -> Path:
        return self._folder / job_id.hex()

    def has(self, job: Job) -> bool:
        """Whether a job's program, data and first state are there. Files get their names only once they are checked."""
        folder = self.folder(job.id)
        return all((folder / name).is_file() for name in _INPUTS) and any((folder / n).is_file() for n in _AGREED)

    def is_sealed(self, job_id: Digest) -> bool:
        """Whether a job's published files are encrypted to its readers."""
        return (self.folder(job_id) / SEAL).is_file()

    def look_again(self, job_id: Digest) -> None:
        """Files of a job may have come."""
        self._missing.discard(job_id)

    def program(self, job: Job) -> Program | None:
        """The program of a job, if all that a party needs to begin is there, and this machine can run it."""
        if job.id not in self.seconds:
            return None
        if job.id in self._programs or job.id in self._missing:
            return self._programs.get(job.id)
        if self.has(job):
            with suppress(VerificationError):
                program = Program.decode((self.folder(job.id) / _INPUTS[0]).read_bytes())
                job.check_program(program)
                self._programs[job.id] = program
                return program
        self._missing.add(job.id)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptancePolicy:
    """A trainer's limits on jobs, in addition to those of `protocol.parties.terms`. 0 and () set no limit."""

    clients: tuple[Address, ...] = ()
    most_steps: int = 0
    least_reward: int = 0

    def objection(self, job: Job) -> str:
        """The reason not to take a job; empty if it is taken."""
        if self.clients and job.client not in self.clients:
            return f"expected a client of the list, got 0x{job.client.hex()}"
        if self.most_steps and job.steps > self.most_steps:
            return f"expected at most {self.most_steps} steps, got {job.steps}"
        if job.reward < self.least_reward:
            return f"expected a reward of at least {terms.ether(self.least_reward)}, got {terms.ether(job.reward)}"
        return ""


class WithJobFiles(PartyMachine):
    """A machine that knows the programs whose files it has."""

    def __init__(self, *, job_files: JobFiles, **known: Any) -> None:
        super().__init__(**known)
        self.job_files = job_files

    def program_of(self, job: Job) -> Program | None:
        return self.job_files.program(job)

    def follows(self, job: Job) -> bool:
        """Whether it reads the posts about a job that is on the board or was offered to it."""
        return self.address in (job.client, job.trainer)

    def names(self, job: Job) -> bool:
        """Whether it knows the client of a job, from its owner, or has a claim of its own in it."""
        return ("signature", job.id) in self.records or job in self.taken()

    def taken(self) -> list[Job]:
        """The jobs in which it may have games."""
        return []

    def pace_of(self, job: Job, *more: Job) -> Pace:
        """The measured pace, on a machine that also computes for the games of all jobs taken, and of `more`."""
        games = {other.id for other in (job, *self.taken(), *more)}
        active = {other.id for other in self.jobs() if is_active(other)}
        longest = max(self._seconds(number) for number in games | (self.job_files.seconds.keys() & active))
        return replace(
            self.pace, step_seconds=self._seconds(job.id), games=len(games), beside=longest * self.pace.slowdown,
            start_seconds=self.job_files.starts.get(job.id, 0.0),
        )  # fmt: skip

    def _seconds(self, job_id: Digest) -> float:
        return max(self.pace.step_seconds, self.job_files.seconds.get(job_id, 0.0))


class TrainerNode(WithJobFiles, trainer.TrainerParty):
    """Takes the offers that its owner's policy allows."""

    def __init__(self, *, policy: AcceptancePolicy, processes: int = 1, **known: Any) -> None:
        """processes: how many train at once (`work.WorkerSettings`)."""
        super().__init__(**known)
        self.policy, self._processes = policy, processes

    def wants(self, job: Job) -> bool:
        """Whether its owner's policy and limits allow a job. It is called before anything is fetched."""
        stake = job.trainer_stake
        if reason := self.policy.objection(job) or self.means.objection(of_job=stake, in_all=stake):
            self.alarm(f"job {job.id.hex()[:8]}: not signed: {reason}")
        return not reason

    def names(self, job: Job) -> bool:
        return job.client in self.policy.clients or super().names(job)

    def agrees(self, job: Job) -> bool:
        return self.wants(job) and super().agrees(job)

    def accepts(self, job: PublicJob) -> bool:
        """Only with a process to train it, time for the games of all jobs, and money for the stake."""
        training = [other for other in self._active() if not other.has_final_head]
        if len(training) >= self._processes or self._is_crowded(job.job):
            return False
        return super().accepts(job)

    def objects(self, job: Job) -> bool:
        return super().objects(job) or self._is_crowded(job)

    def taken(self) -> list[Job]:
        return [job.job for job in self._active()]

    def _active(self) -> list[PublicJob]:
        return [job for job in self.jobs() if job.job.trainer == self.address and is_active(job)]

    def _is_crowded(self, job: Job) -> bool:
        """Whether this job or another would leave too little time for games if both were played."""
        for one in {other.id: other for other in (*self.taken(), job)}.values():
            for reason in objections(one, self.program_of(one), self.pace_of(one, job)):
                self.alarm(f"job {job.id.hex()[:8]}: not taken beside others: job {one.id.hex()[:8]}: {reason}")
                return True
        return False


class _Chosen(WithJobFiles):
    """Looks only at some jobs, if its owner names any. clients: those whose jobs come first."""

    def __init__(self, *, jobs: tuple[Digest, ...] = (), clients: tuple[Address, ...] = (), **known: Any) -> None:
        super().__init__(**known)
        self.chosen, self.clients = jobs, clients

    def names(self, job: Job) -> bool:
        return job.id in self.chosen or job.client in self.clients or super().names(job)

    def follows(self, job: Job) -> bool:
        """Whether its owner wants it to check a job, once it has its files."""
        return not self.chosen or job.id in self.chosen

    def concerns(self, job: PublicJob) -> bool:
        return self.follows(job.job) and self.program_of(job.job) is not None


class AuditorNode(_Chosen, auditor.AuditorParty):
    """Replays the jobs that it follows, and stakes money on its findings."""

    def names(self, job: Job) -> bool:
        found = self.board.jobs.get(job.id)
        owners = [] if found is None else [self.board.seat_owner(found, seat) for seat in range(job.seats)]
        return self.address in owners or super().names(job)

    def taken(self) -> list[Job]:
        own = [game for game in self.board.games.values() if game.challenger == self.address and not game.is_stopped]
        return [game.job.job for game in own]


class WatcherNode(_Chosen, auditor.WatcherParty):
    """Replays the jobs that it follows, and raises alarms. It has no key."""


class ClientNode(WithJobFiles, client.ClientParty):
    """Offers the jobs whose offers lie in its folder."""


def deliver(offer: Path, client: Path, auditors: Sequence[Address] = ()) -> Path:
    """Put an offer, and the auditors that its client is to name, where a running client finds them. Returns where."""
    signed = SignedJob.decode((offer / OFFER).read_bytes())
    signed.verify_offer()
    place = client / JOBS / signed.job.id.hex()
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if place.exists():
        raise ConfigurationError(f"expected a new offer, got that of job {signed.job.id.hex()}, which {client} has")
    part = place.with_name(f".{place.name}")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(offer, part)
    (part / AUDITORS).write_text("".join(f"0x{account.hex()}\n" for account in auditors), encoding="ascii")
    part.rename(place)
    return place


def auditors_in(folder: Path) -> tuple[Address, ...]:
    """The accounts that a client names as auditors of the job in a folder. Raises `EncodingError`."""
    try:
        lines = (folder / AUDITORS).read_text("ascii").split() if (folder / AUDITORS).exists() else []
        found = [bytes.fromhex(line.removeprefix("0x")) for line in lines]
    except ValueError as error:
        raise EncodingError(f"{folder / AUDITORS}: expected an address in each line, got others: {error}") from error
    return tuple(Address(check_bytes(AUDITORS, account, ADDRESS_BYTES)) for account in found)


def draw_secret(job: Job, key: PrivateKey, folder: Path) -> bytes:
    """The secret of the draw, which only the client of a job with seats can make; empty for a job without.

    Raises `VerificationError` if it is not that of the job: without it nobody could draw, and the fees would burn.
    """
    if not job.seats:
        return b""
    try:
        drawn, secret = seats.drawable(replace(job, nonce=int((folder / DRAFT).read_text("ascii"))), key)
    except (OSError, ValueError, EncodingError) as error:
        raise EncodingError(f"{folder / DRAFT}: expected the nonce of the job's draft, got {error}") from error
    if drawn != job:
        raise VerificationError(f"{folder / DRAFT}: expected the nonce of the job's draft, got another")
    return secret
