"""The job board on the embedded EVM, through the adapter: lives of jobs, money, times, refusals."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from tests.chain import support
from tiebreak.protocol.chain import Chain, EmbeddedChain, InsufficientFunds, JobStatus, Reverted
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.commitments import eip712
from tiebreak.protocol.commitments.job import Head, Job, LogReceipt, game_id
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.program.rounding import Policy

NONCES = count(1)


def refusal(error: pytest.ExceptionInfo[Reverted]) -> tuple[str, dict[str, object]]:
    return error.value.name, error.value.values


def test_ids_and_digests_agree_with_python(chain: EmbeddedChain) -> None:
    job = support.numbered(next(NONCES))
    assert chain._read(Call("hashJob", (job.values,))) == job.id
    assert chain._read(Call("domainSeparator")) == eip712.domain_separator(chain.domain)
    claim = Head(job_id=job.id, count=3, run_root=support.RUN)
    assert chain._read(Call("headDigest", (claim.values,))) == claim.digest(chain.domain)
    found = chain._read(Call("gameIdOf", (claim.values, support.CHALLENGER.address, 2**64 - 1)))
    assert found == game_id(claim, chain.domain, support.CHALLENGER.address, 2**64 - 1)


def test_an_honest_job_from_offer_to_withdrawal(chain: EmbeddedChain) -> None:
    job = support.numbered(next(NONCES))
    before = chain.balance(support.CLIENT.address)
    receipt = chain.send(support.CLIENT, support.create(chain, job))
    assert receipt.event("JobCreated").values["reward"] == job.reward
    assert chain.balance(support.CLIENT.address) <= before - job.reward
    chain.send(support.TRAINER, Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake))
    for counted in range(1, job.checkpoints + 1):
        posted = chain.send(support.STRANGER, Call.of(tx.PostHead(head=support.head(chain, job, counted))))
        values = posted.event("HeadPosted").values
        assert (values["count"], values["isFinal"]) == (counted, counted == job.checkpoints)
    state = chain.job_state(job.id)
    assert (state.status, state.head_count, state.head_root) == (JobStatus.ACTIVE, 3, support.RUN)
    assert (state.trainer, state.program_root, state.depth) == (job.trainer, job.program_root, job.half_depth)
    end = state.last_progress + support.WINDOW
    for moment in (end - 1, end):
        chain.travel_to(moment)
        with pytest.raises(Reverted) as error:
            chain.send(support.STRANGER, Call.of(tx.Settle(job_id=job.id)))
        assert refusal(error) == ("WindowOpen", {"end": end, "current": moment})
    chain.travel_to(end + 1)
    chain.send(support.STRANGER, Call.of(tx.Settle(job_id=job.id)))
    assert chain.job_state(job.id).status is JobStatus.SETTLED
    assert chain.credit(support.TRAINER.address) == job.reward + job.trainer_stake
    poor = chain.balance(support.TRAINER.address)
    withdrawn = chain.send(support.TRAINER, Call.of(tx.Withdraw(to=support.TRAINER.address)))
    assert withdrawn.event("Withdrawn").values["amount"] == job.reward + job.trainer_stake
    assert chain.balance(support.TRAINER.address) > poor + job.reward
    assert chain.credit(support.TRAINER.address) == 0


def accepted_by_python(job: Job, policy: int, precision: int, tolerances: int) -> bool:
    try:
        replace(job, policy=policy, precision=precision, tolerances=tolerances)
    except VerificationError:
        return False
    return True


def test_policies_are_taken_and_refused_as_in_python(chain: EmbeddedChain, cases: Callable[..., None]) -> None:
    tolerances = [n << 8 * kind for kind in range(3) for n in (0, 1, 2, 3, 63, 64, 65, 128, 255)]
    packs = [*tolerances, 2 | 64 << 8 | 1 << 16, *(n << 24 for n in (1, 2, 3, 255)), 1 << 24 | 20, 1 << 24 | 1 << 8]
    asked = [(policy, 24, packed) for policy in (0, 1) for packed in packs]
    asked += [(policy, precision, 0) for policy in (0, 1, 2, 255) for precision in (0, 15, 16, 31, 32, 33, 255)]
    taken = 0
    for policy, precision, packed in asked:
        job = support.numbered(next(NONCES))
        offer = Call.of(tx.CreateJob(job=job, signature=bytes(65)))
        at = [*Job.kinds()].index("policy")
        changed = (*job.values[:at], policy, precision, packed, *job.values[at + 3 :])
        with pytest.raises(Reverted) as error:
            chain.send(support.CLIENT, replace(offer, arguments=(changed, bytes(65))))
        # The job's ranges are checked before the trainer's signature.
        accepted = error.value.name == "MalformedSignature"
        assert error.value.name in ("MalformedSignature", "InvalidJob")
        assert accepted == accepted_by_python(job, policy, precision, packed), (policy, precision, packed)
        taken += accepted
        cases()
    assert 20 < taken < len(asked) - 20


def test_a_refused_transaction_costs_and_changes_nothing(chain: EmbeddedChain) -> None:
    job = support.numbered(next(NONCES))
    support.activate(chain, job)
    before = (chain.balance(support.STRANGER.address), chain.now(), chain.job_state(job.id))
    with pytest.raises(Reverted) as error:
        chain.send(support.STRANGER, Call.of(tx.Settle(job_id=job.id)))
    assert refusal(error) == ("FinalHeadMissing", {"count": 0, "checkpoints": 3})
    assert (chain.balance(support.STRANGER.address), chain.now(), chain.job_state(job.id)) == before


def test_an_account_without_wei_is_told_what_it_needs(chain: EmbeddedChain) -> None:
    job = replace(support.numbered(next(NONCES)), client=support.PAUPER.address)
    message = r"expected at least [\d.]+ ether, got [\d.]+ ether; fund it first"
    with pytest.raises(InsufficientFunds, match=message) as error:
        chain.send(support.PAUPER, support.create(chain, job))
    assert (error.value.account, error.value.available) == (support.PAUPER.address, 0)
    assert error.value.needed >= job.reward


def test_unknown_jobs_and_games_read_as_none(chain: EmbeddedChain) -> None:
    assert chain.job_state(support.OTHER_RUN).status is JobStatus.NONE
    assert chain.game_state(support.OTHER_RUN).phase == 0
    assert chain._read(Call("mover", (support.OTHER_RUN,))) == bytes(20)


def test_existing_board_can_be_attached_to(chain: EmbeddedChain) -> None:
    again = Chain(chain.node)
    assert again.attach(chain.deployment.board) == chain.deployment
    assert again.domain == chain.domain


def receipt(chain: EmbeddedChain, job: Job, count: int, key: PrivateKey = support.CLIENT) -> LogReceipt:
    return LogReceipt.sign(Head(job_id=job.id, count=count, run_root=support.RUN), chain.domain, key)


def test_log_receipt_digests_and_checks_match_python(chain: EmbeddedChain) -> None:
    job = replace(support.JOB, policy=int(Policy.LOGGED))
    found = receipt(chain, job, 2)
    found.verify(job, chain.domain)
    assert chain._read(Call("receiptDigest", (found.head.values,))) == found.head.receipt_digest(chain.domain)
    assert LogReceipt.decode(found.encode()) == found
    assert Call.decode(Call.of(tx.Acknowledge(receipt=found)).data) == Call.of(tx.Acknowledge(receipt=found))
    assert Call.of(tx.Acknowledge(receipt=found)).heads == ()  # it shows no head that the trainer signed
    for broken, other in (
        (receipt(chain, job, 2, support.TRAINER), job),
        (LogReceipt(head=found.head, signature=support.head(chain, job, 2, key=support.CLIENT).signature), job),
        (found, replace(job, nonce=1)),
        (receipt(chain, job, 4), job),
        (receipt(chain, support.JOB, 2), support.JOB),
    ):
        with pytest.raises(VerificationError):
            broken.verify(other, chain.domain)
