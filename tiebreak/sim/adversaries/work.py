"""Trainers that do less than the agreed work, or hand in other work."""

from collections.abc import Callable, Collection
from random import Random
from typing import ClassVar

import torch
from torch import Tensor

from tiebreak.engine.capture.compile import MODEL, OPTIMIZER, TELEMETRY
from tiebreak.engine.run.interpreter import Observer
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.program.isa import SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.sim.adversaries.base import Adversary
from tiebreak.sim.adversaries.deviations import DeviatingTrainer, onward, step_of
from tiebreak.sim.adversaries.forged_runs import deviating
from tiebreak.sim.adversaries.observers import committing, during, putting, source, state_sources, together
from tiebreak.sim.world.small_task import BATCH, EXAMPLES, STREAM, UNITS
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Workshop

LAYERS = ("hidden", "norm", "head")
_COUNTERS = (f"{MODEL}norm.num_batches_tracked", f"{OPTIMIZER}beta1_power", f"{OPTIMIZER}beta2_power", TELEMETRY)
"""State entries that can be advanced at no cost while nothing is trained."""


def _loss(program: Program) -> int:
    """The body value that becomes the step's loss and is copied to the telemetry."""
    return program.body[-1].operands[0].value


def _idle(program: Program, claimed: float) -> Observer:
    """A step that is not computed: the state stays the same, the counters advance, the loss is invented."""

    def invent(loss: Tensor) -> Tensor:
        return torch.full_like(loss, claimed)

    def keep(name: str, new: Tensor, old: Tensor) -> Tensor:
        return new if name in _COUNTERS else old

    return together(putting({_loss(program): invent}), committing(program, keep))


def _made_up(rng: Random) -> Callable[[int], float]:
    """Invented losses that look like training."""
    start, slope = 1.0 + rng.randrange(64) / 128, rng.randrange(1, 8) / 128
    return lambda step: start - slope * step


class SkippedSteps(DeviatingTrainer):
    """Some steps are not executed. They keep the state before them, and their loss is invented."""

    name: ClassVar[str] = "skipped steps"
    gain: ClassVar[str] = "the reward for steps that it did not compute"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Draw the skipped steps."""
        steps, losses = sorted(rng.sample(onward(job, 1), rng.randint(1, job.steps - 1))), _made_up(rng)
        tamper = during(steps, lambda step: _idle(workshop.program, losses(step)))
        return deviating(workshop, job, tamper, first_step=steps[0], computed_steps=job.steps - len(steps))


class FewerEpochs(DeviatingTrainer):
    """Training stops after some epochs, and the last state is committed again until the end."""

    name: ClassVar[str] = "fewer epochs"
    gain: ClassVar[str] = "the reward for all epochs at the cost of some"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Stop after any epoch but the last."""
        epochs, losses = job.steps * BATCH // EXAMPLES, _made_up(rng)
        done = rng.randint(1, epochs - 1) * EXAMPLES // BATCH
        tamper = during(onward(job, done + 1), lambda step: _idle(workshop.program, losses(step)))
        return deviating(workshop, job, tamper, first_step=done + 1, computed_steps=done)


class FrozenLayer(DeviatingTrainer):
    """One layer is never updated."""

    name: ClassVar[str] = "frozen layer"
    gain: ClassVar[str] = "no gradients and no optimizer for part of the model"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """From a step on, keep the layer's parameters and their moments."""
        layer, first = rng.choice(LAYERS), step_of(job, rng)
        tamper = during(onward(job, first), lambda _: committing(workshop.program, _frozen(layer)))
        return deviating(workshop, job, tamper, first_step=first)


def _frozen(layer: str) -> Callable[[str, Tensor, Tensor], Tensor]:
    return lambda name, new, old: old if f".{layer}." in name and name not in _COUNTERS else new


class SmallerModel(DeviatingTrainer):
    """Only some of the hidden units are trained, which makes a smaller model than agreed."""

    name: ClassVar[str] = "smaller model"
    gain: ClassVar[str] = "the cost of a smaller model for the reward of the agreed one"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Leave some units untrained from the first step on."""
        idle = rng.sample(range(UNITS), rng.randint(1, UNITS - 1))
        tamper = during(onward(job, 1), lambda _: committing(workshop.program, _without_units(idle)))
        return deviating(workshop, job, tamper)


def _without_units(idle: Collection[int]) -> Callable[[str, Tensor, Tensor], Tensor]:
    def choose(name: str, new: Tensor, old: Tensor) -> Tensor:
        dim = new.ndim - 1 if ".head." in name else 0  # the head reads the units, the other layers produce them
        if name.endswith("head.bias") or not new.ndim or new.shape[dim] != UNITS:
            return new
        changed, units = new.clone(), torch.tensor(sorted(idle))
        changed.index_copy_(dim, units, old.index_select(dim, units))
        return changed

    return choose


def _putting_state(program: Program, state: dict[str, Tensor]) -> Observer:
    return committing(program, lambda name, _new, _old: state[name])


class StaleCheckpoint(DeviatingTrainer):
    """A checkpoint holds an older state, and the run goes on from there."""

    name: ClassVar[str] = "stale checkpoint"
    gain: ClassVar[str] = "work that was shown before is paid again"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Draw a checkpoint and a state before it."""
        step = job.last_step(rng.randrange(job.checkpoints))
        older = workshop.run().state(rng.randrange(step))
        tamper = during((step,), lambda _: _putting_state(workshop.program, older))
        return deviating(workshop, job, tamper, first_step=step, computed_steps=job.steps - 1)


class CopiedCheckpoint(DeviatingTrainer):
    """A checkpoint holds the state of somebody else's run."""

    name: ClassVar[str] = "copied checkpoint"
    gain: ClassVar[str] = "somebody else's work in the place of its own"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Copy the whole state or only the parameters."""
        checkpoint, whole = rng.randrange(job.checkpoints), rng.random() < 0.5
        step = job.last_step(checkpoint)
        theirs = workshop.another(_stranger(rng)).state(step)

        def choose(name: str, new: Tensor, _old: Tensor) -> Tensor:
            return theirs[name] if whole or name.startswith(MODEL) else new

        tamper = during((step,), lambda _: committing(workshop.program, choose))
        saved = job.segment_steps(checkpoint)
        return deviating(workshop, job, tamper, first_step=step, computed_steps=job.steps - saved)


class AnothersRun(DeviatingTrainer):
    """Hands in the whole run of another job, with other initial weights or another seed."""

    name: ClassVar[str] = "another's run resubmitted"
    gain: ClassVar[str] = "the reward for work that was done, and paid, for another job"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Nothing of the run is computed by this trainer."""
        program = workshop.program
        if rng.random() < 0.5:
            theirs = workshop.another(_stranger(rng)).initial
            read = {leaf: _giving(theirs[name]) for leaf, name in state_sources(program).items()}
            tamper = during((1,), lambda _: putting(read))
        else:
            seed = {source(program, SourceKind.DATA, "seed"): _giving(torch.tensor(rng.getrandbits(62)))}
            tamper = during(onward(job, 1), lambda _: putting(seed))
        return deviating(workshop, job, tamper, computed_steps=0)


def _stranger(rng: Random) -> int:
    """The stream of the stranger's initial weights. There are only a few, so that their runs can be kept."""
    return STREAM + rng.randint(1, 3)


def _giving(tensor: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda _: tensor


ADVERSARIES: tuple[type[Adversary], ...] = (
    SkippedSteps,
    FewerEpochs,
    FrozenLayer,
    SmallerModel,
    StaleCheckpoint,
    CopiedCheckpoint,
    AnothersRun,
)
