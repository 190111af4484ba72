"""The processes that `torchrun` or `accelerate launch` has started: together the workers of one run.

The job is that of one process that has the batches of all. The first process records them while accelerate believes it
alone (`TrainerProcesses.alone`), in a file that all map, and captures the job so, which no exchange with the others
reaches. Then each runs Trainer's loop, where logs, evaluation and saving are shared out as ever, and all compute each
step together (docs/distributed.md).
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from operator import length_hint
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from accelerate.data_loader import BatchSamplerShard
from accelerate.utils import DistributedType
from torch import Tensor
from torch.utils.data import BatchSampler

from tiebreak.api.huggingface.recording import RecordedLoader, Recording, record
from tiebreak.api.huggingface.sampled_rollouts import RUN
from tiebreak.api.machine import Machine
from tiebreak.api.training.distributed import joined
from tiebreak.engine.capture.step_run import random_streams, replaced, same_draws
from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.engine.distributed.exchange import Collectives, Torch
from tiebreak.protocol.errors import ConfigurationError, own_file
from tiebreak.protocol.strict_json import parse_json

T = TypeVar("T")
_BATCHES: Final = "batches.json"
"""The file beside the run with the sizes of its batches, so that another number of processes can go on."""
_MAX_BYTES: Final = 1 << 12
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The micro-batches of a run. They do not depend on the number of processes that go on with it."""

    processes: int
    """The number of processes that began the run."""
    each: int
    """Their `per_device_train_batch_size`."""
    size: int
    """The examples of a micro-batch, in all processes together."""
    fills: bool
    """Whether an epoch's last micro-batch is filled up with the epoch's first examples, as accelerate does."""

    @classmethod
    def of(cls, trainer: Any) -> "Batches":
        """The batches of the run in the trainer's folder, or else of a new one."""
        count, each, folder = trainer.args.world_size, trainer.args.train_batch_size, Path(trainer.args.output_dir)
        size = each if trainer.accelerator.split_batches else each * count
        mine = cls(processes=count, each=each, size=size, fills=count > 1 and trainer.accelerator.even_batches)
        if not (folder / RUN / "job.bin").is_file():
            return mine
        path, before = folder / _BATCHES, cls(processes=1, each=each, size=each, fills=False)
        if path.is_file():
            try:
                with own_file():
                    before = cls(**parse_json(read_file(path, _MAX_BYTES), 1))
            except (TypeError, ValueError) as error:
                raise ConfigurationError(f"{path}: expected the batches of a run, got: {error}") from error
        if before.size == size or before.processes == count or before.each != each:
            return cls(processes=count, each=each, size=size, fills=before.fills)
        _LOG.warning(
            "the run goes on with micro-batches of %s examples, as %s processes began it", before.size, before.processes
        )
        return before

    def remember(self, folder: Path) -> None:
        """Writes them for later processes, unless there is a run."""
        if not (folder / RUN / "job.bin").is_file():
            folder.mkdir(parents=True, exist_ok=True)
            write_file(folder / _BATCHES, json.dumps({name: getattr(self, name) for name in self.__slots__}).encode())


