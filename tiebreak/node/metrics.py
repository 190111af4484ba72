"""A party's metrics for Prometheus: its money, its risks, the time that is left, and counts of its log lines."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tiebreak.api.watching.alarms import Sample
from tiebreak.node.owner_view import OwnerView
from tiebreak.node.tasks import Steps
from tiebreak.protocol.numbers.float32 import to_float

HOST: Final = "127.0.0.1"


class PartyMetrics(Collector):
    """Reads the status that was last shown; it asks nobody."""

    def __init__(self, view: OwnerView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """The metrics now. None of an account for a party without a key."""
        found = self._view.shown
        due = "Until the first deadline of something that waits for this party; negative if it is past."
        withheld = "Blocks of which the node withholds logs, or the proof that there are none."
        for name, words, value in (
            ("balance_wei", "What the account can pay with.", found.get("balance")),
            ("floor_wei", "The balance below which it cannot play games.", found.get("floor")),
            ("credit_wei", "What the board owes it.", found.get("credit")),
            ("at_risk_wei", "What it has up in jobs, games and pools.", found.get("at_risk")),
            ("seconds_left", due, found.get("seconds_left")),
            ("games", "Games of this party that go on.", len(found.get("games", ()))),
            ("unsent", "Posts that the hub has not taken.", found.get("unsent", 0)),
            ("chain_away", "Whether the chain does not answer.", found.get("is_away", False)),
            ("withheld_blocks", withheld, len(found.get("withheld", ()))),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"tiebreak_{name}", words, value=float(value))
        jobs = GaugeMetricFamily("tiebreak_jobs", "Jobs on the board by status.", labels=["status"])
        for status, count in sorted(Counter(job["status"] for job in found.get("jobs", {}).values()).items()):
            jobs.add_metric([status], count)
        yield jobs
        lines = CounterMetricFamily("tiebreak_log_lines", "Lines of the log.", labels=["level", "event"])
        for (level, event), count in sorted(self._view.notes.counts.items()):
            lines.add_metric([level, event], count)
        yield lines
        families: dict[str, GaugeMetricFamily] = {}
        for told in list(self._view.training.values()):
            for name, value in _training(told).items():
                words = f"Of the process that trains: {name.replace('_', ' ')}."
                family = GaugeMetricFamily(f"tiebreak_training_{name}", words, labels=["job"])
                families.setdefault(name, family).add_metric([told.job_id.hex()], value)
        yield from families.values()


def _training(told: Steps) -> dict[str, float]:
    """A trainer's newest figures: of the steps in a report, and of its newest sample (`api.watching.sampling`).

    Shares are from 0 to 1, memory in bytes.
    """
    found: dict[str, float | None] = {
        "step": told.first_step + len(told.losses) - 1,
        "loss": to_float(told.losses[-1]),
        "steps_per_second": len(told.losses) / max(told.seconds, 1e-6),
        "processor_share": told.processor,
    }
    if isinstance(sample := told.measured, Sample):
        found |= {
            "machine_share": sample.machine, "memory_bytes": sample.memory, "gpu_share": sample.gpu,
            "gpu_memory_bytes": sample.gpu_memory, "gpu_watts": sample.watts,
        }  # fmt: skip
    return {name: float(value) for name, value in found.items() if value is not None}


def serve_metrics(port: int, view: OwnerView) -> None:
    """Serve the metrics on this machine, in a thread, until the process ends."""
    shown = CollectorRegistry()
    shown.register(PartyMetrics(view))
    start_http_server(port, HOST, shown)
