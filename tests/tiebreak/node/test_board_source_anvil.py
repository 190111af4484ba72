"""The ground of a party on anvil, over HTTP, with blocks that a real node takes back."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.chain.support import CLIENT, ETHER, TRAINER, numbered
from tests.protocol.town import Kept
from tests.waiting import free_port, until
from tiebreak.node.board_source import ChainSource
from tiebreak.protocol.chain import Chain
from tiebreak.protocol.chain.devnet import MNEMONIC, dev_secrets, find_anvil, run_anvil
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import JobStatus
from tiebreak.protocol.parties.terms import Pace

BINARY = find_anvil()
pytestmark = pytest.mark.skipif(BINARY is None, reason="needs anvil")
PACE = Pace(block_seconds=12, step_seconds=1)


@pytest.fixture(scope="module")
def chain() -> Iterator[Chain]:
    assert BINARY is not None
    with run_anvil(BINARY, port=free_port(), mnemonic=MNEMONIC, accounts=1) as node:
        chain = Chain.connect(node.url)
        for key in (CLIENT, TRAINER):
            rpc(chain, "anvil_setBalance", "0x" + key.address.hex(), hex(100 * ETHER))
        chain.deploy(PrivateKey.from_int(dev_secrets(1)[0]))
        yield chain


def rpc(chain: Chain, method: str, *params: Any) -> Any:
    answer: Any = chain.node.web3.provider.make_request(method, list(params))  # type: ignore[arg-type]
    return answer["result"]


def ground_on(chain: Chain, key: PrivateKey | None) -> ChainSource:
    own = Chain.connect(chain.node.web3.provider.endpoint_uri)  # type: ignore[attr-defined]
    own.attach(chain.deployment.board)
    return ChainSource(own, key, Kept(), pace=PACE, confirmations=3)


def sees(board_source: ChainSource, job_id: bytes, status: JobStatus) -> bool:
    """Poll, and tell whether the job has this status. anvil makes a transaction's block after it has answered."""
    board_source.poll()
    job = board_source.board.jobs.get(job_id)
    return job is not None and job.status is status


def test_board_follows_a_three_block_reorganisation_on_anvil(chain: Chain) -> None:
    client, trainer, watcher = ground_on(chain, CLIENT), ground_on(chain, TRAINER), ground_on(chain, None)
    job = numbered(77)
    places: dict[str, ChainSource] = {"create": client, "accept": trainer}
    client.poll()
    signature = TRAINER.sign(job.digest(client.domain))
    client.send(e.Transact(place=("create",), transaction=tx.CreateJob(job=job, signature=signature)))
    for board_source in (trainer, watcher):
        until(partial(sees, board_source, job.id, JobStatus.OFFERED))
    trainer.send(e.Transact(place=("accept",), transaction=tx.AcceptJob(job_id=job.id)))
    until(partial(sees, watcher, job.id, JobStatus.ACTIVE))

    rpc(chain, "evm_mine")
    rpc(chain, "anvil_reorg", 3, [])  # others take their place, without transactions
    watcher.poll()
    assert watcher.board.jobs == {}

    told: dict[str, list[e.Event]] = {name: [] for name in places}
    for _ in range(30):
        rpc(chain, "evm_mine")
        for name, board_source in places.items():
            told[name] += [event for event in board_source.poll() if isinstance(event, e.Mined | e.Refused)]
        if all(told.values()):
            break
    assert [type(event) for event in told["create"]] == [e.Mined]
    watcher.poll()
    assert job.id in watcher.board.jobs
    status = chain.job_state(job.id).status
    assert watcher.board.jobs[job.id].status is status
    assert (status is JobStatus.ACTIVE) == isinstance(told["accept"][0], e.Mined)
