"""Somebody else's contract on the embedded chain: a bonus that follows what the board says of a job."""

from itertools import count

import pytest
from eth_abi import encode
from eth_utils import keccak

from tests.chain.support import ETHER, OTHER_RUN, RUN, STRANGER, TRAINER, WINDOW, activate, head, numbered
from tiebreak.protocol.chain import EmbeddedChain, Reverted, calls
from tiebreak.protocol.chain.artifacts import load_artifact
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.tags import Digest

NONCES = count(7000)
LIMIT = 2_000_000
"""Gas: nobody measured this contract."""


class Bonus:
    """CompletionBonus over the chain's board."""

    def __init__(self, chain: EmbeddedChain) -> None:
        self.chain = chain
        creation = load_artifact("CompletionBonus").bytecode + encode(["address"], [chain.deployment.board])
        created = chain._transact(STRANGER, None, creation, 0, LIMIT)["contractAddress"]
        assert created is not None
        self.address = Address(bytes.fromhex(created[2:]))

    def call(self, signer: PrivateKey, function: str, job_id: Digest, value: int = 0) -> None:
        data = keccak(text=f"{function}(bytes32)")[:4] + job_id
        self.chain._transact(signer, self.address, data, value, LIMIT)

    @property
    def balance(self) -> int:
        return self.chain.balance(self.address)


@pytest.fixture(scope="module")
def bonus(chain: EmbeddedChain) -> Bonus:
    return Bonus(chain)


def test_the_bonus_of_a_settled_job_is_the_trainers(chain: EmbeddedChain, bonus: Bonus) -> None:
    job = numbered(next(NONCES))
    bonus.call(STRANGER, "sponsor", job.id, 2 * ETHER)
    activate(chain, job)
    for counted in range(1, job.checkpoints + 1):
        chain.send(TRAINER, calls.post_head(head(chain, job, counted)))
    with pytest.raises(Reverted):
        bonus.call(TRAINER, "claim", job.id)
    chain.advance(WINDOW + 1)
    chain.send(STRANGER, calls.settle(job.id))
    with pytest.raises(Reverted):
        bonus.call(STRANGER, "takeBack", job.id)
    before = chain.balance(TRAINER.address)
    bonus.call(TRAINER, "claim", job.id)
    assert bonus.balance == 0
    assert chain.balance(TRAINER.address) > before + 2 * ETHER - ETHER // 10  # less gas
    with pytest.raises(Reverted):
        bonus.call(TRAINER, "claim", job.id)


def test_the_bonus_of_a_slashed_job_goes_back(chain: EmbeddedChain, bonus: Bonus) -> None:
    job = numbered(next(NONCES))
    activate(chain, job)
    bonus.call(STRANGER, "sponsor", job.id, ETHER)
    chain.send(STRANGER, calls.report_equivocation(head(chain, job, 2, RUN), head(chain, job, 2, OTHER_RUN)))
    with pytest.raises(Reverted):
        bonus.call(TRAINER, "claim", job.id)
    bonus.call(STRANGER, "takeBack", job.id)
    assert bonus.balance == 0
    with pytest.raises(Reverted):
        bonus.call(STRANGER, "takeBack", job.id)
