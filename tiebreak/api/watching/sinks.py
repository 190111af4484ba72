"""More outputs of a monitor: Prometheus, TensorBoard, MLflow. Each library is imported when asked for.

All of them get the loss of each step, the figures of each sample, and 1 or 0 for each rule that is an alarm or holds.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tiebreak.api.watching.alarms import Rule, Sample, WorkerStanding
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.float32 import to_float

MOST_AT_ONCE: Final = 1000
"""The most figures in one request to MLflow."""
MAX_STEP: Final = (1 << 63) - 1


def figures(sample: Sample) -> dict[str, float]:
    """The figures of a sample, by name: shares from 0 to 1, bytes, watts."""
    found = {
        "processor_share": sample.processor,
        "machine_share": sample.machine,
        "memory_bytes": sample.memory,
        "gpu_share": sample.gpu,
        "gpu_memory_bytes": sample.gpu_memory,
        "gpu_watts": sample.watts,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def gauge_of(name: str) -> tuple[str, str]:
    """A figure's name and words as a gauge of Prometheus."""
    return f"tiebreak_training_{name}", f"Of the process that trains: {name.replace('_', ' ')}."


def _alarms(rules: Sequence[Rule]) -> dict[str, float]:
    return {
        rule.name: float(rule.standing is WorkerStanding.ALARM)
        for rule in rules
        if rule.standing is not WorkerStanding.OPEN
    }


def _points(
    losses: Mapping[int, int], samples: Sequence[Sample], now: float
) -> Iterator[tuple[str, float, int, float]]:
    """Name, value, step and time. A loss has no time of its own, so it gets the time of reading."""
    for step, bits in losses.items():
        yield "loss", to_float(bits), min(step, MAX_STEP), now
    for sample in samples:
        for name, value in figures(sample).items():
            yield name, value, min(sample.step, MAX_STEP), sample.time


class PrometheusFile:
    """The newest figures in the text format, for node_exporter's textfile collector; whole at every instant."""

    def __init__(self, path: Path, job: str) -> None:
        self._path, self._job, self._library = path, job, import_module("prometheus_client")
        self._found: dict[str, float] = {}

    def take(self, losses: Mapping[int, int], samples: Sequence[Sample], rules: Sequence[Rule]) -> None:
        """Take the bits of new losses by step, new samples, and the present standing of the rules."""
        if losses:
            step = max(losses)
            self._found |= {"step": float(step), "loss": to_float(losses[step])}
        if samples:
            self._found |= figures(samples[-1])
        found = self._library.CollectorRegistry()
        for name, value in self._found.items():
            gauge = self._library.Gauge(*gauge_of(name), ["job"], registry=found)
            gauge.labels(job=self._job).set(value)
        words = "Whether a rule of the monitor is an alarm, which is never a verdict."
        gauge = self._library.Gauge("tiebreak_monitor_alarm", words, ["job", "rule"], registry=found)
        for name, value in _alarms(rules).items():
            gauge.labels(job=self._job, rule=name).set(value)
        self._library.write_to_textfile(str(self._path), found)

    def close(self) -> None:
        pass


class TensorBoard:
    """An event file in a folder, a new one for each monitor."""

    def __init__(self, folder: Path) -> None:
        self._writer: Any = import_module("tensorboardX").SummaryWriter(str(folder))

    def take(self, losses: Mapping[int, int], samples: Sequence[Sample], rules: Sequence[Rule]) -> None:
        now, step = time.time(), 0
        for name, value, step, at in _points(losses, samples, now):
            self._writer.add_scalar(name, value, step, walltime=at)
        if losses or samples:
            for name, value in _alarms(rules).items():
                self._writer.add_scalar(f"alarm/{name}", value, step, walltime=now)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """A run of MLflow's experiment `tiebreak`, named by the job. Raises `ConfigurationError` if the server refuses."""

    def __init__(self, uri: str, job: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would tell its makers
        self._library, self._metric = import_module("mlflow"), import_module("mlflow.entities").Metric
        self._uri = uri
        with self._asking():
            self._client = self._library.MlflowClient(uri)
            found = self._client.get_experiment_by_name("tiebreak")
            experiment = self._client.create_experiment("tiebreak") if found is None else found.experiment_id
            self._run = self._client.create_run(experiment, run_name=job, tags={"job": job}).info.run_id

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except (self._library.MlflowException, ImportError) as error:  # the small client lacks what a database needs
            raise ConfigurationError(f"expected an MLflow server at {self._uri}, got: {error}") from error

    def take(self, losses: Mapping[int, int], samples: Sequence[Sample], rules: Sequence[Rule]) -> None:
        now = time.time()
        points = list(_points(losses, samples, now))
        if points:
            points += [(f"alarm.{name}", value, points[-1][2], now) for name, value in _alarms(rules).items()]
        metrics = [self._metric(name, value, int(1000 * at), step) for name, value, step, at in points]
        for first in range(0, len(metrics), MOST_AT_ONCE):
            with self._asking():
                self._client.log_batch(self._run, metrics=metrics[first : first + MOST_AT_ONCE])

    def close(self) -> None:
        with self._asking():
            self._client.set_terminated(self._run)


Sink = PrometheusFile | TensorBoard | MLflow
