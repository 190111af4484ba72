"""One game in two places at once: `tiebreak.protocol.game.rules` and the contract. Every step is compared."""

from collections import deque
from collections.abc import Callable
from itertools import count

from tests.chain.support import CHALLENGER, CLIENT, TRAINER, activate
from tests.chain.tiny import Liar, Run, Setting, make_job
from tiebreak.protocol.chain import Call, Chain, GameRecord, JobStatus, Outcome, Receipt, Reverted
from tiebreak.protocol.chain.moves import move_in
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import IllegalMove
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.match import moves
from tiebreak.protocol.game.moves import Move, Phase, Side
from tiebreak.protocol.game.rules import GameState
from tiebreak.protocol.game.sides import Challenger, Defender, Oracle, Party
from tiebreak.protocol.game.snapshot import Snapshot
from tiebreak.protocol.game.state import Reason
from tiebreak.protocol.parties import transactions as tx

NONCES = count(1)
SECRET = b"\x5e" * 32


def new_job(setting: Setting, *, levels: int, **options: int):  # type: ignore[no-untyped-def]
    return make_job(setting, CLIENT.address, TRAINER.address, nonce=next(NONCES), levels=levels, **options)


class Duel:
    """A game against the head of `defended` at the given count of checkpoints."""

    def __init__(
        self,
        chain: Chain,
        defended: Oracle,
        *,
        head_count: int = 3,
        challenger: PrivateKey = CHALLENGER,
        nonce: int = 0,
    ) -> None:
        self.chain, self.job, self.signer = chain, defended.job, challenger
        if chain.job_state(self.job.id).status is JobStatus.NONE:
            activate(chain, self.job)
        head = Head(job_id=self.job.id, count=head_count, run_root=defended.run_tree(head_count).root)
        self.id, self.started = chain.challenge(challenger, SignedHead.sign(head, chain.domain, TRAINER), nonce)
        self.state: GameState = game.start(self.job, head, self.id, self.started.timestamp)
        self.gas: dict[Phase, list[int]] = {}
        self.last_block = self.started.block
        self.accepted = self.refused = 0
        self.program = defended.program
        self.shown: Move | None = None
        """The last move, as the logs have it."""
        self.refusals: set[str] = set()
        """Names of the contract's errors that were seen."""
        self.compare()

    def signers(self) -> dict[Side, PrivateKey]:
        return {Side.DEFENDER: TRAINER, Side.CHALLENGER: self.signer}

    def try_move(self, move: Move) -> bool:
        state = self.state
        signer = self.signers()[state.mover]
        is_legal = self._try(
            lambda: self.chain.play(signer, state, move), lambda now: game.apply(state, move, now), state.phase
        )
        if is_legal:
            self._follow(state)
        return is_legal

    def _follow(self, before: GameState) -> None:
        """Whoever reads only the logs comes to the same state."""
        events = [event for event in self.receipt.events if event.values.get("gameId") == self.id]
        self.shown = move_in(events, before, self.shown, self.program)
        if self.shown is None:
            assert self.state.is_over
            assert [event.name for event in events][-1] == "GameEnded"
        else:
            assert game.follow(before, self.shown, self.receipt.timestamp) == self.state

    def wait(self) -> None:
        """Let time pass until the next move is legal: a proof waits for a clock."""
        self.chain.pass_until(self.state.earliest)

    def judge(self, _state: GameState, move: Move) -> GameState:
        self.wait()
        assert self.try_move(move), self.contract_refusal
        return self.state

    def try_timeout(self) -> bool:
        call = Call.of(tx.ClaimTimeout(game_id=self.id))
        return self._try(lambda: self.chain.send(CLIENT, call), lambda now: game.timeout(self.state, now), None)

    def _try(self, act: Callable[[], Receipt], rule: Callable[[int], GameState], phase: Phase | None) -> bool:
        pending = self.chain.now() + 1
        contract = self._contract(act)
        python = self._python(lambda: rule(pending if contract is None else contract.timestamp))
        assert (python is None) == (contract is None), f"{phase}: {self._last_refusals()}"
        if python is None or contract is None:
            self.refused += 1
        else:
            self.accepted += 1
            self.receipt = contract
            self.state = python
            if phase is not None:
                self.gas.setdefault(phase, []).append(contract.gas_used)
            self.last_block = contract.block
        self.compare()
        return python is not None

    def _python(self, act: Callable[[], GameState]) -> GameState | None:
        self.python_refusal = ""
        try:
            return act()
        except IllegalMove as error:
            self.python_refusal = str(error)
            return None

    def _contract(self, act: Callable[[], Receipt]) -> Receipt | None:
        self.contract_refusal = ""
        try:
            return act()
        except Reverted as error:
            if error.name in ("Panic", "Halted", "Unknown"):
                raise  # a refusal is deliberate: never a panic, never out of gas
            self.contract_refusal = str(error)
            self.refusals.add(error.name)
            return None

    def _last_refusals(self) -> str:
        return f"python said {self.python_refusal or 'legal'!r}, the contract {self.contract_refusal or 'legal'!r}"

    # ------------------------------------------------------------------ what both remember

    def compare(self) -> None:
        ours, theirs = self.state, self.chain.game_state(self.id)
        assert theirs.phase == ours.phase
        self._compare_verdict(theirs)
        assert (theirs.level, theirs.height, theirs.position) == (ours.level, ours.height, ours.position)
        if ours.verdict is None or ours.verdict.reason not in (Reason.TIMEOUT, Reason.CONCEDED):
            clocks = (theirs.last, theirs.last + theirs.talk, theirs.defender_rest, theirs.challenger_rest)
            assert clocks == (ours.moved, ours.last, ours.defender_rest, ours.challenger_rest)
        if ours.is_over:
            return
        assert (theirs.replay_time, theirs.sequence) == (ours.job.replay_time, ours.moves)
        expected = Snapshot.of(ours)
        found = {name: getattr(theirs, name) for name in Snapshot.kinds()}
        assert (
            Snapshot(**{name: value if type(value) is bytes else int(value) for name, value in found.items()})
            == expected
        )

    def _compare_verdict(self, theirs: GameRecord) -> None:
        verdict = self.state.verdict
        if verdict is None:
            assert (theirs.verdict, theirs.reason) == (Outcome.NONE, Reason.NONE)
            return
        lost = Outcome.CHALLENGER_LOST if verdict.winner is Side.DEFENDER else Outcome.DEFENDER_LOST
        assert (theirs.verdict, theirs.reason) == (lost, Reason(verdict.reason))
        status = self.chain.job_state(self.job.id).status
        assert status is (JobStatus.ACTIVE if verdict.winner is Side.DEFENDER else JobStatus.SLASHED)


def parties(defended: Oracle, against: Oracle) -> dict[Side, Party]:
    return {Side.DEFENDER: Defender(defended), Side.CHALLENGER: Challenger(against, SECRET)}


def play(duel: Duel, players: dict[Side, Party]) -> None:
    deque(moves(duel.state, players, duel.judge), maxlen=0)


def lying_duel(  # type: ignore[no-untyped-def]
    chain: Chain, setting: Setting, step: int, leaf: int, *, levels: int, bend_from: int = 0, **options: int
):
    """A duel about one lie, and both players; nothing is played yet."""
    job = new_job(setting, levels=levels, **options)
    liar = Liar(setting, job, step, leaf, bend_from=bend_from)
    return Duel(chain, liar), parties(liar, Run(setting, job))
