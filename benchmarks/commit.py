"""Cost of commitments: hashing a state, against the plain SHA-256 rate of one thread and against a training step."""

from hashlib import sha256

import torch

from benchmarks.engine import ExactStep
from benchmarks.table import Row, interleaved, publish
from engine.compile import compile_task
from engine.tensors import identities, tensor_bytes
from protocol.commitments import state_tree
from tiebreak.tasks.loader import load_task


def main() -> None:
    """Measure the states of both tasks and one of 64 MiB."""
    rows = []
    for name in ("digits", "text"):
        task = load_task(name)
        compiled = compile_task(task)
        seconds = interleaved(
            {
                "step": ExactStep(compiled, task.steps),
                "commit": lambda c=compiled: state_tree(identities(c.state)).root,
            },
            repeats=11,
        )
        size = sum(t.numel() * t.element_size() for t in compiled.state.values())
        share = seconds["commit"] / (task.checkpoint_interval * seconds["step"])
        case = f"{name}, {size:,} bytes, {len(compiled.state)} tensors"
        rows.append(Row(metric="hash a state", case=case, value=1e3 * seconds["commit"], unit="ms"))
        rows.append(Row(metric=f"share of {task.checkpoint_interval} steps", case=case, value=100 * share, unit="%"))
    big = {"w": torch.randn(1 << 24)}
    raw = bytes(tensor_bytes(big["w"]))
    seconds = interleaved({"tree": lambda: identities(big), "plain": lambda: sha256(raw).digest()}, repeats=5)
    rates = {what: len(raw) / value / 1e9 for what, value in seconds.items()}
    rows.append(Row(metric="SHA-256, one thread, plain", case="64 MiB", value=rates["plain"], unit="GB/s"))
    rows.append(Row(metric="tensor id (1 KiB chunks, tree)", case="64 MiB", value=rates["tree"], unit="GB/s"))
    rows.append(Row(metric="tree / plain", case="64 MiB", value=rates["tree"] / rates["plain"], unit="x"))
    publish("commit", rows, "commitments in Python, one thread")


if __name__ == "__main__":
    main()
