"""Runs whole programs of policy `exact` in integers, and prints the lines that `recheck run` prints."""

import json
import lzma
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.protocol.whole_steps import execute, new_state
from tiebreak.protocol.commitments.records import StepRecord, data_tree, identify, run_tree, state_leaf
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.program import Program, half_and_half
from tiebreak.protocol.trees import Tree

Tensors = Mapping[str, bytes]


def tensors(path: Path) -> dict[str, bytes]:
    """The tensors of a safetensors file, by name. Raises `EncodingError` for another file."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    try:
        header = {name: entry["data_offsets"] for name, entry in json.loads(raw[8:start]).items() if name[:2] != "__"}
        ends = {name: (start + first, start + end) for name, (first, end) in header.items()}
        if not all(start <= first <= end <= len(raw) for first, end in ends.values()):
            raise ValueError("offsets beyond its end")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise EncodingError(f"{path}: expected a safetensors file, got {type(error).__name__}: {error}") from None
    return {name: raw[first:end] for name, (first, end) in ends.items()}


@dataclass(frozen=True, kw_only=True)
class ReferenceRun:
    """A run as the specification defines it: its inputs, and all that follows from them."""

    program: Program
    state: Tensors
    data: Tensors
    precision: int = 32

    @property
    def roots(self) -> dict[str, str]:
        """The program root, the root of the initial state and the data root."""
        spec = self.program.data_spec()
        data = data_tree({name: identify(*spec[name], _entry(self.data, name)) for name in spec})
        state = Tree(self._state_leaves(self.state))
        return {"program": self.program.root.hex(), "state": state.root.hex(), "data": data.root.hex()}

    def _state_leaves(self, state: Tensors) -> list[bytes]:
        spec = self.program.state_spec()
        return [state_leaf(name, identify(*spec[name], _entry(state, name))) for name in spec]

    def steps(self, count: int) -> Iterator[tuple[StepRecord, str]]:
        """The record of each step, and the root of its value tree."""
        state, program = self.state, self.program
        for step in range(1, count + 1):
            values = execute(program, state, self.data, step, self.precision)
            state = new_state(program, values)
            ids = [identify(i.dtype, i.shape, value) for i, value in zip(program.body, values, strict=True)]
            leaves = self._state_leaves(state)
            record = StepRecord(step=step, state_root=Tree(leaves).root, loss_bits=int.from_bytes(values[-1], "little"))
            yield record, half_and_half(ids, leaves, program.half_depth).root.hex()


def _entry(entries: Tensors, name: str) -> bytes:
    if name not in entries:
        raise EncodingError(f"expected a tensor named {name}, got {', '.join(sorted(entries)) or 'none'}")
    return entries[name]


def opened(program: Path, state: Path, data: Path, precision: int = 32) -> ReferenceRun:
    """A run over three files; the program may be compressed (`.xz`). Raises `VerificationError` for hostile ones."""
    raw = program.read_bytes()
    encoded = lzma.decompress(raw) if program.suffix == ".xz" else raw
    return ReferenceRun(program=Program.decode(encoded), state=tensors(state), data=tensors(data), precision=precision)


def lines(run: ReferenceRun, steps: int, interval: int) -> Iterator[str]:
    """The roots, one line a step, and at the end the run root."""
    yield from (f"{name} {root}" for name, root in run.roots.items())
    records = []
    for record, values in run.steps(steps):
        if record.step % interval == 0 or record.step == steps:
            records.append(record.digest)
        found = f"state {record.state_root.hex()} values {values} record {record.digest.hex()}"
        yield f"step {record.step} loss {record.loss_bits:08x} {found}"
    yield f"run {run_tree(records, steps, interval).root.hex()}"


def golden(folder: Path, count: int | None = None) -> Iterator[tuple[str, Any, Any]]:
    """A golden run or its first steps: each root and record (step, state root, loss bits), expected and computed."""
    run = opened(folder / "program.xz", folder / "state.safetensors", folder / "data.safetensors")
    expected = json.loads((folder / "expected.json").read_text())
    for name, root in run.roots.items():
        yield f"{name} root", expected["initial_state_root" if name == "state" else f"{name}_root"], root
    steps, interval = expected["steps"], expected["checkpoint_interval"]
    committed, checkpoints = {step: [step, root, loss] for step, root, loss in expected["records"]}, []
    for record, _ in run.steps(steps if count is None else min(count, steps)):
        step = record.step
        if step in committed:
            yield f"record {step}", committed[step], [step, record.state_root.hex(), record.loss_bits]
        if step % interval == 0 or step == steps:
            checkpoints.append(record.digest)
        if step == steps:
            yield "run root", expected["run_root"], run_tree(checkpoints, steps, interval).root.hex()
