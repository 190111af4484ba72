"""Workers that check each other: in some steps, what one has computed is computed again by another.

In such a step every worker records its part (`tiebreak.engine.distributed.tape`). Only then do they draw who plays
whose part again. If that comes to anything else, all play the part in doubt, also the worker that computed it, and what
most of them find is right: the one that found something else is named. Of two workers, each may find what it found
before, and then nobody can tell from within which of them is wrong.

This finds faulty machines, not liars: each worker is trusted to record what it received.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from tiebreak.engine.distributed.arithmetic import SharedArithmetic
from tiebreak.engine.distributed.tape import DifferenceError, TapePlayer, TapeRecorder
from tiebreak.engine.distributed.train import SharedInterpreter
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.engine.run.interpreter import NotFiniteError, Observer, State, StepResult, Sums
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.program.program import Program

SAME = 0
"""The finding of a worker that plays a tape to its end; other findings are numbers that stand for a difference."""


class WrongWorkerError(StateError):
    """A worker computed other bits than the rest, or two workers cannot agree. Nothing of the step is committed."""


class CheckedInterpreter(SharedInterpreter):
    """A `SharedInterpreter` whose workers check each other in every step that `every` divides."""

    def __init__(self, program: Program, arithmetic: SharedArithmetic, every: int) -> None:
        """arithmetic: its exchange is a `TapeRecorder`. Raises `ConfigurationError` if there is only one worker."""
        recorder = arithmetic.exchange
        assert isinstance(recorder, TapeRecorder)
        if recorder.workers == 1:
            raise ConfigurationError("expected several workers that check each other, got one")
        super().__init__(program, arithmetic)
        self._recorder, self._every, self._checked = recorder, every, 0
        self._parts: dict[int, tuple[TapePlayer, SharedInterpreter]] = {}

    def step(
        self, number: int, state: State, data: State, observe: Observer | None = None, *, check_finite: bool = True,
        donate: bool = False, sums: Sums | None = None,
    ) -> StepResult:  # fmt: skip
        """Runs a step as `SharedInterpreter.step` does. Raises `WrongWorkerError`, on all workers."""

        def compute() -> StepResult:
            return super(CheckedInterpreter, self).step(
                number, state, data, observe, check_finite=check_finite, donate=donate, sums=sums
            )

        if number % self._every:
            return compute()
        recorder = self._recorder
        recorder.tape = []
        try:
            recorder.keep([state[name] for name in self.program.state_spec()])
            result = compute()
            recorder.keep_digest(_told(result))
            tape = torch.cat(recorder.tape)
        finally:
            recorder.tape = None

        def play(worker: int, given: Tensor) -> int:
            return self._play(worker, given, number, data, check_finite=check_finite)

        self._check(tape, play, number)
        self._checked = number
        return result

    def _check(self, tape: Tensor, play: Callable[[int, Tensor], int], number: int) -> None:
        """Has each worker play another's tape. tape: this worker's. play: gives this worker's finding on a tape."""
        worker, workers, device = self._recorder.worker, self._recorder.workers, self.arithmetic.device
        numbers = self.arithmetic.collectives.numbers
        lengths = numbers(len(tape), device)  # after this, nobody has anything of the step to compute
        shift = 1 + sum(numbers(int.from_bytes(os.urandom(4), "big"), device)) % (workers - 1)
        whom, by = (worker + shift) % workers, (worker - shift) % workers
        found = numbers(play(whom, self._sent(tape, [by], whom, lengths[whom])), device)
        verdicts = []
        for checker in (n for n in range(workers) if found[n] != SAME):
            doubtful = (checker + shift) % workers
            everyone = range(workers) if worker == doubtful else []
            again = numbers(play(doubtful, self._sent(tape, everyone, doubtful, lengths[doubtful])), device)
            verdicts.append(_verdict(again, doubtful, checker))
        if verdicts:
            raise WrongWorkerError(f"step {number}: {min(verdicts)[1]}. {self._advice()}")

    def _sent(self, tape: Tensor, to: Sequence[int], whose: int, length: int) -> Tensor:
        """Sends this worker's tape to some, and receives that of another."""
        device, workers = self.arithmetic.device, range(self._recorder.workers)
        mine, found = tape.to(device), torch.empty(length, dtype=torch.uint8, device=device)
        pieces = [mine if worker in to else mine[:0] for worker in workers]
        self._recorder.begin(pieces, [found if worker == whose else found[:0] for worker in workers])()
        return found.cpu()

    def _play(self, worker: int, tape: Tensor, number: int, data: State, *, check_finite: bool) -> int:
        """Computes a worker's part of a step again. Returns `SAME`, or a number that stands for the difference."""
        if worker not in self._parts:
            player, arithmetic = TapePlayer(worker, self._recorder.workers), self.arithmetic
            again = SharedArithmetic(player, arithmetic.device, precision=arithmetic.options.precision)
            self._parts[worker] = player, SharedInterpreter(self.partition.program, again)
        player, machine = self._parts[worker]
        player.insert(tape)
        try:
            device = self.arithmetic.device
            state = {
                name: player.next(torch.empty(shape, dtype=TORCH_DTYPES[dtype], device=device))
                for name, (dtype, shape) in machine.program.state_spec().items()
            }
            player.compare(_told(machine.step(number, state, data, check_finite=check_finite, donate=True)))
        except (DifferenceError, NotFiniteError) as difference:
            del self._parts[worker]  # it stopped in the midst of a step
            evidence = difference.evidence if isinstance(difference, DifferenceError) else b"not finite"
            return 1 + int.from_bytes(blake2b(evidence, digest_size=7).digest(), "big")
        return SAME

    def _advice(self) -> str:
        since = f"after step {self._checked}" if self._checked else "that these workers have made"
        return (
            f"Nothing of this step is committed, but checkpoints {since} may have wrong bits: audit them before you go "
            "on without the wrong worker"
        )


def _told(result: StepResult) -> list[Tensor]:
    return [*result.state.values(), torch.tensor(result.loss_bits)]


def _verdict(found: Sequence[int], doubtful: int, checker: int) -> tuple[int, str]:
    """Names the wrong worker, from what each found when it played the part of the doubtful one. Least is plainest."""
    (right, votes), *others = Counter(found).most_common()
    if others and others[0][1] == votes:
        return 1, (
            f"worker {doubtful} or worker {checker} of {len(found)} computes wrong bits, and each finds again what it "
            "found before, so that it takes a third to tell which one"
        )
    if right != SAME:
        return 0, f"worker {doubtful} of {len(found)} computed wrong bits"
    return 2, f"worker {checker} of {len(found)} computed wrong bits when it checked another one"
