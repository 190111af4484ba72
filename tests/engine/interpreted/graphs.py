"""Steps as graphs, without a GPU: a stand-in for CUDA's capture, and runs that go by its replays.

The stand-in records what a step does to memory: operations of torch and launches of kernels, with their numbers and
addresses. What is captured has not been done, so it puts back what it finds changed. A replay begins with other bytes
in all memory that the graph has of its own. The host may read nothing while it records, nor send anything.

With the argument `golden`, golden runs go to their ends, in some minutes.
"""

import itertools
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from tests.engine.arithmetic_cases import forced_integers
from tests.engine.integer_reference import factors
from tests.engine.interpreted import Mutants, Suite, changed, main
from tests.engine.interpreted.integers import FEW, SMALL
from tests.golden.bundle import INTERVAL, STEPS, load
from tests.golden.train import TRAINER, Inputs, inputs, make_run
from tiebreak.engine.arithmetic import Arithmetic, Logging
from tiebreak.engine.arithmetic.gpu import chains, indices, integers, launching, sums
from tiebreak.engine.arithmetic.gpu import operands as reading
from tiebreak.engine.arithmetic.gpu.backend import GpuBackend
from tiebreak.engine.arithmetic.gpu.sums import LaunchedSum
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run import commit, graphs, interpreter, train
from tiebreak.engine.run.interpreter import Interpreter, State
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.program.rounding import SumKind

LAUNCHING = (chains, sums, indices, integers, reading)
UNDEFINED = {"empty", "new_empty", "empty_like", "empty_strided"}
real_launch, real_from_numpy = launching.launch, torch.from_numpy


# ---- the stand-in ----


