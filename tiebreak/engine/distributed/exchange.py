"""What workers send each other, over `torch.distributed` (gloo or nccl)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from tiebreak.engine.distributed.layout import Split, share
from tiebreak.protocol.errors import StateError


class Exchange(Protocol):
    """All workers of a step. Each calls the same methods in the same order."""

    @property
    def worker(self) -> int:
        """Which one this is, from 0."""

    @property
    def workers(self) -> int:
        """How many there are."""

    def swap(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """Sends a piece (1-d, contiguous) to each worker, and receives one from each into a tensor of its length."""


class ExchangeError(StateError):
    """An exchange failed, because another worker is gone or does not answer."""


@dataclass
class Torch:
    """The process group that `torch.distributed` was initialized with."""

    worker: int = field(default_factory=dist.get_rank)
    workers: int = field(default_factory=dist.get_world_size)
    exchanges: int = 0
    """How many were begun."""
    bytes_sent: int = 0
    """What this worker has sent to the others."""

    def swap(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """As `Exchange.swap`."""
        self.exchanges += 1
        others = [w for w in range(self.workers) if w != self.worker]
        receive = [dist.P2POp(dist.irecv, into[w], w) for w in others if len(into[w])]
        send = [dist.P2POp(dist.isend, pieces[w], w) for w in others if len(pieces[w])]
        self.bytes_sent += sum(pieces[w].nbytes for w in others)
        try:
            waiting = dist.batch_isend_irecv([*receive, *send]) if receive or send else []
            into[self.worker].copy_(pieces[self.worker])
            for each in waiting:
                each.wait()
        except RuntimeError as error:
            raise ExchangeError(f"an exchange with the other workers failed: {error}") from error


Empty = Callable[[Sequence[int], torch.dtype], Tensor]
"""(shape, dtype) -> memory of undefined contents, on the worker's device."""


@dataclass(frozen=True)
class Collectives:
    """What the workers of a step do together. All of them call the same methods in the same order."""

    exchange: Exchange
    empty: Empty

    @property
    def workers(self) -> int:
        """How many there are."""
        return self.exchange.workers

    def gather(self, shard: Tensor, split: Split) -> Tensor:
        """A whole value, 1-d, of which each worker holds a shard, in its layout."""
        flat = shard.reshape(-1)
        lengths = [split.outer * (end - begin) * split.inner for begin, end in self._shares(split.size)]
        found = self.empty((split.numel,), flat.dtype)
        pieces = found.split(lengths)
        self.exchange.swap([flat] * self.workers, pieces)
        if split.outer == 1:
            return found
        return torch.cat([piece.view(split.outer, -1, split.inner) for piece in pieces], 1).view(-1)

    def gather_lists(self, mine: Tensor) -> Tensor:
        """The lists (1-d, i64) of all workers one after the other; they may differ in length."""
        lengths = self._all(len(mine), mine.device).tolist()
        if not any(lengths):
            return mine
        found = self.empty((sum(lengths),), mine.dtype)
        self.exchange.swap([mine] * self.workers, found.split(lengths))
        return found

    def add_shares(self, parts: Tensor, size: int, inner: int = 1) -> Tensor:
        """This worker's share of the sums over all workers of `parts` (size x inner elements, 1-d), in any order."""
        lengths = [(end - begin) * inner for begin, end in self._shares(size)]
        found = self.empty((self.workers, lengths[self.exchange.worker]), parts.dtype)
        self.exchange.swap(parts.split(lengths), found.unbind())
        return found.sum(0)

    def add(self, parts: Tensor) -> Tensor:
        """The sums over all workers of `parts` (1-d), added in any order, the same bits for all of them."""
        return self.gather(self.add_shares(parts, len(parts)), Split(1, len(parts), 1))

    def collect(self, shard: Tensor, split: Split) -> Tensor:
        """On the first worker the whole value, 1-d, of which each worker holds a leading share; elsewhere nothing."""
        flat, first = shard.reshape(-1), self.exchange.worker == 0
        lengths = [(end - begin) * split.inner if first else 0 for begin, end in self._shares(split.size)]
        found = self.empty((sum(lengths),), flat.dtype)
        self.exchange.swap([flat, *[flat[:0]] * (self.workers - 1)], found.split(lengths))
        return found

    def greatest(self, mine: int, device: torch.device) -> int:
        """The greatest of all workers' numbers."""
        return int(self._all(mine, device).max())

    def agreed(self, mine: bytes, device: torch.device) -> bytes:
        """The bytes of the first worker, of which the others know the length only."""
        numbers = torch.tensor(list(mine), dtype=torch.uint8, device=device)
        first, none = self.exchange.worker == 0, numbers[:0]
        into = [torch.empty_like(numbers), *[none] * (self.workers - 1)]
        self.exchange.swap([numbers] * self.workers if first else [none] * self.workers, into)
        return bytes(into[0].cpu().tolist())

    def _all(self, mine: int, device: torch.device) -> Tensor:
        found = torch.empty(self.workers, dtype=torch.int64, device=device)
        self.exchange.swap([torch.tensor([mine], device=device)] * self.workers, found.split(1))
        return found

    def _shares(self, size: int) -> list[tuple[int, int]]:
        return [share(size, worker, self.workers) for worker in range(self.workers)]
