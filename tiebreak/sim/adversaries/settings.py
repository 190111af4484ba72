"""Trainers that train with other settings than agreed."""

from collections.abc import Callable, Collection
from random import Random
from typing import ClassVar

import torch
from torch import Tensor

from tiebreak.engine.capture.compile import MODEL, OPTIMIZER
from tiebreak.engine.optimizers.settings import f32
from tiebreak.engine.run.interpreter import Observer
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.program.isa import MapFunction, Opcode, SourceConst, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.sim.adversaries.base import Adversary
from tiebreak.sim.adversaries.deviations import DeviatingTrainer, onward, step_of
from tiebreak.sim.adversaries.forged_runs import deviating
from tiebreak.sim.adversaries.observers import during, only, putting, redoing, source, state_sources
from tiebreak.sim.world.small_task import BETAS, DROPOUT, WEIGHT_DECAY
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Workshop

RATE = "learning_rate"


def constants(program: Program, value: float) -> list[int]:
    """The numbers of the program's float32 constants that have this value."""
    bits = int(torch.tensor(f32(value)).view(torch.int32).item()) & 0xFFFFFFFF
    return [
        n
        for n, i in enumerate(program.body)
        if isinstance(i.params, SourceConst) and i.params.bits == bits and i.dtype.name == "F32"
    ]


def _readers(program: Program, values: Collection[int], origin: str = "") -> dict[int, int]:
    """Maps each instruction that reads one of these values to that value. `origin`: the part of the model to search."""
    return {
        n: operand.value
        for n, i in enumerate(program.body)
        for operand in i.operands
        if operand.value in values and i.origin.startswith(origin)
    }


def _reading(workshop: Workshop, readers: dict[int, int], value: float) -> Callable[[int], Observer]:
    """Makes these instructions read another constant."""
    redone = {n: {read: torch.tensor(value)} for n, read in readers.items()}
    return lambda step: redoing(workshop.program, workshop.interpreter.arithmetic, step, redone)


class ChangedLearningRate(DeviatingTrainer):
    """The steps are longer or shorter than agreed."""

    name: ClassVar[str] = "changed learning rate"
    gain: ClassVar[str] = "a shorter or weaker training sold as the agreed one"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """In one step or from a step on, change the rate in the table or where it is read."""
        program, first = workshop.program, step_of(job, rng)
        leaf = rng.choice((only(program, Opcode.GATHER, RATE), source(program, SourceKind.DATA, RATE)))
        factor = rng.choice((0.0, 0.5, 1.0 + 2.0**-20, 1.5, 10.0))
        steps = rng.choice((range(first, first + 1), onward(job, first)))
        tamper = during(steps, lambda _: putting({leaf: lambda rate: rate * factor}))
        return deviating(workshop, job, tamper, first_step=first)


class WrongScheduleStep(DeviatingTrainer):
    """The schedule is read at another step than the computed one, for instance to leave out the warm-up."""

    name: ClassVar[str] = "wrong step in the schedule"
    gain: ClassVar[str] = "a schedule of its own, made of nothing but agreed rates"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """From a step on, read some steps ahead or behind."""
        program, first = workshop.program, step_of(job, rng)
        rate, clock = only(program, Opcode.GATHER, RATE), source(program, SourceKind.STEP)
        ahead = rng.choice((-3, -2, -1, 1, 2, 3))

        def observer(step: int) -> Observer:
            read = torch.tensor(min(max(step - 1 + ahead, 0), job.steps - 1))
            return redoing(program, workshop.interpreter.arithmetic, step, {rate: {clock: read}})

        return deviating(workshop, job, during(onward(job, first), observer), first_step=first)


class ChangedWeightDecay(DeviatingTrainer):
    """Weights decay by another factor, or not at all."""

    name: ClassVar[str] = "changed weight decay"
    gain: ClassVar[str] = "a model that fits the client's data better and everything else worse"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """From a step on, change the constant, or only where it is read."""
        program, first = workshop.program, step_of(job, rng)
        held, value = constants(program, WEIGHT_DECAY), rng.choice((0.0, 0.01, 0.1))
        if rng.random() < 0.5:
            changes = {leaf: lambda decay: torch.full_like(decay, value) for leaf in held}
            tamper = during(onward(job, first), lambda _: putting(changes))
        else:
            tamper = during(onward(job, first), _reading(workshop, _readers(program, held), value))
        return deviating(workshop, job, tamper, first_step=first)


