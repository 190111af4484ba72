"""The worker of a job without the comparisons that have tests of their own and would be most of its time."""

import runpy
from dataclasses import replace

import tests.tiebreak.absent_libraries  # noqa: F401
from tiebreak.api.machine import interpreters
from tiebreak.api.training import tasks

interpreters.qualify = lambda _: None
tasks.checked = lambda task, *_: replace(tasks.capture_task(task), check="full")
runpy.run_module("tiebreak.node.finetuning.worker", run_name="__main__")
