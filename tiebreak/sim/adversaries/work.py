"""Trainers that do less than the agreed work, or hand in other work."""

from collections.abc import Callable
from random import Random
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.capture.compile import MODEL, OPTIMIZER, TELEMETRY
from tiebreak.engine.run.interpreter import Observer
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.program.isa import SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.sim.adversaries.deviations import computes, onward, step_of
from tiebreak.sim.adversaries.forgery import altered
from tiebreak.sim.adversaries.observers import committing, putting, source, state_sources, together
from tiebreak.sim.world.small_task import BATCH, EXAMPLES, STREAM, UNITS
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Workshop

LAYERS: Final = ("hidden", "norm", "head")
_COUNTERS: Final = (f"{MODEL}norm.num_batches_tracked", f"{OPTIMIZER}beta1_power", f"{OPTIMIZER}beta2_power", TELEMETRY)
"""State entries that can be advanced at no cost while nothing is trained."""


def _idle(program: Program, rng: Random) -> Callable[[int], Observer]:
    """Steps that are not computed: the state stays the same, the counters advance, the losses look like training."""
    start, slope = 1.0 + rng.randrange(64) / 128, rng.randrange(1, 8) / 128
    loss = program.body[-1].operands[0].value

    def keep(name: str, new: Tensor, old: Tensor) -> Tensor:
        return new if name in _COUNTERS else old

    def observer(step: int) -> Observer:
        invented = putting({loss: lambda true: torch.full_like(true, start - slope * step)})
        return together(invented, committing(program, keep))

    return observer


def skipped_steps(workshop: Workshop, job: Job, rng: Random) -> Work:
    """Some steps are not executed. They keep the state before them, and their loss is invented."""
    steps = sorted(rng.sample(onward(job, 1), rng.randint(1, job.steps - 1)))
    idle = _idle(workshop.program, rng)
    return altered(workshop, job, steps, idle, computed_steps=job.steps - len(steps))


def fewer_epochs(workshop: Workshop, job: Job, rng: Random) -> Work:
    """Training stops after some epochs, and the last state is committed again until the end."""
    idle, epochs = _idle(workshop.program, rng), job.steps * BATCH // EXAMPLES
    done = rng.randint(1, epochs - 1) * EXAMPLES // BATCH
    return altered(workshop, job, onward(job, done + 1), idle, computed_steps=done)


def frozen_layer(workshop: Workshop, job: Job, rng: Random) -> Work:
    """From a step on, the parameters of one layer and their moments stay as they are."""
    layer, first = rng.choice(LAYERS), step_of(job, rng)

    def freeze(name: str, new: Tensor, old: Tensor) -> Tensor:
        return old if f".{layer}." in name and name not in _COUNTERS else new

    return altered(workshop, job, onward(job, first), lambda _: committing(workshop.program, freeze))


def smaller_model(workshop: Workshop, job: Job, rng: Random) -> Work:
    """Only some of the hidden units are trained, which makes a smaller model than agreed."""
    idle = torch.tensor(sorted(rng.sample(range(UNITS), rng.randint(1, UNITS - 1))))

    def train_others(name: str, new: Tensor, old: Tensor) -> Tensor:
        dim = new.ndim - 1 if ".head." in name else 0  # the head reads the units, the other layers produce them
        if name.endswith("head.bias") or not new.ndim or new.shape[dim] != UNITS:
            return new
        return new.clone().index_copy_(dim, idle, old.index_select(dim, idle))

    return altered(workshop, job, onward(job, 1), lambda _: committing(workshop.program, train_others))


def stale_checkpoint(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A checkpoint holds an older state, and the run goes on from there."""
    step = job.last_step(rng.randrange(job.checkpoints))
    older = workshop.run().state(rng.randrange(step))
    put = committing(workshop.program, lambda name, _new, _old: older[name])
    return altered(workshop, job, (step,), lambda _: put, computed_steps=job.steps - 1)


def copied_checkpoint(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A checkpoint holds the state of somebody else's run, or its parameters."""
    checkpoint, whole = rng.randrange(job.checkpoints), rng.random() < 0.5
    step = job.last_step(checkpoint)
    theirs = workshop.another(_stranger(rng)).state(step)

    def choose(name: str, new: Tensor, _old: Tensor) -> Tensor:
        return theirs[name] if whole or name.startswith(MODEL) else new

    put, saved = committing(workshop.program, choose), job.segment_steps(checkpoint)
    return altered(workshop, job, (step,), lambda _: put, computed_steps=job.steps - saved)


def anothers_run(workshop: Workshop, job: Job, rng: Random) -> Work:
    """Hands in the whole run of another job, with other initial weights or another seed, and computes nothing."""
    program = workshop.program
    if rng.random() < 0.5:
        theirs = workshop.another(_stranger(rng)).initial
        read, steps = {leaf: theirs[name] for leaf, name in state_sources(program).items()}, range(1, 2)
    else:
        read = {source(program, SourceKind.DATA, "seed"): torch.tensor(rng.getrandbits(62))}
        steps = onward(job, 1)
    return altered(workshop, job, steps, lambda _: read.get, computed_steps=0)


def _stranger(rng: Random) -> int:
    """The stream of the stranger's initial weights. There are only a few, so that their runs can be kept."""
    return STREAM + rng.randint(1, 3)


# fmt: off
ADVERSARIES: Final = (
    computes("skipped steps", skipped_steps, "the reward for steps that it did not compute"),
    computes("fewer epochs", fewer_epochs, "the reward for all epochs at the cost of some"),
    computes("frozen layer", frozen_layer, "no gradients and no optimizer for part of the model"),
    computes("smaller model", smaller_model, "the cost of a smaller model for the reward of the agreed one"),
    computes("stale checkpoint", stale_checkpoint, "work that was shown before is paid again"),
    computes("copied checkpoint", copied_checkpoint, "somebody else's work in the place of its own"),
    computes("another's run resubmitted", anothers_run, "the reward for work that was done, and paid, for another job"),
)
# fmt: on