class ChangedDropoutSeed(DeviatingTrainer):
    """Dropout draws from another seed."""

    name: ClassVar[str] = "changed dropout seed"
    gain: ClassVar[str] = "the run of its choice among many that look alike"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Change the seed, in one step or from a step on."""
        program, first = workshop.program, step_of(job, rng)
        drawn, seed = only(program, Opcode.RANDOM), source(program, SourceKind.DATA, "seed")
        redone = {drawn: {seed: torch.tensor(rng.getrandbits(62))}}
        steps = rng.choice((range(first, first + 1), onward(job, first)))
        arithmetic = workshop.interpreter.arithmetic
        return deviating(
            workshop, job, during(steps, lambda step: redoing(program, arithmetic, step, redone)), first_step=first
        )


class ChangedDropoutRate(DeviatingTrainer):
    """Dropout drops more units than agreed, fewer, or none."""

    name: ClassVar[str] = "changed dropout rate"
    gain: ClassVar[str] = "a model that looks trained sooner"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        program, first = workshop.program, step_of(job, rng)
        kept = {
            n: value
            for n, value in _readers(program, constants(program, 1 - DROPOUT)).items()
            if program.body[n].function == MapFunction.LT
        }
        tamper = during(onward(job, first), _reading(workshop, kept, rng.choice((0.5, 0.875, 1.0))))
        return deviating(workshop, job, tamper, first_step=first)


class ChangedInitialisation(DeviatingTrainer):
    """The first step starts from other weights than the committed ones."""

    name: ClassVar[str] = "changed initialisation"
    gain: ClassVar[str] = "weights that were prepared, for a backdoor or a good look"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Scale one parameter, flip it, or replace one number of it."""
        program = workshop.program
        parameters = {leaf: name for leaf, name in state_sources(program).items() if name.startswith(MODEL)}
        leaf = rng.choice([n for n in parameters if program.body[n].dtype.name == "F32" and program.body[n].shape])
        place, value = rng.randrange(program.body[leaf].numel), rng.randrange(1, 256) / 256

        def replaced(parameter: Tensor) -> Tensor:
            changed = parameter.clone()
            changed.view(-1)[place] = value
            return changed

        change = rng.choice((lambda x: x * 1.5, lambda x: x.flip(0).contiguous(), replaced))
        return deviating(workshop, job, during((1,), lambda _: putting({leaf: change})))


class ChangedBeta(DeviatingTrainer):
    """The optimizer's moments decay by another beta."""

    name: ClassVar[str] = "changed optimizer beta"
    gain: ClassVar[str] = "another optimizer than the agreed one"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """From a step on, change one of the betas. Batch norm may use the same constant, which is left unchanged."""
        program, first = workshop.program, step_of(job, rng)
        which = rng.randrange(len(BETAS))
        readers = _readers(program, constants(program, BETAS[which]), OPTIMIZER)
        tamper = during(onward(job, first), _reading(workshop, readers, rng.choice((0.5, 0.95, 0.99))))
        return deviating(workshop, job, tamper, first_step=first)


class ForgottenMoments(DeviatingTrainer):
    """The optimizer starts again with empty moments, as after a restart from weights alone."""

    name: ClassVar[str] = "forgotten moments"
    gain: ClassVar[str] = "no optimizer state to be kept"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Clear the moments in one step after the first."""
        step, prefix = step_of(job, rng, 2), f"{OPTIMIZER}exp_avg"
        moments = [leaf for leaf, name in state_sources(workshop.program).items() if name.startswith(prefix)]
        tamper = during((step,), lambda _: putting(dict.fromkeys(moments, torch.zeros_like)))
        return deviating(workshop, job, tamper, first_step=step)


ADVERSARIES: tuple[type[Adversary], ...] = (
    ChangedLearningRate,
    WrongScheduleStep,
    ChangedWeightDecay,
    ChangedDropoutSeed,
    ChangedDropoutRate,
    ChangedInitialisation,
    ChangedBeta,
    ForgottenMoments,
)
