"""Runs whole programs in integers, and prints the lines that `recheck run` prints."""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.plain_logs import read_logs
from conformance.whole_steps import execute, new_state
from tiebreak.protocol.commitments.log_tree import LogTree, logs_tree
from tiebreak.protocol.commitments.records import ZERO_DIGEST, StepRecord, data_tree, identify, run_tree, state_leaf
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.program import Program, half_and_half
from tiebreak.protocol.program.rounding import StepLog
from tiebreak.protocol.tags import Digest
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
    tolerances: int = 0
    logs: Sequence[StepLog] | None = None
    """The log of each step under policy `logged`; None under policy `exact`."""

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

    def _log_root(self, checkpoint: int, interval: int) -> Digest:
        """The log root of a segment's records."""
        if self.logs is None:
            return ZERO_DIGEST
        segment = self.logs[checkpoint * interval : (checkpoint + 1) * interval]
        return logs_tree([LogTree(self.program, log).root for log in segment]).root

    def steps(self, count: int, interval: int) -> Iterator[tuple[StepRecord, str]]:
        """The record of each step, and the root of its value tree."""
        state, program = self.state, self.program
        for step in range(1, count + 1):
            log = None if self.logs is None else self.logs[step - 1]
            values = execute(program, state, self.data, step, self.precision, tolerances=self.tolerances, log=log)
            state = new_state(program, values)
            ids = [identify(i.dtype, i.shape, value) for i, value in zip(program.body, values, strict=True)]
            leaves = self._state_leaves(state)
            record = StepRecord(
                step=step,
                state_root=Tree(leaves).root,
                loss_bits=int.from_bytes(values[-1], "little"),
                log_root=self._log_root((step - 1) // interval, interval),
            )
            yield record, half_and_half(ids, leaves, program.half_depth).root.hex()


def _entry(entries: Tensors, name: str) -> bytes:
    if name not in entries:
        raise EncodingError(f"expected a tensor named {name}, got {', '.join(sorted(entries)) or 'none'}")
    return entries[name]


def opened(
    program: Path, state: Path, data: Path, steps: int, precision: int = 32, logs: Path | None = None
) -> ReferenceRun:
    """A run over files; the program may be compressed (`.gz`). Raises `VerificationError` for hostile ones."""
    raw = program.read_bytes()
    try:
        decoded = Program.decode(gzip.decompress(raw) if program.suffix == ".gz" else raw)
    except (EOFError, zlib.error) as error:
        raise EncodingError(f"{program}: expected a compressed file, got something else: {error}") from error
    tolerances, found = (0, None) if logs is None else read_logs(logs.read_bytes(), decoded, steps)
    return ReferenceRun(
        program=decoded,
        state=tensors(state),
        data=tensors(data),
        precision=precision,
        tolerances=tolerances,
        logs=found,
    )


def lines(run: ReferenceRun, steps: int, interval: int) -> Iterator[str]:
    """The roots, one line a step, and at the end the run root."""
    yield from (f"{name} {root}" for name, root in run.roots.items())
    records = []
    for record, values in run.steps(steps, interval):
        if record.step % interval == 0 or record.step == steps:
            records.append(record.digest)
        found = f"state {record.state_root.hex()} values {values} record {record.digest.hex()}"
        yield f"step {record.step} loss {record.loss_bits:08x} {found}"
    yield f"run {run_tree(records, steps, interval).root.hex()}"


def corpus(folder: Path, count: int | None = None) -> Iterator[tuple[str, Any, Any]]:
    """A run of the corpus or its first steps: each root and record (step, state root, loss bits), twice."""
    expected = json.loads((folder / "expected.json").read_text())
    program, state, data = (folder / name for name in ("program.gz", "state.safetensors", "data.safetensors"))
    run = opened(program, state, data, expected["steps"], expected["precision"])
    for name, root in run.roots.items():
        yield f"{name} root", expected["initial_state_root" if name == "state" else f"{name}_root"], root
    steps, interval = expected["steps"], expected["checkpoint_interval"]
    committed, checkpoints = {step: [step, root, loss] for step, root, loss in expected["records"]}, []
    for record, _ in run.steps(steps if count is None else min(count, steps), interval):
        step = record.step
        if step in committed:
            yield f"record {step}", committed[step], [step, record.state_root.hex(), record.loss_bits]
        if step % interval == 0 or step == steps:
            checkpoints.append(record.digest)
        if step == steps:
            yield "run root", expected["run_root"], run_tree(checkpoints, steps, interval).root.hex()
