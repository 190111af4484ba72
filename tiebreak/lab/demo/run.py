"""Runs the demo, from its first line to its report, and prints its result."""

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape

from tiebreak.api.builtin.loader import load_task
from tiebreak.api.machine.environment import describe
from tiebreak.lab.demo import report, training
from tiebreak.lab.demo.plain import plain_runs
from tiebreak.lab.demo.results import DemoResult, DisputeResult, Loser, Move, WalkStep
from tiebreak.lab.demo.training import Trained
from tiebreak.lab.sim.adversaries import tampering
from tiebreak.lab.sim.adversaries.tampering import Cheat
from tiebreak.lab.sim.games import disputes
from tiebreak.lab.sim.games.disputes import Arena, DisputeMarket, Fought
from tiebreak.node.pages.words import whole
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.game import sides
from tiebreak.protocol.game.moves import Side, kind_name
from tiebreak.protocol.game.state import GameState, Level

MARKER = ".tiebreak-demo"
"""Marks a folder that a demo made, so that the next demo may empty it."""
JOBS = ("digits", "text")


def heading(console: Console, number: int, title: str) -> None:
    """Prints the heading of one part of the demo."""
    console.print(f"\n[bold]{number}. {escape(title)}[/bold]", highlight=False)


def run_demo(output: Path, console: Console, *, steps: int | None = None) -> DemoResult:
    """Runs the whole demo in `output` (emptied if an earlier demo made it) and writes the report there.

    steps: of each job, instead of the task's own; at least 13, so that there is a lie before the last checkpoint.
    """
    started = time.perf_counter()
    _prepare(output)
    heading(console, 1, "Agree: two jobs, captured as programs, signed by client and trainer")
    market = DisputeMarket()
    tasks = [load_task(name, steps=steps) for name in JOBS]
    # A week to challenge: the games are played one after the other, and the proof of each waits for six hours.
    terms = Terms(descent_levels=2, challenge_window=7 * 24 * 3600)
    agreed = [training.agree(market, task, output / "runs" / task.name, console, terms) for task in tasks]
    heading(console, 2, "Train: policy exact, a signed head at every checkpoint, posted to the chain")
    trained = [
        training.train(market, task, compiled, run, console)
        for task, (compiled, run) in zip(tasks, agreed, strict=True)
    ]
    heading(console, 3, "Audit: another process, other settings, the same bits")
    digits = trained[0]
    audit, replay = training.audit(digits, output / "runs" / "digits-audit", console)
    plain = plain_runs(digits.task.name, digits.task.initial_state(), steps=steps)
    roots = {run.state_sha256 for run in plain}
    console.print(
        f"plain FP32 PyTorch under {len(plain)} such settings: {len(roots)} different final states", highlight=False
    )
    for job in trained:
        wrong = sum(row.fp64_differs for row in job.result.rounding)
        total = sum(row.elements for row in job.result.rounding)
        console.print(
            f"{job.task.name}: FP64-then-round would have rounded {wrong:,} of {total:,} results otherwise",
            highlight=False,
        )
    heading(console, 4, "Cheat: every lie is walked down to one number, on the chain too")
    arena = Arena(market, digits.run, replay, digits.interpreter, output / "runs")
    fought = fight(arena, digits, console)
    heading(console, 5, "Show")
    result = DemoResult(
        environment=describe(),
        jobs=tuple(job.result for job in trained),
        audits=(audit,),
        plain=plain,
        disputes=fought,
        seconds=time.perf_counter() - started,
    )
    console.print(Markdown(report.to_markdown(result)))
    files = report.write(result, output)
    console.print("\n" + "\n".join(f"{path}" for path in files.values()), highlight=False)
    return result


def _prepare(output: Path) -> None:
    if output.exists() and any(output.iterdir()):
        if not (output / MARKER).exists():
            raise ConfigurationError(f"expected a new or empty folder, got {output}; choose another or empty it")
        shutil.rmtree(output)
    output.mkdir(parents=True, exist_ok=True)
    (output / MARKER).touch()


