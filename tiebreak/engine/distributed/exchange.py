"""What workers send each other, over `torch.distributed` (gloo or nccl)."""

from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from tiebreak.engine.distributed.layout import Split, share
from tiebreak.protocol.errors import StateError


class Exchange(Protocol):
    """All workers of a step. Each calls the same methods in the same order."""

    worker: int
    """Which one this is, from 0."""
    workers: int

    def swap(self, pieces: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Sends consecutive pieces (1-d) of these lengths to the workers in turn; returns what they sent, likewise."""


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

    def swap(self, pieces: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """As `Exchange.swap`."""
        self.exchanges += 1
        self.bytes_sent += (len(pieces) - sent[self.worker]) * pieces.element_size()
        out = torch.empty(sum(received), dtype=pieces.dtype, device=pieces.device)
        try:
            dist.all_to_all_single(out, pieces.contiguous(), received, sent)
        except RuntimeError as error:
            raise ExchangeError(f"an exchange with the other workers failed: {error}") from error
        return out


def gather(exchange: Exchange, shard: Tensor, split: Split) -> Tensor:
    """A whole value, 1-d, of which each worker holds a shard, in its layout."""
    workers, flat = exchange.workers, shard.reshape(-1)
    shares = [share(split.size, w, workers) for w in range(workers)]
    lengths = [split.outer * (end - begin) * split.inner for begin, end in shares]
    found = exchange.swap(flat.repeat(workers), [len(flat)] * workers, lengths)
    if split.outer == 1:
        return found
    pieces = [piece.view(split.outer, -1, split.inner) for piece in found.split(lengths)]
    return torch.cat(pieces, 1).view(-1)


def gather_lists(exchange: Exchange, mine: Tensor) -> Tensor:
    """The lists (1-d) of all workers one after the other; they may differ in length."""
    workers = exchange.workers
    count = torch.tensor([len(mine)] * workers, dtype=torch.int64, device=mine.device)
    lengths = exchange.swap(count, [1] * workers, [1] * workers).tolist()
    if not any(lengths):
        return mine
    return exchange.swap(mine.repeat(workers), [len(mine)] * workers, lengths)


def add_shares(exchange: Exchange, parts: Tensor, size: int, inner: int = 1) -> Tensor:
    """This worker's share of the sums over all workers of `parts` (size x inner elements, 1-d), added in any order."""
    workers = exchange.workers
    shares = [share(size, w, workers) for w in range(workers)]
    sent = [(end - begin) * inner for begin, end in shares]
    mine = sent[exchange.worker]
    return exchange.swap(parts, sent, [mine] * workers).view(workers, mine).sum(0)


def add(exchange: Exchange, parts: Tensor) -> Tensor:
    """The sums over all workers of `parts` (1-d), added in any order, the same bits for all of them."""
    size = len(parts)
    return gather(exchange, add_shares(exchange, parts, size), Split(1, size, 1))


def greatest(exchange: Exchange, mine: int, device: torch.device) -> int:
    """The greatest of all workers' numbers."""
    workers = exchange.workers
    numbers = torch.tensor([mine] * workers, dtype=torch.int64, device=device)
    return int(exchange.swap(numbers, [1] * workers, [1] * workers).max())


def collect(exchange: Exchange, shard: Tensor, split: Split) -> Tensor:
    """On the first worker the whole value, 1-d, of which each worker holds a leading share; elsewhere nothing."""
    workers, flat, first = exchange.workers, shard.reshape(-1), exchange.worker == 0
    lengths = [(end - begin) * split.inner for begin, end in (share(split.size, w, workers) for w in range(workers))]
    sent = [len(flat) if w == 0 else 0 for w in range(workers)]
    return exchange.swap(flat, sent, lengths if first else [0] * workers)
