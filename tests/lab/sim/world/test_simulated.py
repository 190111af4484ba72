"""A chain in simulated time: blocks by hand, the same in every process, and none of it at the cost of the rules."""

import pytest

from tests.chain.support import CLIENT, JOB, TRAINER, create
from tiebreak.lab.sim.world.simulated import BASE_FEE, SimulatedChain
from tiebreak.protocol.chain import Call, InsufficientFunds, JobStatus, NodeError, Reverted
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.parties import transactions as tx

DEPLOYER, POOR = (PrivateKey.from_int(n) for n in (71, 74))
START = 2_000_000_000
RICH = 10**20


@pytest.fixture(scope="module")
def contracts() -> SimulatedChain:
    return SimulatedChain(DEPLOYER)


@pytest.fixture
def chain(contracts: SimulatedChain) -> SimulatedChain:
    return contracts.begin({CLIENT.address: RICH, TRAINER.address: RICH, POOR.address: 5}, START)


def test_transactions_of_a_block_share_its_time_and_see_each_other(chain: SimulatedChain) -> None:
    job, draft = JOB, chain.draft(START + 12)
    offered = draft.add(CLIENT, create(chain, job))
    accepted = draft.add(TRAINER, Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake))
    assert draft.read(Call("job", (job.id,))).status is JobStatus.ACTIVE
    assert chain.job_state(job.id).status is JobStatus.NONE, "the block is not there yet"
    draft.mine()
    record = chain.job_state(job.id)
    assert (record.status, record.last_progress, chain.now()) == (JobStatus.ACTIVE, START + 12, START + 12)
    assert [event.name for event in offered.events + accepted.events] == ["JobCreated", "JobAccepted"]
    assert chain.balance(chain.deployment.board) == job.reward + job.trainer_stake
    assert chain.balance(CLIENT.address) == RICH - job.reward - offered.gas_used * BASE_FEE


def test_a_reverting_transaction_is_mined_only_if_sent_without_a_dry_run(chain: SimulatedChain) -> None:
    draft, call = chain.draft(START + 1), Call.of(tx.AcceptJob(job_id=JOB.id), 5)
    with pytest.raises(Reverted) as caught:
        draft.add(TRAINER, call)
    assert caught.value.name == "WrongJobStatus"
    failed = draft.add(TRAINER, call, even_if_it_reverts=True)
    assert failed.reverted is not None
    assert (failed.reverted.name, failed.events) == ("WrongJobStatus", ())
    draft.mine()
    assert chain.balance(TRAINER.address) == RICH - failed.gas_used * BASE_FEE, "the gas, and nothing else, is gone"


def test_reading_contract_state_changes_no_gas_cost(contracts: SimulatedChain) -> None:
    gas = []
    for reads in (0, 3):
        chain, job = contracts.begin({CLIENT.address: RICH, TRAINER.address: RICH}, START), JOB
        draft = chain.draft(START + 1)
        draft.add(CLIENT, create(chain, job))
        for _ in range(reads):
            draft.read(Call("job", (job.id,)))
        gas.append(draft.add(TRAINER, Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake)).gas_used)
        draft.mine()
        gas.append(chain.evm.get_canonical_head().gas_used)
    assert gas[:2] == gas[2:], "warm slots are cheaper: a reader must leave none behind"


def test_who_cannot_pay_sends_nothing(chain: SimulatedChain) -> None:
    with pytest.raises(InsufficientFunds, match=r"got 0\.000000000000000005 ether"):
        chain.draft(START + 1).add(POOR, Call.of(tx.Withdraw(to=POOR.address)))


def test_a_transaction_too_large_for_a_block_is_refused(chain: SimulatedChain) -> None:
    draft = chain.draft(START + 1)
    with pytest.raises(NodeError, match="refused the transaction"):
        draft.add(CLIENT, Call("", raw=b"\xff" * 1_000_000))
    assert draft.add(CLIENT, create(chain, JOB)).reverted is None, "nothing is left of it"


def test_a_draft_block_must_be_later_than_the_last_one(chain: SimulatedChain) -> None:
    with pytest.raises(ValueError, match=f"after {START}, got {START}"):
        chain.draft(START)


def test_a_simulated_chain_must_begin_before_use(contracts: SimulatedChain) -> None:
    with pytest.raises(StateError, match="begin"):
        contracts.now()
