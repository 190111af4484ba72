"""The ledger of the rules against the contract: every ending of a job, the same credits."""

from dataclasses import replace
from hashlib import sha256

import pytest

from tests.chain import support
from tests.lab.incentives.rules import BURNED, CLIENT, SYBIL, TRAINER, Ledger, auditor
from tests.parts import slow_except
from tiebreak.lab.incentives.economics import JobEconomics
from tiebreak.protocol.chain import Call, EmbeddedChain
from tiebreak.protocol.commitments.job import Concession, Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import run_tree
from tiebreak.protocol.game.moves import Descend
from tiebreak.protocol.game.rules import start
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.tags import Digest

KEYS = {CLIENT: support.CLIENT, TRAINER: support.TRAINER, SYBIL: support.STRANGER, auditor(0): support.CHALLENGER}
JOB = replace(support.JOB, reward=1000, trainer_stake=701, challenger_stake=90)
RECORDS = [sha256(bytes([number])).digest() for number in range(JOB.checkpoints)]
TREE = run_tree(RECORDS, JOB.steps, JOB.checkpoint_interval)
SETTING = JobEconomics(reward=1000, trainer_stake=701, challenger_stake=90, training=0, audit=0)


class Board:
    """One job of the contract, with what its parties have paid in."""

    def __init__(self, chain: EmbeddedChain, job: Job) -> None:
        self.chain, self.job, self.games = chain, job, dict[str, Digest]()
        self.burned = 0
        self.before = self.credits()
        support.activate(chain, job)
        self.paid = {CLIENT: job.reward, TRAINER: job.trainer_stake}

    def credits(self) -> dict[str, int]:
        return {name: self.chain.credit(key.address) for name, key in KEYS.items()} | {BURNED: self.burned}

    def send(self, key: PrivateKey, call: Call) -> None:
        self.burned += sum(event.values.get("burned", 0) for event in self.chain.send(key, call).events)

    def gains(self) -> dict[str, int]:
        return {name: now - self.before[name] - self.paid.get(name, 0) for name, now in self.credits().items()}

    def challenge(self, who: str) -> None:
        claim = support.head(self.chain, self.job, self.job.checkpoints, TREE.root)
        stake = self.job.challenger_stake << self.chain.job_state(self.job.id).open_games
        self.games[who], _ = self.chain.challenge(KEYS[who], claim, 0)
        self.paid[who] = self.paid.get(who, 0) + stake

    def convicted(self, who: str) -> None:
        self.send(support.TRAINER, Call("concede", (self.games[who],)))

    def defended(self, who: str) -> None:
        claim = support.head(self.chain, self.job, self.job.checkpoints, TREE.root).head
        state = start(self.job, claim, self.games[who], self.chain.now())
        self.chain.play(support.TRAINER, state, Descend(nodes=tuple(TREE.below(TREE.depth, 0, 1))))
        self.send(KEYS[who], Call("concede", (self.games[who],)))

    def equivocation(self, who: str) -> None:
        heads = [support.head(self.chain, self.job, 2, run) for run in (support.RUN, support.OTHER_RUN)]
        self.send(KEYS[who], Call.of(tx.Report(first=heads[0], second=heads[1])))

    def concession(self, who: str) -> None:
        claim = support.head(self.chain, self.job, self.job.checkpoints, TREE.root).head
        conceded = Concession.sign(claim, KEYS[who].address, self.chain.domain, support.TRAINER)
        self.send(support.CLIENT, Call.of(tx.ReportConcession(concession=conceded)))

    def reclaim(self, who: str) -> None:
        self.chain.send(KEYS[who], Call.of(tx.Reclaim(game_id=self.games[who])))

    def settle(self) -> None:
        claim = support.head(self.chain, self.job, self.job.checkpoints, TREE.root)
        self.chain.send(support.TRAINER, Call.of(tx.PostHead(head=claim)))
        self.chain.advance(self.job.challenge_window + 2)
        self.chain.send(support.TRAINER, Call.of(tx.Settle(job_id=self.job.id)))


CHALLENGER = auditor(0)
ENDINGS = {
    "settled": [("settle",)],
    "after a false challenge": [("challenge", CHALLENGER), ("defended", CHALLENGER), ("settle",)],
    "after two": [
        ("challenge", CHALLENGER), ("challenge", SYBIL), ("defended", CHALLENGER), ("defended", SYBIL), ("settle",),
    ],
    "convicted": [("challenge", CHALLENGER), ("convicted", CHALLENGER)],
    "convicted before another": [
        ("challenge", CHALLENGER), ("challenge", SYBIL), ("convicted", SYBIL), ("reclaim", CHALLENGER),
    ],
    "reported": [("equivocation", SYBIL)],
    "conceded to itself": [("concession", SYBIL)],
    "conceded over a game": [("challenge", CHALLENGER), ("concession", SYBIL), ("reclaim", CHALLENGER)],
    "reported over a game": [("challenge", CHALLENGER), ("equivocation", SYBIL), ("reclaim", CHALLENGER)],
}  # fmt: skip


@pytest.fixture(scope="module")
def chain() -> EmbeddedChain:
    return support.new_chain()


@pytest.mark.parametrize("ending", slow_except(ENDINGS, "settled", "reported over a game"))
def test_the_ledger_pays_as_the_contract_does(chain: EmbeddedChain, ending: str) -> None:
    board = Board(chain, replace(JOB, nonce=1000 + list(ENDINGS).index(ending)))
    ledger = Ledger(job=SETTING)
    ledger.accept()
    for name, *who in ENDINGS[ending]:
        getattr(board, name)(*who)
        getattr(ledger, name)(*who)
    gains = board.gains()
    assert {name: ledger.wealth[name] for name in gains} == gains
    assert any(gains.values())
