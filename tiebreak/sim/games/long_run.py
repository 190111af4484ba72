"""One real step in the middle of a run that nobody trained: disputes at the scale of a million steps.

A dispute needs the trees of the whole run but executes only one step of it. The records of all other steps can be
invented, as long as both parties agree on those before the lie and disagree on those after it. The disputed step itself
is executed, hashed, opened and refereed as in any run.
"""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from tiebreak.engine.data.tensors import identities
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.evidence import Evidence
from tiebreak.protocol.commitments.job import Head, Job, SignedHead
from tiebreak.protocol.commitments.records import StepRecord, state_tree
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Tag, tagged_hash
from tiebreak.sim.adversaries.forgery import ForgedEvidence
from tiebreak.sim.games.duel import ChainMatch
from tiebreak.sim.games.local_chain import Market
from tiebreak.sim.games.scenario import play_out

LOSS_BITS = 0x40000000
"""The bits of 2.0, the loss of every step that was not executed."""


def made_up(step: int, party: bytes) -> StepRecord:
    """An invented record. Equal arguments give equal records."""
    root = tagged_hash(Tag.STEP_RECORD, b"made up" + step.to_bytes(8, "big") + party)
    return StepRecord(step=step, state_root=root, loss_bits=LOSS_BITS)


@dataclass(frozen=True, kw_only=True)
class StagedRun:
    """The part of a run directory that `Evidence` needs. `state_before` is used as the state after step `step` - 1.

    Raises `ConfigurationError` for the first or last step of a segment, because a record beside it would be a
    checkpoint's and the walk would not go through the steps tree; also for a job of policy `logged`.
    """

    job: Job
    program: Program
    step: int
    state_before: dict[str, Tensor]
    inputs: dict[str, Tensor]
    party: bytes
    """Makes this party's invented records after the lie differ from the other party's."""
    path: str = "a staged run"

    def __post_init__(self) -> None:
        if self.job.is_logged:
            raise ConfigurationError("expected a job of policy exact, got one of policy logged: nobody made its logs")
        first, last = self.job.first_step(self.segment), self.job.last_step(self.segment)
        if not first < self.step < last:
            raise ConfigurationError(f"expected a step between {first} and {last}, got {self.step}")

    @property
    def segment(self) -> int:
        """The checkpoint whose segment contains the real step."""
        return self.job.checkpoint_of(self.step)

    @cached_property
    def before(self) -> StepRecord:
        """The record of the step before the real one. Its state root is true."""
        root = state_tree(identities(self.state_before)).root
        return StepRecord(step=self.step - 1, state_root=root, loss_bits=LOSS_BITS)

    def record(self, step: int) -> StepRecord:
        """The record of any step except the real one."""
        if step == self.step - 1:
            return self.before
        return made_up(step, b"" if step < self.step else self.party)

    def records(self) -> list[StepRecord]:
        return [self.record(self.job.last_step(checkpoint)) for checkpoint in range(self.job.checkpoints)]

    def kept_before(self, step: int) -> int:
        """The only step whose state is kept. Raises `ConfigurationError` for an earlier `step`."""
        if step < self.step - 1:
            raise ConfigurationError(f"expected a step from {self.step - 1} on, got {step}")
        return self.step - 1

    def state(self, step: int) -> dict[str, Tensor]:
        """The state before the real step, which is the only one kept."""
        self.kept_before(step)
        return self.state_before

    def data(self) -> dict[str, Tensor]:
        return self.inputs


class StagedEvidence(Evidence):
    """The honest party's evidence. It executes only the real step."""

    run: StagedRun

    def _replay_segment(self, checkpoint: int) -> None:
        steps = range(self.job.first_step(checkpoint), self.job.last_step(checkpoint) + 1)
        self._records.update({step: self.run.record(step) for step in steps if step != self.run.step})
        if checkpoint == self.run.segment:
            step = self.run.step
            result = next(self._steps(step, step, self._state_after(step - 1))).result
            self._records[self.run.step] = make_record(self.run.step, result.state, result.loss_bits)


class StagedForgery(StagedEvidence, ForgedEvidence):
    """The cheat's evidence: it lies in the real step and forges its sums to fit the lie."""


def dispute(market: Market, job: Job, defender: StagedEvidence, challenger: StagedEvidence) -> ChainMatch:
    """Puts the job on the board, posts the defender's last head, and plays the game against it."""
    agreement = market.sign(job)
    market.open(agreement)
    head = Head(job_id=job.id, count=job.checkpoints, run_root=defender.run_tree(job.checkpoints).root)
    signed = SignedHead.sign(head, agreement.domain, market.parties.trainer)
    market.post(signed)
    return play_out(market, agreement, signed, defender, challenger)
