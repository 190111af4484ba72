"""Checks a capture: the program must be the user's model, and not what a tracer made of it.

Checks 15 to 17 of `rehearsal`'s plan:

15. The task is traced twice, with other seeds, clocks and Python state, and the two programs are compared.
16. Steps 1 and 2 are run on the user's data by the engine and, each from the engine's state, by plain eager PyTorch, in
    FP64 and, to know the model's own noise, in FP32. (In both, `.to(dtype)` counts as written; in FP32 the tensors that
    the model holds in bfloat16 stay so, and autocast counts, which leaves FP64 alone.) Loss, gradients and buffers must
    agree. Eager draws the program's random numbers, in the same order, and keeps its Python state between the steps.
17. torch's own optimizer, in FP64 and FP32, takes the engine's gradients of steps 1 and 2; parameters must agree.

A step with several phases is compared phase by phase, as if each were a step.

What departs is named with the first module whose output departs, or with the first instruction.

Memory bounds the size of a model, so little is held at a time: one step's results in each precision, a few elements of
torch's optimizer, and outputs of modules only once something departs.

All of 16 and 17 runs on one device, since noise and reference are compared with each other. What fails on another one
than the CPU, for want of memory or because the model's code makes tensors on the CPU, begins again on the CPU.
"""

import gc
import random
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from itertools import zip_longest
from math import prod, sqrt
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tiebreak.engine.capture import outcomes
from tiebreak.engine.capture.captured import Captured, capture_in_place, rehearsed, with_state
from tiebreak.engine.capture.draws import GivenDraws
from tiebreak.engine.capture.examples import NamedLoss, Rows
from tiebreak.engine.capture.held import LARGE, HeldWeight, InPlace, is_held
from tiebreak.engine.capture.outcomes import StepOutcome, Tensors, allowance, distance_of, wrong_update
from tiebreak.engine.capture.reach import ROUNDED, UNROUNDED, put_back, settings
from tiebreak.engine.capture.slices import NoSlice, Slice
from tiebreak.engine.capture.state import MODEL, OPTIMIZER
from tiebreak.engine.capture.step_run import CPU, LossModule, exchanged, remembered, replaced, untouched
from tiebreak.engine.capture.task import Task
from tiebreak.engine.capture.user_code import refusal, user_line
from tiebreak.engine.lowering.builder import Ref
from tiebreak.engine.native import release
from tiebreak.engine.optimizers.settings import SGD
from tiebreak.engine.optimizers.translate import TorchOptimizers
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.philox import shuffle
from tiebreak.protocol.program.isa import Access, Instruction, MapFunction, Opcode, ShuffleParams, Slot, SourceKind
from tiebreak.protocol.program.program import Program

SUSPECT: Final = 2.0**-14
"""Results that differ by this share in FP64 and FP32 are compared with both."""
COARSE: Final = 2.0**12
"""The factor of both allowances for a comparison with FP32 if the program rounds to bfloat16."""
MOST: Final = 16
"""The most runs in FP32, from weights and data moved by one rounding, that tell noise from a difference."""
PERTURBED: Final = 3
"""The number of such runs in FP64."""
CLOCKS: Final = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
SHIFT: Final = 86_413
"""Seconds (or nanoseconds) by which clocks are shifted."""

Outputs = list[tuple[str, Tensor]]
"""The output of each call of a module, with the module's path."""
_Python = dict[torch.dtype, Callable[[], None]]
"""Functions that put the model's attributes back as a run in this dtype left them, for its next step."""
_Far = list[tuple[str, float, float]]
"""Name, distance and allowance of results that are too far from a reference."""
RunStep = Callable[[Program, Tensors, int, Tensors, torch.device], tuple[dict[str, Tensor], float]]
"""Computes a step exactly, from the program, its data, the step's number (from 1) and the state before it, on a device.

It returns the state after the step, by the names of the commits, and its loss, finite or not.
"""


