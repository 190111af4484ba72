"""Runs the corpus on the back-ends of this machine, and states what came out: no host, user or path is named.

Where a run leaves its program is found by the game of a dispute, against a run by the integers of the definition. The
defender shows what the back-end computed when it ran whole steps, in its own order and in chains. What it never made
there, intermediate results of a chain, is what it computes one by one. The challenger computes the first segment that
differs by the integer reference. Both play by the rules, from the run root down to an element, and everything left of
the place that the walk reaches is the same on both sides.
"""

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from tiebreak.api.corpus.programs import DATA, MAX_PROBLEM, STATE, ComputedRun, CorpusProgram, CorpusStatement
from tiebreak.api.machine.environment import describe as describe_machine
from tiebreak.api.machine.environment import describe_cuda
from tiebreak.api.machine.interpreters import make_logging, usable_device
from tiebreak.api.signing.keys import new_key
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import builds, identity, is_host, launches
from tiebreak.engine.arithmetic.execute import integer_arithmetic
from tiebreak.engine.arithmetic.plan.chains import PreparedSeries, Unit, Work
from tiebreak.engine.data.tensors import canonical, from_bytes, identities, tensor_bytes
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.encoding import decode_sparse
from tiebreak.engine.logged.journal import LogsInProgress
from tiebreak.engine.run.directory import RECORD_BYTES, RECORDS, RunDirectory, check_root
from tiebreak.engine.run.evidence import Evidence, tree_of_values
from tiebreak.engine.run.interpreter import Interpreter, Planned, State
from tiebreak.engine.run.logs import Logs
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.eip712 import ADDRESS_BYTES, Address, Domain
from tiebreak.protocol.commitments.job import Head, Job, SignedJob
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import data_tree, state_tree
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import TiebreakError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.match import by_rules, play
from tiebreak.protocol.game.sides import Challenger, Defender, Summary, describe
from tiebreak.protocol.program.isa import Opcode
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.reference import needed_elements, unpack
from tiebreak.protocol.program.rounding import Policy
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree

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
    """The back-ends of this machine: each device by its kernels, where there are any, and by torch alone.

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
    """Creates a run signed with throwaway keys for each party that is not given."""
    client, trainer = new_key(), trainer or new_key()
    job = Job.over(
        program, client=client.address, trainer=trainer.address, steps=steps, checkpoint_interval=checkpoint_interval,
        initial_state_root=state_tree(identities(state)).root, data_root=data_tree(identities(data)).root,
        policy=int(Policy.LOGGED if tolerances else Policy.EXACT), precision=precision, tolerances=tolerances,
        **Terms().job_fields,
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
        environment={name: _ascii(text)[:255] for name, text in (*describe_machine(), *describe_cuda())},
    )  # fmt: skip


def _ascii(text: str) -> str:
    return text.encode("ascii", "replace").decode()


SHOWN: Final = 16
"""The operands of an element that are named; sums have more."""


def first_difference(
    run: RunDirectory, interpreter: "Watched", expected: Sequence[tuple[int, str, int]], integers: Interpreter,
    logs: Callable[[RunDirectory], Logs], scratch: Path,
) -> str:  # fmt: skip
    """The place where a finished run leaves its program, in words; empty if the interpreter did not repeat it.

    interpreter: what computed the run. expected: the records that it should have. integers: computes by the definition.
    logs: those of a run under way. scratch: a folder.
    """
    made = ((record.step, record.state_root.hex(), record.loss_bits) for record in run.records())
    checkpoint = next((place for place, record in enumerate(made) if record not in expected), None)
    if checkpoint is None:
        return ""
    shutil.copytree(run.path, scratch / "truth")
    own = RunDirectory.open(scratch / "truth")
    with own.folder(to_write=True) as folder, folder.changing(RECORDS) as file:
        file.truncate(checkpoint * RECORD_BYTES)
    Worker(own, integers, stop_if_not_finite=False, logs=logs(own)).work(run.job.last_step(checkpoint))
    truth = Evidence(own, integers, CommittedLogs.of(own))
    shown = _Shown(run, interpreter, CommittedLogs.of(run))
    head = Head(job_id=run.job.id, count=checkpoint + 1, run_root=run.root(checkpoint + 1))
    match = play(
        rules.start(run.job, head, Digest(bytes(32)), 0), defender=Defender(shown),
        challenger=Challenger(truth, secrets.token_bytes(32)), judge=by_rules(count(1).__next__),
    )  # fmt: skip
    return _in_words(describe(match.final, run.program, truth), shown, truth)


def _in_words(summary: Summary, shown: Evidence, truth: Evidence) -> str:
    """The end of a finished game; empty if it did not reach an instruction."""
    step, leaf = summary.step, summary.leaf
    if step is None or leaf is None:
        return ""
    i = truth.program.instruction_at(leaf)

    def bits(data: bytes, place: int, size: int = i.dtype.size) -> str:
        return data[place * size : (place + 1) * size][::-1].hex()

    theirs, own = shown.tensor(step, leaf), truth.tensor(step, leaf)
    if (element := summary.element) is None:  # of a commit or a source, the game compares whole tensors
        element = next((place for place in range(i.numel) if bits(theirs, place) != bits(own, place)), 0)
    data = [truth.tensor(step, operand.value) for operand in i.operands]
    needed: tuple[tuple[int, int], ...] = ((0, element),) if i.opcode == Opcode.COMMIT else ()
    if i.opcode not in (Opcode.COMMIT, Opcode.SOURCE):
        types = truth.program.operand_dtypes(i)
        values = [unpack(dtype, part) for dtype, part in zip(types, data, strict=True)]
        needed = needed_elements(i, element, None, lambda operand, where: values[operand][where], types)
    read = [(i.operands[k].value, where, data[k]) for k, where in needed[:SHOWN]]
    sizes = [truth.program.body[value].dtype.size for value, _, _ in read]
    names = [f"value {v}[{at}] = {bits(part, at, size)}" for (v, at, part), size in zip(read, sizes, strict=True)]
    names += [f"{len(needed) - SHOWN:,} more"] * (len(needed) > SHOWN)
    return (
        f"first in step {step}, instruction {leaf} ({summary.instruction}), element {element}: "
        f"{bits(theirs, element)} instead of {bits(own, element)}, computed from {', '.join(names) or 'nothing'}"
    )


class Watched(Interpreter):
    """An interpreter that copies each value of a planned step into `made`, unless that is None."""

    made: dict[int, Tensor] | None = None

    @property
    def work(self) -> Sequence[tuple[Sequence[Work], PreparedSeries | None]]:
        """Units one by one while they are watched."""
        work = super().work
        return work if self.made is None else [([one for units, _ in work for one in units], None)]

    def _executor(self, *given: Any, **options: Any) -> Planned:
        executor = super()._executor(*given, **options)
        execute, made = executor.execute, self.made

        def watched(unit: Unit, chain: Any) -> None:
            execute(unit, chain)
            if made is not None:
                made.update({n: executor.values[n].clone() for n in unit.members if n in executor.values})

        executor.execute = watched  # type: ignore[method-assign]
        return executor


class _Shown(Evidence):
    """The values of a watched interpreter: those of its planned step, and the rest computed one by one."""

    KEPT: ClassVar[Mapping[str, int]] = {"leaves": 2, "tensor_tree": 4, "accumulators": 1, "log_tree": 2}
    _interpreter: Watched

    def leaves(self, step: int) -> dict[int, Tensor]:
        """The tensor of each leaf of the value tree."""
        found: dict[int, Tensor] = {}

        def observe(leaf: int, tensor: Tensor) -> Tensor:
            found[leaf] = tensor.clone()
            return tensor

        before = self._state_after(step - 1)
        next(self._steps(step, step, before, observe))
        made = self._interpreter.made = dict[int, Tensor]()
        new = next(self._steps(step, step, before)).result.state
        self._interpreter.made, found = None, found | made
        found |= {self.program.leaf_of_commit(slot): new[name] for slot, name in enumerate(self.program.state_spec())}
        return {leaf: canonical(tensor.cpu()) for leaf, tensor in found.items()}

    def value_tree(self, step: int) -> Tree:
        return tree_of_values(self.program, {leaf: identity(tensor) for leaf, tensor in self.leaves(step).items()})

    def tensor(self, step: int, value: int) -> bytes:
        return bytes(tensor_bytes(self.leaves(step)[value]))
