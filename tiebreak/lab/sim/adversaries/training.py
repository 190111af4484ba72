"""Trainers that train on other data than agreed, in another order or with other settings, or do less than the work."""

from collections.abc import Callable, Collection
from functools import partial
from random import Random
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.capture.state import MODEL, OPTIMIZER, TELEMETRY
from tiebreak.engine.optimizers.settings import f32
from tiebreak.engine.run.interpreter import Observer
from tiebreak.lab.sim.adversaries import tampering
from tiebreak.lab.sim.adversaries.base import computes, once_or_onward, onward, step_of
from tiebreak.lab.sim.adversaries.tampering import Redone, altered, committing, drawn, putting, redoing, together
from tiebreak.lab.sim.world import small_task
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.workshop import CLASSIFIER, Workshop
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.program.isa import MapFunction, Opcode, SourceConst
from tiebreak.protocol.program.program import Program

CLASSES, UNITS, LABELS, RATE = small_task.CLASSES, small_task.UNITS, small_task.LABELS, "learning_rate"

# ---------------------------------------------------------------- data


def _drawn_or_stored(program: Program, name: str, rng: Random) -> int:
    """The instruction where data can be replaced: the drawn batch, or the array that it is drawn from."""
    return rng.choice((drawn(program, name), tampering.stored(program, name)))


def poisoned_label(workshop: Workshop, job: Job, rng: Random) -> Work:
    """One example gets another label, in a batch or in the data themselves, once or from a step on."""
    index, first = _drawn_or_stored(workshop.program, LABELS, rng), step_of(job, rng)
    place = torch.tensor([rng.randrange(workshop.program.body[index].numel)])
    turn = torch.tensor([rng.randrange(1, CLASSES)])
    poison = {index: lambda label_B: label_B.index_add(0, place, turn) % CLASSES}
    return altered(workshop, job, once_or_onward(job, first, rng), lambda _: putting(poison))


