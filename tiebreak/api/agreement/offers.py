"""A job that is signed on two machines: its client drafts and signs it, its trainer judges it and signs too.

An offer is a run directory with `offer.bin`, the job with its client's signature, in place of `job.bin`, the job with
both. Nothing in it has to be copied when the trainer signs.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Final

from tiebreak.api.agreement.sealing import SEAL, SECRET_BYTES, Card, wrapped
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import Policy, as_policy, make_interpreter, make_logging
from tiebreak.api.training.bundle import Bundle
from tiebreak.api.training.runs import draft, notice
from tiebreak.engine.logged.journal import LogsInProgress
from tiebreak.engine.logged.policy import POLICY
from tiebreak.engine.run.directory import JOB, OFFER, RECORDS, RunDirectory, lay_out, open_offer
from tiebreak.engine.run.loop import steps
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import SignedJob
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError, VerificationError
from tiebreak.protocol.parties.terms import Pace, objections_to_seats, objections_to_training

DRAFT: Final = "draft.txt"
"""File of the draft's nonce, for a job with seats. From it and its key the client derives the secret of the draw."""
MEASURED_STEPS: Final = 2
"""Steps that `seconds_per_step` times. The fastest counts: the first one also compiles kernels and fills caches."""


def offer_on(
    bundle: Bundle, folder: Path, *, client: PrivateKey, trainer: Address, terms: Terms, domain: Domain,
    policy: Policy | None = None, precision: int | None = None, readers: Sequence[Card] = (),
) -> SignedJob:  # fmt: skip
    """Drafts a job over a captured task and signs it as its client, in a new or empty folder for its trainer.

    readers: those to whom the job is sealed on its way through hubs; the client is always among them. In the folder
    itself everything stays in the clear. Raises `ConfigurationError` if the trainer is not among the readers, or for
    seats without a chain.
    """
    if readers and trainer not in [card.address for card in readers]:
        raise ConfigurationError(f"expected a card of trainer 0x{trainer.hex()} among the readers, got none")
    job = draft(bundle, client, trainer, terms, as_policy(policy), precision)
    for reason in objections_to_seats(job, domain):
        raise ConfigurationError(reason)
    offer = SignedJob(domain=domain, job=job, client_signature=job.sign(domain, client))
    # The offer comes last: with it, the folder is complete.
    more = notice(bundle) | ({DRAFT: str(terms.nonce).encode()} if job.seats else {})
    if readers:
        more[SEAL] = wrapped(secrets.token_bytes(SECRET_BYTES), job.id, [*readers, Card.of(client)])
    lay_out(folder, job, bundle.program, bundle.state, bundle.data, more | {OFFER: offer.encode()})
    return offer


def seconds_per_step(offered: RunDirectory, machine: Machine) -> float:
    """The time of a step of the job on this machine, which is qualified first. Checks state and data by the job."""
    interpreter = make_interpreter(offered.program, machine, offered.job)
    state, data = interpreter.to_device(offered.state(0)), interpreter.place_data(offered.data())
    logs, taken, started = LogsInProgress.of(offered), [], time.perf_counter()
    count = min(MEASURED_STEPS, offered.job.steps)
    for _ in steps(interpreter, state, data, range(1, count + 1), sums=logs.before):
        taken.append(time.perf_counter() - started)
        started = time.perf_counter()
    return min(taken)


def pace_of(seconds: float, *, block_seconds: int, slowdown: int, start: float = 0.0) -> Pace:
    """The speeds by which `objections` judges terms, all in seconds.

    seconds: of one step, rounded up; 0 if unknown. start: before the first step. slowdown: factor for the worst data.
    """
    return Pace(block_seconds=block_seconds, step_seconds=ceil(seconds), slowdown=slowdown, start_seconds=start)


def objections(offered: RunDirectory, pace: Pace) -> tuple[str, ...]:
    """The reasons not to sign, by which an honest trainer could lose its stake. Empty if there are none."""
    job, domain = offered.job, offered.agreement.domain
    return objections_to_training(job, offered.program, pace) + objections_to_seats(job, domain)


def accept(folder: Path, key: PrivateKey, policy: Policy | None = None) -> RunDirectory:
    """Signs an offer as its trainer, whatever its terms, and makes a run of its folder. See `complete`.

    policy: the trainer's own thresholds, for a job of policy `logged` [default: the proven bounds]. Raises
    `VerificationError` if the sender of the offer put work or thresholds into it: the run would go on from them.
    """
    offered, logged = open_offer(folder), as_policy(policy)
    if key.address != offered.job.trainer:
        raise ConfigurationError(
            f"expected the key of trainer 0x{offered.job.trainer.hex()}, got 0x{key.address.hex()}"
        )
    make_logging(offered.job, logged)  # refuses a policy that is not for this job
    if not offered.agreement.trainer_signature:
        with offered.folder() as files:
            for name in (RECORDS, POLICY):
                if files.holds(name) and files.size(name):
                    raise VerificationError(f"{folder}: expected an offer without work in it, got a {name}")
    if logged is not None:
        with offered.folder(to_write=True) as files:
            files.write(POLICY, logged.encode())
    return complete(folder, offered.job.sign(offered.agreement.domain, key))


def complete(folder: Path, trainer_signature: bytes) -> RunDirectory:
    """Adds the trainer's signature to an offer, which makes its folder a run. May be repeated.

    Raises `VerificationError` if the signature is not the trainer's, or if state or data are not the job's.
    """
    offered = open_offer(folder)
    agreement = offered.agreement
    if not agreement.trainer_signature:
        agreement = replace(agreement, trainer_signature=trainer_signature)
        agreement.verify()
        offered.state(0)
        offered.data()
        with offered.folder(to_write=True) as files:
            if not files.holds(RECORDS):
                files.write(RECORDS, b"")
            files.write(JOB, agreement.encode())
    elif trainer_signature != agreement.trainer_signature:
        raise VerificationError("expected the signature that the run has, got another")
    return RunDirectory.open(folder)