def checked(
    task: Task, run_step: RunStep, device: torch.device = CPU, part: Slice | None = None,
    require_memory: Callable[[], None] = lambda: None,
) -> Captured:  # fmt: skip
    """Captures a task and checks the program, on a device if that succeeds there, else on the CPU.

    part: a slice of the task, of which 16 and 17 are then checked; the whole step is then rehearsed without numbers.
    require_memory: raises `ConfigurationError` if it cannot be rehearsed with all numbers, should that be necessary.
    Raises `ConfigurationError` if the program is not the task's own step, `NoSlice` if it is not the slice's with more
    layers.
    """
    if part is None:
        captured: Captured = _on_either(device, task.model, "the step is rehearsed", partial(_captured_twice, task))
        steps, tested, layers = task, captured, list[str]()
    else:
        captured = _captured_hollow(task, require_memory)
        steps, tested = part.task, _of_slice(task, captured, part, device)
        layers = [small for small, own in part.names.items() if part.layers.get(own)]
    # Until all is checked, the state is the model itself.
    comparison = EagerComparison(steps, with_state(steps, tested, copy=False), run_step, layers=layers)
    if part is not None and rounds_to_bf16(tested.program):
        comparison.widest = torch.float32
    _on_either(device, steps.model, "the capture is checked", comparison.refuse_other_steps)
    del tested, comparison  # before the state is copied
    return replace(with_state(task, captured), check="full" if part is None else "slice")


def _on_either(device: torch.device, model: nn.Module, what: str, run: Callable[[torch.device], Any]) -> Any:
    """Runs something on a device or, if anything fails, on the CPU. what: the beginning of a warning, which says so."""
    if device != CPU:
        try:
            forked = torch.random.fork_rng([device], device_type="cuda") if device.type == "cuda" else nullcontext()
            with untouched(model), torch.enable_grad(), without_tf32(), forked:  # TF32 would pass for noise
                return run(device)
        except Exception as error:
            reason = str(error).partition("\n")[0]
        warnings.warn(f"{what} on the CPU, because that failed on {device}: {reason}", stacklevel=3)
    with untouched(model), torch.enable_grad():
        return run(CPU)


def _captured_twice(task: Task, device: torch.device | None) -> Captured:
    """Rehearses the task, captures it twice, and compares the programs. device: as in `StepRun`.

    For another device, the CPU first runs the step without numbers: the traces read what the model then keeps there.
    """
    with untouched(task.model):
        assigned = rehearsed(task, CPU if device == CPU else None)
        free_leftovers(task)
        captured = capture_in_place(task, assigned)
        with disturbed():
            _same_programs(captured, capture_in_place(task, assigned))
    if device not in (CPU, None):
        rehearsed(task, device)
    return captured


def _captured_hollow(task: Task, require_memory: Callable[[], None]) -> Captured:
    """Rehearses and captures a task without numbers, since its slice is rehearsed with them; if that fails, with."""
    with torch.enable_grad():
        try:
            return _captured_twice(task, None)
        except Exception as error:
            failed = error
        try:
            require_memory()
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}. Without its numbers, the step fails: {failed}") from failed
        return _captured_twice(task, CPU)


def free_leftovers(task: Task) -> None:
    """Frees memory that a large task's rehearsal or step left behind; some objects there hold themselves."""
    if sum(parameter.numel() for parameter in task.model.parameters()) > LARGE:
        gc.collect()
    release()


def _of_slice(task: Task, captured: Captured, part: Slice, device: torch.device) -> Captured:
    try:
        run = partial(_captured_twice, part.task)
        found: Captured = _on_either(device, part.task.model, "the slice is rehearsed", run)
    except ConfigurationError as error:
        raise NoSlice(f"expected a model that runs with fewer of its layers, got one that does not: {error}") from error
    part.compare(captured, found, task.model)
    return found


def rounds_to_bf16(program: Program) -> bool:
    """Whether a program rounds to bfloat16."""
    return any(i.is_bf16_sum or (i.opcode, i.function) == (Opcode.MAP, MapFunction.BF16) for i in program.body)


