"""Runs the corpus on this machine and states what came out. Nothing in a statement names a host, a user or a path."""

import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import torch

from tiebreak.api.corpus.computing import BackendChoice, choices, logs_of, run_of
from tiebreak.api.corpus.differing import first_difference
from tiebreak.api.corpus.programs import CorpusProgram
from tiebreak.api.machine.environment import cpu_name, cpu_sets, cuda_driver, own_version
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.computation import ComputedRun, CorpusStatement, FirstDifference
from tiebreak.protocol.errors import TiebreakError
from tiebreak.protocol.tags import Digest

UNREPEATED: Final = "computed again for the bug report, the step gave another result"
MAX_PROBLEM: Final = 200
OnRun = Callable[[ComputedRun], None]


def compute(program: CorpusProgram, choice: BackendChoice) -> ComputedRun:
    """Computes a program. If it reaches another root, finds where it left the program first."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, begun = Path(scratch), time.monotonic()
        root: Digest | None = None
        difference: FirstDifference | None = None
        problem, expected = "", Digest(bytes.fromhex(program.expected.run_root))
        try:
            with choice.used():
                run = run_of(program, folder / "run")
                interpreter = choice.interpreter(run.job, run.program)
                root = Worker(run, interpreter, stop_if_not_finite=False, logs=logs_of(program, run)).work()
            milliseconds = round(1000 * (time.monotonic() - begun))
            if root != expected:
                difference = first_difference(program, choice, run, folder)
                problem = "" if difference else UNREPEATED
        except TiebreakError as error:
            milliseconds = round(1000 * (time.monotonic() - begun))
            words = f"{type(error).__name__}: {error}".replace(scratch, "").encode("ascii", "replace").decode()
            problem = " ".join(words.split())[:MAX_PROBLEM]
    return ComputedRun(
        program=program.name, device=choice.device, backend=choice.backend, root=root, expected=expected,
        milliseconds=milliseconds, problem=problem, difference=difference,
    )  # fmt: skip


def state(
    programs: Sequence[CorpusProgram], devices: Sequence[str] = (), *, note: str = "", restricted: str = "",
    on_run: OnRun = lambda _: None,
) -> CorpusStatement:  # fmt: skip
    """Computes programs by every back-end of the devices [default: all], and states what came out.

    restricted: the instruction sets that were left, if some were left out. on_run: called with each run.
    """
    computed = []
    for choice in choices(devices):
        for program in programs:
            computed.append(compute(program, choice))
            on_run(computed[-1])
    return CorpusStatement(
        programs={program.name: program.digest for program in programs}, machine=machine(restricted),
        versions=versions(), note=note, computed=tuple(computed),
    )  # fmt: skip


def machine(restricted: str = "") -> dict[str, str]:
    """The processor, what torch and the kernels use of it, and the accelerators."""
    (sets, of), own = cpu_sets(), platform.machine()
    found = {
        "architecture": own,
        "cpu": cpu_name() if of in ("", own) else f"emulated on {cpu_name()}, {of}",
        "instruction sets": sets if of == own else "unknown",
        "torch uses": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
    }
    found |= {"restricted to": restricted} if restricted else {}
    if torch.cuda.is_available():
        found |= {f"cuda:{i}": torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
        found["driver"] = cuda_driver()
    return {name: text.encode("ascii", "replace").decode()[:255] for name, text in found.items()}


def versions() -> dict[str, str]:
    """The versions of everything that computes."""
    found = {
        "tiebreak": own_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": " ".join(filter(None, [platform.system(), *platform.libc_ver()])),
    }
    for library in ("numpy", "triton"):
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "none"
    return found | ({"cuda": str(torch.version.cuda)} if torch.version.cuda else {})
