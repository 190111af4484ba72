"""A market in one process: an embedded chain with the contracts, and parties with keys and money."""

import secrets
from dataclasses import dataclass, replace

from tiebreak.engine.capture.compile import Compiled
from tiebreak.engine.run.agreement import Terms, draft_job, sign_job
from tiebreak.protocol.chain import Chain, EmbeddedChain
from tiebreak.protocol.commitments.job import Job, SignedHead, SignedJob
from tiebreak.protocol.commitments.keys import RANDOM_BYTES, PrivateKey

ETHER = 10**18
FUNDS = 1000 * ETHER


@dataclass(frozen=True, slots=True)
class Parties:
    client: PrivateKey
    trainer: PrivateKey
    challenger: PrivateKey

    @classmethod
    def generate(cls) -> "Parties":
        return cls(*(PrivateKey.generate(secrets.token_bytes(RANDOM_BYTES)) for _ in range(3)))


class Market:
    """A job board and a referee, deployed on a chain of their own, with the accounts of the parties."""

    def __init__(self, parties: Parties | None = None, chain: Chain | None = None) -> None:
        """`chain`: a chain on which the parties have money. The default is a new embedded chain."""
        self.parties = Parties.generate() if parties is None else parties
        self.chain = _embedded(self.parties) if chain is None else chain
        self.chain.deploy(self.parties.client)

    def draft(self, compiled: Compiled, *, steps: int, checkpoint_interval: int, terms: Terms | None = None) -> Job:
        """A job between the market's client and trainer, on the usual terms unless others are given."""
        client, trainer = self.parties.client.address, self.parties.trainer.address
        return draft_job(compiled, steps=steps, checkpoint_interval=checkpoint_interval, client=client, trainer=trainer,
                         terms=Terms() if terms is None else terms)  # fmt: skip

    def sign(self, job: Job) -> SignedJob:
        """The job with both signatures, valid for this market's board."""
        return sign_job(job, self.chain.domain, client=self.parties.client, trainer=self.parties.trainer)

    def open(self, agreement: SignedJob) -> int:
        """Puts a job on the board: the client pays the reward, the trainer its stake. Returns the gas used."""
        offered = self.chain.create_job(self.parties.client, agreement.job, agreement.trainer_signature)
        accepted = self.chain.accept_job(self.parties.trainer, agreement.job.id)
        return offered.gas_used + accepted.gas_used

    def post(self, head: SignedHead) -> int:
        """Posts a signed head. Returns the gas used."""
        return self.chain.post_head(self.parties.trainer, head).gas_used

    def worth(self, key: PrivateKey) -> int:
        """What a party can withdraw, in wei. Gas is paid from its balance and counted separately."""
        return self.chain.credit(key.address)


def _embedded(parties: Parties) -> EmbeddedChain:
    chain = EmbeddedChain()
    for key in (parties.client, parties.trainer, parties.challenger):
        chain.fund(key.address, FUNDS)
    return chain


def another(job: Job) -> Job:
    """The same job under another id. The computation is the same, and so is its true run."""
    return replace(job, nonce=secrets.randbits(128))
