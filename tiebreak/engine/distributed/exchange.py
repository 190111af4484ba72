"""Exchanges between workers, over `torch.distributed` (gloo or nccl)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from tiebreak.engine.distributed.layout import Split, share
from tiebreak.protocol.errors import StateError


class Exchange(Protocol):
    """The connection of one worker to all others. Every worker calls the same methods in the same order."""

    @property
    def worker(self) -> int:
        """Its number, from 0; worker 0 has the run directory."""

    @property
    def workers(self) -> int:
        """Their number, which changes no result."""

    def begin(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> Callable[[], None]:
        """Sends a piece (1-d, contiguous) to each worker, and receives one from each into a tensor of its length.

        The function that it returns waits until both is done.
        """


class ExchangeError(StateError):
    """An exchange failed, because another worker is gone or does not answer."""


@dataclass
class Torch:
    """The process group that `torch.distributed` was initialized with, or another one of the same processes."""

    group: dist.ProcessGroup | None = None
    worker: int = field(default_factory=dist.get_rank)
    workers: int = field(default_factory=dist.get_world_size)
    exchanges: int = 0
    """The number of exchanges that this worker has begun; one that is behind keeps the others waiting."""
    bytes_sent: int = 0
    """The bytes that this worker has sent to the others."""

    def meet(self) -> None:
        """Waits until all workers have come here."""
        self.exchanges += 1
        try:
            dist.barrier(self.group)
        except RuntimeError as error:
            raise _failed(error) from error

    def begin(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> Callable[[], None]:
        """Begins an exchange, as `Exchange.begin` does; raises `ExchangeError`, also from the wait."""
        self.exchanges += 1
        others = [w for w in range(self.workers) if w != self.worker]
        receive = [dist.P2POp(dist.irecv, into[w], w, self.group) for w in others if len(into[w])]
        send = [dist.P2POp(dist.isend, pieces[w], w, self.group) for w in others if len(pieces[w])]
        self.bytes_sent += sum(pieces[w].nbytes for w in others)
        try:
            waiting = dist.batch_isend_irecv([*receive, *send]) if receive or send else []
        except RuntimeError as error:
            raise _failed(error) from error
        into[self.worker].copy_(pieces[self.worker])

        def wait() -> None:
            try:
                for each in waiting:
                    each.wait()
            except RuntimeError as error:
                raise _failed(error) from error

        return wait


def _failed(error: RuntimeError) -> ExchangeError:
    return ExchangeError(f"an exchange with the other workers failed: {error}")


def numbering(elements: int) -> torch.dtype:
    """The dtype in which elements, from a total of `elements`, are listed by their numbers."""
    return torch.int32 if elements < 1 << 31 else torch.int64


SHORT: Final = 3
"""The longest list whose numbers are sent along with its length."""
JOINED: Final = 1 << 18
"""Values of up to this many bytes are sent in one message, if they are sent at once."""
Empty = Callable[[Sequence[int], torch.dtype], Tensor]
"""(shape, dtype) -> memory of undefined contents, on the worker's device."""


@dataclass(frozen=True, slots=True)
class Swap:
    """A prepared exchange: what this worker sends to each worker, and where it receives their pieces."""

    pieces: Sequence[Tensor]
    """The pieces for each worker, 1-d."""
    into: Sequence[Tensor]
    """The tensors into which the other workers' pieces are put, 1-d."""
    bytes: int
    """The number of bytes of the whole value, the same for all workers."""
    finish: Callable[[], Tensor]
    """Makes the result, 1-d, once all pieces have come."""