class Host(TorchFunctionMode):
    """Counts what the engine asks of memory on a CPU that is no operation of torch."""

    ASKING = ("tolist", "numpy", "cpu", "__array__")

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        caller = sys._getframe(1).f_code
        if func.__name__ in self.ASKING and caller.co_filename.startswith(graphs.ENGINE):
            self.seen[f"{func.__name__} in {Path(caller.co_filename).stem}.{caller.co_name}"] += 1
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Callable[[], object]] = []
        self.replays = 0
        self._known: dict[int, Tensor] = {}
        self._own: list[Tensor] = []
        self._outside: list[tuple[Tensor, Tensor]] = []
        """Memory as bytes, by address; that of the graph; that from outside, and what was in it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        assert name != "lift_fresh", "expected nothing from the host, got torch.tensor"
        self.reads((args, kwargs))
        result = func(*args, **kwargs)
        made = self._makes(result)
        if func._schema.is_mutable:
            self.operations.append(partial(func, *args, **kwargs))
        elif made and name not in UNDEFINED:
            self.operations.append(lambda: _into(made, func(*args, **kwargs)))
        return result

    def reads(self, operands: Any) -> None:
        """Remembers what is in memory from outside."""
        for memory in self._new(operands):
            self._outside.append((memory, memory.clone()))

    def _makes(self, result: Any) -> list[Tensor]:
        new = self._new(result)
        self._own += new
        addresses = [memory.data_ptr() for memory in new]
        return [x for x in _tensors(result) if x.untyped_storage().data_ptr() in addresses]

    def _new(self, tree: Any) -> list[Tensor]:
        found = []
        for x in _tensors(tree):
            address = x.untyped_storage().data_ptr()
            if address not in self._known:
                with _disable_current_modes():
                    self._known[address] = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())
                found.append(self._known[address])
        return found

    def launches(self, operands: Any, launch: Callable[[], None]) -> None:
        """Records the launch of a kernel, which reads and writes memory of its operands alone; nothing runs."""
        with _disable_current_modes():
            self.reads(operands)
        self.operations.append(launch)

    def undo(self) -> None:
        """Puts back what is changed outside: what is captured has not been done."""
        for memory, before in self._outside:
            if not torch.equal(memory, before):  # data may be mapped to be read only
                memory.copy_(before)

    def replay(self) -> None:
        self.replays += 1
        for memory in self._own:
            memory.fill_(0xFF)
        for operation in self.operations:
            operation()


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor) and x.numel()]


def _into(made: list[Tensor], again: Any) -> None:
    for x, y in zip(made, _tensors(again), strict=True):
        x.copy_(y)


class Captures:
    def __init__(self) -> None:
        self.made: list[Recorder] = []

    @property
    def replays(self) -> int:
        return sum(recorder.replays for recorder in self.made)

    def __call__(self, _: torch.device, work: Callable[[], None]) -> Callable[[], None]:
        recorder = Recorder()
        self.made.append(recorder)

        def launch(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
            recorder.launches(arguments, partial(real_launch, kernel, programs, *arguments, **options))

        with ExitStack() as stack:
            for module in LAUNCHING:
                stack.enter_context(mock.patch.object(module, "launch", launch))
            stack.enter_context(mock.patch.object(torch, "from_numpy", side_effect=AssertionError("expected no numpy")))
            host, reads = stack.enter_context(Host()), stack.enter_context(graphs.Reads())
            stack.enter_context(recorder)
            work()
        assert not (asked := host.seen + reads.seen), f"expected nothing for the host, got {asked}"
        recorder.undo()
        return recorder.replay


@contextmanager
def captures(changed_graphs: ModuleType = graphs) -> Iterator[Captures]:
    """While this is open, graphs are captured on the CPU."""
    made = Captures()

    def sent(array: Any) -> Tensor:
        torch.zeros(()).item()  # for `Reads`: to a GPU this would be copied
        return real_from_numpy(array)

    with (
        mock.patch.object(torch, "from_numpy", sent),
        mock.patch.object(changed_graphs, "capture", made),
        mock.patch.object(interpreter, "Graphs", changed_graphs.Graphs),
    ):
        yield made


# ---- programs ----


def everything() -> Inputs:
    """A step with every way in which the next state may depend on, or lie in, the state before it."""
    b = Builder()
    f32, i64, many = DType.F32, DType.I64, (40,)
    first, second, third = (b.state(name, f32, many) for name in ("first", "second", "third"))
    left, right = b.state("left", i64, (3,)), b.state("right", i64, (3,))
    moving = b.add(b.scale(third, 0.5), b.mul(b.random(many), b.cast(b.step(), f32)))
    total = b.sum(moving)
    new = {
        "first": b.add(second, b.random(many)), "second": first, "third": moving,  # one goes to another's place
        "left": right, "right": left, "kept": b.state("kept", f32, (7,)),
        "sum": total, "number": b.step(), "constant": b.const(1.5), "data": b.data("data", f32, many),
        "greatest": b.max(moving), "place": b.iota((3,), (2,)),
    }  # fmt: skip
    program = b.finish(new, total)
    r = torch.Generator().manual_seed(1)
    state = {
        name: torch.zeros(shape, dtype=TORCH_DTYPES[dtype]).add_(torch.randint(9, shape, generator=r))
        for name, (dtype, shape) in program.state_spec().items()
    }
    return Inputs(program, state, {"seed": torch.tensor(5), "data": torch.rand(40, generator=r)})


def growing() -> Inputs:
    """A committed sum is no longer finite after some steps."""
    b = Builder()
    x, y = b.state("x", DType.F32, (9,)), b.state("y", DType.F32, (9,))
    program = b.finish({"x": b.scale(x, 2.0**20), "y": y, "z": b.sum(b.mul(x, x))}, b.max(x))
    return Inputs(program, {"x": torch.ones(9), "y": torch.ones(9), "z": torch.zeros(())}, {})


def wide_and_narrow() -> Inputs:
    """A product whose rows, in every other step, would leave much undecided by integers."""
    b = Builder()
    first, second = (b.state(name, DType.F32, (8, 40)) for name in ("first", "second"))
    product = b.matmul(first, b.data("columns", DType.F32, (40, 8)))
    program = b.finish({"first": second, "second": first, "product": product}, b.max(product))
    wide = torch.from_numpy(factors("wide", 8, 40, 8)[0])
    narrow, columns = map(torch.from_numpy, factors("gauss", 8, 40, 8))
    state = {"first": wide, "second": narrow, "product": torch.zeros(8, 8)}
    return Inputs(program, state, {"columns": columns})


# ---- checks ----


def machine_of(made: Inputs, kind: type[Interpreter] = Interpreter, **options: Any) -> Interpreter:
    """Whose steps are graphs; a reason against them is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return kind(made.program, Arithmetic(**options), graphs=True, compares=lambda number: number % 4 == 0)


def copy_of(state: State) -> State:
    return {name: tensor.clone() for name, tensor in state.items()}


