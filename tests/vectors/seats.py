"""Seats of jobs: what trainer and auditors seal, and which slots are drawn: seats.json."""

from typing import Any

from tests.vectors.inputs import Stream
from tests.vectors.instructions import hex_of
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import MAX_SEATS
from tiebreak.protocol.commitments.seats import ATTEMPTS, head_seal, nonce_of, root_seal, seed_of, slot_of
from tiebreak.protocol.tags import Digest


def _case(s: Stream, count: int, pool_length: int) -> dict[str, Any]:
    def drawn(length: int) -> bytes:
        return bytes(s.bits(8) for _ in range(length))

    job_id, root, salt, secret, entropy = (Digest(drawn(32)) for _ in range(5))
    auditor, seed = Address(drawn(20)), seed_of(job_id, entropy, secret)
    return {
        "jobId": hex_of(job_id),
        "runRoot": hex_of(root),
        "salt": hex_of(salt),
        "headCount": str(count),
        "headSeal": hex_of(head_seal(job_id, count, root, salt)),
        "auditor": hex_of(auditor),
        "rootSeal": hex_of(root_seal(job_id, auditor, root, salt)),
        "secret": hex_of(secret),
        "nonce": hex_of(nonce_of(secret).to_bytes(32, "big")),
        "entropy": hex_of(entropy),
        "seed": hex_of(seed),
        "poolLength": pool_length,
        "slots": [slot_of(seed, seat, k, pool_length) for seat in range(MAX_SEATS) for k in range(ATTEMPTS)],
    }


def seats() -> dict[str, Any]:
    s = Stream("seats")
    sizes = ((1, 1), (2, 3), (1 << 32, 1000), ((1 << 64) - 1, (1 << 32) - 1))
    cases = [_case(s, count, pool_length) for count, pool_length in sizes]
    return {"count": len(cases), "cases": cases}
