"""Seats and receipts of logs: what is sealed and drawn, and what clients sign: seats.json, receipts.json."""

from typing import Any

from tests.vectors.inputs import Stream
from tests.vectors.instructions import hex_of
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import MAX_SEATS, Head, LogReceipt
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.seats import ATTEMPTS, head_seal, nonce_of, root_seal, seed_of, slot_of
from tiebreak.protocol.tags import Digest


def _seats(s: Stream, count: int, pool_length: int) -> dict[str, Any]:
    job_id, root, salt, secret, entropy = (Digest(s.data(32)) for _ in range(5))
    auditor, seed = Address(s.data(20)), seed_of(job_id, entropy, secret)
    return {
        "jobId": hex_of(job_id), "runRoot": hex_of(root), "salt": hex_of(salt), "headCount": str(count),
        "headSeal": hex_of(head_seal(job_id, count, root, salt)), "auditor": hex_of(auditor),
        "rootSeal": hex_of(root_seal(job_id, auditor, root, salt)), "secret": hex_of(secret),
        "nonce": hex_of(nonce_of(secret).to_bytes(32, "big")), "entropy": hex_of(entropy), "seed": hex_of(seed),
        "poolLength": pool_length,
        "slots": [slot_of(seed, seat, k, pool_length) for seat in range(MAX_SEATS) for k in range(ATTEMPTS)],
    }  # fmt: skip


def seats() -> dict[str, Any]:
    s = Stream("seats")
    sizes = ((1, 1), (2, 3), (1 << 32, 1000), ((1 << 64) - 1, (1 << 32) - 1))
    cases = [_seats(s, count, pool_length) for count, pool_length in sizes]
    return {"count": len(cases), "cases": cases}


def _receipt(s: Stream, count: int) -> dict[str, Any]:
    domain = Domain(chain_id=1 + s.bits(32), contract=Address(s.data(20)))
    head = Head(job_id=Digest(s.data(32)), count=count, run_root=Digest(s.data(32)))
    client = PrivateKey.from_int(1 + s.bits(64))
    receipt = LogReceipt.sign(head, domain, client)
    return {
        "chainId": domain.chain_id,
        "contract": hex_of(domain.contract),
        "client": hex_of(client.address),
        "jobId": hex_of(head.job_id),
        # A decimal string: the largest count is none of JSON's numbers.
        "headCount": str(count),
        "runRoot": hex_of(head.run_root),
        "digest": hex_of(head.receipt_digest(domain)),
        "signature": hex_of(receipt.signature),
    }


def receipts() -> dict[str, Any]:
    s = Stream("receipts")
    cases = [_receipt(s, count) for count in (1, 2, 1 << 32, (1 << 64) - 1)]
    return {"count": len(cases), "cases": cases}