def agrees(made: Inputs, count: int, kind: type[Interpreter] = Interpreter, module: ModuleType = graphs) -> int:
    """States and losses of steps are those of plain steps, whatever moves between them."""
    plain, state, data = Interpreter(made.program, Arithmetic()), copy_of(made.state), copy_of(made.data)
    with captures(changed_graphs=module) as captured, warnings.catch_warnings():
        warnings.simplefilter("error")
        machine, mine = machine_of(made, kind), copy_of(state)
        for number in range(1, count + 1):
            right = plain.step(number, state, data)
            if number == 5:  # elsewhere, with other bytes where they were
                data, old = copy_of(data), data
                for tensor in old.values():
                    tensor.zero_()
            if number == 7:
                mine_, notes = machine.arithmetic.chains, machine.arithmetic.chains.notes
                mine_._used = len(notes)
                kind(made.program, machine.arithmetic)
                assert mine_.notes is not notes
            donate = number != 9
            before = copy_of(mine)
            found = machine.step(number, mine, data, donate=donate)
            assert donate or identities(mine) == identities(before)
            assert found.loss_bits == right.loss_bits, number
            assert identities(found.state) == identities(right.state), number
            mine = copy_of(found.state) if number == 11 else found.state
            state = right.state
    assert captured.replays == count - 2 - (count >= 9)
    return captured.replays


def compares(module: ModuleType = graphs) -> int:
    """A graph that does something else is found by a step that is compared, and named."""
    made, replay = everything(), Recorder.replay

    def spoiled(name: str) -> str:
        def wrong(recorder: Recorder) -> None:
            replay(recorder)
            tensors = machine.graphs._graph._state | {"the loss": machine.arithmetic.backend.notes[:1]}
            tensors[name].add_(1)

        with captures(changed_graphs=module), mock.patch.object(Recorder, "replay", wrong):
            machine, state = machine_of(made), copy_of(made.state)
            try:
                for number in range(1, 5):
                    state = machine.step(number, state, made.data, donate=True).state
            except StateError as error:
                return str(error)
        return ""

    for name in ("third", "the loss"):
        said = spoiled(name)
        assert re.match(rf"step 4: .* got another {name}\.", said), said
    return 2


def makes_room(module: ModuleType = graphs) -> int:
    """Where memory is short, a step that is compared goes without its graph, and the next one is captured again."""
    made = everything()
    plain, right = Interpreter(made.program, Arithmetic()), copy_of(made.state)
    free = [9, 5, 3, 9, 5, 4]  # before and after a capture, and before a step is compared; twice
    with captures(changed_graphs=module) as captured, mock.patch.object(module, "spare", side_effect=free):
        machine, mine = machine_of(made), copy_of(made.state)
        for number in range(1, 10):
            right = plain.step(number, right, made.data).state
            mine = machine.step(number, mine, made.data, donate=True).state
            assert identities(mine) == identities(right), number
            assert (machine.graphs._graph is None) == (number in (1, 2, 4)), number
    assert [recorder.replays for recorder in captured.made] == [2, 5]
    return captured.replays


def runs_out(module: ModuleType = graphs) -> int:
    """Where a comparison has no memory, a step has the results of its replay or, without any, those of a plain one."""
    made = everything()

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def fails(*given: Any, **named: Any) -> Any:
            if next(count):
                return real(*given, **named)
            machine.arithmetic.backend.begin_step()  # forgets what the replay noted
            raise torch.OutOfMemoryError

        count = itertools.count()
        return fails

    for what, name in ((Interpreter, "_launch"), (Tensor, "clone")):
        plain, right = Interpreter(made.program, Arithmetic()), copy_of(made.state)
        with captures(changed_graphs=module) as captured, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            machine, mine = Interpreter(made.program, Arithmetic(), graphs=True, compares=(4).__eq__), copy_of(right)
            for number in range(1, 7):
                wanted = plain.step(number, right, made.data)
                with mock.patch.object(what, name, failing(getattr(what, name))) if number == 4 else nullcontext():
                    found = machine.step(number, mine, made.data, donate=True)
                assert found.loss_bits == wanted.loss_bits, (name, number)
                assert identities(found.state) == identities(wanted.state), (name, number)
                right, mine = wanted.state, found.state
        assert [str(one.message) for one in said] == [f"steps are not replayed as CUDA graphs: {machine.graphs.reason}"]
        assert "no memory to compute" in machine.graphs.reason
    return captured.replays


