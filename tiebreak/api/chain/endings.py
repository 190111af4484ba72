"""The endings of jobs on a chain, for certificates and claims of ownership. Needs the extra `chain`."""

from tiebreak.api.certification.claims import Posting
from tiebreak.protocol.chain import Chain, Event, JobStatus
from tiebreak.protocol.commitments.certificate import Certificate, Logged, Seat
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Head
from tiebreak.protocol.errors import StateError, VerificationError
from tiebreak.protocol.tags import Digest


def check_settled(chain: Chain, head: Head) -> None:
    """Raises `StateError` if a job is not settled, and `VerificationError` if it was settled with another head."""
    state = chain.job_state(head.job_id)
    if state.status is not JobStatus.SETTLED:
        raise StateError(f"expected a job that is settled, got one that is {state.status.name.lower()}")
    if (state.head_count, state.head_root) != (head.count, head.run_root):
        raise VerificationError(
            f"expected head {state.head_count} of root {state.head_root.hex()}, with which the job was settled, got "
            f"{head.count} of root {head.run_root.hex()}"
        )


def ending_of(chain: Chain, head: Head, first_block: int = 0) -> tuple[Logged, tuple[Seat, ...]]:
    """The log of a job's settlement with this head, and the seats paid since a block. Raises like `check_settled`."""
    check_settled(chain, head)
    found = chain.events(head.job_id, first_block)
    if not (settled := [_logged(event) for event in found if event.name == "JobSettled"]):
        raise StateError(f"expected the event of a settlement since block {first_block}, got none from the node")
    return settled[0], tuple(
        Seat(auditor=Address(bytes(event.values["auditor"])), number=int(event.values["seat"]), paid=_logged(event))
        for event in found if event.name == "SeatClaimed"
    )  # fmt: skip


def check_ending(chain: Chain, certificate: Certificate) -> None:
    """Raises `VerificationError` unless a job ended as its certificate says, `StateError` if it has not ended."""
    check_settled(chain, certificate.head.head)
    logged = [seat.paid for seat in certificate.audits]
    logged += [certificate.settlement] if certificate.settlement else []
    if logged:
        settled, paid = ending_of(chain, certificate.head.head, min(one.block for one in logged))
        if certificate.settlement not in (None, settled):
            raise VerificationError(f"certificate: expected settlement by {settled}, got {certificate.settlement}")
        if false := [seat for seat in certificate.audits if seat not in paid]:  # others may be paid later
            raise VerificationError(f"certificate: expected a seat among {paid}, got {false[0]}")


def heads_posted(chain: Chain, job_id: Digest, first_block: int = 0) -> list[Posting]:
    """The heads of a job that the board has taken since a block, as a node says."""
    return [
        Posting(count=int(event.values["count"]), run_root=Digest(bytes(event.values["runRoot"])),
                when=f"block {event.block} of chain {chain.chain_id}")
        for event in chain.events(job_id, first_block) if event.name == "HeadPosted"
    ]  # fmt: skip


def _logged(event: Event) -> Logged:
    return Logged(transaction=bytes(event.transaction), block=event.block)
