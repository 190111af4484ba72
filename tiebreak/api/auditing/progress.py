"""Progress of a run for people: a bar with loss, speed and the time left; and a tally of where the time goes."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from tiebreak.engine.run.commit import Commit
from tiebreak.engine.run.train import Progress

if TYPE_CHECKING:
    from tiebreak.api.auditing.parallel import AuditStanding

LOSS_WIDTH: Final = len("loss -1.234e-05")
SPEED_WIDTH: Final = len("3.33e+06 steps/s")
TIME_WIDTH: Final = len("0:00:00")
MIN_BAR: Final = 5
NOTEBOOK_SECONDS: Final = 0.25
NOTEBOOK_WIDTH: Final = 120
SHOWN_WORKERS: Final = 16


class OnStep(Protocol):
    """Called after each step with its number (from 1), its loss, and more in words."""

    def __call__(self, step: int, loss: float, detail: str = "") -> None:
        """A step is done."""


def on_stderr(title: str, steps: int, done: int = 0, *, quiet: bool = False) -> AbstractContextManager[OnStep]:
    """A `training_progress` on standard error, as commands show it."""
    return training_progress(Console(stderr=True, quiet=quiet), title, steps, done)


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if speed is None:
            return Text("")
        return Text(f"{speed:.3g} steps/s" if speed < 100 or speed >= 1e5 else f"{speed:,.0f} steps/s")


@contextmanager
def training_progress(console: Console, title: str, steps: int, done: int = 0) -> Iterator[OnStep]:
    """Shows a bar that fits 80 columns, one line that changes in a notebook, or else ten lines.

    done: the number of steps that a resumed run already has.
    """
    if not console.is_terminal:
        yield _lines(console, title, steps)
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

        def on_step(step: int, loss: float, detail: str = "") -> None:
            nonlocal last
            last = detail
            bar.update(task, completed=step, loss=f"loss {loss:.4g}")

        yield on_step
    if last:
        console.print(escape(f"{title}: {last}"), highlight=False, style="dim", soft_wrap=True)


def _lines(console: Console, title: str, steps: int) -> OnStep:
    every, shown = max(1, steps // 10), 0.0
    first: tuple[int, float] | None = None

    def on_step(step: int, loss: float, detail: str = "") -> None:
        nonlocal first, shown
        now, last = time.perf_counter(), step == steps
        # Counted from the end of the first step: before it, the device was qualified and kernels were compiled.
        first = first or (step, now)
        due = now - shown >= NOTEBOOK_SECONDS if console.is_jupyter else step % every == 0
        if console.quiet or not (due or last):
            return
        shown = now
        rate = (step - first[0]) / max(1e-9, time.perf_counter() - first[1])
        speed = f", {rate:.3g} steps/s" if rate else ""
        left = f", {timedelta(seconds=round((steps - step) / rate))} left" if step < steps and rate else ""
        more = f", {detail}" if detail else ""
        line = f"{title}: step {step} of {steps}, loss {loss:.4f}{speed}{left}{more}"
        if console.is_jupyter:  # a notebook overwrites the line
            console.file.write(f"\r{line:<{NOTEBOOK_WIDTH}}" + "\n" * last)
            console.file.flush()
            return
        # The line may be wider than the console believes; in a log it should still be a single line.
        console.print(escape(line), highlight=False, soft_wrap=True)

    return on_step


@contextmanager
def progress_of_workers(console: Console, title: str) -> Iterator[Callable[["AuditStanding"], None]]:
    """Shows a bar for all work and one for each worker's, with the time left, or ten lines without a terminal."""
    if not console.is_terminal:
        yield _lines_of_workers(console, title)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=MIN_BAR * 4), MofNCompleteColumn(), _Speed(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )  # fmt: skip
    with Bar(*columns, console=console, auto_refresh=False) as bar:
        whole = bar.add_task(escape(title), total=None)
        rows: dict[str, TaskID] = {}

        def on_standing(now: "AuditStanding") -> None:
            bar.update(whole, completed=now.steps, total=now.total)
            for worker in rows.keys() - now.workers.keys():
                bar.remove_task(rows.pop(worker))
            for worker, (steps, of) in list(now.workers.items())[:SHOWN_WORKERS]:
                if worker not in rows:
                    rows[worker] = bar.add_task(escape(f"  {worker}"))
                bar.update(rows[worker], completed=steps, total=of)
            bar.refresh()

        yield on_standing


def _lines_of_workers(console: Console, title: str) -> Callable[["AuditStanding"], None]:
    said, began, first = -1, time.monotonic(), 0

    def on_standing(now: "AuditStanding") -> None:
        nonlocal said, first
        if said < 0:
            first = now.steps
        tenth = 10 * now.steps // max(1, now.total)
        if tenth <= said:
            return
        said = tenth
        rate = (now.steps - first) / (time.monotonic() - began)
        left = f", {timedelta(seconds=round((now.total - now.steps) / rate))} left" if rate else ""
        speed = f", {rate:.3g} steps/s{left}" if rate else ""
        each = "; ".join(f"{worker} {steps} of {of}" for worker, (steps, of) in now.workers.items())
        line = f"{title}: {now.steps} of {now.total} steps{speed}{f' ({each})' if each else ''}"
        console.print(escape(line), highlight=False, soft_wrap=True)

    return on_standing


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
        """One line that says where the time went."""
        share = ", ".join(f"{name} {100 * value:.1f}%" for name, value in self.share().items() if name != "writing")
        logged = f", {self.entries / self.steps:.3g} entries a step" if self.entries else ""
        return f"{share}{logged}"
