"""Receipts of logs, as clients sign them: receipts.json."""

from typing import Any

from tests.vectors.inputs import Stream
from tests.vectors.instructions import hex_of
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Head, LogReceipt
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.tags import Digest


def _case(s: Stream, count: int) -> dict[str, Any]:
    def drawn(length: int) -> bytes:
        return bytes(s.bits(8) for _ in range(length))

    domain = Domain(chain_id=1 + s.bits(32), contract=Address(drawn(20)))
    head = Head(job_id=Digest(drawn(32)), count=count, run_root=Digest(drawn(32)))
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
    cases = [_case(s, count) for count in (1, 2, 1 << 32, (1 << 64) - 1)]
    return {"count": len(cases), "cases": cases}
