"""Progress of a run for people: a bar with loss, speed and the time left; and a tally of where the time goes."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Final, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from tiebreak.engine.run.commit import Commit
from tiebreak.engine.run.train import Progress

LOSS_WIDTH: Final = len("loss -1.234e-05")
SPEED_WIDTH: Final = len("3.33e+06 steps/s")
TIME_WIDTH: Final = len("0:00:00")
MIN_BAR: Final = 5
NOTEBOOK_SECONDS: Final = 0.25
NOTEBOOK_WIDTH: Final = 120


class OnStep(Protocol):
    """Called after steps with the number of finished steps, the last loss or None, and further text for the line."""

    def __call__(self, step: int, loss: float | None, detail: str = "") -> None: ...


def on_stderr(title: str, steps: int, done: int = 0, *, quiet: bool = False) -> AbstractContextManager[OnStep]:
    """A `training_progress` on standard error, as commands show it."""
    return training_progress(Console(stderr=True, quiet=quiet), title, steps, done)


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        if (speed := task.finished_speed or task.speed) is None:
            return Text("")
        return Text(f"{speed:.3g} steps/s" if speed < 100 or speed >= 1e5 else f"{speed:,.0f} steps/s")


@contextmanager
def training_progress(console: Console, title: str, steps: int, done: int = 0) -> Iterator[OnStep]:
    """Shows a bar that fits 80 columns, one line that changes in a notebook, or else ten lines.

    done: the number of steps that a resumed run already has.
    """
    if not console.is_terminal:
        yield _lines(console, title, steps, done)
        return
    last = ""
    # The bar gets the width that the words leave over, so that no word is cut off.
    words = len(title) + 2 * len(str(steps)) + 1 + LOSS_WIDTH + SPEED_WIDTH + TIME_WIDTH + 5
    width = min(40, max(MIN_BAR, console.width - words))
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=width), MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"), _Speed(), TimeRemainingColumn(elapsed_when_finished=True),
    )  # fmt: skip
    with Bar(*columns, console=console) as bar:
        task = bar.add_task(escape(title), total=steps, completed=done, loss="")

        def on_step(step: int, loss: float | None, detail: str = "") -> None:
            nonlocal last
            last = detail
            bar.update(task, completed=step, loss="" if loss is None else f"loss {loss:.4g}")

        yield on_step
    if last:
        console.print(escape(f"{title}: {last}"), highlight=False, style="dim", soft_wrap=True)


def _lines(console: Console, title: str, steps: int, done: int) -> OnStep:
    every, shown = max(1, steps // 10), 0.0
    told = done // every
    first: tuple[int, float] | None = None

    def on_step(step: int, loss: float | None, detail: str = "") -> None:
        nonlocal first, shown, told
        now, last = time.perf_counter(), step == steps
        # Counted from the end of the first step: before it, the device was qualified and kernels were compiled.
        first = first or (step, now)
        due = now - shown >= NOTEBOOK_SECONDS if console.is_jupyter else step // every > told
        if console.quiet or not (due or last):
            return
        shown, told = now, step // every
        rate = (step - first[0]) / max(1e-9, time.perf_counter() - first[1])
        speed = f", {rate:.3g} steps/s" if rate else ""
        left = f", {timedelta(seconds=round((steps - step) / rate))} left" if step < steps and rate else ""
        more = f", {detail}" if detail else ""
        lost = "" if loss is None else f", loss {loss:.4f}"
        line = f"{title}: step {step} of {steps}{lost}{speed}{left}{more}"
        if console.is_jupyter:  # a notebook overwrites the line
            console.file.write(f"\r{line:<{NOTEBOOK_WIDTH}}" + "\n" * last)
            console.file.flush()
            return
        # The line may be wider than the console believes; in a log it should still be a single line.
        console.print(escape(line), highlight=False, soft_wrap=True)

    return on_step


class Tally:
    """Adds up the times that a worker reports, and compares them with the wall clock since this object was made."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started = clock()
        self.steps = 0
        self.entries = 0
        self._computing = self._resolving = self._hashing = self._writing = 0.0

    def step(self, progress: Progress) -> None:
        self.steps += 1
        self.entries += progress.entries
        self._computing += progress.seconds
        self._resolving += progress.resolving

    def commit(self, commit: Commit) -> None:
        self._hashing += commit.hashing
        self._writing += commit.writing

    @property
    def seconds(self) -> float:
        """Wall-clock seconds since the start."""
        return self._clock() - self._started

    @property
    def steps_per_second(self) -> float:
        """The average since the start."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0

    def share(self) -> dict[str, float]:
        """The share of the wall clock that each kind of work took.

        Hashing and writing run in parallel with the rest, so the shares may add up to more than 1.
        """
        spent = {
            "arithmetic": self._computing - self._resolving,
            "resolving": self._resolving,
            "hashing": self._hashing,
            "writing": self._writing,
        }
        return {name: value / self.seconds if self.seconds > 0 else 0.0 for name, value in spent.items()}

    def words(self) -> str:
        """The share of the time that each kind of work took, as one line."""
        share = ", ".join(f"{name} {100 * value:.1f}%" for name, value in self.share().items() if name != "writing")
        logged = f", {self.entries / self.steps:.3g} entries a step" if self.entries else ""
        return f"{share}{logged}"
