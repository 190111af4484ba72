"""One game in two places at once: `protocol.game` and the contract. Every step is compared."""

from itertools import count

from protocol import game
from protocol.chain import EmbeddedChain, EndReason, GameRecord, JobStatus, Outcome, Receipt, Reverted
from protocol.errors import IllegalMove
from protocol.game import GameState
from protocol.job import Head, SignedHead
from protocol.moves import Move, Phase, Side
from tests.chain.support import CHALLENGER, CLIENT, TRAINER, activate
from tests.chain.tiny import Run, make_job

NONCES = count(1)
SIDES = {Side.DEFENDER: TRAINER, Side.CHALLENGER: CHALLENGER}


class Duel:
    """A game against the head of `defended` at the given count of checkpoints."""

    def __init__(self, chain: EmbeddedChain, defended: Run, *, descent_levels: int, head_count: int = 3) -> None:
        self.chain = chain
        self.job = make_job(CLIENT.address, TRAINER.address, nonce=next(NONCES), descent_levels=descent_levels)
        activate(chain, self.job)
        head = Head(job_id=self.job.id, count=head_count, run_root=defended.run_tree(head_count).root)
        signed = SignedHead.sign(head, chain.domain, TRAINER)
        self.id, self.started = chain.challenge(CHALLENGER, signed, 0)
        self.state: GameState = game.start(self.job, head, self.started.timestamp)
        self.gas: dict[Phase, list[int]] = {}
        self.last_block = self.started.block
        self.accepted = self.refused = 0
        self.compare()

    def try_move(self, move: Move) -> bool:
        """Make a move in both places; whether it was legal, which both must agree on."""
        phase, now = self.state.phase, self.chain.now() + 1
        python = self._python(lambda: game.apply(self.state, move, now))
        contract = self._contract(lambda: self.chain.play(SIDES[self.state.mover], self.id, move))
        assert (python is None) == (contract is None), f"{phase.name}: {self._last_refusals()} for {move}"
        return self._finish(python, contract, phase)

    def try_timeout(self) -> bool:
        """Claim the clock in both places."""
        now = self.chain.now() + 1
        python = self._python(lambda: game.timeout(self.state, now))
        contract = self._contract(lambda: self.chain.timeout(CLIENT, self.id))
        assert (python is None) == (contract is None), self._last_refusals()
        return self._finish(python, contract, None)

    def _finish(self, python: GameState | None, contract: Receipt | None, phase: Phase | None) -> bool:
        if python is None or contract is None:
            self.refused += 1
        else:
            self.accepted += 1
            self.state = python
            if phase is not None:
                self.gas.setdefault(phase, []).append(contract.gas_used)
            self.last_block = contract.block
        self.compare()
        return python is not None

    def _python(self, act) -> GameState | None:  # type: ignore[no-untyped-def]
        self.python_refusal = ""
        try:
            return act()  # type: ignore[no-any-return]
        except IllegalMove as error:
            self.python_refusal = str(error)
            return None

    def _contract(self, act) -> Receipt | None:  # type: ignore[no-untyped-def]
        self.contract_refusal = ""
        try:
            return act()  # type: ignore[no-any-return]
        except Reverted as error:
            if error.name in ("Panic", "Halted", "Unknown"):
                raise  # a refusal is deliberate: never a panic, never out of gas
            self.contract_refusal = str(error)
            return None

    def _last_refusals(self) -> str:
        return f"python said {self.python_refusal or 'legal'!r}, the contract {self.contract_refusal or 'legal'!r}"

    def compare(self) -> None:
        """Both places remember the same."""
        ours, theirs = self.state, self.chain.game_state(self.id)
        assert theirs.phase == ours.phase
        assert (theirs.level, theirs.height, theirs.position) == (ours.level, ours.height, ours.position)
        assert theirs.node == ours.node
        clocks = (theirs.last, theirs.defender_rest, theirs.challenger_rest)
        if ours.verdict is None or ours.verdict.reason is not game.Reason.TIMEOUT:
            assert clocks == (ours.last, ours.defender_rest, ours.challenger_rest)
        assert (theirs.segment, theirs.step) == (ours.checkpoint, ours.step)
        assert (theirs.instruction, theirs.element) == (ours.leaf, ours.element)
        assert theirs.claimed == int.from_bytes(ours.claimed, "little")
        self._compare_roots(theirs)
        self._compare_verdict(theirs)

    def _compare_roots(self, theirs: GameRecord) -> None:
        ours, zero = self.state, bytes(32)
        assert theirs.run_root == ours.head.run_root
        assert theirs.steps_root == (ours.steps_root or zero)
        assert theirs.body_root == (ours.body_root or zero)
        assert theirs.instruction_leaf == (ours.instruction or zero)
        assert theirs.accumulator_root == (ours.accumulator_root or zero)

    def _compare_verdict(self, theirs: GameRecord) -> None:
        verdict = self.state.verdict
        if verdict is None:
            assert (theirs.verdict, theirs.reason) == (Outcome.NONE, EndReason.NONE)
            return
        lost = Outcome.CHALLENGER_LOST if verdict.winner is Side.DEFENDER else Outcome.DEFENDER_LOST
        assert (theirs.verdict, theirs.reason) == (lost, EndReason(verdict.reason))
        status = self.chain.job_state(self.job.id).status
        assert status is (JobStatus.ACTIVE if verdict.winner is Side.DEFENDER else JobStatus.SLASHED)
