"""Makes the interpreter that computes a run: by the job's rules, on a device that passed the conformance vectors."""

import warnings
from dataclasses import replace
from pathlib import Path

import torch

from tiebreak.api.machine import Machine
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import is_host, why_plain
from tiebreak.engine.arithmetic.plan.ziv import Logging
from tiebreak.engine.distributed.arithmetic import SharedArithmetic
from tiebreak.engine.distributed.train import SharedInterpreter
from tiebreak.engine.logged.policy import LoggedPolicy
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.commitments.job import PRECISION_F32, Job
from tiebreak.protocol.errors import ConfigurationError, own_file
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import SumKind, tolerance_of

Policy = LoggedPolicy | str | Path
"""A policy, or the path of a file that holds one."""


def use_threads(threads: int | None) -> None:
    """Sets the number of torch's threads in this process; None leaves torch's own choice."""
    if threads is not None:
        torch.set_num_threads(threads)


def usable_device(name: str) -> torch.device:
    """The device of that name, if this torch can compute FP64 on it. Raises `ConfigurationError` otherwise."""
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float64, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:  # depends on the device
        raise ConfigurationError(
            f"expected a device that this torch computes FP64 on, such as cpu or cuda:0, got {name!r}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return torch.device("cpu") if device.type == "cpu" else device  # accelerate's is cpu:0 in several processes


def make_interpreter(program: Program, machine: Machine = Machine(), job: Job | None = None) -> Interpreter:
    """Makes an interpreter by the rules of a job (default: exact FP32), on a qualified device.

    Raises `ConfigurationError` if the device does not compute what the specification says, if the machine's policy does
    not fit the job, or if its settings contradict each other.
    """
    use_threads(machine.threads)
    device, permute, exchange = usable_device(machine.device), machine.permute, machine.exchange
    graphs = machine.graphs and not is_host(device)
    precision, logging = PRECISION_F32 if job is None else job.precision, make_logging(job, as_policy(machine.policy))
    if reason := why_plain(device):
        said = f"torch alone computes on {device}, without compiled kernels ({reason})"
        if not machine.uncompiled:
            raise ConfigurationError(
                f"expected compiled kernels where a party commits to results, as data can be made to take torch alone "
                f"hundreds of times as long: {said}; install a C compiler, or set uncompiled = true"
            )
        warnings.warn(f"{said}: the bits are the same, but it is slower", stacklevel=2)
    # Qualify with a separate object, so that the statistics of `arithmetic` count the run alone.
    qualify(Arithmetic(device=device, permute=permute, precision=precision))
    if exchange is None:
        arithmetic = Arithmetic(device=device, permute=permute, precision=precision, logging=logging)
        if job is None:
            return Interpreter(program, arithmetic, graphs=graphs)
        return Interpreter(program, arithmetic, graphs=graphs, compares=job.ends_segment)
    if logging is not None or program.late_slots:
        raise ConfigurationError("expected a job of policy exact for several workers, got one of policy logged")
    if graphs:
        warnings.warn("steps are not replayed as CUDA graphs: workers exchange sums in each", stacklevel=2)
    return SharedInterpreter(program, SharedArithmetic(exchange, device, permute, precision=precision))


def as_policy(policy: Policy | None) -> LoggedPolicy | None:
    """Loads the policy if it is given as a path. Raises `ConfigurationError` if the file is not a policy."""
    if not isinstance(policy, str | Path):
        return policy
    if not Path(policy).is_file():
        raise ConfigurationError(f"expected the file of a policy (tiebreak calibrate), got none at {policy}")
    with own_file():
        return LoggedPolicy.load(Path(policy))


def make_logging(job: Job | None, policy: LoggedPolicy | None = None) -> Logging | None:
    """The rules by which the sums of a job are computed and tested; None where nothing can be logged.

    That is so under policy `exact`, without a job, and for one without tolerances, whose logs have late data alone.

    The tolerances always come from the job. Only the thresholds come from the policy, because each party has its own;
    without a policy they are the proven bounds. Raises `ConfigurationError` if the policy was made for another
    precision, or if the job's policy is `exact`.
    """
    if job is None or not job.is_logged:
        if policy is not None:
            raise ConfigurationError("expected no policy file for a job of policy exact, got one")
        return None
    tolerances = {kind: tolerance_of(job.tolerances, kind) for kind in SumKind}
    if policy is None and not job.sum_tolerances:
        return None
    if policy is None:
        return Logging(thresholds={}, tolerances=tolerances)
    if policy.precision != job.precision:
        raise ConfigurationError(
            f"expected a policy of the job's precision, {job.precision}, got one of {policy.precision}"
        )
    return replace(policy.logging(), tolerances=tolerances)
