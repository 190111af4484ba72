"""Trainers that learn from other answers than the model's own samples, or show others than they learnt from.

There are three kinds. What is published may be false: then the program itself makes the loss NaN, and the job demands
finite losses, so that the record convicts. What is computed may be something else than what was published, which a game
finds as it finds any false number. And late data that nobody can read are treated as logs are: no receipt, no pay.

The advantages that a trainer declares are no lie, whatever they are: nothing says what they have to be.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.run.interpreter import Observer, State
from tiebreak.lab.sim.adversaries import tampering
from tiebreak.lab.sim.adversaries.base import Catch, computes, onward, step_of
from tiebreak.lab.sim.adversaries.tampering import altered, deviating, during, putting
from tiebreak.lab.sim.world import rollout_task
from tiebreak.lab.sim.world.rollout_task import END, LENGTH, POLICY, REFERENCE, ROWS, VOCABULARY, reward_of
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.workshop import ROLLOUTS, Deviation, Workshop
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.program.isa import DType, Opcode, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import StepLog

TOKENS, MASK, ADVANTAGES = rollout_task.TOKENS, rollout_task.MASK, rollout_task.ADVANTAGES

# ---------------------------------------------------------------- what is published


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledStep:
    """A step of a trainer, and the late data that it should publish."""

    workshop: Workshop
    step: int
    state: State
    """The model and optimizer before this step, from which its rollouts are sampled."""
    late: Mapping[str, Tensor]

    def changed(self, row: int, **changes: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """The late data with a row of some of them changed."""
        found = {name: tensor.clone() for name, tensor in self.late.items()}
        for name, change in changes.items():
            found[name][row] = change(found[name][row])
        return found

    def length(self, row: int) -> int:
        """The number of tokens in an answer, the one that ends it included."""
        return int(self.late[MASK][row].sum())


Forgery = Callable[[SampledStep, Random], Mapping[str, Tensor]]
"""Makes the late data that are published instead."""


def forged(forgery: Forgery, *, first: int = 1, unmarked: bool = False) -> Deviation:
    """One step publishes forged late data and computes with them.

    unmarked: the state and the loss claim nevertheless that all rollouts were samples.
    """

    def attempt(workshop: Workshop, job: Job, rng: Random) -> Work:
        chosen = step_of(job, rng, first)

        def supply(step: int, state: State) -> Mapping[str, Tensor]:
            late = workshop.supply(step, state)
            given = SampledStep(workshop=workshop, step=step, state=state, late=late)
            return forgery(given, rng) if step == chosen else late

        marks = {_mark(workshop.program): torch.ones_like} if unmarked else {}
        claimed = during(onward(job, chosen), lambda _: putting(marks))
        return deviating(workshop, job, claimed, first_step=chosen, supply=supply)

    return attempt


def _mark(program: Program) -> int:
    """The value that becomes the state's word on whether all rollouts were samples."""
    slot = list(program.state_spec()).index(f"{MODEL}rollouts_sampled")
    return program.commits[slot].operands[0].value


def _put(at: int, value: int) -> Callable[[Tensor], Tensor]:
    return lambda row: row.index_fill(0, torch.tensor([at]), value)


def another_token(given: SampledStep, rng: Random) -> Mapping[str, Tensor]:
    """A token of an answer is another one."""
    row = rng.randrange(ROWS)
    at = rng.randrange(given.length(row))
    other = (int(given.late[TOKENS][row, at]) + rng.randrange(1, VOCABULARY)) % VOCABULARY
    return given.changed(row, **{TOKENS: _put(at, other)})


def out_of_range(given: SampledStep, rng: Random) -> Mapping[str, Tensor]:
    """A token of an answer is none of the vocabulary, so that whatever the program gathers for it is NaN."""
    row = rng.randrange(ROWS)
    other = rng.choice((VOCABULARY, VOCABULARY + 1, -1, -100, 1 << 40, -(1 << 63)))
    return given.changed(row, **{TOKENS: _put(rng.randrange(given.length(row)), other)})


