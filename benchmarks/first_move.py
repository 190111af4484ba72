"""The time until a game's first move has been found, alone and while a hub fails and three other jobs are trained.

Both times include the start of the process that finds moves. The job is the demo's image job; a step of each other job
takes seconds. One move opens checkpoints, the other one replays a segment first.
"""

import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import click
import torch
from torch import nn

from benchmarks.table import placed, publish, rows_of
from tiebreak import SGD, Batch, Rows, Task
from tiebreak.api.agreement.offers import open_offer
from tiebreak.api.builtin.loader import load_task
from tiebreak.api.machine import Machine
from tiebreak.api.training.bundle import capture_bundle
from tiebreak.api.training.runs import agree_on
from tiebreak.node.tasks import Answer, Compute, Publish, Steps, WorkerSettings
from tiebreak.node.worker_tasks import JOBS, WorkerTasks
from tiebreak.node.workers import WorkerPool, warm_up
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.job import Head, Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Phase
from tiebreak.protocol.game.snapshot import Snapshot
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.driver import Turn
from tiebreak.protocol.tags import Digest

CLIENT, TRAINER = PrivateKey.from_int(1), PrivateKey.from_int(2)
WIDTH: Final = 1024
FATES: Final = ("away", "silent", "full")


def slow_task() -> Task:
    """A task whose steps are as long as four products of 4,096 x 1,024 x 1,024 and their gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)])
    return Task(
        name="slow", model=model, loss=lambda model, rows: model(rows).square().mean(), optimizer=SGD(lr=1e-3),
        data={"rows": torch.randn(4 * WIDTH, WIDTH)}, batch=Batch(size=4 * WIDTH, examples=Rows(names=("rows",))),
        steps=1000, checkpoint_interval=1000, seed=0,
    )  # fmt: skip


class Full(BaseHTTPRequestHandler):
    """Answers every request with status 507, as a hub does whose disk is full."""

    def do_PUT(self) -> None:
        self.send_error(507)

    do_GET = do_POST = do_HEAD = do_PUT  # noqa: N815

    def log_message(self, *_: object) -> None: ...


@contextmanager
def hub(fate: str) -> Iterator[str]:
    if fate == "full":
        with ThreadingHTTPServer(("127.0.0.1", 0), Full) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()
    else:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            yield f"http://127.0.0.1:{silent.getsockname()[1] if fate == 'silent' else 9}"


def seconds(bench: WorkerSettings, job: Job, root: Digest, phase: Phase | None, others: list[Job]) -> float:
    """Seconds until the first move of a game about a trained job, once all others are in training."""
    game = Digest(bytes(32))
    start = rules.start(job, Head(job_id=job.id, count=job.checkpoints, run_root=root), game, 1)
    state = start if phase is None else replace(start, phase=phase)
    work = e.Gather(game_id=game, sequence=0, snapshot=Snapshot.of(state).id)
    pool, trained, moved = WorkerPool(bench), SimpleQueue[Steps](), SimpleQueue[Answer]()
    try:
        pool.listeners.on_steps = trained.put
        for other in others:
            pool.ask(Publish(job=other, count=0, logs=1), lambda _: None)
            pool.ask(Compute(work=e.Train(job_id=other.id, count=other.checkpoints), job=other), lambda _: None)
        waited = {other.id for other in others}
        while waited:
            waited.discard(trained.get(timeout=300).job_id)
        began = time.perf_counter()
        turn = Turn(state=state, line=(), defends=1)
        pool.ask(Compute(work=work, job=job, turn=turn), moved.put)
        assert moved.get(timeout=300).move is not None
        return time.perf_counter() - began
    finally:
        pool.stop()


@click.command()
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True)
@placed
def main(repeats: int, folder: Path) -> None:
    """Time the first move of a game, alone and beside all that could hold it up."""
    warm_up()
    with tempfile.TemporaryDirectory() as name:
        place, jobs = Path(name), list[Job]()
        (place / JOBS).mkdir()
        for number, task in enumerate([load_task("digits"), *[slow_task()] * 3]):
            run = agree_on(capture_bundle(task), place / "agreed", client=CLIENT, trainer=TRAINER,
                           terms=Terms(nonce=number), domain=OFF_CHAIN)  # fmt: skip
            jobs.append(run.job)
            run.path.rename(place / JOBS / run.job.id.hex())
        job, *others = jobs
        bench = WorkerSettings(folder=place, domain=OFF_CHAIN, hub="", machine=Machine(), processes=3)
        train = Compute(work=e.Train(job_id=job.id, count=job.checkpoints), job=job)
        WorkerTasks(bench, lambda _: None).do(train)
        root = open_offer(place / JOBS / job.id.hex()).root(job.checkpoints)
        rows = []
        for named, phase in (("opens checkpoints", None), ("replays a segment", Phase.OPEN_STEPS)):
            taken: dict[str, list[float]] = {}
            for fate in [*FATES] * repeats:
                with hub(fate) as url:
                    for case, beside in (("alone", []), (fate, others)):
                        taken.setdefault(case, []).append(seconds(replace(bench, hub=url), job, root, phase, beside))
            alone = statistics.median(taken["alone"])
            rows += rows_of(f"move that {named}", "s", {case: statistics.median(t) for case, t in taken.items()})
            times = {f"{fate}, times alone": statistics.median(taken[fate]) / alone for fate in FATES}
            rows += rows_of(f"move that {named}", "x", times, dict.fromkeys(times, "<= 2"))
    publish("first_move", rows, "a hub that fails, and three long jobs in training", folder=folder)


if __name__ == "__main__":
    main()
