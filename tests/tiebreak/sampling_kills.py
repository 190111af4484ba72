"""A GRPO run with exact sampling that is killed over and over: `python -m tests.tiebreak.sampling_kills FOLDER KILLS`.

It prints, as JSON, where it was killed, how many runs that took, and whether each has the root and the logs of the run
that nobody disturbed. What a process does is counted: each token of a draft, each exact pass, each step of the engine,
and each time something is made safe on the disk. A process that is killed loses nothing that it has handed to the
system, so the moment just before and just after one of these is any moment.
"""

import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

import tiebreak
from tests.tiebreak.test_sampled_rollouts import trainer
from tiebreak.api.huggingface import sampled_rollouts
from tiebreak.api.huggingface.sampled_rollouts import SampledRollouts
from tiebreak.api.machine import Machine, interpreters
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter

STEPS: Final = 6
PLACES: Final[dict[str, tuple[tuple[Any, str], ...]]] = {
    "drafting": ((sampled_rollouts, "noise_of"),),
    "exact pass": ((SampledRollouts, "_exact"),),
    "step": ((Interpreter, "step"),),
    "disk": ((os, "fsync"), (os, "replace")),
}


def train(folder: Path) -> None:
    made = trainer(folder, max_steps=STEPS, gradient_accumulation_steps=1, save_strategy="steps", save_steps=2)
    tiebreak.hf.train(made, exact_sampling=True, check="none", machine=Machine(threads=1))


def process(folder: Path, *, kills: tuple[str, int] | None = None) -> Counter[str]:
    """Trains in a process of its own, and gives what it counted. kills: at which time of which kind it is killed."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.close(reading)
        seen = Counter[str]()

        def counted(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*given: Any, **more: Any) -> Any:
                seen[kind] += 1
                if (kind, seen[kind]) == kills:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*given, **more)

            return call

        for kind, places in PLACES.items():
            for holder, name in places:
                setattr(holder, name, counted(kind, getattr(holder, name)))
        train(folder)
        os.write(writing, json.dumps(seen).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return Counter()
    assert status == 0, f"expected a process that ends or is killed, got status {status}"
    return Counter(json.loads(said))


def published(folder: Path) -> tuple[Any, ...]:
    run = RunDirectory.open(folder / "run")
    logs = LogFiles(run)
    return run.root(), *(logs.step_log(step) for step in range(1, STEPS + 1))


def main(folder: Path, wanted: int) -> None:
    """Kills `wanted` times."""
    torch.set_num_threads(1)
    interpreters.qualify = lambda *_, **__: None
    counts, drawn = process(folder / "whole"), random.Random(1)
    whole, killed, equal = published(folder / "whole"), Counter[str](), []
    while killed.total() < wanted:
        name = folder / f"{len(equal)}"
        done = Counter[str]()
        while not done:
            left = killed.total() < wanted
            kind = drawn.choice(["drafting", *PLACES])
            done = process(name, kills=(kind, drawn.randint(1, counts[kind])) if left else None)
            killed[kind] += not done
        equal.append(published(name) == whole)
        print(dict(killed), equal[-1], flush=True)
    print(json.dumps({"killed": killed, "equal": equal}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