def poisoned_image(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A few pixels of one image are disturbed by as little as half a grey level, from a step on."""
    index, first = _drawn_or_stored(workshop.program, small_task.IMAGES, rng), step_of(job, rng)
    pixels = small_task.SIDE**2
    example = rng.randrange(workshop.program.body[index].numel // pixels)
    touched = torch.tensor([example * pixels + p for p in rng.sample(range(pixels), rng.randint(1, 6))])
    size = torch.tensor(rng.choice((2.0**-9, 2.0**-3, 1.0))).expand(len(touched))
    poison = {index: lambda x_BHW: x_BHW.flatten().index_add(0, touched, size).view_as(x_BHW)}
    return altered(workshop, job, onward(job, first), lambda _: putting(poison))


def backdoor(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A bright patch in a corner, and the label that it is to trigger, for up to half of every batch."""
    program, first = workshop.program, step_of(job, rng)
    images, labels = drawn(program, small_task.IMAGES), drawn(program, LABELS)
    batch = program.body[labels].numel
    chosen, target = torch.tensor(rng.sample(range(batch), rng.randint(1, batch // 2))), rng.randrange(CLASSES)

    def stamp(x_BHW: Tensor) -> Tensor:
        stamped = x_BHW.clone()
        stamped[chosen, :2, :2] = 2.0
        return stamped

    changes = {images: stamp, labels: lambda label_B: label_B.index_fill(0, chosen, target)}
    return altered(workshop, job, onward(job, first), lambda _: putting(changes))


def changed_order(workshop: Workshop, job: Job, rng: Random) -> Work:
    """The examples come in the order of another seed, or in that of the file, from a step on."""
    program, first = workshop.program, step_of(job, rng)
    shuffle, seed = tampering.only(program, Opcode.SHUFFLE), tampering.stored(program, "seed")
    (index, *_), other = program.body[shuffle].operands, torch.tensor(rng.getrandbits(62))
    if rng.random() < 0.5:
        return altered(workshop, job, onward(job, first), _rereading(workshop, {shuffle: {seed: other}}))
    held: list[Tensor] = []

    def in_file_order(leaf: int, tensor: Tensor) -> Tensor:
        if leaf == index.value:
            held[:] = [tensor]
        return held[0].clone() if leaf == shuffle else tensor

    return altered(workshop, job, onward(job, first), lambda _: in_file_order)


def repeated_batch(workshop: Workshop, job: Job, rng: Random) -> Work:
    """The batch of one step is drawn again and again, from a step on."""
    program, first = workshop.program, step_of(job, rng)
    shuffle, clock = tampering.only(program, Opcode.SHUFFLE), tampering.clock(program)
    epoch = next(n for n in range(shuffle) if any(operand.value == clock for operand in program.body[n].operands))
    same = torch.tensor(step_of(job, rng) - 1)
    return altered(workshop, job, onward(job, first), _rereading(workshop, {epoch: {clock: same}}))


# ---------------------------------------------------------------- settings


def constants(program: Program, value: float) -> list[int]:
    """The indices of the program's float32 constants that have this value."""
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


def _rereading(workshop: Workshop, redone: Redone) -> Callable[[int], Observer]:
    """Executes some instructions with other operands."""
    return lambda step: redoing(workshop.program, workshop.interpreter.arithmetic, step, redone)


def _reading(workshop: Workshop, readers: dict[int, int], value: float) -> Callable[[int], Observer]:
    """Makes these instructions read another constant."""
    return _rereading(workshop, {n: {read: torch.tensor(value)} for n, read in readers.items()})


def changed_learning_rate(workshop: Workshop, job: Job, rng: Random) -> Work:
    """The learning rate differs in the table or where it is read, once or from a step on."""
    first = step_of(job, rng)
    index = _drawn_or_stored(workshop.program, RATE, rng)
    factor = rng.choice((0.0, 0.5, 1.0 + 2.0**-20, 1.5, 10.0))
    steps = once_or_onward(job, first, rng)
    return altered(workshop, job, steps, lambda _: putting({index: lambda rate: rate * factor}))


def wrong_schedule_step(workshop: Workshop, job: Job, rng: Random) -> Work:
    """The schedule is read some steps ahead or behind from a step on, for instance to leave out the warm-up."""
    program, first = workshop.program, step_of(job, rng)
    rate, clock = drawn(program, RATE), tampering.clock(program)
    ahead = rng.choice((-3, -2, -1, 1, 2, 3))

    def observer(step: int) -> Observer:
        read = torch.tensor(min(max(step - 1 + ahead, 0), job.steps - 1))
        return redoing(program, workshop.interpreter.arithmetic, step, {rate: {clock: read}})

    return altered(workshop, job, onward(job, first), observer)


def changed_weight_decay(workshop: Workshop, job: Job, rng: Random) -> Work:
    """Weights decay by another factor or not at all from a step on: the constant differs, or only what is read."""
    program, first = workshop.program, step_of(job, rng)
    held, value = constants(program, small_task.WEIGHT_DECAY), rng.choice((0.0, 0.01, 0.1))
    if rng.random() < 0.5:
        changes = {index: lambda decay: torch.full_like(decay, value) for index in held}
        return altered(workshop, job, onward(job, first), lambda _: putting(changes))
    return altered(workshop, job, onward(job, first), _reading(workshop, _readers(program, held), value))


def changed_dropout_seed(workshop: Workshop, job: Job, rng: Random) -> Work:
    """Dropout draws from another seed, once or from a step on."""
    program, first = workshop.program, step_of(job, rng)
    random, seed = tampering.only(program, Opcode.RANDOM), tampering.stored(program, "seed")
    redone = {random: {seed: torch.tensor(rng.getrandbits(62))}}
    return altered(workshop, job, once_or_onward(job, first, rng), _rereading(workshop, redone))


def changed_dropout_rate(workshop: Workshop, job: Job, rng: Random) -> Work:
    """Dropout drops more units than agreed, fewer, or none, from a step on."""
    program, first = workshop.program, step_of(job, rng)
    readers = _readers(program, constants(program, 1 - small_task.DROPOUT))
    kept = {n: value for n, value in readers.items() if program.body[n].function == MapFunction.LT}
    return altered(workshop, job, onward(job, first), _reading(workshop, kept, rng.choice((0.5, 0.875, 1.0))))


def changed_initialisation(workshop: Workshop, job: Job, rng: Random) -> Work:
    """The first step starts from a parameter that is scaled, flipped, or different in one number."""
    program = workshop.program
    parameters = [n for n, name in tampering.state_sources(program).items() if name.startswith(MODEL)]
    index = rng.choice([n for n in parameters if program.body[n].dtype.name == "F32" and program.body[n].shape])
    place, value = torch.tensor([rng.randrange(program.body[index].numel)]), rng.randrange(1, 256) / 256
    change = rng.choice(
        (
            lambda x: x * 1.5,
            lambda x: x.flip(0).contiguous(),
            lambda x: x.flatten().index_fill(0, place, value).view_as(x),
        )
    )
    return altered(workshop, job, (1,), lambda _: putting({index: change}))


def changed_beta(workshop: Workshop, job: Job, rng: Random) -> Work:
    """The optimizer's moments decay by another beta from a step on."""
    program, first = workshop.program, step_of(job, rng)
    beta = small_task.BETAS[rng.randrange(len(small_task.BETAS))]
    readers = _readers(program, constants(program, beta), OPTIMIZER)  # batch norm may use the same constant
    return altered(workshop, job, onward(job, first), _reading(workshop, readers, rng.choice((0.5, 0.95, 0.99))))


def forgotten_moments(workshop: Workshop, job: Job, rng: Random) -> Work:
    """The optimizer starts again with empty moments in one step, as after a restart from weights alone."""
    step, prefix = step_of(job, rng, 2), f"{OPTIMIZER}exp_avg"
    moments = [n for n, name in tampering.state_sources(workshop.program).items() if name.startswith(prefix)]
    return altered(workshop, job, (step,), lambda _: putting(dict.fromkeys(moments, torch.zeros_like)))


# ---------------------------------------------------------------- less work, or other work

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
    idle, epochs = _idle(workshop.program, rng), job.steps * small_task.BATCH // small_task.EXAMPLES
    done = rng.randint(1, epochs - 1) * small_task.EXAMPLES // small_task.BATCH
    return altered(workshop, job, onward(job, done + 1), idle, computed_steps=done)


def frozen_layer(workshop: Workshop, job: Job, rng: Random) -> Work:
    """The parameters of one layer and their moments stay as they are from a step on."""
    layer, first = rng.choice(LAYERS), step_of(job, rng)

    def freeze(name: str, new: Tensor, old: Tensor) -> Tensor:
        return old if f".{layer}." in name and name not in _COUNTERS else new

    return altered(workshop, job, onward(job, first), lambda _: committing(workshop.program, freeze))


def smaller_model(workshop: Workshop, job: Job, rng: Random) -> Work:
    """Some of the hidden units alone are trained, which makes a smaller model than agreed."""
    idle = torch.tensor(sorted(rng.sample(range(UNITS), rng.randint(1, UNITS - 1))))

    def train_others(name: str, new: Tensor, old: Tensor) -> Tensor:
        dim = new.ndim - 1 if ".head." in name else 0  # the head reads the units, the other layers produce them
        if name.endswith("head.bias") or not new.ndim or new.shape[dim] != UNITS:
            return new
        return new.clone().index_copy_(dim, idle, old.index_select(dim, idle))

    return altered(workshop, job, onward(job, 1), lambda _: committing(workshop.program, train_others))


def stale_checkpoint(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A checkpoint holds an older state, from which the run continues."""
    step = job.last_step(rng.randrange(job.checkpoints))
    older = workshop.run.state(rng.randrange(step))
    put = committing(workshop.program, lambda name, _new, _old: older[name])
    return altered(workshop, job, (step,), lambda _: put, computed_steps=job.steps - 1)


def copied_checkpoint(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A checkpoint holds the state, or the parameters, of another run."""
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
        read, steps = {index: theirs[name] for index, name in tampering.state_sources(program).items()}, range(1, 2)
    else:
        read = {tampering.stored(program, "seed"): torch.tensor(rng.getrandbits(62))}
        steps = onward(job, 1)
    return altered(workshop, job, steps, lambda _: read.get, computed_steps=0)


def _stranger(rng: Random) -> int:
    """The stream of the stranger's initial weights. There are only a few, so that their runs can be kept."""
    return small_task.STREAM + rng.randint(1, 3)


_classifies: Final = partial(computes, needs=CLASSIFIER)
# fmt: off
ADVERSARIES: Final = (
    _classifies("poisoned label", poisoned_label, "steers what the model learns, one example at a time"),
    _classifies("poisoned image", poisoned_image, "teaches the model a weakness that no one sees in the pictures"),
    _classifies("backdoor trigger", backdoor, "a model that answers as its trainer wants whenever it sees the trigger"),
    computes("changed data order", changed_order,
        "an order of examples that steers the model with nothing but agreed data"),
    computes("same batch repeated", repeated_batch, "data that need not be loaded, and a loss that looks good"),
    computes("changed learning rate", changed_learning_rate, "a shorter or weaker training sold as the agreed one"),
    computes("wrong step in the schedule", wrong_schedule_step,
        "a schedule of its own, made of nothing but agreed rates"),
    computes("changed weight decay", changed_weight_decay,
        "a model that fits the client's data better and everything else worse"),
    _classifies("changed dropout seed", changed_dropout_seed, "the run of its choice among many that look alike"),
    _classifies("changed dropout rate", changed_dropout_rate, "a model that looks trained sooner"),
    computes("changed initialisation", changed_initialisation,
        "weights that were prepared, for a backdoor or a good look"),
    computes("changed optimizer beta", changed_beta, "another optimizer than the agreed one"),
    computes("forgotten moments", forgotten_moments, "no optimizer state to be kept"),
    computes("skipped steps", skipped_steps, "the reward for steps that it did not compute"),
    _classifies("fewer epochs", fewer_epochs, "the reward for all epochs at the cost of some"),
    _classifies("frozen layer", frozen_layer, "no gradients and no optimizer for part of the model"),
    _classifies("smaller model", smaller_model, "the cost of a smaller model for the reward of the agreed one"),
    computes("stale checkpoint", stale_checkpoint, "work that was shown before is paid again"),
    computes("copied checkpoint", copied_checkpoint, "somebody else's work in the place of its own"),
    computes("another's run resubmitted", anothers_run, "the reward for work that was done, and paid, for another job"),
)
# fmt: on
