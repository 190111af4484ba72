"""Transactions on a chain by hand. Needs the extra `chain`.

Long-running parties (`tiebreak trainer`, `auditor`, `client`) send all of these by themselves, in time.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.segments import compare
from tiebreak.protocol.chain import Call, Chain, JobStatus, Receipt
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Concession, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.tags import Digest

ENDINGS: Final = {"settle": tx.Settle, "cancel": tx.CancelJob, "abandon": tx.Abandon, "part": tx.Part}
"""The ways in which a job ends by somebody's call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTransaction:
    """A transaction that was sent, in words, and its receipt."""

    what: str
    receipt: Receipt


def post(chain: Chain, run: RunDirectory, key: PrivateKey, count: int | None = None) -> SentTransaction:
    """Sends the transactions that the job needs next from the owner of this key.

    The client creates the job and pays the reward; the trainer accepts it and pays its stake, then posts heads. count:
    the head to post [default: the last that is signed]. Raises `StateError` if nothing is to be posted now.
    """
    job, state = run.job, chain.job_state(run.job.id)
    if state.status is JobStatus.NONE:
        _require_owner(key, job.client, "client, to create the job")
        creation = tx.CreateJob(job=job, signature=run.agreement.trainer_signature)
        return _sent(chain, key, creation, f"the job, with {ether(creation.wei)} for it")
    if state.status is JobStatus.OFFERED:
        _require_owner(key, job.trainer, "trainer, to accept the job")
        what = f"its acceptance, with a stake of {ether(job.trainer_stake)}"
        return _sent(chain, key, tx.AcceptJob(job_id=job.id), what, job.trainer_stake)
    if state.status is not JobStatus.ACTIVE:
        raise StateError(f"expected a job that goes on, got one that is {state.status.name.lower()}")
    _require_owner(key, job.trainer, "trainer, to post a head")
    if job.seats:
        raise ConfigurationError("expected a job without seats, got one whose heads are sealed; run `tiebreak trainer`")
    head = signed_head(run, count)
    if head.head.count <= state.head_count:
        raise StateError(f"expected a head of more than {state.head_count} checkpoints, got one of {head.head.count}")
    return _sent(chain, key, tx.PostHead(head=head), f"head {head.head.count} of {job.checkpoints}")


def challenge(
    chain: Chain, run: RunDirectory, key: PrivateKey, *, replay: Path | None, count: int | None, nonce: int
) -> tuple[Digest, SentTransaction]:
    """Starts a game against a head of the run, and returns its id.

    replay: the challenger's own replay of the job (`tiebreak audit`), which must differ from the head; None: the caller
    knows what it risks. Raises `ConfigurationError` if the replay agrees, for then the stake would be lost.
    """
    head = signed_head(run, count)
    if replay is not None:
        own = RunDirectory.open(replay)
        if own.job.id != run.job.id:
            raise ConfigurationError(f"expected a replay of job {run.job.id.hex()}, got one of {own.job.id.hex()}")
        if compare(own, head).agrees:
            raise ConfigurationError(
                f"head {head.head.count} is what the replay gives: a challenge would lose the stake, so nothing is sent"
            )
    game_id, receipt = chain.challenge(key, head, nonce)
    return game_id, SentTransaction(what=f"a challenge of head {head.head.count}", receipt=receipt)


def end(chain: Chain, run: RunDirectory, key: PrivateKey, how: str) -> SentTransaction:
    """Ends a job in one of the `ENDINGS`. Raises `Reverted` with the contract's reason if it is too early."""
    return _sent(chain, key, ENDINGS[how](job_id=run.job.id), f"{how} of job {run.job.id.hex()}")


def claim(chain: Chain, game_id: Digest, key: PrivateKey) -> SentTransaction:
    """Claims that the side to move has used up its clock. Raises `Reverted`, with the reason, if it has not."""
    what = f"a claim that the clock of game {game_id.hex()} ran out"
    return _sent(chain, key, tx.ClaimTimeout(game_id=game_id), what)


def concede(chain: Chain, run: RunDirectory, key: PrivateKey, prover: Address) -> SentTransaction:
    """Ends a job by its trainer's word that its last head is false: half of the stake goes to the prover."""
    _require_owner(key, run.job.trainer, "trainer, to concede a head")
    head = signed_head(run, None).head
    signed = tx.ReportConcession(concession=Concession.sign(head, prover, run.agreement.domain, key))
    return _sent(chain, key, signed, f"the concession of head {head.count} to 0x{prover.hex()}")


def withdraw(chain: Chain, key: PrivateKey, to: Address | None = None) -> SentTransaction:
    """Withdraws all that the board owes to the key's account. Raises `StateError` if that is nothing."""
    if not (amount := chain.credit(key.address)):
        raise StateError(f"expected credit of 0x{key.address.hex()} on the board, got none")
    return _sent(chain, key, tx.Withdraw(to=key.address if to is None else to), ether(amount))


def signed_head(run: RunDirectory, count: int | None) -> SignedHead:
    """The signed head of this count [default: the last]. Raises `StateError` if there is none."""
    if not (heads := [head for head in run.heads() if count in (None, head.head.count)]):
        which = "a signed head" if count is None else f"a signed head of count {count}"
        raise StateError(f"{run.path}: expected {which}, got none")
    return heads[-1]


def _sent(chain: Chain, key: PrivateKey, wanted: tx.Transaction, what: str, wei: int | None = None) -> SentTransaction:
    return SentTransaction(what=what, receipt=chain.send(key, Call.of(wanted, wei)))


def _require_owner(key: PrivateKey, owner: Address, who: str) -> None:
    if key.address != owner:
        raise ConfigurationError(f"expected the key of 0x{owner.hex()}, the {who}, got 0x{key.address.hex()}")
