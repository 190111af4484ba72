"""The cost of commitments: hashing states compared with plain SHA-256, and a checkpoint compared with GPT-2's steps.

    python -m benchmarks.commit [--step-seconds S]

States are random numbers in the shapes of GPT-2 124M with Adam's moments (1.49 GB in 444 tensors) and of ResNet-50 with
momentum and running statistics (0.2 GB in 428). The plain rate is that of `hashlib.sha256` over the same bytes, as one
buffer per thread. To measure what a checkpoint adds to the computation, the benchmark runs FP64 matrix products on
all threads, which are most of a step's work, and measures how much longer they take.
"""

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Final

import click
import numpy as np
import torch
from torch import Tensor

from benchmarks.table import RESULTS, Row, interleaved, placed, publish, rows_of
from tiebreak.engine.data.disk import Folder
from tiebreak.engine.data.formats import write_tensors
from tiebreak.engine.data.hashing import kernel
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.system import usable_cores

REPEATS: Final = 5
INTERVAL: Final = 10
"""Steps between two checkpoints."""
ASSUMED_STEP_S: Final = 8.5
"""Used if results/engine.json has no measurement: 2.5 times the 3.4 s of eager FP32 GPT-2 on two cores."""
State = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


def gpt2() -> Shapes:
    """Shapes of the parameters of GPT-2 124M and of Adam's moments."""
    shapes: Shapes = {"wte": (50257, 768), "wpe": (1024, 768), "ln_f.w": (768,), "ln_f.b": (768,)}
    for layer in range(12):
        for name, rows, columns in (("qkv", 768, 2304), ("out", 768, 768), ("up", 768, 3072), ("down", 3072, 768)):
            shapes |= {f"{layer}.{name}.w": (rows, columns), f"{layer}.{name}.b": (columns,)}
        shapes |= {f"{layer}.ln{n}.{part}": (768,) for n in (1, 2) for part in "wb"}
    return {f"{copy}.{name}": shape for copy in ("model", "m", "v") for name, shape in shapes.items()}


def resnet50() -> Shapes:
    """Shapes of ResNet-50's parameters, their momentum, and the running statistics of its batch norms."""
    convolutions = [(64, 3, 7)]
    width = 64
    for blocks, inner in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            convolutions += [(inner, width, 1), (inner, inner, 3), (4 * inner, inner, 1)]
            convolutions += [(4 * inner, width, 1)] if not block else []
            width = 4 * inner
    shapes: Shapes = {"fc.w": (1000, 2048), "fc.b": (1000,)}
    for n, (out, into, size) in enumerate(convolutions):
        shapes |= {f"{n}.w": (out, into, size, size), f"{n}.g": (out,), f"{n}.b": (out,)}
    statistics: Shapes = {f"{n}.{part}": (c[0],) for n, c in enumerate(convolutions) for part in ("mean", "var")}
    return {f"{copy}.{name}": shape for copy in ("model", "m") for name, shape in shapes.items()} | statistics


def filled(shapes: Shapes) -> tuple[State, np.ndarray]:
    """Random tensors of these shapes in one block of memory, and that block as bytes."""
    flat = torch.randn(sum(map(prod, shapes.values())))
    state, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + prod(shape)
        state[name] = flat[start:end].view(shape)
    return state, flat.numpy().view(np.uint8)


def plain(data: np.ndarray, threads: int) -> Callable[[], None]:
    """A call that computes SHA-256 of the data, split into one buffer per thread."""
    parts = [memoryview(part.data) for part in np.array_split(data, threads)]

    def run() -> None:
        workers = [threading.Thread(target=sha256, args=(part,)) for part in parts[1:]]
        for worker in workers:
            worker.start()
        sha256(parts[0])
        for worker in workers:
            worker.join()

    return run


