"""Records of a CPU, computed beforehand because a lent GPU's time is dear, and a device's steps compared with them.

    python -m benchmarks.gpu.roots [WORKLOAD ...]     computes what is missing on this machine's CPU, for hours

A file of `jobs/` has all that a device needs to compute the same steps: the program, so that nothing is captured
there and no other version of a library can change it, its tables, and how its weights and data are drawn. Numbers
come from the raw integers of NumPy's Philox, whose stream is fixed, so they are the same everywhere.
"""

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import torch
import zstandard
from safetensors.torch import load, save
from torch import Tensor

from benchmarks.gpu.workloads import FULL, TINY, Context, Workload, capture, release
from benchmarks.table import Row
from tiebreak.api.machine.environment import cpu_name
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.capture.task import Task
from tiebreak.engine.data.disk import write_file
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.loop import exact, steps
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.program.program import Program

JOBS: Final = Path(__file__).resolve().parent / "jobs"
STEPS: Final = 25
CHECKED: Final = (1, 2, 3, 5, 10, 15, 20, 25)
"""The steps whose records are compared."""
COMPUTED: Final = {name: 3 if name in ("gpt2-1024", "bf16", "llama") else STEPS for name in FULL}
"""The steps that a CPU computes beforehand."""

PROGRAM: Final = "job.program"
TOLD: Final = "job.told"
"""The names under which a file holds the program and everything that is no tensor."""

Rule = dict[str, float]
"""Says how to make a tensor's elements: all `filled` with a number, or drawn `below` one, or `uniform` around 0."""


def rule_of(tensor: Tensor, scale: float, *, bf16: bool = False) -> Rule:
    """The rule for a tensor like this one. scale: of uniform numbers, a power of two. bf16: whether they are bfloat16.

    Uniform numbers are multiples of one power of two, with as many bits as the format has.
    """
    first = tensor.flatten()[0]
    if bool((tensor == first).all()):
        return {"filled": first.item()}
    if tensor.is_floating_point():
        return {"uniform": scale, "bits": 8 if bf16 else 24}
    return {"below": int(tensor.max()) + 1}


def made(rule: Rule, dtype: torch.dtype, shape: tuple[int, ...], number: int) -> Tensor:
    """A tensor by its rule. number: selects the stream."""
    if "filled" in rule:
        return torch.full(shape, rule["filled"], dtype=dtype)
    raw = np.random.Philox(key=number).random_raw(int(np.prod(shape))).reshape(shape)
    if "below" in rule:
        return torch.from_numpy((raw % np.uint64(rule["below"])).astype(np.int64)).to(dtype)
    half = 1 << int(rule["bits"]) - 1
    centred = (raw >> np.uint64(64 - rule["bits"])).astype(np.float32) - np.float32(half)
    return torch.from_numpy(centred * np.float32(rule["uniform"] / half))


