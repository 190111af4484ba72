"""One run computed by several workers. The first has the run directory and signs; the others follow it step by step.

Workers trust each other: what one of them computes wrongly is wrong in the run, as on one machine.
"""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plan.chains import PreparedChain, Unit
from tiebreak.engine.arithmetic.plan.options import Operands
from tiebreak.engine.distributed.arithmetic import SharedArithmetic
from tiebreak.engine.distributed.layout import share
from tiebreak.engine.distributed.partition import AllGather, Partition, SharedSum
from tiebreak.engine.distributed.plan import joined, reads_state
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter, NotFiniteError, Observer, Planned, State, StepResult, Sums
from tiebreak.engine.run.loop import exact, steps
from tiebreak.engine.run.schedule import slot_name
from tiebreak.engine.run.train import Progress
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.program import Program


@dataclass(kw_only=True, eq=False)
class Together(Planned):
    """One step of a worker: what several exchange is computed together with the others."""

    machine: "SharedInterpreter"

    def execute(self, unit: Unit, chain: PreparedChain | None) -> None:
        arithmetic = self.machine.arithmetic
        if begun := self.machine.begun.get(unit.members[0]):
            arithmetic.begin(*self._asked(begun))
        if isinstance(self.body[unit.members[0]], AllGather | SharedSum):
            self.put(unit, dict(zip(unit.members, arithmetic.together(*self._asked(unit.members)), strict=True)))
            self.narrow |= {n for n in unit.members if self.values[n].dtype == torch.bfloat16}
        else:
            super().execute(unit, chain)

    def _asked(self, indices: Sequence[int]) -> tuple[list[Instruction], list[Operands]]:
        asked = [self.body[n] for n in indices]
        return asked, [[self.values[operand.value] for operand in i.operands] for i in asked]


class SharedInterpreter(Interpreter):
    """Executes the steps of a program together with the other workers. Between steps, it holds shards of the state."""

    arithmetic: SharedArithmetic
    joins = False

    def __init__(self, program: Program, arithmetic: SharedArithmetic) -> None:
        exchange = arithmetic.exchange
        self.partition = Partition(program, exchange.workers)
        # All workers keep one order, because they meet in every exchange. Shares differ in size, so the order is that
        # of the last one, which has the largest.
        planned, self.begun = joined(self.partition.local(exchange.workers - 1))
        super().__init__(self.partition.local(exchange.worker), arithmetic, planned)
        body = self.program.body
        gathers = (i for unit in self.planned for n in unit.members if isinstance(i := body[n], AllGather))
        self._weights = [(i, slot_name(body[i.operands[0].value])) for i in gathers if reads_state(self.program, i)]
        """The weights that a step gathers from the state before it, in order."""
        self._compiles = False  # a rehearsal would exchange sums

    def _executor(self, before: Tensor, state: State, data: State, sums: Sums | None, *, donated: bool) -> Planned:
        return Together(**vars(super()._executor(before, state, data, sums, donated=donated)))

    def to_device(self, tensors: Mapping[str, Tensor]) -> State:
        """This worker's shards of whole entries, on its device."""
        return super().to_device({name: self._shard(tensor) for name, tensor in tensors.items()})

    def _shard(self, tensor: Tensor) -> Tensor:
        if (split := self.partition.state_layout(tensor.shape)) is None:
            return tensor
        begin, end = share(split.size, self.arithmetic.exchange.worker, self.arithmetic.exchange.workers)
        return tensor.reshape(split.size, split.inner)[begin:end].clone()

    def compare(self, facts: Mapping[str, object]) -> None:
        """Raises `ConfigurationError`, on all workers, unless they have the same facts, engine and plan."""
        divided, order = self.partition, ([unit.members for unit in self.planned], self.begun)
        engine = [each.read_bytes() for each in sorted(Path(__file__).parents[1].rglob("*.py"))]
        plan = divided.ways, divided.layouts, divided.told, order
        for name, fact in {"release of tiebreak": engine, **facts, "plan of exchanges": plan}.items():
            mine = int.from_bytes(blake2b(repr(fact).encode(), digest_size=8).digest(), "big", signed=True)
            first, *others = self.arithmetic.collectives.numbers(mine, self.arithmetic.device)
            if wrong := [worker for worker, other in enumerate(others, 1) if other != first]:
                raise ConfigurationError(
                    f"expected the same {name} on all workers, got another on worker {wrong[0]} than on worker 0; "
                    "start all of them with the same release, command and run"
                )

    def starts_at(self, step: int) -> int:
        """The greatest step that any worker asks for; the first one asks for that of its last checkpoint."""
        return self.arithmetic.collectives.greatest([step], self.arithmetic.device)[0]

    def agreed(self, mine: bytes) -> bytes:
        """The bytes of the first worker; the others need to know only their length."""
        return self.arithmetic.collectives.agreed(mine, self.arithmetic.device)

    def whole(self, state: State) -> State:
        """The whole entries on the first worker; on the others, nothing of use."""
        found = {}
        for name, (_, shape) in self.partition.program.state_spec().items():
            split = self.partition.state_layout(shape)
            held = state[name]
            found[name] = held if split is None else self.arithmetic.collectives.collect(held, split)
            if split is None or not self.arithmetic.exchange.worker:
                found[name] = found[name].view(shape)
        return found

    def everywhere(self, state: Mapping[str, Tensor], names: Iterable[str]) -> State:
        """Whole entries, on every worker. All ask for the same ones at the same time."""
        shapes = {name: self.partition.program.state_spec()[name][1] for name in names}
        splits = {name: self.partition.state_layout(shape) for name, shape in shapes.items()}
        collectives = self.arithmetic.collectives
        swaps = {name: collectives.gather(state[name], split) for name, split in splits.items() if split is not None}
        gathered = dict(zip(swaps, collectives.run([*swaps.values()]), strict=True))
        return {name: gathered.get(name, state[name]).view(shape) for name, shape in shapes.items()}

    def step(
        self, number: int, state: State, data: State, observe: Observer | None = None, *, check_finite: bool = True,
        donate: bool = False, sums: Sums | None = None,
    ) -> StepResult:  # fmt: skip
        """Runs a step on shards, as `Interpreter.step` does. All raise `NotFiniteError` if any shard is not finite."""
        if observe is not None or sums is not None:
            raise ConfigurationError("expected one worker where values are observed or sums are logged, got several")
        self.arithmetic.look_ahead((i, state[name]) for i, name in self._weights)
        names, lost, result = [*self.partition.program.state_spec()], 0, None
        try:
            result = super().step(number, state, data, check_finite=check_finite, donate=donate)
        except NotFiniteError as error:
            lost = len(names) - names.index(error.name)
        if check_finite and (first := self.arithmetic.collectives.greatest([lost], self.arithmetic.device)[0]):
            raise NotFiniteError(number, names[len(names) - first])
        assert result is not None
        return result