@dataclass(frozen=True)
class Collectives:
    """Operations that the workers of a step do together. All of them call the same methods in the same order."""

    exchange: Exchange
    empty: Empty

    @property
    def workers(self) -> int:
        return self.exchange.workers

    def run(self, swaps: Sequence[Swap]) -> list[Tensor]:
        """Does several swaps at once; returns the result of each."""
        return [wait() for wait in self.start(swaps)]

    def start(self, swaps: Sequence[Swap]) -> list[Callable[[], Tensor]]:
        """Begins several swaps at once. Returns, in their order, a function for each that waits for its result."""
        small = [swap for swap in swaps if swap.bytes <= JOINED]
        waits = {id(swap): self.exchange.begin(swap.pieces, swap.into) for swap in swaps if swap.bytes > JOINED}
        if len(small) == 1:
            (swap,) = small
            waits[id(swap)] = self.exchange.begin(swap.pieces, swap.into)
        elif small:
            waits |= dict.fromkeys(map(id, small), self._join(small))

        def waiting(swap: Swap) -> Callable[[], Tensor]:
            def wait() -> Tensor:
                waits[id(swap)]()
                return swap.finish()

            return wait

        return [waiting(swap) for swap in swaps]

    def _join(self, swaps: Sequence[Swap]) -> Callable[[], None]:
        """Begins several swaps with one message to each worker. The function that it returns may be called for each."""
        made: dict[tuple[int, ...], Tensor] = {}
        sent, received = [], []
        for worker in range(self.workers):
            pieces = [swap.pieces[worker] for swap in swaps]
            key = tuple(map(id, pieces))  # what is gathered is the same for all
            if key not in made:
                made[key] = torch.cat([piece.view(torch.uint8) for piece in pieces])
            sent.append(made[key])
            received.append(self.empty((sum(swap.into[worker].nbytes for swap in swaps),), torch.uint8))
        begun = self.exchange.begin(sent, received)
        over = False

        def wait() -> None:
            nonlocal over
            if over:
                return
            begun()
            for worker, found in enumerate(received):
                places = [swap.into[worker] for swap in swaps]
                for place, part in zip(places, torch.split(found, [each.nbytes for each in places]), strict=True):
                    place.view(torch.uint8).copy_(part)
            over = True

        return wait

    def gather(self, shard: Tensor, split: Split) -> Swap:
        """Makes whole a value that is held in shards, one on each worker."""
        flat = shard.reshape(-1)
        lengths = [split.outer * (end - begin) * split.inner for begin, end in self.shares(split.size)]
        found = self.empty((split.numel,), flat.dtype)
        pieces = torch.split(found, lengths)

        def whole() -> Tensor:
            if split.outer == 1:
                return found
            return torch.cat([piece.view(split.outer, -1, split.inner) for piece in pieces], 1).view(-1)

        return Swap([flat] * self.workers, pieces, found.nbytes, whole)

    def heads(self, mine: Tensor) -> Swap:
        """The length and the first numbers of the lists (1-d) of all workers, for `lists`."""
        short = torch.zeros(1 + SHORT, dtype=mine.dtype, device=mine.device)  # nearly all lists fit into one message
        short[0] = len(mine)
        short[1 : 1 + len(mine)] = mine[:SHORT]
        every = self.empty((self.workers, len(short)), mine.dtype)
        return Swap([short] * self.workers, every.unbind(), every.nbytes, lambda: every)

    def lists(self, mine: Tensor, heads: Tensor) -> tuple[Tensor, list[int]]:
        """The lists of all workers one after the other, i64, and the length of each."""
        lengths: list[int] = heads[:, 0].tolist()
        if max(lengths) <= SHORT:
            return torch.cat([row[1 : 1 + n] for row, n in zip(heads, lengths, strict=True)]).long(), lengths
        found = self.empty((sum(lengths),), mine.dtype)
        self._swap([mine] * self.workers, torch.split(found, lengths))
        return found.long(), lengths

    def add(self, pieces: Sequence[Tensor], count: int, size: int) -> Swap:
        """The sum over the workers of the `count` numbers that each sends. size: `Swap.bytes`.

        The sum of integers is i64.
        """
        found = self.empty((self.workers, count), pieces[0].dtype)
        return Swap(pieces, found.unbind(), size, lambda: found.sum(0))

    def collect(self, shard: Tensor, split: Split) -> Tensor:
        """The whole value, 1-d, on the first worker, from the leading shares of all; elsewhere an empty tensor."""
        flat, first = shard.reshape(-1), self.exchange.worker == 0
        lengths = [(end - begin) * split.inner if first else 0 for begin, end in self.shares(split.size)]
        found = self.empty((sum(lengths),), flat.dtype)
        self._swap([flat, *[flat[:0]] * (self.workers - 1)], torch.split(found, lengths))
        return found

    def greatest(self, mine: Sequence[int], device: torch.device) -> list[int]:
        """The greatest of all workers' numbers, for each of several."""
        return self._all(mine, device).amax(0).tolist()

    def numbers(self, mine: int, device: torch.device) -> list[int]:
        """The number of each worker, in their order."""
        return self._all([mine], device).flatten().tolist()

    def _all(self, mine: Sequence[int], device: torch.device) -> Tensor:
        found = torch.empty((self.workers, len(mine)), dtype=torch.int64, device=device)
        self._swap([torch.tensor(mine, device=device)] * self.workers, found.unbind())
        return found

    def agreed(self, mine: bytes, device: torch.device) -> bytes:
        """The bytes of the first worker; the others need to know only their length."""
        numbers = torch.tensor(list(mine), dtype=torch.uint8, device=device)
        first, none = self.exchange.worker == 0, numbers[:0]
        into = [torch.empty_like(numbers), *[none] * (self.workers - 1)]
        self._swap([numbers] * self.workers if first else [none] * self.workers, into)
        return bytes(into[0].cpu().tolist())

    def said(self, mine: bytes, device: torch.device) -> bytes:
        """The bytes of the first worker; what the others give counts for nothing."""
        length = self.numbers(len(mine), device)[0]
        return self.agreed(bytes(length) if self.exchange.worker else mine, device)

    def _swap(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        self.exchange.begin(pieces, into)()

    def shares(self, size: int) -> list[tuple[int, int]]:
        """The coordinates of a dim that each worker holds."""
        return [share(size, worker, self.workers) for worker in range(self.workers)]
