"""Measures the process that trains, every now and then, into `monitor.jsonl` in its run directory (`api.alarms`)."""

import time
from contextlib import suppress
from typing import Any, Final

import psutil
import pynvml
import torch

from tiebreak.api.machine.environment import cpu_name
from tiebreak.api.watching.alarms import MONITOR, ProcessStart, Sample, as_line
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.train import Progress
from tiebreak.engine.system import usable_cores

INTERVAL: Final = 1.0
LONGEST: Final = 60.0


class Sampler:
    """Called after each step, it mostly only looks at the clock: once a second it writes a line.

    The longer a process runs the rarer: every thousandth of its time, and once a minute at least, as far as its steps
    allow. So a day leaves 5,500 lines of 150 bytes and a year half a million. There is no thread: a process that hangs
    falls silent.
    """

    def __init__(self, run: RunDirectory, *, device: str = "cpu", interval: float = INTERVAL) -> None:
        """interval: seconds between samples, at first. Raises `StorageError` if the disk refuses."""
        self._run, self._interval = run, interval
        self._began = self._at = time.monotonic()
        self._worked = time.process_time()
        self._process = psutil.Process()
        self._gpu = _Gpu.of(device)
        psutil.cpu_percent(None)  # the next one is since this one
        machine = {"cpu": cpu_name(), "cores": str(usable_cores()), "memory": str(psutil.virtual_memory().total)}
        if self._gpu is not None:
            machine["gpu"] = self._gpu.name
        step = max(run.kept(), default=0)
        start = ProcessStart(job=run.job.id.hex(), step=step, time=round(time.time(), 3), machine=machine)
        run.append_line(MONITOR, as_line(start))
        run.append_line(MONITOR, as_line(self._sample(step, None)))

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._at >= min(LONGEST, max(self._interval, (now - self._began) / 1000)):
            self._run.append_line(MONITOR, as_line(self._sample(progress.step, progress.loss_bits)))

    def _sample(self, step: int, loss_bits: int | None) -> Sample:
        now, worked = time.monotonic(), time.process_time()
        share = (worked - self._worked) / max(now - self._at, 1e-6) / usable_cores()
        is_first, self._at, self._worked = loss_bits is None, now, worked
        self.last = Sample(
            step=step, time=round(time.time(), 3), loss_bits=loss_bits,
            processor=None if is_first else min(1.0, round(share, 4)),
            machine=None if is_first else min(1.0, round(psutil.cpu_percent(None) / 100, 4)),
            memory=self._process.memory_info().rss, **({} if self._gpu is None else self._gpu.measure()),
        )  # fmt: skip
        return self.last


class _Gpu:
    """A device as NVIDIA's library sees it. Figures that it lacks for this device are left out."""

    def __init__(self, handle: Any, name: str) -> None:
        self._handle, self.name = handle, name

    @classmethod
    def of(cls, device: str) -> "_Gpu | None":
        """The GPU to measure; None on the CPU, and where the driver's library is missing or lacks the device."""
        if not device.startswith("cuda"):
            return None
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            found = torch.cuda.get_device_properties(torch.device(device))
            # The device is named by its UUID: the library's numbers ignore CUDA_VISIBLE_DEVICES.
            return cls(pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{found.uuid}"), found.name)
        return None

    def measure(self) -> dict[str, Any]:
        """Utilisation over the library's last period (up to a second), memory in bytes, power in watts."""
        handle, found = self._handle, dict[str, Any]()
        with suppress(pynvml.NVMLError):
            found["gpu"] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        with suppress(pynvml.NVMLError):
            found["gpu_memory"] = pynvml.nvmlDeviceGetMemoryInfo(handle).used
        with suppress(pynvml.NVMLError):
            found["watts"] = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
        return found
