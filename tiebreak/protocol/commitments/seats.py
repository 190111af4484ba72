"""Seats of a job (SPEC section 11.1): what trainer and auditors seal, and which slots of a pool are drawn.

Until the auditors have sealed their roots, nobody but the trainer knows what its final head says. A seal hides a root
behind a salt of 32 bytes. An auditor's seal also names the auditor, so that a copy of it is worth nothing.
"""

from dataclasses import replace
from typing import Final

from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.tags import Digest, Tag, tagged_hash

SALT_BYTES: Final = 32
ATTEMPTS: Final = 32
"""The most slots that are drawn for one seat."""
POOL_SECONDS: Final = 1 << 21
"""Seconds after joining a pool before which an auditor cannot leave it."""


def nonce_of(secret: bytes) -> int:
    """The nonce of a job with seats, which commits its client to the secret of the draw."""
    return int.from_bytes(tagged_hash(Tag.SECRET, secret), "big")


def head_seal(job_id: Digest, count: int, run_root: Digest, salt: bytes) -> Digest:
    """The seal that the trainer posts instead of a head."""
    return tagged_hash(Tag.HEAD_SEAL, job_id, count.to_bytes(8, "big"), run_root, salt)


def root_seal(job_id: Digest, auditor: Address, run_root: Digest, salt: bytes) -> Digest:
    """The seal that an auditor posts to its seat."""
    return tagged_hash(Tag.ROOT_SEAL, job_id, auditor, run_root, salt)


def seed_of(job_id: Digest, entropy: bytes, secret: bytes) -> Digest:
    """The seed of the draw. entropy: from the block of the final seal, unknown to the client before."""
    return tagged_hash(Tag.SEED, job_id, entropy, secret)


def slot_of(seed: Digest, seat: int, attempt: int, pool_length: int) -> int:
    """The slot that is drawn for a seat, if those of all earlier attempts were empty or filled too late."""
    return int.from_bytes(tagged_hash(Tag.SEAT, seed, bytes((seat, attempt))), "big") % pool_length


def salt_of(key: PrivateKey, sealed: Digest) -> bytes:
    """A salt, or a secret, that only the key's owner can make, and makes again: a hash of a signature that nobody sees.

    sealed: names what it is for, such as the job.
    """
    return tagged_hash(Tag.SECRET, key.sign(tagged_hash(Tag.SECRET, sealed)))


def drawable(draft: Job, client: PrivateKey) -> tuple[Job, bytes]:
    """The job whose nonce commits to the secret of its draw, and that secret.

    The secret follows from the client's key and the draft (with whatever nonce that has), so nobody has to keep it.
    """
    secret = salt_of(client, draft.id)
    return replace(draft, nonce=nonce_of(secret)), secret