@dataclass(frozen=True)
class Job:
    """A program with its inputs, and the CPU's records by step, as far as they are known."""

    program: Program
    tables: dict[str, Tensor]
    """The entries of the data that are not made by rules."""
    rules: dict[str, Rule]
    """The rules for the state and the rest of the data, by name."""
    records: dict[int, str]
    """Digests of `CHECKED` steps, in hex."""
    cpu: str = ""

    def inputs(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The initial state and the data."""
        number = {name: place for place, name in enumerate(sorted(self.rules))}

        def all_of(spec: Mapping[str, tuple[Any, tuple[int, ...]]]) -> dict[str, Tensor]:
            return {
                name: made(self.rules[name], TORCH_DTYPES[dtype], shape, number[name])
                for name, (dtype, shape) in spec.items()
                if name in self.rules
            }

        return all_of(self.program.state_spec()), all_of(self.program.data_spec()) | self.tables

    def encode(self) -> bytes:
        told = {"rules": self.rules, "records": self.records, "cpu": self.cpu}
        packed = {PROGRAM: self.program.encode(), TOLD: json.dumps(told).encode()}
        tensors = {name: torch.frombuffer(bytearray(data), dtype=torch.uint8) for name, data in packed.items()}
        return zstandard.compress(save(self.tables | tensors), 19)

    @classmethod
    def decode(cls, data: bytes) -> "Job":
        tensors = load(zstandard.decompress(data))
        program, told = (bytes(tensors.pop(name).numpy()) for name in (PROGRAM, TOLD))
        held = json.loads(told)
        records = {int(step): record for step, record in held["records"].items()}
        return cls(Program.decode(program), tensors, held["rules"], records, held["cpu"])


def job_of(task: Task, captured: Captured) -> Job:
    """A job of what was captured, with weights of GPT-2's initial size and data that are drawn anew."""
    drawn = {name: x for name, x in captured.data.items() if name in task.data}
    tables = {name: x for name, x in captured.data.items() if name not in drawn}
    bf16 = {MODEL + name for name in task.bf16()}
    rules = {name: rule_of(x, 2.0**-5, bf16=name in bf16) for name, x in captured.state.items()}
    return Job(captured.program, tables, rules | {name: rule_of(x, 1.0) for name, x in drawn.items()}, {})


def committed(workload: Workload) -> Job | None:
    """The job of a workload, if there is a file of it."""
    path = JOBS / workload.name
    return Job.decode(path.read_bytes()) if path.is_file() else None


def found_or_captured(workload: Workload) -> Job:
    """The committed job of a workload; without one, a job that is captured here and whose records nobody knows."""
    if (job := committed(workload)) is not None:
        return job
    task = workload.task(STEPS)
    return job_of(task, capture(task))


def records_of(job: Job, arithmetic: Arithmetic, last: int, *, graphs: bool = False) -> Iterator[tuple[int, str]]:
    """The digests of the records of `CHECKED` steps up to the last, in hex."""
    machine = Interpreter(job.program, arithmetic, graphs=graphs)
    state, data = job.inputs()
    for done in steps(
        machine, machine.to_device(state), machine.place_data(data), range(1, last + 1), sums=exact,
        check_finite=True, donate=lambda: True,
    ):  # fmt: skip
        if done.number in CHECKED:
            yield done.number, make_record(done.number, done.result.state, done.result.loss_bits).digest.hex()


def compare(context: Context, name: str, last: int = STEPS, job: Job | None = None) -> Iterator[Row]:
    """Compares a device's steps with the CPU's, or with each other where the CPU's are not known.

    By graphs and in random order; of 25 steps also without graphs and by torch alone. A trial takes one step. Raises
    `StateError` that names each way that differs and the first step that does.
    """
    thorough, last = last == STEPS, 1 if context.trial else last
    job, device = job or found_or_captured(context.workloads[name]), context.device
    right = {step: record for step, record in job.records.items() if step <= last}
    yield Row(metric="steps known of a CPU", case=name, value=max(right, default=0), unit="steps")
    ways = {"by graphs": (None, device.type == "cuda", True), "in random order": (1, False, True)}
    if thorough:
        ways |= {"without graphs": (None, False, True), "by torch alone": (None, False, False)}
    wrong = []
    for way, (permute, graphs, compiled) in ways.items():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            arithmetic = Arithmetic(device, permute=permute, compiled=compiled)
            got = dict(records_of(job, arithmetic, last, graphs=graphs))
        context.told.update({f"{name}, {way}": str(one.message) for one in said})
        right = got | right
        differing = [step for step in sorted(got) if got[step] != right[step]]
        equal = max((step for step in got if step < min(differing, default=last + 1)), default=0)
        yield Row(metric="steps with equal bits", case=f"{name}, {way}", value=equal, unit="steps", target=f"= {last}")
        wrong += [f"{way} from step {step} on" for step in differing[:1]]
        release()
    if wrong:
        raise StateError(f"{name}: expected the bits of {job.cpu or 'the first way'}, got others {', '.join(wrong)}")


@click.command(help=__doc__)
@click.argument("workloads", nargs=-1, type=click.Choice([*COMPUTED, *(each.name for each in TINY.values())]))
def main(workloads: tuple[str, ...]) -> None:
    named = {each.name: each for each in (*TINY.values(), *FULL.values())}
    for name in workloads or COMPUTED:
        job = found_or_captured(named[name])
        wanted = COMPUTED.get(name, STEPS)
        if max(job.records, default=0) >= wanted:
            continue
        job = replace(job, records={}, cpu=cpu_name())
        for step, record in records_of(job, Arithmetic(), wanted):
            job.records[step] = record
            JOBS.mkdir(exist_ok=True)
            write_file(JOBS / name, job.encode())
            click.echo(f"{name}: step {step} of {wanted}")


if __name__ == "__main__":
    main()
