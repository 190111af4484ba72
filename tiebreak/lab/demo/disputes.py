"""Part 4 of the demo: cheating trainers and a false challenge, each fought out on and off the chain."""

import time

from rich.console import Console

from tiebreak.lab.demo.results import DisputeResult, Loser, Move, WalkStep
from tiebreak.lab.demo.training import Trained
from tiebreak.lab.sim.adversaries.tampering import (
    Cheat,
    changed_learning_rate,
    flipped_weight_bit,
    long_sums,
    low_precision_sum,
    poisoned_label,
)
from tiebreak.lab.sim.games import disputes
from tiebreak.lab.sim.games.disputes import Arena, Fought, another
from tiebreak.node.pages.words import whole
from tiebreak.protocol.game.moves import Side, kind_name
from tiebreak.protocol.game.sides import describe
from tiebreak.protocol.game.state import GameState, Level


def digits_cheats(arena: Arena) -> list[tuple[str, Cheat]]:
    """The cheats in the image job, as pairs of the thing tampered with and the cheat."""
    program, job = arena.run.program, arena.run.job
    steps, checkpoint = job.steps, job.last_step(job.checkpoints - 2)
    weight = next(name for name in program.state_spec() if name.endswith("head.weight"))
    matrix = next(n for n in long_sums(program, 64) if program.body[n].numel > 64)
    return [
        (
            f"one label of the batch of step {steps - 5}",
            poisoned_label(program, labels="labels", step=steps - 5, element=7, classes=10),
        ),
        (f"the learning rate of step {steps - 9}", changed_learning_rate(program, step=steps - 9, factor=1.5)),
        (
            f"one bit of one weight in the checkpoint of step {checkpoint}",
            flipped_weight_bit(program, state=weight, step=checkpoint, element=123),
        ),
        (
            f"one sum of products of step {steps - 3}: TF32 instead of exact",
            low_precision_sum(step=steps - 3, index=matrix, element=17),
        ),
    ]


def fight(arena: Arena, trained: Trained, number: int, tampered: str, cheat: Cheat, console: Console) -> DisputeResult:
    """Lets a trainer cheat; the auditor, whose replay is honest, challenges its last head."""
    started = time.perf_counter()
    fought = disputes.fight(arena, cheat, another(arena.run.job), str(number))
    return _tell(console, _result(trained, cheat.name, tampered, fought, started, honest_trainer=False))


def false_challenge(arena: Arena, trained: Trained, console: Console) -> DisputeResult:
    """Lets a challenger with a wrong replay attack the honest trainer, and lose its stake."""
    started = time.perf_counter()
    steps = arena.run.job.steps
    mistake = poisoned_label(arena.run.program, labels="labels", step=steps - 5, element=7, classes=10)
    fought = disputes.challenge_falsely(arena, mistake, "challenger")
    tampered = "nothing: the trainer is honest"
    return _tell(console, _result(trained, "false challenge", tampered, fought, started, honest_trainer=True))


def _tell(console: Console, result: DisputeResult) -> DisputeResult:
    console.print(
        f"{result.title}: {result.messages} messages, {result.bytes:,} bytes, {result.gas or 0:,} gas; ended at "
        f"step {result.step}, instruction {result.instruction} ({result.operation}), element {whole(result.element)}; "
        f"{result.python} loses (referee), {result.contract} loses (contract)",
        highlight=False,
    )
    return result


def _result(
    trained: Trained, title: str, tampered: str, fought: Fought, started: float, *, honest_trainer: bool
) -> DisputeResult:
    match = fought.match
    ended = describe(match.final, trained.captured.program, fought.truth)
    return DisputeResult(
        title=title,
        tampered=tampered,
        honest_trainer=honest_trainer,
        job=trained.task.name,
        step=ended.step,
        instruction=ended.leaf,
        operation=ended.instruction or "",
        origin=ended.origin or "",
        element=ended.element,
        committed=ended.committed,
        correct=ended.correct,
        python=_loser(match.loser),
        contract=_loser(match.chain.loser),
        trainer_delta=match.chain.trainer_gain,
        challenger_delta=match.chain.challenger_gain,
        seconds=time.perf_counter() - started,
        moves=tuple(Move(kind=kind_name(m.move), by=m.by.name.lower(), bytes=m.bytes, gas=m.gas) for m in match.moves),
        walk=tuple(_walk_step(match.final, state, chosen.index) for state, chosen in match.selections),
    )


def _walk_step(final: GameState, at: GameState, index: int) -> WalkStep:
    tree, position = at.level.name.lower(), at.below(index)
    note = _narrowed_to(final, at.level, position) if at.height == at.levels else ""
    return WalkStep(tree=tree, height=at.height, levels=at.levels, index=index, position=position, note=note)


def _loser(side: Side) -> Loser:
    return Loser.TRAINER if side is Side.DEFENDER else Loser.CHALLENGER


def _narrowed_to(state: GameState, level: Level, position: int) -> str:
    """Describes what a walk has found once it has reached leaf `position` of the tree of a level."""
    match level:
        case Level.RUN:
            job = state.job
            return f"checkpoint {position + 1}: steps {job.first_step(position)} to {job.last_step(position)}"
        case Level.STEPS:
            return f"step {state.step}"
        case Level.VALUES:
            half = 1 << state.job.half_depth
            return f"instruction {position}" if position < half else f"state entry {position - half}"
        case Level.CHUNKS:
            return f"chunk {position}"
        case Level.TERMS:
            return f"terms {4 * position} to {4 * position + 3}"