def keeps_one_state(module: ModuleType = graphs) -> int:
    """A graph writes over the tensors that it is given, but for those that lie in the same memory."""
    made = everything()
    plain, right = Interpreter(made.program, Arithmetic()), copy_of(made.state)
    with captures(changed_graphs=module):
        machine, mine = machine_of(made), copy_of(made.state)
        for number in range(1, 6):
            if number == 3:
                mine["second"] = mine["first"]
                given, right = dict(mine), copy_of(mine)
            right = plain.step(number, right, made.data).state
            mine = machine.step(number, mine, made.data, donate=number != 4).state
            assert identities(mine) == identities(right), number
            if number == 3:
                moved = {name for name in mine if mine[name].data_ptr() != given[name].data_ptr()}
                assert moved == {"first", "second"}, moved
    return len(mine)


def is_left_alone(kind: type[Interpreter] = Interpreter) -> int:
    """Data, and states that are not donated, are not written to, also where they are committed with another NaN."""
    made, nan = everything(), torch.tensor(-0x1234, dtype=torch.int32).view(torch.float32)
    made.data["data"][3], made.state["kept"][2] = nan, nan
    given = {"state": copy_of(made.state), "data": copy_of(made.data)}
    found = kind(made.program, Arithmetic()).step(1, made.state, made.data, check_finite=False).state
    for tensors, before in ((made.state, given["state"]), (made.data, given["data"])):
        assert all(tensors[name].numpy().tobytes() == before[name].numpy().tobytes() for name in before)
    places = (("data", 3), ("kept", 2))
    assert [int(found[name].view(torch.int32)[at]) for name, at in places] == [0x7FC00000] * 2
    return len(found)


def fails_alike(kind: type[Interpreter] = Interpreter) -> int:
    made, ends = growing(), []
    for machine in (kind(made.program, Arithmetic()), None):
        with captures():
            one, state = machine or machine_of(made, kind), copy_of(made.state)
            for number in range(1, STEPS):
                try:
                    state = one.step(number, state, {}, donate=True).state
                except StateError as error:
                    ends.append((error.step, error.name))  # type: ignore[attr-defined]
                    break
    assert ends == [(5, "z")] * 2, ends
    return len(ends)


class Late:
    """Commits as late as it may: when the next checkpoint is there."""

    def __init__(self, *_: object) -> None:
        self._todo: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, run: Callable[..., Any], *arguments: Any) -> Future[Any]:
        self._todo.append((Future(), partial(run, *arguments)))
        return self._todo[-1][0]

    def finish(self) -> None:
        for future, run in self._todo:
            future.set_result(run())
        self._todo.clear()


def records_of(
    made: Inputs, machine: Interpreter, until: int, committer: ModuleType = commit
) -> list[tuple[int, str, int]]:
    """Step, state root and loss of each checkpoint of a training that commits as late as possible."""
    late = Late()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(train, "Committer", committer.Committer),
        mock.patch.object(committer, "identities", identities),  # which takes less time
        mock.patch.multiple(
            committer, ThreadPoolExecutor=lambda *_: late, wait=lambda _: late.finish(), _join=lambda _: None
        ),
    ):
        run = make_run(Path(folder) / "run", made)
        Worker(run, machine, key=TRAINER).work(until)
        return [(record.step, record.state_root.hex(), record.loss_bits) for record in run.records()]


def commits_late(committer: ModuleType = commit) -> int:
    """Checkpoints are those of plain steps, although the next ones overwrite the state."""
    made, until = everything(), 2 * INTERVAL
    with captures() as captured:
        found = records_of(made, machine_of(made), until, committer)
        assert found == records_of(made, Interpreter(made.program, Arithmetic()), until)
    assert captured.replays == until - 2
    return until


def refuses() -> int:
    """Whatever the host would wait for, or would have to send, is not captured."""
    x = torch.arange(4.0)
    ways: dict[str, Callable[[], object]] = {
        "item": x.sum().item, "bool": x.sum().__bool__, "int": x.sum().__int__, "nonzero": x.nonzero,
        "unique": lambda: torch.unique(x), "mask": lambda: x[x > 1], "literal": lambda: torch.tensor(1.0),
        "numpy": lambda: torch.from_numpy(np.zeros(3)), "list": lambda: GpuBackend.look(shown, ()),
    }  # fmt: skip
    shown = mock.Mock(chains=mock.Mock(notes=torch.zeros(3, dtype=torch.int64)))
    for name, way in ways.items():
        try:
            Captures()(x.device, lambda way=way: way())
        except AssertionError:
            continue
        raise AssertionError(f"expected {name} to be refused")
    return len(ways)


