"""The mempool and the blocks: who sees what, in which order it counts, and when."""

from random import Random
from typing import Any

import simpy

from tiebreak.lab.sim.world.agents import Agent, BlockBuilder
from tiebreak.lab.sim.world.game import FUNDS, TERMS, Cast, simulated_chain
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.lab.sim.world.world import BLOCK_SECONDS, GENESIS, Pending, World, WorldBlock
from tiebreak.protocol.chain import Call, JobStatus, Receipt
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.parties import transactions as tx

KEYS = {name: PrivateKey.from_int(number) for number, name in enumerate(("client", "trainer", "builder", "poor"), 91)}


class Witness(Agent):
    """Writes down what it sees."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.pending: list[str] = []
        self.blocks: list[tuple[int, list[str]]] = []

    def on_pending(self, pending: Pending) -> None:
        self.pending.append(pending.call.kind)

    def on_block(self, block: WorldBlock) -> None:
        self.blocks.append((block.timestamp - GENESIS, [item.pending.call.kind for item in block.transactions]))


class Yard:
    """A world with three accounts and a builder, whose transactions a test sends by hand."""

    def __init__(self, workshop: Workshop, builder: type[BlockBuilder] = BlockBuilder) -> None:
        balances = {key.address: 10**15 if name == "poor" else FUNDS for name, key in KEYS.items()}
        chain = simulated_chain().begin(balances, GENESIS)
        self.world = World(chain, Cast(workshop=workshop), Random(0))
        self.agents = {name: Witness(self.world, name, KEYS[name]) for name in ("client", "trainer", "poor")}
        self.builder = builder(self.world, "builder", KEYS["builder"])
        self.world.builder = self.builder
        self.world.parties.update(self.agents)

    def job(self, nonce: int = 0) -> tuple[Job, Call]:
        """A job, and the call that offers it."""
        trainer = KEYS["trainer"]
        job = self.world.workshop.job(client=KEYS["client"].address, trainer=trainer.address, nonce=nonce, terms=TERMS)
        return job, Call.of(tx.CreateJob(job=job, signature=trainer.sign(job.digest(self.world.domain))))

    def send(self, name: str, call: Call, *, untried: bool = False) -> simpy.Event:
        return self.world.submit(self.agents[name], call, untried=untried)

    def run(self, seconds: int) -> None:
        """Runs until some seconds after the start."""
        while self.world.env.peek() <= seconds:
            self.world.env.step()


def refusal(event: simpy.Event) -> Any:
    """What an event failed with."""
    assert event.triggered
    assert not event.ok
    return event.value


def test_pending_transactions_are_mined_in_one_block_at_the_next_slot(workshop: Workshop) -> None:
    yard = Yard(workshop)
    (job, offer), (_, other) = yard.job(1), yard.job(2)
    yard.run(0)
    sent = [
        yard.send("client", offer),
        yard.send("trainer", Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake), untried=True),
        yard.send("client", other),
    ]
    assert yard.agents["trainer"].pending == ["createJob", "createJob"]
    assert yard.agents["client"].pending == ["acceptJob"]
    assert not any(event.triggered for event in sent)
    yard.run(60)
    assert [yard.agents[name].blocks for name in ("client", "poor")] == 2 * [
        [(12, ["createJob", "acceptJob", "createJob"])]
    ]
    receipts = [event.value for event in sent]
    assert all(isinstance(receipt, Receipt) and receipt.timestamp == GENESIS + 12 for receipt in receipts)
    assert yard.world.board.jobs[job.id].status is JobStatus.ACTIVE


def test_what_would_revert_is_not_sent(workshop: Workshop) -> None:
    yard = Yard(workshop)
    job, offer = yard.job()
    early = yard.send("trainer", Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake))
    assert refusal(early).name == "WrongJobStatus"
    assert (yard.world.pending, yard.agents["client"].pending) == ([], [])
    assert yard.agents["trainer"].account.gas == 0
    yard.send("client", offer)
    early = yard.send("trainer", Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake))
    assert refusal(early).name == "WrongJobStatus", "the offer that waits may never be mined"
    yard.run(60)
    withdrawn, accepted = (
        yard.send("client", Call.of(tx.CancelJob(job_id=job.id))),
        yard.send("trainer", Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake)),
    )
    assert not accepted.triggered, "and the cancellation that waits may never be mined either"
    yard.run(120)
    assert (withdrawn.ok, refusal(accepted).name) == (True, "WrongJobStatus")


def test_a_transaction_sent_without_a_dry_run_pays_gas_if_it_reverts(workshop: Workshop) -> None:
    yard = Yard(workshop)
    job, _ = yard.job()
    sent = yard.send("trainer", Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake), untried=True)
    yard.run(60)
    assert refusal(sent).name == "WrongJobStatus"
    account = yard.agents["trainer"].account
    assert (account.refused, account.gas > 21_000) == (1, True)
    assert yard.world.chain.balance(KEYS["trainer"].address) == FUNDS - account.fees_wei


class Backwards(BlockBuilder):
    def order(self, pending: list[Pending], now: int) -> list[Pending]:
        return pending[::-1]


def test_a_builder_reorders_senders_but_keeps_each_senders_nonce_order(workshop: Workshop) -> None:
    yard = Yard(workshop, Backwards)
    (job, offer), (_, second), (_, third) = yard.job(1), yard.job(2), yard.job(3)
    for call in (offer, second, third):
        yard.send("client", call)
    accepted = yard.send("trainer", Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake), untried=True)
    yard.run(60)
    (block,) = yard.world.blocks
    assert [item.pending.call for item in block.transactions][1:] == [offer, second, third]
    assert refusal(accepted).name == "WrongJobStatus", "executed before the offer"
    assert yard.agents["trainer"].account.refused == 1


def test_more_than_a_block_holds_waits_for_the_next(workshop: Workshop) -> None:
    yard = Yard(workshop)
    big = Call("", raw=b"\x01" * 100_000)  # 4 million gas of calldata each
    for _ in range(6):
        yard.send("trainer", big, untried=True)
    yard.run(60)
    sizes = [len(block.transactions) for block in yard.world.blocks]
    assert sum(sizes) == 6
    assert len(sizes) > 1
    assert [block.timestamp - GENESIS for block in yard.world.blocks] == [12 * (n + 1) for n in range(len(sizes))]


def test_refused_transactions_do_not_stop_the_pending_blocks_time(workshop: Workshop) -> None:
    yard = Yard(workshop)
    for _ in range(3):
        assert not yard.send("client", Call.of(tx.Withdraw(to=KEYS["client"].address))).ok
        assert yard.world._draft_of_next().draft.timestamp == yard.world.next_block
        yard.world.env.run(until=yard.world.env.now + BLOCK_SECONDS)
    assert yard.world.blocks == []