@contextmanager
def without_tf32() -> Iterator[None]:
    """Turns TF32 off for products and convolutions of eager FP32; torch's default turns it on for convolutions."""
    held = settings(ROUNDED)
    try:
        put_back(UNROUNDED, ROUNDED)
        yield
    finally:
        put_back(held, ROUNDED)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Lets torch.autocast do nothing, as it does for FP64."""
    before = torch.autocast.__enter__, torch.autocast.__exit__
    kind: Any = torch.autocast
    kind.__enter__, kind.__exit__ = (lambda context: context), (lambda *_: None)
    try:
        yield
    finally:
        kind.__enter__, kind.__exit__ = before


@contextmanager
def disturbed() -> Iterator[None]:
    """Runs the block with other random streams of Python, NumPy and torch, and other times."""
    random.seed(SHIFT)
    np.random.seed(SHIFT)
    torch.manual_seed(SHIFT)
    clocks = ((name, getattr(time, name)) for name in CLOCKS)
    with replaced(time, **{name: lambda clock=clock: clock() + SHIFT for name, clock in clocks}):
        yield


def _same_programs(first: Captured, second: Captured) -> None:
    for a, b in zip_longest(first.program.body, second.program.body):
        if a != b:
            place = (a or b).origin
            break
    else:
        differing = [n for n, t in first.data.items() if not torch.equal(t, second.data[n])]
        if not differing and first.program == second.program:
            return
        named = (i.origin for i in first.program.body if getattr(i.params, "name", "") in differing)
        place = next(named, "the optimizer")
    raise ConfigurationError(
        f"two captures with different seeds and clocks gave different programs; the first difference is at "
        f"{place}. It reads Python state that changes from step to step, which a program cannot; make that a buffer, a "
        "schedule or data, and draw random numbers with torch"
    )


@dataclass(slots=True)
class EagerComparison:
    """Steps of a task as the engine computes them, and as eager PyTorch does; both on one device."""

    task: Task
    captured: Captured
    run_step: RunStep
    device: torch.device = CPU
    widest: torch.dtype = torch.float64
    """The dtype of runs "in FP64". A slice's that rounds to bfloat16 is FP32, whose own roundings are nothing to that:
    the logits of a large vocabulary, in FP64, take more memory than the model."""
    holds: bool = True
    """Whether eager PyTorch gets large frozen weights as `HeldWeight`, until a model's code cannot bear that."""
    layers: Collection[str] = ()
    """Modules that keep only what they are given for the backward pass, in which they run again."""

    def refuse_other_steps(self, device: torch.device) -> None:
        """Compares steps 1 and 2, and frees what is not needed any more: its memory bounds the size of a model."""
        self.device = device
        task, python = self.task, _Python()
        first = found = self.engine(1, self.captured.state, final=task.steps == 1)
        pieces = (piece for tensor in first[-1].state.values() for piece in torch.split(tensor.flatten(), LARGE))
        if task.steps > 1 and all(bool(torch.isfinite(piece).all()) for piece in pieces):  # others stop it
            found = [*first, *self.engine(2, first[-1].state, final=True)]
        for ours in found:
            ours.before = {name: tensor for name, tensor in ours.before.items() if not name.startswith(OPTIMIZER)}
            ours.state = {name: tensor for name, tensor in ours.state.items() if not name.startswith(OPTIMIZER)}
        # (17) Each optimizer updates the parameters of its phases, in turn.
        turns = dict[str, list[int]]()
        for place, phase in enumerate(task.phases if task.optimizer else ()):
            turns.setdefault(getattr(phase.optimizer, "prefix", ""), []).append(place)
        updated = ((task.phases[own[0]], [f for f in found if f.phase in own]) for own in turns.values())
        wrong = next(filter(None, (wrong_update(phase, results, self.device) for phase, results in updated)), None)
        for ours in found:
            ours.state = {}
        for ours in found:
            python = self._refuse_other_results(ours, python)  # (16)
            ours.gradients = ours.before = {}
        if wrong is not None:
            raise ConfigurationError(wrong)

    def _refuse_other_results(self, ours: StepOutcome, before: _Python) -> _Python:
        """Compares a step with eager PyTorch, of whose runs one is held and the others are freed in turn.

        before: puts back what the model's attributes held before the step; returned is the same for those after it.
        """
        python = before.copy()
        wide, narrow = (self.eager(ours, dtype, python=python) for dtype in (torch.float64, torch.float32))
        assert narrow is not None  # a run in FP32 raises what fails
        dtype, reference = (torch.float32, narrow) if wide is None else (torch.float64, wide)
        noise = {} if wide is None else _with_noise({}, narrow, wide)
        sizes, results = _sizes(reference), reference.results()
        is_suspect = any(far > SUSPECT * sqrt(results[n].numel()) * max(sizes[n]) for n, far in noise.items())
        del results

        def departing(noise: dict[str, float], runs: Sequence[tuple[torch.dtype, int]], least: float = 1.0) -> _Far:
            """The results that are too far from the reference, also by the noise of more and more runs."""
            found = _departing(ours, reference, noise, least)
            for kind, seed in runs:
                if found:
                    noise = _with_noise(noise, self.eager(ours, kind, python=before.copy(), seed=seed), reference)
                    found = _departing(ours, reference, noise, least)
            return found

        # A second look: how far do the model's own results move if its weights move by one rounding? In FP32, large
        # errors may be rare: where batch norm divides by almost nothing, the gradient before it is 0 but for rounding.
        moved = [(torch.float32, seed) for seed in range(MOST)]
        found = departing(noise, [*((dtype, seed) for seed in range(PERTURBED) if wide is not None), *moved])
        if not found and is_suspect:
            # A model may do another thing in FP64, which would pass for noise: it must agree with FP32 as well.
            dtype, reference, wide = torch.float32, narrow, None
            found = departing({}, moved, COARSE if rounds_to_bf16(self.captured.program) else 1.0)
        if found:
            del wide, narrow, reference
            if not self.layers:
                raise ConfigurationError(self._departure(ours, found, dtype, before))
            self.layers = ()  # one may do something else when it runs again
            return self._refuse_other_results(ours, before)
        return python

    def _departure(self, ours: StepOutcome, found: _Far, dtype: torch.dtype, before: _Python) -> str:
        """Describes what departs, where it does so first, and what the user can do."""
        name, distance, allowed = found[0]
        where = f" of phase {ours.phase + 1}" * (len(self.task.phases) > 1)
        if ours.step > 1:
            first = "step 1 agrees, so it reads state"
        elif ours.phase:
            first = "the phases before agree; a phase reads nothing of them but weights and buffers"
        else:
            first = self._first_module(ours, dtype)
        with _Choices() as choices:
            self.eager(ours, torch.float32, python=before.copy())
        return (
            f"the program is not the model: in step {ours.step}, {name}{where} is {distance:.3g} from that of eager "
            f"PyTorch, where {allowed:.3g} is allowed by the model's own rounding ({len(found)} results depart); "
            f"{first}. {choices.found}"
        )

    # The engine's side

    def engine(self, step: int, state: Tensors, *, final: bool = False) -> list[StepOutcome]:
        """The outcome of each phase of a step. final: no step follows, so optimizers' new state is not kept."""
        free_leftovers(self.task)
        program = self.captured.program
        *earlier, last = phases = self.captured.phases
        drawn = {value for phase in phases for value in phase.draws if value is not None}
        read = [r for p in phases for r in (p.loss, *p.gradients.values(), *p.written.values())]
        wanted = drawn | {r.value for r in (*read, *(r for p in earlier for r in p.after.values())) if r is not None}
        kept = (c for c in program.commits if not final or not _entry(c).startswith(OPTIMIZER))
        inputs = {n: _entry(program.body[n]) for n in wanted & {*program.sources(SourceKind.STATE)}}
        more = [_commit(program, number) for number in wanted - inputs.keys()]  # so that the step gives them, too
        looked_at, data = replace(program, commits=(*kept, *more)), {**self.captured.data, **self.task.late}
        after, _ = self.run_step(looked_at, data, step, state, self.device)
        values = {n: state[name] for n, name in inputs.items()}
        values |= {commit.operands[0].value: after.pop(_entry(commit)) for commit in more}
        after |= {name: state[name] for name in program.frozen}  # no copies on another device
        free_leftovers(self.task)

        def tensors(refs: Mapping[str, Ref | None]) -> dict[str, Tensor]:
            return {name: _read(values[ref.value], ref) for name, ref in refs.items() if ref is not None}

        found, model = list[StepOutcome](), self.task.model
        frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
        for place, phase in enumerate(phases):
            new = after
            if phase is not last:
                unread = {name for name, ref in phase.after.items() if ref is None}
                new = {n: t for n, t in {**state, **tensors(phase.after)}.items() if n not in unread}
            buffers = {n: new[MODEL + n] for n, _ in model.named_buffers() if MODEL + n in new}
            buffers |= {n: new[MODEL + n] for n in frozen if new[MODEL + n] is not state[MODEL + n]}
            buffers |= tensors(phase.written)
            numbers = [None if value is None else values[value] for value in phase.draws]
            loss, gradients = _read(values[phase.loss.value], phase.loss), tensors(phase.gradients)
            found.append(StepOutcome(loss, gradients, buffers, step, place, state, new, numbers))
            state = {**state, **new}
        return found

    def _batches(self, step: int) -> tuple[list[tuple[Tensor, ...]], int]:
        """The batches of a step (from 0), by section 7 of the specification in integers, and their losses' divisor."""
        task = self.task
        shuffles = (i.params.stream for i in self.captured.program.body if isinstance(i.params, ShuffleParams))
        stream = next(shuffles, 0)  # without a shuffle, no batch is read
        n, size = task.batch.drawn(task.examples), task.batch.size
        draws = range(step * size * task.accumulation, (step + 1) * size * task.accumulation)
        order = partial(shuffle, seed=task.seed, n=task.examples, stream=stream)
        chosen = [order(g % n, epoch=g // n) if task.batch.shuffled else g % n for g in draws]
        parts = [torch.tensor(chosen[start : start + size]) for start in range(0, len(chosen), size)]
        divisor = task.accumulation if task.items is None else int(task.data[task.items][chosen].sum())
        late = task.parts(task.late)
        return [
            (*task.batch.examples.take(task.data, part), *more) for part, more in zip(parts, late, strict=True)
        ], divisor

    # Eager PyTorch's side

    def eager(
        self, ours: StepOutcome, dtype: torch.dtype, *, python: _Python | None = None,
        seed: int | None = None, outputs: Outputs | None = None,
    ) -> StepOutcome | None:  # fmt: skip
        """A step of plain PyTorch from the state that the engine's step was given. None if FP64 fails on the CPU.

        python: puts back what the model's attributes held after the step before; here, those after this step are kept.
        seed: moves every weight, and the data, by one rounding. outputs: gets the outputs of all modules.
        """
        free_leftovers(self.task)
        model, default, held = self.task.model, torch.get_default_dtype(), {} if python is None else python
        narrow = nullcontext() if self._dtype(dtype) == dtype else without_autocast()
        torch.set_default_dtype(self._dtype(dtype))
        try:
            with untouched(model), sdpa_kernel(SDPBackend.MATH), torch.compiler.set_stance("force_eager"), narrow:
                held.get(dtype, lambda: None)()
                found = self._eager_step(ours, dtype, seed, outputs)
                held[dtype] = remembered(model)
        except ConfigurationError:
            raise
        except Exception as error:
            if self.holds:
                self.holds = False
                again = self.eager(ours, dtype, python=python, seed=seed, outputs=outputs)
                self.holds = again is None  # it was not for that
                return again
            if dtype == torch.float64 and self.device == CPU:
                return None
            raise refusal(error, model, "step 1 or 2 fails in plain PyTorch", "mend it first") from error
        finally:
            torch.set_default_dtype(default)
        return found

    def _dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.widest if dtype == torch.float64 else dtype

    def _eager_step(
        self, ours: StepOutcome, dtype: torch.dtype, seed: int | None, outputs: Outputs | None
    ) -> StepOutcome:
        task, device = self.task.phases[ours.phase], self.device
        parameters, losses = dict(task.model.named_parameters()), list[Any]()
        batches, divisor = self._batches(ours.step - 1)
        kept, computed = outcomes.dtypes_of(task, dtype), self._dtype(dtype)
        fixed = {n for n, p in parameters.items() if self.holds and n not in ours.buffers and is_held(p)}
        own = {
            MODEL + n: (HeldWeight if n in fixed and seed is None else partial(_moved, seed=seed))(
                ours.before[MODEL + n].to(device), kept.get(n, computed)
            )
            for n in (*parameters, *dict(task.model.named_buffers()))
        }
        for name, parameter in parameters.items():
            own[MODEL + name] = nn.Parameter(own[MODEL + name], parameter.requires_grad)
        cast = [[_moved(t.to(device), computed, seed) for t in batch] for batch in batches]  # before draws are watched
        step = LossModule(task.model, partial(_by_name, task))
        default = nullcontext() if device == CPU else device
        watching: Any = nullcontext([]) if outputs is None else _outputs(task.model, outputs)
        with default, self._recomputed(ours), InPlace(), GivenDraws(ours.drawn) as draws, watching as collected:
            for batch in cast:
                collected.clear()
                with exchanged(step, own):
                    losses.append(step(*batch) / divisor)
                    count = len(collected)
                    if losses[-1].requires_grad:
                        losses[-1].backward()
                    del collected[count:]  # a checkpointed part has called its modules again
                own |= {MODEL + name: t.detach() for name, t in step.assigned.items()}
        draws.check_all_drawn()
        # An optimizer that changes a parameter reads its gradient.
        o = task.optimizer
        held = {n for n, p in parameters.items() if not isinstance(o, TorchOptimizers) or o.holds(p)}
        read = [n for n, p in parameters.items() if p.requires_grad and (n in ours.gradients or n in held)]
        gradients = {n: g for n in read if (g := own[MODEL + n].grad) is not None}
        weights = {n: (own[MODEL + n], ours.before[MODEL + n]) for n in parameters.keys() - fixed}
        written = [
            n for n, pair in sorted(weights.items()) if n in ours.buffers or (seed is None and distance_of(*pair) > 0)
        ]
        read_later = [name for name, _ in task.model.named_buffers() if name in ours.buffers]
        buffers = {name: own[MODEL + name] for name in (*read_later, *written)}
        return StepOutcome(torch.stack(losses).sum().detach(), gradients, buffers)

    def _recomputed(self, ours: StepOutcome) -> ExitStack:
        """A context in which `layers` run again in backward, but for those that would write to buffers twice."""
        stack, written = ExitStack(), [n for n, t in ours.buffers.items() if t is not ours.before[MODEL + n]]
        for path in self.layers if self.holds else ():
            if not any(name.startswith(f"{path}.") for name in written):
                layer = self.task.model.get_submodule(path)
                stack.enter_context(replaced(layer, forward=partial(checkpoint, layer.forward, use_reentrant=False)))
        return stack

    def _first_module(self, ours: StepOutcome, dtype: torch.dtype) -> str:
        """Captures the task again with every module's output as state, and says which is the first that departs."""
        noise, wanted = dict[int, float](), Outputs()
        try:
            self.eager(ours, dtype, outputs=wanted)
            for kind, seed in ((torch.float32, None), *((dtype, seed) for seed in range(PERTURBED))):
                found = Outputs()
                self.eager(ours, kind, seed=seed, outputs=found)
                for number, ((_, tensor), (_, other)) in enumerate(zip(wanted, found, strict=False)):
                    noise[number] = max(noise.get(number, 0.0), distance_of(other, tensor))
        except ConfigurationError:
            return (
                "no module can be named, since the model does not run while its modules are observed (a frozen "
                "nn.TransformerEncoder then needs enable_nested_tensor=False)"
            )
        task, model = self.task.phases[ours.phase], nn.Module()
        model.inner = task.model
        for number, (_, tensor) in enumerate(wanted):
            model.register_buffer(f"probe{number}", torch.zeros(tensor.shape))

        def loss(probed: Any, *batch: Tensor) -> Tensor:
            with _outputs(probed.inner, []) as found:
                value = task.loss(probed.inner, *batch)
            for number, (_, tensor) in enumerate(found):
                setattr(probed, f"probe{number}", tensor.float())
            return value

        probed = replace(task, model=model, loss=loss, optimizer=SGD(lr=1.0), clip=None, average=None)
        try:
            again = with_state(probed, capture_in_place(probed), copy=False)
            buffers = replace(self, task=probed, captured=again).engine(1, again.state)[0].buffers
        except ConfigurationError as error:
            return f"the module cannot be told ({error})"
        for number, (path, tensor) in enumerate(wanted):
            allowed = allowance(tensor.numel(), outcomes.size_of(tensor), noise=noise.get(number, 0.0))
            if not distance_of(buffers[f"probe{number}"], tensor) <= allowed:
                return f"the first module whose output departs is {path or 'the model itself'}"
        return "every module's output agrees, so it is in the loss, in a buffer or in the backward pass"


class _Choices(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first operator that chooses among equal values, and so not as PyTorch says it does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = self._begun = 'Please report this with the model; check="none" skips the check'
        """Advice for a user whose check fails; an operator that chooses among equal values replaces it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        is_first = self.found is self._begun and not (kwargs or {}).get("stable")
        if name in ("topk", "kthvalue", "sort") and is_first:
            dim = next((value for value in args[1 if name == "sort" else 2 :] if type(value) is int), -1)
            if args[0].dim() and bool((args[0].sort(dim).values.diff(dim=dim) == 0).any()):
                self.found = (
                    f"At {user_line(sys._getframe(1))}, `{name}` chooses among equal values, and PyTorch does not say "
                    "which: let them differ (begin a router with random weights), or take the first of "
                    "`sort(descending=True, stable=True)`"
                )
        return func(*args, **(kwargs or {}))


def _with_noise(noise: Mapping[str, float], other: StepOutcome | None, reference: StepOutcome) -> dict[str, float]:
    """The noise of each result, which is at least the distance between two runs of eager PyTorch."""
    results, found = {} if other is None else other.results(), dict(noise)
    for name, wanted in reference.results().items():
        if name in results:
            found[name] = max(found.get(name, 0.0), distance_of(results[name], wanted))
    return found


def _sizes(outcome: StepOutcome) -> dict[str, tuple[float, float]]:
    """The size of each result, and that of the largest gradient if it is a gradient, else 0."""
    sizes = {name: outcomes.size_of(tensor) for name, tensor in outcome.results().items()}
    largest = max((size for name, size in sizes.items() if name.startswith("the gradient")), default=0.0)
    return {name: (size, largest if name.startswith("the gradient") else 0.0) for name, size in sizes.items()}


def _departing(ours: StepOutcome, reference: StepOutcome, noise: Mapping[str, float], least: float) -> _Far:
    """Name, distance and allowance of each result that is too far from the reference."""
    mine, results, sizes = ours.results(), reference.results(), _sizes(reference)
    found = []
    for name, wanted in results.items():
        allowed = allowance(wanted.numel(), *sizes[name], noise=noise.get(name, 0.0), least=least)
        distance = distance_of(mine[name], wanted) if name in mine else float("inf")
        if not distance <= allowed:
            found.append((name, distance, allowed))
    extra = ((name, distance_of(t, torch.zeros_like(t))) for name, t in mine.items() if name not in results)
    return found + [(name, distance, 0.0) for name, distance in extra if distance > 0]


def _entry(leaf: Instruction) -> str:
    """The name of the state entry that an instruction reads or commits."""
    assert isinstance(leaf.params, Slot)
    return leaf.params.name


def _commit(program: Program, number: int) -> Instruction:
    """An instruction that commits a value of the body under its number."""
    value = program.body[number]
    strides = tuple(prod(value.shape[d + 1 :]) for d in range(len(value.shape)))
    access, slot = Access(number, 0, strides), Slot(slot=number, name=f"value {number}")
    return Instruction(opcode=Opcode.COMMIT, dtype=value.dtype, shape=value.shape, operands=(access,), params=slot)


def _read(value: Tensor, ref: Ref) -> Tensor:
    if all(stride >= 0 for stride in ref.strides):
        return value.flatten().as_strided(ref.shape, ref.strides, ref.offset)
    index = torch.tensor(ref.offset, device=value.device)
    for size, stride in zip(ref.shape, ref.strides, strict=True):
        index = index[..., None] + torch.arange(size, device=value.device) * stride
    return value.flatten()[index]


def _by_name(task: Task, model: nn.Module, *batch: Tensor) -> Tensor:
    """Calls the user's own loss, with each array of `Rows` by its name where that is possible."""
    examples, loss = task.batch.examples, task.loss.loss if isinstance(task.loss, NamedLoss) else task.loss
    given = dict(zip((*examples.names, *task.late), batch, strict=True)) if isinstance(examples, Rows) else {}
    try:
        signature(loss).bind(model, **given)
    except (TypeError, ValueError):  # it takes them by position
        return task.loss(model, *batch)
    return loss(model, **given) if given else loss(model, *batch)


@contextmanager
def _outputs(model: nn.Module, found: Outputs) -> Iterator[Outputs]:
    """Collects the first tensor of what each module returns."""

    def keep(path: str, output: Any) -> None:
        while isinstance(output, tuple | list | dict) and output:
            output = next(iter(output.values() if isinstance(output, dict) else output))
        if isinstance(output, Tensor) and output.is_floating_point():
            found.append((path, output.detach()))

    hooks = [
        module.register_forward_hook(lambda _m, _i, output, path=path: keep(path, output))
        for path, module in model.named_modules()
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _moved(tensor: Tensor, dtype: torch.dtype, seed: int | None) -> Tensor:
    """A copy of a tensor in another dtype, with a seed moved by one rounding; of integers and bools, the same."""
    if not tensor.is_floating_point():
        return tensor.to(dtype, copy=True) if not dtype.is_floating_point else tensor.clone()
    if seed is None:
        return tensor.to(dtype, copy=True)
    signs = torch.randint(0, 2, tensor.shape, generator=torch.Generator().manual_seed(seed)).to(tensor.device) * 2 - 1
    signs = signs.where(tensor.frac() != 0, signs.clamp(min=0))  # whole numbers in data may become integers
    return tensor.to(dtype) * (1 + signs * max(2.0**-23, torch.finfo(dtype).eps)).to(dtype)
