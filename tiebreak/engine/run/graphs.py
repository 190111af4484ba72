"""Steps as CUDA graphs: what the host does for a step is done once, and the device repeats it.

A graph repeats launches with the same numbers and addresses. So the state lies in tensors of its own, over which each
step writes the next one, the number of the step is on the device, and what a step reads neither moves nor is freed.
What needs the host in every step keeps a program from being replayed. The first step makes plans and compiles kernels,
which the host has to send; the second is watched by `Reads`; the third is captured, if nothing was seen.

A graph that reads memory which was freed computes garbage and says nothing. So some steps, in training the last one
before each checkpoint, are also computed without the graph, and compared. Where there is no memory for a step's values
twice, the graph goes before that, and the next step is captured again.
"""

import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Set
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.protocol.errors import StateError

ENGINE: Final = f"{Path(__file__).resolve().parents[2]}/"
INTERVAL: Final = 1000
"""One step in this many is also computed without the graph where there are no checkpoints."""
Body = Callable[[dict[str, Tensor], dict[str, Tensor], Tensor], dict[str, Tensor]]
"""Computes a step without the host: state (which may be overwritten), data, and steps before it -> the new state."""


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts, by function of the engine, where the host reads from the device or copies to it.

    Those are operations whose result the host reads or whose size it must know. On a CPU, which has no device to wait
    for, the same operations count.
    """

    READING: Final = ("_local_scalar_dense", "nonzero", "masked_select", "unique_consecutive", "_unique2", "equal")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, result = func.overloadpacket.__name__, func(*args, **(kwargs or {}))
        by_mask = name in ("index", "index_put", "index_put_") and any(
            x is not None and x.dtype == torch.bool for x in args[1]
        )
        from_to = (args[0], result) if name == "_to_copy" else args[:2] if name == "copy_" else ()
        if name in self.READING or by_mask or len({x.device for x in from_to}) > 1:
            frames = (frame for frame, _ in traceback.walk_stack(None))
            codes = (frame.f_code for frame in frames)
            code = next((c for c in codes if c.co_filename.startswith(ENGINE) and c.co_filename != __file__), None)
            place = "elsewhere" if code is None else f"{Path(code.co_filename).stem}.{code.co_name}"
            self.seen[f"{name} in {place}"] += 1
        return result


def owned(state: Mapping[str, Tensor], data: Mapping[str, Tensor]) -> frozenset[str]:
    """The names of the state's tensors that share their memory with no other tensor."""
    owners = Counter(tensor.untyped_storage().data_ptr() for tensor in (*state.values(), *data.values()))
    return frozenset(name for name, tensor in state.items() if owners[tensor.untyped_storage().data_ptr()] == 1)


def spare(device: torch.device) -> int:
    """Bytes of a CUDA device that are free once torch gives back what it keeps for later; 0 for a CPU."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def capture(device: torch.device, work: Callable[[], None]) -> Callable[[], None]:
    """Records what `work` would do on a CUDA device; each call of the result does it."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    # Other threads may do what they like, because a commit may be in flight.
    with torch.cuda.device(device):
        outside = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                work()
        finally:
            torch.cuda.set_stream(outside)  # which torch leaves undone where the driver refuses what was recorded
    return graph.replay


