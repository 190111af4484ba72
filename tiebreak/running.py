"""Wires engine parts together for commands: an interpreter on a qualified device."""

import torch

from engine.arithmetic import Arithmetic
from engine.arithmetic.near import Logging
from engine.interpreter import Interpreter
from engine.logged.policy import LoggedPolicy
from engine.qualify import qualify
from protocol.errors import ConfigurationError
from protocol.job import Job
from protocol.program import Program
from protocol.rounding import SumKind, tolerance_of


def usable_device(name: str) -> torch.device:
    """A device that this torch can compute FP64 on. Raises `ConfigurationError` for any other."""
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float64, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:  # of a device it has not
        raise ConfigurationError(
            f"expected a device that this torch computes FP64 on, such as cpu or cuda:0, got {name!r}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return device


def make_interpreter(
    program: Program,
    *,
    job: Job | None = None,
    policy: LoggedPolicy | None = None,
    threads: int | None = None,
    permute: int | None = None,
    device: str = "cpu",
) -> Interpreter:
    """An interpreter by the rules of a job (default: exact FP32), whose device passed the conformance vectors.

    None of the other settings changes a bit of any result. policy: how far, under policy `logged`, this machine's own
    sums may be from the exact ones; a party's own measurement [default: the proven bounds, true on every machine].
    threads: of torch. permute: seed of the order in which every reduction takes its terms. Raises `ConfigurationError`
    if the device computes anything else than the specification says, or the policy is not the job's.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    found = usable_device(device)
    qualify(Arithmetic(device=found, permute=permute))  # of its own, so that the run's statistics are the run's
    if job is None:
        return Interpreter(program, Arithmetic(device=found, permute=permute))
    logging = make_logging(job, policy)
    return Interpreter(program, Arithmetic(device=found, permute=permute, precision=job.precision, logging=logging))


def make_logging(job: Job, policy: LoggedPolicy | None = None) -> Logging | None:
    """How sums of a job are computed and tested; None under policy `exact`.

    Without a policy the thresholds are the proven bounds. Raises `ConfigurationError` for a policy of other rules.
    """
    if policy is None:
        tolerances = {kind: tolerance_of(job.tolerances, kind) for kind in SumKind}
        return Logging(thresholds={}, tolerances=tolerances) if job.is_logged else None
    if not job.is_logged:
        raise ConfigurationError("expected no policy file for a job of policy exact, got one")
    if (policy.precision, policy.tolerances_packed) != (job.precision, job.tolerances):
        raise ConfigurationError(
            f"expected a policy of the job's precision {job.precision} and tolerances {job.tolerances:#08x}, got "
            f"{policy.precision} and {policy.tolerances_packed:#08x}"
        )
    return policy.logging()
