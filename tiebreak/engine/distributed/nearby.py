"""Exchanges between workers on one machine, by memory that they share (Linux).

A worker copies what it sends into a piece of anonymous memory, and tells each receiver through a socket where it lies:

    kind u8 | buffer u64 | offset u64 | bytes u64      little-endian; kind 0: data; 1: data, and the buffer's descriptor
                                                       comes along; 2: the receiver has copied it

Messages of two workers come in the order of their exchanges. Workers trust each other.
"""

import mmap
import os
import secrets
import select
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from tiebreak.engine.distributed.exchange import ExchangeError, Torch

_RECORD: Final = struct.Struct("<BQQQ")
_DATA, _NEW, _DONE = range(3)
_ALIGNED: Final = 64
LEAST: Final = 1 << 16
"""Bytes of the smallest buffer; others have twice as many, and so on."""


@dataclass
class _Buffer:
    """Memory of this worker that others read."""

    descriptor: int
    memory: Tensor
    readers: int = 0
    """The number of workers that have yet to copy."""
    known: set[int] = field(default_factory=set)
    """The workers that have its descriptor."""


@dataclass
class _Peer:
    """Another worker, as seen from this one."""

    socket: socket.socket
    gone: bool = False
    begun: int = 0
    """The number of messages that it is known to send."""
    came: int = 0
    waiting: dict[int, tuple[int, Tensor]] = field(default_factory=dict)
    """Messages that nobody has asked for yet, by number: the buffer, and what lies in it."""
    buffers: dict[int, Tensor] = field(default_factory=dict)


