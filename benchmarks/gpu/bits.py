"""Compares a device's bits with the CPU's: qualification, and run roots of whole trainings."""

import json
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch

from benchmarks.gpu.workloads import Context, Workload
from benchmarks.table import Row
from tiebreak.api.machine.environment import kernels
from tiebreak.api.machine.qualification import verdicts
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.ziv import Logging
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.native import pure_path
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.loop import exact, steps
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.commitments.records import run_tree, state_tree
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.program.rounding import SumKind

QUALIFIED: Final = ((32, True, True), (32, True, False), (24, False, False), (16, False, True))
"""Arithmetics in addition to doctor's: bits, whether in random order, whether with logged sums. A trial takes one."""

GRAPHS: Final = "CUDA graphs"


def doctor(context: Context) -> list[Row]:
    """Checks all that `tiebreak doctor` does, and qualifies other arithmetics. Raises for wrong bits."""
    device, rows, wrong = context.device, [], []
    for verdict in verdicts(str(device), kernels()):
        rows.append(_equal(f"doctor, {verdict.path}", verdict.cases))
        wrong += [verdict.problem] if verdict.problem else []
    if wrong:
        raise StateError("; ".join(wrong))
    for bits, permuted, logged in QUALIFIED[:1] if context.trial else QUALIFIED:
        logging = Logging(thresholds={}, tolerances=dict.fromkeys(SumKind, 2)) if logged else None
        arithmetic = Arithmetic(device, permute=1 if permuted else None, precision=bits, logging=logging)
        words = ["qualify", f"{bits} bits", *(["random order"] if permuted else []), *(["logged"] if logged else [])]
        rows.append(_equal(", ".join(words), qualify(arithmetic).cases))
    return rows


def _equal(case: str, value: int, unit: str = "elements") -> Row:
    return Row(metric="equal bits", case=case, value=value, unit=unit)


def records_of(workload: Workload, captured: Captured, arithmetic: Arithmetic, *, graphs: bool = False) -> list[bytes]:
    """The digests of the records of all checkpoints; the run tree is over them."""
    machine = Interpreter(captured.program, arithmetic, graphs=graphs)
    state, data = machine.to_device(captured.state), machine.place_data(captured.data)
    return [
        make_record(done.number, done.result.state, done.result.loss_bits).digest
        for done in steps(
            machine, state, data, range(1, workload.steps + 1), sums=exact, check_finite=True, donate=lambda: graphs
        )
        if done.number % workload.interval == 0 or done.number == workload.steps
    ]


def _inputs(captured: Captured) -> str:
    """The inputs on which the roots depend, in hex."""
    return f"{captured.program.root.hex()} {state_tree(identities(captured.state)).root.hex()}"


def on_cpu(context: Context, name: str) -> list[Row]:
    """The CPU's records of a workload, which stand beside the rows for `on_device`."""
    workload = context.workloads[name]
    captured = capture_task(workload.task())
    records = records_of(workload, captured, Arithmetic())
    context.told.update(
        {
            "inputs": _inputs(captured),
            "records": " ".join(record.hex() for record in records),
            "run root": run_tree(records, workload.steps, workload.interval).root.hex(),
        }
    )
    return [Row(metric="computed by the CPU", case=name, value=workload.steps, unit="steps")]


def on_device(context: Context, name: str) -> list[Row]:
    """Compares the device's run root with the CPU's: as training does, in random order, by torch alone, by graphs.

    Raises `StateError` that names each way that differs and its first checkpoint that does.
    """
    told = json.loads((context.folder / f"cpu-{name}.json").read_text("utf-8"))["environment"]
    workload = context.workloads[name]
    captured = capture_task(workload.task())
    if _inputs(captured) != told["inputs"]:
        raise StateError(f"expected {name} to be captured as before, {told['inputs']}, got {_inputs(captured)}")
    right = [bytes.fromhex(record) for record in told["records"].split()]
    ways: dict[str, tuple[int | None, AbstractContextManager[None]]] = {
        "as in training": (None, nullcontext()),
        "random order": (1, nullcontext()),
        "torch alone": (None, pure_path()),
    }
    if context.device.type == "cuda":
        ways[GRAPHS] = None, nullcontext()
    rows, wrong = [], []
    for way, (permute, path) in ways.items():
        with path, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            arithmetic = Arithmetic(context.device, permute=permute)
            got = records_of(workload, captured, arithmetic, graphs=way == GRAPHS)
        context.told.update({f"{way}: said": str(one.message) for one in said})
        if context.device.type == "cuda":
            torch.cuda.empty_cache()
        if got == right:
            rows.append(_equal(f"{name}, {way}", workload.steps, "steps"))
        else:
            first = next(n for n, pair in enumerate(zip(right, got, strict=True)) if pair[0] != pair[1])
            root = run_tree(got, workload.steps, workload.interval).root.hex()
            wrong.append(f"{way}: run root {root}, first in checkpoint {first + 1} of {len(right)}")
    if wrong:
        raise StateError(f"{name}: expected the CPU's run root {told['run root']}, got {'; '.join(wrong)}")
    context.told["run root"] = told["run root"]
    return rows
