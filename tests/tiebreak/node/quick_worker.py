"""The worker of a job without the comparisons that have tests of their own and would be most of its time."""

import runpy
import sys
from dataclasses import replace

from tiebreak.api.machine import interpreters
from tiebreak.api.training import tasks

sys.modules["bitsandbytes"] = None  # type: ignore[assignment]  # no weights of 4 bits here, and peft would load it
interpreters.qualify = lambda _: None
tasks.checked = lambda task, *_: replace(tasks.capture_task(task), check="full")
runpy.run_module("tiebreak.node.finetuning.worker", run_name="__main__")