def falls_back() -> int:
    """What prevents graphs is said once, and steps go on as without."""
    made = everything()
    right = Interpreter(made.program, Arithmetic()).step(1, copy_of(made.state), made.data).loss_bits
    logging = Logging(thresholds={}, tolerances=dict.fromkeys(SumKind, 2))
    refusing = mock.patch.object(graphs, "capture", side_effect=RuntimeError("no memory\nat all"))
    run = LaunchedSum.run
    reading = mock.patch.object(LaunchedSum, "run", lambda *given: run(*given).add_(0 * given[1][0].sum().item()))
    for what, options, words in (
        (nullcontext(), {"permute": 1}, "another order"),
        (nullcontext(), {"logging": logging}, "near ties"),
        (nullcontext(), {"compiled": False}, "do not run on cpu"),
        (reading, {}, "_local_scalar_dense in backend.<lambda>"),
        (refusing, {}, "no memory"),
    ):
        with what, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            machine = Interpreter(made.program, Arithmetic(**options), graphs=True)
            for _ in range(3):
                assert machine.step(1, copy_of(made.state), made.data, donate=True).loss_bits == right
        (one,) = said
        assert words in str(one.message), str(one.message)
        assert str(one.message).endswith(machine.graphs.reason)
    return 5


def reads_once() -> int:
    """The host reads from the device once in a step, and in no instruction; in the first also what no step changes."""
    made = everything()
    machine = Interpreter(made.program, Arithmetic())
    state = machine.step(1, machine.to_device(made.state), made.data).state
    with Host() as host, graphs.Reads() as reads:
        machine.step(2, state, made.data)
    assert (reads.seen.total(), host.seen) == (0, {"tolist in backend.look": 1})
    return 1


def golden(name: str) -> int:
    """The checked-in records of a golden run are reached by replays; how many operations were replayed."""
    made = inputs(name)
    with mock.patch.object(sums, "programs", return_value=1), captures() as captured:  # one program takes less time
        found = records_of(made, machine_of(made), STEPS)
    assert found == list(load(name).expected.records[1:])
    assert captured.replays == STEPS - 2
    return captured.replays * len(captured.made[0].operations)


