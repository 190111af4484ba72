"""Runs the corpus on the back-ends of this machine, and states what came out: no host, user or path is named."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch

from tiebreak.api.corpus.differences import Watched, first_difference
from tiebreak.api.corpus.programs import DATA, STATE, CorpusProgram
from tiebreak.api.corpus.statements import MAX_PROBLEM, ComputedRun, CorpusStatement
from tiebreak.api.machine.environment import describe, describe_cuda
from tiebreak.api.machine.interpreters import make_logging, usable_device
from tiebreak.api.signing.keys import new_key
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import builds, is_host, launches
from tiebreak.engine.arithmetic.execute import integer_arithmetic
from tiebreak.engine.data.tensors import from_bytes, identities
from tiebreak.engine.logged.encoding import decode_sparse
from tiebreak.engine.logged.journal import LogsInProgress
from tiebreak.engine.run.directory import RunDirectory, check_root
from tiebreak.engine.run.interpreter import Interpreter, State
from tiebreak.engine.run.logs import Logs
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.eip712 import ADDRESS_BYTES, Address, Domain
from tiebreak.protocol.commitments.job import Job, SignedJob
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import data_tree, state_tree
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import TiebreakError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Policy
from tiebreak.protocol.tags import Digest

C, TRITON, TORCH, INTEGERS = "C", "Triton", "torch", "integers"
NOWHERE: Final = Domain(chain_id=0, contract=Address(bytes(ADDRESS_BYTES)))
UNREPEATED: Final = "computed again for the bug report, the step gave another result"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChoice:
    """A device and what computes there: `C`, `Triton`, `torch` alone, or the `integers` of the definition."""

    device: str = "cpu"
    backend: str

    def arithmetic(self, job: Job) -> Arithmetic:
        """Makes an arithmetic by the rules of a job; it is not qualified, because its results are compared."""
        if self.backend == INTEGERS:
            return integer_arithmetic(job.precision, make_logging(job))
        device, compiled = usable_device(self.device), self.backend in (C, TRITON)
        return Arithmetic(device, precision=job.precision, logging=make_logging(job), compiled=compiled)


def choices(devices: Sequence[str] = ()) -> list[BackendChoice]:
    """The ways in which this machine computes: each device by its kernels, where there are any, and by torch alone.

    devices: their names [default: all]. Raises `ConfigurationError` for one that does not exist.
    """
    found = []
    for name in devices or ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]:
        device = usable_device(name)
        if launches(device):
            found.append(BackendChoice(device=name, backend=TRITON))
        elif is_host(device) and all(build.library is not None for build in builds().values()):
            found.append(BackendChoice(device=name, backend=C))
        found.append(BackendChoice(device=name, backend=TORCH))
    return found


def new_run(
    path: Path, program: Program, state: State, data: State, *, steps: int, checkpoint_interval: int, precision: int,
    tolerances: int, trainer: PrivateKey | None = None,
) -> RunDirectory:  # fmt: skip
    """Makes a run that nobody agreed on: keys of parties that are not given are thrown away."""
    client, trainer = new_key(), trainer or new_key()
    job = Job.over(
        program, client=client.address, trainer=trainer.address, steps=steps, checkpoint_interval=checkpoint_interval,
        initial_state_root=state_tree(identities(state)).root, data_root=data_tree(identities(data)).root,
        policy=int(Policy.LOGGED if tolerances else Policy.EXACT), precision=precision, tolerances=tolerances,
        **asdict(Terms()),
    )  # fmt: skip
    signatures = {"client_signature": job.sign(NOWHERE, client), "trainer_signature": job.sign(NOWHERE, trainer)}
    return RunDirectory.create(path, SignedJob(domain=NOWHERE, job=job, **signatures), program, state, data)


def run_of(program: CorpusProgram, path: Path) -> RunDirectory:
    """Makes a run of a program of the corpus. Raises `VerificationError` if its state or data are not the expected."""
    terms, (state, data) = program.expected, inputs(program)
    run = new_run(
        path, program.program, state, data, steps=terms.steps, checkpoint_interval=terms.checkpoint_interval,
        precision=terms.precision, tolerances=terms.tolerances,
    )  # fmt: skip
    check_root(f"{program.name}: {STATE}", bytes.fromhex(terms.initial_state_root), run.job.initial_state_root)
    check_root(f"{program.name}: {DATA}", bytes.fromhex(terms.data_root), run.job.data_root)
    return run


def inputs(program: CorpusProgram) -> tuple[State, State]:
    """A program's initial state and its data, as tensors by name on the CPU."""
    state, data, of = program.state(), program.data(), program.program
    return (
        {name: from_bytes(state[name], *kind) for name, kind in of.state_spec().items()},
        {name: from_bytes(data[name], *kind) for name, kind in of.data_spec().items()},
    )


def compute(program: CorpusProgram, choice: BackendChoice) -> ComputedRun:
    """Computes a program. If it reaches another root, finds where it leaves the program first."""
    root, problem, expected = None, "", Digest(bytes.fromhex(program.expected.run_root))
    logs = program.logs()

    def followed(run: RunDirectory) -> Logs:
        return LogsInProgress.of(run, lambda step: decode_sparse(logs[step - 1], program.program, step))

    with tempfile.TemporaryDirectory() as scratch:
        begun = ended = time.monotonic()
        try:
            run = run_of(program, Path(scratch) / "run")
            interpreter = Watched(run.program, choice.arithmetic(run.job))
            root = Worker(run, interpreter, stop_if_not_finite=False, logs=followed(run)).work()
            ended = time.monotonic()
            if root != expected:
                truth = Interpreter(run.program, BackendChoice(backend=INTEGERS).arithmetic(run.job))
                records = program.expected.records
                problem = first_difference(run, interpreter, records, truth, followed, Path(scratch)) or UNREPEATED
        except (TiebreakError, RuntimeError, ValueError) as error:  # torch's own are of the last two
            problem = " ".join(f"{type(error).__name__}: {error}".replace(scratch, "").split())
    return ComputedRun(
        program=program.name, device=choice.device, backend=choice.backend, root=root, expected=expected,
        milliseconds=round(1000 * (ended - begun)), problem=_ascii(problem)[:MAX_PROBLEM],
    )  # fmt: skip


def state(
    programs: Sequence[CorpusProgram], devices: Sequence[str] = (), note: str = "",
    on_run: Callable[[ComputedRun], None] = lambda _: None,
) -> CorpusStatement:  # fmt: skip
    """Computes programs by every back-end of the devices [default: all], and states what came out, run by run."""
    computed = []
    for choice in choices(devices):
        for program in programs:
            computed.append(compute(program, choice))
            on_run(computed[-1])
    return CorpusStatement(
        programs={program.name: program.digest for program in programs}, note=note, computed=tuple(computed),
        environment={name: _ascii(text)[:255] for name, text in (*describe(), *describe_cuda())},
    )  # fmt: skip


def _ascii(text: str) -> str:
    return text.encode("ascii", "replace").decode()
