"""Makes the interpreter that computes a run: by the job's rules, on a device that passed the conformance vectors."""

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.ziv import Logging
from tiebreak.engine.distributed.arithmetic import SharedArithmetic
from tiebreak.engine.distributed.check import CheckedInterpreter
from tiebreak.engine.distributed.exchange import Exchange
from tiebreak.engine.distributed.tape import TapeRecorder
from tiebreak.engine.distributed.train import SharedInterpreter
from tiebreak.engine.logged.policy import LoggedPolicy
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.offload import Budget
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.commitments.job import PRECISION_F32, Job
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import SumKind, tolerance_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The settings of a computation. None of them changes a bit of the result.

    policy: this machine's own thresholds, for a run of policy `logged` [default: the proven bounds]. For the other
    fields see `make_interpreter`.
    """

    threads: int | None = None
    permute: int | None = None
    device: str = "cpu"
    policy: LoggedPolicy | None = None
    exchange: Exchange | None = None
    """The workers that compute together; None on a machine of its own."""
    memory: int | None = None
    """The bytes that this process may take; None for what a step needs."""
    check_every: int | None = None
    """Workers recompute each other's work once in this many steps; None: never."""
    graphs: bool = False

    def interpreter(self, run: RunDirectory) -> Interpreter:
        """An interpreter of the run's program, on a qualified device."""
        return make_interpreter(
            run.program,
            job=run.job,
            policy=self.policy,
            threads=self.threads,
            permute=self.permute,
            device=self.device,
            exchange=self.exchange,
            memory=self.memory,
            check_every=self.check_every,
            graphs=self.graphs,
        )


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
    return device


def make_interpreter(
    program: Program,
    *,
    job: Job | None = None,
    policy: LoggedPolicy | None = None,
    threads: int | None = None,
    permute: int | None = None,
    device: str = "cpu",
    exchange: Exchange | None = None,
    memory: int | None = None,
    check_every: int | None = None,
    graphs: bool = False,
) -> Interpreter:
    """Makes an interpreter by the rules of a job (default: exact FP32), on a qualified device.

    A device is qualified if it passes the conformance vectors. None of the other settings changes a bit of any result.
    policy: under policy `logged`, how far this machine's own sums may be from the exact ones, as the party itself has
    measured [default: the proven bounds, which hold on every machine]. threads: number of torch's threads. permute:
    seed of a random order in which every reduction takes its terms. exchange: the workers that compute each step
    together (policy `exact` only). memory: the bytes that this process may take, from this call on; values beyond that
    wait in a file in TMPDIR or /var/tmp. check_every: workers check each other once in this many steps (None: never,
    see `tiebreak.engine.distributed.check`). graphs: whether steps are replayed as CUDA graphs; what prevents that is
    said in a warning. Raises `ConfigurationError` if the device does not compute what the specification says, if the
    policy does not fit the job, or if the memory is too little for one instruction.
    """
    use_threads(threads)
    found = usable_device(device)
    precision, logging = (PRECISION_F32, None) if job is None else (job.precision, make_logging(job, policy))
    # Qualify with a separate object, so that the statistics of `arithmetic` count the run alone.
    qualify(Arithmetic(device=found, permute=permute, precision=precision))
    if check_every is not None and exchange is None:
        raise ConfigurationError("expected several workers that check each other, got one")
    if exchange is None:
        folder = Path(os.environ.get("TMPDIR", "/var/tmp"))  # noqa: S108 (/tmp is often memory)
        budget = None if memory is None else Budget.within(memory, folder)
        arithmetic = Arithmetic(device=found, permute=permute, precision=precision, logging=logging)
        return Interpreter(program, arithmetic, budget=budget, graphs=graphs)
    if memory is not None:
        raise ConfigurationError(
            "expected one worker where memory is limited, got several; more of them need less each"
        )
    if logging is not None:
        raise ConfigurationError("expected a job of policy exact for several workers, got one of policy logged")
    if graphs:
        warnings.warn("steps are not replayed as CUDA graphs: workers exchange sums in each", stacklevel=2)
    if check_every is None:
        return SharedInterpreter(program, SharedArithmetic(exchange, found, permute, precision=precision))
    arithmetic = SharedArithmetic(TapeRecorder(exchange), found, permute, precision=precision)
    return CheckedInterpreter(program, arithmetic, check_every)


def make_logging(job: Job, policy: LoggedPolicy | None = None) -> Logging | None:
    """The rules by which the sums of a job are computed and tested; None under policy `exact`.

    The tolerances always come from the job. Only the thresholds come from the policy, because each party has its own;
    without a policy they are the proven bounds. Raises `ConfigurationError` if the policy was made for another
    precision, or if the job's policy is `exact`.
    """
    if not job.is_logged:
        if policy is not None:
            raise ConfigurationError("expected no policy file for a job of policy exact, got one")
        return None
    tolerances = {kind: tolerance_of(job.tolerances, kind) for kind in SumKind}
    if policy is None:
        return Logging(thresholds={}, tolerances=tolerances)
    if policy.precision != job.precision:
        raise ConfigurationError(
            f"expected a policy of the job's precision, {job.precision}, got one of {policy.precision}"
        )
    return replace(policy.logging(), tolerances=tolerances)


def policy_words(job: Job) -> str:
    """One line that describes the rules of a job."""
    if not job.is_logged:
        return f"exact, {job.precision} bits"
    tolerances = (f"{kind.name.lower()} 2^-{n}" for kind in SumKind if (n := tolerance_of(job.tolerances, kind)))
    return f"logged, {job.precision} bits, within {', '.join(tolerances) or 'no tolerance'} of a gap"