@dataclass(frozen=True, eq=False)
class SharedWeights(Mapping[str, Tensor]):
    """Weights that the workers hold in shards. All read the same ones at the same time, which makes these whole."""

    interpreter: SharedInterpreter
    state: Mapping[str, Tensor]
    names: Mapping[str, str]
    """The entry of the state for each key."""

    def __getitem__(self, key: str) -> Tensor:
        return self.gather([key])[key]

    def __contains__(self, key: object) -> bool:
        return key in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def gather(self, keys: Sequence[str]) -> dict[str, Tensor]:
        """Several of them, in few messages."""
        found = self.interpreter.everywhere(self.state, [self.names[key] for key in keys])
        return {key: found[self.names[key]] for key in keys}


def follow(
    run: RunDirectory, interpreter: SharedInterpreter, until: int | None, *, check_finite: bool
) -> Generator[tuple[Progress, State]]:
    """Computes, on a worker other than the first, what `Worker.each` computes there."""
    job = run.job
    interpreter.check_job(job)
    step = interpreter.starts_at(0)
    state = interpreter.to_device(run.state(step, narrow=True))
    data = interpreter.place_data(run.data())
    computed = steps(
        interpreter, state, data, range(step + 1, (job.steps if until is None else until) + 1), sums=exact,
        check_finite=check_finite, donate=lambda: True,
    )  # fmt: skip
    del state
    started = time.perf_counter()
    for number, result, _ in computed:
        seconds = time.perf_counter() - started
        if job.ends_segment(number):
            interpreter.whole(result.state)
        progress = Progress(
            step=number, steps=job.steps, loss=result.loss, loss_bits=result.loss_bits, seconds=seconds, resolving=0.0,
            waiting=0.0,
        )  # fmt: skip
        yield progress, result.state
        started = time.perf_counter()