def best_of_many(given: SampledStep, rng: Random) -> Mapping[str, Tensor]:
    """The best paid of the answers of several seeds, the job's among them."""
    seeds = [rng.getrandbits(62) for _ in range(rng.randint(1, 4))]
    others = [given.workshop.sampler(seed=seed)(given.step, given.state) for seed in seeds]
    prompts = given.workshop.sampler().prompts(given.step, given.state)
    return max([given.late, *others], key=lambda late: reward_of(late, prompts))


def other_mask(given: SampledStep, rng: Random) -> Mapping[str, Tensor]:
    """A token is left out, or counts twice, or against what it says, or counts behind the end."""
    row, value = rng.randrange(ROWS), rng.choice((0, 2, -1, 1 << 32))
    return given.changed(row, **{MASK: _put(rng.randrange(LENGTH), value)})


def other_length(given: SampledStep, rng: Random) -> Mapping[str, Tensor]:
    """An answer stops before it ends, or goes on after it."""
    row = rng.randrange(ROWS)
    length, other = given.length(row), rng.randint(1, LENGTH)
    kept = (torch.arange(LENGTH) < other).long()
    more = torch.tensor([rng.randrange(1, VOCABULARY) for _ in range(LENGTH)])
    longer = torch.where(torch.arange(LENGTH) < length, given.late[TOKENS][row], more)
    return given.changed(row, **{MASK: lambda _: kept, TOKENS: lambda _: torch.where(kept == 1, longer, END)})


def of_another_step(given: SampledStep, rng: Random) -> Mapping[str, Tensor]:
    """The answers of another step, which the weights before that one gave."""
    other = rng.choice([step for step in onward(given.workshop.run.job, 1) if step != given.step])
    return given.workshop.supply(other, given.workshop.run.state(other - 1))


def of_older_weights(given: SampledStep, _rng: Random) -> Mapping[str, Tensor]:
    """Answers that the weights of the step before gave, such as those of a sampler that lags behind."""
    return given.workshop.supply(given.step, given.workshop.run.state(given.step - 2))


# ---------------------------------------------------------------- what is computed


def other_seed(workshop: Workshop, job: Job, rng: Random) -> Work:
    """All answers are samples, and all noise is drawn, by another seed than that of the job's data."""
    seed = rng.getrandbits(62)
    put = putting({tampering.stored(workshop.program, "seed"): lambda _: torch.tensor(seed)})
    return deviating(workshop, job, lambda _: put, supply=workshop.sampler(seed=seed))


def other_than_published(workshop: Workshop, job: Job, rng: Random) -> Work:
    """The late data are samples as agreed, but in one step the program does not read them."""
    name, step = rng.choice((TOKENS, MASK, ADVANTAGES)), step_of(job, rng)
    late = tampering.only(workshop.program, Opcode.SOURCE, SourceKind.LATE, name)
    place = torch.tensor([rng.randrange(workshop.program.body[late].numel)])
    change = {late: lambda x: x.flatten().index_add(0, place, torch.ones(1, dtype=x.dtype)).view_as(x)}
    return altered(workshop, job, (step,), lambda _: putting(change))


def _of_rows(program: Program) -> tuple[int, int]:
    """The rewards that the program computes, f32 (ROWS), and the advantages that it makes of all rewards."""
    rewards = next(
        n for n, i in enumerate(program.body)
        if (i.opcode, i.dtype, i.shape) == (Opcode.REDUCE, DType.F32, (ROWS,))
    )  # fmt: skip
    declared = tampering.only(program, Opcode.SOURCE, SourceKind.LATE, ADVANTAGES)
    return rewards, next(n for n, i in enumerate(program.body) if any(o.value == declared for o in i.operands))


def better_paid(which: int) -> Deviation:
    """The program's reward of an answer, or its advantage, is another one, in one step. which: 0 or 1."""

    def attempt(workshop: Workshop, job: Job, rng: Random) -> Work:
        leaf, step = _of_rows(workshop.program)[which], step_of(job, rng)
        place, more = torch.tensor([rng.randrange(ROWS)]), torch.tensor([rng.choice((-1.0, 0.25, 1.0))])
        return altered(workshop, job, (step,), lambda _: putting({leaf: lambda x: x.index_add(0, place, more)}))

    return attempt