@dataclass(frozen=True)
class TrainerProcesses:
    """This process and the others. All call the same methods in the same order."""

    trainer: Any
    batches: Batches
    exchange: Torch | None
    """The connection to the others; None if there is one process."""
    device: torch.device

    @classmethod
    @contextmanager
    def of(cls, trainer: Any, machine: Machine) -> Iterator["TrainerProcesses"]:
        """Connects them. Raises `WorkerLost`, on those that are left, if one of them is gone."""
        alone, patience = trainer.args.world_size == 1, trainer.args.ddp_timeout
        with nullcontext() if alone else joined(machine.device, patience) as exchange:
            yield cls(trainer, Batches.of(trainer), exchange, torch.device(machine.device))

    @property
    def count(self) -> int:
        return 1 if self.exchange is None else self.exchange.workers

    @property
    def index(self) -> int:
        return 0 if self.exchange is None else self.exchange.worker

    @cached_property
    def _collectives(self) -> Collectives:
        assert self.exchange is not None
        return Collectives(self.exchange, partial(torch.empty, device=self.device))

    def said(self, words: str = "") -> str:
        """The words of the first process."""
        return words if self.exchange is None else self._collectives.said(words.encode(), self.device).decode()

    def first(self, work: Callable[[], T]) -> T | None:
        """Does something in the first process while the others wait. What it refuses, all refuse."""
        found = None
        if not self.index:
            try:
                found = work()
            except ConfigurationError as error:
                self.said(str(error))
                raise
        if refusal := self.said():
            raise ConfigurationError(refusal)
        return found

    def any(self, mine: Sequence[bool]) -> list[bool]:
        """Whether it is so in any process, for each of several."""
        numbers = [*map(int, mine)]
        return [*map(bool, numbers if self.exchange is None else self._collectives.greatest(numbers, self.device))]

    def differing(self, mine: str) -> int:
        """The number of the first process that has other words than process 0; 0 if none has."""
        others = [0] if self.exchange is None else self._collectives.numbers(int(mine != self.said(mine)), self.device)
        return others.index(max(others))

    def require_same(self, mine: str) -> None:
        """Raises `ConfigurationError`, in all processes, unless all have the same words."""
        if process := self.differing(mine):
            raise ConfigurationError(
                f"expected all processes to have the data of process 0, got others in process {process} (here {mine})"
            )

    def recorded(self) -> Recording:
        """The first process's recording of the trainer's loop, whose batches all share; call it `alone`.

        If the random numbers are in different states, each process records, to know how its own go on.
        """
        loader, path = self.loader(), Path(str(self.trainer.args.output_dir), "recorded.batches")
        if self.exchange is None or self.differing(sha256(repr(random_streams()).encode()).hexdigest()):
            found = record(self.trainer, loader)
            self.require_same(f"{found.steps} steps of {len(found.items)} micro-batches")
            return found
        try:
            recorded = self.first(partial(record, self.trainer, loader, path))
            found = recorded or Recording(loader=RecordedLoader(loader))
            found.loader.read(path)
            self.require_same(_described(getattr(loader, "base_dataloader", loader), recorded))  # all have mapped it
        finally:
            path.unlink(missing_ok=True)
        return found

    def meet(self) -> None:
        """Returns when all processes have come here."""
        if self.exchange is not None:
            self.exchange.meet()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lets trainer and accelerate believe that this is the only process, with the micro-batches of all."""
        held = self.trainer
        one = {"num_processes": 1, "process_index": 0, "local_process_index": 0, "distributed_type": DistributedType.NO}
        with ExitStack() as stack:
            for state in (held.accelerator.state, held.args.distributed_state) if self.count > 1 else ():
                stack.enter_context(replaced(state, **one))
            stack.enter_context(replaced(held, _train_batch_size=self.batches.size))
            stack.enter_context(replaced(held.args, per_device_train_batch_size=self.batches.size))
            yield

    def loader(self) -> Any:
        """The trainer's data loader as one process would have it, in accelerate's order; call it `alone`."""
        made = self.trainer.get_train_dataloader()
        inner = getattr(made, "base_dataloader", made)
        sampler = getattr(inner, "batch_sampler", None)
        size = getattr(sampler, "batch_size", getattr(inner, "batch_size", None))
        if self.count > 1 and size not in (None, self.batches.size):
            raise ConfigurationError(
                f"expected a data loader with the trainer's per_device_train_batch_size, which is {self.batches.size} "
                f"for {self.count} processes together, got one of your own with batches of {size}"
            )
        if self.batches.fills and isinstance(sampler, BatchSampler):
            vars(inner)["batch_sampler"] = BatchSamplerShard(sampler)
        return made

    def share(self, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """This process's examples of a micro-batch, as accelerate deals them; None if its rows are no examples."""
        each, left = divmod(self.batches.size, self.count)
        rows = {len(value) if value.ndim else 0 for value in inputs.values() if isinstance(value, Tensor)}
        if left or rows != {self.batches.size}:
            return None
        mine = slice(each * self.index, each * (self.index + 1))
        return {name: value[mine] if isinstance(value, Tensor) else value for name, value in inputs.items()}

    @contextmanager
    def in_loop(self) -> Iterator[None]:
        """Has Trainer's loop, to which each process gives the micro-batches of all, count them once; wraps no model."""
        held = self.trainer
        flops = held.floating_point_ops
        counting = {n: self.alone()(getattr(held, n)) for n in ("_track_num_input_tokens", "get_batch_samples")}
        if self.exchange is None:
            yield
            return
        with (
            replaced(held, floating_point_ops=lambda inputs: flops(inputs) / self.count, **counting),
            replaced(held.accelerator, prepare_model=partial(held.accelerator.prepare_model, evaluation_mode=True)),
        ):
            yield

    def align(self) -> None:
        """Gives all processes the first one's weights and buffers, as DDP does."""
        if self.exchange is None:
            return
        for tensor in self.trainer.model.state_dict().values():
            sent = tensor.contiguous()
            dist.broadcast(sent.view(-1).view(torch.uint8), 0, group=self.exchange.group)
            if sent is not tensor:
                tensor.copy_(sent)


def _described(loader: Any, recording: Recording | None) -> str:
    """The length of a data loader and its first batch, which this process draws unless it has recorded it."""
    with same_draws():
        batch = next(iter(loader), {}) if recording is None else recording.inputs[0]
    found = repr([(name, value.tolist()) for name, value in sorted(batch.items()) if isinstance(value, Tensor)])
    return f"{length_hint(loader)} batches, the first with SHA-256 {sha256(found.encode()).hexdigest()[:8]}"