class Graph:
    """A step that is replayed. It overwrites the tensors of the state with which it is made."""

    def __init__(self, arithmetic: Arithmetic, body: Body, state: dict[str, Tensor], data: dict[str, Tensor]):
        own, free = owned(state, data), spare(arithmetic.device)
        self._state = {name: x if name in own else torch.empty_like(x) for name, x in state.items()}
        self._data, self._notes, self._plans = dict(data), arithmetic.backend.notes, arithmetic.plans()
        self._before = torch.zeros((), dtype=torch.int64, device=arithmetic.device)
        self._replay = capture(arithmetic.device, lambda: self._take(body(self._state, self._data, self._before)))
        self.bytes = free - spare(arithmetic.device)
        """Memory for the values of a step, which the graph takes as long as it exists."""

    def fits(self, arithmetic: Arithmetic, data: Mapping[str, Tensor]) -> bool:
        """Whether the data and notes that the graph reads still lie at the addresses that it captured."""
        return arithmetic.backend.notes is self._notes and all(data[n] is tensor for n, tensor in self._data.items())

    def step(self, number: int, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state after step `number`; the next call overwrites it."""
        self._take(state)
        self._before.fill_(number - 1)
        self._replay()
        return dict(self._state)

    def _take(self, state: Mapping[str, Tensor]) -> None:
        """Copies a state into the tensors that the graph reads and overwrites."""
        moved = {n: x for n, x in state.items() if x.data_ptr() != self._state[n].data_ptr()}
        aside = {name: tensor.clone() for name, tensor in moved.items()}  # one entry may lie in another's place
        for name, tensor in aside.items():
            self._state[name].copy_(tensor)


class Graphs:
    """Replays the steps of one interpreter as a CUDA graph; where that is impossible, warns once and does without."""

    def __init__(self, arithmetic: Arithmetic, compares: Callable[[int], bool], frozen: Set[str]) -> None:
        """compares: whether a step, by its number, is also computed without the graph. frozen: what no step changes."""
        self._arithmetic, self._compares, self._frozen = arithmetic, compares, frozen
        self._graph: Graph | None = None
        self._steps = 0
        self.reason = ""
        """The reason why steps are not replayed, in words; empty if they are."""
        if arithmetic.backend.notes is None:
            self.reason = f"the kernels for GPUs do not run on {arithmetic.device}"
        elif arithmetic.options.shuffled is not None:
            self.reason = "each step takes the terms of sums in another order"
        elif arithmetic.options.logging is not None:
            self.reason = "the host logs near ties"

    def step(self, body: Body, number: int, state: dict[str, Tensor], data: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state after a step, on a state that may be overwritten; a later call may overwrite the result.

        Raises `StateError` if a step that is compared has other results without the graph.
        """
        self._steps += 1
        if self._steps == 1 and self.reason:
            self._refuse(self.reason)
        before = torch.full((), number - 1, dtype=torch.int64, device=self._arithmetic.device)
        if self._steps > 2 and not self.reason and (graph := self._captured(body, state, data)) is not None:
            if not self._compares(number):
                return graph.step(number, state)
            try:
                kept = {n: tensor if n in self._frozen else tensor.clone() for n, tensor in state.items()}
            except torch.OutOfMemoryError:
                self._cannot_compare()
                graph = None
                return body(state, data, before)
            new = graph.step(number, state)
            if spare(self._arithmetic.device) < graph.bytes:
                graph = self._graph = None  # the next step captures another
            self._compare(number, new, lambda: body(kept, data, before))
            return new
        with Reads() if self._steps == 2 and not self.reason else nullcontext() as reads:
            new = body(state, data, before)
        if reads is not None and reads.seen:
            self._refuse(f"in each the host waits for the device: {', '.join(sorted(reads.seen))}")
        return new

    def _captured(self, body: Body, state: dict[str, Tensor], data: dict[str, Tensor]) -> Graph | None:
        if self._graph is None or not self._graph.fits(self._arithmetic, data):
            self._graph = None  # its memory is free before another one takes as much
            try:
                self._graph = Graph(self._arithmetic, body, state, data)
            except RuntimeError as error:  # what the driver refuses to capture, or has no memory for
                self._refuse(str(error).partition("\n")[0])
        return self._graph

    def _compare(self, number: int, new: Mapping[str, Tensor], compute: Callable[[], Mapping[str, Tensor]]) -> None:
        """Compares a replayed step, bit for bit, with what `compute` makes of the same state without the graph."""
        notes = self._arithmetic.backend.notes
        assert notes is not None
        noted = notes.clone()
        try:
            right = compute()
        except torch.OutOfMemoryError:
            self._cannot_compare()
            notes.copy_(noted)  # those of the replay, which `compute` began to overwrite
            return
        pairs = [(name, tensor, new[name]) for name, tensor in right.items()] + [("the loss", notes[:1], noted[:1])]
        for name, wanted, got in pairs:
            if not torch.equal(*(x.reshape(-1).view(torch.uint8) for x in (wanted, got))):
                raise StateError(
                    f"step {number}: expected its CUDA graph to compute what the same kernels compute without it, got "
                    f"another {name}. Go on from the last checkpoint without graphs (--no-graphs), and report this"
                )

    def _cannot_compare(self) -> None:
        self._graph = None
        self._refuse("there is no memory to compute a step without the graph, too, and compare")

    def _refuse(self, reason: str) -> None:
        self.reason = reason
        warnings.warn(f"steps are not replayed as CUDA graphs: {reason}", stacklevel=4)
