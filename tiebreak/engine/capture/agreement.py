"""Turns a captured task into the job that client and trainer sign."""

from dataclasses import asdict

from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.data import FactsCache, data_identities
from tiebreak.engine.data.tensors import identities
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import PRECISION_F32, Job, SignedJob
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import data_tree, state_tree
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.program.rounding import Policy

__all__ = ["Terms", "draft_job", "sign_job"]


def draft_job(
    captured: Captured, *, steps: int, checkpoint_interval: int, client: Address, trainer: Address, terms: Terms,
    policy: Policy = Policy.EXACT, precision: int = PRECISION_F32, tolerances: int = 0,
) -> Job:  # fmt: skip
    """The job over a captured task. Hashes the initial state and the data once.

    tolerances: those of logged sums, packed by `tiebreak.protocol.program.rounding.pack_tolerances`; 0 under policy
    `exact`.
    """
    return Job.over(
        captured.program,
        client=client,
        trainer=trainer,
        initial_state_root=state_tree(identities(captured.state)).root,
        data_root=data_tree(data_identities(captured.data, cache=FactsCache())).root,
        steps=steps,
        checkpoint_interval=checkpoint_interval,
        policy=int(policy),
        precision=precision,
        tolerances=tolerances,
        **asdict(terms),
    )


def sign_job(job: Job, domain: Domain, *, client: PrivateKey, trainer: PrivateKey) -> SignedJob:
    """The job with both signatures, for callers that hold both keys (demo, tests)."""
    signatures = {"client_signature": job.sign(domain, client), "trainer_signature": job.sign(domain, trainer)}
    return SignedJob(domain=domain, job=job, **signatures)
