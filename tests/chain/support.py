"""Parties, a job and a board for the tests of the chain adapter."""

from dataclasses import replace
from hashlib import sha256

from eth_typing import Hash32

from tiebreak.protocol.chain import Call, Chain, EmbeddedChain
from tiebreak.protocol.commitments.job import Head, Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game.moves import Move
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.tags import Digest

CLIENT = PrivateKey.from_int(0xC11E)
TRAINER = PrivateKey.from_int(0x7EA1)
CHALLENGER = PrivateKey.from_int(0xC4A1)
STRANGER = PrivateKey.from_int(0x57EA)
PAUPER = PrivateKey.from_int(0xDEAD)

ETHER = 10**18
WINDOW = 1000
CLOCK = 600

RUN = Digest(sha256(b"run").digest())
OTHER_RUN = Digest(sha256(b"other run").digest())

JOB = Job(
    client=CLIENT.address, trainer=TRAINER.address, program_root=Digest(sha256(b"program").digest()), body_count=3,
    state_count=2, data_count=1, initial_state_root=Digest(sha256(b"state").digest()),
    data_root=Digest(sha256(b"data").digest()), steps=7, checkpoint_interval=3, reward=10 * ETHER,
    trainer_stake=5 * ETHER + 1, challenger_stake=ETHER, challenge_window=WINDOW, clock=CLOCK, replay_time=0,
    talk_time=0, audit_time=0, deadline=100_000, descent_levels=1, nonce=0,
)  # fmt: skip


def new_chain() -> EmbeddedChain:
    """An embedded chain with both contracts and funded parties, whose clock this machine's does not overtake."""
    chain = EmbeddedChain()
    chain.advance(24 * 3600)
    for key in (CLIENT, TRAINER, CHALLENGER, STRANGER):
        chain.fund(key.address, 10_000 * ETHER)
    chain.deploy(STRANGER)
    return chain


def create(chain: Chain, job: Job) -> Call:
    return Call.of(tx.CreateJob(job=job, signature=TRAINER.sign(job.digest(chain.domain))))


def offer(chain: Chain, job: Job) -> Digest:
    chain.send(CLIENT, create(chain, job))
    return job.id


def activate(chain: EmbeddedChain, job: Job) -> Digest:
    offer(chain, job)
    chain.send(TRAINER, Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake))
    return job.id


def numbered(nonce: int) -> Job:
    return replace(JOB, nonce=nonce)


def head(chain: EmbeddedChain, job: Job, count: int, run_root: Digest = RUN, key: PrivateKey = TRAINER) -> SignedHead:
    return SignedHead.sign(Head(job_id=job.id, count=count, run_root=run_root), chain.domain, key)


def moves_in(chain: Chain, game_id: Digest, first_block: int = 0) -> list[Move | None]:
    order = dict.fromkeys(event.transaction for event in chain.events(game_id, first_block))
    inputs = [bytes(chain.node.web3.eth.get_transaction(Hash32(transaction))["input"]) for transaction in order]
    return [call.move for call in map(Call.decode, inputs) if call.is_move and call.game_id == game_id]
