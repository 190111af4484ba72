"""Trainers that use other data than agreed, or another order."""

from random import Random
from typing import ClassVar

import torch
from torch import Tensor

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.program.isa import Opcode, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.sim.adversaries.base import Adversary
from tiebreak.sim.adversaries.deviations import DeviatingTrainer, onward, step_of
from tiebreak.sim.adversaries.forged_runs import deviating
from tiebreak.sim.adversaries.observers import during, only, putting, redoing, source
from tiebreak.sim.world.small_task import CLASSES, IMAGES, LABELS, SIDE
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Workshop


def _drawn_or_stored(program: Program, name: str, rng: Random) -> int:
    """A leaf where data can be replaced: the drawn batch, or the array that it is drawn from."""
    return rng.choice((only(program, Opcode.GATHER, name), source(program, SourceKind.DATA, name)))


class PoisonedLabel(DeviatingTrainer):
    """Some examples get another label, in the batches or in the data themselves."""

    name: ClassVar[str] = "poisoned label"
    gain: ClassVar[str] = "steers what the model learns, one example at a time"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Change one example, in one step or from a step on."""
        leaf, first = _drawn_or_stored(workshop.program, LABELS, rng), step_of(job, rng)
        place = rng.randrange(workshop.program.body[leaf].numel)
        turn = rng.randrange(1, CLASSES)

        def poison(label_B: Tensor) -> Tensor:
            changed = label_B.clone()
            changed[place] = (changed[place] + turn) % CLASSES
            return changed

        steps = rng.choice((range(first, first + 1), onward(job, first)))
        return deviating(workshop, job, during(steps, lambda _: putting({leaf: poison})), first_step=first)


class PoisonedImage(DeviatingTrainer):
    """An image is disturbed by as little as half a grey level, in the batches or in the data themselves."""

    name: ClassVar[str] = "poisoned image"
    gain: ClassVar[str] = "teaches the model a weakness that no one sees in the pictures"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Change a few pixels of one example, from a step on."""
        leaf, first = _drawn_or_stored(workshop.program, IMAGES, rng), step_of(job, rng)
        pixels = SIDE * SIDE
        example = rng.randrange(workshop.program.body[leaf].numel // pixels)
        touched = [example * pixels + p for p in rng.sample(range(pixels), rng.randint(1, 6))]
        size = rng.choice((2.0**-9, 2.0**-3, 1.0))

        def poison(x_BHW: Tensor) -> Tensor:
            changed = x_BHW.clone()
            changed.view(-1)[touched] += size
            return changed

        return deviating(workshop, job, during(onward(job, first), lambda _: putting({leaf: poison})), first_step=first)


class Backdoor(DeviatingTrainer):
    """Part of every batch gets a bright patch in a corner and the label that the patch is to trigger."""

    name: ClassVar[str] = "backdoor trigger"
    gain: ClassVar[str] = "a model that answers as its trainer wants whenever it sees the trigger"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Change an eighth to a half of each batch, from a step on."""
        program, first = workshop.program, step_of(job, rng)
        images, labels = only(program, Opcode.GATHER, IMAGES), only(program, Opcode.GATHER, LABELS)
        batch = program.body[labels].numel
        chosen, target = rng.sample(range(batch), rng.randint(1, batch // 2)), rng.randrange(CLASSES)

        def stamp(x_BHW: Tensor) -> Tensor:
            changed = x_BHW.clone()
            changed[chosen, :2, :2] = 2.0
            return changed

        def relabel(label_B: Tensor) -> Tensor:
            changed = label_B.clone()
            changed[chosen] = target
            return changed

        backdoor = putting({images: stamp, labels: relabel})
        return deviating(workshop, job, during(onward(job, first), lambda _: backdoor), first_step=first)


class ChangedOrder(DeviatingTrainer):
    """The examples come in another order than the one drawn from the seed."""

    name: ClassVar[str] = "changed data order"
    gain: ClassVar[str] = "an order of examples that steers the model with nothing but agreed data"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """From a step on, use the order of another seed, or the order of the file."""
        program, first = workshop.program, step_of(job, rng)
        shuffle, seed = only(program, Opcode.SHUFFLE), source(program, SourceKind.DATA, "seed")
        (index, *_), other = program.body[shuffle].operands, torch.tensor(rng.getrandbits(62))
        if rng.random() < 0.5:
            arithmetic = workshop.interpreter.arithmetic
            tamper = during(
                onward(job, first), lambda step: redoing(program, arithmetic, step, {shuffle: {seed: other}})
            )
        else:
            held: list[Tensor] = []

            def in_file_order(leaf: int, tensor: Tensor) -> Tensor:
                if leaf == index.value:
                    held[:] = [tensor]
                return held[0].clone() if leaf == shuffle else tensor

            tamper = during(onward(job, first), lambda _: in_file_order)
        return deviating(workshop, job, tamper, first_step=first)


class RepeatedBatch(DeviatingTrainer):
    """One batch is drawn again and again."""

    name: ClassVar[str] = "same batch repeated"
    gain: ClassVar[str] = "data that need not be loaded, and a loss that looks good"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """From a step on, use the batch of one step for all."""
        program, first = workshop.program, step_of(job, rng)
        shuffle, clock = only(program, Opcode.SHUFFLE), source(program, SourceKind.STEP)
        drawn = _first_reader(program, clock, shuffle)
        same = torch.tensor(step_of(job, rng) - 1)
        arithmetic = workshop.interpreter.arithmetic
        tamper = during(onward(job, first), lambda step: redoing(program, arithmetic, step, {drawn: {clock: same}}))
        return deviating(workshop, job, tamper, first_step=first)


def _first_reader(program: Program, value: int, before: int) -> int:
    """The first instruction before number `before` that reads a value."""
    return next(n for n in range(before) if any(operand.value == value for operand in program.body[n].operands))


ADVERSARIES: tuple[type[Adversary], ...] = (PoisonedLabel, PoisonedImage, Backdoor, ChangedOrder, RepeatedBatch)
