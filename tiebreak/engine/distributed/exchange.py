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
        """Its number, from 0; worker 0 has the run directory."""

    @property
    def workers(self) -> int:
        """Their number, which changes no result."""

    def begin(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> Callable[[], None]:
        """Sends a piece (1-d, contiguous) to each worker, and receives one from each into a tensor of its length.

        What it returns waits until both is done.
        """


class ExchangeError(StateError):
    """An exchange failed, because another worker is gone or does not answer."""


@dataclass
class Torch:
    """The process group that `torch.distributed` was initialized with."""

    worker: int = field(default_factory=dist.get_rank)
    workers: int = field(default_factory=dist.get_world_size)
    exchanges: int = 0
    """How often this worker has begun to exchange; whoever is behind the others keeps them waiting."""
    bytes_sent: int = 0
    """What this worker has sent to the others."""

    def meet(self) -> None:
        """Waits until all workers have come here."""
        self.exchanges += 1
        try:
            dist.barrier()
        except RuntimeError as error:
            raise _failed(error) from error

    def begin(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> Callable[[], None]:
        """As `Exchange.begin`; raises `ExchangeError`, also from the wait."""
        self.exchanges += 1
        others = [w for w in range(self.workers) if w != self.worker]
        receive = [dist.P2POp(dist.irecv, into[w], w) for w in others if len(into[w])]
        send = [dist.P2POp(dist.isend, pieces[w], w) for w in others if len(pieces[w])]
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


SHORT = 7
"""Lists of so many numbers are sent with their length."""
HEADER_BYTES = 8 * (1 + SHORT)
"""Of a list and its length, as they are first sent."""
Empty = Callable[[Sequence[int], torch.dtype], Tensor]
"""(shape, dtype) -> memory of undefined contents, on the worker's device."""


@dataclass(frozen=True)
class Collectives:
    """What the workers of a step do together. All of them call the same methods in the same order."""

    exchange: Exchange
    empty: Empty

    @property
    def workers(self) -> int:
        return self.exchange.workers

    def _swap(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        self.exchange.begin(pieces, into)()

    def gather(self, shard: Tensor, split: Split) -> Callable[[], Tensor]:
        """Begins to gather a value of which each worker holds a shard. The result waits for it, and returns it 1-d."""
        flat = shard.reshape(-1)
        lengths = [split.outer * (end - begin) * split.inner for begin, end in self._shares(split.size)]
        found = self.empty((split.numel,), flat.dtype)
        pieces = torch.split(found, lengths)
        wait = self.exchange.begin([flat] * self.workers, pieces)

        def whole() -> Tensor:
            wait()
            if split.outer == 1:
                return found
            return torch.cat([piece.view(split.outer, -1, split.inner) for piece in pieces], 1).view(-1)

        return whole

    def gather_lists(self, mine: Tensor) -> tuple[Tensor, list[int]]:
        """The lists (1-d, i64) of all workers one after the other, and the length of each."""
        short = torch.zeros(1 + SHORT, dtype=torch.int64, device=mine.device)  # nearly all lists fit into one message
        short[0] = len(mine)
        short[1 : 1 + len(mine)] = mine[:SHORT]
        every = self.empty((self.workers, len(short)), mine.dtype)
        self._swap([short] * self.workers, every.unbind())
        lengths: list[int] = every[:, 0].tolist()
        if max(lengths) <= SHORT:
            return torch.cat([row[1 : 1 + n] for row, n in zip(every, lengths, strict=True)]), lengths
        found = self.empty((sum(lengths),), mine.dtype)
        self._swap([mine] * self.workers, torch.split(found, lengths))
        return found, lengths

    def add_shares(self, parts: Sequence[Tensor], whole: Tensor, size: int, inner: int = 1) -> list[Tensor]:
        """The sums over all workers of this worker's shares of `parts`, and of `whole`.

        parts: of size x inner elements each, 1-d. whole: 1-d, of the same dtype.
        """
        shares = [(begin * inner, end * inner) for begin, end in self._shares(size)]
        pieces = [torch.cat([*(part[begin:end] for part in parts), whole]) for begin, end in shares]
        mine = shares[self.exchange.worker][1] - shares[self.exchange.worker][0]
        total = self._add(pieces, len(parts) * mine + len(whole))
        return list(torch.split(total, [*[mine] * len(parts), len(whole)]))

    def add_in_turn(self, parts: Tensor) -> Tensor:
        """The sums of `parts` (1-d) of the first worker, the second, and so on: the same bits on all workers."""
        return self._add([parts] * self.workers, len(parts))

    def add_lists(self, parts: Tensor, lengths: Sequence[int]) -> Tensor:
        """The sums over all workers of this worker's columns of `parts` (R, sum of lengths)."""
        pieces = [piece.reshape(-1).contiguous() for piece in torch.split(parts, list(lengths), 1)]
        mine = lengths[self.exchange.worker]
        return self._add(pieces, len(parts) * mine).view(len(parts), mine)

    def _add(self, pieces: Sequence[Tensor], count: int) -> Tensor:
        """Sends the pieces, and adds up those that come, of the first worker, the second, and so on."""
        found = self.empty((self.workers, count), pieces[0].dtype)
        self._swap(pieces, found.unbind())
        first, *others = found.unbind()
        total = first.clone()
        for each in others:
            total += each
        return total

    def collect(self, shard: Tensor, split: Split) -> Tensor:
        """On the first worker the whole value, 1-d, of which each worker holds a leading share; elsewhere nothing."""
        flat, first = shard.reshape(-1), self.exchange.worker == 0
        lengths = [(end - begin) * split.inner if first else 0 for begin, end in self._shares(split.size)]
        found = self.empty((sum(lengths),), flat.dtype)
        self._swap([flat, *[flat[:0]] * (self.workers - 1)], torch.split(found, lengths))
        return found

    def greatest(self, mine: int, device: torch.device) -> int:
        """The greatest of all workers' numbers."""
        return max(self.numbers(mine, device))

    def numbers(self, mine: int, device: torch.device) -> list[int]:
        """The numbers of all workers."""
        found = torch.empty(self.workers, dtype=torch.int64, device=device)
        self._swap([torch.tensor([mine], device=device)] * self.workers, torch.split(found, 1))
        return found.tolist()

    def agreed(self, mine: bytes, device: torch.device) -> bytes:
        """The bytes of the first worker, of which the others know the length only."""
        numbers = torch.tensor(list(mine), dtype=torch.uint8, device=device)
        first, none = self.exchange.worker == 0, numbers[:0]
        into = [torch.empty_like(numbers), *[none] * (self.workers - 1)]
        self._swap([numbers] * self.workers if first else [none] * self.workers, into)
        return bytes(into[0].cpu().tolist())

    def _shares(self, size: int) -> list[tuple[int, int]]:
        return [share(size, worker, self.workers) for worker in range(self.workers)]
