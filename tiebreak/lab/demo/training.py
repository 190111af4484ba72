"""Parts 1 to 3 of the demo: agree, train, audit; and plain PyTorch for comparison."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from tiebreak.api.auditing.progress import training_progress
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training.tasks import capture
from tiebreak.api.training.trainer import evaluate_state
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.capture.task import Task
from tiebreak.engine.run.commit import Commit
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.segments import compare
from tiebreak.engine.run.train import Worker
from tiebreak.lab.demo import plain
from tiebreak.lab.demo.report import short
from tiebreak.lab.demo.results import AuditResult, JobResult, RoundingCount, Setting
from tiebreak.lab.sim.games.disputes import DisputeMarket
from tiebreak.protocol.commitments.job import SignedHead, SignedJob
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import StateError

TRAINER_THREADS, AUDITOR_THREADS = 1, 2
"""The jobs are small, so more threads would slow the trainer down. The auditor's number must differ."""
PERMUTATION = 20240603
"""The seed of the random order in which the auditor takes the terms of its sums."""


@dataclass(frozen=True, slots=True)
class Trained:
    """An honestly trained job, with everything that later parts need."""

    task: Task
    captured: Captured
    agreement: SignedJob
    run: RunDirectory
    interpreter: Interpreter
    result: JobResult

    @property
    def head(self) -> SignedHead:
        return self.run.heads()[-1]


def agree(
    market: DisputeMarket, task: Task, folder: Path, console: Console, terms: Terms
) -> tuple[Captured, RunDirectory]:
    """Captures the task, has client and trainer sign the job, and puts it on the board."""
    started = time.perf_counter()
    captured = capture(task)
    took = time.perf_counter() - started
    job = market.draft(captured, steps=task.steps, checkpoint_interval=task.checkpoint_interval, terms=terms)
    agreement = market.sign(job)
    run = RunDirectory.create(folder, agreement, captured.program, captured.state, captured.data)
    gas = market.open(agreement)
    console.print(
        f"{task.name}: {len(captured.program.body)} instructions captured in {took:.1f} s; signed by client and "
        f"trainer, on the board for {gas:,} gas\n"
        f"  program {short(job.program_root.hex())}, state {short(job.initial_state_root.hex())}, "
        f"data {short(job.data_root.hex())}, job {short(job.id.hex())}",
        highlight=False,
    )
    return captured, run


def train(market: DisputeMarket, task: Task, captured: Captured, run: RunDirectory, console: Console) -> Trained:
    """Trains honestly, posts a signed head at every checkpoint, and measures the model before and after."""
    interpreter = make_interpreter(captured.program, Machine(threads=TRAINER_THREADS), run.job)
    gas: list[int] = []

    def post(commit: Commit) -> None:
        if commit.head is not None:
            gas.append(market.post(commit.head))

    with training_progress(console, f"training {task.name}", run.job.steps) as on_step:
        started = time.perf_counter()
        Worker(
            run,
            interpreter,
            key=market.parties.trainer,
            on_commit=post,
            on_progress=lambda progress: on_step(progress.step, progress.loss),
        ).work()
        seconds = time.perf_counter() - started
    root = run.heads()[-1].head.run_root.hex()
    before, after = (evaluate_state(task, run.state(step)) for step in (0, task.steps))
    metric = next(iter(after))
    _, plain_run = plain.train(task)
    console.print(
        f"{task.name}: {metric} {before[metric]:.3f} → {after[metric]:.3f} in {seconds:.1f} s; "
        f"{len(gas)} heads on chain ({max(gas):,} gas at most); run root {short(root)}",
        highlight=False,
    )
    result = JobResult(
        name=task.name,
        summary=f"{type(task.model).__name__}, {type(task.optimizer).__name__}, batch {task.batch.size}",
        parameters=sum(p.numel() for p in task.model.parameters()),
        bodies=len(captured.program.body),
        states=len(captured.program.commits),
        steps=task.steps,
        checkpoint_interval=task.checkpoint_interval,
        program_root=run.job.program_root.hex(),
        initial_state_root=run.job.initial_state_root.hex(),
        data_root=run.job.data_root.hex(),
        job_id=run.job.id.hex(),
        run_root=root,
        losses=tuple(row["loss"] for row in run.metrics()),
        metric=metric,
        metric_before=before[metric],
        metric_after=after[metric],
        seconds=seconds,
        plain_seconds=plain_run.seconds,
        rounding=tuple(
            RoundingCount(
                kind=kind,
                elements=counts.elements,
                undecided=counts.undecided,
                integers=counts.undecided_twice,
                fp64_differs=counts.double_rounded,
            )
            for kind, counts in interpreter.arithmetic.stats.kinds.items()
            if counts.elements
        ),
    )
    return Trained(task, captured, run.agreement, run, interpreter, result)


def audit(trained: Trained, folder: Path, console: Console) -> tuple[AuditResult, RunDirectory]:
    """Replays the job in another process: one thread, plain instruction set, every sum in a random order."""
    settings = (
        Setting(name="process", trainer="this one", auditor="its own"),
        Setting(name="threads", trainer=str(TRAINER_THREADS), auditor=str(AUDITOR_THREADS)),
        Setting(name="instruction set", trainer=torch.backends.cpu.get_cpu_capability(), auditor="DEFAULT"),
        Setting(name="order of terms in sums", trainer="as computed", auditor=f"random, seed {PERMUTATION}"),
    )
    command = [sys.executable, "-m", "tiebreak", "audit", str(trained.run.path), "--output", str(folder)]
    command += ["--threads", str(AUDITOR_THREADS), "--permute", str(PERMUTATION)]
    # Passive waiting: on a busy machine, threads that spin while they wait cost more than they compute.
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default", "OMP_WAIT_POLICY": "PASSIVE"}
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise StateError(f"the audit of {trained.task.name} failed: {json.dumps(done.stderr[-500:])}")
    replay = RunDirectory.open(folder)
    comparison = compare(replay, trained.head)
    result = AuditResult(
        job=trained.task.name,
        settings=settings,
        trainer_root=comparison.committed.hex(),
        auditor_root=comparison.replayed.hex(),
        seconds=seconds,
    )
    word = "the same run root" if result.equal else "ANOTHER RUN ROOT"
    console.print(
        f"{trained.task.name}: replayed in another process with {AUDITOR_THREADS} threads, the default instruction "
        f"set and every sum in a random order: {word} {short(result.auditor_root)} ({seconds:.1f} s)",
        highlight=False,
    )
    return result, replay
