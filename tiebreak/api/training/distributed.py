"""Connects the workers that `torchrun` has started, and names the one that is gone when a connection breaks."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from tiebreak.engine.distributed.exchange import ExchangeError, Torch
from tiebreak.engine.distributed.partition import Partition
from tiebreak.engine.distributed.plan import Plan
from tiebreak.engine.run.cost import cost_of
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.rematerialization import rematerialized
from tiebreak.protocol.errors import ConfigurationError, StateError

BEAT: Final = 1.0
"""Seconds between two signs of life of a worker."""
TIMEOUT: Final = 600.0
"""Seconds that a worker waits for another, for instance while the first one writes a checkpoint."""
GO_ON: Final = "what is committed stays, start any number of workers to go on"


class WorkerLost(StateError):
    """The connection of the workers broke. Checkpoints remain, and any number of workers can continue from the last."""


def launched() -> bool:
    """Whether `torchrun` has started this process."""
    return dist.is_torchelastic_launched()


@contextmanager
def joined(device: str, timeout: float = TIMEOUT) -> Iterator[Torch]:
    """The workers, in a process group of their own: gloo, or nccl for devices of CUDA.

    device: the device that this worker computes on. timeout: the seconds that it waits for another. Raises
    `ConfigurationError` outside `torchrun`, and `WorkerLost` when an exchange fails inside the block, be it of other
    code (accelerate's) that has initialized `torch.distributed` before.
    """
    if not (launched() or dist.is_initialized()):
        raise ConfigurationError(
            "expected workers started by torchrun, such as `torchrun --nproc-per-node 2 -m tiebreak train RUN ...`, "
            "got a process of its own"
        )
    patience = timedelta(seconds=timeout)
    store, worker, workers = next(iter(rendezvous("env://", timeout=patience)))
    backend = "nccl" if device.startswith("cuda") else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(device)  # where nccl meets
    group = dist.new_group(backend=backend, timeout=patience) if dist.is_initialized() else None
    if group is None:
        dist.init_process_group(backend, store=store, rank=worker, world_size=workers, timeout=patience)
    exchange = Torch(group)
    beats = _Heartbeats(store.clone(), exchange)
    try:
        with _last_words(exchange.worker):
            try:
                yield exchange
            except ExchangeError as error:
                raise WorkerLost(f"{beats.verdict()}; {GO_ON}") from error
            except RuntimeError as error:
                if not (lost := beats.lost()):
                    raise
                raise WorkerLost(f"{lost}; {GO_ON}") from error
    finally:
        beats.stop()
        dist.destroy_process_group(group)


@contextmanager
def _last_words(worker: int) -> Iterator[None]:
    """Says how to go on when torchrun ends this worker because another one was killed, and ends it.

    One of the first two says it: at least one of them is there if a single worker is lost. A thread does it, because
    the main thread may be waiting for the lost worker in C, where Python handles no signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    told, tell = os.pipe()
    os.set_blocking(tell, False)  # as `set_wakeup_fd` demands

    def wait() -> None:
        while (number := os.read(told, 1)) != bytes(1):
            if number == bytes([signal.SIGTERM]):
                line = f"worker {worker} was told to end, as when another worker is lost; {GO_ON} with the same command"
                os.write(2, f"{line}\n".encode() * (worker < 2))
                os._exit(128 + signal.SIGTERM)

    handler, wakeup = signal.signal(signal.SIGTERM, lambda *_: None), signal.set_wakeup_fd(tell)
    thread = threading.Thread(target=wait, name="last words", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, handler)
        os.write(tell, bytes(1))
        thread.join()
        os.close(told)
        os.close(tell)


def plan(run: RunDirectory, workers: int) -> dict[str, Any]:
    """The values of a run that each worker would hold, the bytes that it sends, and the memory it needs.

    No worker has to run. Bytes sent are those of the worker that sends most: in a step, by kind, and at a checkpoint.
    """
    found = Plan(Partition(run.program, workers))
    most = max(range(workers), key=lambda worker: sum(sent[worker] for sent in found.sent.values()))
    step = sum(sent[most] for sent in found.sent.values())
    cost = found.cost
    if workers == 1 and not run.job.is_logged:
        held = sum(tensor.nbytes for tensor in run.state(0, narrow=True).values())
        cost = cost_of(run.program, rematerialized(run.program), held)
    return {
        "workers": workers,
        "held": [
            {"values": kind, "number": held.values, "bytes": held.bytes, "bytes on a worker": held.share}
            for kind, held in found.held.items()
        ],
        "sent": [{"in a step": kind, "bytes": sent[most]} for kind, sent in found.sent.items()],
        "rounds a step": len(found.rounds),
        "bytes a step": step,
        "bytes of FP32 DDP": (ddp := found.partition.ddp),
        "ratio": round(step / ddp, 4) if ddp else None,
        "bytes a checkpoint": max(found.checkpoint),
        "memory": [
            {"of a worker": "state before and after a step", "bytes": cost.state_bytes + cost.changed_bytes},
            {"of a worker": "data", "bytes": cost.data_bytes},
            {"of a worker": "values of a step", "bytes": cost.live_bytes},
        ],
        "bytes of memory": cost.memory_bytes,
    }


class _Heartbeats:
    """Signs of life: each worker writes how often it has written, and how many exchanges it has begun."""

    def __init__(self, store: Any, exchange: Torch) -> None:
        self._store, self._exchange, self._over = store, exchange, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="signs of life", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        count = 0
        with suppress(RuntimeError):  # if the rendezvous is gone
            while True:
                self._store.set(f"alive/{self._exchange.worker}", f"{count} {self._exchange.exchanges}")
                if self._over.wait(BEAT):
                    return
                count += 1

    def _read(self) -> dict[int, tuple[int, int]]:
        found = {}
        for worker in range(self._exchange.workers):
            if self._store.check([f"alive/{worker}"]):
                count, exchanges = self._store.get(f"alive/{worker}").decode().split()
                found[worker] = int(count), int(exchanges)
        return found

    def lost(self) -> str:
        """A clause on the workers that are gone; empty if all are there."""
        try:
            before = self._read()
            time.sleep(3 * BEAT)
            now, everyone = self._read(), range(self._exchange.workers)
        except RuntimeError:
            return "lost the rendezvous, which torchrun keeps, or without it worker 0"
        gone = [w for w in everyone if w not in now or now[w][0] == before.get(w, (-1, 0))[0]]
        names = f"worker{'s' if len(gone) > 1 else ''} {', '.join(map(str, gone))}"
        return f"lost {names} of {len(everyone)}" if gone else ""

    def verdict(self) -> str:
        """A clause on the workers that are gone, or on the one that the others waited for."""
        if found := self.lost():
            return found
        now, everyone = self._read(), range(self._exchange.workers)
        late = min(everyone, key=lambda w: now[w][1])
        return f"worker {late} of {len(everyone)} is alive, but did not answer the others in time"

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