def by_integers(name: str, until: int) -> int:
    """The checked-in records of a golden run are reached by replays whose products are by integers."""
    run, made = integers.LaunchedIntegers.run, inputs(name)
    watched = mock.patch.object(integers.LaunchedIntegers, "run", autospec=True, side_effect=run)
    one_program = mock.patch.object(sums, "programs", return_value=1)
    with forced_integers(), one_program, watched as ran, captures() as captured:
        found = records_of(made, machine_of(made), until)
    assert found == list(load(name).expected.records[1 : until // INTERVAL + 1])
    assert captured.replays == until - 2
    return ran.call_count


def decides_in_each_step(module: ModuleType = integers) -> int:
    """Each replay decides anew whether integers compute a product."""
    made, run, seen = wide_and_narrow(), module.LaunchedIntegers.run, []

    def watched(*given: Any) -> Tensor:
        seen.append(run(*given))
        return seen[-1]

    changes = {"RATES": {0: (2, 1024)}, "LEAST": 0, "PAYS": 1e9, "MUCH": 1 << 14, "TILE": SMALL, "FACTS": FEW}
    changes |= {"programs": lambda _: 64, "KEPT": 0}  # so there are parts
    with (
        mock.patch.multiple(module, **changes), mock.patch.object(module.LaunchedIntegers, "run", watched),
        mock.patch.object(sums, "choose", module.choose),
        mock.patch.object(sys.modules[__name__], "LAUNCHING", (*LAUNCHING, module)), captures() as captured,
    ):  # fmt: skip
        plain, state = Interpreter(made.program, Arithmetic()), copy_of(made.state)
        machine, mine = Interpreter(made.program, Arithmetic(), graphs=True, compares=lambda _: False), copy_of(state)
        for number in range(1, 9):
            state = plain.step(number, state, made.data).state
            assert (int(seen.pop()) > 0) == (number % 2 == 1)
            mine = machine.step(number, mine, made.data, donate=True).state
            assert (int(seen[-1]) > 0) == (number % 2 == 1), number
            assert identities(mine) == identities(state), number
    assert captured.replays == 6
    return captured.replays


# ---- mutants ----


def steps_by(module: ModuleType) -> object:
    return agrees(everything(), 12, module=module)


def steps_of(module: ModuleType) -> object:
    return agrees(everything(), 12, module.Interpreter)


MUTANTS: Mutants = [
    ("a number in the graph", graphs, steps_by, "self._data, self._before)", "self._data, 0 * self._before + 1)"),
    ("one entry after the other", graphs, steps_by,
     "{name: tensor.clone() for name, tensor in moved", "{name: tensor for name, tensor in moved"),
    ("watched while it plans", graphs, steps_by, "self._steps == 2 and", "self._steps == 1 and"),
    ("the number of the first replay", graphs, steps_by, "self._before.fill_(number - 1)", "pass"),
    ("a state that stays elsewhere", graphs, steps_by, "        self._take(state)\n", ""),
    ("a new state that stays elsewhere", graphs, steps_by, "lambda: self._take(body(", "lambda: dict(body("),
    ("data that moved", graphs, steps_by, "all(data[n] is tensor", "all(data[n] is not None"),
    ("notes that moved", graphs, steps_by, "arithmetic.backend.notes is self._notes", "True"),
    ("the host reads the loss", interpreter, steps_of, "end_step(executor.values[len(self.program.body) - 1])",
     "end_step(executor.values[len(self.program.body) - 1] + 0 * executor.values[0].sum().item())"),
    ("states that are not donated", interpreter, steps_of, "is not None and donate and sums", "is not None and sums"),
    ("the host makes the number", interpreter, steps_of,
     "            return self.before\n", "            return torch.full((), int(self.before))\n"),
    ("checkpoints of what goes on", commit, commits_late, "else tensor.clone()", "else tensor"),
    ("a loss that is not compared", graphs, compares, '+ [("the loss", notes[:1], noted[:1])]', ""),
    ("states that are not compared", graphs, compares, "for name, tensor in right.items()]", "for name, tensor in ()]"),
    ("notes of a comparison that failed", graphs, runs_out, "            notes.copy_(noted)", "            pass"),
    ("a graph that stays", graphs, makes_room, "graph = self._graph = None", "pass"),
    ("two entries in one place", graphs, keeps_one_state, "x if name in own else torch.empty_like(x)", "x"),
    ("a second state", graphs, keeps_one_state, "x if name in own else torch.empty_like(x)", "torch.empty_like(x)"),
    ("data are finalized in place", interpreter, lambda m: is_left_alone(m.Interpreter),
     "{index} if own else self.given", "{index}"),
    ("sums are not finalized", interpreter, lambda m: fails_alike(m.Interpreter),
     "if program.body[index].dtype == DType.F32 and", "if program.body[index].dtype == DType.BOOL and"),
    ("integers: what is loose adds up", integers, decides_in_each_step,
     "torch.full((1,), -(1 << 62) if self._stays else -s.most_loose, dtype=torch.int64, device=device)",
     "vars(self).setdefault('kept', torch.full((1,), -s.most_loose, dtype=torch.int64))"),
    ("integers: the first step decides", integers, decides_in_each_step,
     "return loose\n", "return vars(self).setdefault('first', loose)\n"),
    ("integers: the host decides", integers, decides_in_each_step,
     "return loose\n", "return loose.fill_(int(loose))\n"),
    ("integers: the host sends their numbers", integers, decides_in_each_step,
     "@cached_property\n    def _numbers", "@property\n    def _numbers"),
    ("integers: rows are not measured again", integers, decides_in_each_step, "for at, (size, unit) in enumerate(",
     "for at, (size, unit) in () if next(vars(self).setdefault('runs', iter([0, 0])), 1) else enumerate("),
]  # fmt: skip


def killed() -> dict[str, str]:
    found = {}
    for name, module, check, *changes in MUTANTS:
        try:
            check(changed(changes, module))
        except (AssertionError, UserWarning) as error:
            found[name] = type(error).__name__
    return found


SUITE = Suite(
    fast={"refused": refuses},
    slow={
        "not finite": fails_alike, "reads": reads_once,
        "steps": lambda: agrees(everything(), STEPS), "commits": commits_late, "left alone": is_left_alone,
        "without": falls_back, "compared": compares, "room": makes_room, "runs out": runs_out,
        "one state": keeps_one_state, "integers": decides_in_each_step,
    },
    mutants=MUTANTS,
    killed=killed,
)  # fmt: skip

if __name__ == "__main__":
    main(
        SUITE,
        golden=lambda: (
            {name: golden(name) for name in ("gpt2", "resnet")} | {"vit, by integers": by_integers("vit", 2 * INTERVAL)}
        ),
    )
