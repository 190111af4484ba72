"""Part 4 of the demo: cheating trainers and a false challenge, each fought out on and off the chain."""

import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from engine.auditing import compare
from engine.evidence import Evidence
from engine.storage import RunDirectory
from engine.training import Worker
from protocol.errors import StateError
from protocol.game import GameState, Level
from protocol.job import SignedHead, SignedJob
from protocol.moves import Side
from protocol.player import Oracle, describe
from sim.adversaries import (
    Cheat,
    changed_learning_rate,
    flipped_weight_bit,
    long_sums,
    low_precision_sum,
    poisoned_label,
)
from sim.forgery import ForgedEvidence
from sim.market import Market, another, fork
from sim.match import Match, Selection, play, replay_on_chain, signed_messages
from tiebreak.demo.training import Trained
from tiebreak.results import DisputeResult, Loser, Move, WalkStep


@dataclass(frozen=True, slots=True)
class Arena:
    """What every dispute about one job shares: the honest run, the auditor's replay of it, the market."""

    market: Market
    trained: Trained
    replay: RunDirectory
    folder: Path


def digits_cheats(arena: Arena) -> list[tuple[str, Cheat]]:
    """The cheats of the image job: (what was tampered with, the cheat)."""
    program, steps = arena.trained.compiled.program, arena.trained.task.steps
    last = arena.trained.run.job
    checkpoint = last.last_step(last.checkpoints - 2)
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
            low_precision_sum(step=steps - 3, leaf=matrix, element=17),
        ),
    ]


def fight(arena: Arena, number: int, tampered: str, cheat: Cheat, console: Console) -> DisputeResult:
    """A trainer cheats; the auditor, whose replay is honest, challenges its last head."""
    started = time.perf_counter()
    market, honest = arena.market, arena.trained
    agreement = market.sign(another(honest.agreement.job))
    market.open(agreement)
    job = agreement.job
    before = job.first_step(job.checkpoint_of(cheat.step)) - 1
    cheating = fork(honest.run, arena.folder / f"cheat-{number}", agreement, upto=before)
    worker = Worker(cheating, honest.interpreter, key=market.parties.trainer, tamper=cheat.tamper)
    worker.work()
    head = cheating.heads()[-1]
    market.post(head)
    own = fork(arena.replay, arena.folder / f"audit-{number}", agreement, upto=job.steps)
    if compare(own, head).agrees:
        raise StateError(f"{cheat.name}: expected a run that differs from the honest one, got the same root")
    defender = ForgedEvidence(cheating, honest.interpreter, cheat)
    challenger = Evidence(own, honest.interpreter)
    match = _play(market, agreement, head, defender, challenger)
    seconds = time.perf_counter() - started
    result = _result(arena, cheat.name, tampered, match, challenger, honest_trainer=False, seconds=seconds)
    _tell(console, result)
    return result


def false_challenge(arena: Arena, console: Console) -> DisputeResult:
    """A challenger with a wrong replay attacks the honest trainer, and pays for it."""
    started = time.perf_counter()
    market, honest = arena.market, arena.trained
    cheat = poisoned_label(honest.compiled.program, labels="labels", step=honest.task.steps - 5, element=7, classes=10)
    before = honest.run.job.first_step(honest.run.job.checkpoint_of(cheat.step)) - 1
    wrong = fork(honest.run, arena.folder / "false-challenger", honest.agreement, upto=before)
    Worker(wrong, honest.interpreter, tamper=cheat.tamper).work()
    defender = Evidence(honest.run, honest.interpreter)
    challenger = Evidence(wrong, honest.interpreter, cheat.tamper)
    match = _play(market, honest.agreement, honest.head, defender, challenger)
    tampered, seconds = "nothing: the trainer is honest", time.perf_counter() - started
    result = _result(arena, "false challenge", tampered, match, defender, honest_trainer=True, seconds=seconds)
    _tell(console, result)
    return result


def _play(market: Market, agreement: SignedJob, head: SignedHead, defender: Oracle, challenger: Oracle) -> Match:
    match = play(agreement, head, defender, challenger, signed_messages(market, agreement, head))
    return replay_on_chain(market, agreement, head, match)


def _tell(console: Console, result: DisputeResult) -> None:
    console.print(
        f"{result.title}: {result.messages} messages, {result.bytes:,} bytes, {result.gas or 0:,} gas; ended at "
        f"step {result.step}, instruction {result.instruction} ({result.operation}), element {result.element}; "
        f"{result.python} loses (referee), {result.contract} loses (contract)",
        highlight=False,
    )


def _result(
    arena: Arena, title: str, tampered: str, match: Match, truth: Oracle, *, honest_trainer: bool, seconds: float
) -> DisputeResult:
    assert match.chain is not None  # `_play` plays on the chain too
    ended = describe(match.final, arena.trained.compiled.program, truth)
    return DisputeResult(
        title=title,
        tampered=tampered,
        honest_trainer=honest_trainer,
        job=arena.trained.task.name,
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
        seconds=seconds,
        moves=tuple(
            Move(kind=m.move.KIND.name.lower(), by=m.by.name.lower(), bytes=m.bytes, gas=m.gas) for m in match.moves
        ),
        walk=tuple(_walk_step(match.final, s) for s in match.selections),
    )


def _walk_step(final: GameState, s: Selection) -> WalkStep:
    note = _note(final, s.level, s.position) if s.height == s.levels else ""
    return WalkStep(
        tree=s.level.name.lower(), height=s.height, levels=s.levels, index=s.index, position=s.position, note=note
    )


def _note(state: GameState, level: Level, position: int) -> str:
    """What is narrowed down once a leaf of a tree is reached."""
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


def _loser(side: Side) -> Loser:
    return Loser.TRAINER if side is Side.DEFENDER else Loser.CHALLENGER