def rates(name: str, state: State, data: np.ndarray) -> Iterator[Row]:
    """GB/s of hashing a state into ids and of plain SHA-256, with one thread and with all threads."""
    case = f"{name}, {data.nbytes / 1e9:.2f} GB in {len(state)} tensors"

    def ids(threads: int) -> Callable[[], None]:
        def run() -> None:
            torch.set_num_threads(threads)
            identities(state)

        return run

    counts = sorted({1, usable_cores()})
    candidates: dict[str, Callable[[], object]] = {f"plain {n}": plain(data, n) for n in counts}
    candidates |= {f"ids {n}": ids(n) for n in counts}
    seconds = interleaved(candidates, REPEATS)
    for n in counts:
        threads = f"{n} thread{'s' if n > 1 else ''}"
        plain_rate, rate = (data.nbytes / seconds[f"{what} {n}"] / 1e9 for what in ("plain", "ids"))
        yield from rows_of(case, "GB/s", {f"plain SHA-256, {threads}": plain_rate, f"state ids, {threads}": rate})
        yield Row(
            metric=f"state ids / plain, {threads}", case=case, value=rate / plain_rate, unit="x", target=">= 0.85"
        )


def measured_step() -> tuple[float, str]:
    """Seconds of one GPT-2 step under policy `exact`, and the source of this figure."""
    path = RESULTS / "engine.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    found = [
        r for r in rows if r["metric"] == "trainer: a step" and r["case"].startswith("gpt2,") and r["unit"] == "ms"
    ]
    if not found:
        return ASSUMED_STEP_S, "assumed: 2.5 x 3.4 s"
    return min(r["value"] for r in found) / 1e3, "results/engine.json"


class Products:
    """Runs FP64 matrix products on all threads for about the given time."""

    def __init__(self, seconds: float) -> None:
        self._a, self._b = torch.randn(512, 3072, dtype=torch.float64), torch.randn(3072, 768, dtype=torch.float64)
        started = time.perf_counter()
        for _ in range(20):
            self._a @ self._b
        self._count = max(1, round(20 * seconds / (time.perf_counter() - started)))

    def __call__(self) -> None:
        for _ in range(self._count):
            self._a @ self._b


def checkpoint(state: State, step: float, source: str) -> Iterator[Row]:
    """The cost of hashing and writing GPT-2's state, alone and during products, as a share of ten steps."""
    torch.set_num_threads(usable_cores())
    with tempfile.TemporaryDirectory() as folder:

        def commit() -> None:
            make_record(INTERVAL, state, 0)
            with Folder(Path(folder)) as files:
                write_tensors(files, "state.safetensors", state)

        alone = interleaved({"hash": lambda: make_record(1, state, 0), "commit": commit}, REPEATS)
        # The products must outlast the commit, or it would end beside an idle machine.
        work = Products(max(8.0, 4 * alone["commit"]))

        def beside() -> None:
            worker = threading.Thread(target=commit)
            worker.start()
            work()
            worker.join()

        pair = interleaved({"work": work, "beside": beside}, 3)
    added, case = pair["beside"] - pair["work"], f"GPT-2 124M with Adam, k = {INTERVAL}"
    yield Row(metric="GPT-2's step", case=source, value=step, unit="s")
    yield from rows_of(case, "s", {
        "hash the state": alone["hash"], "hash and write the state": alone["commit"],
        "added to products beside it": added,
    })  # fmt: skip
    whats = {"hashing alone": alone["hash"], "one after the other": alone["commit"], "beside": added}
    shares = {f"share of {INTERVAL} steps, {what}": 100 * s / (INTERVAL * step) for what, s in whats.items()}
    yield from rows_of(case, "%", shares, {f"share of {INTERVAL} steps, beside": "< 2"})


@click.command()
@click.option("--step-seconds", type=float, help="GPT-2's step  [default: that of results/engine.json]")
@placed
def main(step_seconds: float | None, folder: Path) -> None:
    """Measure what commitments cost."""
    step, source = measured_step() if step_seconds is None else (step_seconds, "given")
    found = kernel()
    rows: list[Row] = []
    for name, shapes in (("ResNet-50", resnet50()), ("GPT-2 124M", gpt2())):
        state, data = filled(shapes)
        rows += rates(name, state, data)
        if name.startswith("GPT-2"):
            rows += checkpoint(state, step, source)
    used = "plain Python" if found is None else found.implementation
    publish("commit", rows, f"hasher: {used}, medians", folder=folder)


if __name__ == "__main__":
    main()