def swapped_reference(workshop: Workshop, job: Job, rng: Random) -> Work:
    """The reference is the model of the moment from a step on, from which it is never far."""
    entries = {name: leaf for leaf, name in tampering.state_sources(workshop.program).items()}
    own = {leaf: name.replace(REFERENCE, POLICY) for name, leaf in entries.items() if REFERENCE in name}
    held = dict[str, Tensor]()

    def observe(leaf: int, tensor: Tensor) -> Tensor:
        if leaf in own:
            return held[own[leaf]]
        held.update({name: tensor for name, at in entries.items() if at == leaf})
        return tensor

    watch: Observer = observe
    return altered(workshop, job, onward(job, step_of(job, rng, 2)), lambda _: watch)


# ---------------------------------------------------------------- what nobody can read

_FALSE: Final = forged(another_token, unmarked=True)
"""A false run; a game would show where it is false, if its late data could be read."""


def hidden(change: Callable[[dict[str, bytes]], dict[str, bytes]] | None) -> Deviation:
    """A false run that shows other late data than it committed to in the step of its lie; None: no logs at all."""

    def attempt(workshop: Workshop, job: Job, rng: Random) -> Work:
        work = _FALSE(workshop, job, rng)
        if work.lie is None or work.logs is None or change is None:
            return replace(work, logs=None)
        step = work.lie.step
        return replace(work, logs={**work.logs, step: StepLog(late=change(dict(work.logs[step].late)))})

    return attempt


def _replaced(late: dict[str, bytes]) -> dict[str, bytes]:
    return late | {ADVANTAGES: bytes(len(late[ADVANTAGES]))}


def _longer(late: dict[str, bytes]) -> dict[str, bytes]:
    row = DType.I64.size * LENGTH
    return late | {name: late[name] + late[name][:row] for name in (TOKENS, MASK)}


_sampled: Final = partial(computes, needs=ROLLOUTS)
_PARTED: Final = {Catch.PARTED}
_NONFINITE: Final = {Catch.NONFINITE}
# fmt: off
ADVERSARIES: Final = (
    _sampled("forged token", forged(another_token), "a model that learns a sentence which it never wrote", _NONFINITE),
    _sampled("best of many rollouts", forged(best_of_many), "rewards that look like progress", _NONFINITE),
    _sampled("rollouts of another step", forged(of_another_step), "no sampling, for answers are there already",
        _NONFINITE),
    _sampled("rollouts of last step's weights", forged(of_older_weights, first=2),
        "a sampler that need not wait for the weights", _NONFINITE),
    _sampled("forged mask", forged(other_mask), "tokens that count for nothing, or for more", _NONFINITE),
    _sampled("forged length", forged(other_length), "answers that are cut where they go wrong, or made longer",
        _NONFINITE),
    _sampled("token out of range", forged(out_of_range), "numbers from behind a table, or a program that fails",
        _NONFINITE),
    _sampled("forged token and mark", _FALSE, "a state which says that all rollouts were samples"),
    _sampled("re-rolled seed", other_seed, "the run of its choice among many that look alike"),
    _sampled("other late data than published", other_than_published,
        "answers for the public, and others to learn from", {Catch.RECOMPUTED, Catch.NONFINITE}),
    _sampled("forged reward", better_paid(0), "praise for an answer that earned none"),
    _sampled("forged advantage", better_paid(1), "an answer that is learnt although others were better"),
    _sampled("reference model swapped", swapped_reference,
        "a model that may go as far from the agreed one as it likes"),
    _sampled("late data withheld", hidden(None), "the reward for anything at all", _PARTED),
    _sampled("late data replaced after the head", hidden(_replaced),
        "looks as if it learnt from other answers", _PARTED),
    _sampled("late data too long", hidden(_longer), "a file that breaks whoever reads it", _PARTED),
)
# fmt: on
