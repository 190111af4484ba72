"""The tape of one worker's part of a step, with its inputs and messages: recorded, then played by another worker.

A tape is bytes, in the order in which the step needs them: the worker's shards of the state before the step; its own
FP64 sums, before it sends them; a digest of all that it sends in an exchange; what it receives. Played again, the step
reads what was received from the tape, and compares the rest. FP64 sums need not be the same bits on another machine, so
they are compared within the bounds that Ziv's test allows for, and the step goes on with those of the tape. All that
follows from them is the same on every machine, bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.data.tensors import canonical
from tiebreak.engine.distributed.exchange import Exchange

DIGEST: Final = 32


class DifferenceError(Exception):
    """The play differs from the tape. `evidence` is the same on all machines that compute rightly."""

    def __init__(self, evidence: bytes) -> None:
        super().__init__()
        self.evidence = evidence


def as_bytes(tensor: Tensor) -> Tensor:
    return canonical(tensor.detach()).reshape(-1).contiguous().view(torch.uint8).cpu()


def digest_of(tensors: Sequence[Tensor]) -> bytes:
    """A digest of the bits of tensors, in which all NaN are one."""
    found = blake2b(digest_size=DIGEST)
    seen: dict[int, Tensor] = {}  # all get the same piece where a value is gathered
    for tensor in tensors:
        if id(tensor) not in seen:
            seen[id(tensor)] = tensor
            found.update(as_bytes(tensor).numpy().data)
    return found.digest()


@dataclass
class TapeRecorder:
    """An exchange that keeps a tape while `tape` is a list."""

    exchange: Exchange
    tape: list[Tensor] | None = None

    @property
    def worker(self) -> int:
        return self.exchange.worker

    @property
    def workers(self) -> int:
        return self.exchange.workers

    @property
    def running(self) -> bool:
        return self.tape is not None

    def keep(self, tensors: Sequence[Tensor]) -> None:
        if self.tape is not None:
            self.tape += [as_bytes(tensor).clone() for tensor in tensors]

    def keep_digest(self, tensors: Sequence[Tensor]) -> None:
        if self.tape is not None:
            self.tape.append(torch.frombuffer(bytearray(digest_of(tensors)), dtype=torch.uint8))

    def begin(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> Callable[[], None]:
        self.keep_digest(pieces)
        wait = self.exchange.begin(pieces, into)

        def received() -> None:
            wait()
            self.keep([piece for worker, piece in enumerate(into) if worker != self.worker])

        return received if self.running else wait

    def own(self, numbers: Sequence[Tensor], _: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """This worker's FP64 numbers, before it sends them."""
        self.keep(numbers)
        return numbers


@dataclass
class TapePlayer:
    """An exchange in which the others are on a tape: `worker` is the one whose part is computed again."""

    worker: int
    workers: int
    tape: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    """The bytes of one part of a step, 1-d, u8; empty until one is inserted."""
    running: Final = True
    _at: int = 0

    def insert(self, tape: Tensor) -> None:
        """Puts in another tape, at its beginning."""
        self.tape, self._at = tape, 0

    def next(self, like: Tensor) -> Tensor:
        """The next bytes of the tape, as a tensor of this shape and dtype."""
        return self._take(like.nbytes).view(like.dtype).view(like.shape).to(like.device)

    def compare(self, tensors: Sequence[Tensor]) -> None:
        """Raises `DifferenceError` unless the tape has these bits next, by their digest."""
        at, found = self._at, digest_of(tensors)
        if bytes(self._take(DIGEST).tolist()) != found:
            raise DifferenceError(at.to_bytes(8, "big") + found)

    def begin(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> Callable[[], None]:
        self.compare(pieces)

        def wait() -> None:
            for worker, place in enumerate(into):
                place.copy_(pieces[worker] if worker == self.worker else self.next(place))

        return wait

    def own(self, numbers: Sequence[Tensor], within: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """The FP64 numbers of the tape. Raises `DifferenceError` if they are farther from these than they may be."""
        at, theirs = self._at, [self.next(each) for each in numbers]
        for mine, other, far in zip(numbers, theirs, within(), strict=True):
            finite = mine.isfinite()
            near = (mine - other).abs().reshape(-1) <= far.reshape(-1)
            if not bool(torch.where(finite, near.view(mine.shape), ~other.isfinite()).all()):
                raise DifferenceError(at.to_bytes(8, "big"))
        return theirs

    def _take(self, count: int) -> Tensor:
        begin, self._at = self._at, self._at + count
        if self._at > len(self.tape):
            raise DifferenceError(b"its tape is too short")
        return self.tape[begin : self._at].clone()
