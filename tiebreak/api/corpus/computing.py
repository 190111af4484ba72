"""Runs of the corpus's programs, and the devices and back-ends of this machine that compute them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch

from tiebreak.api.corpus.programs import CorpusProgram
from tiebreak.api.machine.running import make_logging, usable_device
from tiebreak.api.signing.keys import new_key
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import builds, is_host, launches
from tiebreak.engine.arithmetic.reference import IntegerArithmetic
from tiebreak.engine.data.tensors import from_bytes, identities
from tiebreak.engine.logged.encoding import decode_sparse
from tiebreak.engine.logged.journal import LogsInProgress
from tiebreak.engine.native import pure_path
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter, State
from tiebreak.engine.run.logs import Logs
from tiebreak.protocol.commitments.eip712 import ADDRESS_BYTES, Address, Domain
from tiebreak.protocol.commitments.job import Job, SignedJob
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import data_tree, state_tree
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Policy

C: Final = "C"
TRITON: Final = "Triton"
TORCH: Final = "torch"
INTEGERS: Final = "integers"
NOWHERE: Final = Domain(chain_id=0, contract=Address(bytes(ADDRESS_BYTES)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChoice:
    """A device and what computes there: `C`, `Triton`, `torch` alone, or the `integers` of the definition."""

    device: str = "cpu"
    backend: str

    def used(self) -> AbstractContextManager[None]:
        """A context in which the machine computes so."""
        return nullcontext() if self.backend in (C, TRITON) else pure_path()

    def interpreter(self, job: Job, program: Program, make: type[Interpreter] = Interpreter) -> Interpreter:
        """Makes an interpreter by the rules of a job; it is not qualified, because its results are compared."""
        logging = make_logging(job)
        with self.used():
            if self.backend == INTEGERS:
                return make(program, IntegerArithmetic(precision=job.precision, logging=logging))
            device = usable_device(self.device)
            arithmetic = Arithmetic(device, precision=job.precision, logging=logging)
            return make(program, arithmetic, graphs=not is_host(device))


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
    """Makes a run of a program of the corpus."""
    terms, (state, data) = program.expected, inputs(program)
    return new_run(
        path, program.program, state, data, steps=terms.steps, checkpoint_interval=terms.checkpoint_interval,
        precision=terms.precision, tolerances=terms.tolerances,
    )  # fmt: skip


def inputs(program: CorpusProgram) -> tuple[State, State]:
    """Initial state and data."""
    state, data, of = program.state(), program.data(), program.program
    return (
        {name: from_bytes(state[name], *kind) for name, kind in of.state_spec().items()},
        {name: from_bytes(data[name], *kind) for name, kind in of.data_spec().items()},
    )


def logs_of(program: CorpusProgram, run: RunDirectory) -> Logs:
    """The logs of a run in progress, which follows those of the corpus under policy `logged`."""
    logs = program.logs()
    return LogsInProgress.of(run, lambda step: decode_sparse(logs[step - 1], program.program, step))
