"""The simulator's small task, as a task file."""

from tiebreak.engine.capture.task import Task
from tiebreak.lab.sim.world.small_task import small_task


def task(steps: int | None = None) -> Task:  # it has its own number
    return small_task()