# ---------------------------------------------------------------- disputes, each on and off the chain


def digits_cheats(arena: Arena) -> list[tuple[str, Cheat]]:
    """The cheats in the image job, as pairs of the thing tampered with and the cheat."""
    program, job = arena.run.program, arena.run.job
    matrix = next(n for n in tampering.long_sums(program, 64) if program.body[n].numel > 64)
    state, saved = (
        next(n for n in program.state_spec() if n.endswith("head.weight")),
        job.last_step(job.checkpoints - 2),
    )
    label = tampering.poisoned_label(program, labels="labels", step=job.steps - 5, element=7, classes=10)
    rate = tampering.changed_learning_rate(program, step=job.steps - 9, factor=1.5)
    weight = tampering.flipped_weight_bit(program, state=state, step=saved, element=123)
    total = tampering.low_precision_sum(step=job.steps - 3, index=matrix, element=17)
    return [
        (f"one label of the batch of step {label.step}", label),
        (f"the learning rate of step {rate.step}", rate),
        (f"one bit of one weight in the checkpoint of step {weight.step}", weight),
        (f"one sum of products of step {total.step}: TF32 instead of exact", total),
    ]


def fight(arena: Arena, trained: Trained, console: Console) -> tuple[DisputeResult, ...]:
    """Lets trainers cheat, and an auditor whose replay is honest challenge their last heads.

    At last a challenger with a wrong replay attacks the honest trainer, and loses its stake.
    """
    cheats = digits_cheats(arena)
    games: list[tuple[str, str, Callable[[], Fought]]] = [
        (cheat.name, tampered, partial(disputes.fight, arena, cheat, disputes.another(arena.run.job), str(number)))
        for number, (tampered, cheat) in enumerate(cheats, start=1)
    ]
    false = partial(disputes.challenge_falsely, arena, cheats[0][1], "challenger")
    games.append(("false challenge", "nothing: the trainer is honest", false))
    found = []
    for title, tampered, play in games:
        started = time.perf_counter()
        found.append(_result(trained, title, tampered, play(), started, honest_trainer=play is false))
        result = found[-1]
        console.print(
            f"{title}: {result.messages} messages, {result.bytes:,} bytes, {result.gas or 0:,} gas; ended at step "
            f"{result.step}, instruction {result.instruction} ({result.operation}), element {whole(result.element)}; "
            f"{result.python} loses (referee), {result.contract} loses (contract)",
            highlight=False,
        )
    return tuple(found)


def _result(
    trained: Trained, title: str, tampered: str, fought: Fought, started: float, *, honest_trainer: bool
) -> DisputeResult:
    match, chain = fought.match, fought.match.chain
    ended = sides.describe(match.final, trained.captured.program, fought.truth)
    walk = []
    for at, chosen in match.selections:
        position = at.below(chosen.index)
        note = _narrowed_to(match.final, at.level, position) if at.height == at.levels else ""
        walk.append(
            WalkStep(
                tree=at.level.name.lower(),
                height=at.height,
                levels=at.levels,
                index=chosen.index,
                position=position,
                note=note,
            )
        )
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
        python=_LOSERS[match.loser],
        contract=_LOSERS[chain.loser],
        trainer_delta=chain.trainer_gain,
        challenger_delta=chain.challenger_gain,
        seconds=time.perf_counter() - started,
        moves=tuple(Move(kind=kind_name(m.move), by=m.by.name.lower(), bytes=m.bytes, gas=m.gas) for m in match.moves),
        walk=tuple(walk),
    )


_LOSERS: Final = {Side.DEFENDER: Loser.TRAINER, Side.CHALLENGER: Loser.CHALLENGER}


def _narrowed_to(state: GameState, level: Level, position: int) -> str:
    """Names the object at leaf `position` of a level's tree, for instance a segment's steps."""
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
