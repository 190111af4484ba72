"""The computation of a trainer's process that cheats. Only `tiebreak.lab.network.cheating_trainer` starts it."""

from functools import partial
from socket import socket
from typing import Any

import torch
from torch import Tensor

from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.lab.network.local_network import CHEATS
from tiebreak.lab.sim.adversaries import tampering
from tiebreak.lab.sim.adversaries.tampering import ForgedEvidence
from tiebreak.node import worker_tasks
from tiebreak.node.tasks import WorkerSettings
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.program.program import Program


class BentEvidence(ForgedEvidence, worker_tasks.RestlessEvidence):
    """Its partial sums lead to what was committed: it is convicted of a number, not for want of an answer."""


class TamperedTasks(worker_tasks.WorkerTasks):
    """A worker that computes a job with one false number, and evidence that is consistent with it."""

    EVIDENCE = BentEvidence

    def __init__(self, name: str, *given: Any) -> None:
        super().__init__(*given)
        self._name = name

    def _make_interpreter(self, run: RunDirectory, attempt: int) -> Interpreter:
        made = super()._make_interpreter(run, attempt)
        return tampering.Tampered(made, cheat(self._name, run.program, run.job).tamper)


def serve(name: str, end: socket, given: WorkerSettings) -> None:
    """Answers tasks as `worker_tasks.serve` does, with the lie of this name among the answers."""
    worker_tasks.serve(end, given, partial(TamperedTasks, name))


def cheat(name: str, program: Program, job: Job) -> tampering.Cheat:
    """The lie of this name in the second half of a job. Raises `ConfigurationError` if there is no place for it."""
    step = job.first_step(job.checkpoints // 2) + (job.segment_steps(job.checkpoints // 2) - 1) // 2
    match name:
        case "label":
            labels = [entry for entry in program.data_spec() if "label" in entry]
            if not labels:
                raise ConfigurationError(f"expected data named label for this cheat, got {sorted(program.data_spec())}")
            change = lambda old: torch.where(old > 0, old - 1, 1)  # noqa: E731
            leaf = tampering.drawn(program, labels[0])
            return tampering.Cheat(name="changed label", step=step, leaf=leaf, element=0, change=change)
        case "rate":
            return tampering.changed_learning_rate(program, step=step, factor=1.5)
        case "weight":
            entry = next(name for name, (dtype, _) in program.state_spec().items() if dtype is DType.F32)
            return tampering.flipped_weight_bit(program, state=entry, step=step, element=0)
        case "tf32":
            leaf = next(n for n in tampering.long_sums(program, 16) if program.body[n].numel > 16)

            def truncated(value: Tensor) -> Tensor:
                """The value in TF32's precision; if that changes nothing, the value with one bit flipped."""
                found = tampering.as_tf32(value)
                return found if not torch.equal(found, value) else tampering.flip_bit(value, 13)

            return tampering.Cheat(name="sum in TF32", step=step, leaf=leaf, element=7, change=truncated)
    raise ConfigurationError(f"expected a cheat of {', '.join(CHEATS)}, got {name!r}")