class Nearby(Torch):
    """Exchanges by shared memory; everything else as over `torch.distributed`. One thread uses it."""

    def __init__(self, worker: int, sockets: Mapping[int, socket.socket], timeout: float) -> None:
        """sockets: to each other worker, of type SEQPACKET. timeout: the seconds that a worker waits for another."""
        super().__init__(worker, len(sockets) + 1)
        self._peers = {w: _Peer(each) for w, each in sockets.items()}
        self._timeout = timeout
        self._buffers: list[_Buffer] = []
        for each in sockets.values():
            each.setblocking(False)

    def begin(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> Callable[[], None]:
        """Begins an exchange, as `Exchange.begin` does; raises `ExchangeError`, also from the wait."""
        self.exchanges += 1
        expected = []
        for w, peer in self._peers.items():
            if len(into[w]):
                expected.append((w, peer.begun))
                peer.begun += 1
        self._lay({w: pieces[w] for w in self._peers if len(pieces[w])})
        into[self.worker].copy_(pieces[self.worker])

        def wait() -> None:
            for w, number in expected:
                self._take(w, number, into[w])

        return wait

    def close(self) -> None:
        """Ends the connections; whoever still waits for this worker learns that it is gone."""
        for peer in self._peers.values():
            peer.socket.close()
        for buffer in self._buffers:
            os.close(buffer.descriptor)
        self._buffers.clear()

    def _lay(self, pieces: Mapping[int, Tensor]) -> None:
        """Copies pieces to where the others find them, the same one for several only once, and tells them."""
        places: dict[tuple[int, int], int] = {}
        end = 0
        for piece in pieces.values():
            key = piece.data_ptr(), piece.nbytes
            if key not in places:
                places[key] = end
                end += -(-piece.nbytes // _ALIGNED) * _ALIGNED
        if not pieces:
            return
        number = self._free(end)
        buffer, copied = self._buffers[number], set[tuple[int, int]]()
        buffer.readers = len(pieces)
        for w, piece in pieces.items():
            key = piece.data_ptr(), piece.nbytes
            at = places[key]
            if key not in copied:
                buffer.memory[at : at + piece.nbytes].copy_(piece.view(torch.uint8))
                copied.add(key)
            self.bytes_sent += piece.nbytes
            new = w not in buffer.known
            buffer.known.add(w)
            self._tell(w, (_NEW if new else _DATA, number, at, piece.nbytes), [buffer.descriptor] if new else [])

    def _free(self, size: int) -> int:
        """The number of a buffer of at least `size` bytes that nobody reads."""
        self._listen(0)
        capacity = max(LEAST, 1 << (size - 1).bit_length())
        for number, buffer in enumerate(self._buffers):
            if not buffer.readers and len(buffer.memory) == capacity:
                return number
        descriptor = os.memfd_create("tiebreak")
        os.ftruncate(descriptor, capacity)
        self._buffers.append(_Buffer(descriptor, _mapped(descriptor)))
        return len(self._buffers) - 1

    def _tell(self, worker: int, record: tuple[int, int, int, int], descriptors: Sequence[int] = ()) -> None:
        """Sends a message. While the other one's queue is full, this worker empties its own."""
        peer = self._peers[worker]
        while True:
            try:
                socket.send_fds(peer.socket, [_RECORD.pack(*record)], descriptors)
                return
            except BlockingIOError:
                self._listen(self._timeout, writing=worker)
            except OSError as error:
                if record[0] == _DONE:  # it has left, and needs its memory no more
                    return
                raise _gone(worker) from error

    def _take(self, worker: int, number: int, into: Tensor) -> None:
        peer = self._peers[worker]
        while number not in peer.waiting:
            if peer.gone:
                raise _gone(worker)
            self._listen(self._timeout)
        buffer, sent = peer.waiting.pop(number)
        if sent.nbytes != into.nbytes:
            raise ExchangeError(f"expected {into.nbytes} bytes of worker {worker}, got {sent.nbytes}")
        into.view(torch.uint8).copy_(sent)
        self._tell(worker, (_DONE, buffer, 0, 0))

    def _listen(self, seconds: float, writing: int | None = None) -> None:
        """Reads all messages that have come; waits for the first of them, or until `writing` takes one."""
        poll = select.poll()
        by_descriptor = {peer.socket.fileno(): w for w, peer in self._peers.items() if not peer.gone}
        for descriptor, w in by_descriptor.items():
            poll.register(descriptor, select.POLLIN | (select.POLLOUT if w == writing else 0))
        ready = poll.poll(1e3 * seconds)
        if seconds and not ready:
            raise ExchangeError(f"no other worker answered within {seconds:g} s")
        for descriptor, events in ready:
            if events & ~select.POLLOUT:
                self._read(by_descriptor[descriptor])

    def _read(self, worker: int) -> None:
        peer = self._peers[worker]
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(peer.socket, _RECORD.size, 1)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it left without reading all; what it has sent before comes next
                continue
            if not data:
                peer.gone = True
                return
            kind, number, at, size = _RECORD.unpack(data)
            if kind == _DONE:
                self._buffers[number].readers -= 1
                continue
            if kind == _NEW:
                (descriptor,) = descriptors
                peer.buffers[number] = _mapped(descriptor)
                os.close(descriptor)
            peer.waiting[peer.came] = number, peer.buffers[number][at : at + size]
            peer.came += 1


def nearby(timeout: float) -> Torch:
    """The workers of the process group: by shared memory if all run here as one user, else over `torch.distributed`.

    timeout: the seconds that a worker waits for another.
    """
    worker, workers = dist.get_rank(), dist.get_world_size()
    name = torch.frombuffer(bytearray(secrets.token_bytes(16)), dtype=torch.uint8)
    dist.broadcast(name, 0)
    address = "\0tiebreak-" + bytes(name.tolist()).hex()
    sockets: dict[int, socket.socket] = {}
    listener = _listener(f"{address}-{worker}", workers)
    dist.barrier()
    try:
        for other in range(worker + 1, workers) if listener else ():
            sockets[other] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sockets[other].connect(f"{address}-{other}")
            sockets[other].send(worker.to_bytes(8, "little"))
    except OSError:
        listener = None
    here = torch.tensor([listener is not None], dtype=torch.int64)
    dist.all_reduce(here, dist.ReduceOp.MIN)
    if listener is None or not here.item():
        for each in (*sockets.values(), *([listener] if listener else [])):
            each.close()
        return Torch()
    with listener:
        listener.settimeout(timeout)
        while len(sockets) < workers - 1:
            made, _ = listener.accept()
            made.settimeout(timeout)
            if _user(made) == os.getuid():
                sockets[int.from_bytes(made.recv(8), "little")] = made
    return Nearby(worker, sockets, timeout)


def _listener(address: str, workers: int) -> socket.socket | None:
    if not hasattr(os, "memfd_create"):
        return None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        made.bind(address)
    except OSError as error:  # whoever sees the names of the others in /proc/net/unix can take this one
        raise ExchangeError(f"expected the socket {address[1:]} to be free, got {error}; start again") from error
    made.listen(workers)
    return made


def _user(connection: socket.socket) -> int:
    """The user whose process is at the other end: any could read the address in /proc/net/unix."""
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)


def _mapped(descriptor: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, os.fstat(descriptor).st_size), dtype=torch.uint8)


def _gone(worker: int) -> ExchangeError:
    return ExchangeError(f"worker {worker} is gone")
